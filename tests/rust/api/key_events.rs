//! Which keys come and go, as it is told to whoever keeps books of a store.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::faults::{Fault, failing, scripted_on};
use crate::common::random::Random;
use crate::common::{Client, MIB, Memory, config, config_of, eventually, key, new_paths};
use kvring::{Connector, KeyChange, KeyEvent};

/// Books of a store by what is told of it.
#[derive(Default)]
struct Books {
    lengths_bytes: HashMap<String, u64>,
}

impl Books {
    fn note(&mut self, event: KeyEvent) {
        let KeyEvent { key, length_bytes, change } = event;
        match change {
            KeyChange::Stored => {
                let before = self.lengths_bytes.insert(key.clone(), length_bytes);
                assert_eq!(before, None, "{key} is told twice");
            }
            KeyChange::StoredAgain => assert_eq!(self.lengths_bytes.get(&key), Some(&length_bytes)),
            KeyChange::Gone => {
                let before = self.lengths_bytes.remove(&key);
                assert_eq!(before, Some(length_bytes), "{key} goes, and was not told");
            }
        }
    }

    /// Takes a page of either, as somebody does who is slow.
    fn follow(&mut self, connector: &Connector, limit: usize) -> usize {
        let stored = connector.take_stored_keys(limit).unwrap();
        let events = connector.take_key_events(limit).unwrap();
        let count = stored.len() + events.len();
        stored.into_iter().chain(events).for_each(|event| self.note(event));
        count
    }

    fn catch_up(&mut self, connector: &Connector) {
        while self.follow(connector, 1000) > 0 {}
    }

    fn keys(&self) -> BTreeSet<&str> {
        self.lengths_bytes.keys().map(String::as_str).collect()
    }
}

fn listed(connector: &Connector) -> BTreeSet<(String, u64)> {
    let (mut all, mut cursor) = (BTreeSet::new(), Some(0));
    while let Some(from) = cursor {
        let (keys, next) = connector.stored_keys(None, from, 7).unwrap();
        assert!(keys.len() <= 7 && (next.is_none() || keys.len() == 7));
        let count = all.len() + keys.len();
        all.extend(keys);
        assert_eq!(all.len(), count, "a key is listed twice");
        cursor = next;
    }
    all
}

/// Whatever happens, and however late somebody looks: what was told is what is stored.
#[test]
fn books_that_follow_are_those_of_the_store() {
    for seed in 0..4 {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path(), 16 * MIB);
        config.ttl = Some(Duration::from_secs(3600));
        config.lease_s = 0;
        let client = Client::with(config);
        let memory: Vec<Memory> =
            (1..4).map(|size| Memory::patterned(size * 40_000, 0, size as u64)).collect();
        let mut random = Random::new(seed);
        let numbers: Vec<u64> = (0..300).collect();
        let work = |random: &mut Random| {
            let keys: Vec<String> = (0..8).map(|_| key(random.choose(&numbers))).collect();
            match random.below(10) {
                0..6 => {
                    let memory: Vec<&Memory> =
                        keys.iter().map(|_| &memory[random.below(3) as usize]).collect();
                    client.set(&keys, &memory);
                }
                6..8 => drop(client.delete(&keys)),
                8 => drop(client.connector.delete(&keys).unwrap()),
                _ => drop(client.connector.touch(&keys).unwrap()),
            }
        };
        (0..100).for_each(|_| work(&mut random));
        let mut books = Books::default();
        assert!(client.connector.watch_keys().unwrap() > 0);
        for _ in 0..200 {
            work(&mut random);
            if random.below(3) == 0 {
                books.follow(&client.connector, 5);
            }
        }
        assert!(client.counter("evicted") > 0);
        client.connector.purge("test/model").unwrap();
        (0..20).for_each(|_| work(&mut random));
        client.assert_consistent();
        books.catch_up(&client.connector);
        let told: BTreeSet<_> = books.lengths_bytes.into_iter().collect();
        assert_eq!(told, listed(&client.connector), "seed {seed}");
        assert!(!told.is_empty());
    }
}

