//! Wall-clock time as records keep it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// What tells the time of records, expiry and leases: the system, or a test.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    set_by_hand: Option<Arc<AtomicU64>>,
}

impl Clock {
    /// A clock that shows `now_ms`, milliseconds since 1970, until somebody stores something else there.
    pub fn by_hand(now_ms: Arc<AtomicU64>) -> Self {
        Self { set_by_hand: Some(now_ms) }
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
}
