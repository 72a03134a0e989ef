//! Layout `files`: what is in the files of chunks, and what becomes of the store when somebody else changes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::chunk_files::{CAPACITY, assert_tidy, config, files, open, open_chunk_files};
use crate::common::chunks::place;
use crate::common::{Client, MIB, Memory, eventually, key, on_disk_bytes, pattern};
use kvring::{Checksum, Durability, EngineChoice, Layout, list_chunks};

const LENGTHS: [usize; 11] =
    [1, 17, 4095, 4096, 4097, 8192, 70_001, 522_240, 1 << 20, (1 << 20) + 511, 3_000_001];

#[test]
fn each_file_has_the_bytes_of_its_chunk_and_nothing_else() {
    let engines = [EngineChoice::IoUring, EngineChoice::Posix];
    for (engine, durability) in
        engines.into_iter().zip([Durability::BestEffort, Durability::Persistent])
    {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path(), CAPACITY);
        (config.engine, config.durability) = (engine, durability);
        let client = Client::with(config);
        let chunks = LENGTHS.iter().flat_map(|length| [0, 1, 512].map(|shift| (*length, shift)));
        let chunks: Vec<(usize, usize)> = chunks.collect();
        let keys: Vec<String> = (0..chunks.len() as u64).map(key).collect();
        let memory: Vec<Memory> = (0..)
            .zip(&chunks)
            .map(|(seed, (length, shift))| Memory::patterned(*length, *shift, seed))
            .collect();
        assert!(client.set(&keys, &memory).ok);
        for (seed, (key, (length, _))) in (0..).zip(keys.iter().zip(&chunks)) {
            let (file, offset) = place(directory.path(), key);
            assert!(offset == 0 && fs::read(&file).unwrap() == pattern(*length, seed), "{length}");
            let names: Vec<&str> = file.iter().map(|part| part.to_str().unwrap()).collect();
            let [.., chunks, first, name] = names[..] else { panic!("{file:?}") };
            let (digest, number) = name.split_once('-').unwrap();
            assert!(chunks == "chunks" && digest.starts_with(first) && digest.len() == 32);
            assert!(number.parse::<u32>().is_ok(), "{name}");
            let unaligned = Memory::new(*length, 3);
            assert_eq!(client.get(std::slice::from_ref(key), &[&unaligned]).results, [true]);
            assert!(unaligned.bytes() == pattern(*length, seed), "{length}");
        }
        assert_tidy(&client, directory.path());
        client.connector.close();
        assert_eq!(open(directory.path()).connector.recovery().kept, keys.len() as u64);
    }
}

#[test]
fn files_without_a_record_go_at_open_and_strangers_stay() {
    let directory = tempfile::tempdir().unwrap();
    let client = open(directory.path());
    assert!(client.set_one("k", &Memory::patterned(5000, 0, 1)));
    client.connector.close();
    let kept = files(directory.path());
    let chunks = directory.path().join("chunks");
    for orphan in ["ab/ab000000000000000000000000000000-7", "00/00000000000000000000000000000001-8"]
    {
        fs::write(chunks.join(orphan), [1; 5000]).unwrap();
    }
    let strangers = ["ab/notes.txt", "ab/cd000000000000000000000000000000-7", "ab/ab-7"];
    strangers.iter().for_each(|stranger| fs::write(chunks.join(stranger), "note").unwrap());
    let client = open(directory.path());
    assert_eq!(client.connector.recovery().orphans, 2);
    let expected = kept.into_iter().chain(strangers.map(PathBuf::from)).collect::<BTreeSet<_>>();
    assert_eq!(files(directory.path()), expected);
    assert_eq!(client.get_one("k", 5000).unwrap(), pattern(5000, 1));
    assert!(client.set_one("new", &Memory::patterned(5000, 0, 2)));
}

