//! The chunks of a store, listed and read by somebody who does not own it: whole, damaged, unreadable, or gone meanwhile.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::chunks::place;
use crate::common::loop_device::LoopDevice;
use crate::common::{Client, MIB, Memory, config, config_of, key, pattern};
use kvring::{
    Checksum, ChunkCondition, ChunkReader, Config, Connector, Layout, StoreFacts, StoreMember,
    StoredChunks, list_chunks,
};

const CAPACITY: u64 = 64 * MIB;
const RECORDS_AT: u64 = 4096;
const RECORD_BYTES: u64 = 256;
const LAYOUTS: [Layout; 2] = [Layout::Extents, Layout::Files];
const LENGTHS: [usize; 10] =
    [1, 511, 512, 700, 4095, 4096, 4097, 1 << 20, (1 << 20) + 1, (3 << 20) + 700];

fn open(directory: &Path, layout: Layout, set_up: impl FnOnce(&mut Config)) -> Client {
    let mut config = config(directory, CAPACITY);
    config.layout = layout;
    set_up(&mut config);
    Client::with(config)
}

/// A closed store of chunks 0 and on, of these lengths.
fn stored(
    layout: Layout,
    lengths: &[usize],
    set_up: impl FnOnce(&mut Config),
) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let client = open(directory.path(), layout, set_up);
    for (number, length) in (0..).zip(lengths) {
        assert!(client.set_one(&key(number), &Memory::patterned(*length, 0, number)));
    }
    client.connector.close();
    directory
}

fn listed(path: &Path) -> StoredChunks {
    list_chunks(path, None).unwrap()
}

fn told(condition: &ChunkCondition) -> String {
    match condition {
        ChunkCondition::Read { is_checked: true } => "checked".into(),
        ChunkCondition::Read { is_checked: false } => "not checked".into(),
        ChunkCondition::Damaged => "damaged".into(),
        ChunkCondition::Unreadable(error) => format!("errno {:?}", error.raw_os_error()),
        ChunkCondition::Gone => "gone".into(),
    }
}

/// Reads all chunks that are listed. Returns for each its number, what became of it, and its bytes.
fn read_all(chunks: &mut StoredChunks, reader: &mut ChunkReader) -> Vec<(u64, String, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some(chunk) = chunks.next() {
        let (chunk, mut bytes) = (chunk.unwrap(), Vec::new());
        let condition = reader.read(chunks, &chunk, |piece| bytes.extend_from_slice(piece));
        let number = u64::from_str_radix(chunk.key.rsplit('@').next().unwrap(), 16).unwrap();
        all.push((number, told(&condition), bytes));
    }
    all.sort();
    all
}

/// What becomes of one chunk of this length if something happens between its listing and its reading.
fn read_after(layout: Layout, length: usize, happens: impl FnOnce(&Path, u64)) -> String {
    let directory = stored(layout, &[length], |_| ());
    let (file, offset) = place(directory.path(), &key(0));
    let mut chunks = listed(directory.path());
    let chunk = chunks.next().unwrap().unwrap();
    happens(&file, offset);
    told(&ChunkReader::new(directory.path(), None).read(&chunks, &chunk, |_| ()))
}

#[test]
fn chunks_of_every_length_are_read_with_and_without_checksum() {
    for (layout, checksum) in LAYOUTS
        .into_iter()
        .flat_map(|layout| [Checksum::Crc64Nvme, Checksum::Off].map(|checksum| (layout, checksum)))
    {
        let directory = stored(layout, &LENGTHS, |config| config.checksum = checksum);
        let mut chunks = listed(directory.path());
        let expected = if checksum == Checksum::Off { "not checked" } else { "checked" };
        let read = read_all(&mut chunks, &mut ChunkReader::new(directory.path(), None));
        assert_eq!(read.len(), LENGTHS.len());
        for ((number, told, bytes), length) in read.into_iter().zip(LENGTHS) {
            assert_eq!(told, expected, "{length} in {layout:?}");
            assert!(bytes == pattern(length, number), "{length} in {layout:?}");
        }
        assert_eq!(chunks.damage().sentences(), [""; 0]);
        assert_eq!(chunks.facts().unwrap().layout, Some(layout));
    }
}

#[test]
fn what_is_not_what_was_stored_is_damaged() {
    for layout in LAYOUTS {
        for length in [3000, (1 << 20) + 3000] {
            let flipped = read_after(layout, length, |file, offset| {
                let file = File::options().read(true).write(true).open(file).unwrap();
                let (mut byte, last) = ([0], offset + length as u64 - 1);
                file.read_exact_at(&mut byte, last).unwrap();
                file.write_all_at(&[!byte[0]], last).unwrap();
            });
            assert_eq!(flipped, "damaged", "{length} in {layout:?}");
            for left in [0, 512, 700, 2999] {
                let cut = read_after(layout, length, |file, offset| {
                    File::options().write(true).open(file).unwrap().set_len(offset + left).unwrap();
                });
                assert_eq!(cut, "damaged", "{left} of {length} are left in {layout:?}");
            }
        }
    }
}

