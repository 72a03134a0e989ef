//! Files without blocks and syncs: what makes a store slow to open, and shows nothing where neither power nor space runs out.

use std::fs::File;
use std::io;
use std::ops::Range;

use kvring::testing::FileOperations;

#[derive(Debug)]
pub(crate) struct SparseFiles;

impl FileOperations for SparseFiles {
    fn preallocate(&self, file: &File, bytes: Range<u64>, flags: i32) -> io::Result<()> {
        match flags == 0 && bytes.end > file.metadata()?.len() {
            true => file.set_len(bytes.end),
            false => Ok(()),
        }
    }

    fn sync_data(&self, _: &File) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self, _: &File) -> io::Result<()> {
        Ok(())
    }

    fn sync_file_system(&self, _: &File) -> io::Result<()> {
        Ok(())
    }
}
