//! A store in a directory whose index, and length of data files, an input changes: opened as a whole, used, and opened again.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use kvring::{Config, Durability, EngineChoice, Eviction, Layout};

use crate::common::records::index_of;
use crate::common::{self, MIB};
use crate::forged::{FORGED_BYTES, change_index};
use crate::input::Input;
use crate::sparse_files::SparseFiles;
use crate::used_store::{exercise, fill, keys};

const CAPACITY: u64 = 16 * MIB;
/// A file has nothing but zeros behind them.
const MOST_BYTES: u64 = 256 << 10;

pub(crate) fn config(path: &Path, capacity_bytes: u64, layout: Layout) -> Config {
    let mut config = common::config(path, capacity_bytes);
    (config.layout, config.engine) = (layout, EngineChoice::Posix);
    (config.lease_s, config.ttl, config.min_free_bytes) = (0, None, Some(0));
    // A small one is opened sooner.
    (config.tuning.queue_depth, config.tuning.in_flight_bytes) = (Some(8), Some(MIB));
    config.tuning.open_threads = Some(1);
    config.files = Arc::new(SparseFiles);
    config
}

/// Files by their paths, with their bytes and their lengths.
type Files = Vec<(PathBuf, Vec<u8>, u64)>;

fn files_below(path: &Path, home: &Path, files: &mut Files) {
    for entry in fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            files_below(&entry, home, files);
            continue;
        }
        let (mut bytes, file) = (Vec::new(), File::open(&entry).unwrap());
        let length = file.metadata().unwrap().len();
        file.take(MOST_BYTES).read_to_end(&mut bytes).unwrap();
        files.push((entry.strip_prefix(home).unwrap().to_owned(), bytes, length));
    }
}

/// A store as it is before it is changed.
fn unchanged(layout: Layout) -> &'static Files {
    static STORES: [OnceLock<Files>; 2] = [OnceLock::new(), OnceLock::new()];
    STORES[usize::from(layout == Layout::Files)].get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        fill(config(directory.path(), CAPACITY, layout));
        let mut files = Files::new();
        files_below(directory.path(), directory.path(), &mut files);
        files.sort();
        files
    })
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let layout = input.choose(&[Layout::Extents, Layout::Files]);
    let eviction = input.choose(&Eviction::ALL);
    let durability = input.choose(&[Durability::BestEffort, Durability::Persistent]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for (name, bytes, length) in unchanged(layout) {
        let (name, mut bytes, mut length) = (path.join(name), bytes.clone(), *length);
        if name == index_of(path) {
            bytes.truncate(FORGED_BYTES);
            length = change_index(&mut input, &mut bytes, &keys()).unwrap_or(length);
        } else if input.choose(&[0, 0, 0, 0, 0, 0, 0, 1]) == 1 {
            length = input.value() % (2 * length + 1);
        }
        bytes.truncate(length as usize);
        fs::create_dir_all(name.parent().unwrap()).unwrap();
        let file = File::create(name).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        file.set_len(length).unwrap();
    }
    let config = || {
        let mut config = config(path, CAPACITY, layout);
        (config.eviction, config.durability) = (eviction, durability);
        config
    };
    exercise(path, config, &mut input);
}
