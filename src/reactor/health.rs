//! Whether the device below a store still works, judged by the errors of its transfers.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::base::sync::mpsc::Sender;

use super::io_error_policy::{
    Attempt, DeviceState, Direction, Failure, FaultScope, Request, error_of, scope_of,
};

/// Errors of the device in a row, with no success in that direction in between, and the time they go on for, from which on it
/// counts as failed. Some bad sectors do not reach it: what fails a second time fails its operation only.
const LONGEST_ERROR_STREAK: u32 = 16;
const SHORTEST_STREAK: Duration = Duration::from_millis(500);

/// Errors among the last 64 from which on the device falters, and to which they must fall for that to be over.
const MOST_OF_64: u32 = 24;
const FEW_OF_64: u32 = 16;
/// A device that falters for so long counts as failed.
const LONGEST_FALTERING: Duration = Duration::from_secs(10);

/// Tells of a store, by its number, that has failed.
pub(crate) type Alarm = Sender<usize>;

#[derive(Default)]
struct DirectionHealth {
    /// Something has failed not long ago. While nothing has, nothing is counted.
    is_watched: AtomicBool,
    history: Mutex<History>,
}

#[derive(Default)]
struct History {
    state: DeviceState,
    error_streak: u32,
    streak_since: Option<Instant>,
    /// The last 64 results, the youngest in the lowest bit, which is set for an error.
    recent: u64,
    faltering_since: Option<Instant>,
    /// Successes, as far as they were counted.
    successes: u64,
}

impl DirectionHealth {
    fn state(&self) -> DeviceState {
        self.history.lock().state
    }

    /// Says whether the device works again since then.
    fn succeed(&self) -> bool {
        let mut history = self.history.lock();
        history.successes += 1;
        (history.error_streak, history.streak_since) = (0, None);
        history.recent <<= 1;
        if history.recent == 0 {
            self.is_watched.store(false, Ordering::Relaxed);
        }
        if history.state == DeviceState::Works {
            return false;
        }
        if history.recent.count_ones() >= FEW_OF_64 {
            history.state = DeviceState::Falters;
            return false;
        }
        (history.state, history.faltering_since) = (DeviceState::Works, None);
        true
    }

    /// Says in what words the device has failed, if it has.
    fn fail(&self, direction: Direction, now: Instant) -> Option<String> {
        let mut history = self.history.lock();
        // Under the lock, as a success that finds no failure takes it back.
        self.is_watched.store(true, Ordering::Relaxed);
        history.error_streak += 1;
        history.recent = history.recent << 1 | 1;
        let (in_a_row, of_64) = (history.error_streak, history.recent.count_ones());
        let streak_lasted = now.saturating_duration_since(*history.streak_since.get_or_insert(now));
        if of_64 >= MOST_OF_64 {
            history.faltering_since.get_or_insert(now);
        }
        let falters_since = history.faltering_since;
        let faltered = falters_since.map(|since| now.saturating_duration_since(since));
        if in_a_row >= LONGEST_ERROR_STREAK {
            history.state = DeviceState::Fails;
        } else if faltered.is_some() {
            history.state = history.state.max(DeviceState::Falters);
        }
        if in_a_row >= LONGEST_ERROR_STREAK && streak_lasted >= SHORTEST_STREAK {
            return Some(format!("{in_a_row} {} in a row failed", direction.name()));
        }
        let too_long = faltered.filter(|lasted| *lasted >= LONGEST_FALTERING)?;
        let seconds = too_long.as_secs();
        Some(format!(
            "for {seconds} s many {} have failed, {of_64} of the last 64",
            direction.name()
        ))
    }
}

/// What a request said that failed.
#[derive(Clone, Debug)]
pub(crate) struct LastError {
    pub(crate) text: String,
    pub(crate) at: SystemTime,
}

/// Why a path has failed.
struct Reason {
    text: String,
    /// Its files or its index have it as long as it lasts.
    is_kept: bool,
}

#[derive(Default)]
pub(crate) struct Health {
    /// A device that has become read-only still reads, and one that cannot flush still takes writes.
    directions: [DirectionHealth; 3],
    has_failed: AtomicBool,
    /// It stays in use whatever happens, for want of another.
    stays_in_use: AtomicBool,
    reason: Mutex<Option<Reason>>,
    last_error: Mutex<Option<LastError>>,
    alarm: Mutex<Option<(usize, Alarm)>>,
}

impl Health {
    pub(crate) fn set_alarm(&self, number: usize, alarm: Option<Alarm>) {
        *self.alarm.lock() = alarm.map(|alarm| (number, alarm));
    }

