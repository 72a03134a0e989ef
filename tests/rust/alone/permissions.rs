//! Who may read a store, and whose files it leaves alone.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

#[path = "../../common/mod.rs"]
mod common;

use std::fs::{self, File, Permissions};
use std::io::{Read, Seek};
use std::os::unix::fs::{PermissionsExt, fchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{Client, MIB, Memory, config, key, layout, pattern};
use kvring::{Config, Connector, Layout};
use nix::sys::stat::{Mode, umask};

const CAPACITY: u64 = 64 * MIB;

/// Everything in a directory, itself included.
fn all(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_owned()];
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| found.extend(all(&entry.unwrap().path())));
    }
    found
}

fn assert_private(store: &Path, what: &str) {
    for path in all(store) {
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, expected, "{what}: {} is {mode:o}", path.display());
    }
}

/// The umask is that of the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn nobody_else_may_read_a_store() {
    let _alone = alone();
    for mask in [0, 0o022, 0o777] {
        let parent = tempfile::tempdir().unwrap();
        let store = parent.path().join("store");
        let before = umask(Mode::from_bits_truncate(mask));
        let client = Client::open(&store, CAPACITY);
        client.fill(0..20, 5000);
        umask(before);
        assert_private(&store, &format!("umask {mask:o}"));
        client.connector.close();
        let client = Client::open(&store, CAPACITY);
        client.assert_held(0..20, 5000);
        client.connector.close();
        // As an older version left it.
        for path in all(&store) {
            let mode = if path.is_dir() { 0o755 } else { 0o644 };
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        let client = Client::open(&store, CAPACITY);
        assert_private(&store, "tightened");
        client.assert_held(0..20, 5000);
    }
    // A directory that holds more than the store is not taken from others.
    let shared = tempfile::tempdir().unwrap();
    fs::write(shared.path().join("notes.txt"), "of somebody").unwrap();
    fs::set_permissions(shared.path(), Permissions::from_mode(0o755)).unwrap();
    let client = Client::open(shared.path(), CAPACITY);
    client.fill(0..20, 5000);
    assert_eq!(shared.path().metadata().unwrap().permissions().mode() & 0o777, 0o755);
    let names = if layout() == Layout::Extents { "data-00000.kvring" } else { "chunks" };
    assert_private(&shared.path().join(names), "in a shared directory");
}

fn refusal(path: &Path) -> String {
    Connector::open(config(path, CAPACITY)).err().expect("a refusal").to_string()
}

#[test]
fn an_index_that_is_somebody_elses_is_never_overwritten() {
    let _alone = alone();
    for content in [b"a letter to a friend".to_vec(), pattern(200_000, 3)] {
        let directory = tempfile::tempdir().unwrap();
        let index = directory.path().join("index.kvring");
        fs::write(&index, &content).unwrap();
        let refusal = refusal(directory.path());
        assert!(refusal.contains("index.kvring is not one that kvring has written"), "{refusal}");
        assert!(fs::read(&index).unwrap() == content);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is made beside it");
    }
    // A link to a file of somebody else's, and a FIFO.
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("other");
    fs::write(&other, b"a letter to a friend").unwrap();
    let store = directory.path().join("store");
    fs::create_dir(&store).unwrap();
    let index = store.join("index.kvring");
    symlink(&other, &index).unwrap();
    assert!(refusal(&store).contains("it is a symbolic link, not a regular file"));
    assert_eq!(fs::read(&other).unwrap(), b"a letter to a friend");
    fs::remove_file(&index).unwrap();
    nix::unistd::mkfifo(&index, Mode::S_IRWXU).unwrap();
    assert!(refusal(&store).contains("it is a FIFO, not a regular file"));
}

/// What is left of a damaged index of ours is enough to know it.
#[test]
fn a_damaged_index_is_still_started_anew() {
    let _alone = alone();
    let damages: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes[..512].fill(7),
        |bytes| bytes[..8].fill(7),
        |bytes| bytes[512..].fill(7),
        |bytes| bytes.fill(0),
    ];
    for damage in damages {
        let directory = tempfile::tempdir().unwrap();
        drop(Client::open(directory.path(), CAPACITY));
        let index = directory.path().join("index.kvring");
        let mut bytes = fs::read(&index).unwrap();
        damage(&mut bytes);
        fs::write(&index, bytes).unwrap();
        let client = Client::open(directory.path(), CAPACITY);
        client.fill(0..20, 5000);
        client.assert_held(0..20, 5000);
    }
}

/// Gives a file to another user while `act` runs, which must leave its bytes as they are.
/// The store may remove its name: the file of a chunk that could not be read goes in the background.
fn given_away<T>(path: &Path, act: impl FnOnce() -> T) -> T {
    let mut file = File::open(path).unwrap();
    let mut before = Vec::new();
    file.read_to_end(&mut before).unwrap();
    fchown(&file, Some(12345), None).unwrap();
    let outcome = act();
    file.rewind().unwrap();
    let mut after = Vec::new();
    file.read_to_end(&mut after).unwrap();
    assert!(after == before, "{} was written", path.display());
    fchown(&file, Some(0), None).unwrap();
    outcome
}

#[test]
fn files_of_another_user_are_refused() {
    let _alone = alone();
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can give files to another user");
        return;
    }
    for layout in [Layout::Extents, Layout::Files] {
        let directory = tempfile::tempdir().unwrap();
        let open = || {
            let config = Config { layout, ..config(directory.path(), CAPACITY) };
            Client::with(config)
        };
        let client = open();
        client.fill(0..20, 5000);
        client.connector.close();
        let is_opened_at_once = |path: &PathBuf| {
            path.is_file()
                && path.parent() == Some(directory.path())
                && path.metadata().unwrap().len() > 0
        };
        let files: Vec<_> = all(directory.path()).into_iter().filter(is_opened_at_once).collect();
        assert_eq!(files.len(), if layout == Layout::Extents { 2 } else { 1 }, "{files:?}");
        for file in &files {
            let refusal = given_away(file, || refusal(directory.path()));
            assert!(
                refusal.contains("it belongs to user 12345 and this process runs as user 0"),
                "{}: {refusal}",
                file.display()
            );
        }
        open().assert_held(0..20, 5000);
    }
}

/// That user may write anything into it at any time.
#[test]
fn a_chunk_file_of_another_user_is_not_read() {
    let _alone = alone();
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can give files to another user");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let config = Config { layout: Layout::Files, ..config(directory.path(), CAPACITY) };
    let client = Client::with(config);
    client.fill(0..20, 5000);
    let (file, _) = common::chunks::place(directory.path(), &key(7));
    given_away(&file, || assert_eq!(client.get_one(&key(7), 5000), None));
    assert!(client.get_one(&key(8), 5000) == Some(pattern(5000, 8)));
    // The next SET puts a file of its own there.
    assert!(client.set_one(&key(7), &Memory::patterned(6000, 0, 7)));
    assert!(client.get_one(&key(7), 6000) == Some(pattern(6000, 7)));
}
