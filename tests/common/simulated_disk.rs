//! An engine whose disk loses power: it keeps every version of every sector since the last sync of its file, and at the
//! crash picks one of them for each sector by a seeded choice. So writes are dropped, torn and reordered.
//!
//! Transfers are done at once on real files in memory. The index is written through a mapping, behind the engine's back:
//! its sectors are looked at before and after every transfer.

use std::collections::BTreeMap;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvring::{Action, Engine, EngineError, Reaped, Transfer, Waker};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;

const SECTOR_BYTES: usize = 512;

/// As much of the index as the small workloads of a simulation use.
const INDEX_BYTES: usize = 64 << 10;

type Sector = [u8; SECTOR_BYTES];

/// Choices by a seed, the same on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // The first numbers of neighbouring seeds are alike.
        for _ in 0..4 {
            random.below(2);
        }
        random
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// Sectors that were written since the last sync of their file: what is durable, and every version since.
#[derive(Default)]
struct Unsynced {
    data: BTreeMap<usize, Vec<Sector>>,
    index: BTreeMap<usize, Vec<Sector>>,
}

/// What survives: shared between the engine and the test that crashes it.
pub(crate) struct SimulatedDisk {
    directory: PathBuf,
    state: Mutex<State>,
    /// The power is gone: nothing that happens now is kept.
    pub(crate) crashed: AtomicBool,
}

struct State {
    unsynced: Unsynced,
    /// The index as it was last looked at.
    index_seen: Vec<u8>,
    /// Where the last write to the data file ended.
    data_end: usize,
    /// Transfers until the power goes.
    left: u64,
    /// What is on disk after the crash.
    image: Option<Image>,
}

struct Image {
    index: Vec<u8>,
    data: Vec<u8>,
}

impl SimulatedDisk {
    /// A disk for the store in `directory` that crashes at the `transfers`-th transfer.
    pub(crate) fn new(directory: &Path, transfers: u64) -> Arc<Self> {
        let state = State {
            unsynced: Unsynced::default(),
            index_seen: Vec::new(),
            data_end: 0,
            left: transfers,
            image: None,
        };
        Arc::new(Self {
            directory: directory.to_owned(),
            state: Mutex::new(state),
            crashed: AtomicBool::new(false),
        })
    }

    fn look_at_index(&self, state: &mut State) {
        let now = read_all(&self.directory.join("index.kvring"), INDEX_BYTES);
        let before = &mut state.index_seen;
        before.resize(now.len(), 0);
        for (number, (old, new)) in
            before.chunks(SECTOR_BYTES).zip(now.chunks(SECTOR_BYTES)).enumerate()
        {
            if old != new {
                let versions =
                    state.unsynced.index.entry(number).or_insert_with(|| vec![sector(old)]);
                versions.push(sector(new));
            }
        }
        state.index_seen = now;
    }

    /// Cuts the power if it is not cut yet: what is on disk is decided now.
    pub(crate) fn crash(&self, random: &mut Random) {
        let mut state = self.state.lock();
        if state.image.is_some() {
            return;
        }
        self.look_at_index(&mut state);
        let mut index = state.index_seen.clone();
        let mut data = read_all(&self.directory.join("data-00000.kvring"), state.data_end);
        // Everything kept, everything dropped, or each sector on its own.
        let mood = random.below(4);
        let mut settle = |unsynced: &BTreeMap<usize, Vec<Sector>>, image: &mut [u8]| {
            for (number, versions) in unsynced {
                let version = match mood {
                    0 => 0,
                    1 => versions.len() - 1,
                    _ => random.below(versions.len() as u64) as usize,
                };
                let place = number * SECTOR_BYTES..(number + 1) * SECTOR_BYTES;
                image[place].copy_from_slice(&versions[version]);
            }
        };
        settle(&state.unsynced.index, &mut index);
        settle(&state.unsynced.data, &mut data);
        state.image = Some(Image { index, data });
        self.crashed.store(true, Ordering::SeqCst);
    }

    /// Writes what survived into `directory`.
    pub(crate) fn write_image(&self, directory: &Path) {
        let state = self.state.lock();
        let image = state.image.as_ref().expect("a crash");
        for (name, bytes) in [("index.kvring", &image.index), ("data-00000.kvring", &image.data)] {
            // Lengths are the file system's, which has a journal.
            let Ok(original) = std::fs::metadata(self.directory.join(name)) else { continue };
            let length = original.len();
            let file = File::create(directory.join(name)).unwrap();
            file.set_len(length).unwrap();
            // Holes stay holes: most of a data file is zeros.
            for (number, block) in bytes.chunks(4096).enumerate() {
                if block.iter().any(|byte| *byte != 0) {
                    file.write_all_at(block, number as u64 * 4096).unwrap();
                }
            }
        }
    }
}

