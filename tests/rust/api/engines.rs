//! What the core makes of an engine's limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Client, MIB, Memory, config, key, once, pattern, real_engine};
use kvring::EngineError;
use kvring::testing::{Action, Engine, Reaped, Transfer};

/// An engine that works on `2 * EACH` transfers at a time, and notes how many it is given.
struct Shallow {
    real: Box<dyn Engine>,
    under_way: [usize; 2],
    most: Arc<[AtomicUsize; 2]>,
    reads: Vec<usize>,
}

const EACH: usize = 3;

impl Engine for Shallow {
    fn description(&self) -> String {
        self.real.description()
    }

    fn depth(&self) -> usize {
        2 * EACH
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        let is_read = transfer.action == Action::Read;
        if is_read {
            self.reads.push(transfer.token);
        }
        let class = usize::from(is_read);
        self.under_way[class] += 1;
        self.most[class].fetch_max(self.under_way[class], Ordering::SeqCst);
        // SAFETY: as the caller vouches.
        unsafe { self.real.submit(transfer) }
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        let known = reaped.len();
        let outcome = self.real.reap(timeout, reaped);
        for Reaped { token, .. } in &reaped[known..] {
            let read = self.reads.iter().position(|read| read == token);
            read.map(|place| self.reads.swap_remove(place));
            self.under_way[usize::from(read.is_some())] -= 1;
        }
        outcome
    }

    fn cancel_all(&mut self) {
        self.real.cancel_all();
    }
}

/// Else a load would wait in it behind stores, which the scheduler cannot help.
#[test]
fn an_engine_gets_half_of_what_it_can_do_as_loads_and_half_as_stores() {
    let directory = tempfile::tempdir().unwrap();
    let most = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let make_engine = once({
        let most = Arc::clone(&most);
        move |queue_depth, waker| {
            let real = real_engine(queue_depth, waker)?;
            Ok(Shallow { real, under_way: [0; 2], most, reads: Vec::new() })
        }
    });
    let config = config(directory.path(), 256 * MIB);
    let client = Client::over(config, make_engine);
    let keys: Vec<String> = (0..64).map(key).collect();
    let stored: Vec<Memory> = (0..64).map(|seed| Memory::patterned(20_000, 0, seed)).collect();
    assert!(client.set(&keys, &stored).ok);
    let loaded: Vec<Memory> = (0..64).map(|_| Memory::new(20_000, 0)).collect();
    assert_eq!(client.get(&keys, &loaded).results, [true; 64]);
    assert!((0..64).all(|seed| loaded[seed].bytes() == pattern(20_000, seed as u64)));
    assert_eq!(most.as_ref().each_ref().map(|most| most.load(Ordering::SeqCst)), [EACH; 2]);
}
