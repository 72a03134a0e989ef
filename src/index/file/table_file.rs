//! The index file on disk: changing records, syncing, noting the owner, releasing.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::changes::Change;
use super::record_writer::WriterEvent;
use super::table::Table;
use crate::base::system::fork::ClosedOnFork;
use crate::base::time::Patience;
use crate::error::way_to_write;
use crate::format::header::{
    HEADER_BYTES, Header, MEMBER_PATHS_OFFSET, MEMBERSHIP_OFFSET, SESSION_OFFSET, Session,
};
use crate::format::member_paths::{MemberPaths, MembershipBlock};
use crate::format::membership::Membership;
use crate::format::names::StoreId;
use crate::format::record::{RECORD_BYTES, Record, STATE_FREE};

/// Checksum and state of a record that the next open does not find.
const INVALID: [u8; 5] = [0, 0, 0, 0, STATE_FREE];
const _: () = assert!(offset_of!(Record, state) == offset_of!(Record, checksum) + 4);

/// A kill does not divide a write within one page.
const PAGE_BYTES: usize = 4096;
const _: () = assert!(
    (HEADER_BYTES as usize).is_multiple_of(PAGE_BYTES) && PAGE_BYTES.is_multiple_of(RECORD_BYTES)
);

/// Where a change goes in the file, and its bytes; none for one that is not of one record.
fn place_of(change: &Change) -> Option<(u64, &[u8])> {
    let (offset, bytes): (usize, &[u8]) = match change {
        Change::Write(_, record) => (0, bytemuck::bytes_of(&**record)),
        Change::Invalidate(_) => (offset_of!(Record, checksum), &INVALID),
        Change::Use(_, word) => (offset_of!(Record, last_use), bytemuck::bytes_of(word)),
        Change::MarkAll => return None,
    };
    let slot = slot_of(change)? as usize;
    Some((HEADER_BYTES + (slot * RECORD_BYTES + offset) as u64, bytes))
}

fn slot_of(change: &Change) -> Option<u32> {
    match change {
        Change::Write(slot, _) | Change::Invalidate(slot) | Change::Use(slot, _) => Some(*slot),
        Change::MarkAll => None,
    }
}

/// How long the file may refuse a change before SETs and DELETEs are refused, and how soon it is tried again until then, and after.
const LONGEST_REFUSAL: Duration = Duration::from_secs(10);
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(20);
const LATER_RETRY_PAUSE: Duration = Duration::from_millis(200);

impl Table {
    /// Has a change of a record written, behind all before it.
    pub(crate) fn change(&self, change: Change) {
        match self.changes.is_deferred.load(Ordering::SeqCst) {
            true => self.changes.push(change),
            false => self.note_made(&change, &self.try_to_make(&change)),
        }
    }

