//! How several paths become one store at open: which of them are available, and which keys each of them owns.
//!
//! A volume has only keys that it owns among the volumes in use (see `placement.rs`), and each volume in use has noted which
//! these are (`Membership`). The newest note decides:
//!
//! - A volume that it does not name, and that has a note of its own, was away while the others went on. It is emptied: its
//!   chunks may have been replaced or deleted since. So is a volume whose note cannot be read.
//! - A volume that never shared keys keeps the keys that it owns when new paths are added to it.
//! - A volume that never shared keys and holds chunks is not added to others: its chunks are of another store.
//!
//! An open that fails has changed nothing at any path: all checks come before the first change.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::closing::close_started;
use super::home::FoundHome;
use super::volume::Volume;
use super::volumes::{Unavailable, Volumes};
use crate::cache::{ChunkIndex, WriteBudget};
use crate::completion_queue::CompletionQueues;
use crate::config::Config;
use crate::engine::WatchedFiles;
use crate::error::OpenError;
use crate::evict::Quotas;
use crate::format::membership::Membership;
use crate::format::names::StoreId;
use crate::index::{FoundIndex, Sharing};
use crate::parallel::{OPENING, on_threads};
use crate::placement::{Placement, VolumeSet};
use crate::reactor::{Alarm, MakeEngine, is_gone};
use crate::sync::Mutex;
use crate::sync::mpsc::{Receiver, channel};

/// A configuration with the length of whole devices, its volumes, which run, and what tells of those that fail.
pub(super) type Opened = (Config, Arc<Volumes>, (Alarm, Receiver<usize>));

/// Paths that failed, by number.
type Failed = Vec<(usize, OpenError)>;

/// Opens and starts every path of `config`, and brings them into agreement. A path whose device fails is left out if there are
/// others. A path whose device is missing is left out if the others know of more paths than there are.
pub(super) fn open_all(
    config: &Config,
    completions: &Arc<CompletionQueues>,
    make_engine: &MakeEngine,
) -> Result<Opened, OpenError> {
    check_paths(config)?;
    let mut left_out = Vec::new();
    loop {
        match open_others(config, &mut left_out, completions, make_engine)? {
            Ok(opened) => return Ok(opened),
            // They could be read and not written, perhaps. The others go on without them, if they agree without them.
            Err(failed) => leave_out(config, failed, &mut left_out, 0)?,
        }
    }
}

/// Refuses two paths that are one, and one inside another.
fn check_paths(config: &Config) -> Result<(), OpenError> {
    let all = &config.paths;
    let real: Vec<PathBuf> = all.iter().map(|path| real_path(path)).collect();
    for (number, inner) in real.iter().enumerate() {
        for (other, outer) in real.iter().enumerate().filter(|(other, _)| *other != number) {
            let (path, other_path) = (all[number].clone(), all[other].clone());
            if inner == outer && other < number {
                return Err(OpenError::SameStore { path, other: other_path });
            }
            if inner != outer && inner.starts_with(outer) {
                return Err(OpenError::Nested { path, outer: other_path });
            }
        }
    }
    Ok(())
}

/// The path without symlinks, as far as it is there.
fn real_path(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for existing in path.ancestors() {
        let Ok(mut real) = existing.canonicalize() else { continue };
        let rest = path.strip_prefix(existing).unwrap_or(Path::new(""));
        for part in rest.components() {
            match part {
                Component::ParentDir => {
                    real.pop();
                }
                part => real.push(part),
            }
        }
        return real;
    }
    path
}

