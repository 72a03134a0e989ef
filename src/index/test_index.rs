//! An index with its data, and without cache and threads, for tests.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::config::Config;
use crate::directory::Directory;
use crate::evict::Quotas;
use crate::index::file::index_file::IndexPlace;
use crate::index::file::locked_index::LockedIndex;
use crate::index::file::mapping::Mapping;
use crate::index::memory::map::Index;
use crate::space_account::SpaceAccount;
use crate::store::Store;
use crate::store::data_files::{ExtentStore, find_files};

/// Opens the index in the directory that `config` names, and its data. They are made if there are none.
pub(crate) fn open<S: Send>(config: &Config, quotas: &Quotas) -> (Index<S>, Box<dyn Store>) {
    let space = Arc::new(SpaceAccount::new(config.capacity_bytes()));
    let directory = Arc::new(Directory::open(config.path()).unwrap());
    let files = find_files(&directory, || None).unwrap();
    let found = LockedIndex::look(IndexPlace::Directory(Arc::clone(&directory))).unwrap();
    let unread = found.take_over(&space, config.clock.now_ms()).unwrap();
    let file_uses = || unread.file_uses();
    let store = ExtentStore::open(&directory, files, Arc::clone(&space), file_uses).unwrap();
    let index = unread.recover(&store, config, quotas).index;
    (index, Box::new(store))
}

/// The same for tests of the index alone.
pub(crate) fn opened<S: Send>(directory: &Path, set_up: impl FnOnce(&mut Config)) -> Index<S> {
    let mut config = Config::new(directory.to_str().unwrap(), 64 << 20).unwrap();
    set_up(&mut config);
    open(&config, &Quotas::new(&config.quotas, 1)).0
}

impl<S> Index<S> {
    /// Does what the thread that writes records does with what is queued.
    pub(crate) fn write_queued(&self) {
        let mut changes = Vec::new();
        self.table.changes.take(&mut changes);
        self.table.make_in_order(&changes, &|_| ());
        self.table.changes.note_done(changes.len() as u64);
    }

    /// From here on changes are queued, and nobody writes them.
    pub(crate) fn defer_changes(&self) {
        self.table.changes.defer(true);
    }

    pub(crate) fn end_changes(&self) {
        self.table.changes.end();
    }

    /// Chunks whose last use is not in their records.
    pub(crate) fn uses_behind(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().used.len()).sum()
    }
}

impl Mapping {
    /// Which of these pages are in the kernel's table of this process: proc_pid_pagemap(5).
    pub(crate) fn mapped_pages(&self, pages: Range<usize>) -> Vec<usize> {
        let table = File::open("/proc/self/pagemap").unwrap();
        let is_mapped = |page: &usize| {
            let mut entry = [0; 8];
            let place = (self.as_mut_ptr().addr() / 4096 + page) * 8;
            table.read_exact_at(&mut entry, place as u64).unwrap();
            u64::from_ne_bytes(entry) >> 63 == 1
        };
        pages.filter(is_mapped).collect()
    }
}
