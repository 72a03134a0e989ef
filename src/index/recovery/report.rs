//! What opening an index found and dropped.

/// What opening found and dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Whether there was no store before.
    pub is_new: bool,
    /// Whether the last owner closed the store, or it is new.
    pub clean_shutdown: bool,
    /// Why the whole index was discarded, if it was.
    pub reset: Option<String>,
    /// Whether the index file was too short.
    pub truncated: bool,
    /// Chunks that are stored.
    pub kept: u64,
    /// Of these, chunks to verify when idle.
    pub to_verify: u64,
    /// Discarded: corrupt, or without a part of their key.
    pub torn: u64,
    /// Index pages with I/O errors.
    pub unreadable_pages: u64,
    /// Discarded: their extent or chunk file does not exist.
    pub out_of_range: u64,
    /// Discarded: a younger one has their space.
    pub overlapping: u64,
    /// Discarded: the key has a younger one.
    pub duplicate: u64,
    /// Discarded: not used for longer than `ttl`.
    pub expired: u64,
    /// Discarded: their keys belong to another path now.
    pub moved: u64,
    /// Discarded: their path was away.
    pub stale: u64,
    /// Chunk files without a record, removed.
    pub orphans: u64,
}

impl Recovery {
    /// Records that were dropped, for any reason.
    pub fn discarded(&self) -> u64 {
        self.lost().iter().chain(&self.dropped()).map(|(_, count)| count).sum()
    }

    /// Records that were damaged, or have lost their data.
    fn lost(&self) -> [(&'static str, u64); 3] {
        [
            ("torn", self.torn),
            ("out of range", self.out_of_range),
            ("overlapping", self.overlapping),
        ]
    }

    /// Records that are not wanted any more.
    fn dropped(&self) -> [(&'static str, u64); 4] {
        [
            ("duplicate", self.duplicate),
            ("expired", self.expired),
            ("moved to other paths", self.moved),
            ("stale", self.stale),
        ]
    }

    /// Whether chunks are lost that a sound store would have: the drive, or whoever wrote there, is to be looked at.
    pub(crate) fn is_damaged(&self) -> bool {
        self.torn > 0 || self.unreadable_pages > 0 || self.truncated || self.reset.is_some()
    }

    /// The sum over several paths.
    pub(crate) fn of_all<'all>(all: impl IntoIterator<Item = &'all Self>) -> Self {
        let mut sum = Self { is_new: true, clean_shutdown: true, ..Self::default() };
        for one in all {
            sum.is_new &= one.is_new;
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

/// In one line: what there was, and what is lost of it.
impl std::fmt::Display for Recovery {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_new {
            return formatter.write_str("new");
        }
        let shutdown = if self.clean_shutdown { "clean" } else { "unclean" };
        let plural = if self.kept == 1 { "" } else { "s" };
        write!(formatter, "{} chunk{plural} recovered after {shutdown} shutdown", self.kept)?;
        let mut lost = counted(&self.lost());
        if self.unreadable_pages > 0 {
            lost.push(format!("{} unreadable pages of the index", self.unreadable_pages));
        }
        if self.truncated {
            lost.push("the end of the index".into());
        }
        lost.extend(self.reset.iter().map(|reason| format!("the index ({reason})")));
        write!(formatter, "; lost: {}", text_of(&lost))?;
        let mut dropped = counted(&self.dropped());
        if self.orphans > 0 {
            dropped.push(format!("{} files without a record", self.orphans));
        }
        match dropped.is_empty() {
            true => Ok(()),
            false => write!(formatter, "; dropped: {}", text_of(&dropped)),
        }
    }
}

fn counted(counts: &[(&str, u64)]) -> Vec<String> {
    let found = counts.iter().filter(|(_, count)| *count > 0);
    found.map(|(name, count)| format!("{count} {name}")).collect()
}

fn text_of(parts: &[String]) -> String {
    if parts.is_empty() { "nothing".into() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each count is another power of two, by which sums can be told apart.
    fn of_one(scale: u64) -> Recovery {
        Recovery {
            is_new: false,
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
        assert_eq!(none, Recovery { is_new: true, clean_shutdown: true, ..Recovery::default() });
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
        assert_eq!(Recovery { is_new: true, ..Recovery::default() }.to_string(), "new");
        assert_eq!(
            Recovery::default().to_string(),
            "0 chunks recovered after unclean shutdown; lost: nothing"
        );
        let full = Recovery { truncated: true, reset: Some("it is old".into()), ..of_one(1) };
        assert_eq!(
            full.to_string(),
            "1 chunk recovered after clean shutdown; lost: 4 torn, 16 out of range, 32 overlapping, 8 unreadable pages of \
             the index, the end of the index, the index (it is old); dropped: 64 duplicate, 128 expired, 256 moved to \
             other paths, 512 stale, 1024 files without a record"
        );
    }
}
