//! Ghosts and bonuses across a close and an open.

use std::cmp::{Ordering::Equal, Ordering::Greater, Reverse};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::parallel::{OPENING, on_threads};
use crate::base::sync::Mutex;
use crate::base::sync::atomic::Ordering;
use crate::error::StoreError;
use crate::evict::NamespaceId;
use crate::format::ghost_record::{GhostRecord, StoredGhost, WAS_EVICTED};
use crate::index::file::changes::Change;
use crate::index::file::table::Reservation;
use crate::index::memory::map::{Index, SHARDS};
use crate::index::memory::shard::Shard;
use crate::index::memory::shard::ghosts::{Fingerprint, Ghost};

/// A close writes ghosts for at most so long: it has a timeout, and they are hints.
const LONGEST_SAVE: Duration = Duration::from_secs(4);

const _: () = assert!(SHARDS <= u16::MAX as usize + 1, "a ghost record has 16 bits for a shard");

/// Ghost records of one close, as an open finds them.
#[derive(Default)]
pub(crate) struct GhostRecords {
    session: u64,
    parts: Vec<RecordPart>,
}

/// The fields of a record that are its own.
struct RecordPart {
    sequence: u32,
    namespace: u64,
    bonus: f32,
    ghosts: Box<[StoredGhost]>,
}

impl GhostRecords {
    /// Adds a record, unless there are those of a later close.
    pub(crate) fn add(&mut self, record: &GhostRecord) {
        let GhostRecord { session, sequence, namespace, bonus, count, ghosts, .. } = *record;
        let ghosts = ghosts[..usize::from(count)].into();
        let parts = vec![RecordPart { sequence, namespace, bonus, ghosts }];
        self.merge(Self { session, parts });
    }

    pub(crate) fn merge(&mut self, other: Self) {
        match other.session.cmp(&self.session) {
            Greater => *self = other,
            Equal => self.parts.extend(other.parts),
            _ => {}
        }
    }

    /// Whether the last session has written them, which ended in order: none of them is stored.
    pub(crate) fn are_of_session(&self, session: u64) -> bool {
        self.session == session
    }
}

impl<S: Send> Index<S> {
    /// Takes over the bonuses and ghosts of namespaces that have chunks. If `are_current`, none of the ghosts was stored since.
    pub(crate) fn restore_ghosts(
        &self,
        mut records: GhostRecords,
        are_current: bool,
        threads: usize,
    ) {
        // Sessions from this one on have not been: the records are made up.
        if records.session >= self.first_generation {
            return;
        }
        records.parts.sort_unstable_by_key(|part| part.sequence);
        let mut by_shard: Vec<Vec<(NamespaceId, StoredGhost)>> = vec![Vec::new(); SHARDS];
        let mut oldest_mib = 0;
        {
            let eviction_index = self.eviction_index.lock();
            for RecordPart { namespace, bonus, ghosts, .. } in records.parts {
                let Some(id) = eviction_index.namespace_of(namespace) else { continue };
                eviction_index.bonus(namespace).restore(bonus);
                for ghost in ghosts {
                    if let Some(all) = by_shard.get_mut(usize::from(ghost.shard)) {
                        oldest_mib = oldest_mib.max(ghost.age_mib);
                        all.push((id, ghost));
                    }
                }
            }
        }
        self.evicted_bytes.fetch_add(u64::from(oldest_mib) << 20, Ordering::Relaxed);
        let waiting = Mutex::new(self.shards.iter().zip(by_shard));
        on_threads(OPENING, threads, || {
            while let Some((shard, ghosts)) = { waiting.lock().next() } {
                if !ghosts.is_empty() {
                    self.restore_shard(&mut shard.0.lock(), ghosts, are_current, oldest_mib);
                }
            }
        });
    }

