//! A device that fails for a while: nothing is lost for good by it. And one that fails for ever is found out.

use std::collections::HashMap;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::chunks::copy_all;
use crate::common::faults::{Fault, Script, faulty, scripted, scripted_on};
use crate::common::loop_device::LoopDevice;
use crate::common::{
    Client, MIB, Memory, config, config_of, eventually, has_data_files, key, keys, new_paths,
    side_by_side,
};
use kvring::testing::Action;
use kvring::{Config, Layout, list_chunks};

const CAPACITY: u64 = 64 * MIB;
const LENGTH: usize = 8192;
const LONGER: usize = 12_288;
const KEYS: u64 = 120;

/// What the device says to some of its transfers; 0 while it works.
type Errno = Arc<AtomicI32>;

fn reads(action: Action) -> bool {
    match action {
        Action::Read => true,
        Action::Open(flags) => flags & libc::O_CREAT == 0,
        _ => false,
    }
}

fn writes(action: Action) -> bool {
    match action {
        Action::Write | Action::Preallocate | Action::Truncate => true,
        Action::Open(flags) => flags & libc::O_CREAT != 0,
        _ => false,
    }
}

fn script(fails: fn(Action) -> bool, errno: &Errno) -> Script {
    let errno = Arc::clone(errno);
    Box::new(move |_, action, _| match errno.load(Ordering::SeqCst) {
        errno if errno != 0 && fails(action) => Fault::Errno(errno),
        _ => Fault::None,
    })
}

fn open_failing(path: &Path, fails: fn(Action) -> bool, errno: &Errno) -> Client {
    Client::over(config(path, CAPACITY), scripted(script(fails, errno)))
}

fn all(hit: bool) -> Vec<bool> {
    vec![hit; KEYS as usize]
}

/// One at a time, which is the beginning of every outage, and all together, again and again, with pauses in which what is in
/// doubt is looked at.
#[test]
fn after_an_outage_of_reads_every_key_is_a_hit_again() {
    let errnos = [libc::EIO, libc::ENODATA, libc::ETIMEDOUT, libc::ENOLINK, libc::ENOMEM];
    side_by_side(errnos, |errno| {
        let directory = tempfile::tempdir().unwrap();
        let fails = Errno::default();
        let client = open_failing(directory.path(), reads, &fails);
        assert_eq!(client.store(0..KEYS, LENGTH), all(true));
        for outage in 0..3 {
            fails.store(errno, Ordering::SeqCst);
            for number in 20 * outage..20 * outage + 10 {
                assert_eq!(client.load([number], LENGTH), [false]);
                std::thread::sleep(Duration::from_millis(15));
            }
            for _ in 0..2 {
                assert_eq!(client.load(0..KEYS, LENGTH), all(false));
                std::thread::sleep(Duration::from_millis(300));
            }
            fails.store(0, Ordering::SeqCst);
            assert_eq!(
                client.load(0..KEYS, LENGTH),
                all(true),
                "after an outage with errno {errno}"
            );
        }
        assert_eq!(client.exists(&keys(0..KEYS)), all(true));
        assert_eq!(client.counter("read_dropped"), 0);
        client.assert_consistent();
    });
}

/// A few reads, and none that succeeds in between: nobody can tell an outage from bad sectors, so none is dropped.
#[test]
fn an_outage_of_which_only_few_reads_tell_drops_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let fails = Errno::default();
    let client = open_failing(directory.path(), reads, &fails);
    assert_eq!(client.store(0..KEYS, LENGTH), all(true));
    for number in 0..KEYS / 3 {
        fails.store(libc::EIO, Ordering::SeqCst);
        assert_eq!(client.load([3 * number, 3 * number + 1], LENGTH), [false; 2]);
        fails.store(0, Ordering::SeqCst);
        assert_eq!(client.load([3 * number + 2, 3 * number, 3 * number + 1], LENGTH), [true; 3]);
    }
    assert_eq!(client.load(0..KEYS, LENGTH), all(true));
    assert_eq!(client.counter("read_dropped"), 0);
}

