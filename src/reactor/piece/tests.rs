//! How pieces are laid out, go on, and are summed up.

use super::*;
use crate::base::buffer::AlignedBlock;
use crate::schedule::Class;

fn direct() -> Geometry {
    Geometry { direct: true, memory_alignment_bytes: 512, ..Geometry::default() }
}

fn piece(
    memory: &AlignedBlock,
    shift: usize,
    length: usize,
    request: Request,
    geometry: Geometry,
) -> Piece {
    // SAFETY: the tests keep `memory` alive and alone.
    let buffer = unsafe { CallerBuffer::new(memory.as_ptr().add(shift), length) };
    let (class, length_bytes) = (Class::Get, length as u64);
    let grant = Grant { id: 0, class, offset_bytes: 0, length_bytes };
    let target = PieceTarget { request, file: 3, chunk_offset_bytes: 40960 };
    Piece::of_chunk(
        grant,
        target,
        (length as u64, false),
        Some(buffer),
        geometry,
        &mut BouncePool::default(),
    )
}

fn lengths(piece: &Piece) -> Vec<usize> {
    piece.memory.vector_lengths()
}

#[test]
fn layout_of_every_kind() {
    let memory = AlignedBlock::zeroed(4 * BLOCK);
    let of = |shift, length, geometry| {
        let piece = piece(&memory, shift, length, Request::Read, geometry);
        (lengths(&piece), piece.memory.bounced_bytes())
    };
    assert_eq!(of(0, 2 * BLOCK, direct()), (vec![2 * BLOCK], 0), "whole blocks in place");
    assert_eq!(
        of(512, 2 * BLOCK + 5, direct()),
        (vec![2 * BLOCK, BLOCK], 5),
        "the tail through one block"
    );
    assert_eq!(of(0, 5, direct()), (vec![BLOCK], 5));
    assert_eq!(
        of(1, BLOCK + 5, direct()),
        (vec![2 * BLOCK], BLOCK + 5),
        "an unaligned address through the pool"
    );
    let buffered = Geometry { memory_alignment_bytes: 1, ..Geometry::default() };
    assert_eq!(
        of(1, BLOCK + 5, buffered),
        (vec![BLOCK + 5], 0),
        "without O_DIRECT everything in place"
    );
}

#[test]
fn short_transfers_go_on_where_they_stopped() {
    let memory = AlignedBlock::zeroed(2 * BLOCK);
    let mut piece = piece(&memory, 0, BLOCK + 5, Request::WriteDataFile, direct());
    assert_eq!(piece.attempt().1, 40960);
    assert_eq!(piece.advance(512), PieceProgress::Again);
    assert_eq!(lengths(&piece), [BLOCK - 512, BLOCK]);
    assert_eq!(piece.advance((BLOCK - 512 + 1024) as i32), PieceProgress::Again);
    assert_eq!(lengths(&piece), [0, BLOCK - 1024]);
    assert_eq!(piece.advance((BLOCK - 1024) as i32), PieceProgress::Done);
}

/// A chunk's own file has no padding behind it.
#[test]
fn reads_are_done_where_the_chunk_ends() {
    let memory = AlignedBlock::zeroed(2 * BLOCK);
    for (moved, progress) in [
        (BLOCK + 5, PieceProgress::Done),
        (2 * BLOCK, PieceProgress::Done),
        (BLOCK + 4, PieceProgress::Again),
    ] {
        let mut piece = piece(&memory, 0, BLOCK + 5, Request::Read, direct());
        piece.attempt();
        assert_eq!(piece.advance(moved as i32), progress, "{moved}");
    }
}

#[test]
fn interruptions_are_tried_again_with_a_bound_and_errors_are_not() {
    let memory = AlignedBlock::zeroed(BLOCK);
    let mut piece = piece(&memory, 0, BLOCK, Request::WriteDataFile, direct());
    for _ in 1..MAX_ATTEMPTS {
        piece.attempt();
        assert_eq!(piece.advance(-libc::EAGAIN), PieceProgress::Again);
    }
    piece.attempt();
    assert_eq!(piece.advance(-libc::EAGAIN), PieceProgress::Failed(libc::EAGAIN));
    assert_eq!(piece.advance(-libc::EIO), PieceProgress::Failed(libc::EIO));
    assert_eq!(piece.advance(0), PieceProgress::Failed(0));
}

#[test]
fn checksums_of_pieces_make_the_checksum_of_the_chunk_in_any_order() {
    let memory = AlignedBlock::zeroed(3 * BLOCK);
    let length = 2 * BLOCK + 77;
    let bytes: Vec<u8> = (0..length).map(|position| (position * 31 % 251) as u8).collect();
    // SAFETY: the allocation has three blocks, nobody else uses it.
    unsafe { memory.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), length) };
    let whole = piece(&memory, 0, length, Request::Read, direct());
    let mut combined = 0;
    for (offset, length) in [(2 * BLOCK, 77), (0, BLOCK), (BLOCK, BLOCK)] {
        let (offset_bytes, length_bytes) = (offset as u64, length as u64);
        let grant = Grant { offset_bytes, length_bytes, ..whole.grant };
        let chunk = (whole.grant.length_bytes, true);
        let mut pool = BouncePool::default();
        // SAFETY: as above.
        let buffer = unsafe { CallerBuffer::new(memory.as_ptr(), 2 * BLOCK + 77) };
        let piece = Piece::of_chunk(grant, whole.target, chunk, Some(buffer), direct(), &mut pool);
        combined ^= piece.checksum().unwrap();
    }
    assert_eq!(combined, crc64(&bytes));
}

#[test]
fn padding_is_zeroed_before_it_is_written() {
    let memory = AlignedBlock::zeroed(BLOCK);
    let mut pool = BouncePool::default();
    // SAFETY: ten bytes of it, which nobody else uses.
    let buffer = unsafe { CallerBuffer::new(memory.as_ptr(), 10) };
    let of = |pool: &mut BouncePool| PieceMemory::of_caller(buffer, 0, true, pool);
    let mut dirty = of(&mut pool);
    dirty.bounced().unwrap().fill(0xee);
    dirty.release(&mut pool);
    assert!(of(&mut pool).bounced().unwrap().iter().all(|byte| *byte == 0));
}
