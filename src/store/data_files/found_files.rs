//! The data files that a store finds when it opens, and those of them that still fit its capacity.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;

use super::data_file::{DataFile, list_data_files, remove_file};
use crate::block::BLOCK_BYTES;
use crate::capacity::Budget;
use crate::config::Layout;
use crate::directory::{Directory, make_private};
use crate::error::OpenError;
use crate::format::header::{HEADER_BYTES, Owner};
use crate::format::names::{CHUNKS_NAME, data_file_name};
use crate::store::sizes::{
    SMALLEST_FILE_BYTES, file_bytes_within, index_share_bytes, on_disk_bytes,
};

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
        let blocks = u32::try_from(length / BLOCK_BYTES).unwrap_or(u32::MAX);
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
    found.iter().for_each(|found| make_private(found.file.file.as_fd()));
    // Their owner died before they had space.
    for FoundFile { name, .. } in found.extract_if(.., |found| found.blocks == 0) {
        remove_file(directory, &name).map_err(directory.error("remove", &name))?;
    }
    let (mut room_bytes, reason) = room_for(&found, budget);
    if found.iter().map(FoundFile::on_disk_bytes).sum::<u64>() > room_bytes {
        let mean_use = mean_use_by_file();
        let used_ms = |file: &FoundFile| mean_use.get(&file.number).copied();
        found.sort_by_key(|file| (Reverse(used_ms(file)), file.number));
    }
    let mut fitting = Vec::new();
    for mut file in found {
        let outcome = file.fit(directory, &mut room_bytes, reason, budget);
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
        room_bytes: &mut u64,
        reason: &str,
        budget: &Budget,
    ) -> io::Result<bool> {
        if self.on_disk_bytes() > *room_bytes {
            let size_bytes = u64::from(self.blocks) * BLOCK_BYTES;
            let fitting_bytes = file_bytes_within(*room_bytes).min(size_bytes);
            let path = directory.path().join(&self.name);
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
        *room_bytes -= self.on_disk_bytes();
        let fits = budget.reserve(self.on_disk_bytes(), 0);
        debug_assert!(fits, "there is no more room than the capacity leaves");
        Ok(fits)
    }
}

/// What the data files may take, and what bounds it. The index gets its share first: it has too little where data files were made
/// before it, on a file system that has nothing left.
fn room_for(found: &[FoundFile], budget: &Budget) -> (u64, &'static str) {
    let on_disk_bytes: u64 = found.iter().map(FoundFile::on_disk_bytes).sum();
    let data_bytes: u64 = found.iter().map(|file| u64::from(file.blocks) * BLOCK_BYTES).sum();
    // There is nothing else yet.
    let index_bytes = budget.used_bytes();
    let file_system_bytes = on_disk_bytes.saturating_add(budget.free_above_floor_bytes());
    let left_bytes = budget.left_bytes();
    let share_bytes = index_share_bytes(data_bytes.min(left_bytes));
    let missing_bytes = (HEADER_BYTES + share_bytes).saturating_sub(index_bytes);
    let is_capacity = left_bytes < on_disk_bytes;
    let reason = if is_capacity { "the capacity" } else { "beside the share of the index" };
    (left_bytes.min(file_system_bytes).saturating_sub(missing_bytes), reason)
}
