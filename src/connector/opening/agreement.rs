//! Bringing opened paths into agreement: each keeps the keys that it owns, and notes which paths are in use.

use std::io;

use super::comparison::newest_of;
use crate::cache::ChunkIndex;
use crate::connector::volume::Volume;
use crate::error::OpenError;
use crate::format::membership::Membership;
use crate::format::names::StoreId;
use crate::index::Sharing;
use crate::placement::{Placement, VolumeSet};

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
    let ids: Vec<StoreId> = opened.iter().map(|volume| volume.id).collect();
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
    change(&|index| index.sync())?;
    change(&|index| index.write_membership(&set))?;
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
