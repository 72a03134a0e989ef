//! The account of chunk files: to which chunk each belongs, what it costs, and which are being removed.
//!
//! A file's space is in the space from the moment it is given out until the file is removed. Removal takes time, and eviction
//! must not go on as if nothing was freed. So the space of files being removed is promised to new files at once. Such a file is
//! made only when as much was removed as was promised up to it, the oldest promise first. So the disk never has more
//! than the space says.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::base::block::{BLOCK_BYTES, Extent};
use crate::format::names::{DIRECTORIES, directory_of};
use crate::key::Digest;
use crate::space_account::SpaceAccount;

/// Entries of a directory of one block, on ext4 and XFS.
const SMALL_DIRECTORY_FILES: u64 = 40;

/// What an entry takes in a larger one, as they are half full at times: 52 bytes of ext4 and 64 of XFS, measured to be 81 with
/// what belongs to all of them.
const ENTRY_BYTES: u64 = 128;

/// An inode: XFS makes them as they are needed, of 512 bytes.
const INODE_BYTES: u64 = 512;

/// Blocks that fit the inode's own map of extents whatever their places; beyond them one block of map has so many.
const BLOCKS_IN_INODE: u64 = 4;
const BLOCKS_PER_MAP_BLOCK: u64 = 252;

/// Bytes on disk that a file of so many blocks costs, where the file system gives out `unit_bytes` at a time.
pub(super) fn cost_bytes(blocks: u32, unit_bytes: u64) -> u64 {
    let blocks = u64::from(blocks);
    // At worst no two blocks are neighbours.
    let map_blocks = match blocks {
        0..=BLOCKS_IN_INODE => 0,
        _ => blocks.div_ceil(BLOCKS_PER_MAP_BLOCK) + blocks / (BLOCKS_PER_MAP_BLOCK * 4),
    };
    let data_bytes = (blocks * BLOCK_BYTES).next_multiple_of(unit_bytes);
    data_bytes + map_blocks * BLOCK_BYTES + INODE_BYTES
}

pub(super) fn directory_bytes(files: u64) -> u64 {
    match files {
        0..=SMALL_DIRECTORY_FILES => BLOCK_BYTES,
        _ => (files * ENTRY_BYTES).next_multiple_of(BLOCK_BYTES) + 2 * BLOCK_BYTES,
    }
}

/// One of the directories. They shrink on no file system to be relied on: what was reserved stays so.
#[derive(Clone, Copy, Default)]
struct DirectorySpace {
    files: u64,
    reserved_bytes: u64,
}

/// A file that is given out and not made.
#[derive(Clone, Copy)]
struct UnmadeFile {
    cost_bytes: u64,
    /// The part of the cost that is still being removed elsewhere.
    promised_bytes: u64,
    /// How much must have arrived first, with all promises before.
    awaited_bytes: u64,
}

/// What is known of all files.
#[derive(Default)]
pub(super) struct Account {
    pub(super) unit_bytes: u64,
    /// Digest by number: of files given out, and of those that are being removed.
    pub(super) files: HashMap<u32, Digest>,
    next_number: u32,
    directories: Vec<DirectorySpace>,
    pub(super) live_bytes: u64,
    /// Blocks of these, and of those that are being removed.
    pub(super) allocated_blocks: u64,
    /// To be removed, in this order.
    pub(super) leaving: VecDeque<Extent>,
    leaving_bytes: u64,
    /// Bytes of files being removed that were promised to new ones, ever; and how many of these came.
    promised_bytes: u64,
    arrived_bytes: u64,
    /// Files that are not made yet.
    unmade: HashMap<u32, UnmadeFile>,
    pub(super) unmade_bytes: u64,
    /// Those of them that are being removed and had not all that was promised to them.
    unserved: HashMap<u32, UnmadeFile>,
    /// Files that the file system refused to make. What they leave was never there: it is promised to nobody.
    refused: HashSet<u32>,
    refused_bytes: u64,
}

impl Account {
    pub(super) fn new(unit_bytes: u64) -> Self {
        let directories = vec![DirectorySpace::default(); DIRECTORIES];
        Self { unit_bytes, directories, ..Self::default() }
    }

