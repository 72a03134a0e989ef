//! The index of a store as an open finds it: locked, looked at, and not changed yet. So several paths can be compared before
//! anything is changed at one of them.

use std::os::unix::fs::FileExt;

use bytemuck::Zeroable;

use super::index_bytes::{IndexBytes, data_in, read_owner, read_session};
use super::index_file::{IndexFile, IndexPlace};
use crate::directory::Directory;
use crate::error::OpenError;
use crate::format::header::{HEADER_BYTES, Header, MAGIC, MEMBERSHIP_OFFSET, Owner};
use crate::format::membership::Membership;
use crate::format::names::{INDEX_NAME, StoreId};
use crate::format::record::{Record, STATE_CHUNK};
use crate::format::superblock::is_zero;

/// What a store knows of sharing keys with others: so one that was away while the others went on is found out.
///
/// Every store of the set that is in use has the same block, or an older one. It is written, and synced, to all of them
/// before the set that it tells of is used. So the block with the highest epoch tells which stores have seen everything: what
/// another one holds may have been replaced or deleted meanwhile.
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
    pub(crate) fn read(index: &IndexBytes) -> Self {
        match index.read_value::<Membership>(MEMBERSHIP_OFFSET) {
            Ok(membership) if membership == Membership::zeroed() => Self::Never,
            Ok(membership) if membership.is_sensible() => Self::With(membership),
            _ => Self::Lost,
        }
    }
}

pub(crate) struct LockedIndex {
    pub(crate) place: IndexPlace,
    /// None where none was made yet, or it is lost.
    pub(crate) index_file: Option<IndexFile>,
    /// Bytes in use; `None` if that cannot be told any more.
    pub(crate) length: Option<u64>,
    /// Why it has to be started anew, if so; empty where there is none.
    pub(crate) reset: Option<String>,
    /// Id in a header that can be relied upon.
    pub(crate) id: Option<StoreId>,
}

impl LockedIndex {
    /// Opens what is there, and locks it.
    ///
    /// # Errors
    /// It is in use, of a newer format, or cannot be opened.
    pub(crate) fn look(place: IndexPlace) -> Result<Self, OpenError> {
        let Some(index_file) = IndexFile::find(&place)? else {
            let reset = Some(String::new());
            return Ok(Self { place, index_file: None, length: Some(0), reset, id: None });
        };
        let length = index_file.length()?;
        let (id, reset) = match length {
            Some(0) => (index_file.store_id, Some(String::new())),
            _ => match index_file.check_header(length)? {
                Ok(id) => (Some(id), None),
                Err(reason) => {
                    // The name of an index beside a device has the id of its store.
                    if let IndexPlace::Directory(directory) = &place {
                        refuse_foreign(directory, &index_file, length)?;
                    }
                    (index_file.store_id, Some(reason))
                }
            },
        };
        Ok(Self { place, index_file: Some(index_file), length, reset, id })
    }

    pub(crate) fn is_there(&self) -> bool {
        self.index_file.is_some()
    }

    pub(crate) fn owner(&self) -> Option<Owner> {
        let index_file = self.index_file.as_ref()?;
        read_owner(&index_file.file, index_file.offset)
    }

    pub(crate) fn sharing(&self) -> Sharing {
        match (&self.index_file, &self.reset) {
            (Some(index_file), None) => Sharing::read(index_file),
            _ => Sharing::Never,
        }
    }

    pub(crate) fn has_chunks(&self) -> bool {
        let (Some(index_file), Some(length), None) = (&self.index_file, self.length, &self.reset)
        else {
            return false;
        };
        let is_chunk = |one: &Record| one.state == STATE_CHUNK && one.is_intact();
        index_file.records_outside_holes(length).any(|some| some.iter().any(is_chunk))
    }
}

