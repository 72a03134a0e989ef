//! Which answers are given when changes of records are in the index file, or are refused.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::ReactorGroup;
use super::group::{Answer, Lane};
use super::io_error_policy::is_of_path;
use crate::base::sync::atomic::Ordering;
use crate::batch::completion_queue::{FailureCode, FailureReason};
use crate::index::{RecordWriter, WriterEvent};

/// The index takes no change, for this reason.
fn unavailable(refusal: &str) -> FailureReason {
    FailureReason::new(FailureCode::Unavailable, refusal)
}

impl ReactorGroup {
    /// Starts the thread that writes records, which answers what waits for them.
    pub(crate) fn start_record_writer(self: &Arc<Self>) -> io::Result<RecordWriter> {
        let group = Arc::clone(self);
        self.cache.index.start_writer(move |event| match event {
            WriterEvent::Written => group.note_changes_made(),
            WriterEvent::Refused(error) => group.note_index_refuses(error),
            WriterEvent::Panicked => {
                group.fail_for("the thread that writes its records has stopped after a panic");
            }
        })
    }

    /// Answers when all changes of records are made that were queued by now. If they are refused, or nobody makes them any more, it
    /// fails.
    pub(crate) fn answer_when_written(&self, answer: Answer) {
        let index = &self.cache.index;
        let mut waiting = self.answers.lock();
        let ticket = index.queued_changes();
        match index.are_written(ticket) {
            true => {
                drop(waiting);
                answer.give(&self.cache);
            }
            false if waiting.have_ended => {}
            false => match index.write_refusal() {
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
        let reason = self.cache.index.write_refusal().unwrap_or_default();
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
        let mut waiting = self.answers.lock();
        let is_due = |(ticket, _): &(u64, Answer)| self.cache.index.are_written(*ticket);
        let end = waiting.answers.partition_point(is_due);
        let due: Vec<Answer> = waiting.answers.drain(..end).map(|(_, answer)| answer).collect();
        drop(waiting);
        if !due.is_empty() {
            due.into_iter().for_each(|answer| answer.give(&self.cache));
            self.completions.announce();
        }
        let waits = |lane: &&Lane| lane.awaits_records.load(Ordering::SeqCst);
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
        self.cache.index.abandon_changes();
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
