//! The data files that a store finds when it opens, and those of them that still fit its capacity.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;

use super::data_file::{DataFile, list_data_files, remove_file};
use crate::base::block::{BLOCK_BYTES, MIB};
use crate::config::Layout;
use crate::directory::{Directory, make_private};
use crate::error::OpenError;
use crate::format::header::{HEADER_BYTES, Owner};
use crate::format::names::{CHUNKS_NAME, data_file_name};
use crate::space_account::SpaceAccount;
use crate::store::FileUse;
use crate::store::sizes::{
    SMALLEST_FILE_BYTES, file_bytes_within, index_share_bytes, on_disk_bytes,
};

const MIB_BLOCKS: u32 = (MIB / BLOCK_BYTES) as u32;

/// Opens and locks the data files in `directory`; nothing of them is changed.
///
/// # Errors
/// Somebody has them, or the store is one of layout `files`.
pub(crate) fn find_files(
    directory: &Directory,
    owner: impl Fn() -> Option<Owner>,
) -> Result<Vec<FoundFile>, OpenError> {
    if directory.contains(CHUNKS_NAME).map_err(directory.error("look for", CHUNKS_NAME))? {
        return Err(OpenError::OtherLayout {
            path: directory.path().to_owned(),
            found: Layout::Files.name(),
            wanted: Layout::Extents.name(),
        });
    }
    let open = |number| {
        let name = data_file_name(number);
        let file = directory.open_file(&name).map_err(directory.error("open", &name))?;
        let file = DataFile::lock(directory, &name, file, &owner)?;
        let metadata = file.file.metadata();
        let length = metadata.map_err(directory.error("read the length of", &name))?.len();
        Ok(FoundFile { number, name, file, blocks: blocks_in(length) })
    };
    let numbers = list_data_files(directory).map_err(directory.error("list", ""))?;
    numbers.into_iter().map(open).collect()
}

/// Takes data files into the space. Where they no longer fit the capacity, the least recently used are removed, by
/// `file_uses`.
pub(super) fn fit_files(
    mut found: Vec<FoundFile>,
    directory: &Directory,
    space: &SpaceAccount,
    file_uses: impl FnOnce() -> HashMap<u32, FileUse>,
) -> Result<Vec<FoundFile>, OpenError> {
    found.iter().for_each(|found| make_private(found.file.file.as_fd()));
    // Their owner died before they had space.
    for FoundFile { name, .. } in found.extract_if(.., |found| found.blocks == 0) {
        remove_file(directory, &name).map_err(directory.error("remove", &name))?;
    }
    let mut lengths: Vec<(u32, u32)> =
        found.iter().map(|file| (file.number, file.blocks)).collect();
    let (room_bytes, reason) = room_for(&lengths, space, space.used_bytes());
    let fitting = fitting_blocks(&mut lengths, room_bytes, file_uses);
    found.sort_by_key(|file| fitting.iter().position(|(number, _)| *number == file.number));
    let mut staying = Vec::new();
    for (mut file, (_, blocks)) in found.into_iter().zip(fitting) {
        let outcome = file.fit(directory, blocks, reason, space);
        if outcome.map_err(directory.error("shorten or remove", &file.name))? {
            staying.push(file);
        }
    }
    Ok(staying)
}

/// How many blocks of each data file in `directory` an open leaves, by its number, with `space` as it is after the index was
/// taken into it. Nothing is changed.
pub(crate) fn blocks_left_by_open(
    directory: &Directory,
    space: &SpaceAccount,
    file_uses: impl FnOnce() -> HashMap<u32, FileUse>,
) -> io::Result<HashMap<u32, u32>> {
    let mut lengths = Vec::new();
    for number in list_data_files(directory)? {
        let metadata = directory.open_to_read(&data_file_name(number))?.metadata()?;
        lengths.push((number, blocks_in(metadata.len())));
    }
    lengths.retain(|(_, blocks)| *blocks > 0);
    let (room_bytes, _) = room_for(&lengths, space, space.used_bytes());
    Ok(fitting_blocks(&mut lengths, room_bytes, file_uses).into_iter().collect())
}

fn blocks_in(length_bytes: u64) -> u32 {
    u32::try_from(length_bytes / BLOCK_BYTES).unwrap_or(u32::MAX)
}

