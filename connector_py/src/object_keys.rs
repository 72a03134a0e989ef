//! LMCache's object keys as strings, and back: in the form of its own native connectors, so that a store is read by either adapter.

use kvring::ObjectKey;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::PyBytes;

/// Each of a sequence of object keys as a string.
pub(crate) fn rendered(keys: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let py = keys.py();
    let mut all = Vec::with_capacity(keys.len()?);
    for key in keys.try_iter()? {
        let key = key?;
        let model: PyBackedStr = key.getattr(intern!(py, "model_name"))?.extract()?;
        let hash: PyBackedBytes = key.getattr(intern!(py, "chunk_hash"))?.extract()?;
        let salt: PyBackedStr = key.getattr(intern!(py, "cache_salt"))?.extract()?;
        let key = ObjectKey {
            model_name: &model,
            kv_rank: key.getattr(intern!(py, "kv_rank"))?.extract()?,
            object_group_id: key.getattr(intern!(py, "object_group_id"))?.extract()?,
            chunk_hash: (&*hash).into(),
            cache_salt: &salt,
        };
        all.push(key.to_string());
    }
    Ok(all)
}

/// An object key of LMCache as a string, by its fields.
#[pyfunction]
#[pyo3(signature = (model_name, kv_rank, object_group_id, chunk_hash, cache_salt = ""))]
pub(crate) fn object_key_text(
    model_name: &str,
    kv_rank: u64,
    object_group_id: u64,
    chunk_hash: &[u8],
    cache_salt: &str,
) -> String {
    let chunk_hash = chunk_hash.into();
    ObjectKey { model_name, kv_rank, object_group_id, chunk_hash, cache_salt }.to_string()
}

/// Object keys of `class` for keys of a store, and the lengths of their chunks. Keys of another form are left out: LMCache does not
/// know them.
pub(crate) fn objects_of<'py>(
    class: &Bound<'py, PyAny>,
    keys: &[PyBackedStr],
    lengths_bytes: &[u64],
) -> PyResult<(Vec<Bound<'py, PyAny>>, Vec<u64>)> {
    let (mut objects, mut lengths) = (Vec::new(), Vec::new());
    for (key, length_bytes) in keys.iter().zip(lengths_bytes) {
        let Some(key) = ObjectKey::parse(key) else { continue };
        let hash = PyBytes::new(class.py(), &key.chunk_hash);
        let fields = (hash, key.model_name, key.kv_rank, key.object_group_id, key.cache_salt);
        // A model or a salt that its constructor refuses came from elsewhere.
        if let Ok(object) = class.call1(fields) {
            objects.push(object);
            lengths.push(*length_bytes);
        }
    }
    Ok((objects, lengths))
}
