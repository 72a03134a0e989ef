//! How the table grows, and what is in its way.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use super::*;
use crate::store::IndexShare;

const MIB: u64 = GROWTH_BYTES;

impl Opened {
    /// Of the records, in MiB.
    fn length(&self) -> u64 {
        u64::from(self.table.record_slots()) * RECORD_BYTES as u64 / MIB
    }

    /// What is on account, and reserved on the file system, behind the header; in MiB.
    fn used_and_reserved(&self) -> (u64, u64) {
        let bytes = [self.table.space.used_bytes(), *self.table.reserved.lock()];
        assert_eq!(bytes.map(|bytes| bytes % MIB), [HEADER_BYTES; 2]);
        (bytes[0] / MIB, bytes[1] / MIB)
    }
}

#[test]
fn a_step_is_an_eighth_of_the_file_in_whole_parts() {
    let opened = open_in(tempfile::tempdir().unwrap(), 8 << 30);
    for _ in 0..20 {
        let before = opened.length();
        opened.table.grow().unwrap();
        assert_eq!(opened.length(), before + (before / 8).max(1));
        assert_eq!(opened.used_and_reserved(), (opened.length(), opened.length()));
    }
}

#[test]
fn it_grows_into_what_is_reserved_first() {
    let opened = open();
    opened.table.preallocate(2 * MIB).unwrap();
    for (length, reserved) in [(2, 3), (3, 3), (4, 4)] {
        opened.table.grow().unwrap();
        assert_eq!((opened.length(), opened.used_and_reserved()), (length, (reserved, reserved)));
    }
}

#[test]
fn pages_that_were_added_can_be_mapped_at_once() {
    let opened = open();
    (0..3).for_each(|_| opened.table.grow().unwrap());
    let (mib_pages, before) = (MIB as usize / 4096, opened.table.record_slots());
    (0..2).for_each(|_| opened.table.grow().unwrap());
    opened.table.populate_from(before);
    let mapped = opened.table.mapping.mapped_pages(0..8 * mib_pages);
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    if (numbers.next(), numbers.next()) < (Some(5), Some(14)) {
        return println!("skipped: Linux {release} maps no pages ahead");
    }
    // The kernel may map some beside them.
    let added = 1 + 4 * mib_pages..1 + 6 * mib_pages;
    assert!(added.clone().all(|page| mapped.contains(&page)));
    assert!(mapped.len() < added.len() + mib_pages / 2, "{} pages", mapped.len());
}

#[test]
fn it_ends_where_its_mapping_does() {
    let opened = open();
    let most = opened.table.mapping.length_bytes() as u64;
    while opened.table.grow().is_ok() {}
    assert_eq!(opened.length(), (most - HEADER_BYTES) / MIB);
    assert!(matches!(opened.table.grow(), Err(StoreError::IndexFull { .. })));
    assert!(matches!(opened.table.why_full(), StoreError::IndexFull { .. }));
}

/// A step is two parts there: it takes the one that is reserved, and nothing where there is none.
#[test]
fn a_part_of_a_step_is_taken_where_there_is_no_more() {
    let opened = open_in(tempfile::tempdir().unwrap(), 8 << 30);
    while opened.length() < 16 {
        opened.table.grow().unwrap();
    }
    opened.table.preallocate(MIB).unwrap();
    opened.files.most_preallocated_bytes.store(MIB / 2, Ordering::Relaxed);
    // The space behind the end is given back with what is refused.
    assert!(matches!(opened.table.grow(), Err(StoreError::Grow { .. })));
    assert_eq!((opened.length(), opened.used_and_reserved()), (16, (16, 16)));
    opened.files.most_preallocated_bytes.store(MIB, Ordering::Relaxed);
    opened.table.preallocate(MIB).unwrap();
    assert!(opened.table.preallocate(2 * MIB).is_err());
    assert_eq!(opened.used_and_reserved(), (17, 17), "what was reserved before stays");
    opened.table.grow().unwrap();
    assert_eq!((opened.length(), opened.used_and_reserved()), (18, (18, 18)));
    opened.files.is_refusing.store(true, Ordering::Relaxed);
    assert!(opened.table.grow().is_err());
    assert_eq!((opened.length(), opened.used_and_reserved()), (18, (18, 18)));
}

