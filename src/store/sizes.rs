//! How long data files are, what they take on disk, and what they leave to the index.

use crate::base::block::{BLOCK_BYTES, MIB};
use crate::error::StoreError;
use crate::format::record::MAX_CHUNK_BYTES;
use crate::space_account::SpaceAccount;

/// Where the file system is short of space, a data file may be as small as this.
pub(super) const SMALLEST_FILE_BYTES: u64 = 16 * MIB;

/// The index gets at least this part of what the data gets.
const INDEX_PART: u64 = 64;

/// Longest chunk within a capacity: an eighth of it, so that no chunk evicts most others; 64 MiB where that is less.
pub(super) fn longest_chunk_bytes(capacity_bytes: u64) -> u64 {
    (capacity_bytes / 8).next_multiple_of(MIB).clamp(64 * MIB, MAX_CHUNK_BYTES)
}

/// The index, whose share data files must leave to it.
pub(crate) trait IndexShare {
    /// Bytes that it needs on disk beyond what it has, where data files have `data_bytes`, of which chunks take
    /// `allocated_bytes` now.
    fn missing_bytes(&self, data_bytes: u64, allocated_bytes: u64) -> u64;

    /// Preallocates `bytes` for it. The caller knows that the file system has them above its floor.
    fn preallocate(&self, bytes: u64) -> Result<(), StoreError>;
}

/// Bytes that a chunk may have which fits the next data file in any case, if the file system has them.
pub(super) fn assured_file_bytes(space: &SpaceAccount) -> u64 {
    let left_bytes = space.left_bytes();
    let fitting = file_bytes_within(left_bytes.saturating_sub(index_share_bytes(left_bytes)));
    longest_chunk_bytes(space.capacity_bytes()).min(fitting)
}

/// Bytes that the next data file would have if the file system has them: the longest chunk fits; more where that would make
/// over 256 open files, or what the capacity leaves. 0 if that is not worth a file.
pub(super) fn next_file_bytes(space: &SpaceAccount) -> u64 {
    let capacity_bytes = space.capacity_bytes();
    let wanted = longest_chunk_bytes(capacity_bytes).max(capacity_bytes / 256);
    let left_bytes = space.left_bytes();
    let fitting = wanted.min(file_bytes_within(left_bytes - left_bytes.div_ceil(INDEX_PART)));
    if fitting < (capacity_bytes / 64).min(SMALLEST_FILE_BYTES) { 0 } else { fitting }
}

/// Length of the longest data file that takes at most `bytes` on disk, whole MiB.
pub(super) fn file_bytes_within(bytes: u64) -> u64 {
    bytes.saturating_sub(on_disk_bytes(bytes) - bytes) / MIB * MIB
}

/// What the index has at least beside data files of `data_bytes`, whole MiB: chunks of 16 KiB on average fit into it.
pub(crate) fn index_share_bytes(data_bytes: u64) -> u64 {
    (data_bytes / INDEX_PART / MIB * MIB).max(MIB)
}

/// What a data file of `size_bytes` takes on disk. Besides its bytes the file system keeps a map of its extents, which
/// grows as parts of the file are written: 12 bytes for every other block on ext4 at worst.
pub(super) fn on_disk_bytes(size_bytes: u64) -> u64 {
    size_bytes + size_bytes / 512 + 4 * BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_files_take_the_longest_chunk() {
        let lengths = |capacity_bytes| {
            let file_bytes = next_file_bytes(&SpaceAccount::new(capacity_bytes));
            (longest_chunk_bytes(capacity_bytes) / MIB, file_bytes / MIB)
        };
        assert_eq!(lengths(256 * MIB), (64, 64));
        assert_eq!(lengths(1024 * MIB), (128, 128));
        assert_eq!(lengths((1024 << 30) - 1), (2048, 4095));
        assert_eq!(lengths(16 << 30), (2048, 2048));
    }
}