/// Opens the paths that are not `left_out`, all at the same time. It looks at all of them and compares them before it changes one.
fn open_others(
    config: &Config,
    left_out: &mut Vec<Unavailable>,
    completions: &Arc<CompletionQueues>,
    make_engine: &MakeEngine,
) -> Result<Result<Opened, Failed>, OpenError> {
    let quotas = Quotas::new(&config.quotas);
    let write_budget = Arc::new(WriteBudget::new(config.write_budget_bytes, Instant::now()));
    let now_ms = config.clock.now_ms();
    let is_left_out = |path: &PathBuf| left_out.iter().any(|one| one.path == *path);
    let numbers = (0..config.paths.len()).filter(|number| !is_left_out(&config.paths[*number]));
    let files: Vec<_> = config.paths.iter().map(|_| WatchedFiles::new(&config.files)).collect();
    let of_path = |config: &Config, number: usize| {
        let files = Arc::<WatchedFiles>::clone(&files[number]);
        Config { files, ..config.of_path(number) }
    };
    let (found, refused) = at_once(numbers.map(|number| (number, ())), |number, ()| {
        FoundHome::look(&of_path(config, number), now_ms)
    });
    let mut capacities_bytes = vec![0; config.paths.len()];
    for (number, found) in &found {
        let wanted_bytes = config.capacities_bytes[*number];
        capacities_bytes[*number] =
            found.as_ref().map_or(wanted_bytes, |found| found.capacity_bytes(wanted_bytes));
    }
    let resolved = Config { capacities_bytes, ..config.clone() };
    let looks: Vec<Look<'_>> =
        found.iter().map(|(number, found)| Look::new(&config.paths[*number], found)).collect();
    let ids: Vec<StoreId> = looks.iter().filter_map(|look| look.id).collect();
    let newest = newest_of(looks.iter().map(|look| look.sharing));
    let missing = newest.map_or(0, |newest| newest.missing(&ids));
    leave_out(config, refused, left_out, missing)?;
    let are_outdated = compare(&looks)?;
    let (opened, failed) = at_once(found, |number, found| {
        let config = of_path(&resolved, number);
        Volume::open(config, &files[number], found, completions, &quotas, &write_budget)
    });
    if !failed.is_empty() {
        return Ok(Err(failed));
    }
    let (numbers, mut opened): (Vec<usize>, Vec<Volume>) = opened.into_iter().unzip();
    // Paths have other numbers in the next attempt: an alarm of this one is not to take out another path there.
    let (alarm, alarms) = channel();
    let started = agree(&mut opened, &are_outdated, left_out.len()).and_then(|agreed| {
        let mut volumes = Volumes::new(opened, left_out.clone(), agreed);
        let started = volumes.start(&alarm, make_engine);
        let volumes = Arc::new(volumes);
        started.inspect_err(|(number, _)| close_started(&volumes, *number))?;
        Ok(volumes)
    });
    Ok(match started {
        Ok(volumes) => Ok((resolved, volumes, (alarm, alarms))),
        Err((position, error)) => Err(vec![(numbers[position], error)]),
    })
}

/// Adds the paths that have `failed` because of their devices to those that are left out, if there are others. A device that
/// is not there may also be a misspelt name: as many of these are left out as the others know of and are `missing`. Returns
/// the error of one that is not left out.
fn leave_out(
    config: &Config,
    failed: Failed,
    left_out: &mut Vec<Unavailable>,
    mut missing: usize,
) -> Result<(), OpenError> {
    let are_others = left_out.len() + failed.len() < config.paths.len();
    for (number, error) in failed {
        let is_left_out = match error {
            OpenError::NoDevice { .. } => missing > 0,
            _ => are_others && is_device_error(&error),
        };
        if !is_left_out {
            return Err(error);
        }
        missing = missing.saturating_sub(1);
        left_out.push(Unavailable::new(&config.paths[number], &error));
    }
    Ok(())
}

/// Works on each path, on as many threads as there are paths, or as the system gives. Returns what came of it, and which failed, both
/// in the order of the paths.
fn at_once<T: Send, R: Send>(
    paths: impl IntoIterator<Item = (usize, T)>,
    work: impl Fn(usize, T) -> Result<R, OpenError> + Sync,
) -> (Vec<(usize, R)>, Failed) {
    let waiting: Vec<(usize, T)> = paths.into_iter().collect();
    let count = waiting.len();
    let waiting = Mutex::new(waiting.into_iter());
    let outcomes = on_threads(OPENING, count, || {
        let mut outcomes = Vec::new();
        // The lock is not held while the work is done: the others take theirs.
        while let Some((number, one)) = { waiting.lock().next() } {
            outcomes.push((number, work(number, one)));
        }
        outcomes
    });
    let mut outcomes: Vec<(usize, Result<R, OpenError>)> = outcomes.into_iter().flatten().collect();
    outcomes.sort_by_key(|(number, _)| *number);
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for (number, outcome) in outcomes {
        match outcome {
            Ok(outcome) => done.push((number, outcome)),
            Err(error) => failed.push((number, error)),
        }
    }
    (done, failed)
}

/// Whether the device below a path, and not the path, is what is wrong.
fn is_device_error(error: &OpenError) -> bool {
    match error {
        OpenError::ReadOnlyDevice { .. } => true,
        OpenError::Io { source, .. } => source.raw_os_error().is_some_and(is_gone),
        _ => false,
    }
}

/// What a path knows of itself before anything is changed.
struct Look<'found> {
    path: &'found Path,
    /// None where there is no store yet.
    id: Option<StoreId>,
    sharing: Sharing,
    index: Option<&'found FoundIndex>,
}

impl<'found> Look<'found> {
    fn new(path: &'found Path, found: &'found Option<FoundHome>) -> Self {
        let index = found.as_ref().map(|found| &found.index);
        let sharing = index.map_or(Sharing::Never, FoundIndex::sharing);
        Self { path, id: index.and_then(|index| index.id), sharing, index }
    }

