//! What a store holds, read from its sidecar by anybody: without a lock, without writing, while its owner may be at work.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytemuck::Zeroable;

use super::backing::name_beside;
use super::first_page::judge_header;
use super::record::{
    HEADER_BYTES, Header, KEY_PART_BYTES, LENGTH_OFFSET, Length, RECORD_BYTES, Record,
    STATE_KEY_PART,
};
use super::table::INDEX_NAME;
use crate::config::BLOCK_BYTES;
use crate::error::OpenError;
use crate::key::Namespace;
use crate::store::data_file::data_file_name;
use crate::store::device::{Superblock, Target};
use crate::store::extents::PART_BLOCKS;
use crate::store::files::{CHUNKS_NAME, chunk_path};

/// Records read at a time.
const READ_RECORDS: usize = 4096;

/// A chunk that a store holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredChunk {
    /// Its key.
    pub key: String,
    /// Name of the key's namespace.
    pub namespace: String,
    /// Its length.
    pub length_bytes: u64,
    /// When it was stored, Unix time in ms.
    pub created_ms: u64,
    /// When it was stored or loaded last, Unix time in ms.
    pub last_used_ms: u64,
    /// Times it was loaded, 65,535 at most.
    pub uses: u16,
    /// The file that it is in, from the store's directory on; or the block device.
    pub file: PathBuf,
    /// Where in that it starts.
    pub offset_bytes: u64,
}

/// The chunks of a store, one by one, in no order. Those that come or go meanwhile may be missing; a record that is being
/// written, or is damaged, is passed over.
pub struct StoredChunks {
    index: Sidecar,
    places: Places,
    /// Slot of the next record to be read.
    next_slot: u64,
    records: std::vec::IntoIter<Record>,
}

/// A sidecar that is only read.
struct Sidecar {
    file: File,
    path: PathBuf,
    /// Where in the file it begins, and the first byte behind it.
    start: u64,
    end: u64,
}

/// What chunks are in.
enum Places {
    DataFiles,
    OwnFiles,
    /// This device, from an offset on.
    Device(PathBuf, u64),
}

/// The chunks that the store at `path` holds, by its index; `index_path` is as in the options of the store.
///
/// # Errors
/// `OpenError` when there is no store, its index cannot be read, or its format is newer.
pub fn list_chunks(path: &Path, index_path: Option<&Path>) -> Result<StoredChunks, OpenError> {
    let (index, places) = match Target::of(path)? {
        Target::Directory => {
            let index = Sidecar::open(&path.join(INDEX_NAME))?;
            let has_own_files = path.join(CHUNKS_NAME).exists();
            (index, if has_own_files { Places::OwnFiles } else { Places::DataFiles })
        }
        Target::Device => {
            let device = File::open(path).map_err(io_error("read", path))?;
            let superblock = Superblock::read(&device);
            let superblock = superblock.ok_or_else(|| no_index(path, "it holds no store"))?;
            let index = match index_path {
                Some(directory) => {
                    Sidecar::open(&directory.join(name_beside(superblock.store_id)))?
                }
                None if superblock.index_bytes == 0 => {
                    let reason = "its index is elsewhere: say where, as index_path";
                    return Err(no_index(path, reason));
                }
                None => Sidecar::on_device(device, path, superblock.index_offset)?,
            };
            (index, Places::Device(path.to_owned(), superblock.data_offset))
        }
    };
    let mut header = Header::zeroed();
    index
        .read_exact_at(bytemuck::bytes_of_mut(&mut header), 0)
        .map_err(io_error("read the header of", &index.path))?;
    match judge_header(&header, &index.path)? {
        Some(reason) => Err(no_index(&index.path, reason)),
        None => Ok(StoredChunks { index, places, next_slot: 0, records: Vec::new().into_iter() }),
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { action, path, source }
}

fn no_index(path: &Path, reason: &str) -> OpenError {
    let source = io::Error::new(io::ErrorKind::InvalidData, reason.to_owned());
    OpenError::Io { action: "read", path: path.to_owned(), source }
}

impl Sidecar {
    fn open(path: &Path) -> Result<Self, OpenError> {
        let file = File::open(path).map_err(io_error("read", path))?;
        Ok(Self { file, path: path.to_owned(), start: 0, end: u64::MAX })
    }

    fn on_device(file: File, path: &Path, start: u64) -> Result<Self, OpenError> {
        let mut sidecar = Self { file, path: path.to_owned(), start, end: u64::MAX };
        let mut length = Length::zeroed();
        let read = sidecar.read_exact_at(bytemuck::bytes_of_mut(&mut length), LENGTH_OFFSET);
        read.map_err(io_error("read the index on", path))?;
        if !length.is_intact() {
            return Err(no_index(path, "the length of its index cannot be read"));
        }
        sidecar.end = start + length.bytes;
        Ok(sidecar)
    }

    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, self.start + at)
    }

    /// Reads what there is of `bytes`, and says how much.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.start + at)).unwrap_or(usize::MAX);
        let wanted = bytes.len().min(left);
        self.file.read_at(&mut bytes[..wanted], self.start + at)
    }
}