    /// Something was read, written, or made durable. Says whether the device works again since then.
    pub(super) fn note_success(&self, direction: Direction) -> bool {
        let direction = &self.directions[direction as usize];
        if !direction.is_watched.load(Ordering::Relaxed) {
            return false;
        }
        let works_again = direction.succeed();
        let all_work = || self.directions.iter().all(|one| one.state() == DeviceState::Works);
        if self.stays_in_use.load(Ordering::Relaxed) && all_work() {
            *self.reason.lock() = None;
        }
        works_again
    }

    pub(super) fn note_failure(&self, request: Request, errno: i32, now: Instant) {
        if let Some(how) = self.count_failure(request, errno, now) {
            self.fail(|| format!("{how}, the last one with: {}", error_of(errno)));
        }
    }

    /// Notes the failure of a transfer in the store at `path` that is not tried again. Returns what it means for its operation.
    pub(super) fn judge(
        &self,
        request: Request,
        errno: i32,
        attempt: Attempt,
        path: &Path,
        now: Instant,
    ) -> Failure {
        let state = self.state(request.direction());
        self.note_failure(request, errno, now);
        Failure::of(request, errno, attempt, state, path)
    }

    /// The same as [`Self::note_failure`] of a flush in the background: however many fail, what is stored can be loaded.
    pub(super) fn note_failed_flush(&self, errno: i32, now: Instant) {
        self.count_failure(Request::Sync, errno, now);
    }

    /// Says in what words the device has failed by too many failures, if it has.
    fn count_failure(&self, request: Request, errno: i32, now: Instant) -> Option<String> {
        let (subject, direction) = (scope_of(request, errno), request.direction());
        let text = format!("{}: {}", direction.name(), error_of(errno));
        *self.last_error.lock() = Some(LastError { text, at: SystemTime::now() });
        if matches!(subject, FaultScope::ChunkFile | FaultScope::Room | FaultScope::Process) {
            return None;
        }
        let failed = self.directions[direction as usize].fail(direction, now);
        if subject == FaultScope::Gone {
            self.fail(|| format!("it is gone: {}", error_of(errno)));
        }
        failed
    }

    pub(super) fn state(&self, direction: Direction) -> DeviceState {
        match self.has_failed() {
            true => DeviceState::Fails,
            false => self.directions[direction as usize].state(),
        }
    }

    /// A number that grows with the successes from now on.
    pub(super) fn successes(&self, direction: Direction) -> u64 {
        let direction = &self.directions[direction as usize];
        let history = direction.history.lock();
        direction.is_watched.store(true, Ordering::Relaxed);
        history.successes
    }

    /// It has failed, whatever for. Only the first reason counts.
    pub(crate) fn fail(&self, reason: impl FnOnce() -> String) {
        self.fail_for(|| Reason { text: reason(), is_kept: false });
    }

    /// The same, for a reason that its files or its index have as long as it lasts.
    pub(crate) fn fail_for_now(&self, reason: impl FnOnce() -> String) {
        self.fail_for(|| Reason { text: reason(), is_kept: true });
    }

    fn fail_for(&self, reason: impl FnOnce() -> Reason) {
        {
            let mut known = self.reason.lock();
            if known.is_some() {
                return;
            }
            self.has_failed.store(true, Ordering::SeqCst);
            *known = Some(reason());
        }
        if let Some((number, alarm)) = &*self.alarm.lock() {
            // Nobody listens any more while the connector is closed.
            let _ = alarm.send(*number);
        }
    }

    /// It stays in use all the same, for want of another. It has its reason until it works again, unless that is kept elsewhere.
    pub(crate) fn stay_in_use(&self) {
        self.reason.lock().take_if(|reason| reason.is_kept);
        self.stays_in_use.store(true, Ordering::SeqCst);
        self.has_failed.store(false, Ordering::SeqCst);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.lock().as_ref().map(|reason| reason.text.clone())
    }

    pub(crate) fn last_error(&self) -> Option<LastError> {
        self.last_error.lock().clone()
    }

