//! Reading an index without its lock, while its owner may be changing it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytemuck::Zeroable;

use super::header::judge_header;
use super::owner::read_value;
use crate::directory::Directory;
use crate::error::OpenError;
use crate::format::header::{HEADER_BYTES, LENGTH_OFFSET, Length};
use crate::format::names::{CHUNKS_NAME, INDEX_NAME, StoreId, device_index_name};
use crate::format::record::{RECORD_BYTES, Record};
use crate::format::superblock::{DEVICE_FORMAT_VERSION, Superblock, SuperblockCopy};
use crate::store::data_files::list_data_files;
use crate::store::device::superblock_copies;

/// Bytes that the disk returns as a whole or not at all.
const PAGE_BYTES: usize = 4096;

pub(super) struct IndexReader {
    file: File,
    path: PathBuf,
    /// Where in the file it begins.
    start: u64,
    /// Bytes in use of a part of a device; a file says it by its length.
    region_bytes: Option<u64>,
}

pub(super) struct Run {
    pub(super) records: Vec<Record>,
    /// Pages among them that the disk does not return; their records are zeros.
    pub(super) unreadable_pages: u64,
}

impl IndexReader {
    pub(super) fn in_directory(directory: &Directory) -> Result<Self, OpenError> {
        let opened = Self::open(directory, INDEX_NAME, None);
        match &opened {
            Err(OpenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            _ => return opened,
        }
        let has_files = list_data_files(directory).is_ok_and(|files| !files.is_empty());
        let stored = match directory.contains(CHUNKS_NAME) {
            Ok(true) => CHUNKS_NAME,
            _ if has_files => "data files",
            _ => return opened,
        };
        let reason = format!(
            "there are {stored}, but no {INDEX_NAME}: nothing tells what they hold, and opening the store begins a new index"
        );
        Err(unreadable(directory.path(), &reason))
    }

    /// That of the store on a block device.
    pub(super) fn of_device(
        device: File,
        path: &Path,
        superblock: &Superblock,
        index_path: Option<&Path>,
    ) -> Result<Self, OpenError> {
        let id = superblock.store_id;
        if let Some(index_path) = index_path {
            let directory =
                Directory::open(index_path).map_err(OpenError::io("open", index_path))?;
            return Self::open(&directory, &device_index_name(id), Some(id));
        }
        if superblock.index_bytes == 0 {
            return Err(unreadable(path, "its index is elsewhere: say where, as index_path"));
        }
        let start = superblock.index_offset;
        let length: Length = read_value(&device, start + LENGTH_OFFSET)
            .map_err(OpenError::io("read the index on", path))?;
        let fits = (HEADER_BYTES..=superblock.index_bytes).contains(&length.bytes);
        if !length.is_intact() || !fits {
            return Err(unreadable(path, "the length of its index is damaged"));
        }
        let region_bytes = Some(length.bytes);
        Self { file: device, path: path.to_owned(), start, region_bytes }.checked(Some(id))
    }

    fn open(
        directory: &Directory,
        name: &str,
        store_id: Option<StoreId>,
    ) -> Result<Self, OpenError> {
        let file = directory.open_to_read(name).map_err(directory.error("read", name))?;
        let path = directory.path_of(name);
        Self { file, path, start: 0, region_bytes: None }.checked(store_id)
    }

    /// It, if its header is that of the store.
    fn checked(self, store_id: Option<StoreId>) -> Result<Self, OpenError> {
        if self.length()? < HEADER_BYTES {
            return Err(unreadable(&self.path, "it is shorter than its header"));
        }
        let header = read_value(&self.file, self.start)
            .map_err(OpenError::io("read the header of", &self.path))?;
        match judge_header(&header, &self.path, store_id)? {
            Some(reason) => Err(unreadable(&self.path, reason)),
            None => Ok(self),
        }
    }

    pub(super) fn length(&self) -> Result<u64, OpenError> {
        match self.region_bytes {
            Some(bytes) => Ok(bytes),
            None => {
                let metadata = self.file.metadata();
                metadata.map(|it| it.len()).map_err(OpenError::io("read the length of", &self.path))
            }
        }
    }

    /// Up to `most` records from `slot` on; none behind the end.
    pub(super) fn read_records(&self, slot: u64, most: usize) -> Result<Run, OpenError> {
        let slots = self.length()?.saturating_sub(HEADER_BYTES) / RECORD_BYTES as u64;
        let count = slots.saturating_sub(slot).min(most as u64) as usize;
        let mut records = vec![Record::zeroed(); count];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut records);
        let offset = self.start + HEADER_BYTES + slot * RECORD_BYTES as u64;
        let mut unreadable_pages = 0;
        if self.file.read_exact_at(bytes, offset).is_err() {
            for (page, at) in bytes.chunks_mut(PAGE_BYTES).zip((offset..).step_by(PAGE_BYTES)) {
                if self.file.read_exact_at(page, at).is_err() {
                    page.fill(0);
                    unreadable_pages += 1;
                }
            }
        }
        Ok(Run { records, unreadable_pages })
    }

    pub(super) fn read_record(&self, slot: u32) -> Option<Record> {
        let offset = HEADER_BYTES + u64::from(slot) * RECORD_BYTES as u64;
        read_value(&self.file, self.start + offset).ok()
    }
}

/// The superblock of a device, and whether both of its copies are whole.
pub(super) fn superblock_of(device: &File, path: &Path) -> Result<(Superblock, bool), OpenError> {
    let copies = superblock_copies(device);
    if let Some(superblock) = copies.into_iter().find_map(SuperblockCopy::intact) {
        let is_whole = copies == [SuperblockCopy::Intact(superblock); 2];
        return Ok((superblock, is_whole));
    }
    for copy in copies {
        if let SuperblockCopy::Newer(found) = copy {
            let (path, supported) = (path.to_owned(), DEVICE_FORMAT_VERSION);
            return Err(OpenError::NewerFormat { path, found, supported });
        }
    }
    let reason = match () {
        () if copies.contains(&SuperblockCopy::Damaged) => {
            "its superblock is damaged, and its copy too"
        }
        () if copies.contains(&SuperblockCopy::Unreadable) => "its superblock cannot be read",
        () => "it holds no store",
    };
    Err(unreadable(path, reason))
}

fn unreadable(path: &Path, reason: &str) -> OpenError {
    OpenError::io("read", path)(io::Error::new(io::ErrorKind::InvalidData, reason.to_owned()))
}
