//! What a failing device leads to: a miss or a failed SET, exactly one answer, and no byte that was not stored.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use crate::common::faults::{Fault, faulty, faulty_and_stuck, scripted, scripted_and_stuck};
use crate::common::{Client, MIB, Memory, config, eventually, key, keys, logged, pattern};
use kvring::testing::Action;
use kvring::{Config, Connector, Durability, Layout};
use parking_lot::Mutex;

/// Every other transfer stops short, at block boundaries and in the middle of vectors: all of it arrives all the same.
#[test]
fn short_transfers_are_continued() {
    let directory = tempfile::tempdir().unwrap();
    let client = faulty(directory.path(), |number, _, length| match number % 3 {
        0 => Fault::None,
        1 => Fault::Short((length / 2).next_multiple_of(512)),
        _ => Fault::Short(512.min(length)),
    });
    for (number, length) in (0..).zip([5000, 522_240, 3 * MIB as usize + 7, 4096]) {
        for shift in [0, 3] {
            let stored = Memory::patterned(length, shift, number);
            assert!(client.set_one(&key(number), &stored));
            assert!(
                client.get_one(&key(number), length).unwrap() == stored.bytes(),
                "{length} at {shift}"
            );
            client.delete(&[key(number)]);
        }
    }
    assert!(client.counter("transfers_resumed") > 20);
}

/// A device that is always busy does not hang the caller.
#[test]
fn endless_interruptions_end() {
    let directory = tempfile::tempdir().unwrap();
    let client = faulty(directory.path(), |_, _, _| Fault::Errno(libc::EAGAIN));
    let completion = client.set(&[key(1)], &[&Memory::patterned(4096, 0, 1)]);
    assert!(!completion.ok && completion.error.contains("cannot write"), "{}", completion.error);
    assert_eq!(client.exists(&[key(1)]), [false]);
}

/// A store whose device is stuck, and fails both attempts at the first write; its writes so far.
fn stuck_and_failing_first(directory: &Path, stuck: &Arc<AtomicBool>) -> (Client, Arc<AtomicU64>) {
    stuck.store(true, Ordering::SeqCst);
    let writes = Arc::new(AtomicU64::new(0));
    let client = faulty_and_stuck(directory, Arc::clone(stuck), {
        let writes = Arc::clone(&writes);
        move |_, action, _| {
            let first = action == Action::Write && writes.fetch_add(1, Ordering::SeqCst) < 2;
            if first { Fault::Errno(libc::EIO) } else { Fault::None }
        }
    });
    (client, writes)
}

/// One piece after the other.
fn one_at_a_time(directory: &Path) -> Config {
    let mut config = config(directory, 256 * MIB);
    config.tuning.queue_depth = Some(1);
    config
}

/// Of a chunk whose first piece fails nothing more is written, and what comes behind it has the device.
#[test]
fn the_rest_of_a_failed_write_is_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let writes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&writes);
    let engine = scripted(move |_, action, _| match action {
        Action::Write if counted.fetch_add(1, Ordering::SeqCst) < 2 => Fault::Errno(libc::EIO),
        _ => Fault::None,
    });
    let client = Client::over(one_at_a_time(directory.path()), engine);
    let (long, short) = (Memory::patterned(4 * MIB as usize, 0, 1), Memory::patterned(4096, 0, 2));
    // The last one of a batch is written first.
    let completion = client.set(&[key(2), key(1)], &[&short, &long]);
    assert_eq!(completion.results, [true, false]);
    assert_eq!(
        writes.load(Ordering::SeqCst),
        3,
        "two attempts at its first piece, and the other SET"
    );
}

