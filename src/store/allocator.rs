//! The allocator: free extents of the data files.
//!
//! Each file has a frontier: blocks below it were written once, blocks above it never were. Written extents are given out
//! first, since the first write of a preallocated block costs the file system an extent conversion.
//!
//! A free extent that could not be written is bad: it would be the tightest fit for the next chunk of its length, and fail one SET
//! after the other. So it is not given out before the next open, or before the device can be written again.

use std::collections::VecDeque;

use super::runs::Runs;
use crate::base::block::Extent;

/// One block in so many may be bad. Past that the oldest bad extents are given out again.
const BAD_PART: u64 = 64;

#[derive(Clone, Copy, Debug)]
struct FileSpace {
    blocks: u32,
    frontier: u32,
}

/// Which blocks are free. All numbers are blocks.
#[derive(Debug, Default)]
pub(crate) struct Allocator {
    files: Vec<FileSpace>,
    /// Free, and written once.
    free: Runs,
    pub(super) allocated: u64,
    /// Free extents that could not be written, the oldest first, and their blocks.
    bad: VecDeque<Extent>,
    bad_blocks: u64,
}

impl Allocator {
    /// Adds file `number`, all of it free and unwritten.
    pub(crate) fn add_file(&mut self, number: u32, blocks: u32) {
        let number = number as usize;
        if number >= self.files.len() {
            self.files.resize(number + 1, FileSpace { blocks: 0, frontier: 0 });
        }
        debug_assert_eq!(self.files[number].blocks, 0);
        self.files[number] = FileSpace { blocks, frontier: 0 };
    }

    pub(crate) fn free_before(&self, file: u32, block: u32) -> u32 {
        self.free.before(file, block).map_or(0, |run| run.blocks)
    }

    /// Free blocks from `block` on, unwritten ones as well.
    pub(crate) fn free_from(&self, file: u32, block: u32) -> u32 {
        let written = self.free.from(file, block).map_or(0, |run| run.blocks);
        let FileSpace { blocks, frontier } = self.files[file as usize];
        let unwritten = if block + written == frontier { blocks - frontier } else { 0 };
        written + unwritten
    }

    /// A run of `blocks` blocks: the tightest written one, else unwritten space (joined with the written space just
    /// before it), else nothing.
    pub(crate) fn allocate(&mut self, blocks: u32) -> Option<Extent> {
        debug_assert!(blocks > 0);
        let extent = match self.free.tightest(blocks) {
            Some(run) => {
                let extent = Extent { blocks, ..run };
                self.free.cut(run, extent);
                extent
            }
            None => self.allocate_at_frontier(blocks)?,
        };
        self.allocated += u64::from(blocks);
        Some(extent)
    }

    pub(crate) fn has_room(&self, blocks: u32) -> bool {
        self.free.tightest(blocks).is_some() || self.at_frontier(blocks).is_some()
    }

    /// Space for `blocks` blocks at the frontier of a file, with the written space just before it.
    fn at_frontier(&self, blocks: u32) -> Option<Extent> {
        (0_u32..).zip(&self.files).find_map(|(file, space)| {
            let below = self.free.before(file, space.frontier);
            let first_block = below.map_or(space.frontier, |run| run.first_block);
            (space.blocks - first_block >= blocks).then_some(Extent { file, first_block, blocks })
        })
    }

    fn allocate_at_frontier(&mut self, blocks: u32) -> Option<Extent> {
        let extent = self.at_frontier(blocks)?;
        let Extent { file, first_block, .. } = extent;
        if let Some(written) = self.free.from(file, first_block) {
            self.free.cut(written, written);
        }
        self.files[file as usize].frontier = first_block + blocks;
        Some(extent)
    }

    /// Takes `extent` back and joins it with free neighbours.
    pub(crate) fn free(&mut self, extent: Extent) {
        debug_assert!(extent.end_block() <= u64::from(self.files[extent.file as usize].frontier));
        self.allocated -= u64::from(extent.blocks);
        self.put_back(extent);
    }

