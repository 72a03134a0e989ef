//! Layout `files` on a failing or full file system: which steps can fail, what each costs, and that nothing is left behind.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::chunk_files::{CAPACITY, assert_tidy, config, files, open, open_chunk_files};
use crate::common::chunks::place;
use crate::common::faults::{Fault, FaultEngine, scripted};
use crate::common::{Client, MIB, Memory, eventually, key, logged, on_disk_bytes, once, pattern};
use kvring::testing::Action;
use kvring::{Config, Durability};

fn open_faulty(
    config: Config,
    script: impl FnMut(u64, Action, usize) -> Fault + Send + 'static,
) -> Client {
    Client::over(config, scripted(script))
}

/// A file system that refuses the next reservation whenever it is told so.
fn full_when_told() -> (Arc<AtomicBool>, impl FnMut(u64, Action, usize) -> Fault + Send + 'static) {
    let is_full = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_full);
    let script = move |_, action, _| match action {
        Action::Preallocate if told.swap(false, Ordering::SeqCst) => Fault::Errno(libc::ENOSPC),
        _ => Fault::None,
    };
    (is_full, script)
}

/// What is acknowledged is there at once, as it was given.
fn store_and_load(client: &Client, number: u64, memory: &Memory) {
    let done = client.set(&[key(number)], &[memory]);
    assert!(done.ok, "{number}: {}", done.error);
    let loaded = client.get_one(&key(number), memory.bytes().len());
    assert!(loaded.as_deref() == Some(memory.bytes()), "{number} is acknowledged and not there");
}

/// No descriptor left says nothing about a chunk.
#[test]
fn without_descriptors_loads_miss_and_keep_their_chunk() {
    for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
        let directory = tempfile::tempdir().unwrap();
        let refuses = Arc::new(AtomicBool::new(false));
        let script = {
            let refuses = Arc::clone(&refuses);
            move |_, action, _| match action {
                Action::Open(_) if refuses.load(Ordering::SeqCst) => Fault::Errno(errno),
                _ => Fault::None,
            }
        };
        let client = open_faulty(config(directory.path(), CAPACITY), script);
        assert!(client.set_one("k", &Memory::patterned(5000, 0, 1)));
        refuses.store(true, Ordering::SeqCst);
        assert_eq!(client.get_one("k", 5000), None);
        assert!(!client.set_one("other", &Memory::patterned(5000, 0, 2)));
        assert_eq!(client.exists(&["k".into(), "other".into()]), [true, false]);
        refuses.store(false, Ordering::SeqCst);
        assert_eq!(client.get_one("k", 5000).unwrap(), pattern(5000, 1));
        assert!(client.set_one("other", &Memory::patterned(5000, 0, 2)));
        assert_tidy(&client, directory.path());
    }
}

/// Whichever step of a SET fails, its file goes, its descriptor is closed, and it says so.
#[test]
fn failed_steps_leave_nothing_behind() {
    let kinds: [fn(Action) -> bool; 4] = [
        |action| matches!(action, Action::Open(_)),
        |action| action == Action::Preallocate,
        |action| action == Action::Write,
        |action| action == Action::Truncate,
    ];
    for (kind, errno) in (0..kinds.len())
        .flat_map(|kind| [libc::EIO, libc::ENOSPC].into_iter().map(move |errno| (kind, errno)))
    {
        for length in [70_001, 3_000_001] {
            let directory = tempfile::tempdir().unwrap();
            // What may be a bad sector is tried a second time.
            let has_second = kinds[kind](Action::Write) && errno == libc::EIO;
            let mut first = true;
            let script = move |_, action, _| {
                let fails = (first || has_second) && kinds[kind](action);
                first &= !fails;
                if fails { Fault::Errno(errno) } else { Fault::None }
            };
            let client = open_faulty(config(directory.path(), CAPACITY), script);
            let done = client.set(&[key(1)], &[&Memory::patterned(length, 0, 1)]);
            let expected = if errno == libc::ENOSPC { "No space left" } else { "Input/output" };
            assert!(!done.ok && done.error.contains(expected), "{kind}: {}", done.error);
            assert_tidy(&client, directory.path());
            assert_eq!(
                (client.exists(&[key(1)]), client.connector.stats().records),
                (vec![false], 0)
            );
            let is_full = errno == libc::ENOSPC && kind < 2;
            assert_eq!(client.counter("set_no_space"), u64::from(is_full));
            assert!(
                !is_full || done.error.starts_with("store full: cannot grow"),
                "{}",
                done.error
            );
        }
    }
}

