//! `persistent`: what was answered was synced, in the right order, a few barriers for many keys.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::common::faults::{Fault, FaultEngine, scripted};
use crate::common::logged;
use crate::common::{
    Client, MIB, Memory, config, eventually, has_data_files, key, layout, pattern,
};
use kvring::testing::{Action, Reaped};
use kvring::{Durability, Layout};

fn persistent(
    directory: &Path,
    max_retries: u32,
    script: impl FnMut(u64, Action, usize) -> Fault + Send + 'static,
) -> Client {
    let mut config = config(directory, 256 * MIB);
    config.durability = Durability::Persistent;
    config.tuning.persistent_max_retries = max_retries;
    Client::over(config, scripted(script))
}

/// Data, barrier, record, barrier, completion: one SET does two syncs, the first after its write.
#[test]
fn a_set_is_synced_twice() {
    let directory = tempfile::tempdir().unwrap();
    let actions: Arc<Mutex<Vec<Action>>> = Arc::default();
    let client = persistent(directory.path(), 0, {
        let actions = Arc::clone(&actions);
        move |_, action, _| {
            actions.lock().unwrap().push(action);
            Fault::None
        }
    });
    assert!(client.set_one("k", &Memory::patterned(70_000, 0, 1)));
    let mut actions = std::mem::take(&mut *actions.lock().unwrap());
    if layout() == Layout::Files {
        // Made with its length beforehand, without padding afterwards; its name is synced with it.
        assert!(matches!(actions[0], Action::Open(_)));
        assert_eq!(actions[1], Action::Preallocate);
        assert_eq!(actions[3..6], [Action::Truncate, Action::Sync, Action::SyncDirectory]);
        actions.retain(|action| matches!(action, Action::Write | Action::Sync));
    }
    assert_eq!(actions, [Action::Write, Action::Sync, Action::Sync]);
    assert_eq!(client.get_one("k", 70_000).unwrap(), pattern(70_000, 1));
}

/// What SETs took whose records could not be synced is held until a sync shows that the records are cleared. With all of the store
/// held, no SET would come that brings a sync.
#[test]
fn a_store_full_of_what_failed_syncs_hold_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let fails = Arc::new(AtomicBool::new(true));
    let mut config = config(directory.path(), 16 * MIB);
    (config.durability, config.tuning.persistent_max_retries) = (Durability::Persistent, 0);
    let (is_failing, mut is_written) = (Arc::clone(&fails), false);
    // The data is synced, and no record.
    let engine = scripted(move |_, action, _| {
        let is_of_data = std::mem::replace(&mut is_written, action == Action::Write);
        match action == Action::Sync && !is_of_data && is_failing.load(Ordering::SeqCst) {
            true => Fault::Errno(libc::EIO),
            false => Fault::None,
        }
    });
    let client = Client::over(config, engine);
    for number in 0..20 {
        assert!(!client.set_one(&key(number), &Memory::patterned(1 << 20, 0, number)));
    }
    fails.store(false, Ordering::SeqCst);
    eventually("the store goes on", || client.set_one("k", &Memory::patterned(1 << 20, 0, 1)));
    assert_eq!(client.get_one("k", 1 << 20).unwrap(), pattern(1 << 20, 1));
    client.assert_consistent();
}

/// A batch of many keys costs a few barriers, not some for each key.
#[test]
fn barriers_are_shared() {
    if !has_data_files("each file is synced, and once") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let client = persistent(directory.path(), 0, |_, _, _| Fault::None);
    let memory = Memory::patterned(4096, 0, 1);
    let keys: Vec<String> = (0..2000).map(key).collect();
    assert!(client.set(&keys, &vec![&memory; keys.len()]).ok);
    let syncs = client.counter("syncs");
    assert!((2..200).contains(&syncs), "{syncs} barriers for 2000 keys");
}

