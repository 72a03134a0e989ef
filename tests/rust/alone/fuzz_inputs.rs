//! Inputs of the fuzz targets that were worth keeping, among them those that found something: each is run as there.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]
#![allow(
    unreachable_pub,
    reason = "the modules are those of the fuzz targets, which are a library"
)]

#[path = "../../common/mod.rs"]
mod common;
#[path = "../../../fuzz/src/forged.rs"]
mod forged;
#[path = "../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../fuzz/src/keys_and_options.rs"]
mod keys_and_options;
#[allow(dead_code, reason = "the device is the test's, which takes it away")]
#[path = "../../../fuzz/src/open_device.rs"]
mod open_device;
#[path = "../../../fuzz/src/open_index.rs"]
mod open_index;
#[path = "../../../fuzz/src/operations.rs"]
mod operations;
#[path = "../../../fuzz/src/sparse_files.rs"]
mod sparse_files;
#[path = "../../../fuzz/src/used_store.rs"]
mod used_store;

use std::path::Path;
use std::sync::Mutex;

/// Of all threads: those of a store catch theirs.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn run_all(target: &str, run: impl Fn(&[u8])) {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        PANICS.lock().unwrap().push(panic.to_string());
    }));
    let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut paths: Vec<_> =
        std::fs::read_dir(inputs).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        eprintln!("{}", path.display());
        run(&std::fs::read(path).unwrap());
        // Not locked while this panics itself.
        let panics = std::mem::take(&mut *PANICS.lock().unwrap());
        assert_eq!(panics, Vec::<String>::new());
    }
}

#[test]
fn open_index() {
    run_all("open_index", open_index::run);
}

#[test]
fn open_device() {
    let Some(device) = open_device::Device::new() else { return };
    run_all("open_device", |input| device.run(input));
}

#[test]
fn keys_and_options() {
    run_all("keys_and_options", keys_and_options::run);
}

#[test]
fn operations() {
    run_all("operations", operations::run);
}
