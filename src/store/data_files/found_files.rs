//! The data files that a store finds when it opens, and those of them that still fit its capacity.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;

use super::data_file::{DataFile, list_data_files, remove_file};
use crate::block::BLOCK_BYTES;
use crate::capacity::Budget;
use crate::directory::Directory;
use crate::error::OpenError;
use crate::format::header::{HEADER_BYTES, Owner};
use crate::format::names::data_file_name;
use crate::store::sizes::{
    SMALLEST_FILE_BYTES, file_bytes_within, index_share_bytes, on_disk_bytes,
};

/// Opens and locks the data files in `directory`; nothing of them is changed.
pub(super) fn find_files(
    directory: &Directory,
    owner: impl Fn() -> Option<Owner>,
) -> Result<Vec<FoundFile>, OpenError> {
    let open = |number| {
        let name = data_file_name(number);
        let file = DataFile::open(directory, &name, &owner)?;
        let blocks = file.blocks().map_err(directory.error("read the length of", &name))?;
        Ok(FoundFile { number, name, file, blocks })
    };
    let numbers = list_data_files(directory).map_err(directory.error("list", ""))?;
    numbers.into_iter().map(open).collect()
}

/// Takes data files into the budget. Where they no longer fit the capacity, the least recently used are removed, by
/// `mean_use_by_file`.
pub(super) fn fit_files(
    mut found: Vec<FoundFile>,
    directory: &Directory,
    budget: &Budget,
    mean_use_by_file: impl FnOnce() -> HashMap<u32, u64>,
) -> Result<Vec<FoundFile>, OpenError> {
    found.iter().for_each(|found| found.file.make_private());
    // Their owner died before they had space.
    for FoundFile { name, .. } in found.extract_if(.., |found| found.blocks == 0) {
        remove_file(directory, &name).map_err(directory.error("remove", &name))?;
    }
    let mut room = Allowance::new(&found, budget);
    if found.iter().map(FoundFile::on_disk_bytes).sum::<u64>() > room.bytes {
        let mean_use = mean_use_by_file();
        let used_ms = |file: &FoundFile| mean_use.get(&file.number).copied();
        found.sort_by_key(|file| (Reverse(used_ms(file)), file.number));
    }
    let mut fitting = Vec::new();
    for mut file in found {
        let outcome = file.fit(directory, &mut room, budget);
        if outcome.map_err(directory.error("shorten or remove", &file.name))? {
            fitting.push(file);
        }
    }
    Ok(fitting)
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

    /// Takes it into the budget, as much of it as fits; removes it if that is not worth a file. Says whether it stays.
    fn fit(
        &mut self,
        directory: &Directory,
        room: &mut Allowance,
        budget: &Budget,
    ) -> io::Result<bool> {
        if self.on_disk_bytes() > room.bytes {
            let size_bytes = u64::from(self.blocks) * BLOCK_BYTES;
            let fitting_bytes = file_bytes_within(room.bytes).min(size_bytes);
            let (path, reason) = (directory.path_of(&self.name), room.reason);
            let path = path.display();
            if fitting_bytes < SMALLEST_FILE_BYTES {
                log::warn!("{path} no longer fits {reason}: what it holds is evicted");
                remove_file(directory, &self.name)?;
                return Ok(false);
            }
            log::warn!(
                "only {fitting_bytes} bytes of {path} still fit {reason}: the rest is evicted"
            );
            self.file.truncate(fitting_bytes)?;
            self.blocks = (fitting_bytes / BLOCK_BYTES) as u32;
        }
        room.bytes -= self.on_disk_bytes();
        let fits = budget.reserve(self.on_disk_bytes(), 0);
        debug_assert!(fits, "there is no more room than the capacity leaves");
        Ok(fits)
    }
}

/// What the data files may take.
struct Allowance {
    bytes: u64,
    /// What bounds it.
    reason: &'static str,
}

impl Allowance {
    /// The index gets its share first. It has too little where data files were made before it, on a file system that has
    /// nothing left.
    fn new(found: &[FoundFile], budget: &Budget) -> Self {
        let on_disk_bytes: u64 = found.iter().map(FoundFile::on_disk_bytes).sum();
        let data_bytes: u64 = found.iter().map(|file| u64::from(file.blocks) * BLOCK_BYTES).sum();
        // There is nothing else yet.
        let index_bytes = budget.used_bytes();
        let file_system_bytes = on_disk_bytes.saturating_add(budget.free_above_floor_bytes());
        let left_bytes = budget.left_bytes();
        let share_bytes = index_share_bytes(data_bytes.min(left_bytes));
        let missing_bytes = (HEADER_BYTES + share_bytes).saturating_sub(index_bytes);
        let bytes = left_bytes.min(file_system_bytes).saturating_sub(missing_bytes);
        let is_capacity = left_bytes < on_disk_bytes;
        let reason = if is_capacity { "the capacity" } else { "beside the share of the index" };
        Self { bytes, reason }
    }
}
