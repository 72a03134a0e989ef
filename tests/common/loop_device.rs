//! A bare loop device over a sparse file in a temporary directory, gone with the value.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::MIB;

pub(crate) struct LoopDevice {
    path: PathBuf,
    image: PathBuf,
    _directory: tempfile::TempDir,
}

impl LoopDevice {
    /// Makes a blank one with logical blocks of this length; `None`, and a line on standard error, where that cannot be.
    pub(crate) fn new(size_mib: u64, block_bytes: u32) -> Option<Self> {
        let fill =
            |image: &Path| std::fs::File::create(image).unwrap().set_len(size_mib * MIB).unwrap();
        Self::over(fill, block_bytes)
    }

    /// Makes one of what this one has now: what has not been written to the device yet is lost, as with the power.
    pub(crate) fn copy(&self, block_bytes: u32) -> Option<Self> {
        let copy = |image: &Path| {
            let mut command = Command::new("cp");
            let status = command.arg("--sparse=always").arg(&self.image).arg(image).status();
            assert!(status.unwrap().success());
        };
        Self::over(copy, block_bytes)
    }

    fn over(make_image: impl FnOnce(&Path), block_bytes: u32) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        make_image(&image);
        let block_bytes = block_bytes.to_string();
        let options = ["--find", "--show", "--direct-io=on", "--sector-size", &block_bytes];
        let outcome = Command::new("losetup").args(options).arg(&image).output();
        let Some(answer) = outcome.ok().filter(|answer| answer.status.success()) else {
            eprintln!("skipped: losetup makes no loop device here; it needs root and util-linux");
            return None;
        };
        let path = PathBuf::from(String::from_utf8(answer.stdout).unwrap().trim());
        Some(Self { path, image, _directory: directory })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // It goes as soon as the last of its users lets go of it, the kernel among them.
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}
