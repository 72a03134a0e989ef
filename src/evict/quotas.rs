//! Quotas of namespaces. Each is one account, on which all paths of a store draw.

use std::sync::Arc;

use super::bonus::Bonus;
use super::leases::Leases;
use crate::base::block::BLOCK_BYTES;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::sync::{Mutex, RwLock};

/// Of namespaces by name, and what all paths learn together of the others. Clones are the same quotas.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quotas {
    /// One that is removed stays, without a limit: its pool stays too.
    named: Arc<RwLock<NamedQuotas>>,
    pub(super) common_bonus: Arc<Bonus>,
    paths: usize,
}

type NamedQuotas = Vec<(String, Arc<Quota>)>;

/// Instead of a limit.
const UNLIMITED: u64 = u64::MAX;

/// Most blocks of a namespace, and how many its chunks take at all paths that are in use.
#[derive(Debug)]
pub(crate) struct Quota {
    limit_blocks: AtomicU64,
    taken_blocks: AtomicU64,
    /// Of its chunks at all paths.
    pub(crate) leases: Mutex<Leases>,
    pub(crate) pinned_bytes: AtomicU64,
    pub(super) bonus: Arc<Bonus>,
}

impl Quotas {
    /// Nothing of them is taken, for so many paths. `quotas` are bytes.
    pub(crate) fn new(quotas: &[(String, u64)], paths: usize) -> Self {
        let quota = |bytes: u64| Quota::new(bytes / BLOCK_BYTES, Bonus::shared(paths));
        let named: NamedQuotas =
            quotas.iter().map(|(name, bytes)| (name.clone(), Arc::new(quota(*bytes)))).collect();
        Self { named: Arc::new(RwLock::new(named)), common_bonus: Bonus::shared(paths), paths }
    }

    /// The same, for leases of `lease_s`; nothing is leased yet.
    pub(crate) fn with_leases(&self, lease_s: u32) -> Self {
        self.all().iter().for_each(|quota| *quota.leases.lock() = Leases::new(lease_s));
        self.clone()
    }

    /// Of all namespaces without a quota.
    pub(crate) fn common_bonus(&self) -> &Bonus {
        &self.common_bonus
    }

    pub(crate) fn are_there(&self) -> bool {
        !self.named.read().is_empty()
    }

    /// In the order of their pools, which begin with 1.
    pub(crate) fn all(&self) -> Vec<Arc<Quota>> {
        self.named.read().iter().map(|(_, quota)| Arc::clone(quota)).collect()
    }

    pub(super) fn each(&self, mut take: impl FnMut(&str, &Arc<Quota>)) {
        self.named.read().iter().for_each(|(name, quota)| take(name, quota));
    }

    /// Names and bytes of those that have a limit.
    pub(crate) fn limits(&self) -> Vec<(String, u64)> {
        let named = self.named.read();
        let limit =
            |(name, quota): &(String, Arc<Quota>)| Some((name.clone(), quota.limit_bytes()?));
        named.iter().filter_map(limit).collect()
    }

    pub(crate) fn called(&self, name: &str) -> Option<Arc<Quota>> {
        let named = self.named.read();
        named.iter().find(|(known, _)| known == name).map(|(_, quota)| Arc::clone(quota))
    }

    /// Adds a namespace, which has no limit before all paths know its pool. It goes on with what the common pool has learnt.
    pub(crate) fn add(&self, name: &str, lease_s: u32) -> Arc<Quota> {
        let bonus = Bonus::shared(self.paths);
        bonus.restore(self.common_bonus.levels());
        let quota = Arc::new(Quota::new(UNLIMITED, bonus));
        *quota.leases.lock() = Leases::new(lease_s);
        self.named.write().push((name.to_owned(), Arc::clone(&quota)));
        quota
    }
}

impl Quota {
    fn new(limit_blocks: u64, bonus: Arc<Bonus>) -> Self {
        Self {
            limit_blocks: AtomicU64::new(limit_blocks),
            taken_blocks: AtomicU64::new(0),
            leases: Mutex::default(),
            pinned_bytes: AtomicU64::new(0),
            bonus,
        }
    }

    /// None if it is not limited any more.
    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        let limit_blocks = self.limit_blocks.load(Ordering::Acquire);
        (limit_blocks != UNLIMITED).then(|| limit_blocks * BLOCK_BYTES)
    }

    pub(crate) fn set_limit_bytes(&self, bytes: Option<u64>) {
        let limit_blocks = bytes.map_or(UNLIMITED, |bytes| bytes / BLOCK_BYTES);
        self.limit_blocks.store(limit_blocks, Ordering::Release);
    }

    /// Blocks that are taken beyond the limit.
    pub(crate) fn over_blocks(&self) -> u64 {
        let limit_blocks = self.limit_blocks.load(Ordering::Acquire);
        self.taken_blocks.load(Ordering::Acquire).saturating_sub(limit_blocks)
    }

    /// Takes `blocks` if they are left.
    ///
    /// # Errors
    /// How many have to be freed first.
    pub(super) fn take(&self, blocks: u64) -> Result<(), u64> {
        let limit_blocks = self.limit_blocks.load(Ordering::Acquire);
        let within = |taken: u64| Some(taken + blocks).filter(|sum| *sum <= limit_blocks);
        let outcome = self.taken_blocks.fetch_update(Ordering::AcqRel, Ordering::Acquire, within);
        outcome.map(drop).map_err(|taken| taken + blocks - limit_blocks)
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