/// Which blocks of data files, by number and length, stay within `room_bytes`: those of the files that were used last, up to the end
/// of their chunks, then a part of one, if that is worth a file. Sorts the files by that.
pub(super) fn fitting_blocks(
    lengths: &mut [(u32, u32)],
    mut room_bytes: u64,
    file_uses: impl FnOnce() -> HashMap<u32, FileUse>,
) -> Vec<(u32, u32)> {
    let taken_bytes = |blocks: u32| on_disk_bytes(u64::from(blocks) * BLOCK_BYTES);
    let is_over = lengths.iter().map(|(_, blocks)| taken_bytes(*blocks)).sum::<u64>() > room_bytes;
    let uses = if is_over { file_uses() } else { HashMap::new() };
    if is_over {
        let mean_ms = |number: &u32| uses.get(number).map(|one| one.mean_ms);
        lengths.sort_by_key(|(number, _)| (Reverse(mean_ms(number)), *number));
    }
    // A file that is filled in part takes no more from the others than its chunks do.
    let least = (SMALLEST_FILE_BYTES / BLOCK_BYTES) as u32;
    let filled = |number: &u32, blocks: u32| match uses.get(number) {
        Some(one) => one.end_blocks.next_multiple_of(MIB_BLOCKS).max(least).min(blocks),
        None => blocks,
    };
    let mut fit = |blocks: u32| {
        let fitting_bytes = match taken_bytes(blocks) <= room_bytes {
            true => u64::from(blocks) * BLOCK_BYTES,
            false => match file_bytes_within(room_bytes).min(u64::from(blocks) * BLOCK_BYTES) {
                ..SMALLEST_FILE_BYTES => return 0,
                bytes => bytes,
            },
        };
        room_bytes -= on_disk_bytes(fitting_bytes);
        blocks_in(fitting_bytes)
    };
    lengths.iter().map(|(number, blocks)| (*number, fit(filled(number, *blocks)))).collect()
}

/// A data file that was there.
pub(crate) struct FoundFile {
    pub(super) number: u32,
    name: String,
    pub(super) file: DataFile,
    pub(super) blocks: u32,
}

impl FoundFile {
    fn on_disk_bytes(&self) -> u64 {
        on_disk_bytes(u64::from(self.blocks) * BLOCK_BYTES)
    }

    /// Takes its first `blocks` into the space; removes it if there are none. Says whether it stays.
    fn fit(
        &mut self,
        directory: &Directory,
        blocks: u32,
        reason: &str,
        space: &SpaceAccount,
    ) -> io::Result<bool> {
        if blocks < self.blocks {
            let path = directory.path().join(&self.name);
            let path = path.display();
            if blocks == 0 {
                log::warn!("{path} no longer fits {reason}: what it holds is evicted");
                remove_file(directory, &self.name)?;
                return Ok(false);
            }
            let fitting_bytes = u64::from(blocks) * BLOCK_BYTES;
            log::warn!(
                "only {fitting_bytes} bytes of {path} still fit {reason}: the rest is evicted"
            );
            self.file.truncate(fitting_bytes)?;
            self.blocks = blocks;
        }
        let fits = space.reserve(self.on_disk_bytes(), 0);
        debug_assert!(fits, "there is no more room than the capacity leaves");
        Ok(fits)
    }
}

