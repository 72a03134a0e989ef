//! Finding the index of a store, to read it without its lock.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::directory::Directory;
use crate::error::OpenError;
use crate::format::names::{INDEX_NAME, StoreId, device_index_name};
use crate::format::superblock::{DEVICE_FORMAT_VERSION, Superblock, SuperblockCopy};
use crate::index::file::index_bytes::{IndexBytes, data_in};
use crate::store::device::superblock_copies;

pub(super) fn index_in(directory: &Directory) -> Result<IndexBytes, OpenError> {
    open_index(directory, INDEX_NAME, None).map_err(|error| match (error, data_in(directory)) {
        (OpenError::Io { source, .. }, Some(stored)) if source.kind() == io::ErrorKind::NotFound => {
            unreadable(
                directory.path(),
                &format!(
                    "there are {stored}, but no {INDEX_NAME}: nothing tells what they hold, and opening the store begins a new index"
                ),
            )
        }
        (error, _) => error,
    })
}

pub(super) fn index_of_device(
    device: File,
    path: &Path,
    superblock: &Superblock,
    index_path: Option<&Path>,
) -> Result<IndexBytes, OpenError> {
    match index_path {
        Some(index_path) => {
            let directory =
                Directory::open(index_path).map_err(OpenError::io("open", index_path))?;
            let id = superblock.store_id;
            open_index(&directory, &device_index_name(id), Some(id))
        }
        None if superblock.index_bytes == 0 => {
            Err(unreadable(path, "its index is elsewhere: say where, as index_path"))
        }
        None => Ok(IndexBytes::of_device(device, path, superblock)),
    }
}

fn open_index(
    directory: &Directory,
    name: &str,
    store_id: Option<StoreId>,
) -> Result<IndexBytes, OpenError> {
    let file = directory.open_to_read(name).map_err(directory.error("read", name))?;
    Ok(IndexBytes::of_file(file, directory.path().join(name), store_id))
}

/// The superblock of a device, and whether both of its copies are whole.
pub(super) fn superblock_of(device: &File, path: &Path) -> Result<(Superblock, bool), OpenError> {
    let copies = superblock_copies(device);
    let newer = |found| {
        let (path, supported) = (path.to_owned(), DEVICE_FORMAT_VERSION);
        OpenError::NewerFormat { path, found, supported }
    };
    if let Some(found) = SuperblockCopy::judge(copies).map_err(newer)? {
        return Ok(found);
    }
    let reason = match () {
        () if copies.contains(&SuperblockCopy::Damaged) => {
            "its superblock is damaged, and its copy too"
        }
        () if copies.contains(&SuperblockCopy::Unreadable) => "its superblock cannot be read",
        () => "it holds no store",
    };
    Err(unreadable(path, reason))
}

pub(super) fn unreadable(path: &Path, reason: &str) -> OpenError {
    OpenError::io("read", path)(io::Error::new(io::ErrorKind::InvalidData, reason.to_owned()))
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A file of this length that is opened to write alone: nothing of it can be read.
    pub(crate) fn unreadable_file(length_bytes: u64) -> (tempfile::TempDir, File, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = File::options().write(true).create_new(true).open(&path).unwrap();
        file.set_len(length_bytes).unwrap();
        (directory, file, path)
    }

    #[test]
    fn superblocks_that_cannot_be_read_are_told_from_none() {
        let (_directory, file, path) = unreadable_file(1 << 20);
        let reason = |file: &File| superblock_of(file, &path).err().unwrap().to_string();
        assert!(reason(&file).contains("its superblock cannot be read"), "{}", reason(&file));
        let readable = File::open(&path).unwrap();
        assert!(reason(&readable).contains("it holds no store"), "{}", reason(&readable));
    }
}
