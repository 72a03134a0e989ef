//! The superblock of a block device: whose it is, and which part of it holds what. docs/explanation/format.md draws it byte by byte.

use bytemuck::{Pod, Zeroable};

use super::names::StoreId;
use super::sealed;
use crate::base::block::{BLOCK_BYTES, MIB};

/// Version of the format of a store on a block device (docs/explanation/format.md).
pub const DEVICE_FORMAT_VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"KVRINGDV";
/// The first part of the device: the superblock in its first block, a copy in its last, zeros between them.
pub(crate) const HEAD_BYTES: u64 = MIB;
/// The last part, all zeros: there are formats that put their mark at the end of a device.
const TAIL_BYTES: u64 = MIB;
pub(crate) const COPY_OFFSET: u64 = HEAD_BYTES - BLOCK_BYTES;
/// Smallest device: head, tail, index, and room for the smallest capacity.
pub(crate) const MIN_DEVICE_BYTES: u64 = 32 * MIB;
/// Share of the device that is reserved for the index: enough for chunks of 16 KiB on average. On small devices it is
/// more, up to this length, as chunks may be small there too.
const INDEX_SHARE: u64 = 64;
const SMALL_INDEX_SHARE: u64 = 8;
const SMALL_INDEX_BYTES: u64 = 16 * MIB;

/// What the first block of the device says. It changes only when the store gets another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Superblock {
    magic: [u8; 8],
    version: u32,
    block_bytes: u32,
    pub(crate) store_id: StoreId,
    pub(crate) created_ms: u64,
    /// Length of the device when it was formatted.
    pub(crate) device_bytes: u64,
    pub(crate) index_offset: u64,
    /// 0 if the index is a file elsewhere.
    pub(crate) index_bytes: u64,
    pub(crate) data_offset: u64,
    pub(crate) data_bytes: u64,
    reserved: u32,
    /// CRC-32C of everything before it.
    checksum: u32,
}

/// One of the two places of the superblock, as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuperblockCopy {
    Intact(Superblock),
    /// It has the magic, and a version that is not known here.
    Newer(u32),
    /// It has the magic, and is not whole.
    Damaged,
    Zero,
    Unreadable,
    /// Something that kvring has not written.
    Foreign,
}

impl Superblock {
    /// Of a device of this length. The index takes a part of it, unless it `is_elsewhere`.
    pub(crate) fn new(
        store_id: StoreId,
        created_ms: u64,
        device_bytes: u64,
        is_elsewhere: bool,
    ) -> Self {
        let wanted = device_bytes / INDEX_SHARE;
        let small = (device_bytes / SMALL_INDEX_SHARE).min(SMALL_INDEX_BYTES);
        // Behind its first page it grows by whole MiB.
        let index_bytes = match is_elsewhere {
            true => 0,
            false => wanted.max(small).next_multiple_of(MIB) + MIB,
        };
        let data_offset = HEAD_BYTES + index_bytes;
        sealed(Self {
            magic: MAGIC,
            version: DEVICE_FORMAT_VERSION,
            block_bytes: BLOCK_BYTES as u32,
            store_id,
            created_ms,
            device_bytes,
            index_offset: if is_elsewhere { 0 } else { HEAD_BYTES },
            index_bytes,
            data_offset,
            data_bytes: tail_offset(device_bytes) - data_offset,
            reserved: 0,
            checksum: 0,
        })
    }

    /// The same with another id.
    pub(crate) fn with_id(self, store_id: StoreId) -> Self {
        sealed(Self { store_id, ..self })
    }

    pub(crate) fn data_end(&self) -> u64 {
        self.data_offset + self.data_bytes
    }

    /// Intact, and made as [`Superblock::new`] makes it.
    fn is_sound(&self) -> bool {
        let Self { store_id, created_ms, device_bytes, .. } = *self;
        device_bytes >= MIN_DEVICE_BYTES
            && *self == Self::new(store_id, created_ms, device_bytes, self.index_bytes == 0)
    }
}

impl SuperblockCopy {
    /// The superblock that two copies tell of, and whether both are that. An error is the version where one is newer and none intact.
    pub(crate) fn judge(copies: [Self; 2]) -> Result<Option<(Superblock, bool)>, u32> {
        let mut outcome = Ok(None);
        for copy in copies {
            match copy {
                Self::Intact(superblock) => return Ok(Some((superblock, copies == [copy; 2]))),
                Self::Newer(version) if outcome.is_ok() => outcome = Err(version),
                _ => {}
            }
        }
        outcome
    }

