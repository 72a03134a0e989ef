//! A path fails while this process has no descriptor to spare: only the path that failed goes out of use, once that can be noted.
//!
//! The limit is that of the whole process: a program of its own, with one test.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

#[path = "../../common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::faults::{Fault, FaultEngine, Script};
use common::{Client, MIB, Memory, config_of, eventually, key, logged};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const LENGTH: usize = 5000;

#[test]
fn only_a_path_s_own_errors_take_it_out() {
    logged::keep();
    let root = tempfile::tempdir().unwrap();
    let paths = [root.path().join("disk0"), root.path().join("disk1")];
    let fails = Arc::new(AtomicBool::new(false));
    let (is_failing, engines) = (Arc::clone(&fails), AtomicU64::new(0));
    let make_engine = move |queue_depth, waker| {
        let is_second = engines.fetch_add(1, Ordering::SeqCst) == 1;
        let fails = Arc::clone(&is_failing);
        let script: Script = Box::new(move |_, _, _| match fails.load(Ordering::SeqCst) {
            true if is_second => Fault::Errno(libc::ENODEV),
            _ => Fault::None,
        });
        FaultEngine::new(queue_depth, waker, script, Arc::default())
    };
    let mut config = config_of(&paths, 64 * MIB);
    config.io_threads = Some(1);
    let client = Client::over(config, make_engine);
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