impl StoredChunks {
    fn read_more(&mut self) -> Result<bool, OpenError> {
        let mut records = vec![Record::zeroed(); READ_RECORDS];
        let offset = HEADER_BYTES + self.next_slot * RECORD_BYTES as u64;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut records);
        let mut filled = 0;
        while filled < bytes.len() {
            match self.index.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(io_error("read", &self.index.path)(source));
                }
            }
        }
        records.truncate(filled / RECORD_BYTES);
        self.next_slot += records.len() as u64;
        self.records = records.into_iter();
        Ok(self.records.len() > 0)
    }

    fn read_record(&self, slot: u32) -> Option<Record> {
        let mut record = Record::zeroed();
        let offset = HEADER_BYTES + u64::from(slot) * RECORD_BYTES as u64;
        self.index.read_exact_at(bytemuck::bytes_of_mut(&mut record), offset).ok()?;
        Some(record)
    }

    /// The whole key of a record; `None` if a part of it is missing.
    fn key_of(&self, record: &Record) -> Option<String> {
        let length = usize::from(record.key_length);
        let mut key = record.key[..length.min(KEY_PART_BYTES)].to_vec();
        let mut next = record.next_slot;
        for number in 1.. {
            if key.len() == length {
                break;
            }
            let part = self.read_record(next)?;
            let belongs = part.state == STATE_KEY_PART
                && part.is_intact()
                && part.digest == record.digest
                && part.generation == record.generation
                && part.length_bytes == number;
            if !belongs {
                return None;
            }
            key.extend_from_slice(&part.key[..(length - key.len()).min(KEY_PART_BYTES)]);
            next = part.next_slot;
        }
        String::from_utf8(key).ok()
    }

    fn chunk_of(&self, record: &Record) -> Option<StoredChunk> {
        if !record.is_sensible() {
            return None;
        }
        let key = self.key_of(record)?;
        let own_offset = u64::from(record.first_block) * BLOCK_BYTES;
        let (file, offset_bytes) = match &self.places {
            Places::DataFiles => (data_file_name(record.data_file).into(), own_offset),
            Places::OwnFiles => (chunk_path(record.digest(), record.data_file), 0),
            Places::Device(path, data_offset) => {
                let part_offset = u64::from(record.data_file) * PART_BLOCKS * BLOCK_BYTES;
                (path.clone(), data_offset + part_offset + own_offset)
            }
        };
        Some(StoredChunk {
            namespace: Namespace::of(&key).name(),
            key,
            length_bytes: record.length_bytes,
            created_ms: record.created_ms,
            last_used_ms: record.last_used_ms(),
            uses: record.uses(),
            file,
            offset_bytes,
        })
    }
}

impl Iterator for StoredChunks {
    type Item = Result<StoredChunk, OpenError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while let Some(record) = self.records.next() {
                if let Some(chunk) = self.chunk_of(&record) {
                    return Some(Ok(chunk));
                }
            }
            match self.read_more() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