/// A failed barrier acknowledges nothing of what it covered, is not tried again, and leaves nothing behind.
#[test]
fn failed_syncs_acknowledge_nothing() {
    // The first sync of a group is that of the data, the second that of the index.
    for failing in [3, 4] {
        let directory = tempfile::tempdir().unwrap();
        logged::keep();
        let syncs = Arc::new(AtomicU64::new(0));
        let client = persistent(directory.path(), 3, {
            let syncs = Arc::clone(&syncs);
            move |_, action, _| {
                let number = syncs.fetch_add(u64::from(action == Action::Sync), Ordering::SeqCst);
                let fails = action == Action::Sync && number + 1 == failing;
                if fails { Fault::Errno(libc::EIO) } else { Fault::None }
            }
        });
        let memory = Memory::patterned(8192, 0, 1);
        assert!(client.set_one(&key(0), &memory));
        let completion = client.set(&[key(1)], &[&memory]);
        assert!(!completion.ok && completion.error.contains("durable"), "{}", completion.error);
        assert_eq!(syncs.load(Ordering::SeqCst), failing, "a failed sync is not tried again");
        let told = logged::lines(directory.path(), "they are not stored");
        assert!(told.len() == 1 && told[0].contains("1 chunks"), "{told:?}");
        assert_eq!(client.exists(&[key(1)]), [false]);
        assert_eq!((client.counter("sync_errors"), client.counter("set_failed")), (1, 1));
        for _ in 0..10 {
            assert!(client.get_one(&key(0), 8192).is_some());
        }
        assert_eq!(syncs.load(Ordering::SeqCst), failing, "nobody needs its place yet");
        let trouble = || client.connector.stats().paths[0].trouble.clone();
        // The directory of a file is synced beside it.
        if layout() == Layout::Extents {
            assert!(trouble().starts_with("1 syncs in a row failed"), "{}", trouble());
        }
        assert!(client.set_one(&key(2), &memory), "usable afterwards");
        assert_eq!(trouble(), "");
        // With the sync of that the place is free again, whose record could have come back until then.
        client.assert_consistent();
        let stats = client.connector.stats();
        assert_eq!((stats.keys, stats.allocated_bytes), (2, 16_384));
        client.connector.close();
        let client = Client::open(directory.path(), 256 * MIB);
        assert_eq!(client.exists(&[key(0), key(1), key(2)]), [true, false, true]);
    }
}

/// Also if it is said to have been cancelled: that is no success, unless the store is closing.
#[test]
fn a_sync_that_somebody_cancelled_acknowledges_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut has_failed = false;
    let client = persistent(directory.path(), 0, move |_, action, _| {
        match action == Action::Sync && !std::mem::replace(&mut has_failed, true) {
            true => Fault::Errno(libc::ECANCELED),
            false => Fault::None,
        }
    });
    let memory = Memory::patterned(8192, 0, 1);
    assert!(!client.set_one(&key(1), &memory));
    assert_eq!(client.counter("sync_errors"), 1);
    assert!(client.set_one(&key(2), &memory));
}

/// A replaced chunk is there until its successor is durable.
#[test]
fn the_older_record_outlives_the_barrier_of_the_younger() {
    let directory = tempfile::tempdir().unwrap();
    let index = directory.path().join("index.kvring");
    let states: Arc<Mutex<Vec<usize>>> = Arc::default();
    let client = persistent(directory.path(), 0, {
        let (states, index) = (Arc::clone(&states), index.clone());
        move |_, action, _| {
            if action == Action::Sync {
                let bytes = std::fs::read(&index).unwrap();
                let records = bytes.get(4096..).unwrap_or_default().chunks(256);
                states.lock().unwrap().push(records.filter(|record| record[12] == 1).count());
            }
            Fault::None
        }
    });
    assert!(client.set_one("k", &Memory::patterned(4096, 0, 1)));
    assert!(client.set_one("k", &Memory::patterned(4096, 0, 2)));
    assert_eq!(*states.lock().unwrap(), [0, 1, 1, 2, 1], "records at each barrier");
    assert_eq!(client.get_one("k", 4096).unwrap(), pattern(4096, 2));
    assert_eq!(client.connector.stats().keys, 1);
}

