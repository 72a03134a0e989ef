//! A reactor: what one thread knows of the operations that it has taken up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;

use super::ReactorGroup;
use super::device::Device;
use super::group_commit::GroupCommit;
use super::operation::Active;
use super::responsiveness::SILENCE;
use super::room_queue::RoomQueue;
use super::verify::Verification;
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