    fn restore_shard(
        &self,
        shard: &mut Shard<S>,
        mut ghosts: Vec<(NamespaceId, StoredGhost)>,
        are_current: bool,
        oldest_mib: u32,
    ) {
        if !are_current {
            let entries = shard.lookup.iter().map(|found| shard.entries[found.entry].digest);
            let stored: HashSet<u32> = entries.map(|digest| Fingerprint::of(digest).0).collect();
            ghosts.retain(|(_, ghost)| !stored.contains(&ghost.fingerprint));
        }
        // Those of one namespace are in their order.
        ghosts.sort_by_key(|(_, ghost)| Reverse(ghost.age_mib));
        let mut eviction_index = self.eviction_index.lock();
        for (namespace, stored) in &ghosts {
            eviction_index.remember_leaving(*namespace, stored.uses > 0);
        }
        drop(eviction_index);
        let (stored_keys, mut forgotten) = (shard.lookup.len(), Vec::new());
        for (namespace, stored) in ghosts {
            let ghost = Ghost {
                fingerprint: Fingerprint(stored.fingerprint),
                namespace,
                since_mib: oldest_mib - stored.age_mib,
                refused_sets: stored.refused_sets & !WAS_EVICTED,
                uses: stored.uses,
                was_evicted: stored.refused_sets & WAS_EVICTED != 0,
            };
            shard.ghosts.insert(ghost, stored_keys, |ghost| forgotten.push(ghost));
        }
        forgotten.into_iter().for_each(|ghost| self.forget(ghost));
    }
}

impl<S> Index<S> {
    /// Writes the bonuses, and then ghosts of namespaces that have chunks, into free slots. What finds no slot, or comes after some
    /// seconds or a write that fails, is forgotten.
    pub(crate) fn save_ghosts(&self) {
        let deadline = Instant::now() + LONGEST_SAVE;
        let evicted_mib = Ghost::mib(self.evicted_bytes.load(Ordering::Relaxed));
        let (namespaces, bonuses): (Vec<_>, Vec<_>) = {
            let eviction_index = self.eviction_index.lock();
            (eviction_index.namespaces_with_chunks().collect(), eviction_index.bonuses())
        };
        let session = self.first_generation;
        let mut sequence = 0;
        let mut write = |mut record: GhostRecord| {
            let is_over =
                self.table.refuses_writes.load(Ordering::Relaxed) || Instant::now() > deadline;
            let Some(reservation) = self.slot_for_ghosts().filter(|_| !is_over) else {
                return false;
            };
            sequence += 1;
            record.sequence = sequence;
            self.table.change(Change::Write(reservation.slots[0], Arc::new(record.sealed())));
            true
        };
        let mut is_whole = bonuses
            .iter()
            .all(|(namespace, bonus)| write(GhostRecord::new(session, *namespace, *bonus)));
        let empty = |namespace| GhostRecord::new(session, namespace, f32::NAN);
        let mut open: HashMap<NamespaceId, GhostRecord> =
            namespaces.into_iter().map(|(id, namespace)| (id, empty(namespace))).collect();
        for (number, shard) in self.shards.iter().enumerate() {
            if !is_whole {
                break;
            }
            let ghosts: Vec<Ghost> = shard.0.lock().ghosts.iter().collect();
            for ghost in ghosts {
                let Some(record) = open.get_mut(&ghost.namespace) else { continue };
                let was_evicted = if ghost.was_evicted { WAS_EVICTED } else { 0 };
                record.push(StoredGhost {
                    fingerprint: ghost.fingerprint.0,
                    age_mib: evicted_mib.saturating_sub(ghost.since_mib),
                    shard: number as u16,
                    uses: ghost.uses,
                    refused_sets: ghost.refused_sets | was_evicted,
                });
                if record.is_full() {
                    is_whole &= write(std::mem::replace(record, empty(record.namespace)));
                }
            }
        }
        let mut left: Vec<GhostRecord> = open.into_values().filter(|one| one.count > 0).collect();
        left.sort_unstable_by_key(|record| record.namespace);
        is_whole &= left.into_iter().all(write);
        if !is_whole {
            let path = self.config.path().display();
            log::info!(
                "{path}: not all evicted keys are saved: the index has no free slots for them, or takes too long"
            );
        }
    }

    fn slot_for_ghosts(&self) -> Option<Reservation> {
        match self.table.reserve_record(0) {
            Err(StoreError::Growing { .. }) => {
                self.table.grow().ok().and_then(|()| self.table.reserve_record(0).ok())
            }
            reserved => reserved.ok(),
        }
    }
}
