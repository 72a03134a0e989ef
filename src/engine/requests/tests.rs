//! Requests on an engine that copies like a kernel would, late: also under Miri, which sees each access.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::base::block::BLOCK_BYTES;
use crate::base::buffer::{AlignedBlock, BouncePool, CallerBuffer};

const BLOCK: usize = BLOCK_BYTES as usize;

/// A disk in memory; what it is given moves when it is told so, at most so many bytes at a time.
#[derive(Default)]
struct LateEngine {
    disk: Rc<RefCell<Vec<u8>>>,
    given: Vec<Transfer>,
    most_bytes: usize,
    names: Rc<RefCell<Vec<CString>>>,
}

impl Engine for LateEngine {
    fn description(&self) -> String {
        "late".into()
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        self.given.push(transfer);
        Ok(())
    }

    fn reap(&mut self, _: Option<Duration>, reaped: &mut Vec<Reaped>) -> Result<(), EngineError> {
        for transfer in std::mem::take(&mut self.given) {
            let token = transfer.token;
            if !transfer.name.is_null() {
                // SAFETY: the contract of `submit`.
                let name = unsafe { CStr::from_ptr(transfer.name) };
                self.names.borrow_mut().push(name.to_owned());
            }
            let mut moved = 0;
            for number in 0..transfer.vector_count {
                // SAFETY: the contract of `submit`.
                let vector = unsafe { *transfer.vectors.add(number) };
                let length = vector.iov_len.min(self.most_bytes - moved);
                let mut disk = self.disk.borrow_mut();
                let at = transfer.offset_bytes as usize + moved;
                let on_disk = disk[at..at + length].as_mut_ptr();
                let memory = vector.iov_base.cast::<u8>();
                // SAFETY: as above; the disk is apart from it.
                unsafe {
                    match transfer.action {
                        Action::Read => on_disk.copy_to_nonoverlapping(memory, length),
                        _ => memory.copy_to_nonoverlapping(on_disk, length),
                    }
                }
                moved += length;
            }
            let result = if transfer.vector_count > 0 { moved as i32 } else { -libc::ENOENT };
            reaped.push(Reaped { token, result });
        }
        Ok(())
    }

    fn cancel_all(&mut self) {}
}

fn place(block: usize) -> (RawFd, u64) {
    (3, (block * BLOCK) as u64)
}

/// Reaps until every piece has moved, and takes them out.
fn finish<T>(requests: &mut Requests<T>, places: &[(usize, (RawFd, u64))]) -> Vec<Held<T>> {
    let mut done = Vec::new();
    while requests.in_flight() > 0 {
        assert!(requests.reap(None).unwrap());
        while let Some(Reaped { token, result }) = requests.take_reaped() {
            if requests.idle_mut(token).memory.advance(result as usize) {
                done.push(requests.remove(token));
            } else {
                let (_, place) = places.iter().find(|(other, _)| *other == token).unwrap();
                requests.start(token, *place).unwrap();
            }
        }
    }
    done
}

#[test]
fn pieces_move_in_parts_while_others_come_and_are_looked_at() {
    let disk = Rc::new(RefCell::new(vec![0; 8 * BLOCK]));
    let engine = LateEngine { disk: Rc::clone(&disk), most_bytes: 3000, ..LateEngine::default() };
    let mut requests = Requests::new(Box::new(engine), 4);
    let mut pool = BouncePool::default();
    let (source, target) = (AlignedBlock::zeroed(3 * BLOCK), AlignedBlock::zeroed(3 * BLOCK));
    let length = BLOCK + 77;
    // SAFETY: nobody else uses the blocks, and they outlive the requests.
    let buffer_of =
        |block: &AlignedBlock, from| unsafe { CallerBuffer::new(block.as_ptr().add(from), length) };
    let fill = |byte: usize| (byte * 7 % 251) as u8;
    for at in 0..3 * BLOCK {
        // SAFETY: in bounds, and nothing is under way.
        unsafe { source.as_ptr().add(at).write(fill(at)) };
    }
    // One in place but for its tail, one through bounce memory.
    let mut places = Vec::new();
    for (number, (from, in_place)) in [(0, BLOCK), (5001, 0)].into_iter().enumerate() {
        let memory = PieceMemory::of_caller(buffer_of(&source, from), in_place, true, &mut pool);
        let token = requests.insert(Held::new(memory, number));
        places.push((token, place(4 * number)));
        requests.start(token, place(4 * number)).unwrap();
        // What its owner knows can change.
        *requests.about_mut(token) += 10;
    }
    let written = finish(&mut requests, &places);
    assert_eq!(written.iter().map(|piece| **piece).collect::<Vec<_>>(), [10, 11]);
    written.into_iter().for_each(|piece| piece.memory.release(&mut pool));
    for (block, from) in [(0, 0), (4, 5001)] {
        let start = block * BLOCK;
        let whole: Vec<u8> = (from..from + length).map(fill).collect();
        assert_eq!(disk.borrow()[start..start + length], whole);
        assert!(disk.borrow()[start + length..start + 2 * BLOCK].iter().all(|byte| *byte == 0));
        // What is read is whole when it has been delivered.
        let memory = PieceMemory::of_caller(buffer_of(&target, from), 0, false, &mut pool);
        let token = requests.insert(Held::new(memory, 0));
        requests.start(token, place(block)).unwrap();
        let read = finish(&mut requests, &[(token, place(block))]).pop().unwrap();
        read.memory.deliver();
        assert_eq!(read.memory.bytes(), whole);
        read.memory.release(&mut pool);
    }
}

#[test]
fn the_name_of_what_is_opened_stays_until_it_is_reaped() {
    let engine = LateEngine::default();
    let names = Rc::clone(&engine.names);
    let mut requests = Requests::<()>::new(Box::new(engine), 1);
    for token in 10..20 {
        let name = CString::new(format!("chunk {token}")).unwrap();
        let open = Transfer::without_memory(Action::Open(0), 3, token);
        requests.request(open, Some(&name)).unwrap();
    }
    requests.reap(None).unwrap();
    while let Some(done) = requests.take_reaped() {
        assert!(requests.take_opened(done.token).is_none());
    }
    assert_eq!(names.borrow().len(), 10);
    assert_eq!(names.borrow()[9].to_str(), Ok("chunk 19"));
}

#[test]
#[should_panic(expected = "the kernel still has it")]
fn what_is_under_way_cannot_be_taken_out() {
    let mut requests = Requests::new(Box::new(LateEngine::default()), 1);
    let memory = PieceMemory::to_look_at(BLOCK, &mut BouncePool::default());
    let token = requests.insert(Held::new(memory, ()));
    requests.start(token, place(0)).unwrap();
    requests.remove(token);
}
