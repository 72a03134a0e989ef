//! The sidecar mapped into memory, so that a page which the disk cannot return is a hole in it and not the end of the
//! process.
//!
//! Access to such a page raises SIGBUS. The handler here puts a zeroed page of ordinary memory in its place and notes
//! that; records read from it are no records, and its slots are never handed out again, as nothing stored in it would
//! reach the disk. systemd's journal, which maps files as well, does likewise (its `sigbus.c`).

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

use crate::sync::Mutex;
use memmap2::{Advice, MmapOptions, MmapRaw};

/// Holes are noted one by one up to here; with more of them no slot is handed out any more.
const MAX_HOLES: usize = 1024;
/// Mappings of one process that are looked after; one per open store.
const MAX_MAPPINGS: usize = 256;
/// Piece in which the file is read ahead of the mapping.
const READ_BYTES: usize = 1 << 20;

/// A file in memory.
pub(super) struct Mapping {
    // Not unmapped in a fork, where it is not mapped: something else may be at its address there.
    map: ManuallyDrop<MmapRaw>,
    guarded: &'static Guarded,
    process_id: u32,
}

/// What the handler knows of a mapping. Static, as the handler may look at it at any moment.
struct Guarded {
    start: AtomicUsize,
    length: AtomicUsize,
    hole_count: AtomicUsize,
    /// Offsets of the holes, each plus one: 0 is none.
    holes: [AtomicUsize; MAX_HOLES],
}

static GUARDED: [Guarded; MAX_MAPPINGS] = [const { Guarded::none() }; MAX_MAPPINGS];

/// Held to take a place in `GUARDED`; never by the handler.
static TAKING: Mutex<()> = Mutex::new(());

impl Mapping {
    /// Maps `length_bytes` bytes of `file` from `offset` on. It may be shorter: then only what it has may be accessed.
    pub(super) fn new(file: &File, offset: u64, length_bytes: usize) -> io::Result<Self> {
        install_handler();
        let map = MmapOptions::new().offset(offset).len(length_bytes).map_raw(file)?;
        // A fork would keep the file open through it, and so the lock.
        map.advise(Advice::DontFork)?;
        let guarded = guard(map.as_ptr().addr(), length_bytes)?;
        Ok(Self { map: ManuallyDrop::new(map), guarded, process_id: std::process::id() })
    }

    /// First byte.
    pub(super) fn as_mut_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Bytes that can be addressed.
    pub(super) fn length_bytes(&self) -> usize {
        self.map.len()
    }

    /// Reads the first `length_bytes`, which are those of `file` from `offset` on, and makes a hole of each page that cannot be
    /// read.
    pub(super) fn find_holes(&self, file: &File, offset: u64, length_bytes: usize) {
        let mut scratch = vec![0; READ_BYTES];
        let mut is_readable = |start: usize, length: usize| {
            file.read_exact_at(&mut scratch[..length], offset + start as u64).is_ok()
        };
        for start in (0..length_bytes).step_by(READ_BYTES) {
            let end = (start + READ_BYTES).min(length_bytes);
            if is_readable(start, end - start) {
                continue;
            }
            for page in (start..end).step_by(page_bytes()) {
                let within = page_bytes().min(end - page);
                if !is_readable(page, within) {
                    self.guarded.make_hole(self.guarded.start.load(Ordering::Relaxed) + page);
                }
            }
        }
    }

