//! Another capacity for a store that is open: data files that no longer fit are emptied by whoever evicts, then shortened or removed.
//!
//! Which blocks stay is the rule of the open, so that both, and what is forecast, agree.

use super::found_files::{fitting_blocks, room_for};
use super::*;

impl ExtentStore {
    /// Longest chunk that fits now, with data files of these lengths.
    pub(super) fn longest_fitting_bytes(&self, lengths: &[(u32, u32)]) -> u64 {
        let longest = lengths.iter().map(|(_, blocks)| u64::from(*blocks) * BLOCK_BYTES).max();
        // On a device nothing else comes.
        let assured = if self.directory.is_some() { assured_file_bytes(&self.space) } else { 0 };
        assured.max(longest.unwrap_or(0)).min(longest_chunk_bytes(self.space.capacity_bytes()))
    }

    /// Limits the data files to what fits the capacity. Not while one is being made: it counts as part of the index then; says whether
    /// it did.
    pub(super) fn limit_files(&self, file_uses: &dyn Fn() -> HashMap<u32, FileUse>) -> bool {
        if self.directory.is_none() {
            return true;
        }
        if self.is_growing.load(Ordering::SeqCst) {
            return false;
        }
        let mut lengths = self.allocator.lock().lengths();
        let data_bytes: u64 =
            lengths.iter().map(|(_, blocks)| on_disk_bytes(u64::from(*blocks) * BLOCK_BYTES)).sum();
        let index_bytes = self.space.used_bytes().saturating_sub(data_bytes);
        let (room_bytes, _) = room_for(&lengths, &self.space, index_bytes);
        // Where the file system has become full meanwhile, what is there stays: it is taken already.
        let fitting = match self.space.is_over_capacity() {
            true => fitting_blocks(&mut lengths, room_bytes, file_uses),
            false => lengths,
        };
        for (file, blocks) in &fitting {
            self.allocator.lock().set_limit(*file, *blocks);
        }
        self.max_chunk_bytes.store(self.longest_fitting_bytes(&fitting), Ordering::Relaxed);
        true
    }

    /// Shortens or removes the data files that are limited and have nothing behind their limits.
    pub(super) fn cut_files(&self) -> io::Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let limited = { self.allocator.lock().limited() };
        for (number, limit, _) in limited.into_iter().filter(|(_, _, is_free)| *is_free) {
            let Some(file) = self.all_files().remove(&number) else { continue };
            let before_bytes = self.allocator.lock().blocks_of(number) * BLOCK_BYTES;
            let after_bytes = u64::from(limit) * BLOCK_BYTES;
            let taken_after_bytes = match limit {
                0 => {
                    remove_file(directory, &data_file_name(number))?;
                    0
                }
                _ => {
                    file.truncate(after_bytes)?;
                    on_disk_bytes(after_bytes)
                }
            };
            let mut files = self.files.write();
            if limit == 0 {
                files.remove(&number);
            }
            self.allocator.lock().cut_at_limit(number);
            drop(files);
            self.space.release(on_disk_bytes(before_bytes) - taken_after_bytes);
        }
        Ok(())
    }
}
