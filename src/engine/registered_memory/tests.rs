//! One ring and the memory registered with it.

use std::fs::File;
use std::io::Write as _;

use super::*;
use crate::base::buffer::AlignedBlock;
use crate::engine::uring::UringEngine;
use crate::engine::{Action, Engine, Transfer};

const MIB: usize = 1 << 20;

fn ring(memory: &Arc<RegisteredMemory>) -> UringEngine {
    UringEngine::new(8, Waker::new().unwrap()).unwrap().with_memory(memory)
}

fn file_of(byte: u8) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![byte; MIB]).unwrap();
    file
}

/// Puts a read of a MiB into the queue of the ring.
fn queue(engine: &mut UringEngine, file: &File, into: &libc::iovec) {
    let read = Transfer::without_memory(Action::Read, file.as_raw_fd(), 1);
    // SAFETY: all that it names lives until `finish`.
    unsafe { engine.submit(Transfer { vectors: into, vector_count: 1, ..read }) }.unwrap();
}

fn finish(engine: &mut UringEngine) -> i32 {
    let mut reaped = Vec::new();
    while reaped.is_empty() {
        engine.reap(None, &mut reaped).unwrap();
    }
    reaped[0].result
}

fn vector_of(block: &AlignedBlock) -> libc::iovec {
    libc::iovec { iov_base: block.as_ptr().cast(), iov_len: MIB }
}

/// Registers without waiting for the ring, which is this thread's.
fn register(
    memory: &Arc<RegisteredMemory>,
    engine: &mut UringEngine,
    block: &AlignedBlock,
) -> MemoryHandle {
    register_bytes(memory, engine, block, MIB)
}

fn register_bytes(
    memory: &Arc<RegisteredMemory>,
    engine: &mut UringEngine,
    block: &AlignedBlock,
    length: usize,
) -> MemoryHandle {
    std::thread::scope(|scope| {
        let registering = scope.spawn(|| memory.register(block.as_ptr().addr(), length).unwrap());
        reap_until(engine, || registering.is_finished());
        registering.join().unwrap()
    })
}

fn reap_until(engine: &mut UringEngine, is_done: impl Fn() -> bool) {
    let mut none = Vec::new();
    while !is_done() {
        engine.reap(Some(Duration::from_millis(1)), &mut none).unwrap();
        assert!(none.is_empty());
    }
}

#[test]
fn rings_clone_the_pinned_memory_or_pin_it_themselves() {
    for cannot_clone in [false, true] {
        let memory = Arc::new(RegisteredMemory::default());
        memory.state.lock().cannot_clone = cannot_clone;
        let (mut one, block) = (ring(&memory), AlignedBlock::zeroed(MIB));
        let handle = register(&memory, &mut one, &block);
        assert_eq!((handle.registered_bytes(), memory.bytes()), (MIB as u64, MIB as u64));
        // One that starts later has it too.
        let mut two = ring(&memory);
        for (count, engine) in [(1, &mut one), (2, &mut two)] {
            let (file, into) = (file_of(count as u8), vector_of(&block));
            queue(engine, &file, &into);
            assert_eq!(finish(engine), MIB as i32);
            // SAFETY: initialised, and no transfer is under way.
            let read = unsafe { std::slice::from_raw_parts(block.as_ptr(), MIB) };
            assert!(read.iter().all(|byte| u64::from(*byte) == count));
            assert_eq!(memory.fixed_transfers(), count);
        }
        drop((one, two));
        drop(handle);
        assert_eq!(memory.bytes(), 0);
    }
}