/// A DELETE that is answered while the record of the SET before it waits for its barrier holds after a kill too.
#[test]
fn a_delete_reaches_a_record_that_waits_for_its_barrier() {
    let directory = tempfile::tempdir().unwrap();
    let index = directory.path().join("index.kvring");
    let (reached, is_reached) = std::sync::mpsc::channel();
    let (go, may_go) = std::sync::mpsc::channel::<()>();
    let mut syncs = 0;
    let client = persistent(directory.path(), 0, move |_, action, _| {
        syncs += u64::from(action == Action::Sync);
        if action == Action::Sync && syncs == 2 {
            reached.send(()).unwrap();
            may_go.recv().unwrap();
        }
        Fault::None
    });
    let records = || {
        let bytes = std::fs::read(&index).unwrap();
        bytes[4096..].chunks(256).filter(|record| record[12] == 1).count()
    };
    let memory = Memory::patterned(4096, 0, 1);
    let id = client.submit_set(&[key(1)], &[&memory]);
    is_reached.recv().unwrap();
    assert_eq!(records(), 1);
    assert_eq!(client.delete(&[key(1)]), [true]);
    assert_eq!(records(), 0, "a kill now would bring it back");
    go.send(()).unwrap();
    assert!(client.wait(id).ok);
    assert_eq!(client.exists(&[key(1)]), [false]);
    client.assert_consistent();
    assert_eq!(
        (client.connector.stats().records, client.connector.stats().allocated_bytes),
        (0, 0)
    );
}

/// Failed writes are tried again up to the limit, then the SET fails and says so. Each try is two attempts.
#[test]
fn writes_are_retried_with_a_limit() {
    for (max_retries, failures, stored) in
        [(3, 1, true), (3, 6, true), (3, 7, true), (3, 8, false), (0, 1, true), (0, 2, false)]
    {
        let directory = tempfile::tempdir().unwrap();
        let mut left = failures;
        let client = persistent(directory.path(), max_retries, move |_, action, _| {
            if action == Action::Write && left > 0 {
                left -= 1;
                return Fault::Errno(libc::EIO);
            }
            Fault::None
        });
        let memory = Memory::patterned(100_001, 0, 1);
        assert_eq!(client.set_one("k", &memory), stored, "{failures} failures");
        assert_eq!(client.get_one("k", 100_001).is_some(), stored);
        assert_eq!(client.counter("write_retries"), u64::from(max_retries.min(failures / 2)));
        assert_eq!(client.counter("write_errors"), u64::from(!stored));
    }
}

/// In `best_effort` there are neither barriers nor retries.
#[test]
fn best_effort_does_not_sync() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), 256 * MIB);
    assert!(client.set_one("k", &Memory::patterned(4096, 0, 1)));
    assert_eq!((client.counter("syncs"), client.counter("write_retries")), (0, 0));
}

/// close() while SETs wait for their barrier: each is either stored or failed, and what was answered is there.
#[test]
fn close_in_the_middle_of_groups() {
    let directory = tempfile::tempdir().unwrap();
    let client = persistent(directory.path(), 0, |_, _, _| Fault::None);
    let memory = Memory::patterned(4096, 0, 1);
    for batch in 0..20 {
        let keys: Vec<String> = (batch * 50..batch * 50 + 50).map(key).collect();
        client.submit_set(&keys, &[&memory; 50]);
    }
    client.close_after(Duration::from_secs(60));
    assert_eq!(client.connector.stats().in_flight, 0);
    let client = Client::open(directory.path(), 256 * MIB);
    assert_eq!(client.connector.recovery().kept, 1000, "there was time enough for all of them");
}

