//! Keys as Python hands them in, and their syntax, which is that of the core. LMCache's object keys have the form of its own native
//! connectors, so that a store is read by either adapter.

use kvring::Identity;
use pyo3::exceptions::PyUnicodeEncodeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PySequence, PyString};

use crate::errors::{SubmitError, refused, type_name};
use kvring::ObjectKey;
use pyo3::intern;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

/// Keys as UTF-8, which the str objects keep.
pub(crate) struct Keys(pub(crate) Vec<PyBackedStr>);

impl<'py> FromPyObject<'_, 'py> for Keys {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Err(SubmitError::new_err(
                "keys is one str; pass a list of str, also for one key",
            ));
        }
        let Ok(keys) = object.cast::<PySequence>() else {
            let kind = type_name(&object);
            return Err(SubmitError::new_err(format!(
                "keys is of type {kind}; pass a list of str"
            )));
        };
        let keys = keys.try_iter()?.enumerate();
        keys.map(|(position, key)| text(position, &key?)).collect::<PyResult<_>>().map(Self)
    }
}

fn text(position: usize, key: &Bound<'_, PyAny>) -> PyResult<PyBackedStr> {
    let Ok(text) = key.cast::<PyString>() else {
        let kind = type_name(key);
        let message = format!("key {position} is of type {kind}; pass a str");
        return Err(refused(position, message, None));
    };
    PyBackedStr::try_from(text.clone()).map_err(|error| {
        if !error.is_instance_of::<PyUnicodeEncodeError>(key.py()) {
            return error;
        }
        let message = format!(
            "key {position} has a lone surrogate, which UTF-8 cannot hold; write it in another way, such as \
             key.encode(errors=\"backslashreplace\").decode()"
        );
        refused(position, message, Some(error))
    })
}

/// A key, or a namespace, of an identity as it is stored; `text` itself without one.
#[pyfunction]
pub(crate) fn qualified(identity: Option<&str>, text: &str) -> String {
    let identity = identity.filter(|name| *name != "none").and_then(Identity::named);
    identity.map_or_else(|| text.to_owned(), |identity| identity.qualify(text))
}

/// The namespace of what an engine stores.
#[pyfunction]
pub(crate) fn engine_namespace(engine: &str, digest: &str, model: &str) -> String {
    kvring::engine_namespace(engine, digest, model)
}

/// What the keys of a namespace and a rank begin with.
#[pyfunction]
pub(crate) fn rank_prefix(namespace: &str, rank: u64) -> String {
    kvring::rank_prefix(namespace, rank)
}

/// The key of one part of what an engine stores.
#[pyfunction]
pub(crate) fn part_key(prefix: &str, part: usize, key: &str) -> String {
    kvring::part_key(prefix, part, key)
}

/// The cache salt of a namespace.
#[pyfunction]
pub(crate) fn salt_of(namespace: &str) -> &str {
    kvring::salt_of(namespace)
}

/// Whether a namespace is of a model.
#[pyfunction]
pub(crate) fn is_of_model(namespace: &str, model: &str) -> bool {
    kvring::is_of_model(namespace, model)
}

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
