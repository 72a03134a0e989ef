//! A reactor: what one thread knows of the operations that it has taken up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;

use super::ReactorGroup;
use super::device::Device;
use super::operation::Active;
use super::responsiveness::SILENCE;
use super::verify::Verification;
use crate::base::block::Extent;
use crate::cache::RoomOf;
use crate::config::Layout;
use crate::engine::Engine;
use crate::index::ChunkVersion;
use crate::schedule::{Elsewhere, Grant, Limits, Scheduler};

pub(super) struct Reactor {
    pub(super) group: Arc<ReactorGroup>,
    pub(super) number: usize,
    pub(super) scheduler: Scheduler,
    pub(super) device: Device,
    pub(super) active: Slab<Active>,
    pub(super) commit: GroupCommit,
    pub(super) verification: Verification,
    /// After this time a load that has not started is late.
    pub(super) load_deadline: Option<Duration>,
    /// When to look whether the drive has fallen silent.
    pub(super) silence_due: Instant,
    /// GETs that are late, and to be answered.
    pub(super) late: VecDeque<usize>,
    /// Since the scheduler was asked last, something ended or came: it may have more to start.
    pub(super) has_changed: bool,
    /// What other reactors had when this turn began.
    pub(super) elsewhere: Elsewhere,
    /// Bytes of the pieces that were begun in this turn, and of what they cost beside.
    pub(super) begun_bytes: u64,
    /// What the processor did in this turn instead of feeding the device, in bytes of summing up.
    pub(super) processed_bytes: u64,
    /// Pieces of SETs whose extents are still named by records in the file.
    pub(super) awaiting_extents: VecDeque<Grant>,
    /// Operations with a request for their chunk file to be made.
    pub(super) due_chunk_files: Vec<usize>,
    /// Failed writes, and when to try them again.
    pub(super) retries: Vec<(Instant, usize)>,
    /// Whether the first SET waits for the store to grow; none goes meanwhile.
    pub(super) awaits_growth: bool,
    pub(super) room_queue: RoomQueue,
}

impl Reactor {
    pub(super) fn new(
        number: usize,
        group: Arc<ReactorGroup>,
        unverified: Vec<ChunkVersion>,
        engine: Box<dyn Engine>,
        mut limits: Limits,
    ) -> Self {
        if !engine.takes_write_streams() {
            group.cache.streams.switch_off(&group.cache.config);
        }
        // As many for loads as for stores.
        let most_transfers = 2 * limits.queue_depth;
        limits.queue_depth = limits.queue_depth.min((engine.depth() / 2).max(1));
        let most_bytes = limits.max_in_flight_bytes;
        let device = Device::new(Arc::clone(&group), engine, most_transfers, most_bytes);
        let load_deadline = group.cache.config.load_deadline_ms.map(Duration::from_millis);
        Self {
            number,
            group,
            scheduler: Scheduler::new(limits),
            device,
            active: Slab::new(),
            commit: GroupCommit::default(),
            verification: Verification::of(unverified),
            load_deadline,
            silence_due: Instant::now() + SILENCE,
            late: VecDeque::new(),
            has_changed: false,
            elsewhere: Elsewhere::default(),
            begun_bytes: 0,
            processed_bytes: 0,
            awaiting_extents: VecDeque::new(),
            due_chunk_files: Vec::new(),
            retries: Vec::new(),
            awaits_growth: false,
            room_queue: RoomQueue::default(),
        }
    }
}

/// Files that SETs of one reactor keep open until they are durable: enough to share a sync, and far from what a process may
/// have.
const MOST_OPEN_FILES: usize = 256;

/// A group of SETs that become durable together: its members, and how far it is.
#[derive(Default)]
pub(super) struct GroupCommit {
    /// SETs whose data is written.
    pub(super) waiting: Vec<usize>,
    pub(super) members: Vec<usize>,
    pub(super) phase: Phase,
    /// Syncs in flight.
    pub(super) outstanding: usize,
    pub(super) error: Option<i32>,
    /// Number of its syncs in flight.
    pub(super) syncs: Option<u64>,
    /// Syncs with lower numbers have to come back before the phase is over.
    pub(super) awaited: Option<u64>,
    /// Changes of records that have to be made before its sync of the index begins.
    pub(super) awaited_records: Option<u64>,
    /// Extents whose records were cleared before the sync of the index began, and the failed syncs at that time.
    pub(super) withdrawn: Vec<Extent>,
    pub(super) failed_syncs: u64,
    /// A SET has found no room: a sync of the index alone is to free extents of SETs that failed.
    pub(super) is_to_free: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is no group.
    #[default]
    Idle,
    Data,
    Index,
    /// The clearing of the records that they replace.
    Replaced,
}

impl GroupCommit {
    /// Whether SETs that wait for durability have so many files open, in layout `files`, that no further one should.
    pub(super) fn has_too_many_files(&self, layout: Layout) -> bool {
        layout == Layout::Files && self.waiting.len() + self.members.len() >= MOST_OPEN_FILES
    }
}

/// SETs that wait until the chunks that are being written are stored, and can go for them, or give their room back, in the order in
/// which they came, by whose room they wait for. They are not in the scheduler meanwhile: it goes on with others, also with writes that
/// are tried again and have the room.
#[derive(Default)]
pub(super) struct RoomQueue {
    pub(super) queues: Vec<(RoomOf, VecDeque<usize>)>,
    /// The changes in what is being written that the first ones have seen.
    pub(super) seen_changes: u64,
}

impl RoomQueue {
    pub(super) fn of(&mut self, room: RoomOf) -> Option<&mut VecDeque<usize>> {
        self.queues.iter_mut().find(|(of, _)| *of == room).map(|(_, queue)| queue)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(|(_, queue)| queue.is_empty())
    }

    /// The room that others wait for, of which a SET of this namespace needs some.
    pub(super) fn ahead_of(&self, namespace: u64) -> Option<RoomOf> {
        let is_ahead = |of: RoomOf| of.is_none_or(|quota_of| quota_of == namespace);
        let mut queues = self.queues.iter();
        queues.find(|(of, queue)| is_ahead(*of) && !queue.is_empty()).map(|(of, _)| *of)
    }

    /// Queues one that has seen so many `changes`: in front if it was the first one before, else behind all.
    pub(super) fn push(&mut self, id: usize, room: RoomOf, changes: u64, was_first: bool) {
        if self.is_empty() {
            self.seen_changes = changes;
        }
        if self.of(room).is_none() {
            self.queues.push((room, VecDeque::new()));
        }
        if let Some(queue) = self.of(room) {
            if was_first { queue.push_front(id) } else { queue.push_back(id) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_in_files_of_their_own_keep_so_many_open() {
        let has_too_many = |waiting, members, layout| {
            let (waiting, members) = (vec![0; waiting], vec![0; members]);
            let group = GroupCommit { waiting, members, ..GroupCommit::default() };
            group.has_too_many_files(layout)
        };
        for (waiting, members) in [(MOST_OPEN_FILES, 0), (0, MOST_OPEN_FILES), (100, 156)] {
            assert!(has_too_many(waiting, members, Layout::Files));
            assert!(!has_too_many(waiting, members, Layout::Extents));
        }
        assert!(!has_too_many(100, 155, Layout::Files));
    }
}