/// While the file system is full, chunks go for those that come; once they are gone.
#[test]
fn a_full_file_system_gives_what_chunks_leave() {
    let directory = tempfile::tempdir().unwrap();
    let (is_full, script) = full_when_told();
    let mut config = config(directory.path(), CAPACITY);
    // What the keeper evicts ahead would be counted too.
    (config.tuning.low_watermark, config.tuning.high_watermark) = (1.0, 1.0);
    let client = open_faulty(config, script);
    let memory = Memory::patterned(MIB as usize, 0, 1);
    assert!(client.set(&(0..8).map(key).collect::<Vec<_>>(), &[&memory; 8]).ok);
    is_full.store(true, Ordering::SeqCst);
    let began = Instant::now();
    // In the place of another one, once it is refused; then at once.
    (8..10).for_each(|number| store_and_load(&client, number, &memory));
    let evicted = client.counter("evicted");
    // After a second the file system is asked again: on a slow disk that is for the second one.
    if began.elapsed() < Duration::from_secs(1) {
        assert_eq!((evicted, client.counter("write_retries")), (2, 1));
    }
    client.assert_consistent();
    std::thread::sleep(Duration::from_millis(1100));
    store_and_load(&client, 10, &memory);
    assert_eq!(client.counter("evicted"), evicted, "the file system was asked again");
}

/// Each chunk that comes costs one of those that are there: not what is removed before it is asked for, and not all of them
/// for the watermarks.
#[test]
fn a_full_file_system_costs_one_chunk_for_each() {
    const HELD: u64 = 40;
    // Where removing is quick.
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (is_full, script) = full_when_told();
    let client = open_faulty(config(directory.path(), CAPACITY), script);
    let memory = Memory::patterned(70_001, 0, 1);
    let set = |number| store_and_load(&client, number, &memory);
    (0..HELD).for_each(set);
    is_full.store(true, Ordering::SeqCst);
    (HELD..8 * HELD).for_each(set);
    let keys: Vec<String> = (0..8 * HELD).map(key).collect();
    let held = client.exists(&keys).into_iter().filter(|held| *held).count();
    assert!(held >= HELD as usize, "{held} are left");
    client.assert_consistent();
}

/// With nothing that could go, each SET says what the file system said, and not only the one that asked it.
#[test]
fn without_anything_to_evict_the_cause_is_told() {
    let ways = [(libc::ENOSPC, "free space"), (libc::EDQUOT, "raise the quota")];
    for (errno, way) in ways {
        let directory = tempfile::tempdir().unwrap();
        let script = move |_, action, _| match action {
            Action::Preallocate => Fault::Errno(errno),
            _ => Fault::None,
        };
        let client = open_faulty(config(directory.path(), CAPACITY), script);
        for number in 0..3 {
            let done = client.set(&[key(number)], &[&Memory::patterned(70_001, 0, 1)]);
            assert!(done.error.starts_with("store full: cannot grow"), "{}", done.error);
            assert!(done.error.contains(way), "{}", done.error);
        }
        assert_tidy(&client, directory.path());
    }
}

/// close() in the middle of everything: each step is waited for, nothing is published in part, nothing stays open.
#[test]
fn closing_in_the_middle_leaves_only_whole_chunks() {
    for turn in 0..6 {
        let directory = tempfile::tempdir().unwrap();
        let stuck = Arc::new(AtomicBool::new(false));
        let mut config = config(directory.path(), CAPACITY);
        config.durability =
            if turn % 2 == 0 { Durability::BestEffort } else { Durability::Persistent };
        let reached = Arc::new(AtomicUsize::new(0));
        let script = {
            let (reached, stuck) = (Arc::clone(&reached), Arc::clone(&stuck));
            move |_, action, _| {
                let awaited = match turn / 2 {
                    0 => matches!(action, Action::Open(_)),
                    1 => action == Action::Write,
                    _ => action == Action::Truncate,
                };
                if awaited && reached.fetch_add(1, Ordering::SeqCst) == 3 {
                    stuck.store(true, Ordering::SeqCst);
                }
                Fault::None
            }
        };
        let cancelled = Arc::new(AtomicBool::new(false));
        let make_engine = {
            let (stuck, cancelled) = (Arc::clone(&stuck), Arc::clone(&cancelled));
            once(move |queue_depth, waker| {
                let engine = FaultEngine::new(queue_depth, waker, Box::new(script), stuck)?;
                Ok(engine.telling_of_cancel(cancelled))
            })
        };
        let client = Client::over(config, make_engine);
        let keys: Vec<String> = (0..20).map(key).collect();
        let memory: Vec<Memory> =
            (0..20).map(|seed| Memory::patterned(70_001 + 1000 * seed as usize, 0, seed)).collect();
        let set = client.submit_set(&keys, &memory);
        eventually("it is under way", || stuck.load(Ordering::SeqCst));
        let closing = std::thread::scope(|scope| {
            let closing = scope.spawn(|| client.close_after(Duration::ZERO));
            eventually("its time is over", || cancelled.load(Ordering::SeqCst));
            stuck.store(false, Ordering::SeqCst);
            closing.join().unwrap()
        });
        assert!(closing.clean && closing.abandoned > 0, "{closing}");
        let _ = set;
        assert_eq!(open_chunk_files(directory.path()), 0);
        let client = open(directory.path());
        let held = client.exists(&keys);
        for (number, is_held) in (0..20).zip(held) {
            let length = 70_001 + 1000 * number as usize;
            let expected = is_held.then(|| pattern(length, number));
            assert!(client.get_one(&key(number), length) == expected);
        }
        assert_tidy(&client, directory.path());
    }
}

