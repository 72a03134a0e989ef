//! Waiting until keys that are removed in memory are removed in the index files, too.

use std::sync::Arc;
use std::time::Duration;

use super::SubmitError;
use crate::base::time::Patience;
use crate::reactor::ReactorGroup;

/// As long as LMCache waits for a delete of a native connector.
const LONGEST_DELETE: Duration = Duration::from_secs(30);

/// Keys that are removed in memory, and may still be in the index file.
#[must_use = "a kill may bring the keys back before it was waited for"]
#[derive(Default)]
pub struct Removal {
    waits: Vec<(Arc<ReactorGroup>, u64)>,
    /// Keys of a path stay.
    pub(super) refused: Option<SubmitError>,
}

impl Removal {
    /// What was queued for the index of a path by now.
    pub(super) fn add(&mut self, shared: &Arc<ReactorGroup>) {
        let index = &shared.cache.index;
        index.announce_changes();
        self.waits.push((Arc::clone(shared), index.queued_changes()));
    }

    /// Waits for the index file, for 30 s at most; without the gate, or close() would wait as well.
    ///
    /// # Errors
    /// [`SubmitError::NotRemoved`]: the index of a path did not take all of it, or its keys were not removed at all.
    pub fn wait(self) -> Result<(), SubmitError> {
        self.wait_within(Some(&mut Patience::new(LONGEST_DELETE)))
    }

    /// As long as `patience` lasts.
    pub(super) fn wait_within(
        self,
        mut patience: Option<&mut Patience>,
    ) -> Result<(), SubmitError> {
        let mut outcome = self.refused.map_or(Ok(()), Err);
        for (shared, ticket) in self.waits {
            if !shared.cache.index.wait_until_written(ticket, patience.as_deref_mut()) {
                outcome = outcome.and(Err(not_removed(&shared)));
            }
        }
        outcome
    }
}

/// The error of a removal that the index of a path does not take.
pub(super) fn not_removed(shared: &ReactorGroup) -> SubmitError {
    let refusal = shared.cache.refusal().map(|reason| reason.to_string());
    let reason = refusal.or_else(|| shared.health.reason()).unwrap_or_else(|| {
        "its file system did not take the change in time, or the store was closed; a restart may bring keys back: remove them \
         again"
            .into()
    });
    SubmitError::NotRemoved { path: shared.cache.config.path().to_owned(), reason }
}
