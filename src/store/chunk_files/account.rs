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
    /// Files that are not made yet: how much must have arrived first, and what they cost.
    unmade: HashMap<u32, (u64, u64)>,
    pub(super) unmade_bytes: u64,
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
        self.unmade.insert(number, (awaited_bytes, cost));
        self.unmade_bytes += cost;
        Extent { file: number, first_block: 0, blocks }
    }

    /// Whether what was promised to the file is there; `None` if it will not come.
    pub(super) fn space_ready(&self, number: u32) -> Option<bool> {
        let awaited = self.unmade.get(&number).map_or(0, |(awaited, _)| *awaited);
        (awaited <= self.coming_bytes()).then_some(awaited <= self.arrived_bytes)
    }

    /// The file is made, or will not be.
    pub(super) fn creation_done(&mut self, number: u32) {
        if let Some((_, cost)) = self.unmade.remove(&number) {
            self.unmade_bytes -= cost;
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
        let promised = if was_refused { 0 } else { self.promised_bytes - self.arrived_bytes };
        let arrived = cost.min(promised);
        self.arrived_bytes += arrived;
        space.release(cost - arrived);
        if let Some(digest) = self.files.remove(&extent.file) {
            self.directories[directory_of(digest)].files -= 1;
        }
    }

    pub(super) fn digest_of(&self, number: u32) -> Option<Digest> {
        self.files.get(&number).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CAPACITY: u64 = 1 << 20;

    proptest! {
        /// What is on disk (made and not removed) never exceeds the capacity, whoever waits for whom, whatever cannot be removed,
        /// and nothing is lost.
        #[test]
        fn promises_are_kept(steps in prop::collection::vec((1_u32..30, 0_u8..4, any::<prop::sample::Index>()), 1..400)) {
            let space = SpaceAccount::new(CAPACITY);
            let mut account = Account::new(4096);
            let (mut unmade, mut made): (Vec<Extent>, Vec<Extent>) = Default::default();
            let cost = |extent: &Extent| cost_bytes(extent.blocks, 4096);
            let (mut on_disk, mut stuck_bytes, mut stuck_files) = (0, 0, 0);
            let mut end_one = |account: &mut Account, on_disk: &mut u64, existed: &mut Vec<u32>| {
                if let Some(extent) = account.leaving.pop_front() {
                    let position = existed.iter().position(|number| *number == extent.file);
                    let is_stuck = position.is_some() && extent.blocks % 7 == 0;
                    match position {
                        Some(_) if is_stuck => {
                            stuck_bytes += cost(&extent);
                            stuck_files += 1;
                        }
                        Some(position) => {
                            existed.swap_remove(position);
                            *on_disk -= cost(&extent);
                        }
                        None => {}
                    }
                    account.end_removal(extent, !is_stuck, &space);
                }
            };
            let mut existing = Vec::new();
            for (blocks, step, which) in steps {
                match step {
                    0 => {
                        let digest = Digest([u64::from(blocks), 0]);
                        let needed = account.needed_bytes(blocks, digest);
                        let now = needed.min(space.left_bytes());
                        if needed - now <= account.unpromised_bytes() && space.reserve(now, 0) {
                            unmade.push(account.give_out(blocks, digest, needed - now));
                        }
                    }
                    1 => {
                        unmade.retain(|extent| {
                            let clear = account.space_ready(extent.file) == Some(true);
                            if clear {
                                account.creation_done(extent.file);
                                on_disk += cost(extent);
                                existing.push(extent.file);
                                made.push(*extent);
                            }
                            !clear
                        });
                    }
                    2 if !unmade.is_empty() && blocks % 3 == 0 => {
                        let extent = unmade.swap_remove(which.index(unmade.len()));
                        // The file system is asked once the space is there.
                        if account.space_ready(extent.file) == Some(true) {
                            account.creation_done(extent.file);
                            account.note_refused(extent.file);
                        }
                        account.begin_removal(extent);
                    }
                    2 if !made.is_empty() => account.begin_removal(made.swap_remove(which.index(made.len()))),
                    2 if !unmade.is_empty() => account.begin_removal(unmade.swap_remove(which.index(unmade.len()))),
                    _ => end_one(&mut account, &mut on_disk, &mut existing),
                }
                prop_assert!(on_disk <= CAPACITY && space.used_bytes() <= CAPACITY);
                // Who waits is served by what goes, or is told.
                let waits = |extent: &&Extent| account.space_ready(extent.file) == Some(false);
                prop_assert!(account.is_leaving() || !unmade.iter().any(|extent| waits(&extent)));
            }
            for extent in made.drain(..).chain(unmade.drain(..)) {
                account.begin_removal(extent);
            }
            while !account.leaving.is_empty() {
                end_one(&mut account, &mut on_disk, &mut existing);
            }
            let directories: u64 = account.directories.iter().map(|directory| directory.reserved_bytes).sum();
            let used_bytes = directories + stuck_bytes;
            prop_assert_eq!((space.used_bytes(), account.live_bytes, account.files.len()), (used_bytes, 0, stuck_files));
            prop_assert!(account.unmade_bytes == 0 && account.allocated_blocks == 0);
            prop_assert!(stuck_files > 0 || !account.is_awaited());
            prop_assert!(account.refused.is_empty() && account.refused_bytes == 0);
        }
    }

    /// Who waits for its space is told, and what goes next is theirs who wait.
    #[test]
    fn a_file_that_cannot_be_removed_keeps_its_space() {
        let space = SpaceAccount::new(CAPACITY);
        let mut account = Account::new(4096);
        let digest = Digest([0; 2]);
        account.note_directory(0, 0, &space);
        let blocks = 100;
        let needed = account.needed_bytes(blocks, digest);
        space.add(CAPACITY - space.used_bytes());
        let [old, next] = [0; 2].map(|promised| account.give_out(blocks, digest, promised));
        account.begin_removal(old);
        let new = account.give_out(blocks, digest, needed);
        assert_eq!((account.space_ready(new.file), space.used_bytes()), (Some(false), CAPACITY));
        account.end_removal(old, false, &space);
        assert_eq!((account.space_ready(new.file), space.used_bytes()), (None, CAPACITY));
        account.begin_removal(next);
        assert_eq!((account.space_ready(new.file), account.unpromised_bytes()), (Some(false), 0));
        account.end_removal(next, true, &space);
        assert_eq!((account.space_ready(new.file), space.used_bytes()), (Some(true), CAPACITY));
        account.begin_removal(new);
        account.end_removal(new, true, &space);
        assert_eq!(space.used_bytes(), CAPACITY - needed);
    }

    #[test]
    fn numbers_in_use_are_skipped_when_they_start_over() {
        let mut account = Account::new(4096);
        let digest = Digest([0; 2]);
        assert!(account.note_found(digest, u32::MAX) && account.note_found(digest, 1));
        assert!(!account.note_found(digest, 1));
        assert_eq!(account.next_number, 2);
        account.next_number = u32::MAX;
        let numbers = [0; 3].map(|_| account.give_out(1, digest, 0).file);
        assert_eq!(numbers, [0, 2, 3]);
    }
}