#[test]
fn what_is_queued_reaches_the_kernel_before_its_buffer_goes() {
    let memory = Arc::new(RegisteredMemory::default());
    let (mut engine, block) = (ring(&memory), AlignedBlock::zeroed(MIB));
    let other = AlignedBlock::zeroed(MIB);
    let handle = register(&memory, &mut engine, &block);
    let (file, into) = (file_of(7), vector_of(&block));
    queue(&mut engine, &file, &into);
    assert_eq!(memory.fixed_transfers(), 1);
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| handle.close());
        while memory.bytes() > 0 || memory.version() < 2 {
            std::thread::yield_now();
        }
        assert_eq!(finish(&mut engine), MIB as i32);
        closing.join().unwrap();
    });
    // The entry is free, and another's.
    let next = register(&memory, &mut engine, &other);
    assert_eq!(next.entries.lock()[..], [0]);
    queue(&mut engine, &file, &into);
    assert_eq!((finish(&mut engine), memory.fixed_transfers()), (MIB as i32, 1));
    drop(engine);
}

#[test]
fn memory_that_is_registered_later_leaves_what_was_there() {
    let memory = Arc::new(RegisteredMemory::default());
    let (mut engine, blocks) = (ring(&memory), [(); 3].map(|()| AlignedBlock::zeroed(MIB)));
    let handles = [0, 1, 2].map(|number| register(&memory, &mut engine, &blocks[number]));
    handles[1].close();
    let again = register(&memory, &mut engine, &blocks[1]);
    for (number, block) in blocks.iter().enumerate() {
        let (file, into) = (file_of(number as u8), vector_of(block));
        queue(&mut engine, &file, &into);
        assert_eq!(finish(&mut engine), MIB as i32);
    }
    assert_eq!(memory.fixed_transfers(), 3);
    drop((engine, again, handles));
}

#[test]
fn a_ring_that_starts_later_has_what_is_registered_before_its_first_transfer() {
    let memory = Arc::new(RegisteredMemory::default());
    let (mut first, block) = (ring(&memory), AlignedBlock::zeroed(MIB));
    let handle = register(&memory, &mut first, &block);
    // There is no entry to clear in a ring without a table.
    buffer_table::clear(ring(&memory).descriptor(), 0).unwrap();
    drop((first, handle));
}

#[test]
fn an_entry_is_not_given_away_while_a_ring_may_have_it() {
    let memory = Arc::new(RegisteredMemory::default());
    let (mut engine, block) = (ring(&memory), AlignedBlock::zeroed(2 * MIB));
    let handle = register(&memory, &mut engine, &block);
    // The ring is this thread's, and takes no note: the wait ends all the same.
    handle.close();
    let start = block.as_ptr().addr();
    let next = memory.register(start, 2 * MIB).unwrap();
    assert_eq!(next.entries.lock()[..], [1]);
    drop(engine);
}

#[test]
fn without_a_ring_nothing_is_registered() {
    let (memory, block) = (Arc::new(RegisteredMemory::default()), AlignedBlock::zeroed(MIB));
    let handle = memory.register(block.as_ptr().addr(), MIB).unwrap();
    assert_eq!((handle.registered_bytes(), memory.bytes()), (0, 0));
}

#[test]
fn a_piece_holds_what_is_wholly_inside() {
    let piece = Piece { start: 4096, length: 4096, since: 1 };
    assert!(piece.holds(4096, 4096) && piece.holds(5000, 3192) && !piece.holds(5000, 3193));
    assert!(!piece.holds(4095, 1) && !piece.holds(8192, 1) && !piece.holds(5000, usize::MAX));
}

#[test]
fn memory_that_cannot_be_written_is_not_registered() {
    let memory = Arc::new(RegisteredMemory::default());
    let mut engine = ring(&memory);
    // SAFETY: a new mapping, which nothing else uses.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            MIB,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    let address = start.addr();
    let handle = std::thread::scope(|scope| {
        let registering = scope.spawn(|| memory.register(address, MIB).unwrap());
        reap_until(&mut engine, || registering.is_finished());
        registering.join().unwrap()
    });
    assert_eq!((handle.registered_bytes(), memory.bytes()), (0, 0));
    // SAFETY: the mapping of above, which nobody uses.
    unsafe { libc::munmap(start, MIB) };
}
