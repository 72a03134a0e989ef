//! Adaptive eviction and admission in a whole store: what they learn, what they refuse, and what a close keeps of it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::chunks::copy_all;
use crate::common::{Client, MIB, Memory, config, keys};
use kvring::testing::Clock;
use kvring::{Admission, Durability};

const CAPACITY: u64 = 64 * MIB;
const CHUNK: usize = 32 << 10;
/// Three times as many as fit beside what is used: that goes as well.
const MANY: u64 = 5_500;
/// Requests within this time are admitted or not together.
const WINDOW_MS: u64 = 1 << 14;

struct Clocked {
    client: Client,
    now_ms: Arc<AtomicU64>,
}

impl Clocked {
    fn open(directory: &Path, now_ms: &Arc<AtomicU64>, admission: Admission) -> Self {
        let mut config = config(directory, CAPACITY);
        config.clock = Clock::by_hand(Arc::clone(now_ms));
        (config.admission, config.durability, config.lease_s) =
            (admission, Durability::BestEffort, 0);
        (config.tuning.low_watermark, config.tuning.high_watermark) = (1.0, 1.0);
        Self { client: Client::with(config), now_ms: Arc::clone(now_ms) }
    }

    fn new(directory: &Path, admission: Admission) -> Self {
        Self::open(directory, &Arc::new(AtomicU64::new(1_700_000_000_000)), admission)
    }

    fn store(&self, keys: &[String]) {
        let memory = Memory::patterned(CHUNK, 0, 1);
        for keys in keys.chunks(500) {
            assert!(self.client.set(keys, &vec![&memory; keys.len()]).results.iter().all(|ok| *ok));
        }
    }

    fn count(&self, keys: &[String]) -> usize {
        self.client.exists(keys).iter().filter(|held| **held).count()
    }

    fn pass_window(&self) {
        self.now_ms.fetch_add(WINDOW_MS, Ordering::SeqCst);
    }

    fn remembered(&self) -> u64 {
        let usage = self.client.connector.usage().unwrap();
        usage.iter().map(|(_, usage)| usage.remembered_keys).sum()
    }

    fn counter(&self, name: &str) -> u64 {
        self.client.counter(name)
    }

    fn returned_keys(&self) -> u64 {
        self.client.connector.stats().total.returned_keys
    }

    /// Chunks that are used, go, and come back: others without uses are worth less with each of them.
    fn teach_that_used_ones_return(&self) {
        let used = keys(0..500);
        for round in 0..3 {
            self.store(&used);
            (0..2).for_each(|_| drop(self.client.connector.touch(&used).unwrap()));
            let first = 1_000_000 * (round + 1);
            self.store(&keys(first..first + MANY));
        }
    }
}

#[test]
fn new_keys_are_refused_where_only_used_ones_return_and_remembered_ones_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let store = Clocked::new(directory.path(), Admission::Adaptive);
    store.teach_that_used_ones_return();
    assert!(store.returned_keys() > 0);
    let mut refused = Vec::new();
    for window in 0..50 {
        store.pass_window();
        let batch = keys(900_000_000 + 100 * window..900_000_000 + 100 * (window + 1));
        let before = (store.counter("set_not_admitted"), store.counter("written_bytes"));
        // In two halves, as a long prompt is stored.
        let (first, second) = batch.split_at(50);
        store.store(first);
        store.store(second);
        let not_admitted = store.counter("set_not_admitted") - before.0;
        assert!([0, 100].contains(&not_admitted), "a prompt with holes: {not_admitted} of 100");
        if not_admitted > 0 {
            assert_eq!(store.counter("written_bytes"), before.1);
            assert_eq!(store.count(&batch), 0);
            refused.push(batch);
        }
    }
    assert!(refused.len() > 5, "{} of 50 windows were refused", refused.len());
    // Whoever comes again is worth a write.
    let again = refused.last().unwrap();
    store.store(again);
    assert_eq!(store.count(again), 100);
    // What is stored is replaced, whatever the share.
    let other = Memory::patterned(CHUNK, 0, 2);
    assert!(store.client.set(again, &vec![&other; 100]).results.iter().all(|ok| *ok));
    assert_eq!(store.count(again), 100);
    store.client.assert_consistent();
}

/// What is refused would have cost nothing that is stored.
#[test]
fn a_store_with_space_refuses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = Clocked::new(directory.path(), Admission::Adaptive);
    store.teach_that_used_ones_return();
    store.client.connector.purge("test/model").unwrap();
    for window in 0..20 {
        store.pass_window();
        let batch = keys(900_000_000 + 10 * window..900_000_000 + 10 * (window + 1));
        store.store(&batch);
        assert_eq!(store.count(&batch), 10);
    }
    assert!(store.client.connector.stats().eviction_bonus < 0.5);
}

#[test]
fn with_always_every_key_is_stored() {
    let directory = tempfile::tempdir().unwrap();
    let store = Clocked::new(directory.path(), Admission::Always);
    store.teach_that_used_ones_return();
    for window in 0..50 {
        store.pass_window();
        let batch = keys(900_000_000 + 100 * window..900_000_000 + 100 * (window + 1));
        store.store(&batch);
        assert_eq!(store.count(&batch), 100);
    }
    assert_eq!(store.counter("set_not_admitted"), 0);
}

#[test]
fn what_was_learnt_survives_a_close_and_a_kill_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = Clocked::new(directory.path(), Admission::Adaptive);
    store.teach_that_used_ones_return();
    let (remembered, now_ms) = (store.remembered(), Arc::clone(&store.now_ms));
    assert!(remembered > 1000, "{remembered}");
    let refused = |store: &Clocked| {
        let before = store.counter("set_not_admitted");
        for window in 0..20 {
            store.pass_window();
            let first = store.now_ms.load(Ordering::SeqCst) * 100 + window;
            store.store(&keys(first..first + 1));
        }
        store.counter("set_not_admitted") - before
    };
    assert!(refused(&store) > 3);
    let remembered = store.remembered().max(remembered);
    let bonus = store.client.connector.stats().eviction_bonus;
    assert!(bonus < 0.5, "{bonus}");
    store.client.connector.close();
    drop(store);

    let store = Clocked::open(directory.path(), &now_ms, Admission::Adaptive);
    let found = store.remembered();
    assert!(found * 100 >= remembered * 95, "{found} of {remembered} after a close");
    assert_eq!(store.client.connector.stats().eviction_bonus, bonus);
    assert!(refused(&store) > 3);
    store.client.assert_consistent();
    store.client.connector.close();
    drop(store);

    // A session that a kill ends has overwritten few of them.
    let copy = tempfile::tempdir().unwrap();
    let store = Clocked::open(directory.path(), &now_ms, Admission::Adaptive);
    let remembered = store.remembered();
    store.store(&keys(0..10));
    copy_all(directory.path(), &copy.path().join("killed"));
    let killed = Clocked::open(&copy.path().join("killed"), &now_ms, Admission::Adaptive);
    let found = killed.remembered();
    assert!(found * 100 >= remembered * 90, "{found} of {remembered} after a kill");
    killed.client.assert_consistent();
}
