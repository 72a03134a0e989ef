//! Caller memory, and the pool of aligned memory that stands in where the caller's does not fit O_DIRECT.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use crate::block::BLOCK_BYTES;

/// A span of the caller's memory: what a SET reads and a GET fills.
#[derive(Clone, Copy, Debug)]
pub struct CallerBuffer {
    pointer: NonNull<u8>,
    length_bytes: usize,
}

// SAFETY: a CallerBuffer is an address and a length; whoever made it vouched (see `new`) that the span may be used from
// another thread until the completion is dropped.
unsafe impl Send for CallerBuffer {}

// SAFETY: shared, it still is only an address; every access through it is unsafe and has its own argument.
unsafe impl Sync for CallerBuffer {}

impl CallerBuffer {
    /// Describes `length_bytes` bytes at `pointer`.
    ///
    /// # Safety
    /// Until the completion of the batch it is submitted with has been dropped: the span is valid memory (writable for
    /// GET), nobody else writes it, and for GET nobody else reads it either.
    pub unsafe fn new(pointer: *mut u8, length_bytes: usize) -> Self {
        // An empty exporter may hand out a null pointer; nothing is ever read through a span of length 0.
        Self { pointer: NonNull::new(pointer).unwrap_or(NonNull::dangling()), length_bytes }
    }

    /// Where it starts.
    pub fn address(self) -> usize {
        self.pointer.as_ptr().expose_provenance()
    }

    /// Its length.
    pub fn length_bytes(self) -> usize {
        self.length_bytes
    }

    /// Address of the byte at `offset`.
    pub(crate) fn at(self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.length_bytes);
        // SAFETY: callers stay within the span (asserted above), which is one allocation by the contract of `new`.
        unsafe { self.pointer.as_ptr().add(offset) }
    }

    /// Whether its address is a multiple of `alignment` bytes.
    pub(crate) fn is_aligned_to(self, alignment: usize) -> bool {
        self.pointer.as_ptr().addr().is_multiple_of(alignment)
    }

    /// The bytes from `offset` on, as long as `length`.
    ///
    /// # Safety
    /// The contract of [`CallerBuffer::new`] holds, and no transfer into this part is under way.
    pub(crate) unsafe fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        debug_assert!(offset + length <= self.length_bytes);
        // SAFETY: in bounds; valid and unwritten meanwhile as the caller of this function promises.
        unsafe { std::slice::from_raw_parts(self.at(offset), length) }
    }
}

/// One block-aligned allocation of a whole number of blocks.
pub struct AlignedBlock {
    pointer: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory alone, like a Box<[u8]>.
unsafe impl Send for AlignedBlock {}

// SAFETY: through a shared reference it only gives out its address and size.
unsafe impl Sync for AlignedBlock {}

impl AlignedBlock {
    /// Memory of at least `size_bytes`, rounded up to whole blocks, zeroed.
    pub fn zeroed(size_bytes: usize) -> Self {
        let block = BLOCK_BYTES as usize;
        let layout = Layout::from_size_align(size_bytes.max(1).next_multiple_of(block), block)
            .unwrap_or_else(|_| handle_alloc_error(Layout::new::<u8>()));
        // SAFETY: the size is at least one block, not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(pointer) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { pointer, layout }
    }

    /// Its size.
    pub fn size_bytes(&self) -> usize {
        self.layout.size()
    }

    /// Its first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// All of it, for an owner who has given no address of it away.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: it is initialised, and as long; the owner alone has it while this reference lives.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.size_bytes()) }
    }
}

impl Drop for AlignedBlock {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout, freed once.
        unsafe { dealloc(self.pointer.as_ptr(), self.layout) };
    }
}

/// Aligned memory by power-of-two size, kept for reuse. The scheduler bounds the bytes in flight; as many may
/// wait to be copied out.
#[derive(Default)]
pub(crate) struct BouncePool {
    free: [Vec<AlignedBlock>; SIZE_CLASSES],
}

/// Blocks of 4 KiB to 64 MiB: the longest transfer that can be configured.
const SIZE_CLASSES: usize = 15;

impl BouncePool {
    /// Memory of at least `size_bytes`. Its content is what the last user left.
    pub(crate) fn take(&mut self, size_bytes: usize) -> AlignedBlock {
        let class = size_class(size_bytes);
        self.free[class]
            .pop()
            .unwrap_or_else(|| AlignedBlock::zeroed((BLOCK_BYTES as usize) << class))
    }

    pub(crate) fn give_back(&mut self, block: AlignedBlock) {
        self.free[size_class(block.size_bytes())].push(block);
    }
}

fn size_class(size_bytes: usize) -> usize {
    let blocks = size_bytes.div_ceil(BLOCK_BYTES as usize).next_power_of_two();
    blocks.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_reuses_by_size() {
        let mut pool = BouncePool::default();
        let small = pool.take(1);
        let large = pool.take(5000);
        assert_eq!((small.size_bytes(), large.size_bytes()), (4096, 8192));
        let address = large.as_ptr();
        assert!(address.addr().is_multiple_of(4096));
        pool.give_back(large);
        pool.give_back(small);
        assert_eq!(pool.take(8192).as_ptr(), address);
        assert_eq!(pool.take(64 << 20).size_bytes(), 64 << 20);
    }
}
