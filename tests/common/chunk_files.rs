//! A store in layout `files`, and what is in its directory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kvring::{Config, Layout};

use super::{Client, MIB};

pub(crate) const CAPACITY: u64 = 64 * MIB;

pub(crate) fn config(directory: &Path, capacity_bytes: u64) -> Config {
    let mut config = super::config(directory, capacity_bytes);
    config.layout = Layout::Files;
    config
}

pub(crate) fn open(directory: &Path) -> Client {
    Client::with(config(directory, CAPACITY))
}

/// All files below `chunks`, from there on.
pub(crate) fn files(directory: &Path) -> BTreeSet<PathBuf> {
    let chunks = directory.join("chunks");
    let entries = |path: &Path| -> Vec<PathBuf> {
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let below = entries(&chunks).into_iter().flat_map(|path| entries(&path));
    below.map(|path| path.strip_prefix(&chunks).unwrap().to_owned()).collect()
}

/// Files of chunks that this process has open.
pub(crate) fn open_chunk_files(directory: &Path) -> usize {
    let chunks = fs::canonicalize(directory.join("chunks")).unwrap();
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    let targets = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets
        .filter_map(|target| Some(target.strip_prefix(&chunks).ok()?.components().count()))
        .filter(|depth| *depth == 2)
        .count()
}

/// Nothing is left over: neither files without a record nor descriptors.
pub(crate) fn assert_tidy(client: &Client, directory: &Path) {
    client.assert_consistent();
    assert_eq!(files(directory).len() as u64, client.connector.stats().keys);
    assert_eq!(open_chunk_files(directory), 0);
}
