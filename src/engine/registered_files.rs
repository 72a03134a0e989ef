//! Files registered with a ring: transfers on them need not look the file up and count a use of it each time.

use std::os::fd::RawFd;

use io_uring::IoUring;
use io_uring::squeue::Flags;
use io_uring::types::Fd;

/// More than the 256 or so files of a store.
const MAX_FILES: u32 = 512;

/// Which files the ring knows, and as what.
pub(super) struct RegisteredFiles {
    pub(super) descriptors: Vec<RawFd>,
    pub(super) is_available: bool,
}

impl RegisteredFiles {
    /// Makes room in `ring`, if its kernel lets it.
    pub(super) fn new(ring: &IoUring) -> Self {
        let submitter = ring.submitter();
        let made = submitter
            .register_files_sparse(MAX_FILES)
            // Before 5.19 a table of places without a file does the same.
            .or_else(|_| submitter.register_files(&[-1; MAX_FILES as usize]));
        Self { descriptors: Vec::new(), is_available: made.is_ok() }
    }

    /// How an entry names the file. Registers it if it is new; the file must stay open as long as the ring lives.
    pub(super) fn name(&mut self, ring: &IoUring, descriptor: RawFd) -> (Fd, Flags) {
        if self.is_available {
            let known = self.descriptors.iter().position(|other| *other == descriptor);
            if let Some(number) = known.or_else(|| self.add(ring, descriptor)) {
                return (Fd(number as RawFd), Flags::FIXED_FILE);
            }
        }
        (Fd(descriptor), Flags::empty())
    }

    fn add(&mut self, ring: &IoUring, descriptor: RawFd) -> Option<usize> {
        let number = self.descriptors.len();
        if number == MAX_FILES as usize {
            return None;
        }
        ring.submitter().register_files_update(number as u32, &[descriptor]).ok()?;
        self.descriptors.push(descriptor);
        Some(number)
    }
}
