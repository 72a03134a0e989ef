//! Where a store lives: in a directory, or on a block device.

use std::collections::HashMap;
use std::sync::Arc;

use crate::budget::Budget;
use crate::config::{Config, Layout};
use crate::directory::Directory;
use crate::engine::Waker;
use crate::error::OpenError;
use crate::index::{IndexPlace, owner_in_directory, owner_on_device};
use crate::lock::Owner;
use crate::store::Store;
use crate::store::device::{Device, Target};
use crate::store::extents::ExtentStore;
use crate::store::files::FileStore;

pub(super) enum Home {
    Directory(Arc<Directory>),
    Device(Arc<Device>),
}

impl Home {
    /// Makes the directory that `config` names and locks it, or claims the device, and formats it if that is wanted.
    pub(super) fn open(config: &Config, now_ms: u64) -> Result<Self, OpenError> {
        match Target::of(config.path())? {
            Target::Directory => {
                config.check_for_directory()?;
                let directory = Directory::open_or_make(config.path()).map_err(|source| {
                    let path = config.path().to_owned();
                    OpenError::Io { action: "make the directory", path, source }
                })?;
                directory.lock(|| owner_in_directory(&directory))?;
                Ok(Self::Directory(Arc::new(directory)))
            }
            Target::Device => {
                config.check_for_device()?;
                let index_path = config.index_path.as_deref();
                let device = Device::open(config, now_ms, |device, superblock| {
                    owner_on_device(device, superblock, index_path)
                })?;
                Ok(Self::Device(Arc::new(device)))
            }
        }
    }

    /// What the store may take: `wanted_bytes`, or all of the device.
    pub(super) fn capacity_bytes(&self, wanted_bytes: u64) -> u64 {
        match self {
            Self::Device(device) if wanted_bytes == Config::WHOLE_DEVICE => device.size_bytes(),
            _ => wanted_bytes,
        }
    }

    /// The account of what the store takes. What is free on a device is nobody else's: it needs no floor.
    pub(super) fn budget(&self, config: &Config) -> Budget {
        let budget = Budget::new(config.capacity_bytes());
        match self {
            Self::Directory(directory) => budget.with_floor(directory, config.min_free),
            Self::Device(_) => budget,
        }
    }

    pub(super) fn index_place(&self, config: &Config) -> IndexPlace {
        match (self, &config.index_path) {
            (Self::Directory(directory), _) => IndexPlace::Directory(Arc::clone(directory)),
            (Self::Device(device), None) => IndexPlace::Device(Arc::clone(device)),
            (Self::Device(device), Some(directory)) => {
                IndexPlace::Beside(directory.clone(), Arc::clone(device))
            }
        }
    }

    pub(super) fn open_store(
        &self,
        config: &Config,
        budget: &Arc<Budget>,
        owner: impl Fn() -> Option<Owner>,
        mean_use_by_file: impl FnOnce() -> HashMap<u32, u64>,
        wakers: &[Arc<Waker>],
    ) -> Result<Box<dyn Store>, OpenError> {
        let budget = Arc::clone(budget);
        Ok(match (self, config.layout) {
            (Self::Directory(directory), Layout::Extents) => {
                Box::new(ExtentStore::open(directory, budget, owner, mean_use_by_file)?)
            }
            (Self::Directory(directory), Layout::Files) => {
                Box::new(FileStore::open(directory, budget, wakers.to_vec())?)
            }
            (Self::Device(device), _) => {
                Box::new(ExtentStore::on_device(device, budget, config.discard))
            }
        })
    }
}
