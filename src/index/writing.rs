//! Keys that are being written: who may write, what waits behind, how a written chunk becomes one that is held.
//!
//! Order per key: while a SET is on its way, later SETs of its key queue up behind it, here, and resume in order when it is
//! done. A GET reads what is held, or queues up as well if that does not fit; then it reads what the first SET leaves that
//! fits. A DELETE answers at once: it takes out what is held, and leaves a mark in that queue so that the SET before it is
//! never published.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::entries::Entry;
use super::lookup::Found;
use super::map::{Gone, Index};
use super::shard::Pin;
use super::shard::{Pending, Shard, Waiting};
use super::table::{Content, Reservation};
use crate::block::Extent;
use crate::checksum::PayloadChecksum;
use crate::evict::{ChunkRef, NamespaceOf};
use crate::format::record::{slots_for, use_word};
use crate::key::{Digest, Namespace};

/// What became of a SET.
pub(crate) enum EnteredSet<S> {
    /// It is this one's turn to write.
    Ready(S),
    /// Another key has this digest; the key is in quarantine from now on.
    Collides(S),
    /// The key is in quarantine.
    Quarantined(S),
    /// It waits behind a SET of the same key and comes back from [`Index::finish_set`].
    Waits,
}

/// What happens next to operations that waited.
pub(crate) enum Resumed<G, S> {
    /// This GET reads now.
    Hit(G, Pin),
    /// This GET found nothing.
    Miss(G),
    /// This SET writes now.
    Start(S),
    /// Nobody uses this place any more.
    Free(Extent),
}

/// How far the record of a written chunk is.
pub(crate) enum RecordState {
    /// It has slots.
    Reserved(Reservation),
    /// It is in the index file; nobody finds it by its key yet.
    Written(u32),
}

/// A written chunk on its way into the index.
pub(crate) struct Publication {
    pub(crate) record: RecordState,
    pub(crate) content: Content,
}

impl<G, S> Index<G, S> {
    /// SET: claims the right to write `key`. Refused if another key has its digest, and for an hour after that.
    pub(crate) fn enter_set(
        &self,
        digest: Digest,
        key: &Arc<str>,
        now_ms: u64,
        request: S,
    ) -> EnteredSet<S> {
        if self.quarantine.holds(key, now_ms) {
            return EnteredSet::Quarantined(request);
        }
        let (_, mut shard) = self.shard(digest);
        if let Some(pending) = shard.pending_mut(digest) {
            if pending.key == *key {
                pending.waiting.push_back(Waiting::Set(request));
                return EnteredSet::Waits;
            }
            self.quarantine.add(key, now_ms);
            return EnteredSet::Collides(request);
        }
        let taken = shard.find(digest);
        if taken.is_some_and(|found| !self.is_of(digest, found.record, key)) {
            self.quarantine.add(key, now_ms);
            return EnteredSet::Collides(request);
        }
        let pending = Pending {
            digest,
            key: Arc::clone(key),
            waiting: VecDeque::new(),
            waiting_gets: 0,
            written: None,
        };
        shard
            .pending
            .insert_unique(digest.table_hash(), pending, |other| other.digest.table_hash());
        EnteredSet::Ready(request)
    }

    /// Length and checksum of what is held under `digest`, for a SET that has claimed its key.
    pub(crate) fn held(&self, digest: Digest) -> Option<(u64, Option<PayloadChecksum>)> {
        let shard = self.shard(digest).1;
        let found = shard.find(digest)?;
        let entry = &shard.entries[found.entry];
        // Whose record is lost is to be written again, and what may be damaged must not vouch for other bytes.
        let generation = self.table.read(found.record).generation;
        let is_suspect = (self.verify_from.load(Ordering::Relaxed)..self.first_generation)
            .contains(&generation)
            || generation < self.distrust_below.load(Ordering::Relaxed) && !entry.was_read;
        (!is_suspect && !self.has_lost_its_record(digest, found.record))
            .then(|| (u64::from(entry.length_bytes), entry.checksum()))
    }

    /// Whether a SET waits behind the one that is writing the key with this digest.
    pub(crate) fn has_waiting_set(&self, digest: Digest) -> bool {
        let mut shard = self.shard(digest).1;
        let pending = shard.pending_mut(digest);
        pending.is_some_and(|pending| {
            pending.waiting.iter().any(|other| matches!(other, Waiting::Set(_)))
        })
    }

