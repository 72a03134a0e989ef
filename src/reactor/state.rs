//! A reactor: what one thread knows of the operations that it has taken up.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;

use super::ReactorGroup;
use super::device::Device;
use super::group_commit::GroupCommit;
use super::operation::{Active, WaitingBehind};
use super::responsiveness::SILENCE;
use super::room_queue::RoomQueue;
use super::verify::Verification;
use crate::engine::Engine;
use crate::index::ChunkVersion;
use crate::key::Digest;
use crate::schedule::{Elsewhere, Grant, Limits, Scheduler};

pub(super) struct Reactor {
    pub(super) group: Arc<ReactorGroup>,
    pub(super) number: usize,
    pub(super) scheduler: Scheduler,
    pub(super) device: Device,
    pub(super) active: Slab<Active>,
    pub(super) commit: GroupCommit,
    pub(super) verification: Verification,
    /// The SETs, by digest: one at a time writes a key.
    pub(super) sets: HashMap<Digest, usize>,
    /// Those that loads wait for.
    pub(super) awaited: usize,
    /// After this time a load that has not started is late.
    pub(super) load_deadline: Option<Duration>,
    /// When to look whether the drive has fallen silent.
    pub(super) silence_due: Instant,
    /// Keys whose SETs loads wait for, and when the last of these is late.
    pub(super) late_awaited: VecDeque<(Instant, Digest)>,
    /// GETs that are late, and to be answered.
    pub(super) late: VecDeque<usize>,
    /// SETs that share the failure of the one before them, and are to be answered.
    pub(super) failing: VecDeque<WaitingBehind>,
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
    /// Reactor with a request for their chunk file to be made.
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
            sets: HashMap::new(),
            awaited: 0,
            load_deadline,
            silence_due: Instant::now() + SILENCE,
            late_awaited: VecDeque::new(),
            late: VecDeque::new(),
            failing: VecDeque::new(),
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
