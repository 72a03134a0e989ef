//! The flush thread of `best_effort`: what it syncs, in which order, and when.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Client, MIB, Memory, config, eventually, key, layout, logged, path_of};
use kvring::testing::{FileOperations, SystemFiles};
use kvring::{Durability, Layout};

const INDEX: &str = "index.kvring";
const PERIOD: Duration = Duration::from_millis(5);

/// Notes the names of what is synced, in order. The syncs fail if they are to.
#[derive(Debug, Default)]
struct Syncs {
    names: Mutex<Vec<String>>,
    fail: AtomicBool,
}

impl Syncs {
    fn note(&self, file: &File, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let name = path_of(file).file_name().unwrap().to_str().unwrap().to_owned();
        self.names.lock().unwrap().push(name);
        match self.fail.load(Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => sync(),
        }
    }

    fn of(&self, name: &str) -> usize {
        self.names.lock().unwrap().iter().filter(|other| *other == name).count()
    }

    fn open(self: &Arc<Self>, directory: &Path, durability: Durability) -> Client {
        let mut config = config(directory, 64 * MIB);
        (config.durability, config.tuning.flush_period) = (durability, PERIOD);
        config.files = Arc::<Self>::clone(self);
        Client::with(config)
    }
}

impl FileOperations for Syncs {
    fn sync_data(&self, file: &File) -> io::Result<()> {
        self.note(file, || SystemFiles.sync_data(file))
    }

    fn sync_file_system(&self, directory: &File) -> io::Result<()> {
        self.note(directory, || Ok(()))
    }
}

/// Returns when nothing has to be flushed any more.
fn until_idle(syncs: &Syncs) {
    let mut before = usize::MAX;
    eventually("the last flush", || {
        std::thread::sleep(PERIOD * 10);
        let now = syncs.names.lock().unwrap().len();
        std::mem::replace(&mut before, now) == now
    });
}

/// The data goes first, and of it what was written to. A store in which nothing changes syncs nothing, however often it is read.
#[test]
fn what_has_changed_is_synced_once_the_data_first() {
    let (directory, syncs) = (tempfile::tempdir().unwrap(), Arc::<Syncs>::default());
    let client = syncs.open(directory.path(), Durability::BestEffort);
    until_idle(&syncs);
    syncs.names.lock().unwrap().clear();
    assert!(client.set_one(&key(1), &Memory::patterned(8192, 0, 1)));
    eventually("a flush", || syncs.of(INDEX) > 0);
    let data = if layout() == Layout::Files { "00" } else { "data-00000.kvring" };
    let names = syncs.names.lock().unwrap().clone();
    assert_eq!(names.iter().position(|name| name == data), Some(0), "{names:?}");
    until_idle(&syncs);
    let before = syncs.names.lock().unwrap().len();
    for _ in 0..100 {
        assert!(client.get_one(&key(1), 8192).is_some());
    }
    assert_eq!(client.exists(&[key(1), key(2)]), [true, false]);
    until_idle(&syncs);
    assert_eq!(syncs.names.lock().unwrap().len(), before);
    // A DELETE changes no data.
    let (of_data, of_index) = (syncs.of(data), syncs.of(INDEX));
    assert_eq!(client.delete(&[key(1)]), [true]);
    eventually("a flush", || syncs.of(INDEX) > of_index);
    assert_eq!(syncs.of(data), of_data);
}

/// In `persistent` what is answered is durable already.
#[test]
fn persistent_is_not_flushed() {
    let (directory, syncs) = (tempfile::tempdir().unwrap(), Arc::<Syncs>::default());
    let client = syncs.open(directory.path(), Durability::Persistent);
    let before = syncs.of(INDEX);
    assert!(client.set_one(&key(1), &Memory::patterned(8192, 0, 1)));
    std::thread::sleep(PERIOD * 10);
    assert_eq!(syncs.of(INDEX), before);
}

/// An index or data that cannot be made durable is told and counted. What is stored can be loaded, and the path stays in use,
/// however often that fails. It is remembered when the store is closed.
#[test]
fn failed_flushes_are_told_and_take_nothing() {
    logged::keep();
    let (directory, syncs) = (tempfile::tempdir().unwrap(), Arc::<Syncs>::default());
    let client = syncs.open(directory.path(), Durability::BestEffort);
    until_idle(&syncs);
    syncs.fail.store(true, Ordering::SeqCst);
    let memory = Memory::patterned(8192, 0, 1);
    assert!(client.set_one(&key(1), &memory));
    // More than make a path fail whose SETs wait for syncs.
    eventually("failed flushes", || client.counter("sync_errors") > 200);
    let trouble = || client.connector.stats().paths[0].trouble.clone();
    assert!(trouble().contains("syncs in a row failed"), "{}", trouble());
    let told = logged::lines(directory.path(), "power loss may take it");
    assert!((1..=16).contains(&told.len()), "{told:?}");
    assert!(client.get_one(&key(1), 8192).is_some() && client.set_one(&key(2), &memory));
    syncs.fail.store(false, Ordering::SeqCst);
    eventually("a flush", || trouble().is_empty());
    until_idle(&syncs);
    assert!(!client.connector.close().clean);
    assert_eq!(logged::lines(directory.path(), "a flush had failed").len(), 1);
}
