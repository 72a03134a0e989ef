//! How soon the drive of a path answers: whether it has fallen silent, and whether it is slow.
//!
//! A drive may take transfers and give none back, for minutes or for ever, without an error. A transfer that has begun cannot be given
//! up, as the kernel owns its memory. So no further ones are begun until the drive answers again.

use std::time::{Duration, Instant};

use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A drive is silent if a transfer is under way for so long, and none of its kind has come back meanwhile.
pub(super) const SILENCE: Duration = Duration::from_secs(4);

/// A transfer that takes longer is slow. A drive is, if more than one in a hundred of a window is.
const SLOW: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_secs(10);
/// So many windows without a transfer, and what is known of it is out of date.
const STALE_WINDOWS: u32 = 3;

pub(crate) struct Responsiveness {
    opened: Instant,
    reads: Direction,
    writes: Direction,
}

#[derive(Default)]
struct Direction {
    /// When one came back last, since the open.
    answered_us: AtomicU64,
    is_silent: AtomicBool,
    /// Since when the oldest transfer is under way, while it is silent.
    silent_since: Mutex<Option<Instant>>,
    window: Mutex<Option<Window>>,
}

/// Transfers that came back within a time.
#[derive(Clone, Copy)]
struct Window {
    begin: Instant,
    transfers: u64,
    slow: u64,
    /// Those of the window before: how many, and how many of them were slow.
    before: (u64, u64),
}

/// Transfers that came back at once.
#[derive(Clone, Copy, Default)]
pub(super) struct Answers {
    transfers: u64,
    slow: u64,
}

impl Answers {
    /// Adds one that was begun at `since`, and says whether it was slow.
    pub(super) fn add(&mut self, since: Instant, now: Instant) -> bool {
        let is_slow = now.saturating_duration_since(since) > SLOW;
        self.transfers += 1;
        self.slow += u64::from(is_slow);
        is_slow
    }
}

impl Responsiveness {
    pub(super) fn new() -> Self {
        let (reads, writes) = (Direction::default(), Direction::default());
        Self { opened: Instant::now(), reads, writes }
    }

    fn of(&self, is_write: bool) -> &Direction {
        if is_write { &self.writes } else { &self.reads }
    }

    fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.opened).as_micros() as u64
    }

    /// Transfers came back. Says for how long the drive was silent, if it was.
    pub(super) fn note_answers(
        &self,
        is_write: bool,
        answers: Answers,
        now: Instant,
    ) -> Option<Duration> {
        if answers.transfers == 0 {
            return None;
        }
        let direction = self.of(is_write);
        direction.note_in_window(answers, now);
        // Before the flag is looked at: `look` sets it, and looks at this after that.
        direction.answered_us.fetch_max(self.micros(now), Ordering::SeqCst);
        let was_silent = direction.is_silent.load(Ordering::SeqCst);
        let since = was_silent.then(|| direction.end_silence()).flatten()?;
        Some(now.saturating_duration_since(since))
    }

    /// The oldest transfer is under way since then. Says when to look again; or, if it is silent from now on, for how long it was.
    pub(super) fn look(
        &self,
        is_write: bool,
        oldest: Instant,
        now: Instant,
    ) -> Result<Instant, Duration> {
        let direction = self.of(is_write);
        let age = now.saturating_duration_since(oldest);
        let answered = || {
            let answered_us = direction.answered_us.load(Ordering::SeqCst);
            oldest.max(self.opened + Duration::from_micros(answered_us))
        };
        if answered() + SILENCE > now {
            return Ok(answered() + SILENCE);
        }
        let again = now + Duration::from_secs(1);
        let mut silent_since = direction.silent_since.lock();
        if let Some(since) = &mut *silent_since {
            *since = oldest.min(*since);
            return Ok(again);
        }
        direction.is_silent.store(true, Ordering::SeqCst);
        if answered() + SILENCE > now {
            direction.is_silent.store(false, Ordering::SeqCst);
            return Ok(again);
        }
        *silent_since = Some(oldest);
        Err(age)
    }

    /// Whether nothing that is read comes back: nothing more is loaded until it does.
    pub(crate) fn misses_loads(&self) -> bool {
        self.reads.is_silent.load(Ordering::Relaxed)
    }

    /// Why nothing is stored until the drive answers again, if so.
    pub(crate) fn silence(&self) -> Option<String> {
        let all = [(&self.reads, "reads"), (&self.writes, "writes")];
        let silent = all.into_iter().filter(|(one, _)| one.is_silent.load(Ordering::Relaxed));
        let (since, what) = silent
            .filter_map(|(one, what)| Some((one.silent_since.lock().as_ref().copied()?, what)))
            .min()?;
        Some(format!(
            "the drive answers nothing: the oldest of its {what} is under way for {} s",
            since.elapsed().as_secs()
        ))
    }

    /// That the drive is slow, if so.
    pub(crate) fn note(&self, now: Instant) -> Option<String> {
        let all = [(&self.reads, "reads"), (&self.writes, "writes")];
        all.into_iter().find_map(|(one, what)| {
            let (transfers, slow) = one.window.lock().as_ref()?.last(now)?;
            (100 * slow > transfers).then(|| {
                format!(
                    "the drive is slow: {slow} of {transfers} {what} of late took longer than 1 s"
                )
            })
        })
    }
}

