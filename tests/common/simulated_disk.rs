//! A disk that loses power, and a page cache that outlives a process: for each file it keeps every version of every sector
//! since the last sync of that file. At power loss it picks one of them for each sector by a seeded choice, so that writes
//! are dropped, torn and reordered. At the death of the process everything stays as it is, unsynced.
//!
//! A sync that fails drops some of what it should have made durable: the page cache keeps it, and no later sync writes it.
//! Each descriptor is told once at most.
//!
//! Transfers are done at once on real files in memory. The index is written through a mapping, behind the engine's back:
//! its sectors are looked at before every transfer and every sync. Lengths and names of files are durable at once: they
//! are the file system's, which has a journal.
#![allow(dead_code, reason = "each test program uses its own part of it")]

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvring::{Config, Connector, OpenError};
use parking_lot::{Condvar, Mutex, MutexGuard};

#[path = "sectors.rs"]
mod sectors;

use self::sectors::{SECTOR_BYTES, SimulatedFile, is_same, read_start, sector};
use crate::common::random::Random;
use crate::simulated_engine::{SimulatedEngine, SimulatedFiles};
use crate::turns::Turns;

const INDEX: &str = "index.kvring";
/// As much of the index as the small workloads of a simulation use.
const INDEX_BYTES: usize = 64 << 10;

/// How a session ends without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crash {
    /// The process dies; the page cache stays.
    Kill,
    /// What was not synced is kept, dropped or torn by choice.
    PowerLoss,
    /// Nothing stays that was not synced.
    PowerLossKeepingNothing,
}

/// What the next owner finds.
struct Image {
    /// Length, content, and what of it is not durable.
    files: BTreeMap<String, (u64, SimulatedFile)>,
}

struct State {
    /// Times that the machine was started, and whether it is going down.
    boot: u32,
    goes_down: bool,
    files: BTreeMap<String, SimulatedFile>,
    /// Transfers and syncs until the crash.
    left: u64,
    crash: Crash,
    random: Random,
    image: Option<Image>,
    /// Hash of all choices, to tell whether a seed replays.
    fingerprint: u64,
    /// The connector's open has returned; no transfer is done before, so that their order is the seed's alone.
    is_open: bool,
    /// One in so many syncs of the reactors fails; none with 0.
    failing_syncs: u64,
    /// Which of the next syncs that come without an engine fails; none with 0.
    failing_call: u64,
}

/// The files of one store: shared between the engine and the test that crashes it.
pub(crate) struct SimulatedDisk {
    directory: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
    pub(crate) turns: Turns,
    /// It is decided what the next owner finds: nothing that happens now is kept.
    crashed: AtomicBool,
}

