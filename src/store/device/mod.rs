//! A block device as the home of a store: found, claimed, and formatted if there is nothing on it.
//!
//! Nothing is written to a device before all checks are passed.

mod claim;
mod contents;
mod path_kind;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

use crate::format::superblock::{Superblock, SuperblockCopy};
pub(crate) use path_kind::is_device;

use self::contents::{
    DeviceContent, check_capacity, check_device, content, erasable, read_blocks, signature,
};
use super::Geometry;
use crate::base::block::{BLOCK_BYTES, MIB};
use crate::base::buffer::AlignedBlock;
use crate::base::sync::Mutex;
use crate::base::system::fork::ClosedOnFork;
use crate::config::{Config, Discard, MIN_CAPACITY_BYTES};
use crate::engine::FileOperations;
use crate::error::OpenError;
use crate::format::header::Owner;
use crate::format::superblock::{COPY_OFFSET, HEAD_BYTES, tail_offset};

/// A claimed device that holds a store.
#[derive(Debug)]
pub(crate) struct BlockDevice {
    /// It has the claim.
    pub(crate) file: Arc<ClosedOnFork>,
    pub(crate) files: Arc<dyn FileOperations>,
    pub(crate) path: PathBuf,
    number: u64,
    pub(crate) geometry: Geometry,
    pub(crate) size_bytes: u64,
    superblock: Mutex<Superblock>,
    /// The superblock is there twice, or is to be.
    is_whole: bool,
    /// What it holds, if that is no store.
    other_content: Option<String>,
}

impl BlockDevice {
    /// Claims the device that `config` names and checks that it may be opened: it holds a store, or may be formatted; or else that
    /// it may be erased, which a store may not. Nothing of it is changed before [`BlockDevice::prepare`]. `owner` reads from the
    /// device who has, or had, the store open.
    pub(crate) fn look(
        config: &Config,
        now_ms: u64,
        owner: impl Fn(&File, &Superblock) -> Option<Owner>,
        is_opened: bool,
    ) -> Result<Self, OpenError> {
        let path = config.path().to_owned();
        let io_error = |action| OpenError::io(action, config.path());
        let probe = File::open(&path).map_err(io_error("open"))?;
        let size_bytes = check_device(&probe, &path)?;
        let number = probe.metadata().map_err(io_error("open"))?.rdev();
        let owner = || owner(&probe, &read_superblock(&probe)?);
        let file = Arc::new(ClosedOnFork::new(claim::claim(&path, number, owner)?));
        if file.metadata().map_err(io_error("open"))?.rdev() != number {
            return Err(io_error("open")(io::Error::other("its name leads to another device now")));
        }
        check_capacity(config, size_bytes)?;
        let geometry = Geometry::direct(&file).map_err(io_error("read the geometry of"))?;
        let reason = "it has no direct I/O in blocks of 4096 bytes";
        let geometry = geometry.ok_or_else(|| OpenError::unsuitable(&path, reason))?;
        let found = content(
            &read_blocks(&file, 0, HEAD_BYTES),
            &read_blocks(&file, tail_offset(size_bytes), size_bytes),
            size_bytes,
        );
        let is_elsewhere = config.index_path.is_some();
        let other_content = erasable(&found, &path, is_opened)?;
        let (superblock, is_whole) = match found {
            DeviceContent::Store { superblock, is_whole } => (superblock, is_whole),
            _ => {
                let id = new_store_id().map_err(io_error("make an id for"))?;
                (Superblock::new(id, now_ms, size_bytes, is_elsewhere), true)
            }
        };
        let device = Self {
            file,
            files: Arc::clone(&config.files),
            path,
            number,
            geometry,
            size_bytes,
            superblock: Mutex::new(superblock),
            is_whole,
            other_content,
        };
        if !device.is_new() {
            device.check_as_formatted(is_elsewhere)?;
        }
        Ok(device)
    }

