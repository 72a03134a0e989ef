//! Quotas of namespaces. Each is one account, on which all paths of a store draw.

use std::sync::Arc;

use crate::block::BLOCK_BYTES;
use crate::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Debug, Default)]
pub(crate) struct Quotas(pub(super) Vec<(String, Arc<Quota>)>);

/// Most blocks of a namespace, and how many its chunks take at all paths that are in use.
#[derive(Debug)]
pub(crate) struct Quota {
    limit_blocks: u64,
    taken_blocks: AtomicU64,
}

impl Quotas {
    /// Nothing of them is taken. `quotas` are bytes.
    pub(crate) fn new(quotas: &[(String, u64)]) -> Self {
        let quota = |bytes: u64| Quota {
            limit_blocks: bytes / BLOCK_BYTES,
            taken_blocks: AtomicU64::new(0),
        };
        Self(quotas.iter().map(|(name, bytes)| (name.clone(), Arc::new(quota(*bytes)))).collect())
    }
}

impl Quota {
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_blocks * BLOCK_BYTES
    }

    /// Takes `blocks` if they are left.
    ///
    /// # Errors
    /// How many have to be freed first.
    pub(super) fn take(&self, blocks: u64) -> Result<(), u64> {
        let within = |taken: u64| Some(taken + blocks).filter(|sum| *sum <= self.limit_blocks);
        let outcome = self.taken_blocks.fetch_update(Ordering::AcqRel, Ordering::Acquire, within);
        outcome.map(drop).map_err(|taken| taken + blocks - self.limit_blocks)
    }

    /// Takes `blocks` that a chunk has already, whether they fit or not.
    pub(super) fn add(&self, blocks: u64) {
        self.taken_blocks.fetch_add(blocks, Ordering::AcqRel);
    }

    pub(super) fn give_back(&self, blocks: u64) {
        let before = self.taken_blocks.fetch_sub(blocks, Ordering::AcqRel);
        debug_assert!(before >= blocks, "gave {blocks} of {before} blocks back");
    }
}