/// Each SET of a key has a fate of its own, whatever became of the one before it.
#[test]
fn a_duplicate_of_a_failing_set_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let stuck = Arc::default();
    let (client, writes) = stuck_and_failing_first(directory.path(), &stuck);
    let (memory, other) = (Memory::patterned(4096, 0, 1), Memory::patterned(4096, 0, 2));
    let ids = [&memory, &memory, &other].map(|one| client.submit_set(&[key(1)], &[one]));
    stuck.store(false, Ordering::SeqCst);
    let completions = ids.map(|id| client.wait(id));
    assert_eq!(completions.each_ref().map(|one| one.results[0]), [false, true, true]);
    let told = &completions[0].error;
    assert!(!completions[0].ok && told.contains("cannot write"), "{told}");
    assert!(client.get_one(&key(1), 4096).unwrap() == other.bytes());
    assert_eq!((writes.load(Ordering::SeqCst), client.counter("set_failed")), (4, 1));
}

/// The device has its next transfer before what came back is summed up and answered.
#[test]
fn the_device_comes_before_the_processor() {
    const LENGTH: usize = 512 << 10;
    let directory = tempfile::tempdir().unwrap();
    let asked: Arc<OnceLock<Weak<Client>>> = Arc::default();
    let hits_at_reads: Arc<Mutex<Vec<u64>>> = Arc::default();
    let engine = scripted({
        let (asked, hits_at_reads) = (Arc::clone(&asked), Arc::clone(&hits_at_reads));
        move |_, action, _| {
            if action == Action::Read {
                let client = asked.get().and_then(Weak::upgrade).unwrap();
                hits_at_reads.lock().push(client.counter("get_hits"));
            }
            Fault::None
        }
    });
    // No file is to be opened before a piece.
    let config = Config { layout: Layout::Extents, ..one_at_a_time(directory.path()) };
    let client = Arc::new(Client::over(config, engine));
    assert!(asked.set(Arc::downgrade(&client)).is_ok());
    let stored: Vec<Memory> = (0..3).map(|number| Memory::patterned(LENGTH, 0, number)).collect();
    let keys = keys(0..3);
    assert!(client.set(&keys, &stored).ok);
    let read: Vec<Memory> = (0..3).map(|_| Memory::new(LENGTH, 0)).collect();
    assert_eq!(client.get(&keys, &read).results, [true; 3]);
    assert!(read.iter().zip(&stored).all(|(read, stored)| read.bytes() == stored.bytes()));
    let hits = hits_at_reads.lock();
    assert_eq!((hits[0], hits[1]), (0, 0), "the first one was answered before the second began");
}

/// Time in the device is that from the first piece's start to the last one's end.
#[test]
fn device_time_is_that_of_all_pieces() {
    for stuck_with in [1, 2] {
        let directory = tempfile::tempdir().unwrap();
        let stuck = Arc::new(AtomicBool::new(false));
        let sticks = Arc::clone(&stuck);
        let engine = scripted_and_stuck(Arc::clone(&stuck), move |number, _, _| {
            if number == stuck_with {
                sticks.store(true, Ordering::SeqCst);
            }
            Fault::None
        });
        let client = Client::over(one_at_a_time(directory.path()), engine);
        let two_pieces = Memory::patterned(600_000, 0, 1);
        let set = client.submit_set(&[key(1)], &[&two_pieces]);
        eventually("the piece is under way", || stuck.load(Ordering::SeqCst));
        thread::sleep(Duration::from_millis(50));
        stuck.store(false, Ordering::SeqCst);
        assert!(client.wait(set).ok);
        let latencies = client.connector.stats().latencies;
        let device = latencies.iter().find(|(name, _)| name == "set_device_us_max").unwrap();
        assert!(device.1 >= 50_000, "{latencies:?}");
    }
}

/// A chunk of another length is stored, also with the checksum of the one that fails or is held.
#[test]
fn chunks_of_another_length_are_other_bytes_whatever_their_checksum() {
    let directory = tempfile::tempdir().unwrap();
    let stuck = Arc::default();
    let (client, _) = stuck_and_failing_first(directory.path(), &stuck);
    let (zeros, eight) = (Memory::new(4096, 0), Memory::new(8, 0));
    eight.fill(&[0x49, 0x91, 0xe7, 0xd2, 0xd2, 0xbf, 0x65, 0x0f]);
    assert_eq!(crc_fast::crc64_nvme(zeros.bytes()), crc_fast::crc64_nvme(eight.bytes()));
    let name = [key(1)];
    let ids = [client.submit_set(&name, &[&zeros]), client.submit_set(&name, &[&eight])];
    stuck.store(false, Ordering::SeqCst);
    assert_eq!(ids.map(|id| client.wait(id).results[0]), [false, true]);
    assert_eq!(client.get_one(&key(1), 8).as_deref(), Some(eight.bytes()));
    assert!(client.set_one(&key(1), &zeros));
    assert_eq!(client.get_one(&key(1), 4096).as_deref(), Some(zeros.bytes()));
}

