//! Memory for SETs and GETs that shows what must not be done to it.
//!
//! ```text
//! | guard | slack | what kvring is given | slack | guard |
//! ```
//! The guards are pages without access. The slack, if the memory is no whole number of pages, has a pattern. While a batch has
//! the memory, a SET can only read it. When no batch has it, kvring cannot access it at all. The kernel can, by pages that it still
//! holds: what a GET has left is compared with what is there when the memory goes.

use std::ptr;
use std::sync::{Arc, Mutex};

use kvring::{BLOCK_BYTES, CallerBuffer};
use libc::{PROT_NONE, PROT_READ, PROT_WRITE};

use super::pattern;

const PAGE: usize = BLOCK_BYTES as usize;
const SLACK: u8 = 0xc3;
pub(crate) const POISON: u8 = 0xa5;

/// Memory at a chosen distance from a block boundary.
pub(crate) struct Memory(Arc<Guarded>);

impl Memory {
    /// Zeros.
    pub(crate) fn new(length: usize, shift: usize) -> Self {
        Self(Arc::new(Guarded::new(length, shift, true)))
    }

    /// Bytes that differ for each seed and at each place.
    pub(crate) fn patterned(length: usize, shift: usize, seed: u64) -> Self {
        let memory = Self::new(length, shift);
        memory.fill(&pattern(length, seed));
        memory
    }

    pub(crate) fn fill(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.0.length);
        let mut uses = self.0.uses.lock().unwrap();
        self.0.allow(PROT_READ | PROT_WRITE);
        // SAFETY: in bounds; tests fill memory only while nothing is in flight on it.
        unsafe { self.0.span().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        if uses.left.is_some() {
            uses.left = Some(bytes.to_vec());
        }
        self.0.allow(uses.access());
    }

    /// Fills it with [`POISON`].
    pub(crate) fn poison(&self) {
        self.fill(&vec![POISON; self.0.length]);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let mut uses = self.0.uses.lock().unwrap();
        uses.least_access |= PROT_READ;
        self.0.allow(uses.access());
        // SAFETY: in bounds, and can be read from here on; tests look at memory only while nothing is written to it.
        unsafe { std::slice::from_raw_parts(self.0.span(), self.0.length) }
    }

    /// The same without regard to who uses it when: between guards, but no work at each batch. For tests of what a device gains
    /// from, and for the simulated disk, which has no kernel that could write too late.
    pub(crate) fn unwatched(length: usize) -> Self {
        Self(Arc::new(Guarded::new(length, 0, false)))
    }

    /// For a submit of the test's own. All access is allowed from here on.
    pub(crate) fn buffer(&self) -> CallerBuffer {
        // SAFETY: the test keeps the memory until the completion, and does not touch it meanwhile.
        unsafe { CallerBuffer::new(self.buffer_pointer(), self.0.length) }
    }

    /// For uses of the test's own. All access is allowed from here on.
    pub(crate) fn buffer_pointer(&self) -> *mut u8 {
        let mut uses = self.0.uses.lock().unwrap();
        uses.least_access = PROT_READ | PROT_WRITE;
        self.0.allow(uses.access());
        self.0.span()
    }

    /// For a batch that reads the memory, or fills it: until what is returned beside it is dropped.
    pub(super) fn lend(&self, action: Use) -> (CallerBuffer, Loan) {
        let mut uses = self.0.uses.lock().unwrap();
        uses.count[action as usize] += 1;
        if action == Use::Fill {
            uses.left = None;
        }
        self.0.allow(uses.access());
        // SAFETY: the loan travels with the batch, so the memory outlives it; tests do not touch it meanwhile.
        let buffer = unsafe { CallerBuffer::new(self.0.span(), self.0.length) };
        (buffer, Loan { memory: Arc::clone(&self.0), action })
    }
}

/// What a batch does with memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Read,
    Fill,
}

/// A batch has the memory as long as this lives.
pub(super) struct Loan {
    memory: Arc<Guarded>,
    action: Use,
}

