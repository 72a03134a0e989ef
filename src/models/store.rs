//! A whole store on a model of a device: connector, reactors, record writer, maintenance and growth, with all their threads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use tempfile::TempDir;

use crate::base::buffer::{AlignedBlock, CallerBuffer};
use crate::batch::completion_queue::Completion;
use crate::config::{Config, MIN_CAPACITY_BYTES};
use crate::connector::Connector;
use crate::engine::posix::perform;
use crate::engine::{Engine, EngineError, Reaped, Transfer, Waker};

pub(super) const MIB: usize = 1 << 20;
/// The system makes such a file in no time.
const CAPACITY_BYTES: u64 = 4 << 20;

/// The kernel does a transfer at any time between its submission and its reaping, in any order.
struct ModelEngine {
    waker: Arc<Waker>,
    under_way: Vec<Transfer>,
}

impl ModelEngine {
    fn end_one(&mut self, reaped: &mut Vec<Reaped>) {
        let next = thread_rng().gen_range(0..self.under_way.len());
        let transfer = self.under_way.swap_remove(next);
        // SAFETY: the reactor vouches for the transfer until it is reaped.
        let result = unsafe { perform(transfer) };
        reaped.push(Reaped { token: transfer.token, result });
    }
}

impl Engine for ModelEngine {
    fn description(&self) -> String {
        "model".into()
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        self.under_way.push(transfer);
        Ok(())
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        // Few at a time, or all.
        let goes_on = if thread_rng().gen_bool(0.5) { 0.5 } else { 1.0 };
        while !self.under_way.is_empty() && thread_rng().gen_bool(goes_on) {
            self.end_one(reaped);
        }
        let waits = reaped.is_empty() && timeout != Some(Duration::ZERO);
        match self.under_way.is_empty() {
            // No timeout passes: a wake-up that does not come is a deadlock.
            true if waits => drop(self.waker.event.read()),
            false if waits => self.end_one(reaped),
            _ => {}
        }
        Ok(())
    }

    fn cancel_all(&mut self) {}
}

/// Memory of a caller, as long as the batch has it.
pub(super) type Memory = Arc<AlignedBlock>;

pub(super) fn memory(length: usize, byte: u8) -> Memory {
    let mut block = AlignedBlock::zeroed(length);
    block.bytes_mut().fill(byte);
    Arc::new(block)
}

pub(super) fn bytes_of(memory: &Memory) -> &[u8] {
    // SAFETY: it is looked at when its batch is answered.
    unsafe { std::slice::from_raw_parts(memory.as_ptr(), memory.size_bytes()) }
}

/// Whether all bytes are `byte`.
pub(super) fn is_all(memory: &Memory, byte: u8) -> bool {
    bytes_of(memory) == vec![byte; memory.size_bytes()]
}

pub(super) struct Store {
    pub(super) connector: Connector,
    _directory: TempDir,
}

impl Store {
    pub(super) fn open(reactors: usize) -> Arc<Self> {
        Self::open_with(reactors, |_| ())
    }

    pub(super) fn open_with(reactors: usize, change: impl FnOnce(&mut Config)) -> Arc<Self> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let mut config = Config::new(path, MIN_CAPACITY_BYTES).unwrap();
        // Less than users may have.
        config.capacities_bytes = vec![CAPACITY_BYTES];
        (config.io_threads, config.min_free_bytes) = (Some(reactors), Some(0));
        (config.lease_s, config.ttl) = (0, None);
        change(&mut config);
        let connector = Connector::open_with_engine(config, |_, waker| {
            Ok(ModelEngine { waker, under_way: Vec::new() })
        });
        Arc::new(Self { connector: connector.unwrap(), _directory: directory })
    }

    pub(super) fn try_set(&self, key: &str, memory: &Memory) -> Option<u64> {
        self.connector.submit_set(&[key], &[buffer(memory)], Box::new(Arc::clone(memory))).ok()
    }

    pub(super) fn try_get(&self, key: &str, memory: &Memory) -> Option<u64> {
        self.connector.submit_get(&[key], &[buffer(memory)], Box::new(Arc::clone(memory))).ok()
    }

    pub(super) fn set(&self, key: &str, memory: &Memory) -> u64 {
        self.try_set(key, memory).unwrap()
    }

    pub(super) fn get(&self, key: &str, memory: &Memory) -> u64 {
        self.try_get(key, memory).unwrap()
    }

    pub(super) fn delete(&self, key: &str) -> u64 {
        self.connector.submit_delete(&[key]).unwrap()
    }

    /// Waits for so many completions, by id.
    pub(super) fn wait(&self, count: usize) -> BTreeMap<u64, Completion> {
        let mut all = Vec::new();
        while all.len() < count {
            self.connector.completions.common.event.wait_readable();
            self.connector.drain(&mut all);
        }
        assert_eq!(all.len(), count, "each batch is answered once");
        all.into_iter().map(|one| (one.future_id, one)).collect()
    }

    /// Waits for one batch; says whether its only key was stored, loaded or removed.
    pub(super) fn wait_for(&self, future_id: u64) -> bool {
        self.wait(1)[&future_id].results[0]
    }

    /// Loads a chunk while nothing else is under way.
    pub(super) fn load(&self, key: &str, length: usize) -> Option<Memory> {
        let memory = memory(length, 0);
        self.wait_for(self.get(key, &memory)).then_some(memory)
    }

    /// Bytes of extents that are given out.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.connector.volumes.all[0].shared.cache.store.usage().allocated_bytes
    }

    pub(super) fn close(&self) {
        let shutdown = self.connector.close();
        assert!(shutdown.clean && !shutdown.memory_held, "{shutdown:?}");
    }
}

fn buffer(memory: &Memory) -> CallerBuffer {
    // SAFETY: the batch keeps the memory alive, and it is looked at when that is answered.
    unsafe { CallerBuffer::new(memory.as_ptr(), memory.size_bytes()) }
}