    /// Formats it, or repairs what is damaged, if it needs that.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn prepare(&self, discard: Discard) -> Result<(), OpenError> {
        if self.is_new() {
            return self.format(discard).map_err(OpenError::io("format", &self.path));
        }
        if !self.is_whole {
            self.repair();
        }
        Ok(())
    }

    /// What it holds, if that is no store.
    pub(crate) fn holds(&self) -> &str {
        self.other_content.as_deref().unwrap_or("a kvring store")
    }

    /// Makes it blank.
    pub(crate) fn erase(&self, discards: bool) -> Result<(), OpenError> {
        self.clear(discards).map_err(OpenError::io("format", &self.path))?;
        let Ok(Some(left)) = signature(&self.path) else { return Ok(()) };
        let reason = format!("{left} is still there, and not at its ends; wipe it (wipefs -a)");
        Err(OpenError::unsuitable(&self.path, reason))
    }

    /// What head and end take: they are written as everything else is, and count towards the capacity.
    pub(crate) fn marks_bytes(&self) -> u64 {
        HEAD_BYTES + self.size_bytes - tail_offset(self.size_bytes)
    }

    /// Whether it holds no store before it is prepared.
    pub(crate) fn is_new(&self) -> bool {
        self.other_content.is_some()
    }

    pub(crate) fn superblock(&self) -> Superblock {
        *self.superblock.lock()
    }

    /// Bytes for data; less than were set aside if the device has become shorter.
    pub(crate) fn data_bytes(&self) -> u64 {
        let superblock = self.superblock();
        let end = superblock.data_end().min(self.size_bytes);
        end.saturating_sub(superblock.data_offset) / BLOCK_BYTES * BLOCK_BYTES
    }

    /// Opens the device once more, without the claim and through the page cache.
    pub(crate) fn open_beside(&self) -> io::Result<File> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        match file.metadata()?.rdev() == self.number {
            true => Ok(file),
            false => Err(io::Error::other("its name leads to another device by now")),
        }
    }

    /// Gives the store another id, durably: an index with the one it had is not its index any more.
    pub(crate) fn renew_id(&self) -> io::Result<()> {
        let mut superblock = self.superblock.lock();
        *superblock = superblock.with_id(new_store_id()?);
        self.write_superblock(&superblock)
    }

    /// Writes zeros, durably, past the page cache, from and to the beginning of a logical block.
    pub(crate) fn write_zeros(&self, start: u64, length: u64) -> io::Result<()> {
        let mut zeros = AlignedBlock::zeroed(MIB.min(length) as usize);
        let (zeros, end) = (zeros.bytes_mut(), start + length);
        for offset in (start..end).step_by(zeros.len()) {
            let length = (zeros.len() as u64).min(end - offset) as usize;
            self.files.write_at(&self.file, &zeros[..length], offset)?;
        }
        self.files.sync_data(&self.file)
    }

    fn format(&self, discard: Discard) -> io::Result<()> {
        let superblock = self.superblock();
        self.clear(discard != Discard::Never)?;
        if superblock.index_bytes > 0 {
            self.write_zeros(superblock.index_offset, BLOCK_BYTES)?;
        }
        // It comes last: without it a device that was half formatted is no store.
        self.write_superblock(&superblock)?;
        Ok(())
    }

    /// Zeros its head and tail, and discards all of it before if it `discards`.
    fn clear(&self, discards: bool) -> io::Result<()> {
        if discards && let Err(error) = self.files.discard(&self.file, 0..self.size_bytes) {
            log::info!("{} is not discarded: {error}", self.path.display());
        }
        self.write_zeros(0, HEAD_BYTES)?;
        let tail = tail_offset(self.size_bytes);
        self.write_zeros(tail, self.size_bytes - tail)
    }

    /// Writes a superblock that was there once only for the second time.
    fn repair(&self) {
        let outcome = self.write_superblock(&self.superblock());
        let what = outcome
            .map_or_else(|error| format!("stays so: {error}"), |()| "is written again".into());
        let path = self.path.display();
        log::warn!("{path}: one of the two superblocks was damaged or missing; it {what}");
    }

    /// Checks that it is about as long as it was, and that its index is where it was.
    fn check_as_formatted(&self, is_elsewhere: bool) -> Result<(), OpenError> {
        let (is, was) = (self.size_bytes, self.superblock().device_bytes);
        let was_elsewhere = self.superblock().index_bytes == 0;
        let reason = if is_elsewhere != was_elsewhere {
            let (place, way_out) = match was_elsewhere {
                true => ("in a file elsewhere", "give the index_path that it was formatted with"),
                false => ("on the device itself", "leave index_path out"),
            };
            format!(
                "it was formatted for an index {place}; {way_out}; to change it, zero its first MiB: the chunks are lost, and the next open formats it"
            )
        } else if self.data_bytes() < MIN_CAPACITY_BYTES {
            format!("it has {is} bytes and had {was} when it was formatted; make it longer again")
        } else {
            if is != was {
                log::warn!(
                    "{} has {is} bytes and had {was} when it was formatted; what is added is not used, and what is gone is missed",
                    self.path.display()
                );
            }
            return Ok(());
        };
        Err(OpenError::unsuitable(&self.path, reason))
    }

    /// The copy first: what is there at any moment is one of them, whole.
    fn write_superblock(&self, superblock: &Superblock) -> io::Result<()> {
        let mut block = AlignedBlock::zeroed(BLOCK_BYTES as usize);
        block.bytes_mut()[..size_of::<Superblock>()]
            .copy_from_slice(bytemuck::bytes_of(superblock));
        for offset in [COPY_OFFSET, 0] {
            self.files.write_at(&self.file, block.bytes_mut(), offset)?;
            self.files.sync_data(&self.file)?;
        }
        Ok(())
    }
}

/// The superblock of a device, as far as it can be read, by whoever asks.
pub(crate) fn read_superblock(device: &File) -> Option<Superblock> {
    SuperblockCopy::judge(superblock_copies(device)).ok()?.map(|(superblock, _)| superblock)
}

/// What is in its two places on a device.
pub(crate) fn superblock_copies(device: &File) -> [SuperblockCopy; 2] {
    [0, COPY_OFFSET].map(|offset| {
        let mut block = vec![0; BLOCK_BYTES as usize];
        let read = device.read_exact_at(&mut block, offset);
        SuperblockCopy::of(read.is_ok().then_some(&block))
    })
}

pub(crate) fn new_store_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut id)?;
    Ok(id)
}
