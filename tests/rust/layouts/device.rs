//! A bare block device: restarts, and what is on it when the power fails.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::loop_device::LoopDevice;
use crate::common::records::{RECORD_BYTES, RECORDS_AT, Record};
use crate::common::{Client, MIB, config, key};
use kvring::testing::{FileOperations, SystemFiles};
use kvring::{Config, Connector, Durability, list_chunks};

const SIZE_MIB: u64 = 96;
const BATCH: u64 = 250;
const LENGTH: usize = 100;
/// More than there are records in two steps by which the index grows.
const COUNT: u64 = 9000;

fn open(path: &Path, durability: Durability, io_threads: usize) -> Client {
    let mut config = config(path, Config::WHOLE_DEVICE);
    (config.durability, config.io_threads) = (durability, Some(io_threads));
    Client::with(config)
}

/// What a device has while the store is open: the page cache, with the newest part of the index in it, is lost.
#[test]
fn what_was_answered_in_persistent_withstands_power_loss() {
    for block_bytes in [512, 4096] {
        let Some(device) = LoopDevice::new(SIZE_MIB, block_bytes) else { return };
        let client = open(device.path(), Durability::Persistent, 2);
        let mut stored = 0;
        for cut in [BATCH, COUNT / 2, COUNT] {
            for first in (stored..cut).step_by(BATCH as usize) {
                client.fill(first..first + BATCH, LENGTH);
            }
            stored = cut;
            let Some(copy) = device.copy(block_bytes) else { return };
            let after = open(copy.path(), Durability::Persistent, 1);
            assert_eq!(after.connector.recovery().reset, None);
            assert_eq!(after.connector.recovery().kept, stored);
            after.assert_held(0..stored, LENGTH);
            after.assert_consistent();
        }
    }
}

/// The device of a store in `best_effort` at any moment holds a store, which has nothing wrong.
#[test]
fn power_loss_in_best_effort_costs_the_youngest_only_and_never_the_open() {
    let Some(device) = LoopDevice::new(SIZE_MIB, 4096) else { return };
    let client = open(device.path(), Durability::BestEffort, 1);
    client.fill(0..BATCH, LENGTH);
    client.connector.close();
    drop(client);
    let client = open(device.path(), Durability::BestEffort, 1);
    for first in (BATCH..COUNT).step_by(BATCH as usize) {
        client.fill(first..first + BATCH, LENGTH);
        if first % (COUNT / 4) == 0 {
            let Some(copy) = device.copy(4096) else { return };
            let after = open(copy.path(), Durability::BestEffort, 1);
            assert_eq!(after.connector.recovery().reset, None);
            after.assert_held(0..BATCH, LENGTH);
            after.load(BATCH..first + BATCH, LENGTH);
        }
    }
}

/// close() gives the claim up as soon as the kernel lets go; an open that follows waits for that.
#[test]
fn a_closed_store_opens_again_at_once() {
    let Some(device) = LoopDevice::new(SIZE_MIB, 512) else { return };
    for turn in 0..20 {
        let client = open(device.path(), Durability::BestEffort, 3);
        assert!(client.connector.recovery().clean_shutdown);
        client.fill(turn * 10..turn * 10 + 10, LENGTH);
        assert!(client.connector.close().clean);
        // The connector is there still, as it may be for long in Python.
        let again = open(device.path(), Durability::BestEffort, 1);
        again.assert_held(0..turn * 10 + 10, LENGTH);
        again.connector.close();
    }
}

/// Neither a device that was formatted just now nor one that was closed has anything to tell, and others may use its node as before.
#[test]
fn a_new_device_has_nothing_to_tell() {
    let Some(device) = LoopDevice::new(SIZE_MIB, 512) else { return };
    let mode = || std::fs::metadata(device.path()).unwrap().permissions().mode() & 0o777;
    std::fs::set_permissions(device.path(), Permissions::from_mode(0o640)).unwrap();
    for kept in [0, 3] {
        let client = open(device.path(), Durability::BestEffort, 1);
        let recovery = client.connector.recovery();
        assert_eq!((&recovery.reset, recovery.kept), (&None, kept));
        client.fill(0..3, LENGTH);
        let second = Connector::open(config(device.path(), Config::WHOLE_DEVICE)).err().unwrap();
        let pid = format!("process {}", std::process::id());
        assert!(second.to_string().contains(&pid), "{second}");
        client.connector.close();
        assert_eq!(mode(), 0o640);
    }
}

