//! An index without a store around it, and what it logs, for the tests of this module.

use std::cell::RefCell;
use std::path::Path;
use std::sync::{Arc, Once};

use super::found::FoundIndex;
use super::index_file::IndexPlace;
use super::map::Index;
use super::table::Table;
use crate::capacity::Budget;
use crate::config::Config;
use crate::directory::Directory;
use crate::evict::Quotas;
use crate::store::Store;
use crate::store::data_files::{ExtentStore, find_files};

/// Opens the index in `directory`, which is made if there is none.
pub(super) fn opened<G: Send, S: Send>(
    directory: &Path,
    set_up: impl FnOnce(&mut Config),
) -> Index<G, S> {
    let budget = Arc::new(Budget::new(64 << 20));
    let mut config = Config::new(directory.to_str().unwrap(), budget.capacity_bytes).unwrap();
    set_up(&mut config);
    let directory = Arc::new(Directory::open(directory).unwrap());
    let files = find_files(&directory, || None).unwrap();
    let open_store = |table: &Table| {
        ExtentStore::open(&directory, files, Arc::clone(&budget), || table.mean_use_by_file())
            .map(|store| Box::new(store) as Box<dyn Store>)
    };
    let found = FoundIndex::look(IndexPlace::Directory(Arc::clone(&directory))).unwrap();
    Index::open(found, &budget, &config, &Quotas::default(), open_store).unwrap().0
}

thread_local! {
    static LOGGED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Log;

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LOGGED.with_borrow_mut(|logged| logged.push(record.args().to_string()));
    }

    fn flush(&self) {}
}

/// What this thread logs in `call`.
pub(super) fn logged(call: impl FnOnce()) -> Vec<String> {
    static SET: Once = Once::new();
    SET.call_once(|| {
        log::set_logger(&Log).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
    });
    LOGGED.take();
    call();
    LOGGED.take()
}
