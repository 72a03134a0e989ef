//! What a store holds, read from its sidecar by anybody: without a lock, without writing, while its owner may be at work.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytemuck::Zeroable;

use super::first_page::check_header;
use super::record::{
    HEADER_BYTES, KEY_PART_BYTES, RECORD_BYTES, Record, STATE_CHUNK, STATE_KEY_PART,
};
use super::table::INDEX_NAME;
use crate::config::BLOCK_BYTES;
use crate::error::OpenError;
use crate::key::{MAX_KEY_BYTES, Namespace};
use crate::store::data_file::data_file_name;
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
    /// The file that it is in, from the store's directory on.
    pub file: PathBuf,
    /// Where in that it starts.
    pub offset_bytes: u64,
}

/// The chunks of a store, one by one, in no order. Those that come or go meanwhile may be missing; a record that is being
/// written, or is damaged, is passed over.
pub struct StoredChunks {
    index: File,
    path: PathBuf,
    has_own_files: bool,
    /// Slot of the next record to be read.
    next_slot: u64,
    records: std::vec::IntoIter<Record>,
}

/// The chunks that the store in `directory` holds, by its index.
///
/// # Errors
/// `OpenError` when there is no store, its index cannot be read, or its format is newer.
pub fn list_chunks(directory: &Path) -> Result<StoredChunks, OpenError> {
    let path = directory.join(INDEX_NAME);
    let io_error = |action| {
        let path = path.clone();
        move |source| OpenError::Io { action, path, source }
    };
    let index = File::open(&path).map_err(io_error("read"))?;
    let length = index.metadata().map_err(io_error("read the length of"))?.len();
    if let Some(reason) = check_header(&index, length, &path)? {
        let reason = if reason.is_empty() { "it is empty" } else { &reason };
        let error = io::Error::new(io::ErrorKind::InvalidData, reason.to_owned());
        return Err(io_error("read")(error));
    }
    let has_own_files = directory.join(CHUNKS_NAME).exists();
    Ok(StoredChunks { index, path, has_own_files, next_slot: 0, records: Vec::new().into_iter() })
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
                    return Err(OpenError::Io { action: "read", path: self.path.clone(), source });
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
        let is_sensible = record.state == STATE_CHUNK
            && usize::from(record.key_length) <= MAX_KEY_BYTES
            && record.is_intact();
        if !is_sensible {
            return None;
        }
        let key = self.key_of(record)?;
        let file = match self.has_own_files {
            true => chunk_path(record.digest(), record.data_file),
            false => data_file_name(record.data_file).into(),
        };
        Some(StoredChunk {
            namespace: Namespace::of(&key).name(),
            key,
            length_bytes: record.length_bytes,
            created_ms: record.created_ms,
            last_used_ms: record.last_used_ms(),
            uses: record.uses(),
            file,
            offset_bytes: u64::from(record.first_block) * BLOCK_BYTES,
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
