//! Telling which keys of this engine are stored, and which are gone, for books that are kept elsewhere.

use super::{Connector, KeyWatch, SubmitError};
use crate::index::KeyEvent;

impl Connector {
    /// From here on every key of this engine that is stored is told, and every one that is gone: deleted, evicted, expired, damaged, or at a path
    /// that has failed. What nobody takes stays in memory. Returns how many keys are stored now, about; a second call watches on.
    pub fn watch_keys(&self) -> Result<usize, SubmitError> {
        let _gate = self.enter::<&str>(&[])?;
        let mut watch = self.key_watch.lock();
        let KeyWatch { events, stored } = watch.get_or_insert_default();
        for (number, volume) in self.volumes.all.iter().enumerate() {
            let now = volume.index().watch_keys(events);
            stored.extend(now.into_iter().map(|chunk| (chunk, number as u32)));
        }
        let failed = (0..self.volumes.all.len()).filter(|number| !self.volumes.is_live(*number));
        failed.for_each(|number| self.volumes.all[number].index().note_all_gone());
        stored.sort_unstable_by(|left, right| right.cmp(left));
        Ok(stored.len())
    }

    /// Up to `limit` keys that were stored when [`Connector::watch_keys`] began and still are, the least recently used ones first; none
    /// when all were taken. A key is told here before anything else is told of it.
    pub fn take_stored_keys(&self, limit: usize) -> Result<Vec<KeyEvent>, SubmitError> {
        let _gate = self.enter::<&str>(&[])?;
        let mut watch = self.key_watch.lock();
        let Some(watch) = &mut *watch else { return Ok(Vec::new()) };
        let mut keys = Vec::new();
        while keys.len() < limit
            && let Some((chunk, number)) = watch.stored.pop()
        {
            let told = self.volumes.all[number as usize].index().tell_stored(chunk);
            keys.extend(told.and_then(|event| self.own_event(event)));
        }
        if watch.stored.is_empty() {
            watch.stored = Vec::new();
        }
        Ok(keys)
    }

    /// Up to `limit` of the changes since [`Connector::watch_keys`], those of one key in order. What [`Connector::take_stored_keys`] returned
    /// before is older than these.
    pub fn take_key_events(&self, limit: usize) -> Result<Vec<KeyEvent>, SubmitError> {
        let _gate = self.enter::<&str>(&[])?;
        let watch = self.key_watch.lock();
        let Some(watch) = &*watch else { return Ok(Vec::new()) };
        let events = std::iter::from_fn(|| watch.events.pop());
        Ok(events.filter_map(|event| self.own_event(event)).take(limit).collect())
    }

    /// What is told of a key of this engine; nothing of those of others.
    fn own_event(&self, event: KeyEvent) -> Option<KeyEvent> {
        let key = self.own_key(&event.key)?;
        if key.len() == event.key.len() {
            return Some(event);
        }
        Some(KeyEvent { key: key.to_owned(), ..event })
    }
}
