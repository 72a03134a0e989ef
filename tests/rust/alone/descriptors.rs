//! An open, or a close, that finds no descriptor to spare: it says so, and leaves none behind.
//!
//! The limit is that of the whole process: a program of its own, with one test.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

#[path = "../../common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use common::{Client, MIB, Memory, config, config_of};
use kvring::{Config, Connector, EngineChoice, Layout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const CAPACITY: u64 = 64 * MIB;
/// More than an open of two paths needs.
const MOST_DESCRIPTORS: usize = 200;

/// What this process has open.
fn open_files() -> BTreeSet<String> {
    let describe = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        Some(format!("{} {}", entry.file_name().display(), target.display()))
    };
    let all = fs::read_dir("/proc/self/fd").unwrap().map(Result::unwrap);
    // Not the list itself, which is closed by now.
    all.filter_map(describe).filter(|file| !file.contains("/proc/")).collect()
}

/// Calls `act` while this process may open `spare` descriptors more.
fn with_spare<T>(spare: usize, act: impl FnOnce() -> T) -> T {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // Numbers are given out from the lowest free one on.
    let numbers: BTreeSet<usize> =
        open_files().iter().map(|file| file.split_once(' ').unwrap().0.parse().unwrap()).collect();
    let limit = (0..).filter(|number| !numbers.contains(number)).nth(spare).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, limit as u64, hard).unwrap();
    let outcome = act();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    outcome
}

/// Opens with one descriptor more each time, until it works. Returns how often it did not.
fn refused_opens(config: &Config) -> usize {
    let before = open_files();
    for spare in 0..MOST_DESCRIPTORS {
        let opened = with_spare(spare, || Connector::open(config.clone()));
        match opened {
            Ok(connector) => {
                drop(connector);
                assert_eq!(open_files(), before, "after one that worked");
                return spare;
            }
            Err(error) => assert!(error.to_string().contains("Too many open files"), "{error}"),
        }
        assert_eq!(open_files(), before, "{spare} descriptors to spare");
    }
    panic!("it needs more than {MOST_DESCRIPTORS} descriptors");
}

fn extents(path: &Path, engine: EngineChoice) -> Config {
    Config { layout: Layout::Extents, engine, ..config(path, CAPACITY) }
}

#[test]
fn an_open_that_gets_no_descriptor_leaves_none_behind() {
    // What the process keeps from its first open on.
    let directory = tempfile::tempdir().unwrap();
    drop(Connector::open(extents(directory.path(), EngineChoice::Auto)).unwrap());
    for engine in [EngineChoice::Auto, EngineChoice::Posix] {
        let parent = tempfile::tempdir().unwrap();
        assert!(refused_opens(&extents(&parent.path().join("store"), engine)) > 4);
        let paths = ["a", "b"].map(|name| parent.path().join(name));
        let several = Config { layout: Layout::Extents, engine, ..config_of(&paths, CAPACITY) };
        assert!(refused_opens(&several) > 8);
    }

    // A store that gets none for its next data file keeps within those it has, and grows once it gets one.
    let parent = tempfile::tempdir().unwrap();
    let grown =
        Config { layout: Layout::Extents, ..config(&parent.path().join("store"), 256 * MIB) };
    let client = Client::with(grown);
    let chunk = Memory::patterned(MIB as usize, 0, 1);
    let keys: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    let store_all = || keys.iter().for_each(|key| assert!(client.set_one(key, &chunk), "{key}"));
    let are_held = || {
        let held = keys.iter().filter_map(|key| client.get_one(key, MIB as usize));
        held.inspect(|bytes| assert!(bytes == chunk.bytes())).count()
    };
    with_spare(0, store_all);
    assert!((20..100).contains(&are_held()), "{}", are_held());
    common::eventually("all are held", || (store_all(), are_held() == keys.len()).1);
    drop(client);

    // A close has none either: all that it has it gives back.
    let before = open_files();
    let client = Client::with(extents(directory.path(), EngineChoice::Auto));
    assert!(client.set_one("key", &Memory::patterned(5000, 0, 1)));
    let (clean, ()) = with_spare(0, || (client.connector.close().clean, drop(client)));
    assert!(clean);
    assert_eq!(open_files(), before);
    let client = Client::with(extents(directory.path(), EngineChoice::Auto));
    assert!(client.get_one("key", 5000).is_some());
}
