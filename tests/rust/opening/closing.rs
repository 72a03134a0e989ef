//! close() on a device or a file system that does not answer: it returns in time, says what it leaves, and its threads go on with that.
//!
//! Nothing thaws before close() has returned.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::faults::{Fault, FaultEngine, scripted_and_stuck};
use crate::common::{
    Client, HANG_TIMEOUT, MIB, Memory, config, config_of, eventually, key, keys, logged, path_of,
};
use kvring::testing::{FileOperations, SystemFiles};
use kvring::{Config, Connector, Durability, EngineError, OpenError, Shutdown};

const CAPACITY: u64 = 256 * MIB;
const LENGTH: usize = 10_000;

/// A file system that can be frozen, below a directory: what would change it waits.
#[derive(Debug, Default)]
struct Freezing {
    directory: PathBuf,
    /// Calls that wait, and whether they are to.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Freezing {
    fn below(directory: &Path) -> Arc<Self> {
        Arc::new(Self { directory: directory.to_owned(), ..Self::default() })
    }

    fn freeze(&self, is_frozen: bool) {
        self.state.lock().unwrap().1 = is_frozen;
        self.changed.notify_all();
    }

    fn until_waited(&self) {
        eventually("something waits", || self.state.lock().unwrap().0 > 0);
    }

    fn pass(&self, file: &File) -> SystemFiles {
        if path_of(file).starts_with(&self.directory) {
            let mut state = self.state.lock().unwrap();
            state.0 += 1;
            state = self.changed.wait_while(state, |(_, is_frozen)| *is_frozen).unwrap();
            state.0 -= 1;
        }
        SystemFiles
    }
}

impl FileOperations for Freezing {
    fn preallocate(&self, file: &File, bytes: Range<u64>, flags: libc::c_int) -> io::Result<()> {
        self.pass(file).preallocate(file, bytes, flags)
    }

    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.pass(file).write_at(file, bytes, offset)
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        self.pass(file).sync_data(file)
    }

    fn sync_file_system(&self, directory: &File) -> io::Result<()> {
        self.pass(directory).sync_file_system(directory)
    }

    fn remove(&self, directory: &File, name: &CStr) -> io::Result<()> {
        self.pass(directory).remove(directory, name)
    }
}

fn open_on(mut config: Config, files: &Arc<Freezing>) -> Client {
    config.files = Arc::<Freezing>::clone(files);
    Client::with(config)
}

/// Closes it with no time at all. The device answers nothing before this returns.
fn closed_at_once(client: Client) -> (Client, Shutdown) {
    let (returned, returns) = mpsc::channel();
    thread::spawn(move || {
        let shutdown = client.connector.close_within(Duration::ZERO, Duration::ZERO);
        returned.send((client, shutdown)).unwrap();
    });
    let (client, shutdown) = returns.recv_timeout(HANG_TIMEOUT).expect("close() returns");
    assert!(shutdown.timed_out && !shutdown.clean, "{shutdown:?}");
    (client, shutdown)
}

/// It is refused for this process too, and that says why.
fn assert_still_locked(directory: &Path) {
    let refused = Connector::open(config(directory, CAPACITY)).map(drop).unwrap_err();
    let OpenError::InUse { holder, .. } = &refused else { panic!("{refused}") };
    assert!(holder.contains("this process") && holder.contains("has closed it"), "{refused}");
}

/// The store as the threads of its last owner leave it, once they have ended.
fn reopened(directory: &Path) -> Client {
    let mut again = None;
    eventually("its threads end", || {
        again = Connector::open(config(directory, CAPACITY)).ok();
        again.is_some()
    });
    Client::from(again.unwrap())
}

/// What is left is counted, what waits for the index fails, and all of it is done when the file system answers again.
#[test]
fn what_a_frozen_file_system_holds_up_is_left_to_its_threads() {
    for durability in [Durability::BestEffort, Durability::Persistent] {
        logged::keep();
        let directory = tempfile::tempdir().unwrap();
        let files = Freezing::below(directory.path());
        let client = open_on(Config { durability, ..config(directory.path(), CAPACITY) }, &files);
        let memory = Memory::patterned(LENGTH, 0, 1);
        assert!(client.set(&[key(1), key(2)], &[&memory; 2]).ok);
        files.freeze(true);
        client.connector.submit_delete(&[key(1)]).unwrap();
        files.until_waited();
        let (client, shutdown) = closed_at_once(client);
        assert!(shutdown.partial_flush && shutdown.abandoned >= 1, "{shutdown:?}");
        assert!(shutdown.not_durable >= 1, "{shutdown:?}");
        assert_eq!(client.connector.stats().in_flight, 0, "the DELETE has failed");
        assert_eq!(client.connector.close(), shutdown);
        let said = logged::lines(directory.path(), "its threads go on");
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(!said[0].contains("0 operations abandoned"), "{said:?}");
        assert_still_locked(directory.path());
        // What they use is not the connector's alone.
        drop(client);
        assert_still_locked(directory.path());
        files.freeze(false);
        let client = reopened(directory.path());
        assert!(client.connector.recovery().clean_shutdown, "{durability:?}");
        assert_eq!(client.exists(&[key(1), key(2)]), [false, true]);
        assert_eq!(client.get_one(&key(2), LENGTH).unwrap(), memory.bytes());
        client.assert_consistent();
    }
}

