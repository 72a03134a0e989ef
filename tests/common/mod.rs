//! What the integration tests share: a connector with memory of its own and a way to wait for its completions.
#![allow(dead_code, reason = "each test program uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

pub(crate) mod chunk_files;
pub(crate) mod chunks;
pub(crate) mod faults;
pub(crate) mod held_back;
pub(crate) mod logged;
pub(crate) mod loop_device;
pub(crate) mod memory;
pub(crate) mod random;
pub(crate) mod records;

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvring::testing::{Engine, PosixEngine, UringEngine, Waker};
use kvring::{
    CallerBuffer, Completion, Config, Connector, EngineChoice, EngineError, Layout, OptionValue,
    Shutdown,
};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tempfile::TempDir;

pub(crate) use self::memory::Memory;
use self::memory::Use;

pub(crate) const MIB: u64 = 1 << 20;

/// A completion that does not come is a hang; nothing here takes a minute.
const HANG_TIMEOUT_MS: u16 = 60_000;
pub(crate) const HANG_TIMEOUT: Duration = Duration::from_millis(HANG_TIMEOUT_MS as u64);

pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

pub(crate) fn key(number: u64) -> String {
    format!("test/model@00000000@0@{number:064x}")
}

pub(crate) fn keys(numbers: impl IntoIterator<Item = u64>) -> Vec<String> {
    numbers.into_iter().map(key).collect()
}

/// Paths of a store, which are not there yet, and the directory that they go with.
pub(crate) fn new_paths(count: usize) -> (TempDir, Vec<PathBuf>) {
    let root = tempfile::tempdir().unwrap();
    let paths = (0..count).map(|number| root.path().join(format!("disk{number}"))).collect();
    (root, paths)
}

/// Where an open file is.
pub(crate) fn path_of(file: &File) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

/// A connector and the completions that came while others were waited for.
pub(crate) struct Client {
    pub(crate) connector: Connector,
    seen: Mutex<HashMap<u64, Completion>>,
}

impl Client {
    pub(crate) fn open(path: &Path, capacity_bytes: u64) -> Self {
        Self::with(config(path, capacity_bytes))
    }

    pub(crate) fn with(config: Config) -> Self {
        Self::from(Connector::open(config).unwrap())
    }

    /// Over engines of the test's: one for each reactor of each path, in the order of the paths.
    pub(crate) fn over<E, M>(config: Config, make_engine: M) -> Self
    where
        E: Engine + 'static,
        M: FnMut(usize, Arc<Waker>) -> Result<E, EngineError> + Send + 'static,
    {
        Self::from(Connector::open_with_engine(config, make_engine).unwrap())
    }

    /// Closes it, and works on what is queued for so long; what is in the device then may take its time.
    pub(crate) fn close_after(&self, drain_timeout: Duration) -> Shutdown {
        self.connector.close_within(drain_timeout, HANG_TIMEOUT)
    }

    pub(crate) fn submit_set(&self, keys: &[String], memory: &[impl Borrow<Memory>]) -> u64 {
        let (spans, keep) = lend(memory, Use::Read);
        self.connector.submit_set(keys, &spans, keep).unwrap()
    }

    pub(crate) fn submit_get(&self, keys: &[String], memory: &[impl Borrow<Memory>]) -> u64 {
        let (spans, keep) = lend(memory, Use::Fill);
        self.connector.submit_get(keys, &spans, keep).unwrap()
    }

    /// Waits for the completion of one batch; keeps those of others.
    pub(crate) fn wait(&self, future_id: u64) -> Completion {
        loop {
            if let Some(completion) = self.seen.lock().unwrap().remove(&future_id) {
                return completion;
            }
            // SAFETY: the connector keeps the descriptor open while it lives.
            let event = unsafe { BorrowedFd::borrow_raw(self.connector.event_fd()) };
            let ready = poll(
                &mut [PollFd::new(event, PollFlags::POLLIN)],
                PollTimeout::from(HANG_TIMEOUT_MS),
            );
            // The alarm of a fuzzer, for one.
            if ready != Err(Errno::EINTR) {
                assert_eq!(ready, Ok(1), "batch {future_id} hangs: {:?}", self.connector.stats());
            }
            self.collect();
        }
    }

    /// The completion of one batch, if it is there.
    pub(crate) fn take(&self, future_id: u64) -> Option<Completion> {
        self.collect();
        self.seen.lock().unwrap().remove(&future_id)
    }

    fn collect(&self) {
        let mut completions = Vec::new();
        self.connector.drain(&mut completions);
        let mut seen = self.seen.lock().unwrap();
        for completion in completions {
            let twice = seen.insert(completion.future_id, completion);
            assert!(twice.is_none(), "completed twice");
        }
    }

