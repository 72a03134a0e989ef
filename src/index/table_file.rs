//! The sidecar on disk: syncing, who has it open, giving it up.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;

use super::record::{HEADER_BYTES, RECORD_BYTES, SESSION_OFFSET, Session};
use super::table::Table;
use crate::error::StoreError;
use crate::fork::{GivenUpInForks, close_file_behind};

impl Table {
    /// Notes who has the store open, from which generation on, and whether it is closed in order.
    pub(crate) fn write_session(&self, session: &Session) -> io::Result<()> {
        self.backing.write_at(bytemuck::bytes_of(session), SESSION_OFFSET)
    }

    /// Gives up the file, and the lock with it: another process may own the store from here on. Every record is free as
    /// far as this one can see.
    pub(crate) fn give_up(&self) -> io::Result<()> {
        self.backing.give_up()?;
        self.mapping.give_up();
        for (_, file) in self.sync_files.get().into_iter().flatten() {
            close_file_behind(file.as_raw_fd());
        }
        Ok(())
    }

    /// Opens the file once for each of `reactors` that sync it. The kernel tells an error of writing back once to each open
    /// file: through a shared one, a reactor's sync could take the error that belongs to another's records.
    pub(crate) fn prepare_syncs(&self, reactors: usize) -> io::Result<()> {
        let open = |_| {
            let file = self.backing.open_again()?;
            Ok((GivenUpInForks::new(file.as_raw_fd()), file))
        };
        let files = (1..reactors).map(open).collect::<io::Result<Vec<_>>>()?;
        self.sync_files.get_or_init(|| files);
        Ok(())
    }

    /// Descriptor of the file by which reactor `number` syncs it.
    pub(crate) fn sync_descriptor(&self, number: usize) -> RawFd {
        let others = self.sync_files.get().map_or(&[][..], Vec::as_slice);
        let of = |position: usize| others.get(position).map(|(_, file)| file.as_raw_fd());
        number.checked_sub(1).and_then(of).unwrap_or(self.backing.descriptor())
    }

    /// Why the next open would not find the file, if so.
    pub(crate) fn missed(&self) -> Option<String> {
        self.backing.missed()
    }

    /// Gives the file blocks of its own, if it shares some with a copy, or has none. A page of the mapping that is written and
    /// finds none is lost.
    pub(crate) fn unshare(&self) {
        let lacks_blocks = match self.backing.unshare() {
            Ok(()) => false,
            Err(error) => matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)),
        };
        if lacks_blocks && !self.lacks_blocks.swap(lacks_blocks, Ordering::Relaxed) {
            log::warn!("{}", self.why_not_written());
        }
        self.lacks_blocks.store(lacks_blocks, Ordering::Relaxed);
    }

    /// Whether there are parts of the file that cannot be written, for want of blocks, as far as that is known.
    pub(crate) fn lacks_blocks(&self) -> bool {
        self.lacks_blocks.load(Ordering::Relaxed)
    }

    /// What is said then.
    pub(crate) fn why_not_written(&self) -> StoreError {
        StoreError::IndexShared { path: self.backing.path().to_owned() }
    }

    /// Makes all records written so far durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        // The map and the file share the page cache: fdatasync writes what was stored through the map.
        self.backing.file().sync_data()
    }

    /// Has the next sync write all of it again: after a failed one the disk may lack what the kernel takes for written.
    pub(crate) fn write_anew(&self) {
        let bytes = HEADER_BYTES as usize + self.slot_count() as usize * RECORD_BYTES;
        if let Err(error) = self.mapping.mark_changed(bytes) {
            log::warn!(
                "{}: after a failed sync a deleted chunk may be back after power loss: {error}",
                self.backing.path().display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;

    use super::*;
    use crate::budget::Budget;
    use crate::directory::Directory;
    use crate::index::backing::IndexPlace;
    use crate::index::found::FoundIndex;
    use crate::index::table::INDEX_NAME;

    /// Files open in this process by descriptor.
    fn inode(descriptor: RawFd) -> u64 {
        std::fs::metadata(format!("/proc/self/fd/{descriptor}")).unwrap().ino()
    }

    #[test]
    fn each_reactor_syncs_through_a_file_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let budget = Arc::new(Budget::new(64 << 20));
        let place = IndexPlace::Directory(Arc::new(Directory::open(directory.path()).unwrap()));
        let (table, _) = Table::open(FoundIndex::look(place).unwrap(), budget, 0).unwrap();
        assert_eq!(table.sync_descriptor(2), table.sync_descriptor(0));
        table.prepare_syncs(3).unwrap();
        let descriptors: Vec<RawFd> = (0..3).map(|number| table.sync_descriptor(number)).collect();
        assert_eq!(descriptors.iter().collect::<HashSet<_>>().len(), 3);
        let index = std::fs::metadata(directory.path().join(INDEX_NAME)).unwrap().ino();
        assert!(descriptors.iter().all(|descriptor| inode(*descriptor) == index));
        // Nothing keeps the file, and so its file system, after that.
        table.give_up().unwrap();
        assert!(descriptors.iter().all(|descriptor| inode(*descriptor) != index));
    }
}
