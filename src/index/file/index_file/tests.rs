//! The index file on a real file system whose calls are watched: space, address space, the lock.

use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;

use super::*;
use crate::engine::SystemFiles;

/// Calls of the system that keep which bytes were preallocated, and refuse them where they are told to.
#[derive(Debug, Default)]
struct Files {
    preallocated: Mutex<Vec<Range<u64>>>,
    /// Errors of the next calls, from the last to the first; none for a call that is made.
    refusals: Mutex<Vec<Option<i32>>>,
    is_not_truncated: bool,
}

impl FileOperations for Files {
    fn preallocate(&self, file: &File, bytes: Range<u64>, flags: libc::c_int) -> io::Result<()> {
        self.preallocated.lock().unwrap().push(bytes.clone());
        match self.refusals.lock().unwrap().pop().flatten() {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => SystemFiles.preallocate(file, bytes, flags),
        }
    }

    fn truncate(&self, file: &File, length_bytes: u64) -> io::Result<()> {
        match self.is_not_truncated {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => SystemFiles.truncate(file, length_bytes),
        }
    }
}

fn place(path: &Path, files: &Arc<Files>) -> IndexPlace {
    let files: Arc<dyn FileOperations> = Arc::<Files>::clone(files);
    IndexPlace::Directory(Arc::new(Directory::open(path).unwrap().with_files(&files)))
}

fn index_with(path: &Path, files: &Arc<Files>) -> IndexFile {
    IndexFile::make(&place(path, files)).unwrap().0
}

fn index(path: &Path) -> IndexFile {
    index_with(path, &Arc::default())
}

/// Preallocates 1 MiB behind `before` bytes, of which the calls end with these errors. Returns the outcome and the calls.
fn preallocate(before: u64, files: Files) -> (Result<(), u64>, Vec<Range<u64>>) {
    let directory = tempfile::tempdir().unwrap();
    let files = Arc::new(files);
    let index = index_with(directory.path(), &files);
    index.file.set_len(HEADER_BYTES).unwrap();
    let outcome = index.preallocate(HEADER_BYTES, HEADER_BYTES + before, GROWTH_BYTES);
    assert_eq!(index.file.metadata().unwrap().len(), HEADER_BYTES);
    let calls = files.preallocated.lock().unwrap().clone();
    (outcome.map_err(|(_, kept)| kept), calls)
}

fn refusing(errnos: &[Option<i32>]) -> Files {
    Files { refusals: Mutex::new(errnos.iter().rev().copied().collect()), ..Files::default() }
}

#[test]
fn a_refused_preallocation_keeps_what_there_was_before() {
    const FULL: Option<i32> = Some(libc::ENOSPC);
    let start = HEADER_BYTES;
    let second = start + GROWTH_BYTES..start + 2 * GROWTH_BYTES;
    let (outcome, calls) = preallocate(GROWTH_BYTES, refusing(&[FULL]));
    assert_eq!(outcome, Err(GROWTH_BYTES));
    assert_eq!(calls, [second.clone(), start..start + GROWTH_BYTES]);
    // Nothing was there before.
    let (outcome, calls) = preallocate(0, refusing(&[FULL]));
    assert_eq!(outcome, Err(0));
    assert_eq!(calls.len(), 1);
    // It cannot be had back.
    assert_eq!(preallocate(GROWTH_BYTES, refusing(&[FULL, FULL])).0, Err(0));
    let files = Files { is_not_truncated: true, ..refusing(&[FULL]) };
    assert_eq!(preallocate(GROWTH_BYTES, files), (Err(0), vec![second.clone()]));
    assert_eq!(preallocate(GROWTH_BYTES, Files::default()), (Ok(()), vec![second]));
}

#[test]
fn a_file_system_without_fallocate_has_zeros_written() {
    let directory = tempfile::tempdir().unwrap();
    let files = Arc::new(refusing(&[Some(libc::EOPNOTSUPP)]));
    let index = index_with(directory.path(), &files);
    index.file.set_len(HEADER_BYTES).unwrap();
    index.preallocate(HEADER_BYTES, HEADER_BYTES, GROWTH_BYTES).unwrap();
    index.grow(HEADER_BYTES, GROWTH_BYTES).unwrap();
    let metadata = index.file.metadata().unwrap();
    assert_eq!(metadata.len(), HEADER_BYTES + GROWTH_BYTES);
    assert!(metadata.blocks() * 512 >= GROWTH_BYTES);
}