/// Memory that the device still has is the kernel's when close() returns, and is said to be.
#[test]
fn transfers_that_a_device_does_not_give_back_are_left_to_their_reactor() {
    let directory = tempfile::tempdir().unwrap();
    let stuck = Arc::new(AtomicBool::new(false));
    let config =
        Config { durability: Durability::Persistent, ..config(directory.path(), CAPACITY) };
    let engine = scripted_and_stuck(Arc::clone(&stuck), |_, _, _| Fault::None);
    let client = Client::over(config, engine);
    let [kept, late] = [1, 2].map(|seed| Memory::patterned(LENGTH, 0, seed));
    assert!(client.set_one(&key(1), &kept));
    stuck.store(true, Ordering::SeqCst);
    client.submit_set(&[key(2), key(3)], &[&late; 2]);
    let (client, shutdown) = closed_at_once(client);
    assert!(shutdown.memory_held && shutdown.partial_flush, "{shutdown:?}");
    assert_still_locked(directory.path());
    stuck.store(false, Ordering::SeqCst);
    drop(client);
    let client = reopened(directory.path());
    assert!(client.connector.recovery().clean_shutdown);
    assert_eq!(client.get_one(&key(1), LENGTH).unwrap(), kept.bytes());
    for number in [2, 3] {
        let stored = client.get_one(&key(number), LENGTH);
        assert!(stored.is_none_or(|bytes| bytes == late.bytes()), "never a part of it");
    }
    client.assert_consistent();
}

fn is_released(path: &Path) -> bool {
    File::open(path.join("index.kvring")).unwrap().try_lock_shared().is_ok()
}

/// An open that fails does not wait for a file system that has frozen meanwhile.
#[test]
fn an_open_that_fails_leaves_what_is_frozen_to_a_thread() {
    let root = tempfile::tempdir().unwrap();
    let paths = ["frozen", "refused"].map(|name| root.path().join(name));
    let files = Freezing::below(&paths[0]);
    let mut config = Config { io_threads: Some(1), ..config_of(&paths, 2 * CAPACITY) };
    config.files = Arc::<Freezing>::clone(&files);
    let (returned, returns) = mpsc::channel();
    let (freezing, mut number) = (Arc::clone(&files), 0);
    thread::spawn(move || {
        let make_engine = move |queue_depth, waker| {
            number += 1;
            freezing.freeze(number == 2);
            let operation = "being refused";
            match number {
                2 => Err(EngineError::Failed { operation, source: io::ErrorKind::Other.into() }),
                _ => FaultEngine::new(
                    queue_depth,
                    waker,
                    Box::new(|_, _, _| Fault::None),
                    Arc::default(),
                ),
            }
        };
        let opened = Connector::open_with_engine(config, make_engine);
        returned.send(opened.map(drop).unwrap_err().to_string()).unwrap();
    });
    let refusal = returns.recv_timeout(HANG_TIMEOUT).expect("open() returns");
    assert!(refusal.contains("being refused"), "{refusal}");
    assert!(!is_released(&paths[0]), "its threads may still write");
    files.freeze(false);
    eventually("it is released", || is_released(&paths[0]));
}

/// The same for one whose device has memory of its own transfers.
#[test]
fn a_path_does_not_wait_for_the_transfers_of_another() {
    let root = tempfile::tempdir().unwrap();
    logged::keep();
    let paths = ["stuck", "sound"].map(|name| root.path().join(name));
    let stuck = Arc::new(AtomicBool::new(false));
    let make_engine = {
        let (stuck, mut number) = (Arc::clone(&stuck), 0);
        move |queue_depth, waker| {
            number += 1;
            let stuck = if number == 1 { Arc::clone(&stuck) } else { Arc::default() };
            FaultEngine::new(queue_depth, waker, Box::new(|_, _, _| Fault::None), stuck)
        }
    };
    let config = Config { io_threads: Some(1), ..config_of(&paths, 2 * CAPACITY) };
    let client = Client::over(config, make_engine);
    let keys = keys(0..40);
    stuck.store(true, Ordering::SeqCst);
    client.submit_set(&keys, &[&Memory::patterned(LENGTH, 0, 1); 40]);
    eventually("the sound one has stored", || {
        client.exists(&keys).iter().filter(|held| **held).count() > 0
    });
    let (_client, shutdown) = closed_at_once(client);
    assert!(shutdown.memory_held, "{shutdown:?}");
    eventually("the sound one is released", || is_released(&paths[1]));
    assert!(!is_released(&paths[0]), "its reactor may still write");
    assert_eq!(logged::lines(&paths[1], "transfers are still under way"), [""; 0]);
    stuck.store(false, Ordering::SeqCst);
    eventually("the other one is released", || is_released(&paths[0]));
}

/// A path is closed in order, and can be unmounted, whatever becomes of the others.
#[test]
fn a_path_does_not_wait_for_the_file_system_of_another() {
    let root = tempfile::tempdir().unwrap();
    let paths = ["frozen", "sound"].map(|name| root.path().join(name));
    let files = Freezing::below(&paths[0]);
    let client = open_on(config_of(&paths, 2 * CAPACITY), &files);
    let keys = keys(0..40);
    assert!(client.set(&keys, &[&Memory::patterned(LENGTH, 0, 1); 40]).ok);
    files.freeze(true);
    client.connector.submit_delete(&keys).unwrap();
    files.until_waited();
    let _client = closed_at_once(client);
    eventually("the sound one is released", || is_released(&paths[1]));
    assert!(!is_released(&paths[0]), "its threads may still write");
    files.freeze(false);
    eventually("the other one is released", || is_released(&paths[0]));
}
