//! Which keys of a store come and go: what tasks of both kinds have in common.

use kvring::{KeyChange, KeyEvent};
use pyo3::prelude::*;

use crate::connector::Connector;
use crate::errors::from_submit;

/// Keys that changed in the same way, one after the other, with the lengths of their chunks.
type Run = (&'static str, Vec<String>, Vec<u64>);

/// The keys of a connector, as they are in the store.
#[pyclass(module = "kvring._native", frozen, subclass)]
pub(crate) struct KeyWatch {
    connector: Py<Connector>,
}

impl KeyWatch {
    pub(crate) fn new(connector: Py<Connector>) -> Self {
        Self { connector }
    }

    fn core(&self) -> &kvring::Connector {
        &self.connector.get().core
    }
}

#[pymethods]
impl KeyWatch {
    /// Begin to note which keys come and go; return how many are stored.
    fn watch_keys(&self, py: Python<'_>) -> PyResult<usize> {
        py.detach(|| self.core().watch_keys()).map_err(from_submit)
    }

    /// Take up to `limit` keys that were stored when watching began, and the lengths of their chunks.
    fn take_stored_keys(&self, py: Python<'_>, limit: usize) -> PyResult<(Vec<String>, Vec<u64>)> {
        let stored = py.detach(|| self.core().take_stored_keys(limit)).map_err(from_submit)?;
        Ok(keys_of(&stored))
    }

    /// Take up to `limit` changes of keys: runs of "stored", "stored again" or "gone".
    fn take_key_events(&self, py: Python<'_>, limit: usize) -> PyResult<Vec<Run>> {
        let events = py.detach(|| self.core().take_key_events(limit)).map_err(from_submit)?;
        let run = |run: &[KeyEvent]| {
            let (keys, lengths_bytes) = keys_of(run);
            (name_of(run[0].change), keys, lengths_bytes)
        };
        Ok(events.chunk_by(|one, next| one.change == next.change).map(run).collect())
    }
}

fn keys_of(events: &[KeyEvent]) -> (Vec<String>, Vec<u64>) {
    events.iter().map(|event| (event.key.clone(), event.length_bytes)).unzip()
}

fn name_of(change: KeyChange) -> &'static str {
    match change {
        KeyChange::Stored => "stored",
        KeyChange::StoredAgain => "stored again",
        KeyChange::Gone => "gone",
    }
}
