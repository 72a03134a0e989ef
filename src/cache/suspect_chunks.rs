//! Chunks that could not be read, and may be intact: the device may have failed for a while, and not their extents.
//!
//! A chunk is dropped only if it fails, the device reads something else after that, and the chunk fails again, while the
//! device works. Until then it stays, and GETs of it try again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicUsize, Ordering};
use crate::index::ChunkVersion;
use crate::key::Digest;

/// Chunks in doubt that are remembered. Those past it are kept as well, and doubted when they fail the next time.
const MOST_DOUBTS: usize = 4096;

/// An earlier failure counts for so long: one of an older outage says nothing.
const LONGEST_DOUBT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
struct SuspectChunk {
    version: ChunkVersion,
    since: Instant,
    /// Successful reads of the device until then.
    successes: u64,
    /// The failure may be the fault of its extent.
    may_be_its_extent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    New,
    Known,
    /// Its extent cannot be read, and others can.
    Unreadable,
}

#[derive(Default)]
pub(crate) struct SuspectChunks {
    count: AtomicUsize,
    chunks: Mutex<HashMap<Digest, SuspectChunk>>,
}

impl SuspectChunks {
    /// A chunk could not be read now. `successes` is the number of reads that succeeded until now.
    pub(crate) fn add(
        &self,
        version: ChunkVersion,
        may_be_its_extent: bool,
        successes: u64,
        now: Instant,
    ) -> Finding {
        let mut chunks = self.chunks.lock();
        let digest = version.digest;
        let before = chunks.get(&digest).filter(|doubt| doubt.version == version).copied();
        let is_confirmed = before.is_some_and(|before| {
            before.may_be_its_extent
                && may_be_its_extent
                && successes > before.successes
                && now.saturating_duration_since(before.since) <= LONGEST_DOUBT
        });
        if is_confirmed {
            chunks.remove(&digest);
        } else if before.is_some() || chunks.len() < MOST_DOUBTS {
            let doubt = SuspectChunk { version, since: now, successes, may_be_its_extent };
            chunks.insert(digest, doubt);
        } else {
            // One that is not listed here is not to be looked at in idle moments either: that list would have no bound.
            return Finding::Known;
        }
        self.count.store(chunks.len(), Ordering::Relaxed);
        match before {
            _ if is_confirmed => Finding::Unreadable,
            Some(_) => Finding::Known,
            None => Finding::New,
        }
    }

    /// Whether there is any. Without a lock, as hardly ever there is.
    pub(crate) fn are_there(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether the chunk of this digest is in doubt: then it does not vouch for the bytes of a SET.
    pub(crate) fn hold(&self, digest: Digest) -> bool {
        self.are_there() && self.chunks.lock().contains_key(&digest)
    }

    pub(crate) fn remove(&self, digest: Digest) {
        let mut chunks = self.chunks.lock();
        chunks.remove(&digest);
        self.count.store(chunks.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_unreadable_if_it_fails_again_while_others_do_not() {
        let suspects = SuspectChunks::default();
        let version = ChunkVersion { digest: Digest::of("k"), generation: 7 };
        let now = Instant::now();
        let add = |successes, now| suspects.add(version, true, successes, now);
        assert_eq!(add(5, now), Finding::New);
        assert_eq!(add(5, now), Finding::Known, "nothing was read in between");
        assert!(suspects.hold(version.digest) && !suspects.hold(Digest::of("other")));
        let later = now + 2 * LONGEST_DOUBT;
        assert_eq!(add(9, later), Finding::Known, "that was another outage");
        assert_eq!(suspects.add(version, false, 10, later), Finding::Known, "that was the device");
        assert_eq!(add(11, later), Finding::Known);
        assert_eq!(add(12, later), Finding::Unreadable);
        assert!(!suspects.are_there());
        assert_eq!(add(12, later), Finding::New);
        let younger = ChunkVersion { digest: Digest::of("k"), generation: 8 };
        assert_eq!(suspects.add(younger, true, 99, later), Finding::New, "another chunk by now");
        suspects.remove(younger.digest);
        assert!(!suspects.are_there());
    }

    #[test]
    fn there_is_a_bound() {
        let suspects = SuspectChunks::default();
        for number in 0..2 * MOST_DOUBTS {
            let version = ChunkVersion { digest: Digest::of(&number.to_string()), generation: 1 };
            let expected = if number < MOST_DOUBTS { Finding::New } else { Finding::Known };
            assert_eq!(suspects.add(version, true, 0, Instant::now()), expected);
        }
        assert_eq!(suspects.count.load(Ordering::Relaxed), MOST_DOUBTS);
    }
}