impl Drop for Loan {
    fn drop(&mut self) {
        let memory = &self.memory;
        let mut uses = memory.uses.lock().unwrap();
        uses.count[self.action as usize] -= 1;
        if self.action == Use::Fill && uses.count[Use::Fill as usize] == 0 && memory.is_watched {
            // SAFETY: in bounds; it could be written until now, and nobody does any more.
            let left = unsafe { std::slice::from_raw_parts(memory.span(), memory.length) };
            uses.left = Some(left.to_vec());
        }
        memory.allow(uses.access());
    }
}

/// Who uses a piece of memory.
#[derive(Default)]
struct Uses {
    /// Batches, by [`Use`].
    count: [usize; 2],
    /// What is allowed even if no batch has it.
    least_access: i32,
    /// What the last GET has left there.
    left: Option<Vec<u8>>,
}

impl Uses {
    fn access(&self) -> i32 {
        let batches = match self.count {
            [0, 0] => PROT_NONE,
            [_, 0] => PROT_READ,
            _ => PROT_READ | PROT_WRITE,
        };
        batches | self.least_access
    }
}

/// The mapping: a guard, the body, a guard.
struct Guarded {
    start: *mut u8,
    body_bytes: usize,
    /// Where in the body the memory is that kvring is given.
    offset: usize,
    length: usize,
    uses: Mutex<Uses>,
    /// Whether it can be accessed only while somebody uses it, and what a GET has left is kept.
    is_watched: bool,
}

// SAFETY: it owns its mapping; who accesses it when is the business of tests.
unsafe impl Send for Guarded {}

// SAFETY: as above.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn new(length: usize, shift: usize, is_watched: bool) -> Self {
        let body_bytes = (shift + length).max(1).next_multiple_of(PAGE);
        // Such a shift says that the address is to fit no device. Then the end can be where the guard begins.
        let is_at_end = !shift.is_multiple_of(4) && !length.is_multiple_of(4);
        let offset = if is_at_end { body_bytes - length } else { shift };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, where nothing is.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), body_bytes + 2 * PAGE, PROT_NONE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        let uses = Mutex::default();
        let memory = Self { start: start.cast(), body_bytes, offset, length, uses, is_watched };
        memory.protect(PROT_READ | PROT_WRITE);
        // SAFETY: the body can be written, and nobody else has it.
        unsafe {
            memory.body().write_bytes(SLACK, offset);
            let behind = offset + length;
            memory.body().add(behind).write_bytes(SLACK, body_bytes - behind);
        }
        memory.allow(PROT_NONE);
        memory
    }

    fn body(&self) -> *mut u8 {
        // SAFETY: behind the first guard.
        unsafe { self.start.add(PAGE) }
    }

    fn span(&self) -> *mut u8 {
        // SAFETY: inside the body.
        unsafe { self.body().add(self.offset) }
    }

    fn allow(&self, access: i32) {
        if self.is_watched {
            self.protect(access);
        }
    }

    fn protect(&self, access: i32) {
        // SAFETY: the body of this mapping; only its access changes.
        let status = unsafe { libc::mprotect(self.body().cast(), self.body_bytes, access) };
        assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.allow(PROT_READ);
        // SAFETY: the body, which can be read.
        let body = unsafe { std::slice::from_raw_parts(self.body(), self.body_bytes) };
        let (before, rest) = body.split_at(self.offset);
        let (span, behind) = rest.split_at(self.length);
        let is_slack = |bytes: &[u8]| bytes.iter().all(|byte| *byte == SLACK);
        let is_around_untouched = is_slack(before) && is_slack(behind);
        let left = self.uses.get_mut().map_or(None, |uses| uses.left.take());
        let is_as_left = left.is_none_or(|left| left == span);
        // SAFETY: mapped in `new`, and not used any more.
        unsafe { libc::munmap(self.start.cast(), self.body_bytes + 2 * PAGE) };
        if !std::thread::panicking() {
            assert!(is_around_untouched, "written beside the memory of a batch");
            assert!(is_as_left, "written to memory after its completion");
        }
    }
}
