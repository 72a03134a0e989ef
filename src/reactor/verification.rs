//! Chunks that are read in idle moments: those of an owner who did not close, and those in doubt because they could not be
//! read. One at a time, so that little of it stands in the way of what comes.
//!
//! One that cannot be read, and is not dropped for it, stays in the list. After it there is a pause, longer each time, as
//! the device may be out for a while.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Shared;
use super::work::{Kind, Work};
use crate::index::Suspect;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A chunk to be read.
#[derive(Clone, Copy)]
struct Unverified {
    suspect: Suspect,
    /// Its owner did not close; else it is in doubt.
    is_after_crash: bool,
}

/// All of them that one reactor has.
pub(super) struct Verification {
    waiting: VecDeque<Unverified>,
    under_way: Option<Unverified>,
    /// How many are left of an owner who did not close; none once that is noted.
    left_after_crash: Option<usize>,
    /// When to read the next one, and the pause that this is the end of.
    pause: Option<(Instant, Duration)>,
}

impl Verification {
    pub(super) fn of(suspects: Vec<Suspect>) -> Self {
        let left_after_crash = Some(suspects.len()).filter(|left| *left > 0);
        let of_crash = |suspect| Unverified { suspect, is_after_crash: true };
        let waiting = suspects.into_iter().rev().map(of_crash).collect();
        Self { waiting, under_way: None, left_after_crash, pause: None }
    }

    /// Forgets those that wait.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.left_after_crash = None;
    }

    /// When to look again, if nothing else is to be done.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.pause.filter(|_| !self.waiting.is_empty()).map(|(due, _)| due)
    }

    /// A chunk is in doubt since now.
    pub(super) fn add(&mut self, suspect: Suspect, now: Instant) {
        self.waiting.push_back(Unverified { suspect, is_after_crash: false });
        self.pause.get_or_insert((now + FIRST_PAUSE, FIRST_PAUSE));
    }

    fn rest(&mut self, now: Instant) {
        let pause = self.pause.map_or(FIRST_PAUSE, |(_, pause)| (2 * pause).min(LONGEST_PAUSE));
        self.pause = Some((now + pause, pause));
    }

    fn note_done(&mut self, done: Unverified) {
        if done.is_after_crash
            && let Some(left) = &mut self.left_after_crash
        {
            *left -= 1;
        }
    }
}

impl Work {
    /// Takes up the next chunk to be verified if there is nothing else to do.
    pub(super) fn verify_if_idle(&mut self, now: Instant, shared: &Shared) {
        while self.active.is_empty() {
            let verification = &mut self.verification;
            if verification.left_after_crash == Some(0) {
                shared.index.all_verified();
                verification.left_after_crash = None;
            }
            if verification.pause.is_some_and(|(due, _)| now < due) {
                return;
            }
            let Some(next) = verification.waiting.pop_front() else {
                verification.pause = None;
                return;
            };
            let Some(pin) = shared.index.pin_suspect(next.suspect) else {
                shared.doubts.remove(next.suspect.digest);
                verification.note_done(next);
                continue;
            };
            verification.under_way = Some(next);
            self.enqueue(Kind::Verify(pin), now);
        }
    }

    /// The chunk under way was read, or could not be: then it `stays` in the list.
    pub(super) fn end_verification(&mut self, stays: bool, shared: &Shared) {
        let verification = &mut self.verification;
        let Some(done) = verification.under_way.take() else { return };
        if stays {
            verification.waiting.push_back(done);
            return verification.rest(Instant::now());
        }
        verification.pause = None;
        verification.note_done(done);
        if done.is_after_crash {
            shared.counters.verified_after_crash.add(1);
        }
    }
}
