//! How several paths become one store at open: which of them are there, what of them counts, who holds which keys.
//!
//! At any time each volume holds only keys that belong to it among those in use (see `placement.rs`), and the volumes in use
//! have noted so (`Membership`). From that follows what to do with a volume that the newest note does not name although it
//! has a note of its own: it was away while the others went on, and is emptied, as what it holds may be replaced or
//! deleted since. A volume that never shared keys with others keeps what belongs to it.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;

use super::home::Home;
use super::volume::{Common, OpenedVolume};
use crate::completion::CompletionQueue;
use crate::config::Config;
use crate::error::OpenError;
use crate::index::{Membership, StoreId};
use crate::placement::{Placement, VolumeSet};
use crate::reactor::is_gone;
use crate::sync::Mutex;

/// A path that is not in use since opening.
#[derive(Clone, Debug)]
pub(super) struct Absent {
    pub(super) path: PathBuf,
    pub(super) reason: String,
}

/// The volumes there are, each with what belongs to it.
pub(super) struct Joined {
    /// What was asked for, with the length of whole devices.
    pub(super) config: Config,
    pub(super) opened: Vec<OpenedVolume>,
    pub(super) absent: Vec<Absent>,
    pub(super) placement: Placement,
    pub(super) epoch: u64,
}

/// Opens every path of `config`, all at the same time, and brings them into agreement. A path whose device does not work is
/// left out if there are others; one whose device is not there, if the others know of more paths than are there.
pub(super) fn open_all(
    config: &Config,
    left_out: &[Absent],
    completions: &Arc<CompletionQueue>,
) -> Result<Joined, OpenError> {
    check_paths(config)?;
    let mut config = config.clone();
    let common = Common::new(&config, completions);
    let now_ms = config.clock.now_ms();
    let numbers: Vec<usize> = (0..config.paths.len())
        .filter(|number| !left_out.iter().any(|absent| absent.path == config.paths[*number]))
        .collect();
    let homes = at_once(numbers.iter(), |number| Home::open(&config.of_path(*number), now_ms));
    let mut capacities_bytes = vec![0; config.paths.len()];
    for (number, home) in numbers.iter().zip(&homes) {
        let wanted_bytes = config.capacities_bytes[*number];
        capacities_bytes[*number] =
            home.as_ref().map_or(0, |home| home.capacity_bytes(wanted_bytes));
    }
    config.capacities_bytes = capacities_bytes;
    let outcomes = at_once(numbers.iter().zip(homes), |(number, home)| {
        OpenedVolume::open(config.of_path(*number), home?, &common)
    });
    let (mut opened, mut refused) = (Vec::new(), Vec::new());
    for (outcome, number) in outcomes.into_iter().zip(numbers) {
        match outcome {
            Ok(volume) => opened.push(volume),
            Err(error) => refused.push((&config.paths[number], error)),
        }
    }
    let ids: Vec<StoreId> = opened.iter().map(|volume| volume.id).collect();
    let mut unexplained = newest_membership(&opened).map_or(0, |set| set.missing(&ids));
    let mut absent = left_out.to_vec();
    for (path, error) in refused {
        let is_left_out = match error {
            // It may also be a name that is misspelt.
            OpenError::NoDevice { .. } => unexplained > 0,
            _ => !opened.is_empty() && is_device_error(&error),
        };
        if !is_left_out {
            return Err(error);
        }
        unexplained = unexplained.saturating_sub(1);
        let reason = error.to_string();
        log::error!("{} is left out: {reason}; its keys are missed", path.display());
        absent.push(Absent { path: path.clone(), reason });
    }
    let (placement, epoch) = agree(&mut opened, absent.len())?;
    Ok(Joined { config, opened, absent, placement, epoch })
}

/// Adds the path that `error` is about to those to be left out, if its device is what does not work and there are others.
///
/// # Errors
/// `error` itself, if not.
pub(super) fn leave_out(
    error: OpenError,
    config: &Config,
    left_out: &mut Vec<Absent>,
) -> Result<(), OpenError> {
    let about = match &error {
        OpenError::Io { path, .. } if is_device_error(&error) => {
            config.paths.iter().find(|own| path.starts_with(own))
        }
        _ => None,
    };
    let is_known = |path: &&PathBuf| left_out.iter().any(|absent| absent.path == **path);
    match about.filter(|path| !is_known(path)) {
        Some(path) if left_out.len() + 1 < config.paths.len() => {
            let reason = error.to_string();
            log::error!("{} is left out: {reason}; its keys are missed", path.display());
            left_out.push(Absent { path: path.clone(), reason });
            Ok(())
        }
        _ => Err(error),
    }
}

