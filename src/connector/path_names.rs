//! Checks of the names of several paths, before anything is opened.

use std::path::{Component, Path, PathBuf};

use crate::config::Config;
use crate::error::OpenError;

/// Refuses two paths that are one, and one inside another.
pub(super) fn check_paths(config: &Config) -> Result<(), OpenError> {
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