    /// Puts ordinary memory in the place of the file, which is not held open by this any more.
    pub(super) fn give_up(&self) {
        // SAFETY: exactly the range of the mapping, which stays ours until it is dropped; Rust has no references into
        // it. If it fails nothing has changed.
        unsafe {
            libc::mmap(
                self.map.as_mut_ptr().cast(),
                self.map.len(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
        }
    }

    /// Pages that were lost so far.
    pub(super) fn hole_count(&self) -> usize {
        self.guarded.hole_count.load(Ordering::Acquire)
    }

    /// Whether the byte at `offset` lies in a page that was lost.
    pub(super) fn is_hole(&self, offset: usize) -> bool {
        match self.hole_count() {
            0 => false,
            count if count > MAX_HOLES => true,
            count => {
                let page = offset - offset % page_bytes();
                self.guarded.holes[..count]
                    .iter()
                    .any(|hole| hole.load(Ordering::Acquire) == page + 1)
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.process_id == std::process::id() {
            self.guarded.length.store(0, Ordering::SeqCst);
            self.guarded.start.store(0, Ordering::SeqCst);
            // SAFETY: not used after this.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}

impl Guarded {
    const fn none() -> Self {
        Self {
            start: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            hole_count: AtomicUsize::new(0),
            holes: [const { AtomicUsize::new(0) }; MAX_HOLES],
        }
    }

    fn contains(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::SeqCst);
        start != 0 && (start..start + self.length.load(Ordering::SeqCst)).contains(&address)
    }

    /// Puts memory in the place of the page at `address`. Says whether that is done. Safe in a signal handler.
    fn make_hole(&self, address: usize) -> bool {
        let page = address - address % page_bytes();
        // SAFETY: a whole page inside the mapping, which nobody can have replaced: it is unmapped only when its slot
        // here is given up. Rust sees only raw pointers into it.
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
        if placed == libc::MAP_FAILED {
            return false;
        }
        let number = self.hole_count.fetch_add(1, Ordering::SeqCst);
        if let Some(hole) = self.holes.get(number) {
            hole.store(page - self.start.load(Ordering::SeqCst) + 1, Ordering::SeqCst);
        }
        true
    }
}

fn page_bytes() -> usize {
    static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);
    match PAGE_BYTES.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: no pointers; POSIX lists it among what a signal handler may call.
            let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
            PAGE_BYTES.store(bytes, Ordering::Relaxed);
            bytes
        }
        bytes => bytes,
    }
}

/// Has the handler look after a mapping.
fn guard(start: usize, length: usize) -> io::Result<&'static Guarded> {
    let _taking = TAKING.lock();
    let Some(guarded) = GUARDED.iter().find(|other| other.start.load(Ordering::SeqCst) == 0) else {
        return Err(io::Error::other(format!("{MAX_MAPPINGS} stores are open in this process")));
    };
    guarded.hole_count.store(0, Ordering::SeqCst);
    guarded.holes.iter().for_each(|hole| hole.store(0, Ordering::SeqCst));
    guarded.start.store(start, Ordering::SeqCst);
    guarded.length.store(length, Ordering::SeqCst);
    Ok(guarded)
}

/// What was there before; written once, before the handler can run.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

fn install_handler() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: all-zero is a valid sigaction; the calls get valid pointers to one each. The handler keeps to what is
        // safe in a signal handler.
        unsafe {
            let mut previous: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut previous);
            let _ = PREVIOUS.set(previous);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
        }
    });
}

/// Makes a hole if the fault is in a mapping of ours; else does what would have happened without us.
extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo; a fault has an address, and for other origins the
    // field is some number that lies in no mapping but by chance, which `si_code` rules out.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // Positive: raised by the kernel for a fault, not sent by a process.
    if code > 0
        && GUARDED
            .iter()
            .find(|guarded| guarded.contains(address))
            .is_some_and(|guarded| guarded.make_hole(address))
    {
        return;
    }
    let Some(previous) = PREVIOUS.get() else { return };
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // The access is repeated after the return, and ends the process as it would have.
            // SAFETY: a valid sigaction, as sigaction(2) gave it.
            unsafe { libc::sigaction(signal, previous, ptr::null_mut()) };
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            type Informed = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: with SA_SIGINFO the field holds a function of this type.
            let handler = unsafe { std::mem::transmute::<usize, Informed>(handler) };
            handler(signal, info, context);
        }
        handler => {
            type Plain = extern "C" fn(libc::c_int);
            // SAFETY: without SA_SIGINFO the field holds a function of this type.
            let handler = unsafe { std::mem::transmute::<usize, Plain>(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_cannot_be_read_is_a_hole_and_the_others_stay() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 4 * 4096], 0).unwrap();
        let mapping = Mapping::new(&file, 0, 8 * 4096).unwrap();
        let byte = |offset: usize| {
            // SAFETY: inside the mapping; where the file ends earlier, the handler puts memory there.
            unsafe { mapping.as_mut_ptr().add(offset).read_volatile() }
        };
        assert_eq!((byte(0), byte(3 * 4096), mapping.hole_count()), (7, 7, 0));
        // What follows is behind the end of the file from here on, as good as unreadable.
        file.set_len(2 * 4096).unwrap();
        assert_eq!((byte(4096), byte(2 * 4096 + 5), byte(3 * 4096)), (7, 0, 0));
        assert_eq!(mapping.hole_count(), 2);
        let holes: Vec<bool> = (0..4).map(|page| mapping.is_hole(page * 4096 + 9)).collect();
        assert_eq!(holes, [false, false, true, true]);
    }

    #[test]
    fn pages_that_reading_finds_unreadable_are_holes() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 3 * 4096], 0).unwrap();
        let mapping = Mapping::new(&file, 0, 8 * 4096).unwrap();
        mapping.find_holes(&file, 0, 3 * 4096);
        assert_eq!(mapping.hole_count(), 0);
        mapping.find_holes(&file, 0, 5 * 4096);
        assert_eq!(mapping.hole_count(), 2);
        assert!(mapping.is_hole(3 * 4096) && mapping.is_hole(4 * 4096) && !mapping.is_hole(0));
    }
}
