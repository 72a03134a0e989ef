//! The index of a store as an open finds it: locked, read, and not changed yet. So several paths can be compared before
//! anything is changed at one of them.

use bytemuck::Zeroable;

use super::header::{check_header, refuse_foreign};
use super::index_file::{IndexFile, IndexPlace};
use super::membership::Sharing;
use super::owner::read_owner;
use crate::error::OpenError;
use crate::format::header::{HEADER_BYTES, Header, Owner};
use crate::format::names::StoreId;
use crate::format::record::{RECORD_BYTES, Record, STATE_CHUNK};

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
        let length = index_file.length().map_err(index_file.error("read the length of"))?;
        let reset = check_header(&index_file, length)?;
        if reset.as_ref().is_some_and(|reason| !reason.is_empty()) {
            refuse_foreign(&index_file)?;
        }
        let id = match reset {
            Some(_) => index_file.store_id,
            None => {
                let header = index_file.read_value::<Header>(0);
                Some(header.map_err(index_file.error("read"))?.store_id)
            }
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
        let mut records = vec![Record::zeroed(); RECORDS_READ];
        let step = (RECORDS_READ * RECORD_BYTES) as u64;
        (HEADER_BYTES..length).step_by(step as usize).any(|at| {
            let count = (length - at).min(step) as usize / RECORD_BYTES;
            let some = &mut records[..count];
            // Unreadable records cannot be used either.
            index_file.read_at(bytemuck::cast_slice_mut(some), at).is_ok()
                && some.iter().any(|record| record.state == STATE_CHUNK && record.is_intact())
        })
    }
}