/// Files that nobody can remove, until the value goes.
const UNREMOVABLE: &str = "files of chunks that are gone could not be removed";

struct Immutable(Vec<PathBuf>);

impl Immutable {
    /// `None`, and a line on standard error, where that cannot be.
    fn make(files: Vec<PathBuf>) -> Option<Self> {
        let files = Self(files);
        let are_immutable = files.change("+i");
        if !are_immutable {
            eprintln!(
                "skipped: no file becomes immutable here; it needs root and a file system with that flag"
            );
        }
        are_immutable.then_some(files)
    }

    fn change(&self, flag: &str) -> bool {
        Command::new("chattr").arg(flag).args(&self.0).status().is_ok_and(|done| done.success())
    }

    fn are_there(&self) -> bool {
        self.0.iter().all(|file| file.exists())
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        self.change("-i");
    }
}

/// Neither the chunks that need their space nor the next open fail for them.
#[test]
fn files_that_cannot_be_removed_stay_in_the_account() {
    const STUCK: u64 = 6;
    const CAPACITY: u64 = 32 * MIB;
    logged::keep();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let reopened = || {
        let mut config = config(path, CAPACITY);
        (config.tuning.low_watermark, config.tuning.high_watermark) = (1.0, 1.0);
        Client::with(config)
    };
    let memory = Memory::patterned(MIB as usize, 0, 1);
    let store_all = |client: &Client, first: u64| {
        for number in (first..first + 48).step_by(8) {
            let keys: Vec<String> = (number..number + 8).map(key).collect();
            let done = client.set(&keys, &[&memory; 8]);
            assert!(done.ok, "{number}: {}", done.error);
            assert_eq!(client.exists(&keys), [true; 8], "{number}");
            assert!(on_disk_bytes(path) <= CAPACITY);
        }
        client.assert_consistent();
    };
    let client = reopened();
    (0..STUCK).for_each(|number| assert!(client.set_one(&key(number), &memory)));
    let stuck = (0..STUCK).map(|number| place(path, &key(number)).0).collect();
    let Some(stuck) = Immutable::make(stuck) else { return };
    store_all(&client, STUCK);
    assert!(stuck.are_there());
    let last = place(path, &key(STUCK + 47)).0;
    client.connector.close();
    // The first one is named, the others may be counted.
    let names = stuck
        .0
        .iter()
        .map(|file| format!("cannot remove {}: Operation not permitted", file.display()));
    let named = names.map(|name| logged::lines(path, &name).len()).sum::<usize>();
    let (counted, _) = logged::counted(path, UNREMOVABLE);
    assert!(named > 0 && named as u64 + counted == STUCK, "{named} and {counted}");
    // A copy made by hand, with the number of another one.
    let number = last.to_str().unwrap().rsplit_once('-').unwrap().1;
    let copy = path.join(format!("chunks/ff/{}-{number}", "f".repeat(32)));
    std::fs::copy(last, &copy).unwrap();
    let copy = Immutable::make(vec![copy]).unwrap();

    let client = reopened();
    assert_eq!(client.connector.recovery().orphans, 0);
    assert!(client.connector.stats().used_bytes >= on_disk_bytes(path));
    store_all(&client, 100);
    assert!(stuck.are_there() && copy.are_there());
    client.connector.close();
    drop((stuck, copy));

    let client = reopened();
    assert_eq!(client.connector.recovery().orphans, STUCK + 1);
    assert_eq!(files(path).len() as u64, client.connector.stats().keys);
    store_all(&client, 200);
}

#[test]
fn many_files_that_cannot_be_removed_have_few_lines_that_add_up() {
    const COUNT: u64 = 300;
    logged::keep();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let keys: Vec<String> = (0..COUNT).map(key).collect();
    let client = Client::with(config(path, 64 * MIB));
    assert!(client.set(&keys, &vec![&Memory::patterned(4096, 0, 1); keys.len()]).ok);
    let stored = files(path).into_iter().map(|file| path.join("chunks").join(file));
    let Some(stuck) = Immutable::make(stored.collect()) else { return };
    client.delete(&keys);
    client.connector.close();
    assert!(stuck.0.len() as u64 == COUNT && stuck.are_there());
    let lines = logged::lines(path, "cannot remove ").len();
    let (counted, more_lines) = logged::counted(path, UNREMOVABLE);
    assert_eq!(lines as u64 + counted, COUNT);
    assert!(lines + more_lines < 30, "{lines} and {more_lines}");
}
