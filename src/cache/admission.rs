//! Which SETs are worth a write: the store may spare the drive.

use std::time::Instant;

use super::{Cache, SetRequest};
use crate::base::sync::Mutex;
use crate::config::Admission;

const SECONDS_PER_DAY: f64 = 86_400.0;

/// What of the day's writes may come at once.
const BURST_SECONDS: f64 = 3_600.0;

/// Share of the data files up to which adaptive admission stores all.
const ADMITS_ALL_BELOW: f64 = 0.9;

/// Bytes that may be written at all paths of a store, filled up as time goes by. Without a limit by default.
#[derive(Default)]
pub(crate) struct WriteBudget {
    bucket: Option<Mutex<TokenBucket>>,
}

struct TokenBucket {
    bytes_per_second: f64,
    burst_bytes: f64,
    left_bytes: f64,
    filled: Instant,
}

impl WriteBudget {
    pub(crate) fn new(bytes_per_day: Option<u64>, now: Instant) -> Self {
        let bucket = |bytes_per_day: u64| {
            let bytes_per_second = bytes_per_day as f64 / SECONDS_PER_DAY;
            let burst_bytes = bytes_per_second * BURST_SECONDS;
            Mutex::new(TokenBucket {
                bytes_per_second,
                burst_bytes,
                left_bytes: burst_bytes,
                filled: now,
            })
        };
        Self { bucket: bytes_per_day.map(bucket) }
    }

    /// Takes `bytes`, if they are there. A chunk longer than an hour's worth waits for all of that and leaves a debt, so that
    /// none is too long for good.
    pub(super) fn take(&self, bytes: u64, now: Instant) -> bool {
        let Some(bucket) = &self.bucket else { return true };
        let mut bucket = bucket.lock();
        let elapsed = now.saturating_duration_since(bucket.filled).as_secs_f64();
        bucket.filled = now;
        bucket.left_bytes =
            (bucket.left_bytes + elapsed * bucket.bytes_per_second).min(bucket.burst_bytes);
        let is_there = (bytes as f64).min(bucket.burst_bytes) <= bucket.left_bytes;
        if is_there {
            bucket.left_bytes -= bytes as f64;
        }
        is_there
    }
}

impl Cache {
    /// Whether a SET is to write its bytes. If not, its key is not stored afterwards: what is stored of it is not what it was to
    /// be. It stays if the SET `keeps_stored`: then it is the same, unless it is damaged, and a load tells.
    pub(super) fn admits(&self, request: &SetRequest, keeps_stored: bool, now: Instant) -> bool {
        let SetRequest { digest, ref key, .. } = *request;
        let length_bytes = request.buffer.length_bytes() as u64;
        let admitted = match self.config.admission {
            Admission::SecondUse if !keeps_stored => {
                self.index.admits(digest, key, self.config.tuning.admit_after)
            }
            // Nothing goes for what is stored while there is space.
            _ if self.config.admits_by_share() && self.is_filled_above(ADMITS_ALL_BELOW) => {
                let (namespace, submitted_ms) = (request.namespace, request.submitted_ms);
                let is_admitted =
                    self.index.admits_by_share((digest, key), namespace, submitted_ms);
                is_admitted.then_some(()).ok_or(None)
            }
            _ => Ok(()),
        };
        if let Err(outdated) = admitted {
            self.counters.set_not_admitted.add(1);
            self.counters.not_admitted_bytes.add(length_bytes);
            self.reclaim_all(outdated);
            return false;
        }
        if !self.write_budget.take(length_bytes, now) {
            self.counters.set_over_write_budget.add(1);
            self.counters.over_write_budget_bytes.add(length_bytes);
            if !keeps_stored {
                self.reclaim_all(self.index.drop_outdated(request.digest));
            }
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_hours_worth_at_once_and_then_as_time_goes_by() {
        let start = Instant::now();
        let budget = WriteBudget::new(Some(24 * 3600 * 1000), start);
        assert!(budget.take(3_600_000, start) && !budget.take(1, start));
        assert!(!budget.take(1001, start + Duration::from_secs(1)));
        assert!(budget.take(2000, start + Duration::from_secs(2)));
        let later = start + Duration::from_secs(1_000_000);
        assert!(budget.take(1, later) && !budget.take(4_000_000, later));
        // More than an hour's worth: once as much as that is there, and nothing else until it is paid for.
        let full = later + Duration::from_secs(1);
        assert!(budget.take(4_000_000, full) && !budget.take(1, full + Duration::from_secs(400)));
        assert!(budget.take(1, full + Duration::from_secs(401)));
        assert!(WriteBudget::new(None, start).take(u64::MAX, start));
    }
}
