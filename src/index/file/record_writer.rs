//! The thread that changes records in the file of the index, in the order in which they were changed in memory. It alone may
//! wait for that file system: no reactor and no submit does.
//!
//! These wait for it:
//!
//! - A SET is answered when its record is written, a DELETE when its records are cleared: a kill loses nothing that was answered.
//! - Nothing is written to an extent, and it is not discarded, before the record is cleared that named it.
//! - In `persistent`, a sync of the index begins when the records are written that it is for.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::table::Table;
use crate::base::sync::thread::{Builder, JoinHandle};
use crate::base::thread::join;

/// What the thread tells.
pub(crate) enum WriterEvent<'error> {
    /// Some changes are written.
    Written,
    /// The file has refused a change for long. It is tried again; meanwhile the refusal is known.
    Refused(&'error io::Error),
    /// The thread ends by a panic.
    Panicked,
}

pub(crate) struct RecordWriter {
    table: Arc<Table>,
    thread: JoinHandle<()>,
}

impl RecordWriter {
    pub(crate) fn start(
        table: &Arc<Table>,
        notify: impl Fn(WriterEvent<'_>) + Send + 'static,
    ) -> io::Result<Self> {
        let thread = Builder::new().name("kvring-records".into()).spawn({
            let table = Arc::clone(table);
            move || match catch_unwind(AssertUnwindSafe(|| table.make_changes(&notify))) {
                Ok(()) => table.changes.sequencer.end(),
                Err(panic) => {
                    notify(WriterEvent::Panicked);
                    resume_unwind(panic);
                }
            }
        })?;
        table.changes.defer(true);
        Ok(Self { table: Arc::clone(table), thread })
    }

    /// Ends it when everything is written, for which the file system may take any time, or is refused. Says whether everything is
    /// written.
    pub(crate) fn end(self) -> bool {
        let changes = &self.table.changes;
        changes.end();
        join(self.thread, "what was stored or deleted last is not in the index");
        let is_written = changes.is_done(changes.ticket());
        if is_written {
            changes.defer(false);
        }
        is_written
    }
}
