//! Listing the chunks of a store from its index, without its lock, while its owner may be changing it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::index_search::{index_in, index_of_device, superblock_of, unreadable};
use crate::base::block::{BLOCK_BYTES, Extent};
use crate::base::buffer::Variant;
use crate::base::checksum::crc32c;
use crate::config::Layout;
use crate::directory::Directory;
use crate::error::OpenError;
use crate::format::header::{GROWTH_BYTES, HEADER_BYTES, Header};
use crate::format::names::{CHUNKS_NAME, PART_BLOCKS, chunk_path, data_file_name};
use crate::format::record::{Record, STATE_CHUNK};
use crate::index::file::index_bytes::IndexBytes;
use crate::key::{Digest, Namespace};
use crate::store::device::is_device;

/// Records read at a time. There is one second look for all of them.
const READ_RECORDS: usize = 16_384;

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
    /// What it was stored as.
    pub variant: Variant,
    pub(crate) extent: Extent,
    pub(crate) digest: Digest,
    pub(crate) checksum: Option<u64>,
    slot: u32,
    fingerprint: u32,
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
        let counted = |count: u64, what: &str| (count > 0).then(|| format!("{count} {what}"));
        let said = |is_so: bool, what: &str| is_so.then(|| what.to_owned());
        let sentences = [
            counted(self.torn, "records of the index are torn: their chunks are missed"),
            counted(self.out_of_range, "records name extents that their data file does not have"),
            counted(
                self.unreadable_pages,
                "pages of the index cannot be read: what they hold is missed",
            ),
            said(self.is_cut_short, "the index was cut short: what was behind its end is missed"),
            said(
                self.has_one_superblock,
                "one of the two superblocks is damaged: opening the store writes it again",
            ),
        ];
        sentences.into_iter().flatten().collect()
    }
}

/// The chunks of a store, in no order. Those that are stored or deleted meanwhile may be missing. Damaged records are skipped and
/// counted.
pub struct StoredChunks {
    index: IndexBytes,
    /// Bytes of it in use when they were looked at last.
    length: u64,
    place: ChunkPlace,
    next_slot: u64,
    chunks: std::vec::IntoIter<StoredChunk>,
    damage: Damage,
}

/// The files that chunks are in.
enum ChunkPlace {
    /// With the length in bytes of each.
    DataFiles(Directory, HashMap<u32, u64>),
    ChunkFiles,
    /// The device, and where on it data begins and ends.
    Device(PathBuf, Range<u64>),
}

/// The chunks of the store at `path`, by its index; `index_path` is as in the options of the store.
///
/// # Errors
/// `OpenError` when there is no store, its index cannot be read, or its format is newer.
pub fn list_chunks(path: &Path, index_path: Option<&Path>) -> Result<StoredChunks, OpenError> {
    let mut damage = Damage::default();
    let (index, place) = match is_device(path)? {
        false => {
            let directory = Directory::open(path).map_err(OpenError::io("open", path))?;
            let index = index_in(&directory)?;
            let has_chunk_files =
                directory.contains(CHUNKS_NAME).map_err(OpenError::io("read", path))?;
            let place = match has_chunk_files {
                true => ChunkPlace::ChunkFiles,
                false => ChunkPlace::DataFiles(directory, HashMap::new()),
            };
            (index, place)
        }
        true => {
            let device = File::open(path).map_err(OpenError::io("read", path))?;
            let (superblock, is_whole) = superblock_of(&device, path)?;
            damage.has_one_superblock = !is_whole;
            let index = index_of_device(device, path, &superblock, index_path)?;
            (
                index,
                ChunkPlace::Device(path.to_owned(), superblock.data_offset..superblock.data_end()),
            )
        }
    };
    let length = index.length()?;
    index.check_header(length)?.map_err(|reason| {
        let is_refused = |error: io::Error| error.raw_os_error().is_some();
        let way_out = match index.read_value::<Header>(0).is_err_and(is_refused) {
            true => "dmesg tells of its drive; repair or replace that",
            false => "put back a copy of it, or open the store: it begins a new index then, and misses all of its chunks",
        };
        unreadable(&index.path, &format!("{reason}; {way_out}"))
    })?;
    let (length, chunks) = (length.unwrap_or_default(), Vec::new().into_iter());
    Ok(StoredChunks { index, length, place, next_slot: 0, chunks, damage })
}

