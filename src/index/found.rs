//! The index of a store as an open finds it: locked, read, and not changed yet. So several paths can be compared before
//! anything is changed at one of them.

use std::io;

use bytemuck::Zeroable;

use super::backing::{Backing, IndexPlace};
use super::first_page::{check_header, refuse_foreign};
use super::membership::Sharing;
use super::session::read_owner;
use crate::error::OpenError;
use crate::format::header::{HEADER_BYTES, Header, Owner};
use crate::format::names::StoreId;
use crate::format::record::{RECORD_BYTES, Record, STATE_CHUNK};

/// Records that are looked at together.
const RECORDS_READ: usize = 4096;

/// What there is of an index.
pub(crate) struct FoundIndex {
    pub(super) place: IndexPlace,
    /// None where none was made yet, or it is lost.
    pub(super) backing: Option<Backing>,
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
        let Some(backing) = Backing::find(&place)? else {
            let reset = Some(String::new());
            return Ok(Self { place, backing: None, length: Some(0), reset, id: None });
        };
        let io_error = |action| {
            let path = backing.path().to_owned();
            move |source| OpenError::Io { action, path, source }
        };
        let length = backing.length().map_err(io_error("read the length of"))?;
        let reset = check_header(&backing, length)?;
        if reset.as_ref().is_some_and(|reason| !reason.is_empty()) {
            refuse_foreign(&backing)?;
        }
        let id = match reset {
            Some(_) => backing.store_id(),
            None => Some(store_id(&backing).map_err(io_error("read"))?),
        };
        Ok(Self { place, backing: Some(backing), length, reset, id })
    }

    /// Whether there is a file, or a part of a device, that was made earlier.
    pub(crate) fn is_there(&self) -> bool {
        self.backing.is_some()
    }

    /// Id of the store, if it is known.
    pub(crate) fn store_id(&self) -> Option<StoreId> {
        self.id
    }

    /// Who has, or had, the store open.
    pub(crate) fn owner(&self) -> Option<Owner> {
        self.backing.as_ref().and_then(|backing| read_owner(backing.file(), backing.offset()))
    }

    /// Whether it has shared keys with other stores.
    pub(crate) fn sharing(&self) -> Sharing {
        match (&self.backing, &self.reset) {
            (Some(backing), None) => Sharing::read(backing),
            _ => Sharing::Never,
        }
    }

    /// Whether there is a chunk in it.
    pub(crate) fn has_chunks(&self) -> bool {
        let (Some(backing), Some(length), None) = (&self.backing, self.length, &self.reset) else {
            return false;
        };
        let mut records = vec![Record::zeroed(); RECORDS_READ];
        let step = (RECORDS_READ * RECORD_BYTES) as u64;
        (HEADER_BYTES..length).step_by(step as usize).any(|at| {
            let count = (length - at).min(step) as usize / RECORD_BYTES;
            let some = &mut records[..count];
            // What cannot be read holds nothing that could be used.
            backing.read_at(bytemuck::cast_slice_mut(some), at).is_ok()
                && some.iter().any(|record| record.state == STATE_CHUNK && record.is_intact())
        })
    }
}

/// Id in the header.
pub(super) fn store_id(backing: &Backing) -> io::Result<StoreId> {
    let mut header = Header::zeroed();
    backing.read_at(bytemuck::bytes_of_mut(&mut header), 0)?;
    Ok(header.store_id)
}
