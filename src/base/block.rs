//! The unit of space on disk, and a run of such units.

/// Unit of space on disk: every chunk starts at a multiple of it and takes a whole number of them.
pub const BLOCK_BYTES: u64 = 4096;

pub(crate) const MIB: u64 = 1 << 20;

/// A run of blocks of one file: where one chunk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Extent {
    /// Number of the file, which is the chunk's own in layout `files`.
    pub file: u32,
    /// First block in it.
    pub first_block: u32,
    /// Number of blocks.
    pub blocks: u32,
}

impl Extent {
    /// Blocks that `bytes` take.
    pub(crate) fn blocks_for(bytes: u64) -> u32 {
        bytes.div_ceil(BLOCK_BYTES) as u32
    }

    /// Its file and first block. Of two extents that do not overlap, the one that starts first lies before the other.
    pub(crate) fn start(self) -> (u32, u32) {
        (self.file, self.first_block)
    }

    /// The block after its last one.
    pub(crate) fn end_block(self) -> u64 {
        u64::from(self.first_block) + u64::from(self.blocks)
    }

    /// Bytes it takes.
    pub(crate) fn size_bytes(self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES
    }
}