    /// Takes the free parts of `extent`, so that they are not given out before [`Allocator::put_back`]. All before its end
    /// counts as written from here on.
    pub(crate) fn take_free_within(&mut self, extent: Extent) -> Vec<Extent> {
        let Extent { file, first_block, .. } = extent;
        let FileSpace { blocks, frontier } = self.files[file as usize];
        let end = extent.end_block().min(u64::from(blocks)) as u32;
        if end > frontier {
            self.files[file as usize].frontier = end;
            self.put_back(Extent { file, first_block: frontier, blocks: end - frontier });
        }
        self.free.remove(Extent { file, first_block, blocks: end.saturating_sub(first_block) })
    }

    /// Makes an extent free that is not, and joins it with free neighbours.
    pub(crate) fn put_back(&mut self, extent: Extent) {
        self.free.insert(extent);
    }

    /// Takes an extent back that could not be written.
    pub(crate) fn free_bad(&mut self, extent: Extent) {
        self.free(extent);
        for part in self.take_free_within(extent) {
            self.bad_blocks += u64::from(part.blocks);
            self.bad.push_back(part);
        }
        while self.bad_blocks > self.total() / BAD_PART
            && let Some(oldest) = self.bad.pop_front()
        {
            self.bad_blocks -= u64::from(oldest.blocks);
            self.put_back(oldest);
        }
    }

    /// Gives out bad extents again.
    pub(crate) fn retry_bad(&mut self) {
        std::mem::take(&mut self.bad).into_iter().for_each(|extent| self.put_back(extent));
        self.bad_blocks = 0;
    }

