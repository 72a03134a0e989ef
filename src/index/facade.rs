//! The facade of the index file: what the rest of the store asks of it.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::file::record_writer::{RecordWriter, WriterEvent};
use super::file::table::Reservation;
use super::memory::map::Index;
use crate::base::log_limit::LogLimit;
use crate::base::time::Patience;
use crate::error::StoreError;
use crate::format::membership::Membership;
use crate::format::names::StoreId;
use crate::store::IndexShare;

/// Changes of records on their way into the file. They are numbered: a ticket is behind all that were queued before it.
impl<S> Index<S> {
    /// Starts the thread that writes changes, which `notify` is told of. Without it each change is written where it is made.
    pub(crate) fn start_writer(
        &self,
        notify: impl Fn(WriterEvent<'_>) + Send + 'static,
    ) -> io::Result<RecordWriter> {
        RecordWriter::start(&self.table, notify)
    }

    /// Wakes the thread if there is something for it. Callers do so once after many changes: each time costs a system call.
    pub(crate) fn announce_changes(&self) {
        self.table.changes.announce();
    }

    pub(crate) fn queued_changes(&self) -> u64 {
        self.table.changes.sequencer.ticket()
    }

    pub(crate) fn written_changes(&self) -> u64 {
        self.table.changes.sequencer.done()
    }

    /// Ticket behind the last change that is to be durable: uses alone are not.
    pub(crate) fn lasting_changes(&self) -> u64 {
        self.table.changes.lasting_ticket()
    }

    /// When this ticket is written, no record in the file names an extent that is free now.
    pub(crate) fn freeing_changes(&self) -> u64 {
        self.table.changes.freed_ticket()
    }

    pub(crate) fn are_written(&self, ticket: u64) -> bool {
        self.table.changes.sequencer.is_done(ticket)
    }

    /// Waits until they are written, or `patience` is over, and says whether they are: not if nobody writes any more, or the file
    /// refuses them.
    pub(crate) fn wait_until_written(&self, ticket: u64, patience: Option<&mut Patience>) -> bool {
        self.table.changes.sequencer.wait(ticket, patience)
    }

    /// Why the file takes no change, if so. Then nothing is stored or deleted.
    pub(crate) fn write_refusal(&self) -> Option<Arc<str>> {
        self.table.changes.sequencer.refusal()
    }

    /// Whether the record of the chunk with this generation could not be written. It is forgotten then.
    pub(crate) fn has_lost_record(&self, generation: u64) -> bool {
        self.table.changes.has_lost(generation)
    }

    /// Nobody waits for changes any more.
    pub(crate) fn abandon_changes(&self) {
        self.table.changes.sequencer.end();
    }
}

/// Making the file durable.
impl<S> Index<S> {
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.table.sync()
    }

    /// Opens the file once for each of the first `reactors` that sync it: each is told of write-back errors of its own.
    pub(crate) fn prepare_syncs(&self, reactors: usize) -> io::Result<()> {
        self.table.prepare_syncs(reactors)
    }

    /// Descriptor of the file by which reactor `number` syncs it.
    pub(crate) fn sync_descriptor(&self, number: usize) -> RawFd {
        self.table.sync_descriptor(number)
    }

    /// Has the next sync write all of the file again: after a failed one the disk may lack what the kernel takes for written.
    pub(crate) fn write_anew(&self) {
        self.table.write_anew();
    }

    /// The same, behind the changes that are queued, and so before every sync that waits for a later ticket.
    pub(crate) fn write_anew_later(&self) {
        self.table.write_anew_later();
    }

    pub(crate) fn store_id(&self) -> io::Result<StoreId> {
        self.table.store_id()
    }

    /// Writes which stores share keys, durably.
    pub(crate) fn write_membership(&self, membership: &Membership) -> io::Result<()> {
        self.table.write_membership(membership)
    }

    /// Releases the file, and the lock with it: another process may own the store from here on.
    pub(crate) fn release_file(&self) -> io::Result<()> {
        self.table.release_file()
    }
}

/// Records and space.
impl<S> Index<S> {
    /// Slots for the record of a chunk whose key has `key_length` bytes; does not block.
    ///
    /// # Errors
    /// `StoreError` when there are none: [`StoreError::Growing`] where growth may make some.
    pub(crate) fn reserve_record(&self, key_length: usize) -> Result<Reservation, StoreError> {
        self.table.reserve(key_length)
    }

    /// # Errors
    /// No record is written: too many pages were lost.
    pub(crate) fn check_writable(&self) -> Result<(), StoreError> {
        self.table.unreadable().map_or(Ok(()), Err)
    }

    /// Why too many pages are lost for anything to be stored, if so.
    pub(crate) fn unreadable(&self) -> Option<StoreError> {
        self.table.unreadable()
    }

    /// Pages of the file that the disk did not return.
    pub(crate) fn lost_pages(&self) -> usize {
        self.table.lost_pages()
    }

    /// Records that the file has room for.
    pub(crate) fn record_slots(&self) -> u32 {
        self.table.slot_count()
    }

    pub(crate) fn used_records(&self) -> u32 {
        self.table.used_slots()
    }

    pub(crate) fn is_growth_due(&self) -> bool {
        self.table.is_growth_due()
    }

    /// Lengthens the file by a step; waits for the file system.
    ///
    /// # Errors
    /// `StoreError` when the capacity or the file system refuses.
    pub(crate) fn grow(&self) -> Result<(), StoreError> {
        self.table.grow()
    }

    /// Maps the pages that were added since there were so many slots. It may wait for the disk.
    pub(crate) fn populate_from(&self, record_slots: u32) {
        self.table.populate_from(record_slots);
    }

    /// Its part of the space of the store.
    pub(crate) fn space(&self) -> &dyn IndexShare {
        &*self.table
    }

    /// Why the next open would not find the file, or not all that this owner has in it, if so.
    pub(crate) fn missed(&self) -> Option<String> {
        self.table.missed()
    }

    pub(crate) fn log_limits(&self) -> [&LogLimit; 4] {
        self.table.log_limits()
    }
}
