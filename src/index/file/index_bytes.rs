//! The bytes of an index, as anybody may read them: without its lock, while its owner may be changing them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytemuck::{Pod, Zeroable};
use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

use crate::directory::Directory;
use crate::error::OpenError;
use crate::format::header::{
    FORMAT_VERSION, HEADER_BYTES, Header, LENGTH_OFFSET, Length, MAGIC, Owner, SESSION_OFFSET,
    Session,
};
use crate::format::names::{CHUNKS_NAME, StoreId};
use crate::format::record::{RECORD_BYTES, Record};
use crate::format::superblock::Superblock;
use crate::store::data_files::list_data_files;

/// Bytes that the disk returns as a whole or not at all.
const PAGE_BYTES: usize = 4096;

const RECORDS_READ: usize = 4096;

pub(crate) struct IndexBytes {
    /// The file, or the device.
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// Where in `file` it begins.
    pub(crate) offset: u64,
    /// Of a part of a device: how long it can ever become.
    pub(crate) most_bytes: Option<u64>,
    /// The id that the header must have, if it is known.
    pub(crate) store_id: Option<StoreId>,
}

impl IndexBytes {
    /// An index in a file of its own.
    pub(crate) fn of_file(file: File, path: PathBuf, store_id: Option<StoreId>) -> Self {
        Self { path, file, offset: 0, most_bytes: None, store_id }
    }

    /// The part of a device that is set aside for it.
    pub(crate) fn of_device(device: File, path: &Path, superblock: &Superblock) -> Self {
        Self {
            path: path.to_owned(),
            file: device,
            offset: superblock.index_offset,
            most_bytes: Some(superblock.index_bytes),
            store_id: Some(superblock.store_id),
        }
    }

    pub(crate) fn error(
        &self,
        action: &'static str,
    ) -> impl FnOnce(io::Error) -> OpenError + use<> {
        OpenError::io(action, &self.path)
    }

    /// Bytes in use; `None` if that cannot be told any more. A part of a device has a block that says it.
    pub(crate) fn length(&self) -> Result<Option<u64>, OpenError> {
        let Some(most_bytes) = self.most_bytes else {
            let metadata = self.file.metadata().map_err(self.error("read the length of"))?;
            return Ok(Some(metadata.len()));
        };
        let length = self.read_value::<Length>(LENGTH_OFFSET).ok().filter(Length::is_sensible);
        let bytes = length.map(|length| length.bytes);
        Ok(bytes.filter(|bytes| *bytes <= most_bytes))
    }

    /// The structure at `at`.
    pub(crate) fn read_value<T: Pod>(&self, at: u64) -> io::Result<T> {
        read_value(&self.file, self.offset + at)
    }

    pub(crate) fn record(&self, slot: u32) -> Option<Record> {
        self.read_value(HEADER_BYTES + u64::from(slot) * RECORD_BYTES as u64).ok()
    }

    /// Up to `most` records from `slot` on, none behind `length`. Pages that cannot be read are zeros; the second value counts
    /// them.
    pub(crate) fn records_from(&self, slot: u64, most: usize, length: u64) -> (Vec<Record>, u64) {
        let slots = length.saturating_sub(HEADER_BYTES) / RECORD_BYTES as u64;
        let count = slots.saturating_sub(slot).min(most as u64) as usize;
        let (mut records, mut unreadable) = (vec![Record::zeroed(); count], 0);
        let offset = self.offset + HEADER_BYTES + slot * RECORD_BYTES as u64;
        let bytes = bytemuck::cast_slice_mut(&mut records);
        read_pages(&self.file, bytes, offset, |_| unreadable += 1);
        (records, unreadable)
    }

    /// All records before `length`, some at a time, but for those in holes of the file.
    pub(crate) fn records_outside_holes(&self, length: u64) -> impl Iterator<Item = Vec<Record>> {
        let mut next_slot = 0;
        std::iter::from_fn(move || {
            let slot = self.behind_hole(next_slot)?;
            let records = self.records_from(slot, RECORDS_READ, length).0;
            next_slot = slot + records.len() as u64;
            (!records.is_empty()).then_some(records)
        })
    }

    /// `slot`, or the first one behind it that has data; `None` if none has.
    fn behind_hole(&self, slot: u64) -> Option<u64> {
        let offset = self.offset + HEADER_BYTES + slot * RECORD_BYTES as u64;
        match lseek(&self.file, offset as i64, Whence::SeekData) {
            Ok(data) => Some(slot + (data as u64).saturating_sub(offset) / RECORD_BYTES as u64),
            Err(Errno::ENXIO) => None,
            // Not every file system tells.
            Err(_) => Some(slot),
        }
    }

    /// The id of its store, or why it is no index that can be relied upon, if it is `length` bytes long.
    ///
    /// # Errors
    /// It is of a newer format.
    pub(crate) fn check_header(
        &self,
        length: Option<u64>,
    ) -> Result<Result<StoreId, String>, OpenError> {
        if let Some(length @ ..HEADER_BYTES) = length {
            return Ok(Err(format!("it has {length} bytes, and is shorter than its header")));
        }
        let header = match self.read_value::<Header>(0) {
            Ok(header) => header,
            Err(error) => return Ok(Err(format!("its header cannot be read: {error}"))),
        };
        if header.magic == MAGIC && header.version > FORMAT_VERSION {
            return Err(OpenError::NewerFormat {
                path: self.path.clone(),
                found: header.version,
                supported: FORMAT_VERSION,
            });
        }
        let reason = match self.store_id {
            _ if header.magic != MAGIC => "it is not a kvring index",
            _ if !header.is_whole() => "its header is damaged",
            Some(id) if id != header.store_id => "it belongs to another store",
            _ if length.is_none() => "the length of its index is damaged",
            _ => return Ok(Ok(header.store_id)),
        };
        Ok(Err(reason.into()))
    }
}

/// Who has the store open as far as the index file at `offset` tells. One who closed it is not who holds its lock now.
pub(crate) fn read_owner(file: &File, offset: u64) -> Option<Owner> {
    let session = read_session(file, offset).filter(|session| session.clean == 0)?;
    let header = read_value::<Header>(file, offset);
    Some(Owner { store_id: header.ok().map(|header| header.store_id), ..session.owner() })
}

/// The session block, if it is whole.
pub(crate) fn read_session(file: &File, offset: u64) -> Option<Session> {
    read_value(file, offset + SESSION_OFFSET).ok().filter(Session::is_sensible)
}

fn read_value<T: Pod>(file: &File, offset: u64) -> io::Result<T> {
    let mut value = T::zeroed();
    file.read_exact_at(bytemuck::bytes_of_mut(&mut value), offset)?;
    Ok(value)
}

/// Reads `bytes` from `offset` on. Pages that cannot be read are zeros; `lost` is called with where in `bytes` each begins.
pub(crate) fn read_pages(file: &File, bytes: &mut [u8], offset: u64, mut lost: impl FnMut(usize)) {
    if file.read_exact_at(bytes, offset).is_ok() {
        return;
    }
    for (number, page) in bytes.chunks_mut(PAGE_BYTES).enumerate() {
        let at = number * PAGE_BYTES;
        if file.read_exact_at(page, offset + at as u64).is_err() {
            page.fill(0);
            lost(at);
        }
    }
}

/// What a directory has of the chunks of a store, if anything.
pub(crate) fn data_in(directory: &Directory) -> Option<&'static str> {
    if directory.contains(CHUNKS_NAME).unwrap_or(false) {
        return Some(CHUNKS_NAME);
    }
    let files = list_data_files(directory);
    files.is_ok_and(|files| !files.is_empty()).then_some("data files")
}
