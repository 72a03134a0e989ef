//! Which write streams the chunks of a store go to, on a drive that has some.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvring::testing::{Action, Engine, Reaped, Transfer};
use kvring::{Admission, EngineError, WriteStreams};
use tempfile::TempDir;

use crate::common::{Client, MIB, Memory, config, key, once, real_engine};

const LENGTH: usize = 64 << 10;

/// An engine that notes the stream of each write.
struct Noting {
    real: Box<dyn Engine>,
    streams: Arc<Mutex<Vec<u8>>>,
}

impl Engine for Noting {
    fn description(&self) -> String {
        self.real.description()
    }

    fn takes_write_streams(&self) -> bool {
        true
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        let stream = transfer.write_stream;
        match transfer.action {
            Action::Write => self.streams.lock().unwrap().push(stream),
            _ => assert_eq!(stream, 0, "{transfer:?}"),
        }
        // SAFETY: as the caller vouches.
        unsafe { self.real.submit(Transfer { write_stream: 0, ..transfer }) }
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        self.real.reap(timeout, reaped)
    }

    fn cancel_all(&mut self) {
        self.real.cancel_all();
    }
}

struct Store {
    client: Client,
    streams: Arc<Mutex<Vec<u8>>>,
    chunk: Memory,
    _directory: TempDir,
}

impl Store {
    fn open(rule: WriteStreams, drive_streams: u8) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path(), 32 * MIB);
        (config.write_streams, config.tuning.write_streams) = (rule, Some(drive_streams));
        (config.admission, config.lease_s, config.io_threads) = (Admission::Always, 0, Some(1));
        let streams = Arc::default();
        let noted = Arc::clone(&streams);
        let make_engine = once(move |queue_depth, waker| {
            Ok(Noting { real: real_engine(queue_depth, waker)?, streams: noted })
        });
        let client = Client::over(config, make_engine);
        Self { client, streams, chunk: Memory::patterned(LENGTH, 0, 1), _directory: directory }
    }

    /// Stores a chunk, and returns its stream.
    fn stream_of(&self, key: &str) -> u8 {
        assert!(self.client.set_one(key, &self.chunk));
        let streams = std::mem::take(&mut *self.streams.lock().unwrap());
        assert!(!streams.is_empty() && streams.iter().all(|one| *one == streams[0]), "{streams:?}");
        streams[0]
    }

    /// What went to each stream, in chunks.
    fn written(&self) -> Vec<(u8, &'static str, u64)> {
        let streams = self.client.connector.stats().paths[0].write_streams.clone();
        let of =
            |one: &kvring::StreamUse| (one.stream, one.content, one.written_bytes / LENGTH as u64);
        streams.iter().map(of).collect()
    }
}

#[test]
fn chunks_that_come_back_go_to_another_stream() {
    let store = Store::open(WriteStreams::Lifetime, 4);
    for number in 0..700 {
        assert_eq!(store.stream_of(&key(number)), 2, "chunk {number} is new");
    }
    let is_stored = store.client.exists(&[key(0), key(699)]);
    assert_eq!(is_stored, [false, true]);
    assert_eq!(store.stream_of(&key(0)), 3, "it was evicted, and is remembered");
    assert_eq!(store.stream_of(&key(700)), 2);
    assert_eq!(store.written(), [(2, "first_time", 701), (3, "returned", 1)]);
}

#[test]
fn the_largest_namespaces_have_streams_of_their_own() {
    let store = Store::open(WriteStreams::Namespace, 4);
    let of = |salt: &str, number: u64| store.stream_of(&format!("{}@{salt}", key(number)));
    for number in 0..100 {
        of("large", number);
        if number % 2 == 0 {
            of("middle", number);
        }
        if number % 10 == 0 {
            of("small", number);
        }
    }
    let (large, middle) = (of("large", 1000), of("middle", 1000));
    assert!(large != middle && large < 4 && middle < 4, "{large} {middle}");
    assert_eq!([of("small", 1000), of("new", 0)], [4, 4], "the others share the last one");
    let contents = ["one_namespace", "one_namespace", "other_namespaces"];
    assert_eq!(store.written().iter().map(|one| one.1).collect::<Vec<_>>(), contents);
    assert_eq!(store.written().iter().map(|one| one.2).sum::<u64>(), 100 + 50 + 10 + 4);
}

#[test]
fn a_drive_with_too_few_is_told_of_none() {
    for (rule, drive_streams) in
        [(WriteStreams::Off, 8), (WriteStreams::Lifetime, 2), (WriteStreams::Namespace, 0)]
    {
        let store = Store::open(rule, drive_streams);
        assert_eq!(store.stream_of(&key(1)), 0);
        assert_eq!(store.written(), []);
    }
}

/// Threads hand no stream on, so nothing is to be counted as if they did.
#[test]
fn an_engine_that_hands_none_on_is_given_none() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path(), 32 * MIB);
    (config.write_streams, config.tuning.write_streams) = (WriteStreams::Lifetime, Some(8));
    config.engine = kvring::EngineChoice::Posix;
    let client = Client::with(config);
    assert!(client.set_one(&key(1), &Memory::patterned(LENGTH, 0, 1)));
    assert!(client.connector.stats().paths[0].write_streams.is_empty());
}
