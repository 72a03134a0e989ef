//! Quotas of namespaces. Each is one account, on which all paths of a store draw.

use std::sync::Arc;

use super::bonus::Bonus;
use super::leases::Leases;
use crate::base::block::BLOCK_BYTES;
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicU64, Ordering};

/// Of namespaces by name, and what all paths learn together of the others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quotas {
    pub(super) named: Vec<(String, Arc<Quota>)>,
    pub(super) common_bonus: Arc<Bonus>,
}

/// Most blocks of a namespace, and how many its chunks take at all paths that are in use.
#[derive(Debug)]
pub(crate) struct Quota {
    limit_blocks: u64,
    taken_blocks: AtomicU64,
    /// Of its chunks at all paths.
    pub(crate) leases: Mutex<Leases>,
    pub(crate) pinned_bytes: AtomicU64,
    pub(super) bonus: Arc<Bonus>,
}

impl Quotas {
    /// The same, for leases of `lease_s`; nothing is leased yet.
    pub(crate) fn with_leases(&self, lease_s: u32) -> Self {
        self.named.iter().for_each(|(_, quota)| *quota.leases.lock() = Leases::new(lease_s));
        self.clone()
    }

    /// Of all namespaces without a quota.
    pub(crate) fn common_bonus(&self) -> &Bonus {
        &self.common_bonus
    }

    /// The quota of the namespace with this number. Those that have one were the first ones to get their numbers, in this order.
    pub(crate) fn of(&self, namespace: u32) -> Option<&Quota> {
        self.named.get(namespace as usize).map(|(_, quota)| &**quota)
    }

    /// Nothing of them is taken, for so many paths. `quotas` are bytes.
    pub(crate) fn new(quotas: &[(String, u64)], paths: usize) -> Self {
        let quota = |bytes: u64| Quota {
            limit_blocks: bytes / BLOCK_BYTES,
            taken_blocks: AtomicU64::new(0),
            leases: Mutex::default(),
            pinned_bytes: AtomicU64::new(0),
            bonus: Bonus::shared(paths),
        };
        let named =
            quotas.iter().map(|(name, bytes)| (name.clone(), Arc::new(quota(*bytes)))).collect();
        Self { named, common_bonus: Bonus::shared(paths) }
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
