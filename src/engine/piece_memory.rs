//! The memory of one piece of a chunk on its way: the caller's, and bounce memory where the caller's does not fit the device.

use std::ptr;

use crate::base::block::BLOCK_BYTES;
use crate::base::buffer::{AlignedBlock, BouncePool, CallerBuffer};

const BLOCK: usize = BLOCK_BYTES as usize;

/// What the kernel is told of a piece: its memory, and bounce memory behind that.
pub(super) type Vectors = [libc::iovec; 2];

pub(super) const NO_VECTORS: Vectors = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; 2];

/// Vectors for the kernel, and what they name. What has moved is taken off them.
pub(crate) struct PieceMemory {
    /// The piece's part of the caller's memory; none for what is only looked at, which goes through bounce memory.
    buffer: Option<CallerBuffer>,
    is_write: bool,
    vectors: Vectors,
    vector_count: usize,
    bounce: Option<AlignedBlock>,
    length_bytes: usize,
    /// Bytes at its end that are copied from or to `bounce`.
    bounced_bytes: usize,
    /// What is still to be moved: padding is written with the rest, and read only where there is any, as a chunk's own file
    /// ends with the chunk.
    missing_bytes: usize,
    moved_bytes: usize,
    /// The kernel may write to it.
    is_in_flight: bool,
}

// SAFETY: its pointers name memory of the caller, valid until the answer, which comes after the piece has ended on whichever
// thread, and bounce memory, which is the piece's own.
unsafe impl Send for PieceMemory {}

impl PieceMemory {
    /// Of a write of all of `buffer`, or a read into it. Only the first `in_place_bytes`, whole blocks if not all of it, go without
    /// bounce memory.
    pub(crate) fn of_caller(
        buffer: CallerBuffer,
        in_place_bytes: usize,
        is_write: bool,
        pool: &mut BouncePool,
    ) -> Self {
        let length_bytes = buffer.length_bytes();
        let bounced_bytes = length_bytes - in_place_bytes;
        let mut memory = Self::empty(length_bytes, is_write);
        memory.buffer = Some(buffer);
        memory.bounced_bytes = bounced_bytes;
        if in_place_bytes > 0 {
            memory.add_vector(buffer.at(0), in_place_bytes);
        }
        if bounced_bytes > 0 {
            let bounce = memory.add_bounce(bounced_bytes, pool);
            if is_write {
                copy_and_pad(buffer, in_place_bytes, bounced_bytes, bounce);
                memory.missing_bytes = length_bytes.next_multiple_of(BLOCK);
            }
        }
        memory
    }

    /// Of a read that nobody gets.
    pub(crate) fn to_look_at(length_bytes: usize, pool: &mut BouncePool) -> Self {
        let mut memory = Self::empty(length_bytes, false);
        memory.add_bounce(length_bytes, pool);
        memory
    }

    fn empty(length_bytes: usize, is_write: bool) -> Self {
        Self {
            buffer: None,
            is_write,
            vectors: NO_VECTORS,
            vector_count: 0,
            bounce: None,
            length_bytes,
            bounced_bytes: 0,
            missing_bytes: length_bytes,
            moved_bytes: 0,
            is_in_flight: false,
        }
    }

    fn add_bounce(&mut self, bytes: usize, pool: &mut BouncePool) -> &AlignedBlock {
        let padded_bytes = bytes.next_multiple_of(BLOCK);
        let bounce = pool.take(padded_bytes);
        self.add_vector(bounce.as_ptr(), padded_bytes);
        self.bounce.insert(bounce)
    }

    fn add_vector(&mut self, base: *mut u8, length: usize) {
        self.vectors[self.vector_count] = libc::iovec { iov_base: base.cast(), iov_len: length };
        self.vector_count += 1;
    }

    pub(crate) fn is_write(&self) -> bool {
        self.is_write
    }

    /// Bytes that are copied from or to bounce memory.
    pub(crate) fn bounced_bytes(&self) -> usize {
        self.bounced_bytes
    }