/// What a kill leaves while no operation is under way.
fn killed(path: &Path) -> tempfile::TempDir {
    let left = tempfile::tempdir().unwrap();
    let client = Client::open(path, CAPACITY);
    assert_eq!(client.store(0..KEYS, LENGTH), all(true));
    copy_all(path, left.path());
    left
}

#[test]
fn verification_drops_nothing_in_an_outage_and_is_not_done_before_it_has_read_all() {
    let directory = tempfile::tempdir().unwrap();
    let left = killed(directory.path());
    let fails = Errno::new(AtomicI32::new(libc::EIO));
    let client = open_failing(left.path(), reads, &fails);
    assert_eq!(client.connector.recovery().to_verify, KEYS);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(client.load(0..KEYS, LENGTH), all(false));
    assert_eq!(client.counter("verified_after_crash"), 0);
    // Nothing of it is noted as verified.
    client.connector.close();
    drop(client);
    let client = open_failing(left.path(), reads, &fails);
    assert_eq!(client.connector.recovery().to_verify, KEYS);
    std::thread::sleep(Duration::from_millis(500));
    fails.store(0, Ordering::SeqCst);
    eventually("all are verified", || client.counter("verified_after_crash") == KEYS);
    assert_eq!(client.load(0..KEYS, LENGTH), all(true));
    client.connector.close();
    drop(client);
    assert_eq!(Client::open(left.path(), CAPACITY).connector.recovery().to_verify, 0);
}

/// The device fails to read chunks of this length.
fn with_a_bad_chunk(directory: &Path) -> Client {
    faulty(directory, |_, action, length| match action {
        Action::Read if length == 3 * 4096 => Fault::Errno(libc::EIO),
        _ => Fault::None,
    })
}

#[test]
fn a_bad_sector_is_dropped_once_the_device_has_read_others() {
    let directory = tempfile::tempdir().unwrap();
    let client = with_a_bad_chunk(directory.path());
    let bad = Memory::patterned(3 * 4096, 0, 1);
    assert!(client.set_one("bad", &bad));
    assert_eq!(client.store(0..KEYS, LENGTH), all(true));
    for _ in 0..3 {
        assert_eq!(client.get_one("bad", 3 * 4096), None);
        std::thread::sleep(Duration::from_millis(150));
    }
    assert_eq!(client.counter("read_dropped"), 0, "it may be the whole device");
    // In an idle moment, nobody asks for it.
    assert_eq!(client.load(0..KEYS, LENGTH), all(true));
    eventually("it is dropped", || client.counter("read_dropped") == 1);
    assert_eq!(client.exists(&["bad".to_owned()]), [false]);
    assert_eq!(client.counter("read_errors"), 3);
    assert_eq!(client.load(0..KEYS, LENGTH), all(true));
    client.assert_consistent();
}

/// It cannot vouch for bytes that nobody can read.
#[test]
fn the_bytes_of_a_chunk_in_doubt_are_stored_anew() {
    let directory = tempfile::tempdir().unwrap();
    let fails = Errno::default();
    let client = open_failing(directory.path(), reads, &fails);
    assert_eq!(client.store([1], LENGTH), [true]);
    fails.store(libc::EIO, Ordering::SeqCst);
    assert_eq!(client.load([1], LENGTH), [false]);
    assert_eq!(client.store([1], LENGTH), [true]);
    assert_eq!((client.counter("set_stored"), client.counter("set_unchanged")), (2, 0));
    fails.store(0, Ordering::SeqCst);
    assert_eq!(client.load([1], LENGTH), [true]);
    assert_eq!(client.store([1], LENGTH), [true]);
    assert_eq!(client.counter("set_unchanged"), 1);
}

#[test]
fn space_that_could_not_be_written_in_an_outage_comes_back() {
    if !has_data_files("the file system chooses places") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let fails = Errno::default();
    let client = open_failing(directory.path(), writes, &fails);
    assert_eq!(client.store(0..KEYS, LENGTH), all(true));
    fails.store(libc::EIO, Ordering::SeqCst);
    for number in 1000..1000 + KEYS {
        assert_eq!(client.store([number], LENGTH), [false]);
    }
    fails.store(0, Ordering::SeqCst);
    for _ in 0..2 {
        assert_eq!(client.store(1000..1000 + KEYS, LENGTH), all(true));
        client.delete(&keys(1000..1000 + KEYS));
        client.assert_consistent();
    }
    assert_eq!(client.store(1000..1000 + KEYS, LENGTH), all(true));
    let chunks = list_chunks(directory.path(), None).unwrap().map(Result::unwrap);
    let last = chunks.map(|chunk| chunk.offset_bytes).max().unwrap();
    // Places that were written once are given out first: there is no hole between them.
    assert_eq!(last, (2 * KEYS - 1) * LENGTH as u64);
    client.assert_consistent();
}

