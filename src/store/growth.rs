//! How long data files are, and what they take on disk.

use crate::budget::Budget;
use crate::config::{BLOCK_BYTES, MAX_CHUNK_BYTES};

const MIB: u64 = 1 << 20;

/// Where the file system is short of space, a data file may be as small as this.
pub(super) const SMALLEST_FILE_BYTES: u64 = 16 * MIB;

/// Longest chunk within a capacity: an eighth of it, so that no chunk costs most of the others their place; 64 MiB where that
/// is less.
pub(super) fn longest_chunk_bytes(capacity_bytes: u64) -> u64 {
    (capacity_bytes / 8).next_multiple_of(MIB).clamp(64 * MIB, MAX_CHUNK_BYTES)
}

/// Bytes that the next data file would have: the longest chunk fits; more where that would make over 256 open files, or
/// what is left.
pub(super) fn next_file_bytes(budget: &Budget) -> u64 {
    let capacity_bytes = budget.capacity_bytes();
    let wanted = longest_chunk_bytes(capacity_bytes).max(capacity_bytes / 256);
    wanted.min(affordable_bytes(budget))
}

/// Bytes that the longest data file would have for which there is capacity left, whole MiB.
pub(super) fn affordable_bytes(budget: &Budget) -> u64 {
    let left = budget.left_bytes().saturating_sub(index_spare_bytes(budget.capacity_bytes()));
    left.saturating_sub(on_disk_bytes(left) - left) / MIB * MIB
}

/// What the index may still grow by when data files have taken the rest: chunks of 16 KiB on average fit into it.
pub(crate) fn index_spare_bytes(capacity_bytes: u64) -> u64 {
    (capacity_bytes / 64).max(MIB)
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
            let file_bytes = next_file_bytes(&Budget::new(capacity_bytes));
            (longest_chunk_bytes(capacity_bytes) / MIB, file_bytes / MIB)
        };
        assert_eq!(lengths(256 * MIB), (64, 64));
        assert_eq!(lengths(1024 * MIB), (128, 128));
        assert_eq!(lengths((1024 << 30) - 1), (2048, 4095));
        assert_eq!(lengths(16 << 30), (2048, 2048));
    }
}
