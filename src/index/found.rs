//! The index of a store as an open finds it: locked, read, and not changed yet. So several paths can be compared before
//! anything is changed at one of them.

use std::os::unix::fs::FileExt;

use super::index_bytes::{data_in, read_owner, read_session};
use super::index_file::{IndexFile, IndexPlace};
use super::membership::Sharing;
use crate::error::OpenError;
use crate::format::header::{HEADER_BYTES, Header, MAGIC, Owner};
use crate::format::names::{INDEX_NAME, StoreId};
use crate::format::record::STATE_CHUNK;
use crate::format::superblock::is_zero;

const RECORDS_READ: usize = 4096;

pub(crate) struct FoundIndex {
    pub(super) place: IndexPlace,
    /// None where none was made yet, or it is lost.
    pub(super) index_file: Option<IndexFile>,
    /// Bytes in use; `None` if that cannot be told any more.
    pub(super) length: Option<u64>,
    /// Why it has to be started anew, if so; empty where there is none.
    pub(super) reset: Option<String>,
    /// Id in a header that can be relied upon.
    id: Option<StoreId>,
}

impl FoundIndex {
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
                    refuse_foreign(&index_file, length)?;
                    (index_file.store_id, Some(reason))
                }
            },
        };
        Ok(Self { place, index_file: Some(index_file), length, reset, id })
    }

    pub(crate) fn is_there(&self) -> bool {
        self.index_file.is_some()
    }

    pub(crate) fn store_id(&self) -> Option<StoreId> {
        self.id
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
        (0..)
            .step_by(RECORDS_READ)
            .map(|slot| index_file.records_from(slot, RECORDS_READ, length).0)
            .take_while(|records| !records.is_empty())
            .any(|some| some.iter().any(|one| one.state == STATE_CHUNK && one.is_intact()))
    }
}

/// Refuses a file that kvring has never written. Damage of one of ours leaves a part of its header, or there is data of a store
/// beside it.
fn refuse_foreign(index_file: &IndexFile, length: Option<u64>) -> Result<(), OpenError> {
    let Some(directory) = index_file.store_directory() else { return Ok(()) };
    // The rest of a shorter file counts as zeros; an unreadable one may have been ours.
    let mut page = [0; HEADER_BYTES as usize];
    let bytes = HEADER_BYTES.min(length.unwrap_or_default()) as usize;
    if index_file.file.read_exact_at(&mut page[..bytes], 0).is_err() {
        return Ok(());
    }
    let header: Header = bytemuck::pod_read_unaligned(&page[..size_of::<Header>()]);
    let is_ours = header.magic == MAGIC
        || Header { magic: MAGIC, ..header }.is_whole()
        || read_session(&index_file.file, 0).is_some();
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
