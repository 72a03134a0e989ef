//! An open that is refused changes nothing: at none of its paths, whatever it is refused for.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::common::loop_device::LoopDevice;
use crate::common::records::{index_of, overwrite};
use crate::common::{Client, MIB, config_of, keys, layout};
use kvring::testing::Clock;
use kvring::{Config, Connector, Layout, OpenError};
use tempfile::TempDir;

const CAPACITY: u64 = 96 * MIB;
/// When the chunks are stored, in ms since 1970.
const STORED_MS: u64 = 1_700_000_000_000;
const KEYS: u64 = 40;
const LENGTH: usize = 200_000;

fn config(paths: &[PathBuf]) -> Config {
    Config {
        clock: Clock::by_hand(Arc::new(AtomicU64::new(STORED_MS))),
        ..config_of(paths, CAPACITY)
    }
}

/// The same with half the capacity, and so late that all chunks have expired: it would cost all of them.
fn harsh(paths: &[PathBuf]) -> Config {
    let now_ms = Arc::new(AtomicU64::new(STORED_MS + 3_600_000));
    Config {
        clock: Clock::by_hand(now_ms),
        ttl: Some(Duration::from_secs(1)),
        capacities_bytes: vec![CAPACITY / 2; paths.len()],
        ..config_of(paths, CAPACITY)
    }
}

fn open(paths: &[PathBuf]) -> Client {
    Client::with(config(paths))
}

fn fill(client: &Client, first: u64) {
    client.fill(first..first + KEYS, LENGTH);
}

fn assert_held(client: &Client, first: u64) {
    let recovery = client.connector.recovery();
    assert_eq!(recovery.discarded(), 0, "{recovery:?}");
    client.assert_held(first..first + KEYS, LENGTH);
}

/// Everything below a path: kind and mode, length, time of change, content.
type Snapshot = BTreeMap<PathBuf, (u32, u64, (i64, i64), Vec<u8>)>;

fn snapshot(path: &Path) -> Snapshot {
    let mut all = Snapshot::new();
    add(path, &mut all);
    all
}

fn add(path: &Path, all: &mut Snapshot) {
    let Ok(found) = path.symlink_metadata() else { return };
    let content = if found.is_file() { std::fs::read(path).unwrap() } else { Vec::new() };
    let changed = (found.mtime(), found.mtime_nsec());
    all.insert(path.to_owned(), (found.mode(), found.len(), changed, content));
    if found.is_dir() {
        path.read_dir().unwrap().for_each(|entry| add(&entry.unwrap().path(), all));
    }
}

/// What differs, without the contents.
fn differences(before: &Snapshot, after: &Snapshot) -> Vec<String> {
    let paths = before.keys().chain(after.keys().filter(|path| !before.contains_key(*path)));
    let change = |path: &PathBuf| match (before.get(path), after.get(path)) {
        (Some(old), Some(new)) if old == new => None,
        (Some(old), Some(new)) => {
            let is_same = old.3 == new.3;
            Some(format!("{}: {:?} is {:?}, same content: {is_same}", path.display(), old.1, new.1))
        }
        (old, _) => {
            Some(format!("{} is {}", path.display(), if old.is_some() { "gone" } else { "new" }))
        }
    };
    paths.filter_map(change).collect()
}

/// A store on two paths, with chunks, and what else there is to open beside it.
struct Scene {
    root: TempDir,
    own: [PathBuf; 2],
}

impl Scene {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let own = ["own0", "own1"].map(|name| root.path().join(name));
        let client = open(&own);
        fill(&client, 0);
        drop(client);
        Self { root, own }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Opens the store together with `other` and a directory that is not there, in every order, and compares.
    fn assert_refused(&self, other: &Path, is_expected: impl Fn(&OpenError) -> bool) {
        let [first, second] = self.own.clone();
        let (new, other) = (self.at("new/deeper"), other.to_owned());
        let before = snapshot(self.root.path());
        for paths in [
            vec![other.clone(), new.clone(), first.clone(), second.clone()],
            vec![first, new, second, other],
        ] {
            let error = Connector::open(harsh(&paths)).map(drop).unwrap_err();
            assert!(is_expected(&error), "{error}: {error:?}");
            let changed = differences(&before, &snapshot(self.root.path()));
            assert!(changed.is_empty(), "{error}\nchanged {changed:#?}");
        }
        assert_held(&open(&self.own), 0);
    }
}

