//! What a store says of its keys after a reactor has failed: nothing is promised that nobody can load.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::faults::{Fault, FaultEngine, Script, failing, scripted_on};
use crate::common::{Client, MIB, Memory, config_of, eventually, keys, new_paths, path_of};
use kvring::testing::{FileOperations, SystemFiles, Waker};

const KEYS: u64 = 200;

/// A store whose last path does nothing but `fault` from the moment on in which `fails` is set.
fn open(paths: &[PathBuf], fails: &Arc<AtomicBool>, fault: Fault) -> Client {
    let engines = scripted_on(paths.len() - 1, failing(fault, fails));
    Client::over(config_of(paths, 64 * MIB), engines)
}

/// Which of `keys` are loaded now.
fn loaded(client: &Client, keys: &[String]) -> Vec<bool> {
    let memory = Memory::new(4096, 0);
    keys.iter()
        .map(|key| {
            let done = client.get(std::slice::from_ref(key), &[&memory]);
            done.ok && done.results[0]
        })
        .collect()
}

#[test]
fn what_nobody_can_load_does_not_exist() {
    for fault in [Fault::Panic, Fault::Refused] {
        for count in [1, 2] {
            let (_root, paths) = new_paths(count);
            let fails = Arc::new(AtomicBool::new(false));
            let client = open(&paths, &fails, fault);
            let keys = keys(0..KEYS);
            let memory = Memory::patterned(4096, 0, 1);
            assert!(client.set(&keys, &vec![&memory; keys.len()]).ok);
            assert_eq!(client.exists(&keys), vec![true; keys.len()]);

            fails.store(true, Ordering::SeqCst);
            let lost = keys.iter().find(|key| !loaded(&client, &[(*key).clone()])[0]);
            let lost = lost.expect("some keys are on the path that fails").clone();
            let exists = client.exists(&keys);
            assert_eq!(exists, loaded(&client, &keys), "{fault:?}, {count} paths");
            assert_eq!(exists.contains(&true), count > 1, "the other path goes on");

            let first = [lost, keys[0].clone()];
            let prefix = client.connector.submit_prefix(&first).unwrap();
            assert_eq!(client.wait(prefix).results, [false, false]);
            assert_eq!(client.connector.pin(&first[..1]).unwrap(), [false]);
            let (listed, _) = client.connector.keys("test/model", 0, usize::MAX).unwrap();
            let held = exists.iter().filter(|exists| **exists).count();
            assert_eq!(listed.len(), held, "{fault:?}, {count} paths");
        }
    }
}

/// The index of the path `disk1` cannot be written once its reactor has failed.
#[derive(Default)]
struct LostWithReactor {
    waker: Mutex<Option<Arc<Waker>>>,
    has_failed: AtomicBool,
}

impl fmt::Debug for LostWithReactor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LostWithReactor")
    }
}

impl FileOperations for LostWithReactor {
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let is_second = path_of(file).components().any(|part| part.as_os_str() == "disk1");
        let waker = self.waker.lock().unwrap().clone();
        let Some(waker) = waker.filter(|_| is_second) else {
            return SystemFiles.write_at(file, bytes, offset);
        };
        eventually("its reactor fails", || {
            waker.wake();
            self.has_failed.load(Ordering::SeqCst)
        });
        // Until that is noted.
        std::thread::sleep(Duration::from_millis(100));
        Err(io::Error::from_raw_os_error(libc::EIO))
    }
}

#[test]
fn a_path_that_fails_while_it_is_opened_takes_no_other_one_out() {
    let (_root, paths) = new_paths(3);
    let files = Arc::new(LostWithReactor::default());
    let mut config = config_of(&paths, 64 * MIB);
    config.io_threads = Some(1);
    config.files = Arc::<LostWithReactor>::clone(&files);
    let engines = AtomicUsize::new(0);
    let make_engine = move |queue_depth, waker: Arc<Waker>| {
        let is_second = engines.fetch_add(1, Ordering::SeqCst) == 1;
        if is_second {
            *files.waker.lock().unwrap() = Some(Arc::clone(&waker));
        }
        let script: Script = Box::new(|_, _, _| Fault::None);
        let engine = FaultEngine::new(queue_depth, waker, script, Arc::default())?;
        let files = Arc::clone(&files);
        Ok(engine.watched(Box::new(move |_| {
            if is_second {
                files.has_failed.store(true, Ordering::SeqCst);
                panic!("as a reactor does that has a bug");
            }
        })))
    };
    let client = Client::over(config, make_engine);
    // An alarm would be heard by then.
    std::thread::sleep(Duration::from_millis(200));
    let in_use: Vec<bool> = client.connector.stats().paths.iter().map(|path| path.in_use).collect();
    assert_eq!(in_use, [true, false, true]);
}