/// A store on two paths, the second of which has a device of this script.
fn on_two_paths(paths: &[PathBuf], layout: Layout, second: Script) -> Client {
    Client::over(Config { layout, ..config_of(paths, CAPACITY) }, scripted_on(1, second))
}

/// SETs new chunks until the second path is out; answers why.
fn reason_after_sets(client: &Client) -> String {
    let hangs = Instant::now() + Duration::from_secs(120);
    for number in (0..400_000).step_by(10) {
        client.store(number..number + 10, LENGTH);
        // Of another length.
        let longer = Memory::patterned(LONGER, 0, number);
        let names: Vec<String> = (number..number + 10).map(|number| key(number) + "@").collect();
        client.set(&names, &[&longer; 10]);
        let path = client.connector.stats().paths[1].clone();
        if !path.in_use {
            assert_eq!(client.store(0..KEYS, LENGTH), all(true), "the other one takes them");
            return path.reason;
        }
        assert!(Instant::now() < hangs, "{:?}", client.connector.stats().paths);
    }
    unreachable!("it takes so many SETs");
}

/// A drive that has lost its capacity, or gives out more than it has.
#[test]
fn a_device_without_the_space_that_it_had_is_taken_out() {
    for errno in [libc::ENOSPC, libc::EDQUOT] {
        let devices = [(); 2].map(|()| LoopDevice::new(CAPACITY / MIB, 4096));
        let [Some(first), Some(second)] = &devices else { return };
        let paths = [first, second].map(|device| device.path().to_owned());
        let fails = Errno::new(AtomicI32::new(errno));
        let client = on_two_paths(&paths, Layout::Extents, script(writes, &fails));
        let reason = reason_after_sets(&client);
        assert!(reason.contains("writes in a row failed"), "{reason}");
    }
}

/// A file system without space for blocks of a data file, as beside a copy that shares them: no fault of the device.
#[test]
fn a_data_file_without_blocks_fails_sets_and_not_its_path() {
    if !has_data_files("a chunk's file is made with its blocks") {
        return;
    }
    let ways = [(libc::ENOSPC, "or free space"), (libc::EDQUOT, "or raise the quota")];
    for (errno, way) in ways {
        let directory = tempfile::tempdir().unwrap();
        let fails = Errno::default();
        let client = open_failing(directory.path(), writes, &fails);
        assert_eq!(client.store(0..KEYS, LENGTH), all(true));
        fails.store(errno, Ordering::SeqCst);
        for number in 1000..1000 + KEYS {
            let completion = client.set(&[key(number)], &[&Memory::patterned(LENGTH, 0, number)]);
            let names = ["remove the copy", way].map(|part| completion.error.contains(part));
            assert_eq!(names, [true; 2], "{}", completion.error);
        }
        let path = client.connector.stats().paths[0].clone();
        assert_eq!((path.in_use, path.reason.as_str()), (true, ""));
        assert_eq!((client.counter("write_errors"), client.counter("set_no_space")), (0, KEYS));
        assert_eq!(client.load(0..KEYS, LENGTH), all(true));
        fails.store(0, Ordering::SeqCst);
        assert_eq!(client.store(1000..1000 + KEYS, LENGTH), all(true));
        assert_eq!(client.load(0..KEYS, LENGTH), all(true));
        client.assert_consistent();
    }
}

