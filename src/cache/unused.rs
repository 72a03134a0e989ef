//! Whether a store is only written: keys that change at every start, or with every request, are found by nobody.

use super::Cache;

/// A store is judged after so long, and if the smaller of these was written: `capacity / SHARE` and `MUCH_BYTES`.
const LEAST_AGE_S: u32 = 3600;
const SHARE: u64 = 10;
const MUCH_BYTES: u64 = 10 << 30;

impl Cache {
    /// Seconds since the store was opened.
    pub(crate) fn age_s(&self) -> u32 {
        self.config.clock.passed_s().saturating_sub(self.opened_s)
    }

    /// That much was written since the store was opened and nothing was found, if so, with the usual causes.
    pub(crate) fn unused(&self) -> Option<String> {
        let counters = &self.counters;
        let age_s = self.age_s();
        let written_bytes = counters.written_bytes.get();
        let is_unused = age_s >= LEAST_AGE_S
            && written_bytes >= MUCH_BYTES.min(self.index.capacity_bytes() / SHARE)
            && counters.exists_hits.get() + counters.get_hits.get() == 0;
        is_unused.then(|| {
            format!(
                "nothing was found since the open {} h ago, though {} MiB were written; usual causes: hashes that differ at each start \
                 (PYTHONHASHSEED is not set), a salt that differs with each request, a draft model",
                age_s / 3600,
                written_bytes >> 20
            )
        })
    }
}
