//! Links, FIFOs, sockets, devices and directories in the place of a store's files: refused with a way out, never written
//! through, and never waited for.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::common::{Client, MIB, config, eventually, key, keys};
use kvring::{Config, Connector, Layout};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;

const CAPACITY: u64 = 64 * MIB;
const LETTER: &[u8] = b"a letter to a friend";

/// What is put in the place of a file: how it is made at a path, beside a file of somebody else's, and what a refusal calls it.
type Other = (&'static str, fn(&Path, &Path));

const OTHERS: [Other; 7] = [
    ("it is a symbolic link", |place, letter| symlink(letter, place).unwrap()),
    ("it is a symbolic link", |place, letter| {
        symlink(letter.with_file_name("nowhere"), place).unwrap();
    }),
    ("it has 2 names (hard links)", |place, letter| fs::hard_link(letter, place).unwrap()),
    ("it is a FIFO", |place, _| mkfifo(place, Mode::S_IRWXU).unwrap()),
    ("it is a directory", |place, _| fs::create_dir(place).unwrap()),
    ("it is a socket", |place, _| drop(UnixListener::bind(place).unwrap())),
    ("it is a device", |place, _| {
        // /dev/null; a place that only root can make.
        mknod(place, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 3)).unwrap();
    }),
];

fn others() -> impl Iterator<Item = Other> {
    let is_root = nix::unistd::geteuid().is_root();
    OTHERS.into_iter().filter(move |(what, _)| is_root || *what != "it is a device")
}

struct Place {
    parent: tempfile::TempDir,
    config: Config,
}

impl Place {
    fn new(layout: Layout) -> Self {
        let parent = tempfile::tempdir().unwrap();
        let config = Config { layout, ..config(&parent.path().join("store"), CAPACITY) };
        let place = Self { parent, config };
        fs::write(place.letter(), LETTER).unwrap();
        place
    }

    fn letter(&self) -> PathBuf {
        self.parent.path().join("letter")
    }

    fn store(&self) -> PathBuf {
        self.parent.path().join("store")
    }

    fn open(&self) -> Client {
        Client::with(self.config.clone())
    }

    fn refusal(&self) -> String {
        Connector::open(self.config.clone()).err().expect("a refusal").to_string()
    }

    fn assert_letter(&self, what: &str) {
        assert_eq!(fs::read(self.letter()).unwrap(), LETTER, "{what}");
        assert!(!self.parent.path().join("nowhere").exists(), "{what}");
    }
}

fn assert_refused(place: &Place, name: &str, expected: &str) {
    let refusal = place.refusal();
    assert!(refusal.contains(&place.store().join(name).display().to_string()), "{refusal}");
    assert!(refusal.contains(expected), "{name}: {refusal}");
    let way_out = ["move it away", "put a copy in its place"];
    assert!(way_out.iter().any(|way_out| refusal.contains(way_out)), "{name}: {refusal}");
    place.assert_letter(expected);
}

#[test]
fn what_is_no_file_of_the_store_is_refused_at_open() {
    for (layout, name) in [
        (Layout::Extents, "index.kvring"),
        (Layout::Files, "index.kvring"),
        (Layout::Extents, "data-00000.kvring"),
        (Layout::Extents, "data-00001.kvring"),
        (Layout::Files, "chunks"),
        (Layout::Files, "chunks/07"),
    ] {
        let place = Place::new(layout);
        let client = place.open();
        client.fill(0..5, 5000);
        client.connector.close();
        let (own, kept) = (place.store().join(name), place.parent.path().join("kept"));
        let was_there = fs::rename(&own, &kept).is_ok();
        for (what, make) in others() {
            let is_directory = name.starts_with("chunks");
            if is_directory && what == "it is a directory" {
                continue;
            }
            make(&own, &place.letter());
            let found = own.symlink_metadata().unwrap().file_type();
            let expected = if is_directory { "not a directory of the store" } else { what };
            assert_refused(&place, name, expected);
            assert_eq!(own.symlink_metadata().unwrap().file_type(), found, "{name} stays");
            if found.is_dir() { fs::remove_dir(&own) } else { fs::remove_file(&own) }.unwrap();
        }
        if was_there {
            fs::rename(&kept, &own).unwrap();
        }
        place.open().assert_held(0..5, 5000);
    }
}