    /// Makes changes as they come until [`Changes::end`](super::changes::Changes::end) and the last of them. May wait for the file
    /// system. What the file refuses is tried again, and nothing behind it is made before. When that lasts long, `notify` gets the
    /// error, once, and [`Sequencer::refusal`](crate::base::sequencer::Sequencer::refusal) says so until the file takes it.
    pub(super) fn make_changes(&self, notify: &dyn Fn(WriterEvent<'_>)) {
        let mut changes = Vec::new();
        while self.changes.take(&mut changes) {
            self.is_cut_short();
            if !self.make_in_order(&changes, notify) {
                return;
            }
            self.changes.note_done(changes.len() as u64);
            changes.clear();
            notify(WriterEvent::Written);
        }
    }

    /// Makes changes in their order: those of one page that follow each other by one write. False if it is to end before.
    pub(crate) fn make_in_order(
        &self,
        changes: &[Change],
        notify: &dyn Fn(WriterEvent<'_>),
    ) -> bool {
        let page = |change: &Change| place_of(change).map(|(at, _)| at / PAGE_BYTES as u64);
        changes.chunk_by(|one, next| page(one).is_some() && page(one) == page(next)).all(|run| {
            run.len() > 1 && self.make_together(run)
                || run.iter().all(|change| self.make_with_retries(change, notify))
        })
    }

    /// Makes a change, again and again if it has to. False if it is to end before.
    fn make_with_retries(&self, change: &Change, notify: &dyn Fn(WriterEvent<'_>)) -> bool {
        let mut patience = Patience::new(LONGEST_REFUSAL);
        let mut pause = FIRST_RETRY_PAUSE;
        loop {
            let outcome = self.try_to_make(change);
            // The content of a page that cannot be read is lost anyway.
            if outcome.is_ok() || slot_of(change).is_some_and(|slot| self.is_lost(slot)) {
                self.note_made(change, &outcome);
                return true;
            }
            self.note_outcome(&outcome);
            if let Err(error) = &outcome
                && patience.step().is_none()
            {
                pause = LATER_RETRY_PAUSE;
                if self.changes.refuse(&self.refusal_text(error)) {
                    notify(WriterEvent::Refused(error));
                }
            }
            if !self.changes.pause(pause) {
                return false;
            }
        }
    }

    fn refusal_text(&self, error: &io::Error) -> String {
        let path = self.index_file.path.display();
        let way_out = way_to_write(error);
        // This is also the reason of a path that is out of use: it must not say that its chunks can be loaded.
        format!("{path} cannot be written: {error}; {way_out}")
    }

    /// Makes changes of one page by one write; says whether it did.
    fn make_together(&self, changes: &[Change]) -> bool {
        let Some((first, _)) = changes.first().and_then(place_of) else { return false };
        let start = first / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let mut page = [0; PAGE_BYTES];
        self.mapping.copy_out(start as usize, &mut page);
        if self.mapping.is_hole(start as usize) {
            return false;
        }
        let (mut from, mut to) = (PAGE_BYTES, 0);
        for (at, bytes) in changes.iter().filter_map(place_of) {
            let at = (at - start) as usize;
            page[at..at + bytes.len()].copy_from_slice(bytes);
            (from, to) = (from.min(at), to.max(at + bytes.len()));
        }
        let is_made = self.index_file.write_at(&page[from..to], start + from as u64).is_ok();
        if is_made {
            changes.iter().for_each(|change| self.note_made(change, &Ok(())));
        }
        is_made
    }

    fn try_to_make(&self, change: &Change) -> io::Result<()> {
        match place_of(change) {
            Some((at, bytes)) => self.index_file.write_at(bytes, at),
            None => {
                self.write_anew();
                Ok(())
            }
        }
    }

    fn note_made(&self, change: &Change, outcome: &io::Result<()>) {
        if let Change::Write(slot, record) = change {
            if outcome.is_err() || self.is_in_hole(*slot) {
                self.changes.note_lost(record.generation);
            }
            self.changes.unwritten.remove(*slot, record);
        }
        self.note_outcome(outcome);
    }

    fn note_outcome(&self, outcome: &io::Result<()>) {
        let (file, path) = (&self.index_file.path, self.index_file.path.display());
        match outcome {
            Ok(()) if !self.refuses_writes.load(Ordering::Relaxed) => {}
            Ok(()) => {
                self.refuses_writes.store(false, Ordering::Relaxed);
                self.changes.resume();
                self.logs.returns.log(file, 1, || {
                    format!("{path} can be written again: chunks are stored and deleted again")
                });
            }
            Err(error) if !self.refuses_writes.swap(true, Ordering::Relaxed) => {
                self.logs.refusals.log(file, 1, || {
                    format!("cannot write to {path}: {error}; nothing is stored or deleted before that is repaired")
                });
            }
            Err(_) => {}
        }
    }

    pub(crate) fn store_id(&self) -> io::Result<StoreId> {
        self.index_file.read_value::<Header>(0).map(|header| header.store_id)
    }

    /// Writes which stores share keys, and at which paths, durably.
    pub(crate) fn write_membership(
        &self,
        membership: &Membership,
        paths: &MemberPaths,
    ) -> io::Result<()> {
        let block = MembershipBlock::new(*membership, *paths);
        // Through a file of its own, for the reason of `prepare_syncs`.
        let (file, files) = (self.index_file.open_again()?, &self.index_file.files);
        let offset = self.index_file.offset + MEMBERSHIP_OFFSET;
        files.write_at(&file, bytemuck::bytes_of(&block), offset)?;
        files.sync_data(&file)
    }

    /// Whether it tells of exactly these paths.
    pub(crate) fn has_member_paths(&self, paths: &MemberPaths) -> bool {
        self.index_file
            .read_value(MEMBER_PATHS_OFFSET)
            .is_ok_and(|found: MemberPaths| found == *paths)
    }

    pub(crate) fn write_session(&self, session: &Session) -> io::Result<()> {
        self.index_file.write_at(bytemuck::bytes_of(session), SESSION_OFFSET)
    }

    /// Releases the file, and the lock with it: another process may own the store from here on. Every record reads as free
    /// afterwards.
    pub(crate) fn release_file(&self) -> io::Result<()> {
        self.index_file.release()?;
        self.mapping.release();
        self.sync_files.lock().iter().try_for_each(ClosedOnFork::release)
    }

    /// Opens the file once for each of the first `reactors` that sync it, unless it was before. The kernel reports a write-back error once to each open file:
    /// through a shared one, a reactor's sync could take the error that belongs to another's records.
    pub(crate) fn prepare_syncs(&self, reactors: usize) -> io::Result<()> {
        let mut files = self.sync_files.lock();
        while files.len() + 1 < reactors {
            files.push(self.index_file.open_again().map(ClosedOnFork::new)?);
        }
        Ok(())
    }

    /// Descriptor of the file by which reactor `number` syncs it.
    pub(crate) fn sync_descriptor(&self, number: usize) -> RawFd {
        let others = self.sync_files.lock();
        let of = |position: usize| others.get(position).map(|file| file.as_raw_fd());
        number.checked_sub(1).and_then(of).unwrap_or(self.index_file.file.as_raw_fd())
    }

    /// Why the next open would not find the file, or not all that this owner has in it, if so.
    pub(crate) fn missed(&self) -> Option<String> {
        let cut_short = || format!("its {} was cut short", self.index_file.name());
        self.index_file.missed().or_else(|| self.is_cut_short().then(cut_short))
    }

    /// Whether the file was ever seen shorter than its records. What was behind its end is lost, also if a record that is written
    /// there has made it as long again.
    fn is_cut_short(&self) -> bool {
        // Before the length, which grows first.
        let needed_bytes = HEADER_BYTES + u64::from(self.record_slots()) * RECORD_BYTES as u64;
        if matches!(self.index_file.length(), Ok(Some(bytes)) if bytes < needed_bytes) {
            self.was_cut_short.store(true, Ordering::Relaxed);
        }
        self.was_cut_short.load(Ordering::Relaxed)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        // The map and the file share the page cache: fdatasync writes what was stored through the map.
        self.index_file.sync()
    }

    /// As [`Table::write_anew`], behind the changes that are queued, and so before every sync that waits for a later ticket.
    pub(crate) fn write_anew_later(&self) {
        self.change(Change::MarkAll);
    }

    /// Has the next sync write all of it again: after a failed one the disk may lack what the kernel takes for written.
    pub(crate) fn write_anew(&self) {
        let bytes = HEADER_BYTES as usize + self.record_slots() as usize * RECORD_BYTES;
        let index = &self.index_file;
        if let Err(error) = self.mapping.mark_changed(bytes, |at, part| {
            index.files.mark_changed(&index.file, index.offset + at, part)
        }) {
            let path = index.path.display();
            self.logs.unmarked.log(&index.path, 1, || {
                format!("{path}: after a failed sync a deleted chunk may be back after power loss: {error}")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;

    use super::*;
    use crate::directory::Directory;
    use crate::format::names::INDEX_NAME;
    use crate::index::file::index_file::IndexPlace;
    use crate::index::file::locked_index::LockedIndex;
    use crate::space_account::SpaceAccount;

    /// Files open in this process by descriptor.
    fn inode(descriptor: RawFd) -> u64 {
        std::fs::metadata(format!("/proc/self/fd/{descriptor}")).unwrap().ino()
    }

    #[test]
    fn each_reactor_syncs_through_a_file_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let space = Arc::new(SpaceAccount::new(64 << 20));
        let place = IndexPlace::Directory(Arc::new(Directory::open(directory.path()).unwrap()));
        let (table, _) = Table::open(LockedIndex::look(place).unwrap(), space, 0).unwrap();
        assert_eq!(table.sync_descriptor(2), table.sync_descriptor(0));
        table.prepare_syncs(3).unwrap();
        assert_eq!(table.sync_files.lock().len(), 2);
        let descriptors: Vec<RawFd> = (0..3).map(|number| table.sync_descriptor(number)).collect();
        assert_eq!(descriptors.iter().collect::<HashSet<_>>().len(), 3);
        let index = std::fs::metadata(directory.path().join(INDEX_NAME)).unwrap().ino();
        assert!(descriptors.iter().all(|descriptor| inode(*descriptor) == index));
        // Nothing keeps the file, and so its file system, after that.
        table.release_file().unwrap();
        assert!(descriptors.iter().all(|descriptor| inode(*descriptor) != index));
    }
}