/// A limit on the length of files (RLIMIT_FSIZE), say: what was reserved is given back with what could not be added.
#[test]
fn nothing_is_on_account_for_a_file_that_cannot_be_lengthened() {
    let opened = open();
    opened.table.preallocate(2 * MIB).unwrap();
    let longest_bytes = &opened.files.longest_bytes;
    longest_bytes.store(HEADER_BYTES + MIB, Ordering::Relaxed);
    assert!(matches!(opened.table.grow(), Err(StoreError::Grow { .. })));
    assert_eq!((opened.length(), opened.used_and_reserved()), (1, (1, 1)));
    longest_bytes.store(0, Ordering::Relaxed);
    opened.table.grow().unwrap();
    assert_eq!((opened.length(), opened.used_and_reserved()), (2, (2, 2)));
    let blocks = opened.table.index_file.file.metadata().unwrap().blocks() * 512;
    assert!(blocks >= HEADER_BYTES + 2 * MIB, "it has holes: {blocks}");
}

/// Below the floor of the file system it grows no more, but into what it has reserved.
#[test]
fn the_floor_is_in_the_way_of_more_only() {
    let opened = open();
    opened.table.preallocate(MIB).unwrap();
    opened.table.release_file().unwrap();
    let Opened { table, directory, .. } = opened;
    drop(table);
    let floor_of = Arc::new(Directory::open(directory.path()).unwrap());
    let space = SpaceAccount::new(CAPACITY_BYTES).with_floor(&floor_of, Some(u64::MAX));
    let opened = open_with(directory, space);
    opened.table.grow().unwrap();
    assert_eq!((opened.length(), opened.used_and_reserved()), (2, (2, 2)));
    let refused = opened.table.grow();
    assert!(matches!(refused, Err(StoreError::Floor { needed_bytes: MIB, free_bytes: 0 })));
}

#[test]
fn it_is_to_grow_when_half_a_step_is_free_and_waits_where_it_was_refused() {
    let opened = open();
    let (table, is_due) = (&opened.table, || opened.table.is_growth_due());
    let half = MIB / RECORD_BYTES as u64 / 2;
    let slots: Vec<Reservation> = (0..half).map(|_| table.reserve_record(1).unwrap()).collect();
    assert!(!is_due());
    let one_more = table.reserve_record(1).unwrap();
    assert!(is_due() && matches!(table.why_full(), StoreError::Growing { .. }));
    let (now, second) = (std::time::Instant::now(), Duration::from_secs(1));
    let refused = |again| *table.refusal.lock() = Some((again, table.space.full(1)));
    refused(now + 3600 * second);
    assert!(!is_due() && matches!(table.why_full(), StoreError::Full { .. }));
    refused(now - second);
    assert!(is_due() && matches!(table.why_full(), StoreError::Growing { .. }));
    slots.into_iter().chain([one_more]).for_each(|slots| table.release(slots));
    assert!(!is_due());
}

#[test]
fn its_share_is_that_of_the_chunks_so_far_within_an_eighth_and_a_sixty_fourth() {
    let opened = open();
    (0..1000).for_each(|number| _ = publish(&opened.table, &number.to_string(), number, 0, 1));
    let missing = |allocated_bytes| opened.table.missing_bytes(1024 * MIB, allocated_bytes);
    assert_eq!(opened.table.used_records(), 1000);
    // A MiB of it is there.
    assert_eq!(missing(0), 15 * MIB);
    assert_eq!(missing(1024 * MIB), 15 * MIB);
    assert_eq!(missing(4 * MIB), (1000 * 256 * 256 / MIB - 1) * MIB);
    assert_eq!(missing(MIB), 127 * MIB);
    assert_eq!(opened.table.missing_bytes(MIB, MIB), 0);
}
