//! What is on disk: structures, names and sizes. Nothing here does I/O.

pub(crate) mod header;
pub(crate) mod membership;
pub(crate) mod names;
pub(crate) mod record;
pub(crate) mod superblock;

/// CRC-32C of all of a structure but its last 4 bytes, which hold it.
fn checksum_of<T: bytemuck::NoUninit>(value: &T) -> u32 {
    let bytes = bytemuck::bytes_of(value);
    crate::checksum::crc32c(&bytes[..bytes.len() - size_of::<u32>()])
}