/// Line 7: even a panic inside the reactor answers everything, now and later, and close() returns.
#[test]
fn a_panic_answers_everything() {
    let directory = tempfile::tempdir().unwrap();
    let client = faulty(
        directory.path(),
        |number, _, _| {
            if number == 20 { Fault::Panic } else { Fault::None }
        },
    );
    let memory = Memory::patterned(4096, 0, 1);
    let mut ids = Vec::new();
    for batch in 0..10 {
        let keys: Vec<String> = (batch * 8..batch * 8 + 8).map(key).collect();
        ids.push(client.submit_set(&keys, &[&memory; 8]));
        ids.push(client.submit_set(&keys, &[&Memory::patterned(4096, 0, 2); 8]));
        ids.push(client.submit_get(&keys, &[&Memory::new(4096, 0); 8]));
    }
    let failed = ids.iter().filter(|id| !client.wait(**id).ok).count();
    assert!(failed > 0);
    let later = client.set(&[key(1000)], &[&memory]);
    assert!(!later.ok && !later.error.is_empty());
    assert_eq!(client.connector.stats().in_flight, 0);
    client.connector.close();
    drop(client);
    let client = Client::open(directory.path(), 256 * MIB);
    for number in 0..80 {
        let found = client.get_one(&key(number), 4096);
        assert!(found.is_none_or(|bytes| bytes == pattern(4096, 1) || bytes == pattern(4096, 2)));
    }
}

/// close() drops what is queued at its deadline, but does not return before the kernel is done with the buffers.
#[test]
fn close_waits_for_the_kernel() {
    let directory = tempfile::tempdir().unwrap();
    let (stuck, cancelled) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let reads = Arc::new(AtomicU64::new(0));
    // No file is to be opened before the read.
    let config = Config { layout: Layout::Extents, ..config(directory.path(), 256 * MIB) };
    let mut engine = scripted_and_stuck(Arc::clone(&stuck), {
        let reads = Arc::clone(&reads);
        move |_, action, _| {
            reads.fetch_add(u64::from(action == Action::Read), Ordering::SeqCst);
            Fault::None
        }
    });
    let told = Arc::clone(&cancelled);
    let client = Client::over(config.clone(), move |queue_depth, waker| {
        Ok(engine(queue_depth, waker)?.telling_of_cancel(Arc::clone(&told)))
    });
    let memory = Memory::patterned(4096, 0, 1);
    assert!(client.set_one("k", &memory));
    stuck.store(true, Ordering::SeqCst);
    let read = Memory::new(4096, 0);
    client.submit_get(&["k".to_owned()], &[&read]);
    eventually("it is under way", || reads.load(Ordering::SeqCst) == 1);
    let device = thread::spawn({
        let stuck = Arc::clone(&stuck);
        move || {
            eventually("its time is over", || cancelled.load(Ordering::SeqCst));
            thread::sleep(Duration::from_millis(200));
            stuck.store(false, Ordering::SeqCst);
        }
    });
    client.close_after(Duration::ZERO);
    assert!(!stuck.load(Ordering::SeqCst), "close() returned while the device was still at it");
    device.join().unwrap();
    assert_eq!(client.connector.stats().in_flight, 0);
    // That its read was cancelled says nothing about the chunk.
    assert_eq!(client.counter("abandoned"), 1);
    assert_eq!(Client::with(config).get_one("k", 4096).unwrap(), memory.bytes());
}

