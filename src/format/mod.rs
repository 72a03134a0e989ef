//! What is on disk: structures, names and sizes. Nothing here does I/O.

pub(crate) mod ghost_record;
pub(crate) mod header;
pub(crate) mod member_paths;
pub(crate) mod membership;
pub(crate) mod names;
pub(crate) mod record;
pub(crate) mod superblock;

/// A structure with the CRC-32C of everything before it in its last 4 bytes.
pub(crate) fn sealed<T: bytemuck::Pod>(mut value: T) -> T {
    let bytes = bytemuck::bytes_of_mut(&mut value);
    let (content, checksum) = bytes.split_at_mut(bytes.len() - size_of::<u32>());
    checksum.copy_from_slice(&crate::base::checksum::crc32c(content).to_le_bytes());
    value
}

/// Whether it is as [`sealed`] makes it.
fn is_sealed<T: bytemuck::Pod>(value: &T) -> bool {
    bytemuck::bytes_of(value) == bytemuck::bytes_of(&sealed(*value))
}