#[test]
fn a_missing_file_is_a_miss_while_the_store_is_open_and_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let client = open(directory.path());
    for number in 0..3 {
        assert!(client.set_one(&key(number), &Memory::patterned(5000, 0, number)));
    }
    fs::remove_file(place(directory.path(), &key(0)).0).unwrap();
    assert_eq!(client.get_one(&key(0), 5000), None);
    assert_eq!(client.exists(&[key(0)]), [false], "the entry is dropped");
    assert_eq!(client.counter("read_errors"), 1);
    assert_tidy(&client, directory.path());
    let file = place(directory.path(), &key(1)).0;
    client.connector.close();
    fs::remove_file(file).unwrap();
    let client = open(directory.path());
    let recovery = client.connector.recovery();
    assert_eq!((recovery.kept, recovery.out_of_range, recovery.orphans), (1, 1, 0));
    assert_eq!(client.get_one(&key(2), 5000).unwrap(), pattern(5000, 2));
    assert!(client.set_one(&key(1), &Memory::patterned(5000, 0, 1)));
}

#[test]
fn changed_files_are_misses() {
    type Change = fn(&Path);
    let lengthen: Change = |path| {
        let file = File::options().append(true).open(path).unwrap();
        std::io::Write::write_all(&mut { file }, b"more").unwrap();
    };
    let shorten: Change =
        |path| File::options().write(true).open(path).unwrap().set_len(9).unwrap();
    let edit: Change = |path| {
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&[0xff, 0x00, 0xff], 4000).unwrap();
    };
    let link: Change = |path| {
        let elsewhere = path.with_extension("moved");
        fs::rename(path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(elsewhere, path).unwrap();
    };
    for (checksum, changes) in [
        (Checksum::Crc64Nvme, vec![lengthen, shorten, edit, link]),
        (Checksum::Off, vec![lengthen, shorten]),
    ] {
        for change in changes {
            for length in [8192, 70_001] {
                let directory = tempfile::tempdir().unwrap();
                let mut config = config(directory.path(), CAPACITY);
                config.checksum = checksum;
                let client = Client::with(config);
                assert!(client.set_one("k", &Memory::patterned(length, 0, 1)));
                let file = place(directory.path(), "k").0;
                change(&file);
                assert_eq!(client.get_one("k", length), None);
                assert_eq!(client.exists(&["k".to_owned()]), [false]);
                eventually("its file goes", || fs::symlink_metadata(&file).is_err());
            }
        }
    }
}

#[test]
fn deletes_give_space_back() {
    let directory = tempfile::tempdir().unwrap();
    let client = open(directory.path());
    let memory = Memory::patterned(100_000, 0, 1);
    let keys: Vec<String> = (0..200).map(key).collect();
    // The index grows with the first one.
    assert!(client.set_one("first", &memory));
    client.delete(&["first".into()]);
    client.assert_consistent();
    let before = (on_disk_bytes(directory.path()), client.connector.stats().used_bytes);
    assert!(client.set(&keys, &vec![&memory; 200]).ok);
    assert!(on_disk_bytes(directory.path()) > before.0 + 200 * 100_000);
    client.delete(&keys);
    assert_eq!(client.exists(&keys), [false; 200]);
    eventually("the files go", || files(directory.path()).is_empty());
    client.assert_consistent();
    assert_eq!(on_disk_bytes(directory.path()), before.0);
    assert_eq!(client.connector.stats().used_bytes, before.1);
}

/// What is being removed counts as room that is on its way: no more goes than has to, and nothing is exceeded meanwhile.
#[test]
fn full_stores_evict_no_more_than_they_must() {
    for length in [MIB as usize, 4096, 300_001] {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path(), 32 * MIB);
        (config.tuning.low_watermark, config.tuning.high_watermark) = (1.0, 1.0);
        let client = Client::with(config);
        let over = AtomicUsize::new(0);
        let is_over = AtomicBool::new(false);
        let count = 3 * 32 * MIB / (length as u64).next_multiple_of(4096);
        let keys: Vec<String> = (0..count).map(key).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    if on_disk_bytes(directory.path()) > 32 * MIB {
                        over.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
            let memory = Memory::patterned(length, 0, 1);
            for keys in keys.chunks(64) {
                let done = client.set(keys, &vec![&memory; keys.len()]);
                assert!(done.ok, "{}", done.error);
            }
            is_over.store(true, Ordering::SeqCst);
        });
        assert_eq!(over.load(Ordering::SeqCst), 0, "times that it was over its capacity");
        let stats = client.connector.stats();
        assert_eq!(client.counter("evicted"), count - stats.keys);
        // The rest is for index, directories, inodes and maps.
        let share = stats.stored_bytes as f64 / (32.0 * MIB as f64);
        assert!(share > if length == 4096 { 0.65 } else { 0.85 }, "{share} of {length}");
        client.assert_consistent();
    }
}