    /// Whether a GET waits for what is being written under `digest`.
    pub(crate) fn is_awaited(&self, digest: Digest) -> bool {
        // A GET counts itself before it asks for the SET to be promoted: who has not been asked yet sees it here.
        self.awaited.load(Ordering::SeqCst) > 0
            && self.shard(digest).1.pending_mut(digest).is_some_and(|one| one.waiting_gets > 0)
    }

    /// Writes the record of a chunk that nobody finds by its key yet, unless it is deleted already.
    pub(crate) fn record_early(
        &self,
        reservation: &Reservation,
        content: &Content,
        key: &str,
    ) -> Option<u32> {
        let mut shard = self.shard(content.digest).1;
        let pending = shard.pending_mut(content.digest)?;
        if pending.is_deleted() {
            return None;
        }
        let slot = self.table.publish(reservation, content, key);
        pending.written = Some(slot);
        Some(slot)
    }

    /// Takes back the record of a SET that fails: from here on the slot may be another's.
    pub(crate) fn withdraw(&self, digest: Digest, slot: u32) {
        let mut shard = self.shard(digest).1;
        if let Some(pending) = shard.pending_mut(digest) {
            pending.written = None;
        }
        self.table.clear(slot);
    }

    /// Makes the record of what is held under `digest` invalid for the next start; the entry itself stays as it is.
    pub(crate) fn invalidate(&self, digest: Digest) -> bool {
        let shard = self.shard(digest).1;
        let held = shard.find(digest);
        if let Some(found) = held {
            self.table.invalidate(found.record);
        }
        held.is_some()
    }

    /// A SET that had claimed its key is done, with or without something to publish. Returns what to do next, in order.
    pub(crate) fn finish_set(
        &self,
        digest: Digest,
        publication: Option<Publication>,
    ) -> Vec<Resumed<G, S>> {
        let (number, mut shard) = self.shard(digest);
        let shard = &mut *shard;
        let Ok(mut pending) =
            shard.pending.find_entry(digest.table_hash(), |other| other.digest == digest)
        else {
            debug_assert!(false, "a SET finished that had not been entered");
            return Vec::new();
        };
        let key = Arc::clone(&pending.get().key);
        let deleted = pending.get().is_deleted();
        pending.get_mut().written = None;
        let mut waiting = std::mem::take(&mut pending.get_mut().waiting);
        let gets_before = std::mem::take(&mut pending.get_mut().waiting_gets);
        let mut gets = gets_before;
        let mut resumed = Vec::new();

        let mut current = match publication {
            Some(publication) => {
                Some(self.enter_chunk((number, shard), publication, &key, deleted, &mut resumed))
            }
            None => shard.find(digest).map(|found| found.entry),
        };
        let mut starts = false;
        while let Some(next) = waiting.pop_front() {
            match next {
                Waiting::Get { length_bytes, request } => {
                    let pin = current.and_then(|entry| shard.pin(number, entry, length_bytes));
                    gets -= 1;
                    resumed.push(match pin {
                        Some(pin) => Resumed::Hit(request, pin),
                        None => Resumed::Miss(request),
                    });
                }
                Waiting::Delete => {
                    // A purge leaves what is pinned: then that goes on to be held.
                    if let Some(entry) = current.filter(|entry| shard.is_detached(*entry)) {
                        resumed
                            .extend(self.take_out(shard, entry, Gone::Removed).map(Resumed::Free));
                    }
                    current = shard.find(digest).map(|found| found.entry);
                }
                Waiting::Set(request) => {
                    if let Some(entry) = current.filter(|_| gets > 0) {
                        let served = serve_before_delete((number, shard), entry, &mut waiting);
                        gets -= served.len();
                        resumed.extend(served);
                    }
                    // What a DELETE behind this SET reaches has had its readers.
                    if let Some(entry) = current.filter(|entry| shard.is_detached(*entry)) {
                        resumed
                            .extend(self.take_out(shard, entry, Gone::Removed).map(Resumed::Free));
                    }
                    resumed.push(Resumed::Start(request));
                    starts = true;
                    break;
                }
            }
        }
        if let Ok(mut pending) =
            shard.pending.find_entry(digest.table_hash(), |other| other.digest == digest)
        {
            if starts {
                (pending.get_mut().waiting, pending.get_mut().waiting_gets) = (waiting, gets);
            } else {
                pending.remove();
            }
        }
        if gets_before > 0 && gets == 0 {
            self.awaited.fetch_sub(1, Ordering::SeqCst);
        }
        resumed
    }

