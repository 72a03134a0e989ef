//! Wall-clock time as records keep it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970; 0 for a clock set before that.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as u64)
}