fn sector(bytes: &[u8]) -> Sector {
    let mut sector = [0; SECTOR_BYTES];
    sector[..bytes.len()].copy_from_slice(bytes);
    sector
}

fn read_all(path: &Path, limit: usize) -> Vec<u8> {
    let Ok(file) = File::open(path) else { return Vec::new() };
    let length = (file.metadata().unwrap().len() as usize).min(limit);
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// The engine over a [`SimulatedDisk`].
pub(crate) struct SimulatedEngine {
    disk: Arc<SimulatedDisk>,
    waker: Arc<Waker>,
    random: Random,
    done: Vec<Reaped>,
}

impl SimulatedEngine {
    pub(crate) fn new(disk: Arc<SimulatedDisk>, waker: Arc<Waker>, random: Random) -> Self {
        Self { disk, waker, random, done: Vec::new() }
    }

    fn sync(&mut self, file: RawFd) {
        let target = std::fs::read_link(format!("/proc/self/fd/{file}")).unwrap();
        let mut state = self.disk.state.lock();
        if target.ends_with("index.kvring") {
            // What was stored through the map before the sync is durable now.
            self.disk.look_at_index(&mut state);
            state.unsynced.index.clear();
        } else {
            state.unsynced.data.clear();
        }
    }

    fn transfer(&self, transfer: &Transfer) -> i32 {
        // SAFETY: the descriptor is open as long as the transfer is under way, and is not closed here.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(transfer.file) });
        // SAFETY: the submitter vouches for the vectors.
        let vectors =
            unsafe { std::slice::from_raw_parts(transfer.vectors, transfer.vector_count) };
        let mut offset = transfer.offset_bytes;
        for vector in vectors {
            // SAFETY: the submitter vouches for the memory until the transfer is reaped.
            let memory = unsafe {
                std::slice::from_raw_parts_mut(vector.iov_base.cast::<u8>(), vector.iov_len)
            };
            if transfer.action == Action::Read {
                file.read_exact_at(memory, offset).unwrap();
            } else {
                self.write(&file, memory, offset);
            }
            offset += vector.iov_len as u64;
        }
        (offset - transfer.offset_bytes) as i32
    }

    fn write(&self, file: &File, memory: &[u8], offset: u64) {
        let mut before = vec![0; memory.len()];
        file.read_exact_at(&mut before, offset).unwrap();
        file.write_all_at(memory, offset).unwrap();
        let mut state = self.disk.state.lock();
        state.data_end = state.data_end.max(offset as usize + memory.len());
        let first = offset as usize / SECTOR_BYTES;
        let sectors = before.chunks(SECTOR_BYTES).zip(memory.chunks(SECTOR_BYTES));
        for (number, (old, new)) in sectors.enumerate() {
            let versions =
                state.unsynced.data.entry(first + number).or_insert_with(|| vec![sector(old)]);
            versions.push(sector(new));
        }
    }
}

impl Engine for SimulatedEngine {
    fn description(&self) -> String {
        "simulated disk".into()
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        let disk = Arc::clone(&self.disk);
        let power_goes = {
            let mut state = disk.state.lock();
            disk.look_at_index(&mut state);
            state.left = state.left.saturating_sub(1);
            state.left == 0
        };
        if power_goes {
            disk.crash(&mut self.random);
        }
        let result = match transfer.action {
            Action::Sync => {
                self.sync(transfer.file);
                0
            }
            Action::Read | Action::Write => self.transfer(&transfer),
        };
        self.done.push(Reaped { token: transfer.token, result });
        Ok(())
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        if self.done.is_empty() && timeout != Some(Duration::ZERO) {
            // SAFETY: the waker lives as long as this engine.
            let event = unsafe { BorrowedFd::borrow_raw(self.waker.descriptor()) };
            let limit = timeout.map_or(PollTimeout::NONE, |timeout| {
                PollTimeout::try_from(timeout.as_millis() as i32 + 1).unwrap_or(PollTimeout::MAX)
            });
            if poll(&mut [PollFd::new(event, PollFlags::POLLIN)], limit) == Ok(1) {
                nix::unistd::read(event, &mut [0; 8]).unwrap();
            }
        }
        // Completions come in any order.
        while !self.done.is_empty() {
            let next = self.random.below(self.done.len() as u64) as usize;
            reaped.push(self.done.swap_remove(next));
        }
        Ok(())
    }

    fn cancel_all(&mut self) {}
}