/// Opens these paths and nothing else.
fn assert_refused_alone(paths: &[PathBuf], is_expected: impl Fn(&OpenError) -> bool) {
    let all = || -> Vec<Snapshot> { paths.iter().map(|path| snapshot(path)).collect() };
    let before = all();
    let error = Connector::open(harsh(paths)).map(drop).unwrap_err();
    assert!(is_expected(&error), "{error}");
    for (before, after) in before.iter().zip(&all()) {
        assert_eq!(differences(before, after), [""; 0]);
    }
}

#[test]
fn for_a_store_of_another_set() {
    let scene = Scene::new();
    let others = [scene.at("other0"), scene.at("other1")];
    fill(&open(&others), 1000);
    scene.assert_refused(&others[0], |error| matches!(error, OpenError::ForeignVolume { .. }));
    assert_held(&open(&others), 1000);
}

#[test]
fn for_a_store_in_use() {
    let scene = Scene::new();
    let other = [scene.at("other")];
    let owner = open(&other);
    fill(&owner, 1000);
    let pid = std::process::id().to_string();
    scene.assert_refused(
        &other[0],
        |error| matches!(error, OpenError::InUse { holder, .. } if holder.contains(&pid)),
    );
    assert_held(&owner, 1000);
}

#[test]
fn for_a_store_in_use_whose_index_is_deleted() {
    let scene = Scene::new();
    let other = [scene.at("other")];
    let owner = open(&other);
    fill(&owner, 1000);
    std::fs::remove_file(other[0].join("index.kvring")).unwrap();
    scene.assert_refused(&other[0], |error| matches!(error, OpenError::InUse { .. }));
    assert_refused_alone(&other, |error| matches!(error, OpenError::InUse { .. }));
    assert_held(&owner, 1000);
}

#[test]
fn for_a_store_of_another_layout() {
    let scene = Scene::new();
    let other = [scene.at("other")];
    let (another, says) = match layout() {
        Layout::Extents => (Layout::Files, "layout: 'files'"),
        Layout::Files => (Layout::Extents, "layout: 'extents'"),
    };
    let client = Client::with(Config { layout: another, ..config(&other) });
    fill(&client, 1000);
    drop(client);
    let is_expected = |error: &OpenError| {
        matches!(error, OpenError::OtherLayout { .. }) && error.to_string().contains(says)
    };
    scene.assert_refused(&other[0], is_expected);
    assert_refused_alone(&other, is_expected);
    // Without an index its data tell.
    std::fs::remove_file(other[0].join("index.kvring")).unwrap();
    scene.assert_refused(&other[0], is_expected);
}

#[test]
fn for_a_newer_format() {
    let scene = Scene::new();
    let other = [scene.at("other")];
    fill(&open(&other), 1000);
    overwrite(&index_of(&other[0]), 8, &99_u32.to_le_bytes());
    let is_expected =
        |error: &OpenError| matches!(error, OpenError::NewerFormat { found: 99, supported: 1, .. });
    scene.assert_refused(&other[0], is_expected);
    assert_refused_alone(&other, is_expected);
}

#[test]
fn for_a_copy_or_another_name() {
    let scene = Scene::new();
    let copy = scene.at("copy");
    let status = std::process::Command::new("cp").arg("-a").arg(&scene.own[0]).arg(&copy).status();
    assert!(status.unwrap().success());
    let alias = scene.at("alias");
    std::os::unix::fs::symlink(&scene.own[0], &alias).unwrap();
    for other in [copy, alias] {
        scene.assert_refused(&other, |error| matches!(error, OpenError::SameStore { .. }));
    }
}

