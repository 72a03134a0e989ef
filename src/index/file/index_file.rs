//! The bytes of the index: a file, or a part of the block device that holds the data.
//!
//! A file is as long as the index. A part of a device is as long as the index can ever become, and the length block in its
//! header says how much of it is used. The new part is zeroed durably before the length is written, as it may have records of
//! an earlier store. A record behind a length that is not durable yet is not acknowledged in `persistent`: the same sync
//! covers both.

mod opening;

use std::fs::{File, Metadata};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

pub(crate) use opening::{IndexPlace, owner_in_directory, owner_on_device};

use super::index_bytes::IndexBytes;
use super::mapping::Mapping;
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::base::system::fork::ClosedOnFork;
use crate::directory::{Directory, make_private};
use crate::engine::FileOperations;
use crate::error::OpenError;
use crate::format::header::{GROWTH_BYTES, HEADER_BYTES, Header, LENGTH_OFFSET, Length};
use crate::format::record::RECORD_BYTES;
use crate::space_account::SpaceAccount;
use crate::store::device::{BlockDevice, new_store_id};

const MAX_MAP_BYTES: u64 = 1 << 40;
/// Longest step by which a part of a device grows: it is zeroed while a SET waits.
const LONGEST_ZEROED_BYTES: u64 = 4 * GROWTH_BYTES;
const LONGEST_STEP_BYTES: u64 = 64 * GROWTH_BYTES;

/// The index of a store whose lock we have.
pub(crate) struct IndexFile {
    // Before the file is closed.
    closed_on_fork: ClosedOnFork<RawFd>,
    bytes: IndexBytes,
    parent: IndexParent,
    pub(crate) files: Arc<dyn FileOperations>,
    /// The file system has no fallocate: nothing is reserved that is not written.
    cannot_reserve: AtomicBool,
}

enum IndexParent {
    /// A file of this name.
    Directory(Arc<Directory>, String),
    Device(Arc<BlockDevice>),
}

impl Deref for IndexFile {
    type Target = IndexBytes;

    fn deref(&self) -> &IndexBytes {
        &self.bytes
    }
}

impl IndexFile {
    fn is_on_device(&self) -> bool {
        matches!(self.parent, IndexParent::Device(_))
    }

    /// Takes the permissions of others from a file.
    pub(crate) fn make_private(&self) {
        if !self.is_on_device() {
            make_private(self.file.as_fd());
        }
    }

