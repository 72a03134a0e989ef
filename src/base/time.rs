//! The clocks: wall-clock time as records keep it, one that only goes forward, and one that stands still while the process does.

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// When this process first asked how much time has passed.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// What tells the time of records, expiry and leases: the system, or a test.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    set_by_hand: Option<Arc<AtomicU64>>,
    passed_by_hand: Option<Arc<AtomicU64>>,
}

impl Clock {
    /// A clock that shows `now_ms`, milliseconds since 1970, until somebody stores something else there.
    pub fn by_hand(now_ms: Arc<AtomicU64>) -> Self {
        Self { set_by_hand: Some(now_ms), passed_by_hand: None }
    }

    /// The same with `passed_ms` as the milliseconds that have passed, which only grow, whatever `now_ms` does. Without it, the
    /// time that a clock set by hand shows has passed.
    pub fn with_passed(self, passed_ms: Arc<AtomicU64>) -> Self {
        Self { passed_by_hand: Some(passed_ms), ..self }
    }

    /// Milliseconds since 1970; 0 for a clock set before that.
    pub fn now_ms(&self) -> u64 {
        match &self.set_by_hand {
            Some(now_ms) => now_ms.load(Ordering::SeqCst),
            None => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |elapsed| elapsed.as_millis() as u64),
        }
    }

    /// Whole seconds since some moment, whatever becomes of the wall clock meanwhile. For times that end with the session.
    pub fn passed_s(&self) -> u32 {
        let by_hand = self.passed_by_hand.as_ref().or(self.set_by_hand.as_ref());
        match by_hand {
            Some(passed_ms) => (passed_ms.load(Ordering::SeqCst) / 1000) as u32,
            None => ORIGIN.elapsed().as_secs() as u32,
        }
    }
}

/// How much of a wait counts before the next look.
const LONGEST_STEP: Duration = Duration::from_secs(1);

/// How long something is waited for, in steps. Time in which this process is stopped (SIGSTOP, a debugger, a frozen container)
/// is one step, however long it is: threads that are waited for were stopped as well.
#[derive(Debug)]
pub(crate) struct Patience {
    left: Duration,
    looked: Instant,
}

impl Patience {
    pub(crate) fn new(left: Duration) -> Self {
        Self { left, looked: Instant::now() }
    }

    /// How long to wait before it is asked again; `None` when it is over.
    pub(crate) fn step(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let waited = now.saturating_duration_since(self.looked).min(LONGEST_STEP);
        (self.left, self.looked) = (self.left.saturating_sub(waited), now);
        (!self.left.is_zero()).then_some(self.left.min(LONGEST_STEP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_lasts_while_the_process_is_stopped() {
        let (hour, step) = (Duration::from_secs(3600), Duration::from_millis(2500));
        let mut patience = Patience::new(step);
        let mut after_a_stop = || {
            patience.looked -= hour;
            patience.step()
        };
        assert_eq!(after_a_stop(), Some(LONGEST_STEP));
        assert_eq!(after_a_stop(), Some(step - 2 * LONGEST_STEP));
        assert_eq!(after_a_stop(), None);
        assert_eq!(Patience::new(Duration::ZERO).step(), None);
    }

    #[test]
    fn patience_ends_when_its_time_has_passed() {
        let (begun, longest) = (Instant::now(), Duration::from_millis(20));
        let mut patience = Patience::new(longest);
        while let Some(step) = patience.step() {
            assert!(step <= longest);
            std::thread::sleep(step);
        }
        assert!(begun.elapsed() >= longest);
    }
}
