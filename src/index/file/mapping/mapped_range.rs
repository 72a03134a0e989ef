//! The mappings of this process and the holes in them, as the handler of SIGBUS knows them.

#![allow(unsafe_code, reason = "memory takes the place of lost pages")]

use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// With more holes no slot is handed out any more, and every slot counts as in a hole.
pub(crate) const MAX_HOLES: usize = 1024;
/// Of one process; one per open store.
pub(super) const MAX_MAPPINGS: usize = 256;

/// A mapping, for the handler. Static, as the handler may look at it at any moment.
pub(super) struct MappedRange {
    is_taken: AtomicBool,
    start: AtomicUsize,
    length: AtomicUsize,
    pub(super) hole_count: AtomicUsize,
    /// Each hole once, from the first place on: its offset and [`NOTED`]. 0 is none.
    pub(super) holes: [AtomicUsize; MAX_HOLES],
}

/// Beside the offset of a hole, which may be 0.
const NOTED: usize = 1;

pub(super) static MAPPED_RANGES: [MappedRange; MAX_MAPPINGS] =
    [const { MappedRange::none() }; MAX_MAPPINGS];

impl MappedRange {
    const fn none() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            hole_count: AtomicUsize::new(0),
            holes: [const { AtomicUsize::new(0) }; MAX_HOLES],
        }
    }

    /// One for a mapping of `length` bytes from the address `start` on. The handler knows it from here on.
    pub(super) fn guard(start: usize, length: usize) -> io::Result<&'static Self> {
        let Some(range) =
            MAPPED_RANGES.iter().find(|other| !other.is_taken.swap(true, Ordering::SeqCst))
        else {
            return Err(io::Error::other(format!(
                "{MAX_MAPPINGS} stores are open in this process"
            )));
        };
        range.hole_count.store(0, Ordering::SeqCst);
        range.holes.iter().for_each(|hole| hole.store(0, Ordering::SeqCst));
        range.start.store(start, Ordering::SeqCst);
        range.length.store(length, Ordering::SeqCst);
        Ok(range)
    }

    pub(super) fn hole_count(&self) -> usize {
        self.hole_count.load(Ordering::Acquire)
    }

    /// Whether the page at this offset is one; with more holes than are noted every page counts as one.
    pub(super) fn is_hole(&self, offset: usize) -> bool {
        match self.hole_count() {
            0 => false,
            count if count > MAX_HOLES => true,
            _ => {
                let page = offset - offset % page_bytes();
                let holes = self.holes.iter().map(|hole| hole.load(Ordering::Acquire));
                holes.take_while(|hole| *hole != 0).any(|hole| hole == page | NOTED)
            }
        }
    }

    pub(super) fn contains(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::SeqCst);
        start != 0 && (start..start + self.length.load(Ordering::SeqCst)).contains(&address)
    }

    /// The handler ignores it from here on, and another mapping may take it.
    pub(super) fn release(&self) {
        self.length.store(0, Ordering::SeqCst);
        self.start.store(0, Ordering::SeqCst);
        self.is_taken.store(false, Ordering::SeqCst);
    }

    /// Notes the page at `address`, and puts memory in its place. Threads may do so at the same time: only zeros are ever stored
    /// through the mapping. Says whether memory is there. Safe in a signal handler.
    pub(super) fn make_hole(&self, address: usize) -> bool {
        let page = address - address % page_bytes();
        let noted = (page - self.start.load(Ordering::SeqCst)) | NOTED;
        let note = |hole: &AtomicUsize| {
            hole.compare_exchange(0, noted, Ordering::SeqCst, Ordering::SeqCst)
        };
        let place = self.holes.iter().map(note).find(|was| was.is_ok() || *was == Err(noted));
        self.hole_count.fetch_add(usize::from(place != Some(Err(noted))), Ordering::SeqCst);
        Self::place_memory(page)
    }

    fn place_memory(page: usize) -> bool {
        // SAFETY: a whole page inside the mapping, which nobody can have replaced: it is unmapped only after `release`. Rust has
        // only raw pointers into it.
        let placed = unsafe {
            libc::mmap(
                ptr::without_provenance_mut(page),
                page_bytes(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        placed != libc::MAP_FAILED
    }
}

pub(super) fn page_bytes() -> usize {
    static PAGE_BYTES: OnceLock<usize> = OnceLock::new();
    // SAFETY: no pointers.
    *PAGE_BYTES.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize)
}