impl Direction {
    fn end_silence(&self) -> Option<Instant> {
        let mut silent_since = self.silent_since.lock();
        self.is_silent.store(false, Ordering::SeqCst);
        silent_since.take()
    }

    fn note_in_window(&self, answers: Answers, now: Instant) {
        let mut window = self.window.lock();
        let begin = Window { begin: now, transfers: 0, slow: 0, before: (0, 0) };
        let current = window.get_or_insert(begin);
        if now.saturating_duration_since(current.begin) >= WINDOW {
            let before = (current.transfers, current.slow);
            *current = Window { before, ..begin };
        }
        current.transfers += answers.transfers;
        current.slow += answers.slow;
    }
}

impl Window {
    /// Of the last whole window, and of what came since: how many transfers, and how many of them were slow.
    fn last(&self, now: Instant) -> Option<(u64, u64)> {
        let age = now.saturating_duration_since(self.begin);
        let (transfers, slow) = (self.transfers + self.before.0, self.slow + self.before.1);
        (age < WINDOW * STALE_WINDOWS).then_some((transfers, slow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(transfers: u64, slow: u64) -> Answers {
        Answers { transfers, slow }
    }

    #[test]
    fn a_drive_is_silent_until_one_of_its_transfers_comes_back() {
        let all = Responsiveness::new();
        let begin = all.opened;
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(all.look(false, begin, at(1000)), Ok(begin + SILENCE));
        // One has come back meanwhile: others may wait for longer.
        assert_eq!(all.note_answers(false, answers(1, 0), at(3000)), None);
        assert_eq!(all.look(false, begin, at(4500)), Ok(at(3000) + SILENCE));
        assert!(!all.misses_loads() && all.silence().is_none());
        assert_eq!(all.look(false, begin, at(7000)), Err(Duration::from_secs(7)));
        assert!(all.misses_loads() && !all.writes.is_silent.load(Ordering::SeqCst));
        assert!(all.silence().unwrap().contains("the oldest of its reads is under way for"));
        assert!(all.look(false, begin, at(8000)).is_ok(), "it is said once");
        assert_eq!(all.note_answers(true, answers(1, 0), at(8000)), None, "a write says nothing");
        assert!(all.misses_loads());
        let lasted = all.note_answers(false, answers(1, 1), at(9000));
        assert_eq!(lasted, Some(Duration::from_secs(9)));
        assert!(!all.misses_loads() && all.silence().is_none());
    }

    #[test]
    fn a_drive_is_slow_if_more_than_one_in_a_hundred_is() {
        let all = Responsiveness::new();
        let at = |seconds| all.opened + Duration::from_secs(seconds);
        assert_eq!(all.note(at(0)), None);
        let mut one = Answers::default();
        assert!(!one.add(at(0), at(1)) && one.add(at(0), at(2)));
        assert_eq!((one.transfers, one.slow), (2, 1));
        all.note_answers(true, answers(100, 1), at(0));
        assert_eq!(all.note(at(1)), None);
        all.note_answers(true, answers(1, 1), at(2));
        assert!(all.note(at(2)).unwrap().contains("2 of 101 writes of late took longer than 1 s"));
        // The next window counts beside it, and the one after that without.
        all.note_answers(true, answers(100, 0), at(12));
        assert_eq!(all.note(at(12)), None);
        all.note_answers(false, answers(1, 1), at(12));
        assert!(all.note(at(12)).is_some());
        assert_eq!(all.note(at(50)), None, "nothing came for long");
    }
}
