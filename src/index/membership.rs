//! Which stores share keys: kept in each of them, so that one that was away while the others went on is found out.
//!
//! Every store of the set that is in use has the same block, or an older one. It is written, and synced, to all of them
//! before the set that it tells of is used. So the block with the highest epoch tells which stores have seen everything: what
//! another one holds may have been replaced or deleted meanwhile.

use bytemuck::Zeroable;

use super::index_file::IndexFile;
use crate::format::header::MEMBERSHIP_OFFSET;
use crate::format::membership::Membership;

/// What a store knows of sharing keys with others.
#[expect(clippy::large_enum_variant, reason = "there are a few of them, at open")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    Never,
    /// It did, or does, with these.
    With(Membership),
    /// It did, and with whom cannot be read any more.
    Lost,
}

impl Sharing {
    pub(super) fn read(index_file: &IndexFile) -> Self {
        match index_file.read_value::<Membership>(MEMBERSHIP_OFFSET) {
            Ok(membership) if membership == Membership::zeroed() => Self::Never,
            Ok(membership) if membership.is_sensible() => Self::With(membership),
            _ => Self::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::capacity::Budget;
    use crate::directory::Directory;
    use crate::index::table::Table;
    use crate::index::{FoundIndex, IndexPlace};

    #[test]
    fn what_is_noted_is_found_and_damage_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let place = IndexPlace::Directory(Arc::new(Directory::open(directory.path()).unwrap()));
        let budget = Arc::new(Budget::new(64 << 20));
        let (table, _) = Table::open(FoundIndex::look(place).unwrap(), budget, 0).unwrap();
        assert_eq!(Sharing::read(&table.index_file), Sharing::Never);
        let id = table.store_id().unwrap();
        let membership = Membership::new(7, 1, [[9; 16], id, [1; 16]]);
        assert!(membership.members().is_sorted() && membership.members().contains(&id));
        table.write_membership(&membership).unwrap();
        assert_eq!(Sharing::read(&table.index_file), Sharing::With(membership));
        assert_eq!(membership.missing(&[id, [2; 16]]), 3);
        table.index_file.write_at(&[0xff], MEMBERSHIP_OFFSET + 20).unwrap();
        assert_eq!(Sharing::read(&table.index_file), Sharing::Lost);
    }
}
