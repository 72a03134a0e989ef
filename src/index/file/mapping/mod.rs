//! The index file mapped into memory. A page that the disk cannot return is a hole in it and not the end of the process.
//!
//! Access to such a page raises SIGBUS. The handler here puts a zeroed page of ordinary memory in its place and notes
//! that; records read from it are no records, and its slots are never handed out again, as nothing stored in it would
//! reach the disk. systemd's journal, which maps files as well, does likewise (its `sigbus.c`).
//!
//! A fork inherits the handler and no mapping. Nothing here waits for a lock, as the thread that has it may be missing in a fork.

#![allow(unsafe_code, reason = "a file is mapped")]

mod mapped_range;
mod sigbus;

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU8, Ordering};

pub(crate) use mapped_range::MAX_HOLES;
use mapped_range::{MappedRange, page_bytes};
use memmap2::{Advice, MmapOptions, MmapRaw};

use super::index_bytes::read_pages;

/// Piece in which it is marked as changed.
const MARKED_BYTES: usize = 1 << 20;

pub(crate) struct Mapping {
    // Not unmapped in a fork, where it is not mapped: something else may be at its address there.
    map: ManuallyDrop<MmapRaw>,
    range: &'static MappedRange,
    process_id: u32,
}

impl Mapping {
    /// Maps `length_bytes` bytes of `file` from `offset` on. It may be shorter: then only what it has may be accessed.
    pub(crate) fn new(file: &File, offset: u64, length_bytes: usize) -> io::Result<Self> {
        sigbus::install();
        // Before a fault can ask for it.
        page_bytes();
        let map = MmapOptions::new().offset(offset).len(length_bytes).map_raw(file)?;
        // A fork would keep the file open through it, and so the lock.
        map.advise(Advice::DontFork)?;
        let range = MappedRange::guard(map.as_ptr().addr(), length_bytes)?;
        Ok(Self { map: ManuallyDrop::new(map), range, process_id: std::process::id() })
    }

    /// Maps the pages of `length_bytes` from `start` on, so that nobody who looks at them first has to wait for that.
    pub(crate) fn populate(&self, start: usize, length_bytes: usize) {
        // Before Linux 5.14 whoever is first does it.
        let _ = self.map.advise_range(Advice::PopulateRead, start, length_bytes);
    }

    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    pub(crate) fn length_bytes(&self) -> usize {
        self.map.len()
    }

