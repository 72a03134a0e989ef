//! A turn of a reactor handles a bounded number of operations, also of those that need no transfer: a load that comes behind a burst
//! of them does not wait for all.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::faults::{Fault, FaultEngine};
use crate::common::held_back::HeldBack;
use crate::common::{Client, MIB, Memory, config, eventually, key, once};
use kvring::Connector;
use kvring::testing::{Action, Reaped};

/// Operations of one kind in a turn, at most.
const MOST_IN_A_TURN: u64 = 256;
const LENGTH: usize = 64;

/// What the test says to one reactor, and sees of its turns.
#[derive(Default)]
struct Watch {
    turns: AtomicU64,
    /// When the first read came.
    first_read: AtomicU64,
    blocks: AtomicBool,
    is_blocked: AtomicBool,
    writes_fail: AtomicBool,
    /// A counter of this store, what it was last, and by how much a turn raised it at most.
    counted: Mutex<Option<(Arc<Client>, &'static str)>>,
    last: AtomicU64,
    most: AtomicU64,
}

impl Watch {
    fn note_turn(&self) {
        while self.blocks.load(Ordering::SeqCst) {
            self.is_blocked.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        self.turns.fetch_add(1, Ordering::SeqCst);
        self.count(&self.counted.lock().unwrap());
    }

    fn count(&self, counted: &Option<(Arc<Client>, &'static str)>) {
        if let Some((client, name)) = counted {
            let now = client.counter(name);
            let before = self.last.swap(now, Ordering::SeqCst);
            self.most.fetch_max(now - before, Ordering::SeqCst);
        }
    }

    fn fault_of(&self, action: Action) -> Fault {
        match action {
            Action::Read => {
                let now = self.turns.load(Ordering::SeqCst);
                let _ =
                    self.first_read.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst);
                Fault::None
            }
            Action::Write if self.writes_fail.load(Ordering::SeqCst) => Fault::Errno(libc::EIO),
            _ => Fault::None,
        }
    }

    /// By how much a turn raises this counter at most, while `work` goes on.
    fn most_in_a_turn(&self, client: Arc<Client>, name: &'static str, work: impl FnOnce()) -> u64 {
        self.last.store(client.counter(name), Ordering::SeqCst);
        *self.counted.lock().unwrap() = Some((client, name));
        work();
        let mut counted = self.counted.lock().unwrap();
        // The last turn may not have ended.
        self.count(&counted);
        *counted = None;
        drop(counted);
        self.most.load(Ordering::SeqCst)
    }
}

/// A store with one reactor.
fn open(directory: &Path, load_deadline_ms: Option<u64>) -> (Arc<Client>, HeldBack, Arc<Watch>) {
    let (held, watch) = (HeldBack::default(), Arc::<Watch>::default());
    let mut config = config(directory, 256 * MIB);
    (config.io_threads, config.load_deadline_ms) = (Some(1), load_deadline_ms);
    config.tuning.queue_depth = Some(1);
    let (hand, watched) = (held.clone(), Arc::clone(&watch));
    let make_engine = once(move |queue_depth, waker| {
        let of_script = Arc::clone(&watched);
        let script = Box::new(move |_, action, _| of_script.fault_of(action));
        let engine = FaultEngine::new(queue_depth, Arc::clone(&waker), script, Arc::default())?;
        let turning = Box::new(move |_: &[Reaped]| watched.note_turn());
        Ok(hand.above(Box::new(engine.watched(turning)), waker))
    });
    let connector = Connector::open_with_engine(config, make_engine).unwrap();
    (Arc::new(Client::from(connector)), held, watch)
}

#[test]
fn loads_overtake_a_burst() {
    const SETS: u64 = 128 * MOST_IN_A_TURN;
    let directory = tempfile::tempdir().unwrap();
    let (client, held, watch) = open(directory.path(), None);
    let (content, loaded) = (Memory::patterned(LENGTH, 0, 1), Memory::new(LENGTH, 0));
    assert!(client.set_one("stored", &content));
    held.hold(Action::Write);
    watch.blocks.store(true, Ordering::SeqCst);
    let first = client.submit_set(&["first".to_owned()], &[&content]);
    eventually("the reactor", || watch.is_blocked.load(Ordering::SeqCst));
    let keys: Vec<String> = (0..SETS).map(key).collect();
    let sets = client.submit_set(&keys, &vec![&content; keys.len()]);
    let get = client.submit_get(&["stored".to_owned()], &[&loaded]);
    let before = watch.turns.load(Ordering::SeqCst);
    watch.blocks.store(false, Ordering::SeqCst);
    assert_eq!(client.wait(get).results, [true]);
    let turns = watch.first_read.load(Ordering::SeqCst) - before;
    assert!(turns <= 3, "the load waited for {turns} turns");
    held.release();
    assert!(client.wait(first).ok && client.wait(sets).ok);
    client.assert_consistent();
}

#[test]
fn late_loads_are_answered_in_turns() {
    const GETS: u64 = 16 * MOST_IN_A_TURN;
    let directory = tempfile::tempdir().unwrap();
    let (client, held, watch) = open(directory.path(), Some(500));
    let content = Memory::patterned(LENGTH, 0, 1);
    let keys: Vec<String> = (0..GETS).map(key).collect();
    assert!(client.set(&keys, &vec![&content; keys.len()]).ok);
    let memory: Vec<Memory> = keys.iter().map(|_| Memory::new(LENGTH, 0)).collect();
    held.hold(Action::Read);
    let most = watch.most_in_a_turn(Arc::clone(&client), "get_late", || {
        let gets = client.submit_get(&keys, &memory);
        // All but one that has begun in time.
        eventually("the misses", || client.counter("get_late") >= GETS - 1);
        held.release();
        let hits = client.wait(gets).results.into_iter().filter(|hit| *hit).count();
        assert_eq!(client.counter("get_late") + hits as u64, GETS);
    });
    assert!(most <= MOST_IN_A_TURN, "{most} in a turn");
    client.assert_consistent();
}

#[test]
fn sets_that_share_a_failure_are_answered_in_turns() {
    const SETS: u64 = 4096;
    let directory = tempfile::tempdir().unwrap();
    let (client, held, watch) = open(directory.path(), None);
    let content = Memory::patterned(LENGTH, 0, 1);
    let keys = vec![key(1); SETS as usize];
    held.hold(Action::Write);
    let sets = client.submit_set(&keys, &vec![&content; keys.len()]);
    held.until_given(1);
    watch.writes_fail.store(true, Ordering::SeqCst);
    let most = watch.most_in_a_turn(Arc::clone(&client), "set_failed", || {
        held.release();
        assert!(!client.wait(sets).ok);
        watch.writes_fail.store(false, Ordering::SeqCst);
    });
    assert_eq!(client.counter("set_failed"), SETS);
    assert!(most <= MOST_IN_A_TURN, "{most} in a turn");
    assert!(client.set_one(&key(1), &content));
    client.assert_consistent();
}
