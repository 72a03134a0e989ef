//! The clocks: wall-clock time as records keep it, and one that only goes forward.

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

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
