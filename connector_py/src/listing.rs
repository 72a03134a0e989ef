//! What a store holds, read by anybody.

use std::path::PathBuf;

use kvring::{ChunkCondition, ChunkReader};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::dicts::dict_of;
use crate::errors::from_open;

/// What reading a chunk showed, a reason, and its bytes.
type Reading<'py> = (&'static str, Option<String>, Option<Bound<'py, PyBytes>>);

/// The chunks that a store holds, by its index.
#[pyclass(module = "kvring._native")]
pub(crate) struct StoredChunks {
    chunks: kvring::StoredChunks,
    reader: ChunkReader,
    /// The one that was listed last.
    last: Option<kvring::StoredChunk>,
}

#[pymethods]
impl StoredChunks {
    /// Open the index of the store at `path`; that of a block device may be in the directory `index_path`.
    #[new]
    #[pyo3(signature = (path, index_path = None, *, most_bytes_per_s = None))]
    fn new(
        path: PathBuf,
        index_path: Option<PathBuf>,
        most_bytes_per_s: Option<u64>,
    ) -> PyResult<Self> {
        let chunks = kvring::list_chunks(&path, index_path.as_deref()).map_err(from_open)?;
        Ok(Self { chunks, reader: ChunkReader::new(&path, most_bytes_per_s), last: None })
    }

    /// What of the store is broken, as far as it was read.
    fn damage(&self) -> Vec<String> {
        self.chunks.damage().sentences()
    }

    /// What the store tells of itself, without its chunks.
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let facts = self.chunks.facts().map_err(from_open)?;
        let all = dict_of!(py, facts:
            store_id format_version created_ms index_bytes opened_ms is_closed_in_order
            holder holder_process_id);
        all.set_item("layout", facts.layout.map(kvring::Layout::name))?;
        let members = facts.members.iter().map(|member| {
            let one = dict_of!(py, member: store_id);
            one.set_item("path", member.path.as_ref().map(|path| path.to_string_lossy()))?;
            Ok(one)
        });
        all.set_item("members", members.collect::<PyResult<Vec<_>>>()?)?;
        Ok(all)
    }

    /// Read the chunk that was listed last: what that showed, a reason, and its bytes if they are to be kept.
    #[pyo3(signature = (*, keep))]
    fn read<'py>(&mut self, py: Python<'py>, keep: bool) -> PyResult<Reading<'py>> {
        let Self { chunks, reader, last } = self;
        let Some(chunk) = last else {
            return Err(PyValueError::new_err("no chunk was listed yet"));
        };
        let mut bytes = Vec::new();
        let condition = py.detach(|| {
            if keep {
                bytes.reserve_exact(chunk.length_bytes as usize);
            }
            reader.read(chunks, chunk, |piece| {
                if keep {
                    bytes.extend_from_slice(piece);
                }
            })
        });
        let (name, reason) = match condition {
            ChunkCondition::Read { is_checked: true } => ("intact", None),
            ChunkCondition::Read { is_checked: false } => ("unchecked", None),
            ChunkCondition::Damaged => ("damaged", None),
            ChunkCondition::Unreadable(ref error) => ("unreadable", Some(error.to_string())),
            ChunkCondition::Gone => ("gone", None),
        };
        let kept = keep && matches!(condition, ChunkCondition::Read { .. });
        Ok((name, reason, kept.then(|| PyBytes::new(py, &bytes))))
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.last = self.chunks.next().transpose().map_err(from_open)?;
        let Some(chunk) = &self.last else { return Ok(None) };
        let all = dict_of!(py, chunk:
            key namespace length_bytes created_ms last_used_ms uses offset_bytes variant);
        all.set_item("file", chunk.file.to_string_lossy())?;
        Ok(Some(all))
    }
}
