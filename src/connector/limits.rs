//! The limits of an open store that can be changed: capacity, `ttl` and quotas.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use thiserror::Error;

use super::volume::Volume;
use super::{Connector, SubmitError};
use crate::config::{Config, LimitChanges, OptionValue};
use crate::error::ConfigError;

/// Most namespaces with quotas: each has an order of eviction at each path.
const MAX_QUOTAS: usize = 4096;

/// Limits of an open store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// Of each path in use; while `used_bytes` are more the store is being brought down to it.
    pub capacities: Vec<(PathBuf, u64)>,
    /// After this time without use a chunk is a miss.
    pub ttl: Option<Duration>,
    /// Bytes by namespace.
    pub quotas: Vec<(String, u64)>,
}

/// Limits stay what they are.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the message of each error says what it means")]
pub enum LimitError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error(
        "{path} is a block device: its capacity is changed when it is opened; restart with another one"
    )]
    Device { path: PathBuf },
    #[error("{path} is out of use: {reason}; capacities can be changed once all paths are in use")]
    OutOfUse { path: PathBuf, reason: String },
    #[error(
        "keys belong to paths in proportion to their capacities, which are {before}; {after} are in another proportion, and keys \
         would move: change all by the same factor, or restart with other ones"
    )]
    Proportion { before: String, after: String },
    #[error("capacity = {capacity} is too little for {path}: {what}; it takes {least} or more now")]
    TooSmall { path: PathBuf, capacity: ByteSize, what: String, least: ByteSize },
    #[error(
        "capacity = {capacity} is more than the file system of {path} has for it, {most}: what it takes and what is free above \
         min_free; free space there, or take less"
    )]
    NoSpace { path: PathBuf, capacity: ByteSize, most: ByteSize },
    #[error(
        "{count} namespaces would have had quotas since the open, and {MAX_QUOTAS} can: close the store, and open it again with \
         those that it is to have"
    )]
    TooManyQuotas { count: usize },
}

impl Connector {
    /// The limits as they are now.
    pub fn limits(&self) -> Result<StoreLimits, SubmitError> {
        let _gate = self.enter::<&str>(&[])?;
        let index = self.volumes.all[0].index();
        let capacity = |volume: &Volume| (volume.path().to_owned(), volume.space.capacity_bytes());
        Ok(StoreLimits {
            capacities: self.volumes.live().map(capacity).collect(),
            ttl: index.ttl(),
            quotas: index.quotas.limits(),
        })
    }

    /// Changes limits, by the names and values of their options: `capacity`, `ttl`, and `quotas`, of which those that are named
    /// change ('none' takes one away). All are checked first. What no longer fits is evicted in the background, but for what is pinned,
    /// leased, read or being written. The next open has the limits that it is given.
    ///
    /// # Errors
    /// `LimitError`: nothing has changed.
    pub fn change_limits(
        &self,
        options: impl IntoIterator<Item = (String, OptionValue)>,
    ) -> Result<(), LimitError> {
        let changes = LimitChanges::from_options(options)?;
        let _gate = self.enter::<&str>(&[])?;
        let _one_at_a_time = self.limit_changes.lock();
        let capacities = changes.capacities_bytes.map(|bytes| self.check_capacities(bytes));
        let capacities = capacities.transpose()?;
        self.check_quotas(&changes.quotas)?;
        for (volume, bytes) in self.volumes.all.iter().zip(capacities.into_iter().flatten()) {
            let before = ByteSize(volume.space.capacity_bytes());
            log::info!("{}: capacity {before} is {} now", volume.path().display(), ByteSize(bytes));
            volume.shared.cache.set_capacity_bytes(bytes);
        }
        if let Some(ttl) = changes.ttl {
            self.volumes.all.iter().for_each(|volume| volume.index().set_ttl(ttl));
        }
        changes.quotas.iter().for_each(|(name, bytes)| self.set_quota(name, *bytes));
        // With the time that it waits for another `ttl` by now.
        self.volumes.all.iter().for_each(|volume| volume.shared.cache.note_new_limits());
        Ok(())
    }

