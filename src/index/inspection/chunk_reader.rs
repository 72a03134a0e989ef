//! Reading the bytes of chunks that a store lists, without its lock, while its owner may be changing it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::listing::{StoredChunk, StoredChunks};
use crate::base::block::BLOCK_BYTES;
use crate::base::buffer::AlignedBlock;
use crate::base::checksum::{crc64, placed};

const PIECE_BYTES: usize = 1 << 20;

const SHORTEST_SLEEP: Duration = Duration::from_millis(2);

/// Past the page cache a read ends in the middle of one only where the file does.
const SECTOR_BYTES: usize = 512;

/// What reading the bytes of a chunk showed.
#[derive(Debug)]
pub enum ChunkCondition {
    /// They were read; those of a chunk that was stored with a checksum are what it says.
    Read {
        /// Whether it has a checksum.
        is_checked: bool,
    },
    /// They are not what its checksum says, or some of them are missing.
    Damaged,
    /// The disk does not return them.
    Unreadable(io::Error),
    /// It was deleted or replaced meanwhile.
    Gone,
}

/// Reads chunks past the page cache, where the file system allows that, at a bounded rate.
pub struct ChunkReader {
    /// The directory of the store, or its device.
    path: PathBuf,
    piece: AlignedBlock,
    /// The file that was read last: one data file has many chunks.
    open: Option<(PathBuf, File)>,
    most_bytes_per_s: Option<u64>,
    /// When the next piece may be read.
    due: Instant,
}

impl ChunkReader {
    /// Reads chunks of the store at `path`, and no more than `most_bytes_per_s`, one piece of 1 MiB at a time.
    pub fn new(path: &Path, most_bytes_per_s: Option<u64>) -> Self {
        let (path, piece) = (path.to_owned(), AlignedBlock::zeroed(PIECE_BYTES));
        Self { path, piece, open: None, most_bytes_per_s, due: Instant::now() }
    }

    /// Reads a chunk that `chunks` has listed, and hands its bytes to `take`. They are worth nothing unless `Read` is returned.
    pub fn read(
        &mut self,
        chunks: &StoredChunks,
        chunk: &StoredChunk,
        take: impl FnMut(&[u8]),
    ) -> ChunkCondition {
        let checksum = self.read_pieces(chunk, take);
        // Extents are used again, and files removed, only after their record is.
        if !chunks.has(chunk) {
            self.open = None;
            return ChunkCondition::Gone;
        }
        match checksum {
            Ok(found) => match chunk.checksum {
                Some(stored) if stored != found => ChunkCondition::Damaged,
                stored => ChunkCondition::Read { is_checked: stored.is_some() },
            },
            Err(error) if is_missing(&error) => ChunkCondition::Damaged,
            Err(error) => ChunkCondition::Unreadable(error),
        }
    }

    /// Returns the checksum of what was read, if the chunk has one.
    fn read_pieces(&mut self, chunk: &StoredChunk, mut take: impl FnMut(&[u8])) -> io::Result<u64> {
        let path = self.path.join(&chunk.file);
        let file = match self.open.take() {
            Some((open, file)) if open == path => file,
            _ => open_past_the_cache(&path)?,
        };
        let (mut checksum, mut done) = (0, 0);
        while done < chunk.length_bytes {
            let length = (chunk.length_bytes - done).min(PIECE_BYTES as u64) as usize;
            self.wait_for_turn(length);
            let bytes =
                &mut self.piece.bytes_mut()[..length.next_multiple_of(BLOCK_BYTES as usize)];
            read_whole(&file, bytes, length, chunk.offset_bytes + done)?;
            done += length as u64;
            if chunk.checksum.is_some() {
                checksum ^= placed(crc64(&bytes[..length]), chunk.length_bytes - done);
            }
            take(&bytes[..length]);
        }
        self.open = Some((path, file));
        Ok(checksum)
    }

    fn wait_for_turn(&mut self, length: usize) {
        let Some(most_bytes_per_s) = self.most_bytes_per_s else { return };
        let now = Instant::now();
        // Many small chunks share a sleep: none is as short as one of them takes.
        if self.due > now + SHORTEST_SLEEP {
            thread::sleep(self.due - now);
        }
        // Time that went unused is not made up for.
        let takes = Duration::from_secs_f64(length as f64 / most_bytes_per_s.max(1) as f64);
        self.due = self.due.max(now) + takes;
    }
}

fn open_past_the_cache(path: &Path) -> io::Result<File> {
    let open = |flags| {
        let flags = flags | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        OpenOptions::new().read(true).custom_flags(flags).open(path)
    };
    open(libc::O_DIRECT).or_else(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => open(0),
        _ => Err(error),
    })
}

/// Fills the first `length` of `bytes`, whole blocks as O_DIRECT takes them; the rest may be overwritten.
fn read_whole(file: &File, bytes: &mut [u8], length: usize, offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < length {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(count)
                if done + count < length && !count.is_multiple_of(SECTOR_BYTES) || count == 0 =>
            {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound)
}