    /// Makes `stored` (sorted, without overlaps, inside the files) the only extents given out. Space between them counts as
    /// written, space behind the last one as unwritten.
    pub(crate) fn rebuild(&mut self, stored: &[Extent]) {
        self.free = Runs::default();
        self.allocated = 0;
        self.files.iter_mut().for_each(|file| file.frontier = 0);
        for extent in stored {
            let frontier = self.files[extent.file as usize].frontier;
            if extent.first_block > frontier {
                let blocks = extent.first_block - frontier;
                self.free.insert(Extent { first_block: frontier, blocks, ..*extent });
            }
            self.files[extent.file as usize].frontier = extent.first_block + extent.blocks;
            self.allocated += u64::from(extent.blocks);
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.files.iter().map(|file| u64::from(file.blocks)).sum()
    }

    /// Length of a file; 0 where there is none.
    pub(crate) fn blocks_of(&self, file: u32) -> u64 {
        self.files.get(file as usize).map_or(0, |file| u64::from(file.blocks))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent(file: u32, first_block: u32, blocks: u32) -> Extent {
        Extent { file, first_block, blocks }
    }

    fn with_files(sizes: &[u32]) -> Allocator {
        let mut allocator = Allocator::default();
        (0..).zip(sizes).for_each(|(number, size)| allocator.add_file(number, *size));
        allocator
    }

    /// Free, given-out and unwritten blocks cover every file exactly once.
    fn check(allocator: &Allocator, held: &[Extent]) {
        let mut runs: Vec<Extent> = held.to_vec();
        runs.extend(allocator.free.iter());
        runs.sort();
        let mut covered = vec![0_u64; allocator.files.len()];
        for run in runs {
            assert_eq!(
                covered[run.file as usize],
                u64::from(run.first_block),
                "gap or overlap at {run:?}"
            );
            covered[run.file as usize] = run.end_block();
        }
        for (file, space) in allocator.files.iter().enumerate() {
            assert_eq!(covered[file], u64::from(space.frontier));
            assert!(space.frontier <= space.blocks);
        }
        assert_eq!(
            allocator.allocated,
            held.iter().map(|extent| u64::from(extent.blocks)).sum::<u64>()
        );
    }

    #[test]
    fn written_extents_first_and_tightest() {
        let mut allocator = with_files(&[100]);
        let runs: Vec<_> =
            [10, 1, 4, 1, 20].map(|blocks| allocator.allocate(blocks).unwrap()).into();
        allocator.free(runs[0]);
        allocator.free(runs[2]);
        assert_eq!(
            allocator.allocate(3),
            Some(extent(0, 11, 3)),
            "the hole of 4, not that of 10 nor unwritten space"
        );
        assert_eq!(allocator.allocate(11), Some(extent(0, 36, 11)), "no hole is large enough");
    }

    #[test]
    fn written_space_before_the_frontier_joins_unwritten_space() {
        let mut allocator = with_files(&[10]);
        let first = allocator.allocate(6).unwrap();
        allocator.free(first);
        assert_eq!(allocator.allocate(10), Some(extent(0, 0, 10)));
        assert_eq!(allocator.allocate(1), None);
    }

    #[test]
    fn rebuild_keeps_what_is_held() {
        let held = [extent(0, 2, 3), extent(0, 5, 1), extent(1, 0, 4)];
        let mut allocator = with_files(&[10, 10]);
        allocator.rebuild(&held);
        check(&allocator, &held);
        assert_eq!(allocator.allocate(2), Some(extent(0, 0, 2)));
        assert_eq!(allocator.allocate(5), Some(extent(1, 4, 5)));
    }

    #[test]
    fn it_is_not_given_out_until_there_are_too_many() {
        let mut allocator = Allocator::default();
        allocator.add_file(0, 640);
        let extents: Vec<Extent> = (0..3).map(|_| allocator.allocate(4).unwrap()).collect();
        for extent in &extents {
            allocator.free_bad(*extent);
        }
        assert_eq!(allocator.allocated, 0);
        // Ten blocks may be bad: the first extent came back.
        assert_eq!(allocator.allocate(4), Some(extents[0]));
        let next = allocator.allocate(4).unwrap();
        assert!(!extents.contains(&next), "{next:?}");
        allocator.retry_bad();
        assert!(extents.contains(&allocator.allocate(4).unwrap()), "they are back");
    }

    proptest! {
        /// What is taken is exactly what is free there, and nothing is lost when it is back.
        #[test]
        fn free_extents_can_be_taken_and_put_back(frees in prop::collection::vec(any::<bool>(), 12), first in 0_u32..60, blocks in 1_u32..40) {
            let mut allocator = with_files(&[60, 60]);
            let all: Vec<Extent> = (0..12).map(|_| allocator.allocate(5).unwrap()).collect();
            let (gone, held): (Vec<_>, Vec<_>) = all.into_iter().zip(frees).partition(|(_, gone)| *gone);
            let held: Vec<Extent> = held.into_iter().map(|(extent, _)| extent).collect();
            gone.iter().for_each(|(extent, _)| allocator.free(*extent));
            let range = extent(0, first, blocks);
            let taken = allocator.take_free_within(range);
            let within = |block: u32| u64::from(block) < range.end_block() && block >= first;
            let free = gone.iter().flat_map(|(extent, _)| extent.first_block..extent.end_block() as u32);
            let expected: Vec<u32> = free.filter(|block| within(*block)).collect();
            let blocks: Vec<u32> = taken.iter().flat_map(|extent| extent.first_block..extent.end_block() as u32).collect();
            prop_assert_eq!(blocks, expected);
            let mut outside = held.clone();
            outside.extend(&taken);
            allocator.allocated += taken.iter().map(|extent| u64::from(extent.blocks)).sum::<u64>();
            check(&allocator, &outside);
            taken.into_iter().for_each(|extent| allocator.free(extent));
            check(&allocator, &held);
        }

        #[test]
        fn blocks_are_never_lost_or_given_out_twice(steps in prop::collection::vec((0_u32..40, any::<prop::sample::Index>(), any::<bool>()), 1..300)) {
            let mut allocator = with_files(&[64, 100, 16]);
            let mut held: Vec<Extent> = Vec::new();
            for (blocks, which, rebuild) in steps {
                if blocks >= 20 && !held.is_empty() {
                    allocator.free(held.swap_remove(which.index(held.len())));
                } else if let Some(given) = allocator.allocate(blocks % 20 + 1) {
                    prop_assert_eq!(given.blocks, blocks % 20 + 1);
                    held.push(given);
                }
                if rebuild && blocks == 0 {
                    held.sort();
                    allocator.rebuild(&held);
                }
                check(&allocator, &held);
            }
            for given in held.drain(..) {
                allocator.free(given);
            }
            check(&allocator, &[]);
            prop_assert_eq!(allocator.allocate(100), Some(extent(1, 0, 100)));
        }
    }
}