    /// Copies `bytes` from `start` on out of memory. Nobody changes them meanwhile but by atomic stores of whole words.
    pub(crate) fn copy_out(&self, start: usize, bytes: &mut [u8]) {
        assert!(start + bytes.len() <= self.map.len());
        // SAFETY: inside the mapping; what of it is behind the end of the file reads as zeros (see the handler).
        unsafe {
            let source = self.map.as_ptr().add(start);
            source.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len());
        }
    }

    /// Reads `bytes` from `start` on, which are those of `file` from `offset` on, and makes a hole of each page that cannot be
    /// read: it is zeros in `bytes`.
    pub(crate) fn read(&self, file: &File, offset: u64, start: usize, bytes: &mut [u8]) {
        read_pages(file, bytes, offset + start as u64, |at| {
            self.range.make_hole(self.map.as_ptr().addr() + start + at);
        });
    }

    /// Makes the first `length_bytes` count as changed, so that a sync writes them; they stay as they are.
    pub(crate) fn mark_changed(
        &self,
        length_bytes: usize,
        mark: impl Fn(u64, &[AtomicU8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut outcome = Ok(());
        for offset in (0..length_bytes).step_by(MARKED_BYTES) {
            let length = MARKED_BYTES.min(length_bytes - offset);
            // SAFETY: inside the mapping and its file; a record's own users store to it atomically or under its lock.
            let part = unsafe {
                let start = self.map.as_mut_ptr().add(offset).cast::<AtomicU8>();
                std::slice::from_raw_parts(start, length)
            };
            match mark(offset as u64, part) {
                Ok(()) => {}
                // Before Linux 5.14.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    for byte in part.iter().step_by(page_bytes()) {
                        byte.fetch_or(0, Ordering::Relaxed);
                    }
                }
                // Not the end: a page that cannot be read fails those beside it only.
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    /// Puts ordinary memory in the place of the file, which is not held open by this any more.
    pub(crate) fn release(&self) {
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

    pub(crate) fn hole_count(&self) -> usize {
        self.range.hole_count()
    }

    pub(crate) fn is_hole(&self, offset: usize) -> bool {
        self.range.is_hole(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.process_id == std::process::id() {
            self.range.release();
            // SAFETY: not used after this.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::mapped_range::MAX_MAPPINGS;
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
        assert!(mapping.range.make_hole(mapping.as_mut_ptr().addr() + 2 * 4096));
        assert_eq!(mapping.hole_count(), 2, "each counts once");
        let holes: Vec<bool> = (0..4).map(|page| mapping.is_hole(page * 4096 + 9)).collect();
        assert_eq!(holes, [false, false, true, true]);
    }

    #[test]
    fn with_more_holes_than_are_noted_every_page_counts_as_one() {
        let file = tempfile::tempfile().unwrap();
        let mapping = Mapping::new(&file, 0, (MAX_HOLES + 9) * 4096).unwrap();
        for page in 0..=MAX_HOLES {
            assert!(!mapping.is_hole((MAX_HOLES + 5) * 4096));
            assert!(mapping.range.make_hole(mapping.as_mut_ptr().addr() + page * 4096));
        }
        assert!(mapping.is_hole((MAX_HOLES + 5) * 4096));
    }

    #[test]
    fn memory_takes_the_place_of_a_file_that_is_released() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 2 * 4096], 0).unwrap();
        let mapping = Mapping::new(&file, 0, 2 * 4096).unwrap();
        mapping.release();
        let pointer = mapping.as_mut_ptr();
        for offset in [0, 2 * 4096 - 1] {
            // SAFETY: inside the mapping, which is memory now.
            let (before, after) = unsafe {
                let before = pointer.add(offset).read_volatile();
                pointer.add(offset).write_volatile(5);
                (before, pointer.add(offset).read_volatile())
            };
            assert_eq!((before, after), (0, 5));
        }
        let mut bytes = [0; 2 * 4096];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [7; 2 * 4096]);
    }

    #[test]
    fn closed_stores_leave_room_for_others() {
        let file = tempfile::tempfile().unwrap();
        for _ in 0..2 * MAX_MAPPINGS {
            Mapping::new(&file, 0, 4096).unwrap();
        }
    }

    /// Where the kernel cannot mark pages as changed, they are changed. Any other error is told, after all of the file was marked.
    #[test]
    fn a_page_that_cannot_be_marked_fails_no_other() {
        let file = tempfile::tempfile().unwrap();
        let length = 2 * MARKED_BYTES + 4096;
        file.write_all_at(&vec![7; length], 0).unwrap();
        let mapping = Mapping::new(&file, 0, length).unwrap();
        let mark = |errno: i32| {
            let marked = std::cell::RefCell::new(Vec::new());
            let outcome = mapping.mark_changed(length, |offset, part| {
                marked.borrow_mut().push((offset as usize, part.len()));
                if offset == 0 { Err(io::Error::from_raw_os_error(errno)) } else { Ok(()) }
            });
            let parts = [(0, MARKED_BYTES), (MARKED_BYTES, MARKED_BYTES), (2 * MARKED_BYTES, 4096)];
            assert_eq!(*marked.borrow(), parts);
            outcome.err().and_then(|error| error.raw_os_error())
        };
        assert_eq!((mark(libc::EINVAL), mark(libc::EIO)), (None, Some(libc::EIO)));
        let mut bytes = vec![0; length];
        mapping.copy_out(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn pages_that_reading_finds_unreadable_are_holes() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 3 * 4096], 0).unwrap();
        let mapping = Mapping::new(&file, 0, 8 * 4096).unwrap();
        let mut bytes = vec![1; 4 * 4096];
        mapping.read(&file, 0, 4096, &mut bytes[..2 * 4096]);
        assert_eq!((mapping.hole_count(), bytes[0], bytes[2 * 4096 - 1]), (0, 7, 7));
        mapping.read(&file, 0, 4096, &mut bytes);
        assert_eq!((mapping.hole_count(), bytes[2 * 4096 - 1], bytes[2 * 4096]), (2, 7, 0));
        assert!(mapping.is_hole(3 * 4096) && mapping.is_hole(4 * 4096) && !mapping.is_hole(0));
    }
}