impl SimulatedDisk {
    /// A disk for the store in `directory`; what is in there is durable. It does not crash by itself before `arm`.
    pub(crate) fn new(directory: &Path, random: Random) -> Arc<Self> {
        let state = State {
            boot: 1,
            goes_down: false,
            files: BTreeMap::new(),
            left: u64::MAX,
            crash: Crash::PowerLoss,
            random,
            image: None,
            fingerprint: 0,
            is_open: false,
            failing_syncs: 0,
            failing_call: 0,
        };
        Arc::new(Self {
            directory: directory.to_owned(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            turns: Turns::new(),
            crashed: AtomicBool::new(false),
        })
    }

    /// Name of a file of the store; empty for its directory.
    pub(crate) fn name_of(&self, path: &Path) -> String {
        path.strip_prefix(&self.directory).unwrap().to_str().unwrap().to_owned()
    }

    /// From now on one in so many syncs of the reactors fails; none with 0.
    pub(crate) fn fail_syncs(&self, one_in: u64) {
        self.state.lock().failing_syncs = one_in;
    }

    /// Of the syncs that come without an engine, at opening and closing, this one fails, counted from 1.
    pub(crate) fn fail_call(&self, number: u64) {
        self.state.lock().failing_call = number;
    }

    /// Whether that one was reached.
    pub(crate) fn has_failed_call(&self) -> bool {
        self.state.lock().failing_call == 0
    }

    /// From now on it crashes at the `events`-th transfer or sync.
    pub(crate) fn arm(&self, events: u64, crash: Crash) {
        let mut state = self.state.lock();
        (state.left, state.crash) = (events, crash);
    }

    /// Opens the store over this disk. Chunks are verified from now on, or with `wait_idle`.
    pub(crate) fn open(self: &Arc<Self>, mut config: Config) -> Result<Connector, OpenError> {
        let random = {
            let mut state = self.state.lock();
            state.is_open = false;
            config.boot = state.boot;
            config.works_inline = true;
            config.files = Arc::new(SimulatedFiles(Arc::clone(self)));
            // Whoever opens a file is told of what fails from then on.
            for file in state.files.values_mut() {
                (file.failures, file.told) = (0, HashMap::new());
            }
            self.turns.begin(Random::new(state.random.below(u64::MAX)));
            Random::new(state.random.below(u64::MAX))
        };
        let disk = Arc::clone(self);
        let mut random = random;
        let make_engine = move |_, waker| {
            let random = Random::new(random.below(u64::MAX));
            Ok(SimulatedEngine::new(Arc::clone(&disk), waker, random))
        };
        let connector = Connector::open_with_engine(config, make_engine);
        connector.inspect_err(|_| self.let_transfers_go())
    }

    /// Transfers wait for this after `open`.
    pub(crate) fn let_transfers_go(&self) {
        self.state.lock().is_open = true;
        self.changed.notify_all();
    }

    /// Waits until the chunks of a crashed session are verified.
    pub(crate) fn wait_idle(&self) {
        self.turns.wait_idle();
    }

    pub(crate) fn wait_open(&self) {
        self.changed.wait_while(&mut self.state.lock(), |state| !state.is_open);
    }

    pub(crate) fn has_crashed(&self) -> bool {
        self.crashed.load(Ordering::SeqCst)
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        self.state.lock().fingerprint
    }

    /// Counts a transfer or sync that is about to be done; with the last one comes the crash.
    pub(crate) fn event(&self) {
        let crash = {
            let mut state = self.state.lock();
            self.look_at_index(&mut state);
            state.left = state.left.saturating_sub(1);
            (state.left == 0).then_some(state.crash)
        };
        if let Some(crash) = crash {
            self.crash(crash);
        }
    }

    /// What was written to the file so far is durable, unless the sync is to fail: it says so, and nothing is. The device
    /// has lost the data then; of the index, which is mapped, the page cache keeps it.
    pub(crate) fn sync(&self, name: &str) -> bool {
        let mut state = self.state_before_sync(name);
        let fails = state.failing_call == 1;
        state.failing_call = state.failing_call.saturating_sub(1);
        let Some(file) = state.files.get_mut(name) else { return fails };
        let unsynced = std::mem::take(&mut file.unsynced);
        for (number, versions) in unsynced.into_iter().filter(|_| fails) {
            if name == INDEX {
                file.dropped.insert(number, versions[0]);
            } else {
                let path = self.directory.join(name);
                let data = File::options().write(true).open(path).unwrap();
                data.write_all_at(&versions[0], (number * SECTOR_BYTES) as u64).unwrap();
            }
        }
        fails
    }

    /// A sync is about to be done.
    fn state_before_sync(&self, name: &str) -> MutexGuard<'_, State> {
        self.event();
        let mut state = self.state.lock();
        if name == INDEX {
            self.look_at_index(&mut state);
        }
        state
    }

    /// A sync of a reactor, by `descriptor`; says whether it failed.
    pub(crate) fn try_sync(&self, name: &str, descriptor: RawFd) -> bool {
        let mut state = self.state_before_sync(name);
        let State { files, random, failing_syncs, .. } = &mut *state;
        let Some(file) = files.get_mut(name) else { return false };
        let fails = *failing_syncs > 0 && random.one_of(*failing_syncs);
        for (number, mut versions) in std::mem::take(&mut file.unsynced) {
            let written = random.below(versions.len() as u64) as usize;
            if fails && written + 1 < versions.len() {
                file.dropped.insert(number, versions.swap_remove(written));
            }
        }
        // The kernel tells others of errors of writing back, and nobody of a device that could not flush.
        if fails && random.one_of(2) {
            file.failures += 1;
            file.told.insert(descriptor, file.failures);
        }
        let told = file.told.insert(descriptor, file.failures).unwrap_or(0);
        fails || told < file.failures
    }

