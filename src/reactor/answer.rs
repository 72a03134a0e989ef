//! An answer of a SET or DELETE that waits until its change is in the index file.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::batch::backlog::QueueShare;
use crate::batch::failure::{FailureCode, FailureReason};
use crate::batch::responder::Responder;
use crate::cache::Cache;

/// Answers that wait for changes of records.
#[derive(Default)]
pub(super) struct WaitingAnswers {
    /// In the order of their tickets.
    pub(super) answers: VecDeque<(u64, Answer)>,
    pub(super) have_ended: bool,
}

/// What is answered when all changes are made that were queued before it.
pub(crate) enum Answer {
    /// Of a SET, whose chunk got a record with this generation, or none.
    Stored {
        item: Responder,
        share: Arc<QueueShare>,
        generation: Option<u64>,
    },
    Removed(Vec<Responder>),
}

impl Answer {
    pub(super) fn give(self, cache: &Cache) {
        match self {
            Self::Removed(items) => items.into_iter().for_each(Responder::succeed),
            Self::Stored { generation: Some(generation), .. }
                if cache.index.has_lost_record(generation) =>
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

    pub(super) fn fail(self, cache: &Cache, reason: &FailureReason) {
        match self {
            Self::Removed(items) => items.into_iter().for_each(|item| item.fail(|| reason.clone())),
            Self::Stored { item, share, .. } => {
                drop(share);
                cache.counters.set_failed.add(1);
                item.fail(|| reason.clone());
            }
        }
    }

    pub(super) fn count(&self) -> usize {
        match self {
            Self::Removed(items) => items.len(),
            Self::Stored { .. } => 1,
        }
    }
}
