//! Telling which keys of this engine are stored, and which are gone.

use super::{Connector, SubmitError};
use crate::index::KeyEvent;

impl Connector {
    /// From here on every key of this engine that is stored is told, and every one that is gone: deleted, evicted, expired, damaged, or at a path
    /// that has failed. What nobody takes stays in memory. Returns how many keys are stored now, about; a second call watches on.
    pub fn watch_keys(&self) -> Result<usize, SubmitError> {
        let _gate = self.enter::<&str>(&[])?;
        Ok(self.key_watch.lock().get_or_insert_default().begin(&self.volumes))
    }

    /// Up to `limit` keys that were stored when [`Connector::watch_keys`] began and still are, the least recently used ones first; none
    /// when all were taken. A key is told here before anything else is told of it.
    pub fn take_stored_keys(&self, limit: usize) -> Result<Vec<KeyEvent>, SubmitError> {
        let _gate = self.enter::<&str>(&[])?;
        let mut watch = self.key_watch.lock();
        let Some(watch) = &mut *watch else { return Ok(Vec::new()) };
        Ok(watch.take_stored(&self.volumes, limit, |event| self.own_event(event)))
    }

    /// Up to `limit` of the changes since [`Connector::watch_keys`], those of one key in order. What [`Connector::take_stored_keys`] returned
    /// before is older than these.
    pub fn take_key_events(&self, limit: usize) -> Result<Vec<KeyEvent>, SubmitError> {
        let _gate = self.enter::<&str>(&[])?;
        let watch = self.key_watch.lock();
        let Some(watch) = &*watch else { return Ok(Vec::new()) };
        Ok(watch.take_events(limit, |event| self.own_event(event)))
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
