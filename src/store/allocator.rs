//! The allocator: free extents of the data files.
//!
//! Each file has a frontier: blocks below it were written once, blocks above it never were. Written extents are given out
//! first, since the first write of a preallocated block costs the file system an extent conversion.
//!
//! A free extent that could not be written is bad: it would be the tightest fit for the next chunk of its length, and fail one SET
//! after the other. So it is not given out before the next open, or before the device can be written again.
//!
//! Behind its limit a file is not given out any more, and what is freed there is retired: the file becomes shorter once all of it is.

use std::collections::VecDeque;

use super::runs::Runs;
use crate::base::block::Extent;

/// One block in so many may be bad. Past that the oldest bad extents are given out again.
const BAD_PART: u64 = 64;

#[derive(Clone, Copy, Debug)]
struct FileSpace {
    blocks: u32,
    frontier: u32,
    /// Blocks that may be given out.
    limit: u32,
}

/// Which blocks are free. All numbers are blocks.
#[derive(Debug, Default)]
pub(crate) struct Allocator {
    files: Vec<FileSpace>,
    /// Free, and written once.
    free: Runs,
    /// Free, and behind the limits.
    retired: Runs,
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
            self.files.resize(number + 1, FileSpace { blocks: 0, frontier: 0, limit: 0 });
        }
        debug_assert_eq!(self.files[number].blocks, 0);
        self.files[number] = FileSpace { blocks, frontier: 0, limit: blocks };
    }

    pub(crate) fn free_before(&self, file: u32, block: u32) -> u32 {
        self.free.before(file, block).map_or(0, |run| run.blocks)
    }

    /// Free blocks from `block` on, unwritten ones as well.
    pub(crate) fn free_from(&self, file: u32, block: u32) -> u32 {
        let written = self.free.from(file, block).map_or(0, |run| run.blocks);
        let FileSpace { blocks, frontier, .. } = self.files[file as usize];
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
        let FileSpace { blocks, frontier, .. } = self.files[file as usize];
        let end = extent.end_block().min(u64::from(blocks)) as u32;
        if end > frontier {
            self.files[file as usize].frontier = end;
            self.put_back(Extent { file, first_block: frontier, blocks: end - frontier });
        }
        self.free.remove(Extent { file, first_block, blocks: end.saturating_sub(first_block) })
    }

    /// Makes an extent free that is not, and joins it with free neighbours.
    pub(crate) fn put_back(&mut self, extent: Extent) {
        let Extent { file, first_block, blocks } = extent;
        let within = self.files[file as usize].limit.saturating_sub(first_block).min(blocks);
        if within > 0 {
            self.free.insert(Extent { blocks: within, ..extent });
        }
        if within < blocks {
            let (first_block, blocks) = (first_block + within, blocks - within);
            self.retired.insert(Extent { file, first_block, blocks });
        }
    }

    /// Gives out only the first `limit` blocks of a file from here on.
    pub(crate) fn set_limit(&mut self, file: u32, limit: u32) {
        let FileSpace { blocks, limit: before, .. } = self.files[file as usize];
        if limit.min(blocks) == before {
            return;
        }
        // Bad extents behind it must not keep the file.
        self.retry_bad();
        let all = Extent { file, first_block: 0, blocks };
        let mut free = self.take_free_within(all);
        free.extend(self.retired.remove(all));
        self.files[file as usize].limit = limit.min(blocks);
        free.into_iter().for_each(|extent| self.put_back(extent));
    }

    /// Files that have blocks behind their limits: number, limit, and whether all of these are free.
    pub(crate) fn limited(&self) -> Vec<(u32, u32, bool)> {
        let files = (0_u32..).zip(&self.files).filter(|(_, space)| space.limit < space.blocks);
        let one = |(file, space): (u32, &FileSpace)| {
            let behind = self.retired.from(file, space.limit).map_or(0, |run| run.blocks);
            (file, space.limit, behind == space.blocks - space.limit)
        };
        files.map(one).collect()
    }

    /// A file ends at its limit from here on; all behind it is free.
    pub(crate) fn cut_at_limit(&mut self, file: u32) {
        let space = &mut self.files[file as usize];
        let (first_block, blocks) = (space.limit, space.blocks - space.limit);
        (space.blocks, space.frontier) = (space.limit, space.frontier.min(space.limit));
        let retired = self.retired.remove(Extent { file, first_block, blocks });
        debug_assert_eq!(retired.iter().map(|run| run.blocks).sum::<u32>(), blocks);
    }

    /// Number and blocks of each file.
    pub(crate) fn lengths(&self) -> Vec<(u32, u32)> {
        let files = (0_u32..).zip(&self.files).filter(|(_, space)| space.blocks > 0);
        files.map(|(number, space)| (number, space.blocks)).collect()
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
        (self.free, self.retired) = (Runs::default(), Runs::default());
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

    /// That can be given out in all.
    pub(crate) fn total(&self) -> u64 {
        self.files.iter().map(|file| u64::from(file.limit)).sum()
    }

    /// Length of a file; 0 where there is none.
    pub(crate) fn blocks_of(&self, file: u32) -> u64 {
        self.files.get(file as usize).map_or(0, |file| u64::from(file.blocks))
    }
}

#[cfg(test)]
mod tests;
