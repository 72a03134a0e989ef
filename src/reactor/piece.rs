//! One piece of a chunk on its way between caller memory and disk.
//!
//! With O_DIRECT, whole blocks at an aligned address go in place; an unaligned tail goes through one bounce block in the
//! same vectored transfer; an unaligned address goes through bounce memory altogether. Without O_DIRECT everything goes
//! in place.

use std::os::fd::RawFd;
use std::ptr;

use super::errnos::{Request, is_interruption};
use super::padding::{copy_and_pad, in_place_bytes};
use crate::block::BLOCK_BYTES;
use crate::buffer::{AlignedBlock, BouncePool, CallerBuffer};
use crate::checksum::ChecksumKind;
use crate::engine::{Action, Transfer};
use crate::schedule::Grant;
use crate::store::Geometry;

const BLOCK: usize = BLOCK_BYTES as usize;
const NO_VECTOR: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

/// Times that a piece is given to the device without getting on before it counts as failed.
pub(super) const MAX_ATTEMPTS: u32 = 16;

#[derive(Clone, Copy)]
pub(super) struct PieceTarget {
    /// Tells reads from writes, and what an error means.
    pub(super) request: Request,
    pub(super) file: RawFd,
    /// Whether the file stays open as long as the store; that of a chunk may be closed before.
    pub(super) is_lasting: bool,
    /// Byte of the file where the chunk starts.
    pub(super) chunk_offset_bytes: u64,
}

impl PieceTarget {
    fn is_write(&self) -> bool {
        self.request != Request::Read
    }
}

/// A piece in flight. Owns its vectors and bounce memory until it is reaped; lives at a stable address meanwhile.
pub(super) struct Piece {
    pub(super) grant: Grant,
    pub(super) target: PieceTarget,
    /// The chunk's memory; none for a chunk that is only looked at, which goes through bounce memory.
    buffer: Option<CallerBuffer>,
    /// Bytes of the chunk behind this piece.
    behind_bytes: u64,
    vectors: [libc::iovec; 2],
    vector_count: usize,
    bounce: Option<AlignedBlock>,
    /// Bytes at the end of the piece that are copied from or to `bounce`.
    pub(super) bounced_bytes: usize,
    /// What is still to be moved: padding is written with the rest, and read only where there is any, as a chunk's own file
    /// ends with the chunk.
    missing_bytes: usize,
    moved_bytes: usize,
    attempts: u32,
    /// What went through bounce memory is where the caller wants it.
    is_delivered: bool,
    /// What its bytes are summed up to, if they are.
    checksum_kind: Option<ChecksumKind>,
    /// Its combinable CRC, once computed.
    checksum: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum PieceProgress {
    Done,
    Again,
    /// It failed with this errno; 0 stands for an unexpected end of the file.
    Failed(i32),
}

// SAFETY: its pointers name memory of the caller, valid until the answer, which comes after the piece has ended on whichever
// thread, and bounce memory, which is the piece's own.
unsafe impl Send for Piece {}

impl Piece {
    /// Lays out the vectors of a piece of a chunk of `chunk_bytes`, which is, or is to be, in `buffer`. Without one it is read
    /// for its checksum alone.
    pub(super) fn new(
        grant: Grant,
        target: PieceTarget,
        (chunk_bytes, checksum_kind): (u64, Option<ChecksumKind>),
        buffer: Option<CallerBuffer>,
        geometry: Geometry,
        pool: &mut BouncePool,
    ) -> Self {
        let (offset, length) = (grant.offset_bytes as usize, grant.length_bytes as usize);
        let in_place = buffer.map_or(0, |buffer| in_place_bytes(buffer, length, geometry));
        let bounced_bytes = length - in_place;
        let mut piece = Self {
            grant,
            target,
            buffer,
            behind_bytes: chunk_bytes - grant.offset_bytes - grant.length_bytes,
            vectors: [NO_VECTOR; 2],
            vector_count: 0,
            bounce: None,
            bounced_bytes: if buffer.is_some() { bounced_bytes } else { 0 },
            missing_bytes: length,
            moved_bytes: 0,
            attempts: 0,
            is_delivered: false,
            checksum_kind,
            checksum: None,
        };
        if let Some(buffer) = buffer
            && in_place > 0
        {
            piece.add_vector(buffer.at(offset), in_place);
        }
        if bounced_bytes > 0 {
            let padded = bounced_bytes.next_multiple_of(BLOCK);
            let bounce = pool.take(padded);
            if let Some(buffer) = buffer
                && target.is_write()
            {
                copy_and_pad(buffer, offset + in_place, bounced_bytes, &bounce);
            }
            piece.add_vector(bounce.as_ptr(), padded);
            piece.bounce = Some(bounce);
            if target.is_write() {
                piece.missing_bytes = in_place + padded;
            }
        }
        piece
    }

    fn add_vector(&mut self, base: *mut u8, length: usize) {
        self.vectors[self.vector_count] = libc::iovec { iov_base: base.cast(), iov_len: length };
        self.vector_count += 1;
    }