    /// Whether it holds chunks and never shared keys, as far as it knows.
    fn is_alone(&self) -> bool {
        self.sharing == Sharing::Never && self.index.is_some_and(FoundIndex::has_chunks)
    }
}

/// The newest of the sets that stores know of.
pub(super) fn newest_of(all: impl DoubleEndedIterator<Item = Sharing>) -> Option<Membership> {
    let set = |sharing| match sharing {
        Sharing::With(set) => Some(set),
        Sharing::Never | Sharing::Lost => None,
    };
    // The first one of several: those after it are of another store then.
    all.rev().filter_map(set).max_by_key(|set| set.epoch)
}

/// Checks that these paths may be one store. Says of each whether it was in use with others that went on without it.
fn compare(looks: &[Look<'_>]) -> Result<Vec<bool>, OpenError> {
    for (number, look) in looks.iter().enumerate() {
        let is_duplicate = |other: &&Look<'_>| other.id.is_some() && other.id == look.id;
        if let Some(other) = looks[..number].iter().find(is_duplicate) {
            let (path, other) = (look.path.to_owned(), other.path.to_owned());
            return Err(OpenError::SameStore { path, other });
        }
    }
    let Some(newest) = newest_of(looks.iter().map(|look| look.sharing)) else {
        let mut alone = looks.iter().filter(|_| looks.len() > 1).filter(|look| look.is_alone());
        return match (alone.next(), alone.next()) {
            (Some(first), Some(second)) => {
                Err(unrelated(first, second, "another store of its own"))
            }
            _ => Ok(vec![false; looks.len()]),
        };
    };
    let is_member = |look: &Look<'_>| look.id.is_some_and(|id| newest.members().contains(&id));
    let is_outdated = |look: &Look<'_>| match look.sharing {
        _ if is_member(look) => Ok(false),
        Sharing::Never if look.is_alone() => {
            let member = looks.iter().find(|look| look.sharing == Sharing::With(newest));
            let what = "a store that shares its keys with other paths";
            Err(unrelated(look, member.unwrap_or(look), what))
        }
        Sharing::Never => Ok(false),
        Sharing::With(own) if !own.members().iter().any(|id| newest.members().contains(id)) => {
            Err(OpenError::ForeignVolume { path: look.path.to_owned() })
        }
        Sharing::With(_) | Sharing::Lost => Ok(true),
    };
    looks.iter().map(is_outdated).collect()
}

fn unrelated(alone: &Look<'_>, other: &Look<'_>, what: &'static str) -> OpenError {
    OpenError::Unrelated { path: alone.path.to_owned(), other: other.path.to_owned(), what }
}

/// Drops chunks that a volume does not own, and notes in all volumes which these are and how many paths are unavailable. An error
/// comes with the position of its volume.
fn agree(
    opened: &mut [Volume],
    are_outdated: &[bool],
    unavailable: usize,
) -> Result<(Placement, u64), (usize, OpenError)> {
    let weight = |volume: &Volume| (volume.id, volume.shared.cache.config.capacity_bytes());
    let placement = Placement::new(opened.iter().map(weight));
    let newest = newest_of(opened.iter().map(|volume| volume.sharing));
    if opened.len() == 1 && newest.is_none() {
        return Ok((placement, 0));
    }
    let live = VolumeSet::first(opened.len());
    let ids: Vec<StoreId> = opened.iter().map(|volume| volume.id).collect();
    for (number, (volume, is_outdated)) in opened.iter_mut().zip(are_outdated).enumerate() {
        if *is_outdated {
            log::warn!(
                "{} was away while the other paths went on: its chunks may be stale, so it starts empty",
                volume.path().display()
            );
        }
        let keeps_all = volume.shared.cache.config.keeps_misplaced;
        let stays = |digest| keeps_all || placement.volume_of(digest, live) == number;
        volume.drop_not_owned(*is_outdated, stays);
    }
    let epoch = newest.map_or(0, |newest| newest.epoch);
    let set = Membership::new(epoch, unavailable, ids.iter().copied());
    if opened.iter().all(|volume| volume.sharing == Sharing::With(set)) {
        return Ok((placement, epoch));
    }
    let set = Membership::new(epoch + 1, unavailable, ids);
    let change = |change: &dyn Fn(&ChunkIndex) -> io::Result<()>| {
        opened.iter().enumerate().try_for_each(|(position, volume)| {
            let error = OpenError::io("write the index of", volume.path());
            change(volume.index()).map_err(|source| (position, error(source)))
        })
    };
    // What was dropped is not to come back once the set is noted.
    change(&ChunkIndex::sync)?;
    change(&|index| index.write_membership(&set))?;
    Ok((placement, epoch + 1))
}