/// Read by others while the owner is at work, in both layouts.
#[test]
fn listings_tell_what_is_stored_and_where() {
    for layout in [Layout::Files, Layout::Extents] {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path(), CAPACITY);
        config.layout = layout;
        let client = Client::with(config);
        let long = "long/".repeat(300);
        let keys = [key(1), format!("{}@salt", key(2)), long.clone(), "other".into()];
        for (seed, key) in (0..).zip(&keys) {
            assert!(client.set_one(key, &Memory::patterned(5000 + seed as usize, 0, seed)));
        }
        assert!(client.get_one(&keys[0], 5000).is_some());
        client.delete(&keys[3..]);
        let list = || -> BTreeMap<String, _> {
            let chunks = list_chunks(directory.path(), None).unwrap().map(Result::unwrap);
            chunks.map(|chunk| (chunk.key.clone(), chunk)).collect()
        };
        // Uses are written behind, some seconds later.
        eventually("the use in the index", || list()[&keys[0]].uses == 1);
        let listed = list();
        assert_eq!(listed.keys().collect::<BTreeSet<_>>(), keys[..3].iter().collect());
        for (seed, key) in (0..3).zip(&keys) {
            let chunk = &listed[key];
            assert_eq!(chunk.length_bytes, 5000 + seed);
            let file = File::open(directory.path().join(&chunk.file)).unwrap();
            let mut bytes = vec![0; chunk.length_bytes as usize];
            file.read_exact_at(&mut bytes, chunk.offset_bytes).unwrap();
            assert!(bytes == pattern(bytes.len(), seed));
            assert!(chunk.created_ms > 0 && chunk.last_used_ms >= chunk.created_ms);
        }
        let of = |key: &str| (listed[key].namespace.as_str(), listed[key].uses);
        assert_eq!((of(&keys[0]), of(&keys[1])), (("test/model", 1), ("test/model@salt", 0)));
        assert_eq!(of(&long), ("", 0));
        // A record that is just being written, or torn, is no chunk.
        client.connector.close();
        let index = directory.path().join("index.kvring");
        let file = File::options().write(true).open(index).unwrap();
        file.write_all_at(&[0xff], 4096 + 40).unwrap();
        assert_eq!(list_chunks(directory.path(), None).unwrap().count(), 2);
    }
    let error = list_chunks(Path::new("/nowhere"), None).map(drop).unwrap_err().to_string();
    assert!(error.contains("/nowhere") && error.contains("No such file"), "{error}");
}

/// A SET that waits for durability keeps its file open: not without bound, however many are queued.
#[test]
fn few_files_are_open_at_a_time() {
    const CHUNKS: u64 = 3000;
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path(), CAPACITY);
    config.durability = Durability::Persistent;
    let client = Client::with(config);
    let memory: Vec<Memory> = (0..CHUNKS).map(|seed| Memory::patterned(4096, 0, seed)).collect();
    let keys: Vec<String> = (0..CHUNKS).map(key).collect();
    let future_id = client.submit_set(&keys, &memory);
    let mut most = 0;
    eventually("all are stored", || {
        most = most.max(open_chunk_files(directory.path()));
        client.connector.stats().in_flight == 0
    });
    assert!(client.wait(future_id).ok);
    // Those that wait for their group, and as many as are in the device at a time.
    assert!((1..=256 + 128).contains(&most), "{most} files were open");
    client.assert_consistent();
}
