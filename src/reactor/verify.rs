//! Chunks that are read in idle moments: those of an owner who did not close, and those in doubt because they could not be
//! read. One at a time, so that little of it stands in the way of loads and stores.
//!
//! One that cannot be read, and is not dropped for it, stays in the list. After it there is a pause, longer each time, as
//! the device may be out for a while.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::{Cache, ReadHandle};
use crate::index::ChunkVersion;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy)]
struct Unverified {
    version: ChunkVersion,
    /// Its owner did not close; else it is in doubt.
    is_after_crash: bool,
}

pub(super) struct Verification {
    waiting: VecDeque<Unverified>,
    in_flight: Option<Unverified>,
    /// Some may be left of an owner who did not close: that none is, is not noted yet.
    is_after_crash: bool,
    /// When to read the next one, and the pause that this is the end of.
    pause: Option<(Instant, Duration)>,
}

impl Verification {
    pub(super) fn of(unverified: Vec<ChunkVersion>) -> Self {
        let is_after_crash = !unverified.is_empty();
        let of_crash = |version| Unverified { version, is_after_crash: true };
        let waiting = unverified.into_iter().rev().map(of_crash).collect();
        Self { waiting, in_flight: None, is_after_crash, pause: None }
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.is_after_crash = false;
    }

    /// When to look again, if nothing else is to be done.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.pause.filter(|_| !self.waiting.is_empty()).map(|(due, _)| due)
    }

    pub(super) fn add(&mut self, version: ChunkVersion, now: Instant) {
        self.waiting.push_back(Unverified { version, is_after_crash: false });
        self.pause.get_or_insert((now + FIRST_PAUSE, FIRST_PAUSE));
    }

    pub(super) fn next(&mut self, now: Instant, cache: &Arc<Cache>) -> Option<ReadHandle> {
        loop {
            if self.is_after_crash && self.waiting.iter().all(|one| !one.is_after_crash) {
                cache.index.all_verified();
                self.is_after_crash = false;
            }
            if self.pause.is_some_and(|(due, _)| now < due) {
                return None;
            }
            let Some(next) = self.waiting.pop_front() else {
                self.pause = None;
                return None;
            };
            match cache.open_version(next.version) {
                Some(read) => {
                    self.in_flight = Some(next);
                    return Some(read);
                }
                None => cache.suspects.remove(next.version.digest),
            }
        }
    }

    /// The chunk in flight was read, or could not be: then it `stays` in the list.
    pub(super) fn note_read(&mut self, stays: bool, cache: &Cache) {
        let Some(done) = self.in_flight.take() else { return };
        if stays {
            self.waiting.push_back(done);
            let pause = self.pause.map_or(FIRST_PAUSE, |(_, pause)| (2 * pause).min(LONGEST_PAUSE));
            self.pause = Some((Instant::now() + pause, pause));
            return;
        }
        self.pause = None;
        if done.is_after_crash {
            cache.counters.verified_after_crash.add(1);
        }
    }
}
