//! Discards: freed extents of which the device is told later.
//!
//! A freed extent can be given out again at once. When its turn comes, what is still free of it is taken from the allocator,
//! discarded, and put back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::data_file::DataFile;
use crate::block::{BLOCK_BYTES, Extent};
use crate::store::RecordsAreCleared;
use crate::store::allocator::Allocator;
use crate::store::device::BlockDevice;
use crate::sync::Mutex;

/// Most that is taken from the allocator at a time: 16 MiB.
const PIECE_BLOCKS: u32 = 4096;

pub(super) struct Discards {
    device: Arc<BlockDevice>,
    freed: Mutex<Vec<Extent>>,
    /// Freed extents in order, joined, in pieces.
    pieces: Mutex<VecDeque<Extent>>,
    is_refused: AtomicBool,
    are_cleared: OnceLock<RecordsAreCleared>,
}

impl Discards {
    pub(super) fn new(device: Arc<BlockDevice>) -> Self {
        Self {
            device,
            freed: Mutex::default(),
            pieces: Mutex::default(),
            is_refused: AtomicBool::new(false),
            are_cleared: OnceLock::new(),
        }
    }

    pub(super) fn follow_records(&self, are_cleared: RecordsAreCleared) {
        let _ = self.are_cleared.set(are_cleared);
    }

    pub(super) fn note(&self, extent: Extent) {
        if !self.is_refused.load(Ordering::Relaxed) {
            self.freed.lock().push(extent);
        }
    }

    /// Discards the next piece. Returns whether there was one.
    pub(super) fn discard_next(
        &self,
        allocator: &Mutex<Allocator>,
        files: &[Arc<DataFile>],
    ) -> bool {
        let Some(piece) = self.next_piece() else { return false };
        let Some(file) = files.get(piece.file as usize) else { return true };
        let runs = allocator.lock().take_free_within(piece);
        let are_cleared = self.are_cleared.get().is_none_or(|are_cleared| are_cleared());
        for run in runs.iter().filter(|_| are_cleared) {
            let (_, offset) = file.locate(run.first_block);
            debug_assert!(offset.is_multiple_of(BLOCK_BYTES));
            if let Err(error) = self.device.discard(offset, run.size_bytes())
                && !self.is_refused.swap(true, Ordering::Relaxed)
            {
                let path = self.device.path().display();
                log::warn!("{path} discards nothing any more: {error}");
            }
        }
        let mut allocator = allocator.lock();
        runs.into_iter().for_each(|run| allocator.put_back(run));
        true
    }

    fn next_piece(&self) -> Option<Extent> {
        let mut pieces = self.pieces.lock();
        if pieces.is_empty() {
            let freed = std::mem::take(&mut *self.freed.lock());
            *pieces = joined(freed);
        }
        pieces.pop_front()
    }
}

/// The extents in order, neighbours joined, in pieces.
fn joined(mut extents: Vec<Extent>) -> VecDeque<Extent> {
    extents.sort_unstable();
    let mut pieces: VecDeque<Extent> = VecDeque::new();
    for extent in extents {
        if let Some(last) = pieces.back_mut()
            && last.file == extent.file
            && last.end_block() >= u64::from(extent.first_block)
        {
            // One that was freed twice was given out between.
            let end = last.end_block().max(extent.end_block());
            let blocks = (end - u64::from(last.first_block)) as u32;
            if blocks <= PIECE_BLOCKS {
                last.blocks = blocks;
                continue;
            }
        }
        pieces.push_back(extent);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_go_together_up_to_a_piece() {
        let extent = |file, first_block, blocks| Extent { file, first_block, blocks };
        let extents = vec![
            extent(0, 8, 4),
            extent(1, 0, 2),
            extent(0, 0, 8),
            extent(0, 4, 4),
            extent(0, 20, 1),
        ];
        assert_eq!(joined(extents), [extent(0, 0, 12), extent(0, 20, 1), extent(1, 0, 2)]);
        let many = (0..10).map(|number| extent(0, number * 1000, 1000)).collect();
        let lengths: Vec<u32> = joined(many).iter().map(|piece| piece.blocks).collect();
        assert_eq!(lengths, [4000, 4000, 2000]);
    }
}
