//! The facade of the index file: what the rest of the store asks of it.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use super::file::record_writer::{RecordWriter, WriterEvent};
use super::file::table::Table;
use super::memory::map::Index;
use crate::base::time::Patience;

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

/// What the rest of the store asks of the index file.
impl<S> Deref for Index<S> {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}
