//! Caller memory, and the pool of aligned memory that stands in where the caller's does not fit O_DIRECT.

#![allow(unsafe_code, reason = "it has the memory")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapMut, MmapOptions};

use crate::base::block::BLOCK_BYTES;

/// Fingerprint of all that decides what the bytes of a chunk mean and its key does not say: dtype, shape, weights, epoch. A chunk is
/// found by those who ask for the one that it was stored with. 0 if its owner names none.
pub type Variant = u32;

/// Of a chunk whose owner vouches that it is what anybody asks for under its key, as far as their epoch is its own.
pub const ANY_VARIANT: Variant = Variant::MAX;

/// A span of the caller's memory: what a SET reads and a GET fills.
#[derive(Clone, Copy, Debug)]
pub struct CallerBuffer {
    pointer: NonNull<u8>,
    length_bytes: usize,
    variant: Variant,
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
    ///
    /// Memory that is registered stays mapped as it is until the handle is closed or dropped, or the connector is closed:
    /// transfers go to the pages that were there at registration.
    pub unsafe fn new(pointer: *mut u8, length_bytes: usize) -> Self {
        // An empty exporter may hand out a null pointer; nothing is ever read through a span of length 0.
        let pointer = NonNull::new(pointer).unwrap_or(NonNull::dangling());
        Self { pointer, length_bytes, variant: 0 }
    }

    /// The same span, for a chunk of this variant.
    #[must_use]
    pub fn of_variant(self, variant: Variant) -> Self {
        Self { variant, ..self }
    }

    /// Of the chunk that it has, or is to have.
    pub fn variant(self) -> Variant {
        self.variant
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

    /// Its bytes from `offset` on, as many as `length_bytes`.
    pub(crate) fn part(self, offset: usize, length_bytes: usize) -> Self {
        assert!(offset + length_bytes <= self.length_bytes);
        // SAFETY: inside the span (asserted), which is one allocation by the contract of `new`.
        Self { pointer: unsafe { self.pointer.add(offset) }, length_bytes, ..self }
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

/// Memory of chunks that a batch owns until its completion.
pub(crate) struct OwnedChunks(pub(crate) Vec<Vec<u8>>);

impl OwnedChunks {
    /// The span of each chunk. The batch that they are submitted with keeps `self` alive, and nobody else has it meanwhile.
    pub(crate) fn buffers(&mut self) -> Vec<CallerBuffer> {
        let describe = |chunk: &mut Vec<u8>| {
            // SAFETY: the heap memory of a Vec stays where it is when the Vec moves, and the batch alone has it, as above.
            unsafe { CallerBuffer::new(chunk.as_mut_ptr(), chunk.len()) }
        };
        self.0.iter_mut().map(describe).collect()
    }
}

/// Memory of a SET: until the answer it is only read, by whomever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceBuffer(CallerBuffer);

impl SourceBuffer {
    /// For memory that a SET was submitted with.
    pub(crate) fn of_set(buffer: CallerBuffer) -> Self {
        Self(buffer)
    }

    pub(crate) fn caller(self) -> CallerBuffer {
        self.0
    }

    pub(crate) fn length_bytes(self) -> usize {
        self.0.length_bytes
    }

    /// The bytes from `offset` on, as long as `length`. The SET is not answered yet.
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        assert!(offset + length <= self.0.length_bytes);
        // SAFETY: no transfer writes to the memory of a SET, and neither does anybody else until the answer, by the contract of
        // CallerBuffer::new.
        unsafe { self.0.bytes(offset, length) }
    }
}

/// A huge page of the system, as x86-64 and 64-bit ARM have it with pages of 4 KiB.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory of one allocation, freed with the last [`AlignedBlock`] in it.
struct Allocation {
    start: NonNull<u8>,
    kind: Kind,
}

enum Kind {
    Short(Layout),
    /// A mapping of its own, with the memory in it. An allocator would keep it for threads to come when the store is closed.
    Long {
        _map: MmapMut,
    },
}

// SAFETY: it only frees the memory; who uses which part of it is the blocks' business.
unsafe impl Send for Allocation {}

// SAFETY: nothing is done through a shared reference.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Zeroed memory. Where it is long enough the system is asked for huge pages: pinning one for a transfer costs what pinning one of
    /// 4 KiB does.
    fn zeroed(size_bytes: usize) -> Self {
        if size_bytes >= HUGE_PAGE_BYTES { Self::long(size_bytes) } else { Self::short(size_bytes) }
    }

    fn short(size_bytes: usize) -> Self {
        let layout = layout(size_bytes, BLOCK_BYTES as usize);
        // SAFETY: callers ask for one block at least, not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        Self {
            start: start.unwrap_or_else(|| handle_alloc_error(layout)),
            kind: Kind::Short(layout),
        }
    }

    fn long(size_bytes: usize) -> Self {
        let layout = layout(size_bytes, HUGE_PAGE_BYTES);
        let map = MmapOptions::new().len(size_bytes + HUGE_PAGE_BYTES).map_anon();
        let mut map = map.unwrap_or_else(|_| handle_alloc_error(layout));
        let skipped = map.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // A refusal changes nothing.
        let _ = map.advise_range(Advice::HugePage, skipped, size_bytes);
        let part = &mut map[skipped..skipped + size_bytes];
        // So that the pages are there.
        part.fill(0);
        Self { start: NonNull::from(part).cast(), kind: Kind::Long { _map: map } }
    }
}