    /// Notes a number that is not to be given out next.
    pub(super) fn note_taken(&mut self, number: u32) {
        self.next_number = self.next_number.max(number.wrapping_add(1));
    }

    /// Notes a file that was found. False if another one has its number.
    pub(super) fn note_found(&mut self, digest: Digest, number: u32) -> bool {
        self.note_taken(number);
        match self.files.contains_key(&number) {
            true => false,
            false => self.files.insert(number, digest).is_none(),
        }
    }

    /// Forgets all files but `stored`, and takes these into the space. Returns those forgotten.
    pub(super) fn keep_only(
        &mut self,
        stored: &[Extent],
        space: &SpaceAccount,
    ) -> Vec<(u32, Digest)> {
        let kept: HashSet<u32> = stored.iter().map(|extent| extent.file).collect();
        let removed = self.files.extract_if(|number, _| !kept.contains(number)).collect();
        for extent in stored {
            let Some(&digest) = self.files.get(&extent.file) else { continue };
            let cost = cost_bytes(extent.blocks, self.unit_bytes);
            let growth = self.enter_directory(digest);
            space.add(cost + growth);
            self.live_bytes += cost;
            self.allocated_blocks += u64::from(extent.blocks);
        }
        removed
    }

    /// Notes a file without a chunk that cannot be removed and takes `bytes`.
    pub(super) fn keep(&mut self, digest: Digest, number: u32, bytes: u64, space: &SpaceAccount) {
        self.files.insert(number, digest);
        space.add(bytes + INODE_BYTES + self.enter_directory(digest));
    }

    /// Notes what directory `number` takes already, and reserves that.
    pub(super) fn note_directory(&mut self, number: usize, bytes: u64, space: &SpaceAccount) {
        let bytes = bytes.max(directory_bytes(0));
        self.directories[number].reserved_bytes = bytes;
        space.add(bytes);
    }

    /// What a file of so many blocks would take now, with what its directory has to grow.
    pub(super) fn needed_bytes(&self, blocks: u32, digest: Digest) -> u64 {
        let DirectorySpace { files, reserved_bytes } = self.directories[directory_of(digest)];
        let growth = directory_bytes(files + 1).saturating_sub(reserved_bytes);
        cost_bytes(blocks, self.unit_bytes) + growth
    }

    fn enter_directory(&mut self, digest: Digest) -> u64 {
        let directory = &mut self.directories[directory_of(digest)];
        directory.files += 1;
        let growth = directory_bytes(directory.files).saturating_sub(directory.reserved_bytes);
        directory.reserved_bytes += growth;
        growth
    }

    /// What will have arrived once all is removed that is to be. Less than was promised if a file could not be removed.
    fn coming_bytes(&self) -> u64 {
        self.arrived_bytes + self.leaving_bytes - self.refused_bytes
    }

    /// What all files take, without their directories: also those that are being removed, but for what of these is promised to others.
    pub(super) fn held_bytes(&self) -> u64 {
        let promised_bytes = self.promised_bytes.saturating_sub(self.arrived_bytes);
        (self.live_bytes + self.leaving_bytes).saturating_sub(promised_bytes)
    }

    /// Bytes being removed that are nobody's yet.
    pub(super) fn unpromised_bytes(&self) -> u64 {
        self.coming_bytes().saturating_sub(self.promised_bytes)
    }

    /// Gives out a file. `promised_bytes` of what it needs are still being removed, the rest is in the space.
    pub(super) fn give_out(&mut self, blocks: u32, digest: Digest, promised_bytes: u64) -> Extent {
        while self.files.contains_key(&self.next_number) {
            self.next_number = self.next_number.wrapping_add(1);
        }
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        self.files.insert(number, digest);
        self.enter_directory(digest);
        let cost = cost_bytes(blocks, self.unit_bytes);
        self.live_bytes += cost;
        self.allocated_blocks += u64::from(blocks);
        debug_assert!(promised_bytes <= self.unpromised_bytes());
        self.promised_bytes += promised_bytes;
        let awaited_bytes = if promised_bytes > 0 { self.promised_bytes } else { 0 };
        let unmade = UnmadeFile { cost_bytes: cost, promised_bytes, awaited_bytes };
        self.unmade.insert(number, unmade);
        self.unmade_bytes += cost;
        Extent { file: number, first_block: 0, blocks }
    }