/// Refuses a file that kvring has never written. Damage of one of ours leaves a part of its header, or there is data of a store
/// beside it.
fn refuse_foreign(
    directory: &Directory,
    index: &IndexBytes,
    length: Option<u64>,
) -> Result<(), OpenError> {
    // The rest of a shorter file counts as zeros; an unreadable one may have been ours.
    let mut page = [0; HEADER_BYTES as usize];
    let bytes = HEADER_BYTES.min(length.unwrap_or_default()) as usize;
    if index.file.read_exact_at(&mut page[..bytes], 0).is_err() {
        return Ok(());
    }
    let header: Header = bytemuck::pod_read_unaligned(&page[..size_of::<Header>()]);
    let is_ours = header.magic == MAGIC
        || Header { magic: MAGIC, ..header }.is_whole()
        || read_session(&index.file, 0).is_some();
    if is_ours || is_zero(&page) || data_in(directory).is_some() {
        return Ok(());
    }
    Err(OpenError::Unsuitable {
        path: directory.path().to_owned(),
        reason: format!(
            "its {INDEX_NAME} is not one that kvring has written; move that file away or choose another directory (it was \
             left as it is)"
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use std::path::Path;

    use super::*;
    use crate::directory::Directory;
    use crate::format::header::{SESSION_OFFSET, Session};
    use crate::format::member_paths::MemberPaths;
    use crate::format::names::CHUNKS_NAME;
    use crate::format::record::{RECORD_BYTES, STATE_KEY_PART};
    use crate::format::sealed;
    use crate::index::file::changes::Change;
    use crate::index::file::table::Table;
    use crate::space_account::SpaceAccount;

    fn look(directory: &Path) -> Result<LockedIndex, OpenError> {
        let opened = Directory::open(directory).unwrap();
        LockedIndex::look(IndexPlace::Directory(Arc::new(opened)))
    }

    fn opened(directory: &Path) -> Table {
        let space = Arc::new(SpaceAccount::new(64 << 20));
        Table::open(look(directory).unwrap(), space, 0).unwrap().0
    }

    /// One that is long is mostly holes, if nothing else wrote it.
    #[test]
    fn holes_of_an_index_are_not_read() {
        const LENGTH: u64 = 8 << 30;
        let directory = tempfile::tempdir().unwrap();
        drop(opened(directory.path()));
        let found = look(directory.path()).unwrap();
        let index = found.index_file.as_ref().unwrap();
        index.file.set_len(LENGTH).unwrap();
        let last_slot = (LENGTH - HEADER_BYTES) / RECORD_BYTES as u64 - 1;
        let record = Record { state: STATE_CHUNK, ..Record::zeroed() };
        let offset = HEADER_BYTES + last_slot * RECORD_BYTES as u64;
        index.file.write_all_at(bytemuck::bytes_of(&record), offset).unwrap();
        let read: Vec<_> = index.records_outside_holes(LENGTH).take(64).collect();
        assert!(read.len() < 64);
        assert_eq!(
            read.last().and_then(|some| some.last()).map(|one| one.state),
            Some(STATE_CHUNK)
        );
    }

    /// What is said of a directory whose index has these bytes: None if it is refused.
    fn reset_of(index: &[u8], has_chunks_beside: bool) -> Option<String> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(INDEX_NAME), index).unwrap();
        if has_chunks_beside {
            std::fs::create_dir(directory.path().join(CHUNKS_NAME)).unwrap();
        }
        match look(directory.path()) {
            Ok(found) => {
                assert!(found.is_there() && !found.has_chunks());
                Some(found.reset.unwrap_or_else(|| "whole".into()))
            }
            Err(error) => {
                assert!(matches!(error, OpenError::Unsuitable { .. }), "{error}");
                None
            }
        }
    }

    #[test]
    fn what_was_ours_is_told_from_what_never_was() {
        const FOREIGN: &str = "it is not a kvring index";
        let reset = |index: &[u8]| reset_of(index, false);
        let mut page = [0; HEADER_BYTES as usize];
        assert_eq!(reset(&[]).as_deref(), Some(""));
        assert_eq!(
            reset(&page[..100]).as_deref(),
            Some("it has 100 bytes, and is shorter than its header")
        );
        assert_eq!(reset(&page).as_deref(), Some(FOREIGN));
        let header = Header::new([7; 16], 5);
        page[..size_of::<Header>()].copy_from_slice(bytemuck::bytes_of(&header));
        assert_eq!(reset(&page).as_deref(), Some("whole"));
        // The rest of the header tells that it was ours.
        page[0] ^= 1;
        assert_eq!(reset(&page).as_deref(), Some(FOREIGN));
        // Neither does any more.
        page[20] ^= 1;
        assert_eq!(reset(&page), None);
        assert_eq!(reset_of(&page, true).as_deref(), Some(FOREIGN));
        // The first words do.
        page[0] ^= 1;
        assert_eq!(reset(&page).as_deref(), Some("its header is damaged"));
        page[..size_of::<Header>()].fill(1);
        let session = sealed(Session::of(&Owner::current(), 5));
        page[SESSION_OFFSET as usize..][..size_of::<Session>()]
            .copy_from_slice(bytemuck::bytes_of(&session));
        assert_eq!(reset(&page).as_deref(), Some(FOREIGN));
    }

    #[test]
    fn a_header_is_held_against_the_store_and_its_length() {
        let directory = tempfile::tempdir().unwrap();
        let table = opened(directory.path());
        let id = table.store_id().unwrap();
        let file = || table.index_file.file.try_clone().unwrap();
        let checked = |store_id, length| {
            let index = IndexBytes::of_file(file(), "index".into(), store_id);
            index.check_header(length).unwrap()
        };
        for known in [None, Some(id)] {
            assert_eq!(checked(known, Some(HEADER_BYTES)), Ok(id));
            assert_eq!(checked(known, None), Err("the length of its index is damaged".into()));
        }
        let other = Err("it belongs to another store".into());
        assert_eq!(checked(Some([9; 16]), Some(HEADER_BYTES)), other);
        assert!(checked(None, Some(HEADER_BYTES - 1)).is_err());
    }

    #[test]
    fn chunks_and_an_owner_are_found_without_an_open() {
        let directory = tempfile::tempdir().unwrap();
        let found = look(directory.path()).unwrap();
        assert!(!found.is_there() && !found.has_chunks() && found.owner().is_none());
        let write = |record: Option<Record>| {
            let table = opened(directory.path());
            if table.record_slots() == 0 {
                table.grow().unwrap();
            }
            if let Some(record) = record {
                table.change(Change::Write(9, Arc::new(record)));
            }
            table.write_session(&sealed(Session::of(&Owner::current(), 5))).unwrap();
            table.release_file().unwrap();
        };
        let has_chunks = |record| {
            write(record);
            let found = look(directory.path()).unwrap();
            assert_eq!(found.owner().map(|owner| owner.process_id), Some(std::process::id()));
            assert!(found.is_there());
            found.has_chunks()
        };
        assert!(!has_chunks(None));
        let mut record = Record::zeroed();
        record.state = STATE_CHUNK;
        assert!(!has_chunks(Some(record)), "it is damaged");
        record.checksum = record.computed_checksum();
        assert!(has_chunks(Some(record)));
        record.state = STATE_KEY_PART;
        record.checksum = record.computed_checksum();
        assert!(!has_chunks(Some(record)), "it is no chunk's first");
    }

    #[test]
    fn what_is_noted_is_found_and_damage_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let table = opened(directory.path());
        assert_eq!(Sharing::read(&table.index_file), Sharing::Never);
        let id = table.store_id().unwrap();
        let membership = Membership::new(7, 1, [[9; 16], id, [1; 16]]);
        assert!(membership.members().is_sorted() && membership.members().contains(&id));
        let paths = MemberPaths::new(7, [(id, directory.path())]);
        assert!(!table.has_member_paths(&paths));
        table.write_membership(&membership, &paths).unwrap();
        assert!(table.has_member_paths(&paths));
        assert_eq!(Sharing::read(&table.index_file), Sharing::With(membership));
        assert_eq!(membership.missing(&[id, [2; 16]]), 3);
        table.index_file.write_at(&[0xff], MEMBERSHIP_OFFSET + 20).unwrap();
        assert_eq!(Sharing::read(&table.index_file), Sharing::Lost);
    }
}