#[test]
fn for_what_is_no_directory_or_cannot_be_made_one() {
    let scene = Scene::new();
    std::fs::write(scene.at("file"), b"mine").unwrap();
    let inside = scene.at("file/inside");
    let above = format!("{} is a file, not a directory", scene.at("file").display());
    scene.assert_refused(&inside, |error| {
        matches!(error, OpenError::Unsuitable { path: of, .. } if *of == inside)
            && error.to_string().contains(&above)
    });
    for path in [scene.at("file"), PathBuf::from("/dev/null")] {
        scene.assert_refused(&path, |error| matches!(error, OpenError::Unsuitable { .. }));
    }
    // Nothing tells of a third path.
    scene.assert_refused(Path::new("/dev/kvring-none"), |error| {
        matches!(error, OpenError::NoDevice { .. })
    });
}

#[test]
fn for_an_option_that_does_not_fit_one_of_the_paths() {
    let scene = Scene::new();
    let paths = [scene.own[0].clone(), scene.at("new"), scene.own[1].clone()];
    let before = snapshot(scene.root.path());
    let mut config = harsh(&paths);
    config.capacities_bytes[2] = Config::WHOLE_DEVICE;
    let error = Connector::open(config).map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Config(_)), "{error}");
    assert_eq!(differences(&before, &snapshot(scene.root.path())), [""; 0]);
}

/// A store of its own is no new path.
#[test]
fn for_a_store_that_never_shared_keys() {
    let scene = Scene::new();
    let lone = [scene.at("lone")];
    fill(&open(&lone), 1000);
    scene.assert_refused(&lone[0], |error| {
        let text = error.to_string();
        assert!(text.contains(lone[0].to_str().unwrap()) && text.contains("own"), "{text}");
        matches!(error, OpenError::Unrelated { .. })
    });
    // One member of the set is enough, and so is another such store.
    let second = [scene.at("second")];
    fill(&open(&second), 2000);
    for other in [scene.own[1].clone(), second[0].clone()] {
        let paths = [lone[0].clone(), other];
        assert_refused_alone(&paths, |error| matches!(error, OpenError::Unrelated { .. }));
    }
    assert_held(&open(&lone), 1000);
    // Emptied, it may come.
    let client = open(&lone);
    client.delete(&keys(1000..1000 + KEYS));
    drop(client);
    let [first, other] = scene.own.clone();
    let client = open(&[first, other, lone[0].clone()]);
    assert_eq!(client.connector.stats().paths.len(), 3);
    assert!(client.connector.recovery().kept > 0);
}

/// Blank devices, one of which cannot be had.
#[test]
fn for_a_device_that_holds_something_else() {
    let scene = Scene::new();
    let (Some(blank), Some(other)) = (LoopDevice::new(64, 4096), LoopDevice::new(64, 4096)) else {
        return;
    };
    let write = |bytes: &[u8]| {
        let device = std::fs::File::options().write(true).open(other.path()).unwrap();
        device.write_all_at(bytes, 512 * 1024).unwrap();
        device.sync_all().unwrap();
    };
    write(b"somebody's");
    let devices = || [blank.path(), other.path()].map(|path| std::fs::read(path).unwrap());
    let (before, before_devices) = (snapshot(scene.root.path()), devices());
    let paths = [
        blank.path().to_owned(),
        scene.own[0].clone(),
        scene.at("new"),
        scene.own[1].clone(),
        other.path().to_owned(),
    ];
    let mut config = harsh(&paths);
    config.layout = Layout::Extents;
    let error = Connector::open(config.clone()).map(drop).unwrap_err();
    if layout() == Layout::Extents {
        assert!(matches!(error, OpenError::NotFormatted { .. }), "{error}");
    }
    assert_eq!(differences(&before, &snapshot(scene.root.path())), [""; 0]);
    assert!(devices() == before_devices, "a device was written to");
}
