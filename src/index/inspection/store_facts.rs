//! What a store tells of itself, without its chunks, to anybody: without its lock, while its owner may be at work.

use std::path::PathBuf;

use bytemuck::Zeroable;

use super::listing::StoredChunks;
use crate::config::Layout;
use crate::error::OpenError;
use crate::format::header::{HEADER_BYTES, Header, MEMBER_PATHS_OFFSET, Owner};
use crate::format::member_paths::MemberPaths;
use crate::format::names::{StoreId, id_text};
use crate::index::file::index_bytes::{read_owner, read_session};
use crate::index::file::index_file::reserve_bytes;
use crate::index::file::locked_index::Sharing;
use crate::lock::holder_of;
use crate::space_account::SpaceAccount;

/// A store that shares keys with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreMember {
    /// Its id, in hex.
    pub store_id: String,
    /// Where its owner had it when it was opened last; `None` where that is not known.
    pub path: Option<PathBuf>,
}

/// What a store tells of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFacts {
    /// Its id, in hex.
    pub store_id: String,
    /// Version of its format.
    pub format_version: u32,
    /// When it was made, Unix time in ms.
    pub created_ms: u64,
    /// How its chunks lie on disk; `None` of a block device.
    pub layout: Option<Layout>,
    /// The stores that share its keys, itself as well; empty of one that shares them with nobody, or where that is damaged.
    pub members: Vec<StoreMember>,
    /// Bytes of its index that are in use.
    pub index_bytes: u64,
    /// When it was opened last, Unix time in ms; `None` if that is damaged.
    pub opened_ms: Option<u64>,
    /// Whether its last owner closed it in order; false as well while it is open.
    pub is_closed_in_order: bool,
    /// Who has it open, as far as can be seen from here.
    pub holder: Option<String>,
    /// The process id of that one, if it is on this host.
    pub holder_process_id: Option<u32>,
}

impl StoredChunks {
    /// Its id, and which paths share its keys.
    ///
    /// # Errors
    /// The header of the index cannot be read.
    pub(crate) fn membership(&self) -> Result<(StoreId, Sharing), OpenError> {
        let index = self.index();
        let header: Header = index.read_value(0).map_err(index.error("read"))?;
        Ok((header.store_id, Sharing::read(index)))
    }

    /// Takes the index into the account as an open does; false if that would start it anew, as it no longer fits.
    ///
    /// # Errors
    /// Its length cannot be read.
    pub(crate) fn take_into(&self, space: &SpaceAccount) -> Result<bool, OpenError> {
        let index = self.index();
        let length_bytes = index.length()?.unwrap_or(HEADER_BYTES);
        let spare_bytes = space.capacity_bytes() / 2;
        if !space.reserve(length_bytes, spare_bytes) {
            space.reserve(HEADER_BYTES, 0);
            return Ok(false);
        }
        if self.device_data().is_none() {
            let metadata = index.file.metadata().map_err(index.error("read the length of"))?;
            space.reserve(reserve_bytes(&metadata, length_bytes), spare_bytes);
        }
        Ok(true)
    }

    /// What the store tells of itself.
    ///
    /// # Errors
    /// The header of the index cannot be read.
    pub fn facts(&self) -> Result<StoreFacts, OpenError> {
        let index = self.index();
        let header: Header = index.read_value(0).map_err(index.error("read"))?;
        let session = read_session(&index.file, index.offset);
        // The session of a device tells it alone: nothing lists claims. For a moment the kernel has the files of one that was killed.
        let noted = || read_owner(&index.file, index.offset);
        let holder = holder_of(&index.file).or_else(noted).filter(Owner::is_alive_here);
        Ok(StoreFacts {
            store_id: id_text(header.store_id),
            members: match Sharing::read(index) {
                Sharing::With(set) => {
                    let paths = index.read_value(MEMBER_PATHS_OFFSET);
                    let paths = paths.unwrap_or(MemberPaths::zeroed()).of(&set);
                    let ids = set.members().iter().copied().map(id_text);
                    ids.zip(paths).map(|(store_id, path)| StoreMember { store_id, path }).collect()
                }
                _ => Vec::new(),
            },
            format_version: header.version,
            created_ms: header.created_ms,
            layout: self.layout(),
            index_bytes: index.length()?.unwrap_or_default(),
            opened_ms: session.map(|session| session.opened_ms),
            is_closed_in_order: session.is_some_and(|session| session.clean == 1),
            holder_process_id: holder.as_ref().map(|holder| holder.process_id),
            holder: holder.map(|holder| holder.to_string()),
        })
    }
}