/// What the data files may take beside `index_bytes`, and what bounds it. The index gets its share first: it has too little where
/// data files were made before it, on a file system that has nothing left.
pub(super) fn room_for(
    lengths: &[(u32, u32)],
    space: &SpaceAccount,
    index_bytes: u64,
) -> (u64, &'static str) {
    let bytes = || lengths.iter().map(|(_, blocks)| u64::from(*blocks) * BLOCK_BYTES);
    let on_disk_bytes: u64 = bytes().map(on_disk_bytes).sum();
    let data_bytes: u64 = bytes().sum();
    let file_system_bytes = on_disk_bytes.saturating_add(space.free_above_floor_bytes());
    let left_bytes = space.capacity_bytes().saturating_sub(index_bytes);
    let share_bytes = index_share_bytes(data_bytes.min(left_bytes));
    let missing_bytes = (HEADER_BYTES + share_bytes).saturating_sub(index_bytes);
    let is_capacity = left_bytes < on_disk_bytes;
    let reason = if is_capacity { "the capacity" } else { "beside the share of the index" };
    (left_bytes.min(file_system_bytes).saturating_sub(missing_bytes), reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(lengths: &[(u32, u32)], space: &SpaceAccount) -> (u64, &'static str) {
        room_for(lengths, space, space.used_bytes())
    }

    /// Data files of these lengths, without blocks.
    fn found(sizes_mib: &[u64]) -> (tempfile::TempDir, Directory, Vec<FoundFile>) {
        let path = tempfile::tempdir().unwrap();
        for (number, size_mib) in (0..).zip(sizes_mib) {
            let file = std::fs::File::create(path.path().join(data_file_name(number))).unwrap();
            file.set_len(size_mib * MIB).unwrap();
        }
        let directory = Directory::open(path.path()).unwrap();
        let files = find_files(&directory, || None).unwrap();
        (path, directory, files)
    }

    #[test]
    fn data_files_leave_the_index_what_it_lacks_of_its_share() {
        let files = [1024, 512].map(|mib: u64| (0, blocks_in(mib * MIB)));
        let on_disk_bytes = on_disk_bytes(1024 * MIB) + on_disk_bytes(512 * MIB);
        let (capacity_bytes, share_bytes) = (4096 * MIB, 24 * MIB);
        let space = SpaceAccount::new(capacity_bytes);
        let beside = "beside the share of the index";
        let room_bytes = capacity_bytes - HEADER_BYTES - share_bytes;
        assert_eq!(room(&files, &space), (room_bytes, beside));
        // What it has is taken already.
        assert!(space.reserve(10 * MIB, 0));
        assert_eq!(room(&files, &space), (room_bytes, beside));
        assert!(space.reserve(30 * MIB, 0));
        assert_eq!(room(&files, &space), (capacity_bytes - 40 * MIB, beside));
        for (capacity_bytes, reason) in
            [(on_disk_bytes, beside), (on_disk_bytes - 1, "the capacity")]
        {
            let room_bytes = capacity_bytes - HEADER_BYTES - share_bytes;
            assert_eq!(room(&files, &SpaceAccount::new(capacity_bytes)), (room_bytes, reason));
        }
        // Of the data only what fits counts for the share.
        let room_bytes = 640 * MIB - HEADER_BYTES - 10 * MIB;
        assert_eq!(room(&files, &SpaceAccount::new(640 * MIB)), (room_bytes, "the capacity"));
    }

    #[test]
    fn the_file_that_was_used_last_stays_whole() {
        for last in [0, 1, 2] {
            let (_path, directory, files) = found(&[64, 64, 64]);
            let space = SpaceAccount::new(128 * MIB);
            let used = |mean_ms| FileUse { mean_ms, end_blocks: blocks_in(64 * MIB) };
            let used = HashMap::from([(last, used(9)), ((last + 1) % 3, used(5))]);
            let fitting = fit_files(files, &directory, &space, || used).unwrap();
            let numbers: Vec<u32> = fitting.iter().map(|file| file.number).collect();
            assert_eq!(numbers, [last, (last + 1) % 3]);
            let blocks = [0, 1].map(|at| u64::from(fitting[at].blocks) * BLOCK_BYTES / MIB);
            assert_eq!(blocks[0], 64);
            assert!((56..64).contains(&blocks[1]), "{blocks:?}");
            let taken: u64 = fitting.iter().map(FoundFile::on_disk_bytes).sum();
            assert_eq!(space.used_bytes(), taken);
            let lengths = fitting.iter().map(|file| file.file.file.metadata().unwrap().len() / MIB);
            assert!(lengths.eq(blocks));
            assert_eq!(list_data_files(&directory).unwrap().len(), 2);
        }
    }

    /// The last file is filled in part, as one is that was made ahead of need.
    #[test]
    fn what_is_not_filled_takes_nothing_from_others() {
        let mut lengths = [0, 1, 2].map(|number| (number, blocks_in(64 * MIB)));
        let used = |mean_ms, mib: u64| FileUse { mean_ms, end_blocks: blocks_in(mib * MIB) };
        let uses = HashMap::from([(0, used(1, 64)), (1, used(2, 64)), (2, used(3, 20))]);
        let taken_bytes: u64 = [20, 64, 40].map(|mib| on_disk_bytes(mib * MIB)).iter().sum();
        let room_bytes = taken_bytes + BLOCK_BYTES * 256;
        let fitting = fitting_blocks(&mut lengths, room_bytes, || uses);
        assert_eq!(
            fitting,
            [(2, 20), (1, 64), (0, 40)].map(|(file, mib)| (file, blocks_in(mib * MIB)))
        );
    }

    #[test]
    fn files_that_fit_exactly_stay_and_nobody_asks_when_they_were_used() {
        let (_path, directory, files) = found(&[16, 32]);
        let taken = on_disk_bytes(16 * MIB) + on_disk_bytes(32 * MIB);
        let space = SpaceAccount::new(taken + HEADER_BYTES + MIB);
        let fitting = fit_files(files, &directory, &space, || unreachable!()).unwrap();
        assert_eq!((fitting.len(), space.used_bytes()), (2, taken));
        // The smallest file that is worth one, and one that is not.
        for (room_mib, stays) in [(16, true), (15, false)] {
            let (_path, directory, files) = found(&[32]);
            let room_bytes = on_disk_bytes(room_mib * MIB) + BLOCK_BYTES;
            let space = SpaceAccount::new(room_bytes + HEADER_BYTES + MIB);
            let fitting = fit_files(files, &directory, &space, HashMap::new).unwrap();
            assert_eq!(fitting.len(), usize::from(stays), "{room_mib} MiB");
        }
    }
}