/// The first writes only: what finds no blocks at one place goes to another one, or there again.
#[test]
fn a_chunk_whose_place_has_no_blocks_is_stored_all_the_same() {
    if !has_data_files("a chunk's file is made with its blocks") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let left = Arc::new(AtomicI32::new(10));
    let engine = scripted(move |_, action, _| match action {
        Action::Write if left.fetch_sub(1, Ordering::SeqCst) > 0 => Fault::Errno(libc::ENOSPC),
        _ => Fault::None,
    });
    let client = Client::over(config(directory.path(), CAPACITY), engine);
    assert_eq!(client.store(0..KEYS, LENGTH), all(true));
    assert_eq!(client.load(0..KEYS, LENGTH), all(true));
    client.assert_consistent();
}

/// It says now this and now that, or half of the SETs fail.
#[test]
fn a_path_whose_writes_fail_for_ever_is_taken_out() {
    for layout in [Layout::Extents, Layout::Files] {
        let (_root, paths) = new_paths(2);
        let errnos = [libc::EUCLEAN, libc::EINVAL, libc::EOPNOTSUPP];
        let script: Script = Box::new(move |number, action, _| match writes(action) {
            true => Fault::Errno(errnos[number as usize % errnos.len()]),
            false => Fault::None,
        });
        let client = on_two_paths(&paths, layout, script);
        let reason = reason_after_sets(&client);
        assert!(reason.contains("writes in a row failed"), "{reason}");
    }
    let (_root, paths) = new_paths(2);
    let half: Script = Box::new(|_, action, length| match action {
        Action::Write if length == LONGER => Fault::Errno(libc::EIO),
        _ => Fault::None,
    });
    let reason = reason_after_sets(&on_two_paths(&paths, crate::common::layout(), half));
    assert!(reason.contains("many writes have failed"), "{reason}");
}

/// It stays in use, and says why it should not be.
#[test]
fn a_lone_path_that_fails_has_its_reason_until_it_works_again() {
    let directory = tempfile::tempdir().unwrap();
    let fails = Errno::new(AtomicI32::new(libc::EIO));
    let client = open_failing(directory.path(), writes, &fails);
    let path = || client.connector.stats().paths[0].clone();
    let numbers = AtomicU64::new(0);
    let next = || numbers.fetch_add(1, Ordering::SeqCst);
    eventually("it has a reason", || {
        assert_eq!(client.store([next()], LENGTH), [false]);
        !path().reason.is_empty()
    });
    assert!(path().in_use);
    fails.store(0, Ordering::SeqCst);
    eventually("it has none any more", || {
        assert_eq!(client.store([next()], LENGTH), [true]);
        path().reason.is_empty()
    });
    fails.store(libc::EIO, Ordering::SeqCst);
    eventually("it has one again", || {
        assert_eq!(client.store([next()], LENGTH), [false]);
        !path().reason.is_empty()
    });
}

/// Of what is not there any more, or is something else, the chunk is dropped and nothing else happens.
#[test]
fn bad_files_never_take_a_path_out() {
    let (_root, paths) = new_paths(2);
    let client = Client::with(Config { layout: Layout::Files, ..config_of(&paths, CAPACITY) });
    assert_eq!(client.store(0..KEYS, LENGTH), all(true));
    let chunks = paths.iter().flat_map(|path| {
        let file_of = |chunk: kvring::StoredChunk| (chunk.key, path.join(chunk.file));
        list_chunks(path, None).unwrap().map(move |chunk| file_of(chunk.unwrap()))
    });
    let files: HashMap<String, PathBuf> = chunks.collect();
    for number in 0..40 {
        let file = &files[&key(number)];
        std::fs::remove_file(file).unwrap();
        if number < 20 {
            drop(UnixListener::bind(file).unwrap());
        }
        assert_eq!(client.load([number], LENGTH), [false]);
        std::thread::sleep(Duration::from_millis(20));
    }
    let expected: Vec<bool> = (0..KEYS).map(|number| number >= 40).collect();
    assert_eq!(client.exists(&keys(0..KEYS)), expected);
    assert_eq!(client.load(0..KEYS, LENGTH), expected);
    let stats = client.connector.stats();
    assert!(stats.paths.iter().all(|path| path.in_use && path.reason.is_empty()));
    assert_eq!(client.counter("read_dropped"), 40);
    assert_eq!(client.store(0..KEYS, LENGTH), all(true));
    assert_eq!(client.load(0..KEYS, LENGTH), all(true));
}
