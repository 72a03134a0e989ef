//! The data files that a store finds when it opens, and those of them that still fit its capacity.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;

use super::data_file::{DataFile, data_file_name, list_data_files, remove_file};
use super::growth::{SMALLEST_FILE_BYTES, affordable_bytes, on_disk_bytes};
use crate::budget::Budget;
use crate::config::BLOCK_BYTES;
use crate::directory::Directory;
use crate::error::OpenError;
use crate::lock::Owner;

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

/// Takes data files into the budget. Where they no longer fit the capacity, those go whose chunks were used the longest time
/// ago, by `mean_use_by_file`.
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
    if found.iter().map(FoundFile::on_disk_bytes).sum::<u64>() > budget.left_bytes() {
        let mean_use = mean_use_by_file();
        let used_ms = |file: &FoundFile| mean_use.get(&file.number).copied();
        found.sort_by_key(|file| (Reverse(used_ms(file)), file.number));
    }
    let mut fitting = Vec::new();
    for mut file in found {
        let outcome = file.fit(directory, budget);
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
    fn fit(&mut self, directory: &Directory, budget: &Budget) -> io::Result<bool> {
        if budget.reserve(self.on_disk_bytes(), 0) {
            return Ok(true);
        }
        let fitting_bytes = affordable_bytes(budget).min(u64::from(self.blocks) * BLOCK_BYTES);
        let path = directory.path_of(&self.name);
        let path = path.display();
        if fitting_bytes < SMALLEST_FILE_BYTES {
            log::warn!("{path} no longer fits the capacity: what it holds is evicted");
            remove_file(directory, &self.name)?;
            return Ok(false);
        }
        log::warn!(
            "only {fitting_bytes} bytes of {path} still fit the capacity: the rest is evicted"
        );
        self.file.shorten(fitting_bytes)?;
        self.blocks = (fitting_bytes / BLOCK_BYTES) as u32;
        let fits = budget.reserve(self.on_disk_bytes(), 0);
        debug_assert!(fits, "what is affordable can be reserved");
        Ok(fits)
    }
}
