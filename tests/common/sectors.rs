//! What the simulated disk knows of one file: every version of each sector since the last sync.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(super) const SECTOR_BYTES: usize = 512;
const FIRST_RECORD_SECTOR: usize = 8;

pub(super) type Sector = [u8; SECTOR_BYTES];

#[derive(Clone, Default)]
pub(super) struct SimulatedFile {
    /// Bytes as they were last looked at. Of a data file only their number counts: where its last write ended.
    pub(super) seen: Vec<u8>,
    pub(super) end: usize,
    /// Sectors written since the last sync: what is durable, and every version since.
    pub(super) unsynced: BTreeMap<usize, Vec<Sector>>,
    /// What is durable of sectors that a failed sync dropped: they differ, and no sync writes them.
    pub(super) dropped: BTreeMap<usize, Sector>,
    /// Failed syncs that descriptors are told of, and how many each was told of.
    pub(super) failures: u64,
    pub(super) told: HashMap<RawFd, u64>,
}

impl SimulatedFile {
    /// Notes that a sector of these bytes became these.
    pub(super) fn change(&mut self, number: usize, old: &[u8], new: &[u8]) {
        let dropped = self.dropped.remove(&number);
        let durable = || vec![dropped.unwrap_or_else(|| sector(old))];
        self.unsynced.entry(number).or_insert_with(durable).push(sector(new));
    }
}

/// Whether a sector of the index says the same. The time of last use does not count: it is outside the checksum, and how
/// often it changes depends on the clock.
pub(super) fn is_same(number: usize, old: &[u8], new: &[u8]) -> bool {
    if number < FIRST_RECORD_SECTOR {
        return old == new;
    }
    old.chunks(256).zip(new.chunks(256)).all(|(old, new)| old[8..] == new[8..])
}

pub(super) fn sector(bytes: &[u8]) -> Sector {
    let mut sector = [0; SECTOR_BYTES];
    sector[..bytes.len()].copy_from_slice(bytes);
    sector
}

pub(super) fn read_start(path: &Path, limit: usize) -> Vec<u8> {
    let Ok(file) = File::open(path) else { return Vec::new() };
    let length = (file.metadata().unwrap().len() as usize).min(limit);
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}