    /// The capacity of each path.
    fn check_capacities(&self, given: Vec<u64>) -> Result<Vec<u64>, LimitError> {
        let volumes = &self.volumes;
        if let Some(one) = volumes.unavailable.first() {
            let (path, reason) = (one.path.clone(), one.reason.clone());
            return Err(LimitError::OutOfUse { path, reason });
        }
        let paths = volumes.all.len();
        let after = match given[..] {
            [one] => vec![one; paths],
            _ if given.len() == paths => given,
            _ => return Err(ConfigError::Capacities { paths, capacities: given.len() }.into()),
        };
        let before: Vec<u64> = volumes.all.iter().map(|one| one.space.capacity_bytes()).collect();
        let is_proportional = |(old, new): (&u64, &u64)| {
            u128::from(*old) * u128::from(after[0]) == u128::from(*new) * u128::from(before[0])
        };
        if !before.iter().zip(&after).all(is_proportional) {
            let text = |bytes: &[u64]| {
                bytes.iter().map(|one| ByteSize(*one).to_string()).collect::<Vec<_>>().join(", ")
            };
            return Err(LimitError::Proportion { before: text(&before), after: text(&after) });
        }
        for (number, (volume, bytes)) in volumes.all.iter().zip(&after).enumerate() {
            self.check_capacity(number, volume, *bytes)?;
        }
        Ok(after)
    }

    fn check_capacity(
        &self,
        number: usize,
        volume: &Volume,
        capacity_bytes: u64,
    ) -> Result<(), LimitError> {
        let path = volume.path().to_owned();
        if !self.volumes.is_live(number) || volume.shared.has_failed() {
            let reason = volume.shared.health.reason().unwrap_or_default();
            return Err(LimitError::OutOfUse { path, reason });
        }
        if volume.shared.cache.store.is_on_device() || capacity_bytes == Config::WHOLE_DEVICE {
            return Err(LimitError::Device { path });
        }
        let capacity = ByteSize(capacity_bytes);
        let index = volume.index();
        let least = [
            (index.least_capacity_bytes(), "its index takes half of that"),
            (index.least_bytes_of_pins(), "half of that is pinned"),
        ];
        for (least_bytes, what) in least {
            if capacity_bytes < least_bytes {
                let least = ByteSize(least_bytes);
                return Err(LimitError::TooSmall { path, capacity, what: what.into(), least });
            }
        }
        let (space, before_bytes) = (&volume.space, volume.space.capacity_bytes());
        let most_bytes = space.used_bytes().saturating_add(space.free_above_floor_bytes());
        match capacity_bytes > before_bytes && capacity_bytes > most_bytes {
            true => Err(LimitError::NoSpace { path, capacity, most: ByteSize(most_bytes) }),
            false => Ok(()),
        }
    }

    fn check_quotas(&self, changes: &[(String, Option<u64>)]) -> Result<(), LimitError> {
        let quotas = &self.volumes.all[0].index().quotas;
        let new =
            changes.iter().filter(|(name, bytes)| bytes.is_some() && quotas.called(name).is_none());
        let count = quotas.all().len() + new.count();
        if count > MAX_QUOTAS { Err(LimitError::TooManyQuotas { count }) } else { Ok(()) }
    }

    fn set_quota(&self, name: &str, bytes: Option<u64>) {
        let quotas = &self.volumes.all[0].index().quotas;
        let quota = match (quotas.called(name), bytes) {
            (Some(known), _) => known,
            (None, None) => return,
            (None, Some(_)) => {
                let added = quotas.add(name, self.config.lease_s);
                self.volumes.all.iter().for_each(|one| one.index().add_quota(name, &added));
                // A path that is out of use has no part in it.
                let all = self.volumes.all.iter().enumerate();
                all.filter(|(number, _)| !self.volumes.is_live(*number))
                    .for_each(|(_, one)| one.index().eviction_index.lock().leave_quotas());
                added
            }
        };
        quota.set_limit_bytes(bytes);
    }
}