    pub(super) fn moved_bytes(&self) -> usize {
        self.moved_bytes
    }

    /// Lengths of the vectors.
    #[cfg(test)]
    pub(crate) fn vector_lengths(&self) -> Vec<usize> {
        self.vectors[..self.vector_count].iter().map(|vector| vector.iov_len).collect()
    }

    /// What is written from bounce memory.
    #[cfg(test)]
    pub(crate) fn bounced(&mut self) -> Option<&mut [u8]> {
        Some(self.bounce.as_mut()?.bytes_mut())
    }

    /// Vectors of what is still missing, and how many. What they name stays until [`Self::end_flight`].
    pub(super) fn begin_flight(&mut self) -> (Vectors, usize) {
        self.is_in_flight = true;
        match self.vectors {
            [first, second] if first.iov_len == 0 && self.vector_count == 2 => {
                ([second, NO_VECTORS[1]], 1)
            }
            vectors => (vectors, self.vector_count),
        }
    }

    /// The kernel is done with it.
    pub(super) fn end_flight(&mut self) {
        self.is_in_flight = false;
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.is_in_flight
    }

    /// Takes note of what was moved. Says whether that was all.
    pub(crate) fn advance(&mut self, moved_bytes: usize) -> bool {
        self.moved_bytes += moved_bytes;
        self.missing_bytes = self.missing_bytes.saturating_sub(moved_bytes);
        let mut rest = moved_bytes;
        for vector in &mut self.vectors[..self.vector_count] {
            let taken = rest.min(vector.iov_len);
            vector.iov_base = vector.iov_base.wrapping_byte_add(taken);
            vector.iov_len -= taken;
            rest -= taken;
        }
        self.missing_bytes == 0
    }

    /// Copies what was read through bounce memory to where the caller wants it.
    pub(crate) fn deliver(&self) {
        if self.is_write || self.bounced_bytes == 0 {
            return;
        }
        assert!(!self.is_in_flight, "the kernel still writes to it");
        if let (Some(bounce), Some(buffer)) = (&self.bounce, self.buffer) {
            // SAFETY: both hold `bounced_bytes` bytes; the kernel is done with the bounce memory, and the caller's memory is
            // valid until the completion is dropped (see CallerBuffer::new).
            unsafe {
                ptr::copy_nonoverlapping(
                    bounce.as_ptr(),
                    buffer.at(self.length_bytes - self.bounced_bytes),
                    self.bounced_bytes,
                );
            }
        }
    }

    /// What it holds: to be looked at after a read, or for a write.
    pub(crate) fn bytes(&self) -> &[u8] {
        assert!(!self.is_in_flight, "the kernel still has it");
        match (&self.buffer, &self.bounce) {
            // SAFETY: as just said, no transfer of it is under way.
            (Some(buffer), _) => unsafe { buffer.bytes(0, self.length_bytes) },
            // SAFETY: it has as many bytes and more, all initialised, and the kernel is done with it.
            (None, Some(bounce)) => unsafe {
                std::slice::from_raw_parts(bounce.as_ptr(), self.length_bytes)
            },
            (None, None) => &[],
        }
    }

    pub(crate) fn release(self, pool: &mut BouncePool) {
        assert!(!self.is_in_flight, "the kernel still has it");
        if let Some(bounce) = self.bounce {
            pool.give_back(bounce);
        }
    }
}

/// Copies `bytes` from byte `from` of `buffer` on to the start of `bounce`, and zeroes the rest of the last block: what earlier
/// users left there must not reach the disk.
fn copy_and_pad(buffer: CallerBuffer, from: usize, bytes: usize, bounce: &AlignedBlock) {
    // SAFETY: the buffer has `bytes` from there on, and `bounce` has them in whole blocks; its memory is nobody else's.
    unsafe {
        ptr::copy_nonoverlapping(buffer.at(from), bounce.as_ptr(), bytes);
        let padding = bytes.next_multiple_of(BLOCK) - bytes;
        bounce.as_ptr().add(bytes).write_bytes(0, padding);
    }
}