/// Nobody is waited for, and no link is followed.
#[test]
fn what_has_taken_the_place_of_a_chunk_file_is_not_read() {
    let became = |happens: fn(&Path)| {
        read_after(Layout::Files, 3000, |file, _| {
            fs::rename(file, file.with_extension("away")).unwrap();
            happens(file);
        })
    };
    assert_eq!(became(|_| ()), "damaged");
    assert_eq!(became(|file| fs::create_dir(file).unwrap()), "errno Some(21)");
    let linked = became(|file| symlink(file.with_extension("away"), file).unwrap());
    assert_eq!(linked, "errno Some(40)");
    let made = |file: &Path| nix::unistd::mkfifo(file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(became(made), "errno Some(29)");
}

#[test]
fn what_is_deleted_or_replaced_meanwhile_is_gone() {
    for layout in LAYOUTS {
        let directory = stored(layout, &[5000, 5000, 5000], |_| ());
        let mut chunks = listed(directory.path());
        let list: Vec<_> = chunks.by_ref().map(Result::unwrap).collect();
        let client = open(directory.path(), layout, |_| ());
        assert_eq!(client.delete(&[key(0)]), [true]);
        assert!(client.set_one(&key(1), &Memory::patterned(5000, 0, 77)));
        assert!(client.get_one(&key(2), 5000).is_some());
        client.connector.close();
        let mut reader = ChunkReader::new(directory.path(), None);
        for chunk in list {
            let expected = if chunk.key == key(2) { "checked" } else { "gone" };
            assert_eq!(told(&reader.read(&chunks, &chunk, |_| ())), expected, "{}", chunk.key);
        }
    }
}

/// Lower bounds: a slow machine takes longer.
#[test]
fn no_more_is_read_in_a_second_than_was_asked_for() {
    for (lengths, most_bytes_per_s, least_ms) in
        [(vec![3 << 20], 16 * MIB, 124), (vec![4096; 100], 4 * MIB, 90)]
    {
        let directory = stored(Layout::Extents, &lengths, |_| ());
        let (mut chunks, begun) = (listed(directory.path()), Instant::now());
        let mut reader = ChunkReader::new(directory.path(), Some(most_bytes_per_s));
        let read = read_all(&mut chunks, &mut reader);
        let took = begun.elapsed();
        assert!(read.iter().all(|(_, told, _)| told == "checked") && read.len() == lengths.len());
        assert!(took >= Duration::from_millis(least_ms), "{took:?}");
    }
}

#[test]
fn records_that_are_torn_and_an_index_that_was_cut_are_told() {
    let directory = stored(Layout::Extents, &[5000; 4], |_| ());
    let index = directory.path().join("index.kvring");
    let file = File::options().write(true).open(&index).unwrap();
    for torn in 0..2 {
        file.write_all_at(&[0xff], RECORDS_AT + torn * RECORD_BYTES + 40).unwrap();
    }
    let damage_of = |path: &Path| {
        let mut chunks = listed(path);
        let count = chunks.by_ref().map(Result::unwrap).count();
        (count, chunks.damage().sentences())
    };
    let torn = "2 records of the index are torn: their chunks are missed".to_owned();
    assert_eq!(damage_of(directory.path()), (2, vec![torn.clone()]));
    file.set_len(file.metadata().unwrap().len() - RECORD_BYTES).unwrap();
    let cut = "the index was cut short: what was behind its end is missed".to_owned();
    assert_eq!(damage_of(directory.path()), (2, vec![torn, cut]));
}

#[test]
fn chunks_behind_the_end_of_their_data_file_are_out_of_range() {
    let directory = stored(Layout::Extents, &[5000; 4], |_| ());
    let mut places: Vec<(PathBuf, u64)> =
        (0..4).map(|number| place(directory.path(), &key(number))).collect();
    places.sort();
    let left = |happens: &dyn Fn(&Path)| {
        happens(&places[0].0);
        let mut chunks = listed(directory.path());
        let offsets: Vec<u64> = chunks.by_ref().map(|chunk| chunk.unwrap().offset_bytes).collect();
        (offsets.len(), chunks.damage().out_of_range)
    };
    let cut = |length: u64| {
        move |file: &Path| File::options().write(true).open(file).unwrap().set_len(length).unwrap()
    };
    let end = places[2].1 + 5000;
    assert_eq!(left(&cut(end)), (3, 1));
    assert_eq!(left(&cut(end - 1)), (2, 2));
    assert_eq!(left(&|file| fs::remove_file(file).unwrap()), (0, 4));
}

#[test]
fn a_store_without_its_index_is_told_from_no_store() {
    let error_of = |path: &Path| list_chunks(path, None).map(drop).unwrap_err().to_string();
    let empty = tempfile::tempdir().unwrap();
    let error = error_of(empty.path());
    assert!(error.contains("No such file") && !error.contains("nothing tells"), "{error}");
    for layout in LAYOUTS {
        let directory = stored(layout, &[5000], |_| ());
        fs::remove_file(directory.path().join("index.kvring")).unwrap();
        let error = error_of(directory.path());
        assert!(error.contains("nothing tells what they hold"), "{error}");
        // Any other error is told as it is.
        fs::create_dir(directory.path().join("index.kvring")).unwrap();
        let error = error_of(directory.path());
        assert!(!error.contains("nothing tells what they hold"), "{error}");
    }
}

#[test]
fn facts_tell_whether_it_was_closed_and_with_whom_it_shares_keys() {
    let directory = stored(Layout::Extents, &[5000], |_| ());
    let facts = |path: &Path| listed(path).facts().unwrap();
    assert!(facts(directory.path()).is_closed_in_order);
    let client = open(directory.path(), Layout::Extents, |_| ());
    assert!(!facts(directory.path()).is_closed_in_order);
    drop(client);
    let parent = tempfile::tempdir().unwrap();
    let paths = ["first", "second"].map(|name| parent.path().join(name));
    Connector::open(config_of(&paths, CAPACITY)).unwrap().close();
    let found = paths.each_ref().map(|path| facts(path));
    for one in &found {
        assert_eq!(one.members, members_of(&found, &paths));
    }
    // It is known by its new name after the next open.
    let renamed = [paths[0].clone(), parent.path().join("third")];
    fs::rename(&paths[1], &renamed[1]).unwrap();
    let paths = renamed;
    Connector::open(config_of(&paths, CAPACITY)).unwrap().close();
    for path in &paths {
        assert_eq!(facts(path).members, members_of(&found, &paths));
    }
}

/// In the order of their ids.
fn members_of(found: &[StoreFacts], paths: &[PathBuf]) -> Vec<StoreMember> {
    let member = |(facts, path): (&StoreFacts, &PathBuf)| StoreMember {
        store_id: facts.store_id.clone(),
        path: Some(path.clone()),
    };
    let mut members: Vec<_> = found.iter().zip(paths).map(member).collect();
    members.sort_by(|one, other| one.store_id.cmp(&other.store_id));
    members
}

#[test]
fn the_superblock_of_a_device_and_its_copy_are_looked_at() -> io::Result<()> {
    let make = |index_path: Option<&Path>| {
        let device = LoopDevice::new(96, 512)?;
        let mut config = config(device.path(), Config::WHOLE_DEVICE);
        config.index_path = index_path.map(Path::to_owned);
        let client = Client::with(config);
        (0..3).for_each(|number| {
            assert!(client.set_one(&key(number), &Memory::patterned(70_000, 0, number)));
        });
        client.connector.close();
        Some(device)
    };
    let Some(device) = make(None) else { return Ok(()) };
    let mut chunks = listed(device.path());
    let read = read_all(&mut chunks, &mut ChunkReader::new(device.path(), None));
    assert_eq!((chunks.damage().sentences(), chunks.facts().unwrap().layout), (vec![], None));
    for (expected, (number, told, bytes)) in (0..).zip(read) {
        assert_eq!((number, told.as_str()), (expected, "checked"));
        assert!(bytes == pattern(70_000, number));
    }
    let file = File::options().read(true).write(true).open(device.path())?;
    let error_of =
        |device: &LoopDevice| list_chunks(device.path(), None).map(drop).unwrap_err().to_string();
    let spoil = |at: u64, bytes: &[u8]| {
        file.write_all_at(bytes, at).unwrap();
        file.sync_all().unwrap();
    };
    let copy_at = MIB - 4096;
    let mut whole = [0; 4096];
    file.read_exact_at(&mut whole, 0)?;
    spoil(copy_at + 40, &[!whole[40]]);
    let one = listed(device.path()).damage().sentences();
    assert_eq!(one, ["one of the two superblocks is damaged: opening the store writes it again"]);
    spoil(40, &[!whole[40]]);
    let error = error_of(&device);
    assert!(error.contains("its superblock is damaged, and its copy too"), "{error}");
    [0, copy_at].into_iter().for_each(|at| spoil(at, &[0; 4096]));
    assert!(error_of(&device).contains("it holds no store"));

    let directory = tempfile::tempdir()?;
    let Some(device) = make(Some(directory.path())) else { return Ok(()) };
    assert!(error_of(&device).contains("its index is elsewhere: say where, as index_path"));
    assert_eq!(list_chunks(device.path(), Some(directory.path())).unwrap().count(), 3);
    Ok(())
}