/// Does the work of each, on as many threads as there are of them, or as the system gives; what came of it, in the same order.
fn at_once<T: Send, R: Send>(
    each: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let waiting: Vec<T> = each.into_iter().collect();
    let count = waiting.len();
    let waiting = Mutex::new(waiting.into_iter().enumerate());
    let done = Mutex::new(Vec::with_capacity(count));
    let work_on = || {
        loop {
            // Not while the work is done: the others take theirs.
            let next = waiting.lock().next();
            let Some((number, one)) = next else { break };
            let outcome = work(one);
            done.lock().push((number, outcome));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..count {
            // Where there is none to be had, this thread does its work too.
            let _ = Builder::new().name("kvring-open".into()).spawn_scoped(scope, work_on);
        }
        work_on();
    });
    let mut done = std::mem::take(&mut *done.lock());
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Whether the device below a path, and not the path, is what is wrong.
fn is_device_error(error: &OpenError) -> bool {
    match error {
        OpenError::ReadOnlyDevice { .. } => true,
        OpenError::Io { source, .. } => source.raw_os_error().is_some_and(is_gone),
        _ => false,
    }
}

/// Refuses two paths that are one, and one inside another.
fn check_paths(config: &Config) -> Result<(), OpenError> {
    let all: Vec<&PathBuf> = config.paths.iter().chain(&config.index_path).collect();
    let real: Vec<PathBuf> = all.iter().map(|path| real_path(path)).collect();
    for (number, inner) in real.iter().enumerate() {
        for (other, outer) in real.iter().enumerate().filter(|(other, _)| *other != number) {
            let (path, other_path) = (all[number].clone(), all[other].clone());
            if inner == outer && other < number && number < config.paths.len() {
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

/// What counts of the sets that volumes know of.
fn newest_membership(opened: &[OpenedVolume]) -> Option<Membership> {
    // The first one of several: those after it are the strangers then.
    opened.iter().rev().filter_map(|volume| volume.membership).max_by_key(|set| set.epoch)
}

/// Leaves each volume what belongs to it, and notes in all of them which they are, and how many paths are absent.
fn agree(opened: &mut [OpenedVolume], absent: usize) -> Result<(Placement, u64), OpenError> {
    for (number, volume) in opened.iter().enumerate() {
        if let Some(other) = opened[..number].iter().find(|other| other.id == volume.id) {
            let path = |volume: &OpenedVolume| volume.shared.config.path().to_owned();
            return Err(OpenError::SameStore { path: path(volume), other: path(other) });
        }
    }
    let weight = |volume: &OpenedVolume| (volume.id, volume.shared.config.capacity_bytes());
    let placement = Placement::new(opened.iter().map(weight));
    let newest = newest_membership(opened);
    if opened.len() == 1 && newest.is_none() {
        return Ok((placement, 0));
    }
    let live = VolumeSet::first(opened.len());
    let ids: Vec<StoreId> = opened.iter().map(|volume| volume.id).collect();
    // All are looked at before anything is changed.
    let were_away = opened.iter().map(|volume| was_away(volume, newest.as_ref()));
    let were_away = were_away.collect::<Result<Vec<bool>, _>>()?;
    for (number, (volume, was_away)) in opened.iter_mut().zip(were_away).enumerate() {
        if was_away {
            log::warn!(
                "{} was away while the other paths went on: what it holds may be stale, so it starts empty",
                volume.shared.config.path().display()
            );
        }
        volume.drop_foreign(was_away, |digest| placement.volume_of(digest, live) == number);
    }
    let epoch = newest.map_or(0, |newest| newest.epoch);
    let set = Membership::new(epoch, absent, ids.iter().copied());
    if opened.iter().all(|volume| volume.membership == Some(set)) {
        return Ok((placement, epoch));
    }
    let set = Membership::new(epoch + 1, absent, ids);
    let io_error = |volume: &OpenedVolume| {
        let path = volume.shared.config.path().to_owned();
        move |source: io::Error| OpenError::Io { action: "write the index of", path, source }
    };
    // What was dropped is not to come back once the set is noted.
    for volume in opened.iter() {
        volume.shared.index.table().sync().map_err(io_error(volume))?;
    }
    for volume in opened.iter() {
        volume.shared.index.table().write_membership(&set).map_err(io_error(volume))?;
    }
    Ok((placement, epoch + 1))
}

/// Whether the volume was in use with others, and these went on without it.
fn was_away(volume: &OpenedVolume, newest: Option<&Membership>) -> Result<bool, OpenError> {
    let (Some(own), Some(newest)) = (&volume.membership, newest) else { return Ok(false) };
    if newest.members().contains(&volume.id) {
        return Ok(false);
    }
    match own.members().iter().any(|member| newest.members().contains(member)) {
        true => Ok(true),
        false => Err(OpenError::ForeignVolume { path: volume.shared.config.path().to_owned() }),
    }
}