    /// What a block is that should hold the superblock; `None` is one that cannot be read.
    pub(crate) fn of(block: Option<&[u8]>) -> Self {
        let Some(block) = block else { return Self::Unreadable };
        let (first, rest) = block.split_at(size_of::<Superblock>());
        let superblock: Superblock = bytemuck::pod_read_unaligned(first);
        if superblock.magic != MAGIC {
            return if is_zero(block) { Self::Zero } else { Self::Foreign };
        }
        if superblock.version > DEVICE_FORMAT_VERSION {
            return Self::Newer(superblock.version);
        }
        // Others leave the first bytes alone and write behind them: partition tables, RAID.
        match is_zero(rest) {
            false => Self::Foreign,
            true if superblock.is_sound() => Self::Intact(superblock),
            true => Self::Damaged,
        }
    }
}

/// Where the last part of a device of this length begins, which holds zeros.
pub(crate) fn tail_offset(device_bytes: u64) -> u64 {
    device_bytes / BLOCK_BYTES * BLOCK_BYTES - TAIL_BYTES
}

pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |all, byte| all | byte) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(superblock: &Superblock) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES as usize];
        block[..size_of::<Superblock>()].copy_from_slice(bytemuck::bytes_of(superblock));
        block
    }

    #[test]
    fn parts_follow_each_other_and_fill_the_device() {
        for device_bytes in [MIN_DEVICE_BYTES, 64 * MIB + 512, 1 << 30, 61 << 40] {
            for is_elsewhere in [false, true] {
                let superblock = Superblock::new([7; 16], 5, device_bytes, is_elsewhere);
                assert_eq!(
                    SuperblockCopy::of(Some(&block(&superblock))),
                    SuperblockCopy::Intact(superblock)
                );
                assert_eq!(superblock.data_offset, HEAD_BYTES + superblock.index_bytes);
                assert_eq!(superblock.index_bytes == 0, is_elsewhere);
                let left = device_bytes - superblock.data_end();
                assert!((TAIL_BYTES..TAIL_BYTES + BLOCK_BYTES).contains(&left));
                assert!(superblock.data_bytes > device_bytes / 8 * 6, "{superblock:?}");
            }
        }
    }

    #[test]
    fn any_flipped_bit_is_seen() {
        let superblock = Superblock::new([7; 16], 5, 1 << 30, false);
        let whole = block(&superblock);
        for bit in 0..BLOCK_BYTES as usize * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let expected = match bit / 8 {
                0..8 => SuperblockCopy::Foreign,
                8..12 if bit != 64 => SuperblockCopy::Newer(1 | 1 << (bit - 64)),
                byte if byte < size_of::<Superblock>() => SuperblockCopy::Damaged,
                _ => SuperblockCopy::Foreign,
            };
            assert_eq!(SuperblockCopy::of(Some(&damaged)), expected, "bit {bit}");
        }
        assert_eq!(SuperblockCopy::of(Some(&[0; 4096])), SuperblockCopy::Zero);
        assert_eq!(SuperblockCopy::of(None), SuperblockCopy::Unreadable);
    }

    #[test]
    fn one_intact_copy_is_enough_and_the_first_newer_version_is_told() {
        use SuperblockCopy::{Damaged, Intact, Newer, Zero};
        let one = Superblock::new([7; 16], 5, 1 << 30, false);
        let other = one.with_id([8; 16]);
        assert_eq!(other, Superblock::new([8; 16], 5, 1 << 30, false));
        assert_eq!(SuperblockCopy::judge([Intact(one); 2]), Ok(Some((one, true))));
        for copies in [[Intact(one), Intact(other)], [Intact(one), Newer(9)], [Zero, Intact(one)]] {
            assert_eq!(SuperblockCopy::judge(copies), Ok(Some((one, false))), "{copies:?}");
        }
        assert_eq!(SuperblockCopy::judge([Newer(9), Intact(one)]), Ok(Some((one, false))));
        assert_eq!(SuperblockCopy::judge([Damaged, Newer(9)]), Err(9));
        assert_eq!(SuperblockCopy::judge([Newer(9), Newer(10)]), Err(9));
        assert_eq!(SuperblockCopy::judge([Damaged, Zero]), Ok(None));
    }
}
