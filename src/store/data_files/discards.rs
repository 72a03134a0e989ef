//! Discards: freed extents of which the device is told later.
//!
//! A freed extent can be given out again at once. When its turn comes, what is still free of it is taken from the allocator,
//! discarded, and put back.

use std::sync::Arc;

use super::data_file::DataFiles;
use crate::base::block::{BLOCK_BYTES, Extent};
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::store::RecordsAreCleared;
use crate::store::allocator::Allocator;
use crate::store::device::BlockDevice;
use crate::store::runs::Runs;

/// Most that is taken from the allocator at a time: 16 MiB.
const PIECE_BLOCKS: u32 = 4096;

pub(super) struct Discards {
    device: Arc<BlockDevice>,
    freed: Mutex<Runs>,
    /// Freed before these.
    next: Mutex<Runs>,
    is_refused: AtomicBool,
    are_cleared: RecordsAreCleared,
}

impl Discards {
    pub(super) fn new(device: Arc<BlockDevice>, are_cleared: RecordsAreCleared) -> Self {
        Self {
            device,
            freed: Mutex::default(),
            next: Mutex::default(),
            is_refused: AtomicBool::new(false),
            are_cleared,
        }
    }

    pub(super) fn note(&self, extent: Extent) {
        if !self.is_refused.load(Ordering::Relaxed) {
            let mut freed = self.freed.lock();
            // One that was freed twice was given out between.
            freed.remove(extent);
            freed.insert(extent);
        }
    }

    /// Discards the next piece. Returns whether there was one, and there may be another.
    pub(super) fn discard_next(&self, allocator: &Mutex<Allocator>, files: &DataFiles) -> bool {
        let Some(piece) = self.next_piece() else { return false };
        let Some(file) = files.get(&piece.file) else { return true };
        let runs = allocator.lock().take_free_within(piece);
        let are_cleared = (self.are_cleared)();
        if !are_cleared {
            self.note(piece);
        }
        for run in runs.iter().filter(|_| are_cleared) {
            let (_, offset) = file.locate(run.first_block);
            debug_assert!(offset.is_multiple_of(BLOCK_BYTES));
            let range = offset..offset + run.size_bytes();
            if let Err(error) = self.device.files.discard(&self.device.file, range)
                && !self.is_refused.swap(true, Ordering::Relaxed)
            {
                let path = self.device.path.display();
                log::warn!("{path} discards nothing any more: {error}");
            }
        }
        let mut allocator = allocator.lock();
        runs.into_iter().for_each(|run| allocator.put_back(run));
        are_cleared
    }

    fn next_piece(&self) -> Option<Extent> {
        let mut next = self.next.lock();
        if next.blocks() == 0 {
            *next = std::mem::take(&mut *self.freed.lock());
        }
        take_piece(&mut next)
    }
}

fn take_piece(runs: &mut Runs) -> Option<Extent> {
    let run = runs.iter().next()?;
    let piece = Extent { blocks: run.blocks.min(PIECE_BLOCKS), ..run };
    runs.cut(run, piece);
    Some(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_go_together_up_to_a_piece() {
        let extent = |file, first_block, blocks| Extent { file, first_block, blocks };
        let mut runs = Runs::default();
        for freed in [extent(0, 8, 5000), extent(1, 0, 2), extent(0, 0, 8)] {
            runs.insert(freed);
        }
        let pieces: Vec<Extent> = std::iter::from_fn(|| take_piece(&mut runs)).collect();
        assert_eq!(pieces, [extent(0, 0, 4096), extent(0, 4096, 912), extent(1, 0, 2)]);
    }
}
