//! Looking which blocks of the data files are not reserved for them, and living with what the file system has for those.

use std::time::{Duration, Instant};

use nix::sys::statfs::{BTRFS_SUPER_MAGIC, XFS_SUPER_MAGIC};

use super::*;
use crate::store::runs::Runs;
use crate::system::fiemap::find_unreserved;

/// Extents of all data files that one look takes: some 0.2 s. What lies behind them counts as reserved until a
/// write there finds no space.
const MOST_EXTENTS: usize = 1 << 16;

/// The next look comes after so long, or so many times as long as the last one took.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const RESTS: u32 = 100;

/// What the looks know. Its lock is held while the file system is asked.
#[derive(Debug, Default)]
pub(super) struct Looks {
    next: Option<Instant>,
    is_logged: bool,
}

impl ExtentStore {
    /// Whether to look again: after a refusal; and while something is shared, or may come to be, for which there is no space.
    pub(super) fn is_due(&self, is_refused: bool) -> bool {
        let Some(directory) = &self.directory else { return false };
        if self.has_write_failed.load(Ordering::SeqCst) {
            return true;
        }
        let now = Instant::now();
        if is_refused || self.looks.lock().next.is_none_or(|next| now < next) {
            return false;
        }
        let total_bytes = self.allocator.lock().total() * BLOCK_BYTES;
        self.unreserved.lock().found_blocks > 0
            || (can_share(directory) && self.budget.free_for_blocks_bytes() < total_bytes)
    }

    /// `more_fit` is called if more of them can be given out than before.
    pub(super) fn look_for_unreserved(&self, more_fit: &dyn Fn()) {
        let Some(directory) = &self.directory else { return };
        let mut looks = self.looks.lock();
        let begin = Instant::now();
        let is_refused = self.has_write_failed.swap(false, Ordering::SeqCst);
        let Some((mut found, files_with_holes)) = self.find_unreserved() else { return };
        let mut free_blocks = self.budget.free_for_blocks_bytes() / BLOCK_BYTES;
        if !files_with_holes.is_empty() && found.blocks() <= free_blocks {
            // What of this fails is found again, and lived with.
            files_with_holes.iter().for_each(|file| drop(file.fill_holes()));
            let Some((again, _)) = self.find_unreserved() else { return };
            found = again;
            free_blocks = self.budget.free_for_blocks_bytes() / BLOCK_BYTES;
        }
        self.budget.set_unreserved(found.blocks() * BLOCK_BYTES);
        let mut allocator = self.allocator.lock();
        let mut unreserved = self.unreserved.lock();
        let (_, lost_before) = unreserved.lost_blocks();
        unreserved.note(&mut allocator, found, free_blocks, is_refused);
        let (_, lost) = unreserved.lost_blocks();
        let (is_short, shared_blocks) = (unreserved.is_short(), unreserved.found_blocks);
        let total_bytes = allocator.total() * BLOCK_BYTES;
        drop((unreserved, allocator));
        // Before the log, which may wait: from here on SETs rely on it.
        if lost < lost_before {
            more_fit();
        }
        looks.next = Some(Instant::now() + SHORTEST_PAUSE.max(begin.elapsed() * RESTS));
        let path = directory.path().display();
        match (is_short, std::mem::replace(&mut looks.is_logged, is_short)) {
            (true, false) => log::warn!(
                "{path}: {} of {total_bytes} bytes of the data files share their blocks with a copy (a reflink), or have none, \
                 and the file system has only {} bytes above min_free for writing them anew: that much is used for new chunks, \
                 and the chunks in the rest stay; remove the copy, or free space there",
                shared_blocks * BLOCK_BYTES,
                free_blocks * BLOCK_BYTES
            ),
            (false, true) => log::warn!("{path}: all of the data files can be written again"),
            _ => {}
        }
    }

    /// The blocks that are not reserved, and the files that have holes among them; `None` where the file system cannot tell.
    fn find_unreserved(&self) -> Option<(Runs, Vec<Arc<DataFile>>)> {
        let mut most_extents = MOST_EXTENTS;
        let mut all = Runs::default();
        let mut with_holes = Vec::new();
        for (number, file) in self.all_files() {
            let length = self.allocator.lock().blocks_of(number) * BLOCK_BYTES;
            let mut has_holes = false;
            find_unreserved(file.file.as_fd(), length, &mut most_extents, |bytes, is_hole| {
                let first_block = (bytes.start / BLOCK_BYTES) as u32;
                let blocks = bytes.end.div_ceil(BLOCK_BYTES) as u32 - first_block;
                let extent = Extent { file: number, first_block, blocks };
                // A block of the file system may be a part of one here.
                all.remove(extent);
                all.insert(extent);
                has_holes |= is_hole;
            })
            .ok()?;
            if has_holes {
                with_holes.push(file);
            }
        }
        Some((all, with_holes))
    }
}

/// Whether files of this file system can come to share blocks. Others that can are looked at when a write finds no space.
fn can_share(directory: &Directory) -> bool {
    [XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC].iter().any(|kind| directory.is_on(*kind))
}