/// A device that stops answering does not hold close() for ever: the memory is leaked and the batch answered.
#[test]
fn a_stuck_device_leaks_rather_than_hangs() {
    let directory = tempfile::tempdir().unwrap();
    let stuck = Arc::new(AtomicBool::new(false));
    let client = faulty_and_stuck(directory.path(), Arc::clone(&stuck), |_, _, _| Fault::None);
    let memory = Memory::patterned(4096, 0, 1);
    assert!(client.set_one("before", &memory));
    stuck.store(true, Ordering::SeqCst);
    let keep = Arc::new(());
    let buffers = [memory.buffer()];
    client
        .connector
        .submit_get(&["before".to_owned()], &buffers, Box::new(Arc::clone(&keep)))
        .unwrap();
    client.submit_set(&["other".to_owned()], &[&memory]);
    thread::sleep(Duration::from_millis(50));
    let shutdown = client.close_after(Duration::ZERO);
    assert!(!shutdown.clean && shutdown.memory_held, "{shutdown}");
    assert_eq!(client.connector.close(), shutdown, "the second call says the same");
    assert_eq!(Arc::strong_count(&keep), 2, "the kernel may still write: it is never freed");
    let stats = client.connector.stats();
    assert_eq!((stats.in_flight, stats.set_queued_operations, stats.set_queued_bytes), (0, 0, 0));
    // Nobody else may write there, and this process is told why.
    let again = Connector::open(config(directory.path(), 256 * MIB)).map(drop);
    let error = again.unwrap_err().to_string();
    assert!(error.contains("which has closed it: its I/O is still in flight"), "{error}");
    drop(client);
    assert!(Connector::open(config(directory.path(), 256 * MIB)).is_err());
}

/// The log has few lines of a device that fails everything, and each failure is in one of them, also if none follows.
#[test]
fn many_failures_have_few_lines_that_add_up() {
    const COUNT: u64 = 400;
    logged::keep();
    let (keys, memory) = (keys(0..COUNT), Memory::patterned(4096, 0, 1));
    for (failing, text, what) in [
        (Action::Read, "cannot read a chunk", "chunks could not be read"),
        (Action::Write, "cannot write a chunk", "chunks could not be written"),
        (Action::Sync, "they are not stored", "chunks could not be made durable"),
    ] {
        let (directory, fails) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(false)));
        let mut config = config(directory.path(), 64 * MIB);
        config.durability = Durability::Persistent;
        config.tuning.persistent_max_retries = 0;
        let is_failing = Arc::clone(&fails);
        let engine = scripted(move |_, action, _| match action == failing {
            true if is_failing.load(Ordering::SeqCst) => Fault::Errno(libc::EIO),
            _ => Fault::None,
        });
        let client = Client::over(config, engine);
        let set = || client.set(&keys, &vec![&memory; keys.len()]).results;
        assert!(failing != Action::Read || set() == vec![true; keys.len()]);
        fails.store(true, Ordering::SeqCst);
        match failing {
            Action::Read => {
                let blocks: Vec<Memory> = keys.iter().map(|_| Memory::new(4096, 0)).collect();
                let found = client.get(&keys, &blocks).results;
                assert_eq!(found, vec![false; keys.len()]);
                // Before those in doubt are read in idle moments.
                fails.store(false, Ordering::SeqCst);
                assert_eq!(client.counter("read_errors"), COUNT);
            }
            _ => assert_eq!(set(), vec![false; keys.len()]),
        }
        let told = || {
            let details = logged::lines(directory.path(), text);
            // A group of SETs is one failure of several chunks.
            let chunks = details.iter().map(|line| {
                let number = line.split(' ').nth(2).unwrap();
                number.parse().unwrap_or(1)
            });
            let (counted, lines) = logged::counted(directory.path(), what);
            (chunks.sum::<u64>() + counted, details.len() + lines)
        };
        eventually("all failures in the log", || told().0 >= COUNT);
        let (failures, lines) = told();
        assert!(failures == COUNT || failing == Action::Read, "{failures} {what}");
        assert!((2..40).contains(&lines), "{lines} lines: {what}");
    }
}
