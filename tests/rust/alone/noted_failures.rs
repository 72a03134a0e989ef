//! A path fails while this process has no descriptor to spare: only the path that failed goes out of use, once that can be noted.
//!
//! The limit is that of the whole process: a program of its own, with one test.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

#[path = "../../common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::faults::{Fault, failing, scripted_on};
use common::{Client, MIB, Memory, config_of, eventually, key, logged};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const LENGTH: usize = 5000;

#[test]
fn only_a_path_s_own_errors_take_it_out() {
    logged::keep();
    let root = tempfile::tempdir().unwrap();
    let paths = [root.path().join("disk0"), root.path().join("disk1")];
    let fails = Arc::new(AtomicBool::new(false));
    let engines = scripted_on(1, failing(Fault::Errno(libc::ENODEV), &fails));
    let client = Client::over(config_of(&paths, 64 * MIB), engines);
    let memory = Memory::patterned(LENGTH, 0, 1);
    let store = |numbers: std::ops::Range<u64>| {
        numbers.filter(|number| client.set_one(&key(*number), &memory)).count()
    };
    assert_eq!(store(0..40), 40);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 3, hard).unwrap();
    fails.store(true, Ordering::SeqCst);
    let refused = 40 - store(40..80);
    let lines = || logged::lines(&paths[0], "cannot note that another path has failed");
    eventually("the note", || !lines().is_empty());
    let state = || {
        let paths = client.connector.stats().paths;
        [0, 1].map(|number: usize| (paths[number].in_use, paths[number].trouble.is_empty()))
    };
    let while_refused = state();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    assert_eq!(while_refused, [(true, true), (true, false)]);
    assert!(refused > 0);
    eventually("the path that failed is out", || !client.connector.stats().paths[1].in_use);
    assert_eq!(state()[0], (true, true));
    assert_eq!(lines().len(), 1);
    assert_eq!(store(80..120), 40);
    client.assert_consistent();
}
