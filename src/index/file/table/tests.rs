//! The table of records on a real file whose calls are watched: writes, links, lost pages, refusals.

mod growth;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use super::super::changes::Change;
use super::*;
use crate::directory::Directory;
use crate::engine::{FileOperations, SystemFiles};
use crate::format::record::{KEY_PART_BYTES, NO_SLOT, Record, use_word};
use crate::index::{IndexPlace, logged};
use crate::key::MAX_KEY_BYTES;

/// Calls of the system that keep what is written and marked, and refuse to write and to preallocate where they are told to.
#[derive(Debug, Default)]
struct Files {
    written: Mutex<Vec<Range<u64>>>,
    marked: Mutex<Vec<Range<u64>>>,
    is_refusing: AtomicBool,
    /// More than that is not preallocated at a time, and no file is made longer, if it is not 0.
    most_preallocated_bytes: AtomicU64,
    longest_bytes: AtomicU64,
}

impl FileOperations for Files {
    fn preallocate(&self, file: &File, bytes: Range<u64>, flags: libc::c_int) -> io::Result<()> {
        let most_bytes = self.most_preallocated_bytes.load(Ordering::Relaxed);
        let is_too_much = most_bytes > 0 && bytes.end - bytes.start > most_bytes;
        match is_too_much || self.is_refusing.load(Ordering::Relaxed) {
            true => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            false => SystemFiles.preallocate(file, bytes, flags),
        }
    }

    fn truncate(&self, file: &File, length_bytes: u64) -> io::Result<()> {
        let longest_bytes = self.longest_bytes.load(Ordering::Relaxed);
        match longest_bytes > 0 && length_bytes > longest_bytes {
            true => Err(io::Error::from_raw_os_error(libc::EFBIG)),
            false => SystemFiles.truncate(file, length_bytes),
        }
    }

    fn mark_changed(&self, _: &File, offset: u64, mapped: &[AtomicU8]) -> io::Result<()> {
        self.marked.lock().unwrap().push(offset..offset + mapped.len() as u64);
        Ok(())
    }

    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.written.lock().unwrap().push(offset..offset + bytes.len() as u64);
        match self.is_refusing.load(Ordering::Relaxed) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => SystemFiles.write_at(file, bytes, offset),
        }
    }
}

/// A table of 4096 slots, and what it calls.
struct Opened {
    table: Table,
    state: IndexState,
    files: Arc<Files>,
    directory: tempfile::TempDir,
}

const CAPACITY_BYTES: u64 = 64 << 20;

fn open_in(directory: tempfile::TempDir, capacity_bytes: u64) -> Opened {
    open_with(directory, SpaceAccount::new(capacity_bytes))
}

fn open_with(directory: tempfile::TempDir, space: SpaceAccount) -> Opened {
    let files = Arc::new(Files::default());
    let shared: Arc<dyn FileOperations> = Arc::<Files>::clone(&files);
    let opened = Directory::open(directory.path()).unwrap().with_files(&shared);
    let found = LockedIndex::look(IndexPlace::Directory(Arc::new(opened))).unwrap();
    let (table, state) = Table::open(found, Arc::new(space), 0).unwrap();
    Opened { table, state, files, directory }
}

fn open() -> Opened {
    let opened = open_in(tempfile::tempdir().unwrap(), CAPACITY_BYTES);
    opened.table.grow().unwrap();
    opened
}

/// The record of a chunk in this data file, used at this time. Returns its slot.
fn publish(table: &Table, key: &str, generation: u64, file: u32, created_ms: u64) -> u32 {
    let content = ChunkFields {
        digest: Digest::of(key),
        namespace: 0,
        extent: Extent { file, first_block: 0, blocks: 1 },
        length_bytes: 100,
        generation,
        variant: 0,
        checksum: None,
        created_ms,
    };
    table.publish(&table.reserve_record(key.len()).unwrap(), &content, key)
}

fn long_key(seed: char) -> String {
    seed.to_string().repeat(2 * KEY_PART_BYTES + 1)
}

impl Opened {
    /// What is logged of it in `call`.
    fn logged(&self, call: impl FnOnce()) -> Vec<String> {
        logged::keep();
        let lines = || logged::lines(self.directory.path(), "");
        let before = lines().len();
        call();
        lines().split_off(before)
    }

    /// Leads a record elsewhere, as damage does that its checksum does not show.
    fn lead(&self, slot: u32, next_slot: u32) {
        let mut record = self.table.read(slot);
        record.next_slot = next_slot;
        record.checksum = record.computed_checksum();
        self.table.change(Change::Write(slot, Arc::new(record)));
    }
}

