//! Listing the chunks of a store from its index, without its lock, while its owner may be changing it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::offline_reader::{IndexReader, superblock_of};
use crate::block::BLOCK_BYTES;
use crate::checksum::crc32c;
use crate::directory::Directory;
use crate::error::OpenError;
use crate::format::header::{GROWTH_BYTES, HEADER_BYTES};
use crate::format::names::{CHUNKS_NAME, PART_BLOCKS, chunk_path, data_file_name};
use crate::format::record::{Record, STATE_FREE, STATE_KEY_PART};
use crate::key::Namespace;
use crate::store::device::PathKind;

/// Records read at a time.
const READ_RECORDS: usize = 4096;

/// After this time a record that its owner was writing is whole.
const SECOND_LOOK_AFTER: Duration = Duration::from_millis(20);

/// A stored chunk.
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
    /// Its file, from the store's directory on; or the block device.
    pub file: PathBuf,
    /// Where in that it starts.
    pub offset_bytes: u64,
}

/// Damage of a store, as far as its index and the lengths of its data files tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Records whose checksum or fields are wrong, or of whose key a part is missing.
    pub torn: u64,
    /// Records whose chunk is not inside its data file.
    pub out_of_range: u64,
    /// Pages of the index that the disk does not return.
    pub unreadable_pages: u64,
    /// Whether the index is shorter than kvring leaves it.
    pub is_cut_short: bool,
    /// Whether only one of the two superblocks of a device is whole.
    pub has_one_superblock: bool,
}

impl Damage {
    /// A sentence for each kind of damage; none if all is well.
    pub fn sentences(&self) -> Vec<String> {
        let Self { torn, out_of_range, unreadable_pages, .. } = self;
        [
            (*torn > 0, format!("{torn} records of the index are torn: their chunks are missed")),
            (
                *out_of_range > 0,
                format!("{out_of_range} records name extents that their data file does not have"),
            ),
            (
                *unreadable_pages > 0,
                format!(
                    "{unreadable_pages} pages of the index cannot be read: what they hold is missed"
                ),
            ),
            (
                self.is_cut_short,
                "the index was cut short: what was behind its end is missed".into(),
            ),
            (
                self.has_one_superblock,
                "one of the two superblocks is damaged: opening the store writes it again".into(),
            ),
        ]
        .into_iter()
        .filter_map(|(is_so, sentence)| is_so.then_some(sentence))
        .collect()
    }
}

/// The chunks of a store, in no order. Those that are stored or deleted meanwhile may be missing. Damaged records are skipped and
/// counted.
pub struct StoredChunks {
    index: IndexReader,
    home: ChunkHome,
    next_slot: u64,
    records: std::vec::IntoIter<(u32, Record)>,
    /// Slot and fingerprint of records that are damaged, or that the owner was changing. They are read again at the end.
    doubtful: Vec<(u32, u32)>,
    is_second_look: bool,
    damage: Damage,
}

/// The files that chunks are in.
enum ChunkHome {
    /// With the length in bytes of each.
    DataFiles(Directory, HashMap<u32, u64>),
    ChunkFiles,
    /// The device, and the offset of its data.
    Device(PathBuf, u64),
}

/// The chunks of the store at `path`, by its index; `index_path` is as in the options of the store.
///
/// # Errors
/// `OpenError` when there is no store, its index cannot be read, or its format is newer.
pub fn list_chunks(path: &Path, index_path: Option<&Path>) -> Result<StoredChunks, OpenError> {
    let mut damage = Damage::default();
    let (index, home) = match PathKind::of(path)? {
        PathKind::Directory => {
            let directory = Directory::open(path).map_err(OpenError::io("open", path))?;
            let index = IndexReader::in_directory(&directory)?;
            let has_chunk_files =
                directory.contains(CHUNKS_NAME).map_err(OpenError::io("read", path))?;
            let home = match has_chunk_files {
                true => ChunkHome::ChunkFiles,
                false => ChunkHome::DataFiles(directory, HashMap::new()),
            };
            (index, home)
        }
        PathKind::Device => {
            let device = File::open(path).map_err(OpenError::io("read", path))?;
            let (superblock, is_whole) = superblock_of(&device, path)?;
            damage.has_one_superblock = !is_whole;
            let index = IndexReader::of_device(device, path, &superblock, index_path)?;
            (index, ChunkHome::Device(path.to_owned(), superblock.data_offset))
        }
    };
    Ok(StoredChunks {
        index,
        home,
        next_slot: 0,
        records: Vec::new().into_iter(),
        doubtful: Vec::new(),
        is_second_look: false,
        damage,
    })
}

