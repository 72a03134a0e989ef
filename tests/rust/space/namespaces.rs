//! Namespaces: what a purge takes, and what a quota leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::faults::{Fault, scripted_and_stuck};
use crate::common::{Client, MIB, Memory, config, keys};
use kvring::KeyState;

fn of(model: &str, number: u64) -> String {
    format!("{model}@00000000@0@{number:x}")
}

/// A purge leaves nothing of a namespace, neither what is held nor what is on its way, and nothing else is touched.
#[test]
fn a_purge_reaches_what_is_being_written() {
    let directory = tempfile::tempdir().unwrap();
    let stuck = Arc::new(AtomicBool::new(false));
    let engine = scripted_and_stuck(Arc::clone(&stuck), |_, _, _| Fault::None);
    let client = Client::over(config(directory.path(), 32 * MIB), engine);
    let memory = Memory::patterned(5000, 0, 1);
    let names = |model: &str, numbers: std::ops::Range<u64>| -> Vec<String> {
        numbers.map(|number| of(model, number)).collect()
    };
    assert!(client.set(&names("a", 0..20), &[&memory; 20]).ok);
    assert!(client.set(&names("b", 0..20), &[&memory; 20]).ok);
    assert_eq!(client.connector.pin(&names("a", 3..4)).unwrap(), [true]);
    stuck.store(true, Ordering::SeqCst);
    // One new key, and one that is replaced.
    let other = Memory::patterned(5000, 0, 2);
    let set = client.submit_set(&names("a", 19..21), &[&other; 2]);
    let usage = client.connector.usage().unwrap();
    let (name, of_a) = &usage[0];
    assert_eq!((name.as_str(), of_a.keys, of_a.writing_keys), ("a", 20, 2));
    assert_eq!(of_a.allocated_bytes, 20 * 8192);
    let (listed, next) = client.connector.keys("a", 0, usize::MAX).unwrap();
    let writing = listed.iter().filter(|(_, state)| *state == KeyState::Writing).count();
    assert_eq!((listed.len(), writing, next), (21, 2, None));

    let purged = client.connector.purge("a").unwrap();
    assert_eq!((purged.keys, purged.bytes, purged.pinned), (19, 19 * 5000, names("a", 3..4)));
    stuck.store(false, Ordering::SeqCst);
    assert!(client.set_one("wakes the reactor", &memory));
    assert!(client.wait(set).ok, "it was stored, and went at once");
    assert_eq!(client.exists(&names("a", 0..21)).iter().filter(|held| **held).count(), 1);
    assert_eq!(client.exists(&names("b", 0..20)), [true; 20]);
    client.connector.unpin(&names("a", 3..4)).unwrap();
    client.connector.purge("a").unwrap();
    assert!(client.connector.usage().unwrap().iter().all(|(name, _)| name != "a"));
    client.assert_consistent();
}

/// A namespace past its quota makes room among its own chunks; the others do not notice.
#[test]
fn a_quota_holds_and_is_all_used() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path(), 64 * MIB);
    config.quotas = vec![("tenant@a".into(), 8 * MIB), ("small".into(), MIB)];
    config.lease_s = 0;
    let client = Client::with(config.clone());
    let memory = Memory::patterned(MIB as usize / 2, 0, 1);
    let of_tenant = |number: u64| format!("tenant@00000000@0@{number:x}@a");
    assert!(client.set(&keys(0..40), &[&memory; 40]).ok);
    for number in 0..100 {
        assert!(client.set_one(&of_tenant(number), &memory));
        if number >= 10 {
            assert!(client.get_one(&of_tenant(0), MIB as usize / 2).is_some(), "it is in use");
        }
    }
    let held: Vec<String> = (0..100).map(of_tenant).collect();
    let held: Vec<bool> = client.exists(&held);
    assert!(held[0] && held[85..].iter().all(|held| *held), "{held:?}");
    assert_eq!(held.iter().filter(|held| **held).count(), 16);
    assert_eq!(client.exists(&keys(0..40)), [true; 40]);
    // What cannot fit says so, and nothing goes for it.
    let completion = client.set(&[of("small", 0)], &[&Memory::patterned(2 * MIB as usize, 0, 1)]);
    assert!(!completion.ok);
    assert!(completion.error.contains("'small'") && completion.error.contains("1048576"));
    let usage = client.connector.usage().unwrap();
    let of_a = &usage.iter().find(|(name, _)| name == "tenant@a").unwrap().1;
    assert_eq!((of_a.quota_bytes, of_a.allocated_bytes), (Some(8 * MIB), 8 * MIB));
    client.assert_consistent();
    client.connector.close();
    // A smaller one holds from the next SET on.
    config.quotas[0].1 = 2 * MIB;
    let client = Client::with(config);
    assert!(client.set_one(&of_tenant(200), &memory));
    let usage = client.connector.usage().unwrap();
    let of_a = &usage.iter().find(|(name, _)| name == "tenant@a").unwrap().1;
    assert_eq!(of_a.allocated_bytes, 2 * MIB);
}