    /// What fails, and has not worked since.
    pub(crate) fn trouble(&self) -> Option<String> {
        let failing = |direction: &Direction| {
            let in_a_row = self.directions[*direction as usize].history.lock().error_streak;
            (in_a_row > 0).then(|| format!("{in_a_row} {} in a row failed", direction.name()))
        };
        let all = [Direction::Read, Direction::Write, Direction::Sync];
        self.reason().or_else(|| {
            let failing = all.iter().find_map(failing)?;
            let last = self.last_error().map_or_else(String::new, |error| error.text);
            Some(format!("{failing}; the last error of {last}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::base::sync::mpsc::{Receiver, channel};

    use super::*;

    fn watched() -> (Health, Receiver<usize>) {
        let (sender, receiver) = channel();
        let health = Health::default();
        health.set_alarm(3, Some(sender));
        (health, receiver)
    }

    /// The first failure comes beside a success that finds none.
    #[cfg(any(kvring_model = "loom", kvring_model = "shuttle"))]
    #[test]
    fn models_a_streak_that_is_over_is_told_of_no_more() {
        crate::models::explore(|| {
            let health = std::sync::Arc::new(Health::default());
            health.successes(Direction::Read);
            let other = std::sync::Arc::clone(&health);
            let failing = crate::models::spawn(move || {
                other.note_failure(Request::Read, libc::EIO, Instant::now());
            });
            health.note_success(Direction::Read);
            failing.join().unwrap();
            health.note_success(Direction::Read);
            assert_eq!(health.trouble(), None);
        });
    }

    #[test]
    fn error_streak_are_a_failure_and_others_are_not() {
        let (health, alarms) = watched();
        let begin = Instant::now();
        let end = begin + SHORTEST_STREAK;
        for _ in 0..10 {
            health.note_failure(Request::Read, libc::EIO, begin);
            (2..LONGEST_ERROR_STREAK)
                .for_each(|_| health.note_failure(Request::Read, libc::EIO, end));
            health.note_success(Direction::Read);
        }
        // Many at once, as where a batch meets a bad spot.
        (0..1000).for_each(|_| health.note_failure(Request::Read, libc::EIO, begin));
        assert_eq!(
            (health.state(Direction::Read), health.state(Direction::Write)),
            (DeviceState::Fails, DeviceState::Works)
        );
        health.note_success(Direction::Read);
        assert_eq!(health.state(Direction::Read), DeviceState::Falters);
        (0..100).for_each(|_| health.note_failure(Request::Write, libc::ENOMEM, end));
        assert!(!health.has_failed() && alarms.try_recv().is_err());
        health.note_failure(Request::Write, libc::EIO, begin);
        for _ in 1..LONGEST_ERROR_STREAK {
            health.note_success(Direction::Read);
            // Whatever they are.
            health.note_failure(Request::Write, libc::ENOSPC, end);
        }
        assert!(health.has_failed(), "that it still reads does not help");
        assert!(health.reason().unwrap().starts_with("16 writes in a row failed"));
        health.note_success(Direction::Write);
        health.note_failure(Request::Read, libc::ENODEV, end);
        assert_eq!(alarms.try_iter().collect::<Vec<_>>(), [3], "notified once");
    }

    #[test]
    fn a_device_that_is_gone_fails_at_once() {
        let (health, alarms) = watched();
        health.note_failure(Request::Read, libc::ENXIO, Instant::now());
        assert!(health.reason().unwrap().starts_with("it is gone"));
        assert_eq!(alarms.try_iter().count(), 1);
    }

    #[test]
    fn a_device_of_which_half_fails_for_long_has_failed() {
        let begin = Instant::now();
        let after = |one_in: u32, seconds: u64| {
            let (health, _) = watched();
            for number in 0..1000 {
                let now = begin + Duration::from_millis(seconds * u64::from(number));
                match number % one_in {
                    0 => health.note_failure(Request::Write, libc::EIO, now),
                    _ => drop(health.note_success(Direction::Write)),
                }
            }
            health.reason()
        };
        assert_eq!(after(5, 60), None, "one in five is not enough");
        assert_eq!(after(2, 5), None, "nor is it a short while");
        let reason = after(2, 60).unwrap();
        assert!(reason.contains("many writes have failed, 32 of the last 64"), "{reason}");
    }

    #[test]
    fn the_last_path_has_a_reason_until_it_works_again() {
        let (health, alarms) = watched();
        let begin = Instant::now();
        let fail = |now| (0..100).for_each(|_| health.note_failure(Request::Write, libc::EIO, now));
        for outage in 1..3 {
            fail(begin);
            fail(begin + SHORTEST_STREAK);
            health.stay_in_use();
            fail(begin + SHORTEST_STREAK);
            assert!(!health.has_failed() && health.reason().is_some());
            assert_eq!(alarms.try_iter().count(), 1, "notified once in outage {outage}");
            let works_again = (0..64).filter(|_| health.note_success(Direction::Write)).count();
            assert_eq!((works_again, health.reason()), (1, None));
        }
    }
}