#[test]
fn space_that_is_reserved_behind_the_end_is_found_again() {
    let Opened { table, directory, .. } = open();
    let length = HEADER_BYTES + GROWTH_BYTES;
    assert_eq!(u64::from(table.record_slots()) * RECORD_BYTES as u64, GROWTH_BYTES);
    let behind = length..length + 2 * GROWTH_BYTES;
    let flags = libc::FALLOC_FL_KEEP_SIZE;
    SystemFiles.preallocate(&table.index_file.file, behind, flags).unwrap();
    table.release_file().unwrap();
    drop(table);
    let Opened { table, .. } = open_in(directory, CAPACITY_BYTES);
    assert_eq!(*table.reserved.lock(), length + 2 * GROWTH_BYTES);
    assert_eq!(table.space.used_bytes(), length + 2 * GROWTH_BYTES);
}

#[test]
fn an_index_of_more_than_half_the_capacity_is_started_anew() {
    let length = HEADER_BYTES + GROWTH_BYTES;
    for (capacity_bytes, is_kept) in [(2 * length, true), (2 * length - 2, false)] {
        let Opened { table, directory, .. } = open();
        publish(&table, "key", 1, 0, 5);
        table.release_file().unwrap();
        drop(table);
        let Opened { table, state, .. } = open_in(directory, capacity_bytes);
        assert_eq!(table.record_slots() > 0, is_kept);
        assert_eq!(state.reset.is_none(), is_kept, "{:?}", state.reset);
        assert_eq!(table.space.used_bytes(), if is_kept { length } else { HEADER_BYTES });
    }
}

#[test]
fn slots_are_assured_for_the_share_of_the_index() {
    let capacity_bytes = 8 << 30;
    let Opened { table, .. } = open_in(tempfile::tempdir().unwrap(), capacity_bytes);
    assert_eq!(table.assured_slots(), index_share_bytes(capacity_bytes) / RECORD_BYTES as u64);
}

#[test]
fn uses_are_averaged_over_the_chunks_of_each_data_file() {
    let opened = open();
    let table = &opened.table;
    publish(table, "first", 1, 1, 1000);
    publish(table, "second", 2, 1, 2003);
    publish(table, "third", 3, 2, 5000);
    // Neither further parts of a key, nor what is damaged, nor what is gone.
    publish(table, &long_key('a'), 4, 2, 7000);
    let damaged = publish(table, "damaged", 5, 3, 9000);
    let mut record = table.read(damaged);
    record.length_bytes += 1;
    table.change(Change::Write(damaged, Arc::new(record)));
    table.clear(publish(table, "gone", 6, 4, 9000));
    let uses = table.file_uses();
    assert_eq!((uses.len(), uses[&1].mean_ms, uses[&2].mean_ms), (2, 1501, 6000));
}

#[test]
fn clearing_a_record_frees_what_belongs_to_it_and_no_more() {
    let opened = open();
    let table = &opened.table;
    let longest = "k".repeat(MAX_KEY_BYTES);
    table.clear(publish(table, &longest, 1, 0, 0));
    assert_eq!(table.used_records(), 0);
    // One key whose chunk was replaced, and another: their further parts are not this record's.
    let key = long_key('a');
    let replaced = publish(table, &key, 2, 0, 0);
    let part = table.read(publish(table, &key, 3, 0, 0)).next_slot;
    let other = publish(table, &long_key('b'), 2, 0, 0);
    let of_other = table.read(other).next_slot;
    for next_slot in [part, of_other, other, table.record_slots(), NO_SLOT] {
        let head = publish(table, &key, 2, 0, 0);
        let used = table.used_records();
        opened.lead(head, next_slot);
        table.clear(head);
        assert_eq!(table.used_records(), used - 1, "{next_slot}");
    }
    assert!(table.key(&table.read(other)).is_some());
    assert_eq!(table.lost_pages(), 0);
    table.clear(replaced);
}

#[test]
fn a_link_behind_the_last_slot_leads_nowhere() {
    let opened = open();
    let slot = publish(&opened.table, &long_key('a'), 1, 0, 0);
    opened.lead(slot, opened.table.record_slots());
    assert_eq!(opened.table.key(&opened.table.read(slot)), None);
    // Nothing is read there: behind the end of the file the page would count as lost.
    assert_eq!(opened.table.lost_pages(), 0);
}

#[test]
fn a_digest_of_another_key_is_told() {
    let opened = open();
    for key in ["short".to_owned(), long_key('a')] {
        let slot = publish(&opened.table, &key, 1, 0, 0);
        assert!(opened.table.is_of_its_key(slot));
        let mut record = opened.table.read(slot);
        record.digest[1] ^= 1;
        opened.table.change(Change::Write(slot, Arc::new(record)));
        assert!(!opened.table.is_of_its_key(slot));
    }
}

