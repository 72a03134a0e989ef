//! Comparing paths before anything is changed at one of them: whether they may be one store, and which of them were away; and bringing
//! them into agreement when they are opened: each keeps the keys that it owns, and notes which paths are in use.
//!
//! A volume has only keys that it owns among the volumes in use (see `placement.rs`), and each volume in use has noted which
//! these are (`Membership`). The newest note decides:
//!
//! - A volume that it does not name, and that has a note of its own, was away while the others went on. It is emptied: its
//!   chunks may have been replaced or deleted since. So is a volume whose note cannot be read.
//! - A volume that never shared keys keeps the keys that it owns when new paths are added to it.
//! - A volume that never shared keys and holds chunks is not added to others: its chunks are of another store.

use std::path::{Component, Path, PathBuf};

use super::location::LockedStore;
use crate::cache::ChunkIndex;
use crate::connector::volume::Volume;
use crate::error::OpenError;
use crate::format::member_paths::MemberPaths;
use crate::format::membership::Membership;
use crate::format::names::StoreId;
use crate::index::{LockedIndex, Sharing};
use crate::placement::{Placement, VolumeSet};
use std::io;

/// Refuses two paths that are one, and one inside another.
pub(super) fn check_paths(all: &[PathBuf]) -> Result<(), OpenError> {
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
pub(super) fn real_path(path: &Path) -> PathBuf {
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

/// What a path knows of itself before anything is changed.
pub(crate) struct PathState<'found> {
    pub(crate) path: &'found Path,
    /// None where there is no store yet.
    pub(crate) id: Option<StoreId>,
    pub(crate) sharing: Sharing,
    /// Reads the index.
    pub(crate) has_chunks: Box<dyn Fn() -> bool + 'found>,
}

impl<'found> PathState<'found> {
    pub(super) fn new(path: &'found Path, store: Option<&'found LockedStore>) -> Self {
        let index = store.map(|store| &store.index);
        let sharing = index.map_or(Sharing::Never, LockedIndex::sharing);
        let has_chunks = Box::new(move || index.is_some_and(LockedIndex::has_chunks));
        Self { path, id: index.and_then(|index| index.id), sharing, has_chunks }
    }

    /// Whether it holds chunks and never shared keys, as far as it knows.
    fn is_alone(&self) -> bool {
        self.sharing == Sharing::Never && (self.has_chunks)()
    }
}

/// The newest of the sets that stores know of.
pub(crate) fn newest_of(all: impl DoubleEndedIterator<Item = Sharing>) -> Option<Membership> {
    let set = |sharing| match sharing {
        Sharing::With(set) => Some(set),
        Sharing::Never | Sharing::Lost => None,
    };
    // The first one of several: those after it are of another store then.
    all.rev().filter_map(set).max_by_key(|set| set.epoch)
}

/// How many paths the newest set knows of that are not among these.
pub(super) fn missing_paths(states: &[PathState<'_>]) -> usize {
    let ids: Vec<StoreId> = states.iter().filter_map(|state| state.id).collect();
    newest_of(states.iter().map(|state| state.sharing)).map_or(0, |newest| newest.missing(&ids))
}

/// Checks that these paths may be one store. Says of each whether it was in use with others that went on without it.
pub(crate) fn compare(states: &[PathState<'_>]) -> Result<Vec<bool>, OpenError> {
    for (number, state) in states.iter().enumerate() {
        let is_duplicate = |other: &&PathState<'_>| other.id.is_some() && other.id == state.id;
        if let Some(other) = states[..number].iter().find(is_duplicate) {
            let (path, other) = (state.path.to_owned(), other.path.to_owned());
            return Err(OpenError::SameStore { path, other });
        }
    }
    let Some(newest) = newest_of(states.iter().map(|state| state.sharing)) else {
        let mut alone = states.iter().filter(|state| states.len() > 1 && state.is_alone());
        return match (alone.next(), alone.next()) {
            (Some(first), Some(second)) => {
                Err(unrelated(first, second, "another store of its own"))
            }
            _ => Ok(vec![false; states.len()]),
        };
    };
    let is_member =
        |state: &PathState<'_>| state.id.is_some_and(|id| newest.members().contains(&id));
    let is_outdated = |state: &PathState<'_>| match state.sharing {
        _ if is_member(state) => Ok(false),
        Sharing::Never if state.is_alone() => {
            let member = states.iter().find(|state| state.sharing == Sharing::With(newest));
            let what = "a store that shares its keys with other paths";
            Err(unrelated(state, member.unwrap_or(state), what))
        }
        Sharing::Never => Ok(false),
        Sharing::With(own) if !own.members().iter().any(|id| newest.members().contains(id)) => {
            Err(OpenError::ForeignVolume { path: state.path.to_owned() })
        }
        Sharing::With(_) | Sharing::Lost => Ok(true),
    };
    states.iter().map(is_outdated).collect()
}

fn unrelated(alone: &PathState<'_>, other: &PathState<'_>, what: &'static str) -> OpenError {
    OpenError::Unrelated { path: alone.path.to_owned(), other: other.path.to_owned(), what }
}

/// Drops chunks that a volume does not own, and notes in all volumes which these are and how many paths are unavailable. An error
/// comes with the position of its volume.
pub(super) fn agree(
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
    drop_misplaced(opened, are_outdated, &placement);
    let noted = |epoch| {
        let set = Membership::new(epoch, unavailable, opened.iter().map(|volume| volume.id));
        (set, MemberPaths::new(epoch, opened.iter().map(|volume| (volume.id, volume.path()))))
    };
    let epoch = newest.map_or(0, |newest| newest.epoch);
    let (set, paths) = noted(epoch);
    let has_noted = |volume: &Volume| {
        volume.sharing == Sharing::With(set) && volume.index().has_member_paths(&paths)
    };
    if opened.iter().all(has_noted) {
        return Ok((placement, epoch));
    }
    let (set, paths) = noted(epoch + 1);
    let change = |change: &dyn Fn(&ChunkIndex) -> io::Result<()>| {
        opened.iter().enumerate().try_for_each(|(position, volume)| {
            let error = OpenError::io("write the index of", volume.path());
            change(volume.index()).map_err(|source| (position, error(source)))
        })
    };
    // What was dropped is not to come back once the set is noted.
    change(&|index| index.sync())?;
    change(&|index| index.write_membership(&set, &paths))?;
    Ok((placement, epoch + 1))
}

fn drop_misplaced(opened: &mut [Volume], are_outdated: &[bool], placement: &Placement) {
    let live = VolumeSet::first(opened.len());
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
}
