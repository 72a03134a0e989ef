//! Keys that lookups have locked: a delete leaves them alone until they are unlocked.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Whoever has not unlocked a key by then never will.
const LONGEST_LOCK: Duration = Duration::from_secs(600);

/// Expired locks are looked for whenever there are so many.
const FEW: usize = 4096;

struct Lock {
    count: u32,
    /// When it was locked last.
    since: Instant,
}

#[derive(Default)]
pub(crate) struct ObjectLocks {
    locks: HashMap<String, Lock>,
    /// Look for expired ones when there are more than this.
    many: usize,
}

impl ObjectLocks {
    pub(crate) fn lock(&mut self, keys: impl Iterator<Item = String>, now: Instant) {
        for key in keys {
            let lock = self.locks.entry(key).or_insert(Lock { count: 0, since: now });
            lock.count = if is_held(lock, now) { lock.count + 1 } else { 1 };
            lock.since = now;
        }
        if self.locks.len() > self.many.max(FEW) {
            self.locks.retain(|_, lock| is_held(lock, now));
            self.many = 2 * self.locks.len();
        }
    }

    pub(crate) fn unlock<'key>(&mut self, keys: impl IntoIterator<Item = &'key String>) {
        for key in keys {
            if let Some(lock) = self.locks.get_mut(key) {
                lock.count -= 1;
                if lock.count == 0 {
                    self.locks.remove(key);
                }
            }
        }
    }

    pub(crate) fn holds(&self, key: &str, now: Instant) -> bool {
        self.locks.get(key).is_some_and(|lock| is_held(lock, now))
    }

    pub(crate) fn len(&self) -> usize {
        self.locks.len()
    }
}

fn is_held(lock: &Lock, now: Instant) -> bool {
    now.saturating_duration_since(lock.since) < LONGEST_LOCK
}