    pub(crate) fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.files.write_at(&self.file, bytes, self.offset + at)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.files.truncate(&self.file, length)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.files.sync_data(&self.file)
    }

    /// Makes it an empty index, durably.
    pub(crate) fn start_anew(&self, now_ms: u64) -> io::Result<()> {
        let header = Header::new(self.store_id.map_or_else(new_store_id, Ok)?, now_ms);
        let mut page = [0; HEADER_BYTES as usize];
        page[..size_of::<Header>()].copy_from_slice(bytemuck::bytes_of(&header));
        if let IndexParent::Directory(directory, _) = &self.parent {
            self.truncate(0)?;
            self.write_at(&page, 0)?;
            // With its name: nothing that is synced later is found without it.
            self.files.sync_all(&self.file)?;
            return directory.sync();
        }
        let length = Length::new(HEADER_BYTES);
        page[LENGTH_OFFSET as usize..][..size_of::<Length>()]
            .copy_from_slice(bytemuck::bytes_of(&length));
        self.write_at(&page, 0)?;
        self.sync()
    }

    /// Maps it as long as it can ever become within `capacity_bytes`: address space costs nothing, and records never move.
    ///
    /// # Errors
    /// `OpenError`, also where the process may not have so much address space.
    pub(crate) fn map(&self, length: u64, capacity_bytes: u64) -> Result<Mapping, OpenError> {
        let bytes = self.most_bytes.unwrap_or_else(|| {
            (capacity_bytes / 8).clamp(length.max(16 * GROWTH_BYTES), MAX_MAP_BYTES.max(length))
        });
        let mapping = Mapping::new(&self.file, self.offset, bytes as usize);
        mapping.map_err(|source| self.unmappable(bytes, source))
    }

    fn unmappable(&self, needed_bytes: u64, source: io::Error) -> OpenError {
        let path = self.path.clone();
        if source.raw_os_error() != Some(libc::ENOMEM) {
            return OpenError::Io { action: "map", path, source };
        }
        let limit = getrlimit(Resource::RLIMIT_AS).map(|(soft, _)| soft);
        let limit_bytes = limit.ok().filter(|soft| *soft != RLIM_INFINITY);
        // The longest index of a device was decided when it was formatted.
        let way_out = match self.is_on_device() {
            true => "",
            false => ", or lower capacity, of which it is an eighth",
        };
        OpenError::AddressSpace { path, needed_bytes, limit_bytes, way_out, source }
    }

    pub(crate) fn longest_step_bytes(&self) -> u64 {
        if self.is_on_device() { LONGEST_ZEROED_BYTES } else { LONGEST_STEP_BYTES }
    }

    /// Preallocates `bytes` from `end` on, behind the last byte, which is that of `length`. An error says how much is
    /// preallocated nevertheless. A part of a device has its space.
    pub(crate) fn preallocate(
        &self,
        length: u64,
        end: u64,
        bytes: u64,
    ) -> Result<(), (io::Error, u64)> {
        if self.is_on_device() {
            return Ok(());
        }
        let preallocate = |from: u64, bytes: u64| {
            self.files.preallocate(&self.file, from..from + bytes, libc::FALLOC_FL_KEEP_SIZE)
        };
        match preallocate(end, bytes) {
            Ok(()) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                self.cannot_reserve.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                // A part may have been granted. It is released with all space behind the last byte, which is preallocated again.
                let before = end - length;
                let kept = self.truncate(length).is_ok()
                    && before > 0
                    && preallocate(length, before).is_ok();
                Err((error, if kept { before } else { 0 }))
            }
        }
    }

    /// Of a file that was cut short: removes what is left of a record, which would come back when the file grows. Then lengthens
    /// it by what is missing of a step, if `space` has that. Returns how long it is.
    pub(crate) fn repair_end(&self, length: u64, space: &SpaceAccount) -> io::Result<u64> {
        let records_bytes = (length - HEADER_BYTES) / RECORD_BYTES as u64 * RECORD_BYTES as u64;
        let whole = HEADER_BYTES + records_bytes;
        self.truncate(whole)?;
        space.release(length - whole);
        let missing = records_bytes.next_multiple_of(GROWTH_BYTES) - records_bytes;
        if !space.reserve(missing, space.capacity_bytes() / 2) {
            return Ok(whole);
        }
        self.truncate(whole + missing)?;
        Ok(whole + missing)
    }

    /// Counts the bytes reserved behind the end of the file in `space`, and returns them. They are released if they do not fit.
    pub(crate) fn take_reserve(&self, length: u64, space: &SpaceAccount) -> io::Result<u64> {
        if self.is_on_device() {
            return Ok(0);
        }
        let reserve = reserve_bytes(&self.file.metadata()?, length);
        if reserve > 0 && !space.reserve(reserve, space.capacity_bytes() / 2) {
            self.truncate(length)?;
            return Ok(0);
        }
        Ok(reserve)
    }

    /// Gives back what is reserved behind `length`, its end.
    pub(crate) fn release_reserve(&self, length: u64) -> io::Result<()> {
        if self.is_on_device() { Ok(()) } else { self.truncate(length) }
    }

    /// Lengthens it from `length` by `added` bytes of zeros, which are reserved. After an error it is as long as it was.
    pub(crate) fn grow(&self, length: u64, added: u64) -> io::Result<()> {
        if let IndexParent::Device(device) = &self.parent {
            let write_zeros = || device.write_zeros(self.offset + length, added);
            // Once more: the first sync may report an error of an earlier owner's writes.
            write_zeros().or_else(|_| write_zeros())?;
            return self.write_at(bytemuck::bytes_of(&Length::new(length + added)), LENGTH_OFFSET);
        }
        // Real blocks: a hole would be a SIGBUS once the file system is full. Not by fallocate: XFS refuses that when it is
        // full, although the blocks are there.
        let grown = match self.cannot_reserve.load(Ordering::Relaxed) {
            true => self.write_at(&vec![0; added as usize], length),
            false => self.truncate(length + added),
        };
        grown.inspect_err(|_| {
            let _ = self.truncate(length);
        })
    }

    pub(crate) fn open_again(&self) -> io::Result<File> {
        let again = match &self.parent {
            IndexParent::Device(device) => return device.open_beside(),
            IndexParent::Directory(directory, name) => directory.open_again(name)?,
        };
        let (own, found) = (self.file.metadata()?, again.metadata()?);
        match (own.dev(), own.ino()) == (found.dev(), found.ino()) {
            true => Ok(again),
            false => Err(io::Error::other("another file has taken its place")),
        }
    }

    /// What messages call it.
    pub(crate) fn name(&self) -> &str {
        match &self.parent {
            IndexParent::Directory(_, name) => name,
            IndexParent::Device(_) => "index",
        }
    }

    /// Why the next open would not find the file, if so; a part of a device is where it is.
    pub(crate) fn missed(&self) -> Option<String> {
        let IndexParent::Directory(directory, name) = &self.parent else { return None };
        directory.missed().or_else(|| directory.missed_in(name, self.file.as_fd()))
    }

    /// Releases the file, and the lock with it; then its directory.
    pub(crate) fn release(&self) -> io::Result<()> {
        if !self.is_on_device() {
            self.file.unlock()?;
        }
        self.closed_on_fork.close_behind();
        if let IndexParent::Directory(directory, _) = &self.parent {
            directory.release();
        }
        Ok(())
    }
}

/// Bytes reserved behind the end of an index file that uses `length_bytes`: whole steps of growth.
pub(crate) fn reserve_bytes(metadata: &Metadata, length_bytes: u64) -> u64 {
    let on_disk_bytes = metadata.blocks() * 512;
    on_disk_bytes.saturating_sub(length_bytes) / GROWTH_BYTES * GROWTH_BYTES
}

#[cfg(test)]
mod tests;
