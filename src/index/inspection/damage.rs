//! Damage of a store, as far as looking at it tells.

/// Damage of a store, as far as its index and the lengths of its data files tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Records whose checksum or fields are wrong, or of whose key a part is missing.
    pub torn: u64,
    /// Records whose chunk is not inside its data file.
    pub out_of_range: u64,
    /// Pages of the index that the disk does not return.
    pub unreadable_pages: u64,
    /// Whether the index is shorter than kvring leaves it.
    pub is_cut_short: bool,
    /// Whether only one of the two superblocks of a device is whole.
    pub has_one_superblock: bool,
}

impl Damage {
    /// A sentence for each kind of damage; none if all is well.
    pub fn sentences(&self) -> Vec<String> {
        let counted = |count: u64, what: &str| (count > 0).then(|| format!("{count} {what}"));
        let said = |is_so: bool, what: &str| is_so.then(|| what.to_owned());
        let sentences = [
            counted(self.torn, "records of the index are torn: their chunks are missed"),
            counted(self.out_of_range, "records name extents that their data file does not have"),
            counted(
                self.unreadable_pages,
                "pages of the index cannot be read: what they hold is missed",
            ),
            said(self.is_cut_short, "the index was cut short: what was behind its end is missed"),
            said(
                self.has_one_superblock,
                "one of the two superblocks is damaged: opening the store writes it again",
            ),
        ];
        sentences.into_iter().flatten().collect()
    }
}