impl ChunkHome {
    /// Whether the chunk of this record can be there. Chunk files come and go, and are not checked.
    fn contain(&mut self, record: &Record) -> bool {
        let Self::DataFiles(directory, lengths) = self else { return true };
        let end_bytes = u64::from(record.first_block) * BLOCK_BYTES + record.length_bytes;
        let known = lengths.get(&record.data_file);
        if known.is_some_and(|length| end_bytes <= *length) {
            return true;
        }
        // It may have been made since.
        let length = match directory.open_to_read(&data_file_name(record.data_file)) {
            Ok(file) => file.metadata().map_or(u64::MAX, |metadata| metadata.len()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => u64::MAX,
            Err(_) => 0,
        };
        lengths.insert(record.data_file, length);
        end_bytes <= length
    }
}

impl StoredChunks {
    /// The damage found so far.
    pub fn damage(&self) -> &Damage {
        &self.damage
    }

    fn read_more(&mut self) -> Result<bool, OpenError> {
        let run = self.index.read_records(self.next_slot, READ_RECORDS)?;
        self.damage.unreadable_pages += run.unreadable_pages;
        let first = self.next_slot as u32;
        self.next_slot += run.records.len() as u64;
        let records: Vec<_> = (first..).zip(run.records).collect();
        let is_end = records.is_empty() && !self.is_second_look;
        self.records = records.into_iter();
        if is_end {
            self.look_again()?;
        }
        Ok(self.records.len() > 0)
    }

    /// A record that looked damaged may have been written by the owner at that moment.
    fn look_again(&mut self) -> Result<(), OpenError> {
        self.is_second_look = true;
        let is_cut =
            |length: u64| !length.saturating_sub(HEADER_BYTES).is_multiple_of(GROWTH_BYTES);
        let seems_cut = is_cut(self.index.length()?);
        if seems_cut || !self.doubtful.is_empty() {
            thread::sleep(SECOND_LOOK_AFTER);
        }
        self.damage.is_cut_short = seems_cut && is_cut(self.index.length()?);
        // The owner has changed those that differ by now.
        let again = |(slot, before): (u32, u32)| {
            let record = self.index.read_record(slot)?;
            (fingerprint(&record) == before).then_some((slot, record))
        };
        let records: Vec<_> = self.doubtful.drain(..).filter_map(again).collect();
        self.records = records.into_iter();
        Ok(())
    }

    fn doubt(&mut self, slot: u32, record: &Record) {
        let seen = fingerprint(record);
        if !self.is_second_look {
            self.doubtful.push((slot, seen));
        } else if self.index.read_record(slot).is_some_and(|record| fingerprint(&record) == seen) {
            // Parts of its key are written before it and cleared after it.
            self.damage.torn += 1;
        }
    }

    fn chunk_of(&self, record: &Record) -> Option<StoredChunk> {
        if !record.is_sensible() {
            return None;
        }
        let key = record.read_key(|slot| self.index.read_record(slot))?;
        let key = String::from_utf8(key).ok()?;
        let own_offset = u64::from(record.first_block) * BLOCK_BYTES;
        let (file, offset_bytes) = match &self.home {
            ChunkHome::DataFiles(..) => (data_file_name(record.data_file).into(), own_offset),
            ChunkHome::ChunkFiles => (chunk_path(record.digest(), record.data_file), 0),
            ChunkHome::Device(path, data_offset) => {
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

/// Differs for a record that is written into the slot later; uses leave it as it is.
fn fingerprint(record: &Record) -> u32 {
    crc32c(&bytemuck::bytes_of(record)[size_of::<u64>()..])
}

impl Iterator for StoredChunks {
    type Item = Result<StoredChunk, OpenError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while let Some((slot, record)) = self.records.next() {
                if matches!(record.state, STATE_FREE | STATE_KEY_PART) {
                    continue;
                }
                match self.chunk_of(&record) {
                    None => self.doubt(slot, &record),
                    Some(chunk) if self.home.contain(&record) => return Some(Ok(chunk)),
                    Some(_) => self.damage.out_of_range += 1,
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