/// The index of a device in a directory: one that is lost, and comes back later, is not taken for that of the chunks stored since.
#[test]
fn an_index_that_was_away_stays_away() {
    let Some(device) = LoopDevice::new(SIZE_MIB, 512) else { return };
    let directory = tempfile::tempdir().unwrap();
    let open = || {
        let mut config = config(device.path(), Config::WHOLE_DEVICE);
        config.index_path = Some(directory.path().to_owned());
        let client = Client::with(config);
        let recovery = client.connector.recovery().clone();
        (client, recovery.reset, recovery.kept)
    };
    let names = || -> Vec<_> {
        let entries = std::fs::read_dir(directory.path()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let formatted_id = || {
        let mut superblock = [0; 4096];
        File::open(device.path()).unwrap().read_exact_at(&mut superblock, 0).unwrap();
        superblock
    };
    let (client, reset, kept) = open();
    assert_eq!((reset, kept), (None, 0));
    client.fill(0..3, LENGTH);
    client.connector.close();
    let [index] = &names()[..] else { panic!("{:?}", names()) };
    let before = formatted_id();
    let away = tempfile::tempdir().unwrap();
    let copy = away.path().join("copy");
    std::fs::copy(index, &copy).unwrap();
    std::fs::remove_file(index).unwrap();

    let (client, reset, kept) = open();
    assert!(reset.unwrap().contains("was missing"));
    assert_eq!(kept, 0);
    client.fill(10..13, LENGTH);
    client.connector.close();
    assert_ne!(formatted_id(), before);
    assert!(!index.exists() && names().len() == 1);
    std::fs::copy(&copy, index).unwrap();
    let (client, reset, kept) = open();
    assert_eq!((reset, kept), (None, 3));
    client.assert_held(10..13, LENGTH);
    assert_eq!(client.exists(&[key(0)]), [false]);
}

/// The next sync fails if it is to.
#[derive(Debug, Default)]
struct FailingSync(AtomicBool);

impl FileOperations for FailingSync {
    fn sync_data(&self, file: &File) -> io::Result<()> {
        match self.0.swap(false, Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => SystemFiles.sync_data(file),
        }
    }
}

/// The index grows with the second attempt. What the first sync may have dropped is not vouched for by those of close().
#[test]
fn a_failed_sync_while_the_index_grows_is_not_forgotten() {
    let Some(device) = LoopDevice::new(SIZE_MIB, 512) else { return };
    let syncs = Arc::<FailingSync>::default();
    let mut config = config(device.path(), Config::WHOLE_DEVICE);
    config.files = Arc::<FailingSync>::clone(&syncs);
    config.tuning.flush_period = Duration::from_secs(3600);
    let client = Client::with(config);
    syncs.0.store(true, Ordering::SeqCst);
    (0..COUNT).step_by(BATCH as usize).for_each(|first| client.fill(first..first + BATCH, LENGTH));
    assert!(!syncs.0.load(Ordering::SeqCst), "the index has grown");
    assert!(!client.connector.close().clean);
    open(device.path(), Durability::BestEffort, 1).assert_held(0..COUNT, LENGTH);
}

/// The index of a device begins behind its first MiB.
const INDEX_AT: u64 = MIB;

/// A device with chunks 0 to 2, closed.
fn three_chunks() -> Option<LoopDevice> {
    let device = LoopDevice::new(SIZE_MIB, 512)?;
    let client = open(device.path(), Durability::BestEffort, 1);
    client.fill(0..3, LENGTH);
    client.connector.close();
    Some(device)
}

/// It says how long the index is, as no kvring has written it, and has the checksum that it should have.
#[test]
fn a_length_that_makes_no_sense_does_not_keep_the_index_from_growing() {
    for bytes in [4096 + 3 * 256, 4096 + 256, MIB] {
        let Some(device) = three_chunks() else { return };
        let mut length = [0; 16];
        length[..8].copy_from_slice(&bytes.to_le_bytes());
        let checksum = crc32c::crc32c(&length[..12]);
        length[12..].copy_from_slice(&checksum.to_le_bytes());
        let file = File::options().write(true).open(device.path()).unwrap();
        file.write_all_at(&length, INDEX_AT + 1024).unwrap();
        drop(file);
        let client = open(device.path(), Durability::BestEffort, 1);
        client.fill(0..BATCH, LENGTH);
        client.connector.close();
        open(device.path(), Durability::BestEffort, 1).assert_held(0..BATCH, LENGTH);
    }
}

#[test]
fn a_chunk_in_a_part_that_no_device_has_is_out_of_range() {
    for part in [1, 1 << 20, u32::MAX] {
        let Some(device) = three_chunks() else { return };
        let file = File::options().read(true).write(true).open(device.path()).unwrap();
        let mut record = Record([0; RECORD_BYTES]);
        let at = INDEX_AT + RECORDS_AT + RECORD_BYTES as u64;
        file.read_exact_at(&mut record.0, at).unwrap();
        file.write_all_at(&record.with(56, &part.to_le_bytes()).sealed(), at).unwrap();
        drop(file);
        let mut chunks = list_chunks(device.path(), None).unwrap();
        assert_eq!(chunks.by_ref().map(Result::unwrap).count(), 2);
        assert_eq!(chunks.damage().out_of_range, 1);
        let client = open(device.path(), Durability::BestEffort, 1);
        assert_eq!(client.connector.recovery().out_of_range, 1);
    }
}
