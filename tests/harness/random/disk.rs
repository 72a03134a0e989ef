//! A disk that keeps the first bytes of each block only, so that many operations take little time: enough to tell whose
//! block it is, of which version, and which one of them. The index is a file in memory. A process on it can be killed at
//! any transfer: what it leaves is put in place before the next one starts.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvring::testing::{Action, Engine, Reaped, Transfer, Waker};
use kvring::{BLOCK_BYTES, Config, Connector, EngineError};
use parking_lot::Mutex;

use crate::common::random::Random;
use crate::common::wait_for;

const INDEX: &str = "index.kvring";
const BLOCK: usize = BLOCK_BYTES as usize;
pub(crate) const TAG_BYTES: usize = 16;

type Tag = [u8; TAG_BYTES];
/// By the name of their file.
type Blocks = BTreeMap<String, Vec<Tag>>;

/// What a killed process leaves.
struct Image {
    index: Vec<u8>,
    /// Their lengths.
    data_files: BTreeMap<String, u64>,
    blocks: Blocks,
}

struct State {
    blocks: Blocks,
    /// Transfers and syncs until the kill.
    left: u64,
    image: Option<Image>,
}

pub(crate) struct TagDisk {
    directory: PathBuf,
    state: Mutex<State>,
    was_killed: AtomicBool,
}

impl TagDisk {
    pub(crate) fn new(directory: &Path) -> Arc<Self> {
        let state = State { blocks: Blocks::new(), left: u64::MAX, image: None };
        Arc::new(Self {
            directory: directory.to_owned(),
            state: Mutex::new(state),
            was_killed: AtomicBool::new(false),
        })
    }

    /// Opens the store over this disk. It is killed at the `events`-th transfer or sync.
    pub(crate) fn open(
        self: &Arc<Self>,
        config: Config,
        events: u64,
        seed: u64,
    ) -> Result<Connector, kvring::OpenError> {
        self.state.lock().left = events;
        let disk = Arc::clone(self);
        Connector::open_with_engine(config, move |_, waker| {
            let (disk, random) = (Arc::clone(&disk), Random::new(seed));
            Ok(TagEngine { disk, waker, random, done: Vec::new() })
        })
    }

    pub(crate) fn was_killed(&self) -> bool {
        self.was_killed.load(Ordering::SeqCst)
    }

    fn event(&self) {
        let is_last = {
            let mut state = self.state.lock();
            state.left = state.left.saturating_sub(1);
            state.left == 0
        };
        if is_last {
            self.kill();
        }
    }

    /// The names of all files but the index.
    fn data_files(&self) -> impl Iterator<Item = String> {
        let entries = self.directory.read_dir().unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != INDEX)
    }

    /// What there is now is what the next process finds, if that is not decided yet.
    pub(crate) fn kill(&self) {
        let mut state = self.state.lock();
        if self.was_killed.swap(true, Ordering::SeqCst) {
            return;
        }
        let length = |name| self.directory.join(name).metadata().unwrap().len();
        let data_files = self.data_files().map(|name| (name.clone(), length(name))).collect();
        let index = std::fs::read(self.directory.join(INDEX)).unwrap_or_default();
        state.image = Some(Image { index, data_files, blocks: state.blocks.clone() });
    }

    /// Puts what the killed process left in place, once its connector is dropped.
    pub(crate) fn restore(&self) {
        let mut state = self.state.lock();
        let Some(image) = state.image.take() else { return };
        std::fs::write(self.directory.join(INDEX), image.index).unwrap();
        for name in self.data_files().filter(|name| !image.data_files.contains_key(name)) {
            std::fs::remove_file(self.directory.join(&name)).unwrap();
        }
        // Made, lengthened, shortened or removed after the kill.
        for (name, length) in &image.data_files {
            let mut options = File::options();
            let file = options.write(true).create(true).truncate(false);
            file.open(self.directory.join(name)).unwrap().set_len(*length).unwrap();
        }
        state.blocks = image.blocks;
        self.was_killed.store(false, Ordering::SeqCst);
    }
}

struct TagEngine {
    disk: Arc<TagDisk>,
    waker: Arc<Waker>,
    random: Random,
    /// Submitted; those with a transfer are still to be done.
    done: Vec<(Reaped, Option<Transfer>)>,
}

impl TagEngine {
    fn transfer(&mut self, transfer: &Transfer) -> i32 {
        // SAFETY: the submitter vouches for the vectors until the transfer is reaped.
        let vectors =
            unsafe { std::slice::from_raw_parts(transfer.vectors, transfer.vector_count) };
        let name = name(transfer.file);
        let mut state = self.disk.state.lock();
        let blocks = state.blocks.entry(name).or_default();
        let mut offset = transfer.offset_bytes as usize;
        for vector in vectors {
            assert!(offset.is_multiple_of(BLOCK) && vector.iov_len.is_multiple_of(BLOCK));
            // SAFETY: the submitter vouches for the memory until the transfer is reaped.
            let memory = unsafe {
                std::slice::from_raw_parts_mut(vector.iov_base.cast::<u8>(), vector.iov_len)
            };
            let (first, count) = (offset / BLOCK, memory.len() / BLOCK);
            if blocks.len() < first + count {
                blocks.resize(first + count, [0; TAG_BYTES]);
            }
            for (tag, block) in
                blocks[first..first + count].iter_mut().zip(memory.chunks_mut(BLOCK))
            {
                if transfer.action == Action::Write {
                    tag.copy_from_slice(&block[..TAG_BYTES]);
                    continue;
                }
                block[..TAG_BYTES].copy_from_slice(tag);
                // It may be bounce memory, with what was in it before.
                if count == 1 {
                    block[TAG_BYTES..].fill(0);
                }
            }
            offset += vector.iov_len;
        }
        (offset - transfer.offset_bytes as usize) as i32
    }
}

/// Which file a descriptor is of: another one, once a data file was removed.
fn name(file: RawFd) -> String {
    let path = std::fs::read_link(format!("/proc/self/fd/{file}")).unwrap();
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

impl Engine for TagEngine {
    fn description(&self) -> String {
        "first bytes of each block".into()
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        self.disk.event();
        let token = transfer.token;
        let done = match transfer.action {
            Action::Sync => (Reaped { token, result: 0 }, None),
            // Now, or as late as can be.
            _ if self.random.one_of(2) => {
                (Reaped { token, result: self.transfer(&transfer) }, None)
            }
            _ => (Reaped { token, result: 0 }, Some(transfer)),
        };
        self.done.push(done);
        Ok(())
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        if self.done.is_empty() && timeout != Some(Duration::ZERO) {
            wait_for(&self.waker, timeout);
        }
        // Completions come in any order, some of them later.
        let stays = self.random.below(1 + self.done.len() as u64 / 2) as usize;
        while self.done.len() > stays {
            let next = self.random.below(self.done.len() as u64) as usize;
            let (mut result, transfer) = self.done.swap_remove(next);
            if let Some(transfer) = transfer {
                result.result = self.transfer(&transfer);
            }
            reaped.push(result);
        }
        Ok(())
    }

    fn cancel_all(&mut self) {}
}