    /// The transfer of what is still missing. Its vectors are this piece's: valid while it stays where it is.
    pub(super) fn transfer(&mut self, token: usize) -> Transfer {
        self.attempts += 1;
        let skipped = self
            .vectors
            .iter()
            .take(self.vector_count)
            .take_while(|vector| vector.iov_len == 0)
            .count();
        let action = if self.target.is_write() { Action::Write } else { Action::Read };
        Transfer {
            is_lasting: self.target.is_lasting,
            offset_bytes: self.target.chunk_offset_bytes
                + self.grant.offset_bytes
                + self.moved_bytes as u64,
            vectors: &raw const self.vectors[skipped],
            vector_count: self.vector_count - skipped,
            ..Transfer::without_memory(action, self.target.file, token)
        }
    }

    pub(super) fn advance(&mut self, result: i32) -> PieceProgress {
        match usize::try_from(result) {
            Ok(0) => PieceProgress::Failed(0),
            Ok(moved) => {
                self.moved_bytes += moved;
                self.missing_bytes = self.missing_bytes.saturating_sub(moved);
                if self.missing_bytes == 0 {
                    return PieceProgress::Done;
                }
                // It got on: a short transfer is no failed attempt.
                self.attempts = 0;
                let mut rest = moved;
                for vector in &mut self.vectors[..self.vector_count] {
                    let taken = rest.min(vector.iov_len);
                    // SAFETY: `taken` is at most the vector's length.
                    vector.iov_base = unsafe { vector.iov_base.cast::<u8>().add(taken) }.cast();
                    vector.iov_len -= taken;
                    rest -= taken;
                }
                PieceProgress::Again
            }
            Err(_) => match -result {
                errno if is_interruption(errno) && self.attempts < MAX_ATTEMPTS => {
                    PieceProgress::Again
                }
                errno => PieceProgress::Failed(errno),
            },
        }
    }

    /// Whether [`Piece::process`] has nothing to do.
    pub(super) fn is_processed(&self) -> bool {
        (self.is_delivered || self.target.is_write() || self.bounced_bytes == 0)
            && (self.checksum.is_some() || self.checksum_kind.is_none())
    }

    /// Does what is left for the processor when the kernel is done with it. Returns bytes copied and summed up.
    pub(super) fn process(&mut self) -> u64 {
        if self.is_processed() {
            return 0;
        }
        self.deliver();
        let summed_bytes = if self.checksum().is_some() { self.grant.length_bytes } else { 0 };
        self.bounced_bytes as u64 + summed_bytes
    }

    /// Copies what was read through bounce memory to where the caller wants it.
    fn deliver(&mut self) {
        if self.target.is_write() || self.is_delivered {
            return;
        }
        self.is_delivered = true;
        if let (Some(bounce), Some(buffer)) = (&self.bounce, self.buffer) {
            let end = (self.grant.offset_bytes + self.grant.length_bytes) as usize;
            // SAFETY: both hold `bounced_bytes` bytes; the kernel is done with the bounce memory, and the caller's memory is
            // valid until the completion is dropped (see CallerBuffer::new).
            unsafe {
                ptr::copy_nonoverlapping(
                    bounce.as_ptr(),
                    buffer.at(end - self.bounced_bytes),
                    self.bounced_bytes,
                );
            }
        }
    }

    /// CRC of the piece's bytes, moved to where it is in that of the whole chunk: the XOR of this over all pieces is the CRC of
    /// the chunk, in whatever order they come. None where chunks have no checksum.
    pub(super) fn checksum(&mut self) -> Option<u64> {
        let kind = self.checksum_kind?;
        if self.checksum.is_none() {
            self.checksum = Some(kind.placed(kind.of(self.bytes()), self.behind_bytes));
        }
        self.checksum
    }

    /// Whether its checksum can be computed already, and is not: what is written does not change meanwhile.
    pub(super) fn can_be_summed_early(&self) -> bool {
        self.target.is_write() && self.checksum_kind.is_some() && self.checksum.is_none()
    }

    /// What it holds: to be looked at after a read, or for a write.
    fn bytes(&self) -> &[u8] {
        let (offset, length) = (self.grant.offset_bytes as usize, self.grant.length_bytes as usize);
        match (&self.buffer, &self.bounce) {
            // SAFETY: no transfer into this part is in flight: it is done, or a write, which only reads it.
            (Some(buffer), _) => unsafe { buffer.bytes(offset, length) },
            // SAFETY: it has as many bytes and more, all initialised, and the kernel is done with it.
            (None, Some(bounce)) => unsafe { std::slice::from_raw_parts(bounce.as_ptr(), length) },
            (None, None) => unreachable!("without a buffer all of it is in bounce memory"),
        }
    }

    pub(super) fn release(self, pool: &mut BouncePool) {
        if let Some(bounce) = self.bounce {
            pool.give_back(bounce);
        }
    }
}

#[cfg(test)]
mod tests;
