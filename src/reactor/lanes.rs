//! What submitting threads and other reactors need to know of one reactor.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use super::latency::Latencies;
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::engine::Waker;
use crate::schedule::{Elsewhere, InFlight, Scheduler};

pub(super) struct Lane {
    pub(super) waker: Arc<Waker>,
    pub(super) latencies: Mutex<Latencies>,
    /// Its syncs. All that it has in flight come back before it begins further ones.
    pub(super) syncs_begun: AtomicU64,
    pub(super) syncs_ended: AtomicU64,
    /// It waits for syncs of others.
    pub(super) awaits_syncs: AtomicBool,
    /// It waits for changes of records to be made.
    pub(super) awaits_records: AtomicBool,
    /// GETs that wait or are in flight here.
    pub(super) loads: AtomicUsize,
    /// SETs wait here for the loads of others to end.
    pub(super) sets_wait: AtomicBool,
    /// What it has in the device, of GETs and of SETs: may be a little old.
    in_flight: [(AtomicUsize, AtomicU64); 2],
    /// Describes its engine, once it runs.
    pub(super) engine: OnceLock<String>,
}

/// Syncs of threads that are no reactors, by number.
#[derive(Default)]
pub(super) struct ThreadSyncs {
    pub(super) begun: u64,
    pub(super) under_way: BTreeSet<u64>,
}

impl Lane {
    pub(super) fn new(waker: Arc<Waker>) -> Self {
        Self {
            waker,
            latencies: Mutex::new(Latencies::new()),
            syncs_begun: AtomicU64::new(0),
            syncs_ended: AtomicU64::new(0),
            awaits_syncs: AtomicBool::new(false),
            awaits_records: AtomicBool::new(false),
            loads: AtomicUsize::new(0),
            sets_wait: AtomicBool::new(false),
            in_flight: Default::default(),
            engine: OnceLock::new(),
        }
    }

    /// Tells others what it has in the device.
    pub(super) fn tell_in_flight(&self, scheduler: &Scheduler) {
        for ((pieces, bytes), now) in self.in_flight.iter().zip(scheduler.in_flight()) {
            pieces.store(now.pieces, Ordering::Relaxed);
            bytes.store(now.bytes, Ordering::Relaxed);
        }
    }

    /// Adds what it has told to what others have.
    pub(super) fn add_to(&self, elsewhere: &mut Elsewhere) {
        let told = self.in_flight.each_ref().map(|(pieces, bytes)| InFlight {
            pieces: pieces.load(Ordering::Relaxed),
            bytes: bytes.load(Ordering::Relaxed),
        });
        elsewhere.loads = elsewhere.loads.plus(told[0]);
        elsewhere.sets = elsewhere.sets.plus(told[1]);
        elsewhere.are_loads_present |= self.loads.load(Ordering::SeqCst) > 0;
    }
}
