//! Whether what came back of random operations can be: of each key of a step, in the order in which it was submitted.

use std::collections::BTreeMap;

use super::content::Span;
use super::driver::Driver;
use crate::judge;
use crate::plan::Chunk;
use crate::plan::name;

/// What keeps a key from going, as far as this session has done anything for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Guard {
    pub(super) pinned: bool,
    /// It was pinned, and a longer chunk has taken its place: it still is, if not too much is pinned then.
    pub(super) may_be_pinned: bool,
    /// It is certainly held until then.
    pub(super) leased_until_ms: u64,
    /// It does not expire before then.
    pub(super) lease_ends_ms: u64,
}

/// One operation on one key, with what became of it.
#[derive(Debug)]
pub(super) enum Did {
    Set(Chunk, bool),
    /// The memory, if it was a hit.
    Get(usize, Option<Span>),
    /// Whether it is there, and whether it has a lease then.
    Exists(bool, bool),
    Delete,
    Purge(bool),
    Pin(bool),
    Unpin(bool),
}

impl Driver<'_> {
    pub(super) fn is_expired(&self, guard: Guard, last_use_ms: u64) -> bool {
        let now = self.now_ms();
        self.session.ttl.is_some_and(|ttl| last_use_ms + ttl.as_millis() as u64 <= now)
            && !guard.pinned
            && !guard.may_be_pinned
            && guard.lease_ends_ms <= now
    }

    /// Goes over what was done to each key, in order, and says what does not fit.
    pub(super) fn judge(&mut self, log: &[(u64, Did)]) -> Result<(), String> {
        let mut by_key: BTreeMap<u64, Vec<&Did>> = BTreeMap::new();
        for (key, did) in log {
            by_key.entry(*key).or_default().push(did);
        }
        for (key, all) in by_key {
            self.judge_key(key, &all).map_err(|error| {
                let guard = self.guards.get(&key);
                let (now, used) = (self.now_ms(), self.ledger.uses(key).latest_ms);
                format!("'{}': {error}; {all:?}; {guard:?}, now {now}, used {used}", name(key))
            })?;
        }
        Ok(())
    }

    fn judge_key(&mut self, key: u64, all: &[&Did]) -> Result<(), String> {
        let now = self.now_ms();
        let (before, mut last_use_ms) = self.before.remove(&key).expect("a key of this step");
        let (mut may_be, mut was_set, mut is_longer) = (before.clone(), false, false);
        // All of a step is under way together: a GET may read what a SET before it has not replaced yet.
        let mut readable = before.clone();
        let mut guard = self.guards.get(&key).copied().unwrap_or_default();
        for did in all {
            let is_expired = !was_set && self.is_expired(guard, last_use_ms);
            let must_be = guard.pinned || guard.leased_until_ms > self.latest_ms;
            match did {
                Did::Set(chunk, stored) => {
                    was_set = true;
                    if *stored {
                        readable.push(*chunk);
                        is_longer |= may_be.iter().any(|before| before.length < chunk.length);
                        // What replaces a chunk is used no longer ago than that was.
                        last_use_ms = if may_be.is_empty() { now } else { now.max(last_use_ms) };
                        may_be = vec![*chunk];
                    }
                }
                Did::Get(length, Some(span)) => {
                    let readable = readable.iter().copied().map(Some).collect();
                    let is = |chunk| self.contents.is(self.arena, *span, key, chunk);
                    judge::identify_by(&format!("length {length}"), &readable, is)?;
                    if is_expired {
                        return Err("a hit after it had expired".into());
                    }
                    last_use_ms = now.max(last_use_ms);
                }
                Did::Get(length, None) => {
                    // Behind a SET that has no answer yet it may miss.
                    let is_it = !was_set && may_be.len() == 1 && may_be[0].length == *length;
                    if must_be && is_it {
                        return Err("a miss, though it is pinned or leased".into());
                    }
                }
                Did::Exists(true, has_lease) => {
                    if may_be.is_empty() || is_expired {
                        return Err(format!("it exists, and may be {may_be:?}"));
                    }
                    if self.session.lease_s > 0 {
                        let lease_s = u64::from(self.session.lease_s);
                        let ends = (now / 1000 + lease_s + 1) * 1000;
                        guard.lease_ends_ms = guard.lease_ends_ms.max(ends);
                        if *has_lease {
                            guard.leased_until_ms = guard.leased_until_ms.max(now + lease_s * 1000);
                        }
                    }
                }
                Did::Exists(false, _) if must_be => {
                    return Err("it does not exist, though it is pinned or leased".into());
                }
                Did::Exists(false, _) => {}
                Did::Delete => {
                    readable.clear();
                    (may_be, guard) = (Vec::new(), Guard::default());
                }
                Did::Purge(true) => {
                    if !guard.pinned && !guard.may_be_pinned {
                        return Err("a purge says that it is pinned".into());
                    }
                    // What was being written is not held, unless it was through.
                    may_be.extend(before.iter().copied());
                    readable.extend(before.iter().copied());
                }
                Did::Purge(false) => {
                    if guard.pinned && !is_longer {
                        return Err("a purge took it, though it is pinned".into());
                    }
                    readable.clear();
                    (may_be, guard) = (Vec::new(), Guard::default());
                }
                Did::Pin(true) => {
                    if may_be.is_empty() || is_expired {
                        return Err(format!("it was pinned, and may be {may_be:?}"));
                    }
                    (guard.pinned, guard.may_be_pinned) = (true, false);
                }
                Did::Pin(false) => {
                    if must_be && guard.pinned {
                        return Err("it is not pinned any more".into());
                    }
                }
                Did::Unpin(was_pinned) => {
                    if *was_pinned != guard.pinned && !guard.may_be_pinned && !is_longer {
                        return Err("it was pinned, or not, without anybody's doing so".into());
                    }
                    (guard.pinned, guard.may_be_pinned) = (false, false);
                }
            }
        }
        // Whatever came first: a longer chunk keeps pin and lease of the one before only within their bounds.
        if is_longer {
            guard.may_be_pinned |= guard.pinned;
            (guard.pinned, guard.leased_until_ms) = (false, 0);
        }
        // Also one that has ended: the clock may be set back.
        if guard.pinned || guard.may_be_pinned || guard.lease_ends_ms > 0 {
            self.guards.insert(key, guard);
        } else {
            self.guards.remove(&key);
        }
        self.ledger.count("guarded", u64::from(guard.pinned || guard.leased_until_ms > now));
        self.settle(key, &may_be);
        self.ledger.end_use(key, last_use_ms, false);
        Ok(())
    }
}
