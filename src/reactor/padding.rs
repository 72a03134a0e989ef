//! Alignment and padding: what O_DIRECT cannot move in place goes through bounce memory, in whole blocks.

use std::ptr;

use crate::block::BLOCK_BYTES;
use crate::buffer::{AlignedBlock, CallerBuffer};
use crate::store::Geometry;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Bytes of a piece that need no bounce memory.
pub(super) fn in_place_bytes(buffer: CallerBuffer, length: usize, geometry: Geometry) -> usize {
    match geometry.direct {
        false => length,
        true if buffer.is_aligned_to(geometry.memory_alignment_bytes) => length - length % BLOCK,
        true => 0,
    }
}

/// Copies `bytes` from byte `from` of `buffer` on to the start of `bounce`, and zeroes the rest of the last block: what earlier
/// users left there must not reach the disk.
pub(super) fn copy_and_pad(buffer: CallerBuffer, from: usize, bytes: usize, bounce: &AlignedBlock) {
    // SAFETY: the buffer has `bytes` from there on, and `bounce` has them in whole blocks; its memory is nobody else's.
    unsafe {
        ptr::copy_nonoverlapping(buffer.at(from), bounce.as_ptr(), bytes);
        let padding = bytes.next_multiple_of(BLOCK) - bytes;
        bounce.as_ptr().add(bytes).write_bytes(0, padding);
    }
}
