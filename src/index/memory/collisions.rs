//! Keys that must not be stored for a while, because their digest is that of another key.

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicBool, Ordering};

const QUARANTINE_MS: u64 = 60 * 60 * 1000;

/// Most keys that are remembered. Two keys with one BLAKE2b-128 digest are not expected to be seen ever, so reaching this
/// means an attack or a bug; then the oldest are forgotten.
const MAX_KEYS: usize = 1024;

#[derive(Default)]
pub(crate) struct Quarantine {
    any: AtomicBool,
    until_ms: Mutex<HashMap<Arc<str>, u64>>,
}

impl Quarantine {
    /// Whether `key` must not be stored now.
    pub(crate) fn holds(&self, key: &str, now_ms: u64) -> bool {
        // The usual case costs one load.
        self.any.load(Ordering::Acquire)
            && self.until_ms.lock().get(key).is_some_and(|until_ms| now_ms < *until_ms)
    }

    /// Puts `key` in for an hour.
    pub(crate) fn add(&self, key: &Arc<str>, now_ms: u64) {
        let mut all = self.until_ms.lock();
        all.retain(|_, until_ms| now_ms < *until_ms);
        if all.len() >= MAX_KEYS
            && let Some(oldest) = all.iter().min_by_key(|(_, until_ms)| **until_ms)
        {
            let oldest = Arc::clone(oldest.0);
            all.remove(&oldest);
        }
        all.insert(Arc::clone(key), now_ms + QUARANTINE_MS);
        self.any.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_and_a_bound() {
        let quarantine = Quarantine::default();
        quarantine.add(&"key".into(), 1000);
        assert!(quarantine.holds("key", 1000) && quarantine.holds("key", 1000 + QUARANTINE_MS - 1));
        assert!(!quarantine.holds("key", 1000 + QUARANTINE_MS) && !quarantine.holds("other", 1000));
        for number in 0..MAX_KEYS as u64 {
            quarantine.add(&number.to_string().into(), 2000 + number);
        }
        assert_eq!(quarantine.until_ms.lock().len(), MAX_KEYS);
        assert!(!quarantine.holds("key", 2000), "the oldest was forgotten");
        quarantine.add(&"late".into(), 2000 + MAX_KEYS as u64 - 1 + QUARANTINE_MS);
        assert_eq!(quarantine.until_ms.lock().len(), 1, "the hour of all others is over");
    }
}
