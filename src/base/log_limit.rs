//! Failures of one kind in the log: the first one has a line with its detail, and those that follow at once are a number.
//!
//! A failing device may fail thousands of operations a second, for days. A line of the number comes after a second, then after twice
//! that, and so on. Failures further apart than that have a line each. Only what fails takes the lock.

use std::path::Path;
use std::time::{Duration, Instant};

use log::Level;

use crate::base::sync::Mutex;

const LONGEST_WINDOW: Duration = Duration::from_secs(3600);

/// After so long without a failure the number is told, however long the window is, and the next failure with its detail.
const LONGEST_QUIET: Duration = Duration::from_secs(60);

pub(crate) struct LogLimit {
    level: Level,
    /// Goes on after a number and "more".
    what: &'static str,
    first_window: Duration,
    burst: Mutex<Option<Burst>>,
}

/// What came since a line with the detail.
struct Burst {
    /// When the last line came.
    since: Instant,
    last: Instant,
    untold: u64,
    window: Duration,
}

impl LogLimit {
    /// Of what fails by itself, each time anew.
    pub(crate) fn new(level: Level, what: &'static str) -> Self {
        let (first_window, burst) = (Duration::from_secs(1), Mutex::new(None));
        Self { level, what, first_window, burst }
    }

    /// Of what goes on failing for one cause that lasts.
    pub(crate) fn of_lasting(what: &'static str) -> Self {
        Self { first_window: LONGEST_QUIET, ..Self::new(Level::Warn, what) }
    }

    /// So many failures at the store in `path`, told by this `line` or counted.
    pub(crate) fn log(&self, path: &Path, failures: u64, line: impl FnOnce() -> String) {
        let (due, is_first) = self.note(failures, Instant::now());
        self.tell(path, due);
        if is_first {
            log::log!(self.level, "{}", line());
        }
    }

    /// Logs how many were counted, if that is due: always if nobody asks again.
    pub(crate) fn tell_count(&self, path: &Path, is_last: bool) {
        let due = take_due(&mut self.burst.lock(), Instant::now(), is_last);
        self.tell(path, due);
    }

    /// What is to be told of those before, and whether these are told with their detail.
    fn note(&self, failures: u64, now: Instant) -> (Option<(u64, Duration)>, bool) {
        let mut burst = self.burst.lock();
        let due = take_due(&mut burst, now, false);
        let is_first = burst.is_none();
        let (untold, window) = (0, self.first_window);
        let burst = burst.get_or_insert(Burst { since: now, last: now, untold, window });
        burst.last = now;
        burst.untold += if is_first { 0 } else { failures };
        (due, is_first)
    }

    /// Without the lock: the log may wait.
    fn tell(&self, path: &Path, due: Option<(u64, Duration)>) {
        if let Some((count, lasted)) = due {
            let (path, seconds) = (path.display(), lasted.as_secs_f64());
            log::log!(self.level, "{path}: {count} more {} in {seconds:.1} s", self.what);
        }
    }
}

/// The number that is to be told, and in what time that came.
fn take_due(burst: &mut Option<Burst>, now: Instant, is_last: bool) -> Option<(u64, Duration)> {
    let current = burst.as_mut()?;
    let (lasted, quiet) =
        (now.saturating_duration_since(current.since), now.saturating_duration_since(current.last));
    let is_over = is_last || quiet >= current.window.min(LONGEST_QUIET);
    if !is_over && lasted < current.window {
        return None;
    }
    let untold = std::mem::take(&mut current.untold);
    (current.since, current.window) = (now, (2 * current.window).min(LONGEST_WINDOW));
    if is_over {
        *burst = None;
    }
    (untold > 0).then_some((untold, lasted))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Failures at these times, in ms, as lines: 0 with the detail, else how many are told.
    fn lines(limit: &LogLimit, times_ms: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
        let begin = Instant::now();
        let mut lines = Vec::new();
        let mut last_ms = 0;
        for at_ms in times_ms {
            let (due, is_first) = limit.note(1, begin + Duration::from_millis(at_ms));
            lines.extend(due.map(|(count, _)| (at_ms, count)));
            lines.extend(is_first.then_some((at_ms, 0)));
            last_ms = at_ms;
        }
        let rest = take_due(&mut limit.burst.lock(), begin + Duration::from_millis(last_ms), true);
        lines.extend(rest.map(|(count, _)| (last_ms, count)));
        lines
    }

    #[test]
    fn what_fails_for_an_hour_has_few_lines_and_each_failure_is_in_one() {
        let limit = LogLimit::new(Level::Error, "chunks");
        let lines = lines(&limit, (0..3_600_000).step_by(5));
        assert_eq!(lines[..4], [(0, 0), (1000, 199), (3000, 400), (7000, 800)]);
        assert_eq!(lines.len(), 13);
        assert_eq!(lines.iter().map(|line| line.1.max(1)).sum::<u64>(), 720_000);
    }

    #[test]
    fn what_fails_now_and_then_has_its_detail_each_time() {
        let limit = LogLimit::new(Level::Error, "chunks");
        let each: Vec<_> = (0..20).map(|number| (3000 * number, 0)).collect();
        assert_eq!(lines(&limit, (0..20).map(|number| 3000 * number)), each);
        // For a cause that lasts, a minute is now and then.
        let limit = LogLimit::of_lasting("chunks");
        let told = lines(&limit, [0, 1000, 59_000, 119_001, 120_000].into_iter());
        assert_eq!(told, [(0, 0), (119_001, 2), (119_001, 0), (120_000, 1)]);
    }

    #[test]
    fn the_number_is_told_a_minute_after_the_last_at_most() {
        let limit = LogLimit::new(Level::Error, "chunks");
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let told = |ms, is_last| take_due(&mut limit.burst.lock(), at(ms), is_last);
        assert_eq!(told(0, true), None);
        let noted = (0..2000).filter_map(|half_s| limit.note(2, at(500 * half_s)).0);
        assert_eq!(noted.count(), 9);
        assert_eq!(told(1_022_000, false), None);
        assert_eq!(told(1_059_500, false), Some((1956, Duration::from_millis(548_500))));
        assert_eq!(limit.note(1, at(1_060_000)), (None, true));
        limit.note(5, at(1_060_000));
        assert_eq!(told(1_060_000, true), Some((5, Duration::ZERO)));
        assert_eq!(told(2_000_000, true), None);
    }
}
