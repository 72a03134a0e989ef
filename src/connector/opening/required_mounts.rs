//! `require_mount`: a store does not begin on the disk below a mount point whose drive is missing.

use std::fs::File;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::comparison::real_path;
use crate::base::mounts::Mount;
use crate::config::Config;
use crate::directory::Directory;
use crate::error::{ConfigError, OpenError};

/// What an automounter has at a mount point until the file system is mounted.
const AUTOMOUNTER: &str = "autofs";

/// Refuses a required mount that nothing of the store lies on.
pub(super) fn check_required(config: &Config) -> Result<(), ConfigError> {
    let is_idle = |mount: &&PathBuf| !places(config).any(|place| is_below(place, mount));
    let Some(mount) = config.require_mounts.iter().find(is_idle) else { return Ok(()) };
    let reason = "neither a path nor index_path is there or below it".to_owned();
    Err(ConfigError::unfitting("require_mount", format!("'{}'", mount.display()), reason))
}

/// Refuses a path, of which `config` is, if one of its required mounts is no mount point. An automounter mounts it here.
pub(super) fn check_mounted(config: &Config) -> Result<(), OpenError> {
    for mount in &config.require_mounts {
        if places(config).any(|place| is_below(place, mount)) && !is_mounted(mount)? {
            let (path, disk) = (config.path().to_owned(), disk_of(mount));
            return Err(OpenError::NotMounted { path, mount: mount.clone(), disk });
        }
    }
    Ok(())
}

fn places(config: &Config) -> impl Iterator<Item = &Path> {
    config.paths.iter().chain(&config.index_path).map(AsRef::as_ref)
}

fn is_below(place: &Path, mount: &Path) -> bool {
    real_path(place).starts_with(real_path(mount))
}

fn is_mounted(mount: &Path) -> Result<bool, OpenError> {
    let directory = match Directory::open(mount) {
        Ok(directory) => directory,
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(false),
        Err(error) => return Err(OpenError::io("open the directory", mount)(error)),
    };
    let found = Mount::of(directory.file.as_fd());
    let found = found.map_err(OpenError::io("find out what is mounted at", mount))?;
    Ok(found.point == real_path(mount) && found.file_system != AUTOMOUNTER)
}

/// What the directory lies on that is no mount point.
fn disk_of(mount: &Path) -> Option<String> {
    let file = real_path(mount).ancestors().find_map(|above| File::open(above).ok())?;
    let found = Mount::of(file.as_fd()).ok()?;
    Some(format!("{} ({found})", found.point.display()))
}