#[test]
fn records_are_read_from_any_slot_on_as_far_as_they_go() {
    let opened = open();
    let table = &opened.table;
    for number in 0..20 {
        publish(table, &number.to_string(), number + 1, 0, 0);
    }
    let length = HEADER_BYTES + GROWTH_BYTES;
    let records_from = |slot, most| table.index_file.records_from(slot, most, length);
    let (records, unreadable) = records_from(17, 2);
    let generations: Vec<u64> = records.iter().map(|record| record.generation).collect();
    assert_eq!((generations, unreadable), (vec![18, 19], 0));
    assert_eq!(records_from(u64::from(table.record_slots()) - 3, 10).0.len(), 3);
    let (records, unreadable) = records_from(u64::from(table.record_slots()), 10);
    assert_eq!((records.len(), unreadable), (0, 0));
    // It says that it is longer than it is: three pages are missing.
    table.index_file.file.set_len(length - 3 * 4096).unwrap();
    let (records, unreadable) = records_from(0, usize::MAX);
    assert_eq!((records.len() as u32, unreadable), (table.record_slots(), 3));
    assert_eq!(records[19].generation, 20);
}

#[test]
fn changes_of_one_page_are_one_write() {
    let opened = open();
    let per_page = 4096 / RECORD_BYTES as u32;
    let uses = |slots: &[u32]| -> Vec<Change> {
        slots.iter().map(|slot| Change::Use(*slot, use_word(9, 9))).collect()
    };
    for (slots, writes) in [
        (vec![0, 1, per_page - 1], 1),
        (vec![0, per_page, 1], 3),
        (vec![per_page - 1, per_page, per_page + 1, 3 * per_page], 3),
        (vec![5], 1),
    ] {
        opened.files.written.lock().unwrap().clear();
        assert!(opened.table.make_in_order(&uses(&slots), &|_| ()));
        assert_eq!(opened.files.written.lock().unwrap().len(), writes, "{slots:?}");
        assert!(slots.iter().all(|slot| opened.table.use_word(*slot) == use_word(9, 9)));
    }
}

#[test]
fn a_record_that_could_not_be_written_is_lost_and_told() {
    let opened = open();
    let table = &opened.table;
    publish(table, "first", 7, 0, 0);
    assert!(!table.changes.has_lost(7) && !table.refuses_writes.load(Ordering::Relaxed));
    opened.files.is_refusing.store(true, Ordering::Relaxed);
    for generation in [8, 9] {
        publish(table, "second", generation, 0, 0);
        assert!(table.changes.has_lost(generation) && table.refuses_writes.load(Ordering::Relaxed));
    }
    opened.files.is_refusing.store(false, Ordering::Relaxed);
    publish(table, "third", 10, 0, 0);
    assert!(!table.changes.has_lost(10) && !table.refuses_writes.load(Ordering::Relaxed));
}

#[test]
fn a_refusing_file_is_told_of_once_until_it_is_repaired() {
    let opened = open();
    let publish = |is_refusing| {
        opened.files.is_refusing.store(is_refusing, Ordering::Relaxed);
        let lines = opened.logged(|| _ = publish(&opened.table, "key", 1, 0, 0));
        lines.iter().filter(|line| line.contains("cannot write to")).count()
    };
    // The second time is counted.
    for (is_refusing, lines) in [(false, 0), (true, 1), (true, 0), (false, 0), (true, 0)] {
        assert_eq!(publish(is_refusing), lines);
    }
    let lines =
        opened.logged(|| opened.table.logs.refusals.tell_count(opened.directory.path(), true));
    assert!(lines.len() == 1 && lines[0].contains(": 1 more times the index"), "{lines:?}");
}

#[test]
fn all_of_the_file_is_marked_to_be_written_again() {
    let opened = open();
    for (call, name) in
        [(Table::write_anew as fn(&Table), "now"), (Table::write_anew_later, "later")]
    {
        call(&opened.table);
        let mut marked = std::mem::take(&mut *opened.files.marked.lock().unwrap());
        marked.sort_unstable_by_key(|part| part.start);
        assert!(marked.windows(2).all(|pair| pair[0].end == pair[1].start), "{name}");
        let ends = (marked.first().map(|part| part.start), marked.last().map(|part| part.end));
        assert_eq!(ends, (Some(0), Some(HEADER_BYTES + GROWTH_BYTES)), "{name}");
    }
}

#[test]
fn a_record_of_a_lost_page_is_lost() {
    let opened = open();
    let table = &opened.table;
    assert_eq!(opened.logged(|| assert_eq!(table.lost_pages(), 0)), [""; 0]);
    // The page is gone from the file: reading it raises SIGBUS, as from a bad sector.
    table.index_file.file.set_len(HEADER_BYTES + 4096).unwrap();
    let slot = 4096 / RECORD_BYTES as u32;
    assert!(table.is_lost(slot) && !table.is_lost(0));
    let lines = opened.logged(|| assert_eq!(table.lost_pages(), 1));
    assert!(lines.len() == 1 && lines[0].starts_with("1 pages of"), "{lines:?}");
    assert_eq!(opened.logged(|| assert_eq!(table.lost_pages(), 1)), [""; 0]);
    let mut record: Record = table.read(0);
    record.generation = 7;
    let record = Arc::new(record);
    table.change(Change::Write(slot, Arc::clone(&record)));
    assert!(table.changes.has_lost(7));
    table.change(Change::Write(0, record));
    assert!(!table.changes.has_lost(7));
}