    pub(crate) fn set(&self, keys: &[String], memory: &[impl Borrow<Memory>]) -> Completion {
        self.wait(self.submit_set(keys, memory))
    }

    pub(crate) fn get(&self, keys: &[String], memory: &[impl Borrow<Memory>]) -> Completion {
        self.wait(self.submit_get(keys, memory))
    }

    pub(crate) fn exists(&self, keys: &[String]) -> Vec<bool> {
        self.wait(self.connector.submit_exists(keys).unwrap()).results
    }

    pub(crate) fn delete(&self, keys: &[String]) -> Vec<bool> {
        self.wait(self.connector.submit_delete(keys).unwrap()).results
    }

    /// Stores one chunk and says whether it worked.
    pub(crate) fn set_one(&self, key: &str, memory: &Memory) -> bool {
        self.set(&[key.to_owned()], &[memory]).ok
    }

    /// The chunk of `key`, or nothing.
    pub(crate) fn get_one(&self, key: &str, length: usize) -> Option<Vec<u8>> {
        let memory = Memory::new(length, 0);
        let completion = self.get(&[key.to_owned()], &[&memory]);
        assert!(completion.ok, "{}", completion.error);
        completion.results[0].then(|| memory.bytes().to_vec())
    }

    /// Stores chunks of this length, each with the bytes of its number; says which are.
    pub(crate) fn store(&self, numbers: impl IntoIterator<Item = u64>, length: usize) -> Vec<bool> {
        let chunk = |number| (key(number), Memory::patterned(length, 0, number));
        let (keys, memory): (Vec<_>, Vec<_>) = numbers.into_iter().map(chunk).unzip();
        self.set(&keys, &memory).results
    }

    /// Loads such chunks; says which are hits, which have their bytes.
    pub(crate) fn load(&self, numbers: impl IntoIterator<Item = u64>, length: usize) -> Vec<bool> {
        let place = |number| (number, Memory::new(length, 0));
        let (numbers, memory): (Vec<_>, Vec<_>) = numbers.into_iter().map(place).unzip();
        let completion = self.get(&keys(numbers.iter().copied()), &memory);
        assert!(completion.ok, "{}", completion.error);
        for ((number, memory), hit) in numbers.iter().zip(&memory).zip(&completion.results) {
            assert!(!hit || memory.bytes() == pattern(length, *number), "wrong bytes: {number}");
        }
        completion.results
    }

    /// Stores all of these chunks.
    pub(crate) fn fill(&self, numbers: impl IntoIterator<Item = u64>, length: usize) {
        let stored = self.store(numbers, length);
        assert!(stored.iter().all(|stored| *stored), "{stored:?}");
    }

    /// All of these chunks are hits.
    pub(crate) fn assert_held(&self, numbers: impl IntoIterator<Item = u64>, length: usize) {
        let held = self.load(numbers, length);
        assert!(held.iter().all(|hit| *hit), "{held:?}");
    }

    /// Everything fits together, and no space is lost once nothing moves any more.
    pub(crate) fn assert_consistent(&self) {
        let hangs = Instant::now() + HANG_TIMEOUT;
        loop {
            let check = self.connector.check().expect("an open store");
            assert_eq!(check.problems, Vec::<String>::new());
            if check.moving_bytes + check.reserved_bytes == 0 {
                return;
            }
            // What was deleted is freed behind it.
            assert!(Instant::now() < hangs, "space is lost: {check:?}");
            std::thread::yield_now();
        }
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let stats = self.connector.stats();
        stats.counters.iter().find(|(other, _)| *other == name).expect("a counter of that name").1
    }
}

impl From<Connector> for Client {
    fn from(connector: Connector) -> Self {
        Self { connector, seen: Mutex::new(HashMap::new()) }
    }
}

/// With one reactor, on large machines too: order across keys is only its own.
pub(crate) fn config(path: &Path, capacity_bytes: u64) -> Config {
    with_defaults(Config::new(path.to_str().unwrap(), capacity_bytes).unwrap())
}

/// The same of a store on several paths, each with this capacity.
pub(crate) fn config_of(paths: &[PathBuf], capacity_bytes: u64) -> Config {
    let text = |path: &PathBuf| OptionValue::Text(path.to_str().unwrap().into());
    let paths = OptionValue::List(paths.iter().map(text).collect());
    let capacity = OptionValue::Integer(capacity_bytes.into());
    let options = [("path".into(), paths), ("capacity".into(), capacity)];
    with_defaults(Config::from_options(options).unwrap())
}

fn with_defaults(mut config: Config) -> Config {
    config.io_threads = Some(1);
    config.layout = layout();
    config.engine = engine_choice();
    config
}

