//! What opening an index found and dropped.

/// What opening found and dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Whether the last owner had closed the store; true for a new one.
    pub clean_shutdown: bool,
    /// Why the index was started anew, if it was.
    pub reset: Option<String>,
    /// Whether the index was cut short; records behind its end are lost.
    pub truncated: bool,
    /// Chunks kept.
    pub kept: u64,
    /// Of these, chunks written by an owner that did not close the store: they are read and verified in idle moments.
    pub to_verify: u64,
    /// Records whose checksum or fields are wrong, or of whose key a part is missing.
    pub torn: u64,
    /// Pages of the index that could not be read; the chunks of their records are missed.
    pub unreadable_pages: u64,
    /// Records whose extent does not exist: outside its data file, or without its chunk file.
    pub out_of_range: u64,
    /// Records whose extent overlaps with that of a younger one.
    pub overlapping: u64,
    /// Older records of a key that has a younger one.
    pub duplicate: u64,
    /// Chunks that were not used for longer than `ttl`.
    pub expired: u64,
    /// Chunks whose keys belong to another path since paths were added, removed, or changed in capacity.
    pub moved: u64,
    /// Chunks of a path that was unavailable while the others went on: they may have been replaced or deleted since.
    pub stale: u64,
    /// Files without a record that were removed: of SETs that did not complete, and DELETEs that were answered.
    pub orphans: u64,
}

impl Recovery {
    /// Records that were dropped, for any reason.
    pub fn discarded(&self) -> u64 {
        self.dropped().iter().map(|(_, count)| count).sum()
    }

    fn dropped(&self) -> [(&'static str, u64); 7] {
        [
            ("torn", self.torn),
            ("out of range", self.out_of_range),
            ("overlapping", self.overlapping),
            ("duplicate", self.duplicate),
            ("expired", self.expired),
            ("moved to other paths", self.moved),
            ("stale", self.stale),
        ]
    }

    /// The sum over several paths.
    pub(crate) fn of_all<'all>(all: impl IntoIterator<Item = &'all Self>) -> Self {
        let mut sum = Self { clean_shutdown: true, ..Self::default() };
        for one in all {
            sum.clean_shutdown &= one.clean_shutdown;
            sum.reset = match (sum.reset.take(), &one.reset) {
                (Some(before), Some(reason)) => Some(format!("{before}; {reason}")),
                (before, reason) => before.or_else(|| reason.clone()),
            };
            sum.truncated |= one.truncated;
            sum.kept += one.kept;
            sum.to_verify += one.to_verify;
            sum.torn += one.torn;
            sum.unreadable_pages += one.unreadable_pages;
            sum.out_of_range += one.out_of_range;
            sum.overlapping += one.overlapping;
            sum.duplicate += one.duplicate;
            sum.expired += one.expired;
            sum.orphans += one.orphans;
            sum.moved += one.moved;
            sum.stale += one.stale;
        }
        sum
    }
}

impl std::fmt::Display for Recovery {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shutdown = if self.clean_shutdown { "clean" } else { "unclean" };
        write!(formatter, "{} chunks after {shutdown} shutdown", self.kept)?;
        for (name, count) in self.dropped().iter().filter(|(_, count)| *count > 0) {
            write!(formatter, ", {count} {name}")?;
        }
        if self.orphans > 0 {
            write!(formatter, "; {} files without a record removed", self.orphans)?;
        }
        if self.unreadable_pages > 0 {
            write!(formatter, "; {} pages of the index cannot be read", self.unreadable_pages)?;
        }
        if self.truncated {
            write!(formatter, "; the index was cut short")?;
        }
        match &self.reset {
            Some(reason) => write!(formatter, "; the index was started anew: {reason}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each count is another power of two, by which sums can be told apart.
    fn of_one(scale: u64) -> Recovery {
        Recovery {
            clean_shutdown: true,
            reset: None,
            truncated: false,
            kept: scale,
            to_verify: 2 * scale,
            torn: 4 * scale,
            unreadable_pages: 8 * scale,
            out_of_range: 16 * scale,
            overlapping: 32 * scale,
            duplicate: 64 * scale,
            expired: 128 * scale,
            moved: 256 * scale,
            stale: 512 * scale,
            orphans: 1024 * scale,
        }
    }

    #[test]
    fn counts_of_all_paths_add_up() {
        assert_eq!(Recovery::of_all(&[of_one(1), of_one(2)]), of_one(3));
        assert_eq!(of_one(1).discarded(), 4 + 16 + 32 + 64 + 128 + 256 + 512);
        let none = Recovery::of_all(&[]);
        assert_eq!(none, Recovery { clean_shutdown: true, ..Recovery::default() });
    }

    #[test]
    fn one_path_that_was_damaged_shows_in_the_sum() {
        let whole = of_one(1);
        let cut = Recovery { truncated: true, clean_shutdown: false, ..of_one(1) };
        let anew = |reason: &str| Recovery { reset: Some(reason.into()), ..of_one(1) };
        for paths in [[&whole, &cut], [&cut, &whole]] {
            let sum = Recovery::of_all(paths);
            assert!(sum.truncated && !sum.clean_shutdown);
        }
        assert!(Recovery::of_all([&cut, &cut]).truncated);
        let reset = |paths: [&Recovery; 2]| Recovery::of_all(paths).reset;
        assert_eq!(reset([&whole, &anew("a")]).as_deref(), Some("a"));
        assert_eq!(reset([&anew("a"), &whole]).as_deref(), Some("a"));
        assert_eq!(reset([&anew("a"), &anew("b")]).as_deref(), Some("a; b"));
    }

    #[test]
    fn it_says_what_there_was_and_nothing_else() {
        assert_eq!(Recovery::default().to_string(), "0 chunks after unclean shutdown");
        let full = Recovery { truncated: true, reset: Some("it is old".into()), ..of_one(1) };
        assert_eq!(
            full.to_string(),
            "1 chunks after clean shutdown, 4 torn, 16 out of range, 32 overlapping, 64 duplicate, 128 expired, \
             256 moved to other paths, 512 stale; 1024 files without a record removed; 8 pages of the index cannot \
             be read; the index was cut short; the index was started anew: it is old"
        );
    }
}