#[test]
fn what_a_store_had_is_told_by_its_last_use() {
    let directory = tempfile::tempdir().unwrap();
    let memory = Memory::patterned(5000, 0, 1);
    let open = || Client::with(config(directory.path(), 16 * MIB));
    let client = open();
    let keys: Vec<String> = (0..50).map(key).collect();
    for key in &keys {
        assert!(client.set_one(key, &memory));
        std::thread::sleep(Duration::from_millis(2));
    }
    let used = &keys[7..10];
    assert_eq!(client.connector.touch(used).unwrap(), [true; 3]);
    assert_eq!(client.connector.touch(&["other".to_owned()]).unwrap(), [false]);
    assert!(client.connector.close().clean);
    let client = open();
    assert_eq!(client.connector.watch_keys().unwrap(), 50);
    // Before they are told: one goes, one is replaced.
    client.delete(&keys[..1]);
    assert!(client.set_one(&keys[1], &Memory::patterned(6000, 0, 2)));
    let mut told = Vec::new();
    loop {
        let page = client.connector.take_stored_keys(9).unwrap();
        if page.is_empty() {
            break;
        }
        assert!(page.iter().all(|event| event.change == KeyChange::Stored));
        told.extend(page.into_iter().map(|event| event.key));
    }
    let unused = keys[2..7].iter().chain(&keys[10..]);
    let (rest, last) = told.split_at(45);
    assert_eq!(rest, unused.cloned().collect::<Vec<_>>());
    assert_eq!(last.iter().collect::<BTreeSet<_>>(), used.iter().collect::<BTreeSet<_>>());
    let events = client.connector.take_key_events(100).unwrap();
    let stored = KeyEvent { key: keys[1].clone(), length_bytes: 6000, change: KeyChange::Stored };
    assert_eq!(events, [stored], "one that goes before it was told is never told");
}

#[test]
fn a_path_that_fails_takes_its_keys_along() {
    let (_root, paths) = new_paths(2);
    let fails = Arc::new(AtomicBool::new(false));
    let engines = scripted_on(1, failing(Fault::Errno(libc::ENODEV), &fails));
    let client = Client::over(config_of(&paths, 64 * MIB), engines);
    let memory = Memory::patterned(5000, 0, 1);
    let keys: Vec<String> = (0..100).map(key).collect();
    assert!(client.set(&keys, &[&memory; 100]).ok);
    let mut books = Books::default();
    client.connector.watch_keys().unwrap();
    books.follow(&client.connector, 60);
    fails.store(true, Ordering::SeqCst);
    eventually("the path to go", || {
        let memory: Vec<Memory> = keys.iter().map(|_| Memory::new(5000, 0)).collect();
        client.get(&keys, &memory);
        client.connector.stats().paths.iter().any(|path| !path.in_use)
    });
    books.catch_up(&client.connector);
    let left = listed(&client.connector);
    assert_eq!(
        books
            .lengths_bytes
            .iter()
            .map(|(key, bytes)| (key.clone(), *bytes))
            .collect::<BTreeSet<_>>(),
        left
    );
    assert!((20..80).contains(&left.len()), "{}", left.len());
    assert!(client.set(&keys, &[&memory; 100]).ok);
    books.catch_up(&client.connector);
    assert_eq!(books.keys(), keys.iter().map(String::as_str).collect());
}

/// Whoever evicts on its own account counts it as a use.
#[test]
fn what_comes_again_is_told_again() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), 16 * MIB);
    let memory = Memory::patterned(5000, 0, 1);
    let told = || client.connector.take_key_events(100).unwrap();
    assert!(client.set_one(&key(1), &memory));
    client.connector.watch_keys().unwrap();
    assert!(client.set_one(&key(1), &memory));
    assert_eq!(told(), [], "it is not told yet");
    assert_eq!(client.connector.take_stored_keys(100).unwrap().len(), 1);
    assert!(client.set_one(&key(1), &memory));
    assert_eq!(
        told(),
        [KeyEvent { key: key(1), length_bytes: 5000, change: KeyChange::StoredAgain }]
    );
}

#[test]
fn keys_of_a_model_are_listed_apart() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), 16 * MIB);
    let memory = Memory::patterned(5000, 0, 1);
    let key = |model: &str, number: u64| format!("{model}@00000001@0@{number:064x}");
    let keys: Vec<String> =
        (0..60).map(|number| key(if number % 3 == 0 { "one" } else { "two" }, number)).collect();
    assert!(client.set(&keys, &[&memory; 60]).ok);
    let (of_one, rest) = client.connector.stored_keys(Some("one"), 0, 20).unwrap();
    assert!(of_one.iter().all(|(key, length)| key.starts_with("one@") && *length == 5000));
    assert_eq!((of_one.len(), rest), (20, None));
    assert_eq!(client.connector.stored_keys(Some("three"), 0, 20).unwrap(), (Vec::new(), None));
    assert_eq!(listed(&client.connector).len(), 60);
}