impl ChunkPlace {
    /// Whether the chunk of this record can be there. Chunk files come and go, and are not checked.
    fn contains(&mut self, record: &Record, chunk: &StoredChunk) -> bool {
        let (directory, lengths) = match self {
            Self::DataFiles(directory, lengths) => (directory, lengths),
            Self::ChunkFiles => return true,
            Self::Device(_, data) => {
                return chunk.offset_bytes.saturating_add(chunk.length_bytes) <= data.end;
            }
        };
        let end_bytes = u64::from(record.first_block) * BLOCK_BYTES + record.length_bytes;
        let known = lengths.get(&record.data_file);
        if known.is_some_and(|length| end_bytes <= *length) {
            return true;
        }
        // It may have been made since.
        let length = match directory.open_to_read(&data_file_name(record.data_file)) {
            Ok(file) => file.metadata().map_or(u64::MAX, |metadata| metadata.len()),
            // Nobody knows: whoever reads the chunk learns why.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EIO)) => {
                u64::MAX
            }
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

    /// Whether a chunk is still where it was listed.
    pub(crate) fn has(&self, chunk: &StoredChunk) -> bool {
        self.index
            .record(chunk.slot)
            .is_some_and(|record| fingerprint(&record) == chunk.fingerprint)
    }

    pub(crate) fn index(&self) -> &IndexBytes {
        &self.index
    }

    /// Where on a block device its data begins and ends; `None` of a directory.
    pub(crate) fn device_data(&self) -> Option<Range<u64>> {
        match &self.place {
            ChunkPlace::Device(_, data) => Some(data.clone()),
            ChunkPlace::DataFiles(..) | ChunkPlace::ChunkFiles => None,
        }
    }

    /// How chunks lie on disk; `None` of a block device.
    pub(crate) fn layout(&self) -> Option<Layout> {
        match self.place {
            ChunkPlace::DataFiles(..) => Some(Layout::Extents),
            ChunkPlace::ChunkFiles => Some(Layout::Files),
            ChunkPlace::Device(..) => None,
        }
    }

    /// Goes on to further chunks; false at the end of the index.
    fn read_more(&mut self) -> Result<bool, OpenError> {
        self.length = self.index.length()?.unwrap_or(self.length);
        let first = self.next_slot;
        let (records, unreadable) = self.index.records_from(first, READ_RECORDS, self.length);
        self.damage.unreadable_pages += unreadable;
        self.next_slot += records.len() as u64;
        let (mut chunks, mut doubtful) = (Vec::new(), Vec::new());
        for (slot, record) in (first as u32..).zip(&records) {
            if !self.add(slot, record, &mut chunks) {
                doubtful.push((slot, fingerprint(record)));
            }
        }
        let is_cut =
            |length: u64| !length.saturating_sub(HEADER_BYTES).is_multiple_of(GROWTH_BYTES);
        let seems_cut = records.is_empty() && is_cut(self.length);
        // What looks damaged may have been written by the owner at that moment.
        if seems_cut || !doubtful.is_empty() {
            thread::sleep(SECOND_LOOK_AFTER);
        }
        self.damage.is_cut_short = seems_cut && self.index.length()?.is_some_and(is_cut);
        for (slot, before) in doubtful {
            // The owner has changed those that differ by now. Parts of a key are written before its record and cleared after it.
            let same = |index: &IndexBytes| {
                index.record(slot).filter(|record| fingerprint(record) == before)
            };
            if let Some(record) = same(&self.index)
                && !self.add(slot, &record, &mut chunks)
                && same(&self.index).is_some()
            {
                self.damage.torn += 1;
            }
        }
        self.chunks = chunks.into_iter();
        Ok(!records.is_empty())
    }

    /// Adds the chunk of a record, if it is one's, to `chunks` if it can be where the record says; false if the record is damaged.
    fn add(&mut self, slot: u32, record: &Record, chunks: &mut Vec<StoredChunk>) -> bool {
        if record.state != STATE_CHUNK || record.is_torn() {
            return !record.is_torn();
        }
        let Some(chunk) = self.chunk_of(slot, record) else { return false };
        match self.place.contains(record, &chunk) {
            true => chunks.push(chunk),
            false => self.damage.out_of_range += 1,
        }
        true
    }

    fn chunk_of(&self, slot: u32, record: &Record) -> Option<StoredChunk> {
        let key = record.read_key(|slot| self.index.record(slot))?;
        let own_offset = u64::from(record.first_block) * BLOCK_BYTES;
        let (file, offset_bytes) = match &self.place {
            ChunkPlace::DataFiles(..) => (data_file_name(record.data_file).into(), own_offset),
            ChunkPlace::ChunkFiles => (chunk_path(record.digest(), record.data_file), 0),
            ChunkPlace::Device(path, data) => {
                // A record may tell of a part that no device has.
                let part_offset =
                    u64::from(record.data_file).saturating_mul(PART_BLOCKS * BLOCK_BYTES);
                (path.clone(), (data.start + own_offset).saturating_add(part_offset))
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
            variant: record.variant,
            extent: record.extent(),
            digest: record.digest(),
            checksum: record.chunk_checksum(),
            slot,
            fingerprint: fingerprint(record),
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
            if let Some(chunk) = self.chunks.next() {
                return Some(Ok(chunk));
            }
            match self.read_more() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use bytemuck::Zeroable;
    use nix::unistd::{Uid, setfsuid};

    use super::*;
    use crate::index::inspection::index_search::tests::unreadable_file;

    #[test]
    fn pages_that_cannot_be_read_are_counted_all_over_the_index() {
        let (_directory, file, path) = unreadable_file(HEADER_BYTES + 5 * GROWTH_BYTES);
        let mut chunks = StoredChunks {
            index: IndexBytes::of_file(file, path, None),
            length: 0,
            place: ChunkPlace::ChunkFiles,
            next_slot: 0,
            chunks: Vec::new().into_iter(),
            damage: Damage { unreadable_pages: 2, ..Damage::default() },
        };
        assert!(chunks.next().is_none());
        let damage = Damage { unreadable_pages: 2 + 5 * 256, ..Damage::default() };
        assert_eq!(*chunks.damage(), damage);
    }

    /// Where another user may read the index alone, chunks are there as far as it tells.
    #[test]
    fn a_data_file_that_may_not_be_opened_counts_as_long_enough() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(data_file_name(0));
        let contains = |mode: u32, data_file: u32| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let mut place =
                ChunkPlace::DataFiles(Directory::open(directory.path()).unwrap(), HashMap::new());
            let record = Record { length_bytes: 8192, data_file, ..Record::zeroed() };
            let as_another_user = move || {
                if mode == 0 {
                    // Of this thread alone. Root could open it as it is.
                    setfsuid(Uid::from_raw(65_534));
                }
                let chunk = StoredChunk {
                    key: String::new(),
                    namespace: String::new(),
                    length_bytes: record.length_bytes,
                    created_ms: 0,
                    last_used_ms: 0,
                    uses: 0,
                    file: PathBuf::new(),
                    offset_bytes: 0,
                    variant: record.variant,
                    extent: record.extent(),
                    digest: record.digest(),
                    checksum: None,
                    slot: 0,
                    fingerprint: 0,
                };
                place.contains(&record, &chunk)
            };
            thread::spawn(as_another_user).join().unwrap()
        };
        fs::write(&path, [0; 8191]).unwrap();
        assert!(!contains(0o600, 0) && !contains(0o600, 1) && contains(0, 0));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, [0; 8192]).unwrap();
        assert!(contains(0o600, 0));
    }
}
