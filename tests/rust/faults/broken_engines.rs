//! An engine that breaks down for good: who waits is told why, and not before the kernel has given the memory back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::chunk_files::{CAPACITY, config};
use crate::common::{Client, Memory, eventually, key, once, real_engine};
use kvring::testing::{Action, Engine, Reaped, Transfer};
use kvring::{BLOCK_BYTES, EngineError};

/// An engine that keeps the first read, and refuses the second one and writes for good, as a ring that has broken down does.
struct Breaking {
    real: Box<dyn Engine>,
    breaks: Arc<AtomicBool>,
    kept: Option<usize>,
    is_cancelled: Arc<AtomicBool>,
    gives_back: Arc<AtomicBool>,
}

impl Engine for Breaking {
    fn description(&self) -> String {
        "breaking".into()
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        let is_one = matches!(transfer.action, Action::Read | Action::Write);
        if is_one && self.breaks.load(Ordering::SeqCst) {
            if transfer.action == Action::Read && self.kept.is_none() {
                self.kept = Some(transfer.token);
                return Ok(());
            }
            let source = io::Error::from_raw_os_error(libc::EBADF);
            return Err(EngineError::Failed { operation: "io_uring_enter", source });
        }
        // SAFETY: as the caller vouches.
        unsafe { self.real.submit(transfer) }
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        let limit = Duration::from_millis(5);
        if self.gives_back.load(Ordering::SeqCst)
            && let Some(token) = self.kept.take()
        {
            reaped.push(Reaped { token, result: -libc::ECANCELED });
            return Ok(());
        }
        self.real.reap(Some(timeout.map_or(limit, |timeout| timeout.min(limit))), reaped)
    }

    fn cancel_all(&mut self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
    }
}

#[test]
fn nothing_is_answered_while_a_piece_is_in_the_kernel() {
    let directory = tempfile::tempdir().unwrap();
    let [breaks, is_cancelled, gives_back]: [Arc<AtomicBool>; 3] = Default::default();
    let mut config = config(directory.path(), CAPACITY);
    config.tuning.max_io_bytes = BLOCK_BYTES;
    let engine = {
        let (breaks, is_cancelled) = (Arc::clone(&breaks), Arc::clone(&is_cancelled));
        let gives_back = Arc::clone(&gives_back);
        once(move |queue_depth, waker| {
            let real = real_engine(queue_depth, waker)?;
            Ok(Breaking { real, breaks, kept: None, is_cancelled, gives_back })
        })
    };
    let client = Client::over(config, engine);
    let memory = Memory::patterned(3 * BLOCK_BYTES as usize, 0, 1);
    assert!(client.set_one(&key(1), &memory));
    breaks.store(true, Ordering::SeqCst);
    let future_id = client.submit_get(&[key(1)], &[&memory]);
    eventually("the reactor stops", || is_cancelled.load(Ordering::SeqCst));
    let mut completions = Vec::new();
    client.connector.drain(&mut completions);
    assert!(completions.is_empty(), "answered with a piece in the kernel");
    gives_back.store(true, Ordering::SeqCst);
    assert_eq!(client.wait(future_id).results, [false]);
}

#[test]
fn a_set_that_the_engine_refuses_says_what_happened_and_not_that_it_was_closed() {
    let directory = tempfile::tempdir().unwrap();
    let breaks = Arc::new(AtomicBool::new(true));
    let engine = once(move |queue_depth, waker| {
        let real = real_engine(queue_depth, waker)?;
        let [is_cancelled, gives_back] = Default::default();
        Ok(Breaking { real, breaks, kept: None, is_cancelled, gives_back })
    });
    let config = config(directory.path(), CAPACITY);
    let client = Client::over(config, engine);
    let done = client.set(&[key(1)], &[&Memory::patterned(70_001, 0, 1)]);
    assert!(done.error.contains("the I/O of this path stopped"), "{}", done.error);
}