    /// Whether what was promised to the file is there; `None` if it will not come.
    pub(super) fn space_ready(&self, number: u32) -> Option<bool> {
        let awaited = self.unmade.get(&number).map_or(0, |unmade| unmade.awaited_bytes);
        (awaited <= self.coming_bytes()).then_some(awaited <= self.arrived_bytes)
    }

    /// The file is made, or will not be.
    pub(super) fn creation_done(&mut self, number: u32) {
        if let Some(unmade) = self.unmade.remove(&number) {
            self.unmade_bytes -= unmade.cost_bytes;
        }
    }

    /// The file system refused to make the file; it will be removed.
    pub(super) fn note_refused(&mut self, number: u32) {
        self.refused.insert(number);
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving_bytes > 0
    }

    /// Whether files wait for what is being removed.
    pub(super) fn is_awaited(&self) -> bool {
        self.promised_bytes > self.arrived_bytes
    }

    pub(super) fn begin_removal(&mut self, extent: Extent) {
        let unmade = self.unmade.get(&extent.file).copied();
        if let Some(unmade) = unmade.filter(|one| one.awaited_bytes > self.arrived_bytes) {
            self.unserved.insert(extent.file, unmade);
        }
        self.creation_done(extent.file);
        let cost = cost_bytes(extent.blocks, self.unit_bytes);
        self.live_bytes -= cost;
        self.leaving_bytes += cost;
        if self.refused.contains(&extent.file) {
            self.refused_bytes += cost;
        }
        self.leaving.push_back(extent);
    }

    /// The file is removed, or cannot be: then it still takes its space, and what was promised of it does not come.
    pub(super) fn end_removal(&mut self, extent: Extent, removed: bool, space: &SpaceAccount) {
        let cost = cost_bytes(extent.blocks, self.unit_bytes);
        let was_refused = self.refused.remove(&extent.file);
        self.refused_bytes -= if was_refused { cost } else { 0 };
        self.leaving_bytes -= cost;
        self.allocated_blocks -= u64::from(extent.blocks);
        if !removed {
            return;
        }
        let missing = self.withdraw_promise(extent.file);
        self.shrink_directory(extent.file, missing.saturating_sub(cost), space);
        let cost = cost.saturating_sub(missing);
        let promised = if was_refused { 0 } else { self.promised_bytes - self.arrived_bytes };
        let arrived = cost.min(promised);
        self.arrived_bytes += arrived;
        space.release(cost - arrived);
        if let Some(digest) = self.files.remove(&extent.file) {
            self.directories[directory_of(digest)].files -= 1;
        }
    }

    /// A file that was never made is gone. Returns the bytes that were promised to it and have not come, since what they were promised
    /// of could not be removed: nobody can have them. Promises behind move up.
    fn withdraw_promise(&mut self, number: u32) -> u64 {
        let Some(UnmadeFile { promised_bytes, awaited_bytes, .. }) = self.unserved.remove(&number)
        else {
            return 0;
        };
        let missing = promised_bytes.min(awaited_bytes.saturating_sub(self.arrived_bytes));
        self.promised_bytes -= missing;
        let waiting = self.unmade.values_mut().chain(self.unserved.values_mut());
        waiting
            .filter(|other| other.awaited_bytes > awaited_bytes)
            .for_each(|other| other.awaited_bytes -= missing);
        missing
    }

    /// A file's directory was to grow by bytes that have not come. Where other files need them by now, they are taken anyway.
    fn shrink_directory(&mut self, number: u32, bytes: u64, space: &SpaceAccount) {
        let Some(&digest) = self.files.get(&number).filter(|_| bytes > 0) else { return };
        let directory = &mut self.directories[directory_of(digest)];
        let needed_bytes = directory_bytes(directory.files - 1);
        let spare_bytes = bytes.min(directory.reserved_bytes.saturating_sub(needed_bytes));
        directory.reserved_bytes -= spare_bytes;
        space.add(bytes - spare_bytes);
    }

    pub(super) fn digest_of(&self, number: u32) -> Option<Digest> {
        self.files.get(&number).copied()
    }
}

#[cfg(test)]
mod tests;
