//! A group of SETs that become durable together: its members, and how far it is.

use super::failed_syncs::SyncsUnderWay;
use crate::base::block::Extent;
use crate::config::Layout;

/// Files that SETs of one reactor keep open until they are durable: enough to share a sync, and far from what a process may
/// have.
const MOST_OPEN_FILES: usize = 256;

#[derive(Default)]
pub(super) struct GroupCommit {
    /// SETs whose data is written.
    pub(super) waiting: Vec<usize>,
    pub(super) members: Vec<usize>,
    pub(super) phase: Phase,
    /// Syncs in flight.
    pub(super) outstanding: usize,
    pub(super) error: Option<i32>,
    /// Syncs of others that have to come back before the phase is over.
    pub(super) awaited: Option<SyncsUnderWay>,
    /// Changes of records that have to be made before its sync of the index begins.
    pub(super) awaited_records: Option<u64>,
    /// Extents whose records were cleared before the sync of the index began, and the failed syncs at that time.
    pub(super) withdrawn: Vec<Extent>,
    pub(super) failed_syncs: u64,
    /// A SET has found no room: a sync of the index alone is to free extents of SETs that failed.
    pub(super) is_to_free: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is no group.
    #[default]
    Idle,
    Data,
    Index,
    /// The clearing of the records that they replace.
    Replaced,
}

impl GroupCommit {
    /// Whether SETs that wait for durability have so many files open, in layout `files`, that no further one should.
    pub(super) fn has_too_many_files(&self, layout: Layout) -> bool {
        layout == Layout::Files && self.waiting.len() + self.members.len() >= MOST_OPEN_FILES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_in_files_of_their_own_keep_so_many_open() {
        let has_too_many = |waiting, members, layout| {
            let (waiting, members) = (vec![0; waiting], vec![0; members]);
            let group = GroupCommit { waiting, members, ..GroupCommit::default() };
            group.has_too_many_files(layout)
        };
        for (waiting, members) in [(MOST_OPEN_FILES, 0), (0, MOST_OPEN_FILES), (100, 156)] {
            assert!(has_too_many(waiting, members, Layout::Files));
            assert!(!has_too_many(waiting, members, Layout::Extents));
        }
        assert!(!has_too_many(100, 155, Layout::Files));
    }
}
