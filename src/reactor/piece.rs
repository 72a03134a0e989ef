//! One piece of a chunk on its way between caller memory and disk.
//!
//! With O_DIRECT, whole blocks at an aligned address go in place; an unaligned tail goes through one bounce block in the
//! same vectored transfer; an unaligned address goes through bounce memory altogether. Without O_DIRECT everything goes
//! in place.

use std::os::fd::RawFd;

use super::io_error_policy::{Request, is_interruption};
use crate::base::block::BLOCK_BYTES;
use crate::base::buffer::{BouncePool, CallerBuffer};
use crate::base::checksum::{crc64, placed};
use crate::engine::{Held, PieceMemory};
use crate::schedule::Grant;
use crate::store::Geometry;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Times that a piece is given to the device without getting on before it counts as failed.
pub(super) const MAX_ATTEMPTS: u32 = 16;

#[derive(Clone, Copy)]
pub(super) struct PieceTarget {
    /// Tells reads from writes, and what an error means.
    pub(super) request: Request,
    pub(super) file: RawFd,
    /// Byte of the file where the chunk starts.
    pub(super) chunk_offset_bytes: u64,
}

/// A piece, with its memory.
pub(super) type Piece = Held<PieceState>;

pub(super) struct PieceState {
    pub(super) grant: Grant,
    pub(super) target: PieceTarget,
    /// Bytes of the chunk behind this piece.
    behind_bytes: u64,
    attempts: u32,
    is_checksummed: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum PieceProgress {
    Done,
    Again,
    /// It failed with this errno; 0 stands for an unexpected end of the file.
    Failed(i32),
}

impl PieceState {
    /// Its file, and where it is there, for one more attempt.
    pub(super) fn attempt(&mut self) -> (RawFd, u64) {
        self.attempts += 1;
        (self.target.file, self.target.chunk_offset_bytes + self.grant.offset_bytes)
    }
}

impl Piece {
    /// Lays out a piece of a chunk of `chunk_bytes`, which is, or is to be, in `buffer`. Without one it is read for its checksum
    /// alone.
    pub(super) fn of_chunk(
        grant: Grant,
        target: PieceTarget,
        (chunk_bytes, is_checksummed): (u64, bool),
        buffer: Option<CallerBuffer>,
        geometry: Geometry,
        pool: &mut BouncePool,
    ) -> Self {
        let (offset, length) = (grant.offset_bytes as usize, grant.length_bytes as usize);
        let memory = match buffer {
            Some(buffer) => {
                let is_write = target.request != Request::Read;
                let in_place_bytes = in_place_bytes(buffer, length, geometry);
                PieceMemory::of_caller(buffer.part(offset, length), in_place_bytes, is_write, pool)
            }
            None => PieceMemory::to_look_at(length, pool),
        };
        let behind_bytes = chunk_bytes - grant.offset_bytes - grant.length_bytes;
        let state = PieceState { grant, target, behind_bytes, attempts: 0, is_checksummed };
        Self::new(memory, state)
    }

    pub(super) fn advance(&mut self, result: i32) -> PieceProgress {
        match usize::try_from(result) {
            Ok(0) => PieceProgress::Failed(0),
            Ok(moved) if self.memory.advance(moved) => PieceProgress::Done,
            Ok(_) => {
                // It got on: a short transfer is no failed attempt.
                self.attempts = 0;
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

    /// CRC of the piece's bytes, moved to where it is in that of the whole chunk: the XOR of this over all pieces is the CRC of
    /// the chunk, in whatever order they come. None where chunks have no checksum.
    pub(super) fn checksum(&self) -> Option<u64> {
        self.is_checksummed.then(|| placed(crc64(self.memory.bytes()), self.behind_bytes))
    }
}

/// Bytes of a piece that need no bounce memory.
fn in_place_bytes(buffer: CallerBuffer, length: usize, geometry: Geometry) -> usize {
    match geometry.direct {
        false => length,
        true if buffer.is_aligned_to(geometry.memory_alignment_bytes) => length - length % BLOCK,
        true => 0,
    }
}

#[cfg(test)]
mod tests;