/// A backup by hard links (`cp -al`) of a store that is closed: what it has is not to change.
#[test]
fn a_backup_by_hard_links_stays_as_it_is() {
    let place = Place::new(Layout::Extents);
    let client = place.open();
    client.fill(0..5, 5000);
    client.connector.close();
    let backup = place.parent.path().join("backup");
    fs::create_dir(&backup).unwrap();
    let names = ["index.kvring", "data-00000.kvring"];
    names.iter().for_each(|name| {
        fs::hard_link(place.store().join(name), backup.join(name)).unwrap();
    });
    let before: Vec<_> = names.iter().map(|name| fs::read(backup.join(name)).unwrap()).collect();
    for name in names {
        assert_refused(&place, name, "it has 2 names (hard links)");
        // The way out.
        let (own, copy) = (place.store().join(name), place.parent.path().join("copy"));
        fs::copy(&own, &copy).unwrap();
        fs::rename(&copy, &own).unwrap();
    }
    let client = place.open();
    client.assert_held(0..5, 5000);
    client.fill([7], 5000);
    client.connector.close();
    for (name, before) in names.iter().zip(before) {
        assert!(fs::read(backup.join(name)).unwrap() == before, "{name} of the backup");
    }
}

/// Names that a store makes while it is open: nothing is made through what is there already.
#[test]
fn what_stands_where_a_new_file_goes_is_left_alone() {
    for (what, make) in others() {
        let place = Place::new(Layout::Extents);
        let client = place.open();
        let taken = place.store().join("data-00001.kvring");
        make(&taken, &place.letter());
        client.fill(0..40, MIB as usize);
        client.assert_held(0..40, MIB as usize);
        place.assert_letter(what);
        client.connector.close();
        assert!(taken.symlink_metadata().is_ok(), "{what}");
    }
}

/// In layout `files` a chunk is read by its name, at any time.
#[test]
fn what_stands_in_the_place_of_a_chunk_is_a_miss() {
    for (what, make) in others() {
        let place = Place::new(Layout::Files);
        let client = place.open();
        client.fill(0..5, 5000);
        let exchange = || {
            for name in crate::common::chunk_files::files(&place.store()) {
                let own = place.store().join("chunks").join(name);
                // What was put there before may be there still.
                if own.symlink_metadata().unwrap().is_file() {
                    fs::remove_file(&own).unwrap();
                    make(&own, &place.letter());
                }
            }
        };
        let assert_missed = |client: &Client| {
            assert_eq!(client.load(0..5, 5000), [false; 5], "{what}");
            assert!(client.connector.stats().paths[0].reason.is_empty(), "{what}");
        };
        exchange();
        assert_missed(&client);
        // They can be stored again.
        eventually("their end", || {
            client.fill(0..5, 5000);
            client.get_one(&key(0), 5000).is_some()
        });
        client.assert_held(0..5, 5000);
        client.connector.close();
        exchange();
        let client = place.open();
        // What is a file is looked at when it is read.
        let is_file = what.contains("hard links");
        assert_eq!(client.exists(&keys(0..5)), [is_file; 5], "{what} at open");
        assert_missed(&client);
        // Nobody removes what is there: other names are taken.
        client.fill(0..5, 5000);
        client.assert_held(0..5, 5000);
        place.assert_letter(what);
    }
}

#[test]
fn a_path_that_is_no_directory_is_refused() {
    for (what, make) in others() {
        if what == "it is a directory" {
            continue;
        }
        let place = Place::new(Layout::Extents);
        make(&place.store(), &place.letter());
        let refusal = place.refusal();
        assert!(refusal.contains(&place.store().display().to_string()), "{refusal}");
        place.assert_letter(what);
        assert!(place.store().symlink_metadata().is_ok(), "{what}");
    }
}