    /// Makes a written chunk an entry: found by its key, unless it was deleted meanwhile. Readers of what it replaces go
    /// on undisturbed.
    fn enter_chunk(
        &self,
        (shard_number, shard): (u32, &mut Shard<G, S>),
        publication: Publication,
        key: &str,
        deleted: bool,
        resumed: &mut Vec<Resumed<G, S>>,
    ) -> u32 {
        let Publication { record, content } = publication;
        let slot = match record {
            RecordState::Reserved(reservation) if deleted => {
                self.table.release(reservation);
                None
            }
            RecordState::Written(slot) if deleted => {
                self.table.clear(slot);
                None
            }
            RecordState::Reserved(reservation) => {
                Some(self.table.publish(&reservation, &content, key))
            }
            RecordState::Written(slot) => Some(slot),
        };
        let Content { digest, extent, length_bytes, checksum, .. } = content;
        let mut entry = Entry::new(digest, extent, length_bytes, checksum);
        (entry.detached, entry.slots) = (deleted, slots_for(key.len()) as u8);
        entry.last_use = use_word(content.created_ms, 0);
        debug_assert_eq!(entry.extent(), content.extent, "a place is as long as its chunk");
        // The younger record is there before the older one goes: a kill in between leaves both, and the younger wins.
        if !deleted && let Some(old) = shard.find(content.digest) {
            // Whoever pinned or leased the key meant whatever is stored under it.
            let replaced = shard.entries[old.entry];
            let Entry { pinned, leased_until_s, .. } = replaced;
            resumed.extend(self.take_out(shard, old.entry, Gone::Removed).map(Resumed::Free));
            // As long as there may be so much of it.
            entry.pinned = pinned && self.take_pinned(entry.guarded());
            let is_leased = leased_until_s > self.now_s();
            let is_no_longer = replaced.guarded().fits(entry.guarded());
            if is_leased && (is_no_longer || self.can_lease(entry.guarded())) {
                entry.leased_until_s = leased_until_s;
            }
        }
        let number = shard.entries.insert(entry);
        if let Some(record) = slot {
            let ghost = shard.ghosts.remove(content.digest);
            let returns = ghost.is_some_and(|ghost| ghost.was_held);
            ghost.iter().for_each(|ghost| self.eviction_index.forget(ghost.namespace, 1));
            let chunk = ChunkRef { shard: shard_number, entry: number };
            let name = || Namespace::of(key).name();
            let namespace = NamespaceOf { fingerprint: content.namespace, name: &name };
            let held = &mut shard.entries[number];
            let (node, namespace) =
                self.eviction_index.enter(chunk, content.extent, &namespace, returns);
            (held.node, held.namespace) = (Some(node), namespace);
            if held.pinned {
                self.exclude(held);
            }
            if entry.leased_until_s > 0 {
                self.leases.lock().add(entry.leased_until_s, entry.guarded());
            }
            shard.link(Found { entry: number, record });
            self.count(1, content.length_bytes as i64);
        }
        number
    }

    /// Takes everything that waits out of the queues; nothing will resume any more.
    pub(crate) fn abandon_waiting(&self) -> (Vec<G>, Vec<S>) {
        let (mut gets, mut sets) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            for pending in shard.0.lock().pending.drain() {
                if pending.waiting_gets > 0 {
                    self.awaited.fetch_sub(1, Ordering::SeqCst);
                }
                for waiting in pending.waiting {
                    match waiting {
                        Waiting::Get { request, .. } => gets.push(request),
                        Waiting::Set(request) => sets.push(request),
                        Waiting::Delete => {}
                    }
                }
            }
        }
        (gets, sets)
    }
}

/// Lets GETs that wait for a later SET read `entry`, if it fits: up to the next DELETE, after which it is not held any more.
fn serve_before_delete<G, S>(
    (number, shard): (u32, &mut Shard<G, S>),
    entry: u32,
    waiting: &mut VecDeque<Waiting<G, S>>,
) -> Vec<Resumed<G, S>> {
    let mut served = Vec::new();
    let mut is_deleted = false;
    for next in std::mem::take(waiting) {
        is_deleted |= matches!(next, Waiting::Delete);
        match next {
            Waiting::Get { length_bytes, request } if !is_deleted => {
                match shard.pin(number, entry, length_bytes) {
                    Some(pin) => served.push(Resumed::Hit(request, pin)),
                    None => waiting.push_back(Waiting::Get { length_bytes, request }),
                }
            }
            other => waiting.push_back(other),
        }
    }
    served
}