fn layout(size_bytes: usize, alignment: usize) -> Layout {
    Layout::from_size_align(size_bytes, alignment)
        .unwrap_or_else(|_| handle_alloc_error(Layout::new::<u8>()))
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Kind::Short(layout) = self.kind {
            // SAFETY: allocated in `short` with this very layout, freed once.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

/// Block-aligned memory of a whole number of blocks, in huge pages where it is as long as one and the system gives some.
pub struct AlignedBlock {
    pointer: NonNull<u8>,
    size_bytes: usize,
    /// Others may have other parts of it.
    allocation: Arc<Allocation>,
}

// SAFETY: it owns its memory alone, like a Box<[u8]>.
unsafe impl Send for AlignedBlock {}

// SAFETY: through a shared reference it only gives out its address and size.
unsafe impl Sync for AlignedBlock {}

impl AlignedBlock {
    /// Memory of at least `size_bytes`, rounded up to whole blocks, zeroed.
    pub fn zeroed(size_bytes: usize) -> Self {
        let size_bytes = size_bytes.max(1).next_multiple_of(BLOCK_BYTES as usize);
        let allocation = Arc::new(Allocation::zeroed(size_bytes));
        Self { pointer: allocation.start, size_bytes, allocation }
    }

    /// Parts of `part_bytes`, a number of whole blocks that divides its size.
    fn split(self, part_bytes: usize) -> impl Iterator<Item = Self> {
        debug_assert!(part_bytes > 0 && self.size_bytes.is_multiple_of(part_bytes));
        (0..self.size_bytes / part_bytes).map(move |number| Self {
            // SAFETY: the part is within the block, as the count says.
            pointer: unsafe { self.pointer.add(number * part_bytes) },
            size_bytes: part_bytes,
            allocation: Arc::clone(&self.allocation),
        })
    }

    /// Its size.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
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

/// Aligned memory by power-of-two size, kept for reuse. The scheduler bounds the bytes in flight; as many may
/// wait to be copied out.
#[derive(Default)]
pub(crate) struct BouncePool {
    free: [Vec<AlignedBlock>; SIZE_CLASSES],
}

/// Blocks of 4 KiB to 64 MiB: the longest transfer that can be configured.
const SIZE_CLASSES: usize = 15;

/// Blocks from an eighth of a huge page on are parts of one; who needs shorter ones needs little of them.
const LEAST_PART_BYTES: usize = HUGE_PAGE_BYTES / 8;

impl BouncePool {
    /// Memory of at least `size_bytes`. Its content is what the last user left.
    pub(crate) fn take(&mut self, size_bytes: usize) -> AlignedBlock {
        let class = size_class(size_bytes);
        let class_bytes = (BLOCK_BYTES as usize) << class;
        if self.free[class].is_empty() && (LEAST_PART_BYTES..HUGE_PAGE_BYTES).contains(&class_bytes)
        {
            self.free[class].extend(AlignedBlock::zeroed(HUGE_PAGE_BYTES).split(class_bytes));
        }
        self.free[class].pop().unwrap_or_else(|| AlignedBlock::zeroed(class_bytes))
    }

    pub(crate) fn give_back(&mut self, block: AlignedBlock) {
        self.free[size_class(block.size_bytes())].push(block);
    }
}

fn size_class(size_bytes: usize) -> usize {
    let blocks = size_bytes.div_ceil(BLOCK_BYTES as usize).next_power_of_two();
    blocks.trailing_zeros() as usize
}

/// Dropped, it has the allocator return to the system what is free. An allocator with an arena for each thread (glibc) keeps what
/// the threads of a closed store had, for threads to come, which get other arenas.
pub(crate) struct MemoryReturn;

impl Drop for MemoryReturn {
    fn drop(&mut self) {
        #[cfg(target_env = "gnu")]
        // SAFETY: no pointers; any thread may call it at any moment.
        unsafe {
            libc::malloc_trim(0);
        }
    }
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

    #[test]
    fn long_blocks_are_parts_of_huge_pages_and_nobody_has_the_same_one() {
        let mut pool = BouncePool::default();
        let blocks: Vec<AlignedBlock> = (0..9).map(|_| pool.take(512 << 10)).collect();
        let mut starts: Vec<usize> = blocks.iter().map(|block| block.as_ptr().addr()).collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[0] + (512 << 10) <= pair[1]));
        let pages = starts.chunk_by(|one, other| one / HUGE_PAGE_BYTES == other / HUGE_PAGE_BYTES);
        assert_eq!(pages.map(<[usize]>::len).max(), Some(4), "{starts:x?}");
        assert!(is_for_huge_pages(starts[0]) && is_for_huge_pages(starts[8]));
        drop(pool);
        // What is left of an allocation keeps it.
        for block in blocks {
            // SAFETY: its own memory.
            unsafe { block.as_ptr().write_bytes(1, block.size_bytes()) };
        }
        let own = AlignedBlock::zeroed(3 * HUGE_PAGE_BYTES);
        assert!(own.as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
        assert!(is_for_huge_pages(own.as_ptr().addr()));
    }

    #[test]
    fn long_blocks_are_the_systems_again_when_they_go() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        let is_gone = |_| {
            let address = AlignedBlock::zeroed(HUGE_PAGE_BYTES).as_ptr().addr();
            !is_for_huge_pages(address)
        };
        // As a table of the index that goes: from then on glibc takes what is shorter from its arenas, and keeps it there.
        drop(std::hint::black_box(vec![1_u8; 30 << 20]));
        // A block of another test may come to lie there.
        assert!((0..50).any(is_gone));
    }

    /// Whether the mapping of an address has asked for huge pages (`hg` among the flags in smaps). True on kernels that have none.
    fn is_for_huge_pages(address: usize) -> bool {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return true;
        }
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_there = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((start, end)) = range
                && let (Ok(start), Ok(end)) =
                    (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
            {
                is_there = (start..end).contains(&address);
            }
            if is_there && line.starts_with("VmFlags:") {
                return line.split(' ').any(|flag| flag == "hg");
            }
        }
        false
    }
}