/// A sync that a reactor gives up as it stops has dropped nothing: a SET of another reactor does not fail for it. What close()
/// says that it dropped is what is missing.
#[test]
fn a_sync_given_up_by_close_fails_no_other_reactor() {
    if !has_data_files("each chunk has syncs of its own, in another order") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path(), 256 * MIB);
    (config.durability, config.io_threads) = (Durability::Persistent, Some(2));
    let (reactors, living) =
        (Arc::new(AtomicUsize::new(0)), Arc::<Mutex<Vec<Weak<()>>>>::default());
    let (has_synced, is_stuck) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let cancels = Arc::<Mutex<Vec<Arc<AtomicBool>>>>::default();
    let make_engine = {
        let (has_synced, is_stuck) = (Arc::clone(&has_synced), Arc::clone(&is_stuck));
        let cancels = Arc::clone(&cancels);
        move |queue_depth, waker| {
            let (reactors, stuck) = (Arc::clone(&reactors), Arc::clone(&is_stuck));
            let awaits_other = Arc::<AtomicBool>::default();
            let (mut syncs, mut role) = (0, None);
            let script = {
                let awaits_other = Arc::clone(&awaits_other);
                move |_, action, _| {
                    if action == Action::Sync {
                        syncs += 1;
                        match *role.get_or_insert_with(|| reactors.fetch_add(1, Ordering::SeqCst)) {
                            0 if syncs == 2 => awaits_other.store(true, Ordering::SeqCst),
                            // The other one's sync of its data does not come back.
                            1 => stuck.store(true, Ordering::SeqCst),
                            _ => {}
                        }
                    }
                    Fault::None
                }
            };
            // It goes with the engine.
            let life = Arc::new(());
            living.lock().unwrap().push(Arc::downgrade(&life));
            // The first reactor learns that its record is synced only after the other one has stopped.
            let (living, has_synced) = (Arc::clone(&living), Arc::clone(&has_synced));
            let reaping = move |reaped: &[Reaped]| {
                let _ = &life;
                if !reaped.is_empty() && awaits_other.swap(false, Ordering::SeqCst) {
                    has_synced.store(true, Ordering::SeqCst);
                    let left =
                        || living.lock().unwrap().iter().map(Weak::strong_count).sum::<usize>();
                    eventually("the end of the other reactor", || left() == 1);
                }
            };
            let cancel = Arc::<AtomicBool>::default();
            cancels.lock().unwrap().push(Arc::clone(&cancel));
            let stuck = Arc::clone(&is_stuck);
            let engine = FaultEngine::new(queue_depth, waker, Box::new(script), stuck)?;
            Ok(engine.telling_of_cancel(cancel).watched(Box::new(reaping)))
        }
    };
    let client = Client::over(config, make_engine);
    let memory = Memory::patterned(4096, 0, 1);
    client.submit_set(&[key(1)], &[&memory]);
    eventually("the first reactor", || has_synced.load(Ordering::SeqCst));
    // The first of these is to wake the one that stands still, and the next one the other.
    _ = [2, 3].map(|number| client.submit_set(&[key(number)], &[&memory]));
    eventually("the other reactor", || is_stuck.load(Ordering::SeqCst));
    let shutdown = std::thread::scope(|scope| {
        let closing = scope.spawn(|| client.close_after(Duration::ZERO));
        let is_cancelled = || cancels.lock().unwrap().iter().any(|one| one.load(Ordering::SeqCst));
        eventually("the cancel", is_cancelled);
        is_stuck.store(false, Ordering::SeqCst);
        closing.join().unwrap()
    });
    assert_eq!(client.counter("sync_errors"), 0);
    let kept = Client::open(directory.path(), 256 * MIB).connector.recovery().kept;
    assert_eq!((shutdown.clean, shutdown.abandoned, kept), (true, 2, 1));
}