    /// What a failed sync dropped between two offsets is to be written after all.
    pub(crate) fn write_anew(&self, name: &str, begin: usize, end: usize) {
        let mut state = self.state.lock();
        self.look_at_index(&mut state);
        let Some(file) = state.files.get_mut(name) else { return };
        let numbers = begin / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES);
        let dropped: Vec<usize> = file.dropped.range(numbers).map(|(number, _)| *number).collect();
        for number in dropped {
            let now = sector(&file.seen[number * SECTOR_BYTES..][..SECTOR_BYTES]);
            file.change(number, &[], &now);
        }
    }

    /// Notes what a transfer wrote at `offset`.
    pub(crate) fn written(&self, name: &str, offset: usize, before: &[u8], now: &[u8]) {
        let mut state = self.state.lock();
        let file = state.files.entry(name.to_owned()).or_default();
        file.end = file.end.max(offset + now.len());
        let sectors = before.chunks(SECTOR_BYTES).zip(now.chunks(SECTOR_BYTES));
        for (number, (old, new)) in (offset / SECTOR_BYTES..).zip(sectors) {
            file.change(number, old, new);
        }
    }

    fn look_at_index(&self, state: &mut State) {
        let now = read_start(&self.directory.join(INDEX), INDEX_BYTES);
        let file = state.files.entry(INDEX.to_owned()).or_default();
        let mut seen = std::mem::take(&mut file.seen);
        seen.resize(now.len(), 0);
        let sectors = seen.chunks(SECTOR_BYTES).zip(now.chunks(SECTOR_BYTES));
        for (number, (old, new)) in sectors.enumerate() {
            if !is_same(number, old, new) {
                file.change(number, old, new);
            }
        }
        file.end = now.len();
        file.seen = now;
    }

    /// Decides what the next owner finds, if that is not decided yet.
    pub(crate) fn crash(&self, crash: Crash) {
        let mut state = self.state.lock();
        if state.image.is_some() {
            return;
        }
        state.goes_down = crash != Crash::Kill;
        self.look_at_index(&mut state);
        let State { files, random, fingerprint, .. } = &mut *state;
        // Everything kept, everything dropped, or each sector on its own.
        let mood = if crash == Crash::PowerLossKeepingNothing { 0 } else { random.below(4) };
        let mut image = Image { files: BTreeMap::new() };
        for (name, file) in files.iter() {
            let path = self.directory.join(name);
            let Ok(metadata) = std::fs::metadata(&path) else { continue };
            let mut left = SimulatedFile {
                seen: read_start(&path, file.end),
                end: file.end,
                ..SimulatedFile::default()
            };
            let place = |number: &usize| number * SECTOR_BYTES..(number + 1) * SECTOR_BYTES;
            if crash != Crash::Kill {
                for (number, durable) in &file.dropped {
                    left.seen[place(number)].copy_from_slice(durable);
                }
            }
            for (number, versions) in &file.unsynced {
                let version = match mood {
                    _ if crash == Crash::Kill => versions.len() - 1,
                    0 => 0,
                    1 => versions.len() - 1,
                    _ => random.below(versions.len() as u64) as usize,
                };
                left.seen[place(number)].copy_from_slice(&versions[version]);
                for part in [*number, versions.len(), version] {
                    *fingerprint = (*fingerprint ^ part as u64).wrapping_mul(0x0100_0000_01b3);
                }
            }
            if crash == Crash::Kill {
                left.unsynced.clone_from(&file.unsynced);
                left.dropped.clone_from(&file.dropped);
            }
            image.files.insert(name.clone(), (metadata.len(), left));
        }
        // Files that nobody has written to.
        for entry in self.directory.read_dir().unwrap() {
            let entry = entry.unwrap();
            let length = entry.metadata().unwrap().len();
            let name = entry.file_name().into_string().unwrap();
            image.files.entry(name).or_insert((length, SimulatedFile::default()));
        }
        state.image = Some(image);
        self.crashed.store(true, Ordering::SeqCst);
    }

    /// Puts what the crash left into `directory`, and makes a disk of it.
    pub(crate) fn move_on(&self, directory: &Path) -> Arc<Self> {
        let mut state = self.state.lock();
        let image = state.image.take().expect("a crash");
        let mut files = BTreeMap::new();
        for (name, (length, left)) in image.files {
            let file = File::create(directory.join(&name)).unwrap();
            file.set_len(length).unwrap();
            // Holes stay holes: most of a data file is zeros.
            for (number, block) in left.seen.chunks(4096).enumerate() {
                if block.iter().any(|byte| *byte != 0) {
                    file.write_all_at(block, number as u64 * 4096).unwrap();
                }
            }
            files.insert(name, left);
        }
        let next = Self::new(directory, Random::new(state.random.below(u64::MAX)));
        {
            let mut next = next.state.lock();
            next.boot = state.boot + u32::from(state.goes_down);
            (next.files, next.fingerprint) = (files, state.fingerprint);
        }
        next
    }
}

impl std::fmt::Debug for SimulatedDisk {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SimulatedDisk at {}", self.directory.display())
    }
}
