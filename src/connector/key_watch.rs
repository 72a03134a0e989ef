//! Which keys the store has, for books that are kept elsewhere.

use std::sync::Arc;

use super::volume::Volumes;
use crate::index::{KeyEvent, KeyEvents, UntoldChunk};

/// What was not taken yet.
#[derive(Default)]
pub(super) struct KeyWatch {
    events: Arc<KeyEvents>,
    /// Chunks that were stored when it began, with the number of their volume, the one that was used last first.
    stored: Vec<(UntoldChunk, u32)>,
}

impl KeyWatch {
    /// Has all volumes tell from here on. Returns how many keys are stored now, about.
    pub(super) fn begin(&mut self, volumes: &Volumes) -> usize {
        for (number, volume) in volumes.all.iter().enumerate() {
            let stored = volume.index().watch_keys(&self.events);
            self.stored.extend(stored.into_iter().map(|chunk| (chunk, number as u32)));
        }
        let failed = (0..volumes.all.len()).filter(|number| !volumes.is_live(*number));
        failed.for_each(|number| volumes.all[number].index().note_all_gone());
        self.stored.sort_unstable_by(|left, right| right.cmp(left));
        self.stored.len()
    }

    /// Up to `limit` keys that `select` takes of those that were stored when it began and still are.
    pub(super) fn take_stored(
        &mut self,
        volumes: &Volumes,
        limit: usize,
        select: impl Fn(KeyEvent) -> Option<KeyEvent>,
    ) -> Vec<KeyEvent> {
        let mut keys = Vec::new();
        while keys.len() < limit
            && let Some((chunk, number)) = self.stored.pop()
        {
            let told = volumes.all[number as usize].index().tell_stored(chunk);
            keys.extend(told.and_then(&select));
        }
        if self.stored.is_empty() {
            self.stored = Vec::new();
        }
        keys
    }

    /// Up to `limit` of the changes since it began that `select` takes.
    pub(super) fn take_events(
        &self,
        limit: usize,
        select: impl Fn(KeyEvent) -> Option<KeyEvent>,
    ) -> Vec<KeyEvent> {
        std::iter::from_fn(|| self.events.pop()).filter_map(select).take(limit).collect()
    }
}