#[test]
fn space_reserved_behind_the_end_is_counted_where_it_fits() {
    let directory = tempfile::tempdir().unwrap();
    let index = index(directory.path());
    index.file.set_len(HEADER_BYTES).unwrap();
    let reserved = HEADER_BYTES..HEADER_BYTES + 3 * GROWTH_BYTES + GROWTH_BYTES / 2;
    SystemFiles.preallocate(&index.file, reserved, libc::FALLOC_FL_KEEP_SIZE).unwrap();
    // Half of the capacity is to be left.
    let space = SpaceAccount::new(6 * GROWTH_BYTES);
    assert_eq!(index.take_reserve(HEADER_BYTES, &space).unwrap(), 3 * GROWTH_BYTES);
    assert_eq!(space.used_bytes(), 3 * GROWTH_BYTES);
    let space = SpaceAccount::new(6 * GROWTH_BYTES - 2);
    assert_eq!(index.take_reserve(HEADER_BYTES, &space).unwrap(), 0);
    assert_eq!(space.used_bytes(), 0);
    let metadata = index.file.metadata().unwrap();
    assert_eq!(metadata.len(), HEADER_BYTES);
    assert!(metadata.blocks() * 512 < GROWTH_BYTES);
    assert_eq!(index.take_reserve(HEADER_BYTES, &SpaceAccount::new(6 * GROWTH_BYTES)).unwrap(), 0);
}

#[test]
fn a_file_that_was_cut_short_is_whole_again_where_there_is_room() {
    let directory = tempfile::tempdir().unwrap();
    let index = index(directory.path());
    let part = 3 * RECORD_BYTES as u64;
    let cut = HEADER_BYTES + part + 100;
    for (capacity, length) in [
        (2 * (HEADER_BYTES + GROWTH_BYTES), HEADER_BYTES + GROWTH_BYTES),
        (2 * (HEADER_BYTES + GROWTH_BYTES) - 2, HEADER_BYTES + part),
    ] {
        index.file.set_len(cut).unwrap();
        let space = SpaceAccount::new(capacity);
        space.add(cut);
        assert_eq!(index.repair_end(cut, &space).unwrap(), length);
        assert_eq!(index.file.metadata().unwrap().len(), length);
        assert_eq!(space.used_bytes(), length);
    }
}

#[test]
fn address_space_is_an_eighth_of_the_capacity() {
    let directory = tempfile::tempdir().unwrap();
    let index = index(directory.path());
    index.file.set_len(HEADER_BYTES).unwrap();
    let mapped =
        |length, capacity_bytes| index.map(length, capacity_bytes).unwrap().length_bytes() as u64;
    assert_eq!(mapped(HEADER_BYTES, 1 << 30), 1 << 27);
    assert_eq!(mapped(HEADER_BYTES, 1 << 20), 16 * GROWTH_BYTES);
    assert_eq!(mapped(1 << 25, 1 << 20), 1 << 25);
}

#[test]
fn want_of_address_space_names_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let index = index(directory.path());
    let error = |errno| index.unmappable(5, io::Error::from_raw_os_error(errno));
    assert!(matches!(error(libc::EACCES), OpenError::Io { action: "map", .. }));
    let OpenError::AddressSpace { needed_bytes, limit_bytes, way_out, .. } = error(libc::ENOMEM)
    else {
        panic!("another error");
    };
    let (limit, _) = getrlimit(Resource::RLIMIT_AS).unwrap();
    assert_eq!((needed_bytes, limit_bytes), (5, Some(limit).filter(|one| *one != RLIM_INFINITY)));
    assert!(way_out.contains("lower capacity"));
}

#[test]
fn a_released_file_is_free_though_a_fork_has_it() {
    let directory = tempfile::tempdir().unwrap();
    let first = index(directory.path());
    // As a forked process has it, until it closes it.
    let inherited = first.file.try_clone().unwrap();
    first.release().unwrap();
    assert!(IndexFile::find(&place(directory.path(), &Arc::default())).unwrap().is_some());
    drop(inherited);
}
