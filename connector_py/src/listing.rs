//! What a store holds, read by anybody.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::from_open;

/// The chunks that a store holds, by its index.
#[pyclass(module = "kvring._native")]
pub(crate) struct StoredChunks(kvring::StoredChunks);

#[pymethods]
impl StoredChunks {
    /// Open the index of the store at `path`; that of a block device may be in the directory `index_path`.
    #[new]
    #[pyo3(signature = (path, index_path = None))]
    fn new(path: PathBuf, index_path: Option<PathBuf>) -> PyResult<Self> {
        kvring::list_chunks(&path, index_path.as_deref()).map(Self).map_err(from_open)
    }

    /// What of the store is broken, as far as it was read.
    fn damage(&self) -> Vec<String> {
        self.0.damage().sentences()
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(chunk) = self.0.next().transpose().map_err(from_open)? else { return Ok(None) };
        let all = PyDict::new(py);
        all.set_item("key", chunk.key)?;
        all.set_item("namespace", chunk.namespace)?;
        all.set_item("length_bytes", chunk.length_bytes)?;
        all.set_item("created_ms", chunk.created_ms)?;
        all.set_item("last_used_ms", chunk.last_used_ms)?;
        all.set_item("uses", chunk.uses)?;
        all.set_item("file", chunk.file.to_string_lossy())?;
        all.set_item("offset_bytes", chunk.offset_bytes)?;
        Ok(Some(all))
    }
}
