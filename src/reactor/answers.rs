//! Answers of SETs and DELETEs that wait until the records are written that they changed.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::backlog::QueueShare;
use crate::batch::BatchItem;
use crate::cache::Cache;
use crate::sync::Mutex;

/// Answers that wait for changes of records, in the order of their tickets.
#[derive(Default)]
pub(super) struct Answers(pub(super) Mutex<WaitingAnswers>);

#[derive(Default)]
pub(super) struct WaitingAnswers {
    pub(super) answers: VecDeque<(u64, Answer)>,
    pub(super) have_ended: bool,
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
    pub(super) fn give(self, cache: &Cache) {
        match self {
            Self::Removed(items) => items.into_iter().for_each(BatchItem::succeed),
            Self::Stored { item, share, generation } => {
                // Before the answer: who sees that finds the room.
                drop(share);
                if generation.is_some_and(|generation| cache.records().changes.has_lost(generation))
                {
                    cache.counters.set_failed.add(1);
                    let path = cache.config.path().display();
                    item.fail(|| {
                        format!("cannot write the record of a chunk into the index of {path}")
                    });
                } else {
                    item.succeed();
                }
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