/// The layout that the stores of this run have: what KVRING_TEST_LAYOUT says, or the default.
pub(crate) fn layout() -> Layout {
    match std::env::var("KVRING_TEST_LAYOUT").as_deref() {
        Err(_) | Ok("extents") => Layout::Extents,
        Ok("files") => Layout::Files,
        Ok(other) => panic!("KVRING_TEST_LAYOUT is 'extents' or 'files', not '{other}'"),
    }
}

/// For tests that are about data files: whether to go on. `why` says what the other layout has instead.
pub(crate) fn has_data_files(why: &str) -> bool {
    let has = layout() == Layout::Extents;
    if !has {
        eprintln!("skipped in layout 'files': {why}");
    }
    has
}

/// What moves the bytes: `KVRING_TEST_ENGINE`, as the option `engine` takes it.
pub(crate) fn engine_choice() -> EngineChoice {
    match std::env::var("KVRING_TEST_ENGINE").as_deref() {
        Err(_) | Ok("auto") => EngineChoice::Auto,
        Ok("io_uring") => EngineChoice::IoUring,
        Ok("posix") => EngineChoice::Posix,
        Ok(other) => panic!("KVRING_TEST_ENGINE={other}: it is auto, io_uring or posix"),
    }
}

/// An engine below one of the test's.
pub(crate) fn real_engine(
    queue_depth: usize,
    waker: Arc<Waker>,
) -> Result<Box<dyn Engine>, EngineError> {
    let choice = engine_choice();
    if choice == EngineChoice::Posix {
        return Ok(Box::new(PosixEngine::new(queue_depth, waker)?));
    }
    match UringEngine::new(queue_depth, Arc::clone(&waker)) {
        Err(EngineError::Unavailable(_)) if choice == EngineChoice::Auto => {
            Ok(Box::new(PosixEngine::new(queue_depth, waker)?))
        }
        made => Ok(Box::new(made?)),
    }
}

/// Makes the one engine of a store with one reactor.
pub(crate) fn once<E>(
    make_engine: impl FnOnce(usize, Arc<Waker>) -> E,
) -> impl FnMut(usize, Arc<Waker>) -> E {
    let mut make_engine = Some(make_engine);
    move |queue_depth, waker| make_engine.take().expect("one reactor")(queue_depth, waker)
}

/// Waits until `holds`; that it never does is a hang.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let hangs = Instant::now() + HANG_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < hangs, "{what}: does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Does the same for each of these at a time: where most of it is waiting.
pub(crate) fn side_by_side<T: Send>(
    all: impl IntoIterator<Item = T>,
    work: impl Fn(T) + Send + Sync,
) {
    std::thread::scope(|scope| {
        for one in all {
            scope.spawn(|| work(one));
        }
    });
}

/// What a directory and everything in it takes: by length, or by blocks, whichever is more. Files come and go while it is
/// looked at: what is there twice was there in between, all of it at once.
pub(crate) fn on_disk_bytes(directory: &Path) -> u64 {
    let (mut before, mut after) = (HashMap::new(), HashMap::new());
    add_sizes(directory, &mut before);
    add_sizes(directory, &mut after);
    let twice = before.into_iter().filter_map(|(path, size)| Some(size.min(*after.get(&path)?)));
    twice.sum()
}

fn add_sizes(path: &Path, sizes: &mut HashMap<PathBuf, u64>) {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return };
    let blocks = metadata.blocks() * 512;
    sizes.insert(
        path.to_owned(),
        if metadata.is_dir() { blocks } else { blocks.max(metadata.len()) },
    );
    if metadata.is_dir() {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.for_each(|entry| add_sizes(&entry.path(), sizes));
    }
}

/// Waits until `waker` rings, or `timeout` is over: what an engine without a device does.
pub(crate) fn wait_for(waker: &Waker, timeout: Option<Duration>) {
    // SAFETY: the waker keeps its descriptor open while it lives, and it is borrowed here.
    let event = unsafe { BorrowedFd::borrow_raw(waker.descriptor()) };
    let limit = timeout.map_or(PollTimeout::NONE, |timeout| {
        PollTimeout::try_from(timeout.as_millis() as i32 + 1).unwrap_or(PollTimeout::MAX)
    });
    if poll(&mut [PollFd::new(event, PollFlags::POLLIN)], limit) == Ok(1) {
        nix::unistd::read(event, &mut [0; 8]).unwrap();
    }
}

fn lend(memory: &[impl Borrow<Memory>], action: Use) -> (Vec<CallerBuffer>, kvring::KeepAlive) {
    let (spans, loans): (_, Vec<_>) =
        memory.iter().map(|memory| memory.borrow().lend(action)).unzip();
    (spans, Box::new(loans))
}
