//! The thread that changes records in the file of the index, in the order in which they were changed in memory. It alone may
//! wait for that file system: no reactor and no submit does.
//!
//! These wait for it:
//!
//! - A SET is answered when its record is written, a DELETE when its records are cleared: a kill loses nothing that was answered.
//! - Nothing is written to an extent, and it is not discarded, before the record is cleared that named it.
//! - In `persistent`, a sync of the index begins when the records are written that it is for.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::errnos::is_of_path;
use crate::backlog::QueueShare;
use crate::batch_completion::BatchItem;
use crate::cache::Cache;
use crate::failure::{FailureCode, FailureReason};
use crate::sync::atomic::Ordering;
use crate::sync::thread::{Builder, JoinHandle};
use crate::thread::join;

/// Answers that wait for changes of records.
#[derive(Default)]
pub(super) struct WaitingAnswers {
    /// In the order of their tickets.
    answers: VecDeque<(u64, Answer)>,
    have_ended: bool,
}

/// What is answered when all changes are made that were queued before it.
pub(crate) enum Answer {
    /// Of a SET, whose chunk got a record with this generation, or none.
    Stored {
        item: BatchItem,
        share: Arc<QueueShare>,
        generation: Option<u64>,
    },
    Removed(Vec<BatchItem>),
}

impl Answer {
    fn give(self, cache: &Cache) {
        match self {
            Self::Removed(items) => items.into_iter().for_each(BatchItem::succeed),
            Self::Stored { generation: Some(generation), .. }
                if cache.index.table.changes.has_lost(generation) =>
            {
                let path = cache.config.path().display();
                let message =
                    format!("cannot write the record of a chunk into the index of {path}");
                self.fail(cache, &FailureReason::new(FailureCode::Io, message));
            }
            Self::Stored { item, share, .. } => {
                // Before the answer: the caller may submit more then.
                drop(share);
                item.succeed();
            }
        }
    }

    fn fail(self, cache: &Cache, reason: &FailureReason) {
        match self {
            Self::Removed(items) => items.into_iter().for_each(|item| item.fail(|| reason.clone())),
            Self::Stored { item, share, .. } => {
                drop(share);
                cache.counters.set_failed.add(1);
                item.fail(|| reason.clone());
            }
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::Removed(items) => items.len(),
            Self::Stored { .. } => 1,
        }
    }
}

/// The index takes no change, for this reason.
fn unavailable(refusal: &str) -> FailureReason {
    FailureReason::new(FailureCode::Unavailable, refusal)
}

impl Shared {
    /// Answers when all changes of records are made that were queued by now. If they are refused, or nobody makes them any more, it
    /// fails.
    pub(crate) fn answer_when_written(&self, answer: Answer) {
        let progress = &self.cache.index.table.changes.progress;
        let mut waiting = self.answers.lock();
        let ticket = progress.ticket();
        match progress.is_done(ticket) {
            true => {
                drop(waiting);
                answer.give(&self.cache);
            }
            false if waiting.have_ended => {}
            false => match progress.refusal() {
                Some(reason) => {
                    drop(waiting);
                    answer.fail(&self.cache, &unavailable(&reason));
                }
                None => waiting.answers.push_back((ticket, answer)),
            },
        }
    }

    /// The index takes no change: fails what waits for it, and what reactors have that does.
    fn note_index_refuses(&self, error: &io::Error) {
        let progress = &self.cache.index.table.changes.progress;
        let reason = progress.refusal().unwrap_or_default();
        if error.raw_os_error().is_none_or(is_of_path) && self.cache.path_count() > 1 {
            self.health.fail_for_now(|| reason.to_string());
        }
        // After the refusal is known: whoever comes later sees it.
        let answers = std::mem::take(&mut self.answers.lock().answers);
        let reason = unavailable(&reason);
        answers.into_iter().for_each(|(_, answer)| answer.fail(&self.cache, &reason));
        self.completions.announce();
        self.lanes.iter().for_each(|lane| lane.waker.wake());
    }

    /// Some changes were made: gives the answers that waited for them, and wakes the reactors that do.
    fn note_changes_made(&self) {
        let progress = &self.cache.index.table.changes.progress;
        let mut waiting = self.answers.lock();
        let end = waiting.answers.partition_point(|(ticket, _)| progress.is_done(*ticket));
        let due: Vec<Answer> = waiting.answers.drain(..end).map(|(_, answer)| answer).collect();
        drop(waiting);
        if !due.is_empty() {
            due.into_iter().for_each(|answer| answer.give(&self.cache));
            self.completions.announce();
        }
        let waits = |lane: &&super::lanes::Lane| lane.awaits_records.load(Ordering::SeqCst);
        self.lanes.iter().filter(waits).for_each(|lane| lane.waker.wake());
    }

    /// Nothing is stored or deleted any more.
    fn fail_for(&self, reason: &str) {
        let path = self.cache.config.path().display();
        log::error!("{path}: {reason}; every operation fails from here on");
        self.has_failed.store(true, Ordering::SeqCst);
        self.health.fail(|| reason.into());
        self.stop(Duration::ZERO);
        self.fail_answers();
    }

    /// Nobody makes changes any more, or it is not worth waiting for: fails what waits for them.
    pub(crate) fn fail_answers(&self) {
        self.cache.index.table.changes.progress.end();
        let mut waiting = self.answers.lock();
        waiting.have_ended = true;
        let left = std::mem::take(&mut waiting.answers);
        drop(waiting);
        let count: usize = left.iter().map(|(_, answer)| answer.count()).sum();
        self.cache.counters.abandoned.add(count as u64);
        drop(left);
        self.completions.announce();
    }
}

pub(crate) struct RecordWriter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl RecordWriter {
    pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let shared = Arc::clone(shared);
        if shared.cache.config.works_inline {
            return Ok(Self { shared, thread: None });
        }
        let thread = Builder::new().name("kvring-records".into()).spawn({
            let shared = Arc::clone(&shared);
            move || {
                let table = &shared.cache.index.table;
                let notify = |refusal: Option<&io::Error>| match refusal {
                    Some(error) => shared.note_index_refuses(error),
                    None => shared.note_changes_made(),
                };
                let make = || table.make_changes(notify);
                match catch_unwind(AssertUnwindSafe(make)) {
                    Ok(()) => table.changes.progress.end(),
                    Err(panic) => {
                        shared.fail_for(
                            "the thread that writes its records has stopped after a panic",
                        );
                        resume_unwind(panic);
                    }
                }
            }
        })?;
        shared.cache.index.table.changes.defer(true);
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Ends it when everything is written, for which the file system may take any time, or is refused. Says whether everything is
    /// written. What waits for an answer that is not, fails.
    pub(crate) fn end(self) -> bool {
        let changes = &self.shared.cache.index.table.changes;
        changes.end();
        if let Some(thread) = self.thread {
            join(thread, "what was stored or deleted last is not in the index");
        }
        let is_written = changes.progress.is_done(changes.progress.ticket());
        if is_written {
            changes.defer(false);
        }
        self.shared.fail_answers();
        is_written
    }
}
