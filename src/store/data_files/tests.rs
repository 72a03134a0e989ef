//! Data files of a directory: how they grow, and what stays of them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::*;

/// It does not matter here.
const DIGEST: Digest = Digest([0; 2]);

/// An index that has all it needs.
struct Content;

impl IndexShare for Content {
    fn missing_bytes(&self, _data_bytes: u64, _allocated_bytes: u64) -> u64 {
        0
    }

    fn preallocate(&self, _bytes: u64) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A place in the store, which grows for it.
fn place(store: &ExtentStore, size_bytes: u64) -> Result<Extent, StoreError> {
    loop {
        match store.allocate(size_bytes, DIGEST) {
            Err(StoreError::Growing { needed_bytes }) => {
                assert!(store.is_growth_due(needed_bytes));
                store.grow(needed_bytes, &Content)?;
            }
            outcome => return outcome,
        }
    }
}

fn open(directory: &Path, capacity_bytes: u64) -> ExtentStore {
    let space = Arc::new(SpaceAccount::new(capacity_bytes));
    let directory = Arc::new(Directory::open(directory).unwrap());
    let found = find_files(&directory, || None).unwrap();
    ExtentStore::open(&directory, found, space, HashMap::new).unwrap()
}

#[test]
fn grows_file_by_file_up_to_the_capacity() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), 200 * MIB);
    let mut held = Vec::new();
    let error = loop {
        match place(&store, MIB) {
            Ok(extent) => held.push(extent),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().starts_with("store full"), "{error}");
    assert!(held.len() >= 190, "{} MiB of 200", held.len());
    assert_eq!(store.usage().data_files, 4);
    let files = list_data_files(&Directory::open(directory.path()).unwrap()).unwrap();
    let path = |number| directory.path().join(data_file_name(number));
    let on_disk: u64 =
        files.into_iter().map(|number| path(number).metadata().unwrap().blocks() * 512).sum();
    assert!(on_disk <= 200 * MIB, "{on_disk}");
    store.free(held.remove(3));
    assert!(place(&store, MIB).is_ok());
}

#[test]
fn a_smaller_capacity_drops_the_last_files() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), 200 * MIB);
    while place(&store, 16 * MIB).is_ok() {}
    drop(store);
    let store = open(directory.path(), 100 * MIB);
    let blocks = [0, 1].map(|file| store.allocator.lock().blocks_of(file));
    assert_eq!(blocks[0], 64 * MIB / BLOCK_BYTES, "no file was used last, so the first stays");
    assert!((20 * MIB..36 * MIB).contains(&(blocks[1] * BLOCK_BYTES)), "{blocks:?}");
    assert_eq!(store.usage().data_files, 2);
    assert!(store.space.used_bytes() <= 100 * MIB);
    assert_eq!(store.max_chunk_bytes(), 64 * MIB);
}

#[test]
fn a_long_device_has_several_parts() {
    assert_eq!(parts(1000).collect::<Vec<_>>(), [(0, 1000)]);
    let eight_tib = PART_BLOCKS * BLOCK_BYTES;
    let found: Vec<(u64, u32)> = parts(2 * PART_BLOCKS + 5).collect();
    assert_eq!(found, [(0, 1 << 31), (eight_tib, 1 << 31), (2 * eight_tib, 5)]);
}

#[test]
fn an_empty_file_that_a_dead_owner_left_goes() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::File::create(directory.path().join(data_file_name(0))).unwrap();
    let store = open(directory.path(), 64 * MIB);
    assert_eq!((store.usage().data_files, store.space.used_bytes()), (0, 0));
    assert!(place(&store, MIB).is_ok());
    let directory = Directory::open(directory.path()).unwrap();
    assert_eq!(list_data_files(&directory).unwrap().len(), 1);
}

#[test]
fn longest_chunk_fits_the_smallest_capacity() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), crate::config::MIN_CAPACITY_BYTES);
    assert!(store.max_chunk_bytes() >= 12 * MIB, "{}", store.max_chunk_bytes());
    assert!(place(&store, store.max_chunk_bytes()).is_ok());
}
