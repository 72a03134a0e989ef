//! Records of an index, read and forged: docs/explanation/format.md draws them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Where the first record is.
pub(crate) const RECORDS_AT: u64 = 4096;
pub(crate) const RECORD_BYTES: usize = 256;

/// A record as it is on disk.
#[derive(Clone, Copy)]
pub(crate) struct Record(pub(crate) [u8; RECORD_BYTES]);

pub(crate) fn index_of(directory: &Path) -> PathBuf {
    directory.join("index.kvring")
}

/// Writes these bytes over what is in a file at `offset`.
pub(crate) fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

impl Record {
    pub(crate) fn read(directory: &Path, slot: u64) -> Self {
        let mut record = [0; RECORD_BYTES];
        let index = File::open(index_of(directory)).unwrap();
        index.read_exact_at(&mut record, RECORDS_AT + slot * RECORD_BYTES as u64).unwrap();
        Self(record)
    }

    /// Writes it with the checksum that it should have.
    pub(crate) fn write(&self, directory: &Path, slot: u64) {
        let offset = RECORDS_AT + slot * RECORD_BYTES as u64;
        overwrite(&index_of(directory), offset, &self.sealed());
    }

    /// Its bytes, with the checksum that they should have.
    pub(crate) fn sealed(&self) -> [u8; RECORD_BYTES] {
        let mut record = self.0;
        let checksum = crc32c::crc32c(&record[12..]);
        record[8..12].copy_from_slice(&checksum.to_le_bytes());
        record
    }

    pub(crate) fn with(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }
}
