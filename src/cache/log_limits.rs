//! What the log tells of failures at one path, which may come by the thousand.

use log::Level::{Error, Warn};

use crate::base::log_limit::LogLimit;

/// One for each reason. Those of the store and of the index are theirs.
pub(crate) struct LogLimits {
    pub(crate) reads: LogLimit,
    pub(crate) mismatches: LogLimit,
    pub(crate) writes: LogLimit,
    pub(crate) retries: LogLimit,
    pub(crate) syncs: LogLimit,
    pub(crate) flushes: LogLimit,
    pub(super) index_full: LogLimit,
    /// All chunks of a model are equally long.
    pub(crate) too_long: LogLimit,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self {
            reads: LogLimit::new(Error, "chunks could not be read"),
            mismatches: LogLimit::new(
                Error,
                "chunks did not match their checksums and were dropped",
            ),
            writes: LogLimit::new(Error, "chunks could not be written"),
            retries: LogLimit::new(Warn, "writes failed and were tried again"),
            syncs: LogLimit::new(Error, "chunks could not be made durable"),
            flushes: LogLimit::new(Error, "flushes failed"),
            index_full: LogLimit::of_lasting("chunks went for the records of others"),
            too_long: LogLimit::of_lasting("chunks were too long to be stored"),
        }
    }
}

impl LogLimits {
    pub(super) fn all(&self) -> [&LogLimit; 8] {
        let Self { reads, mismatches, writes, retries, syncs, flushes, index_full, too_long } =
            self;
        [reads, mismatches, writes, retries, syncs, flushes, index_full, too_long]
    }
}
