//! LMCache's object keys as strings, and back: in the form of its own native connectors, so that a store is read by either adapter.

use std::fmt::Write as _;

use kvring::KeyEvent;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::PyBytes;

/// `model@kv_rank@object_group@chunk_hash`, then `@cache_salt` if there is one, for each of a sequence of object keys
/// (`native_connector_l2_adapter.py` of LMCache 0.5.6).
pub(crate) fn rendered(keys: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let py = keys.py();
    let mut all = Vec::with_capacity(keys.len()?);
    for key in keys.try_iter()? {
        let key = key?;
        let model: PyBackedStr = key.getattr(intern!(py, "model_name"))?.extract()?;
        let rank: u64 = key.getattr(intern!(py, "kv_rank"))?.extract()?;
        let group: u64 = key.getattr(intern!(py, "object_group_id"))?.extract()?;
        let hash: PyBackedBytes = key.getattr(intern!(py, "chunk_hash"))?.extract()?;
        let salt: PyBackedStr = key.getattr(intern!(py, "cache_salt"))?.extract()?;
        all.push(text_of(&model, rank, group, &hash, &salt));
    }
    Ok(all)
}

fn text_of(model: &str, rank: u64, group: u64, hash: &[u8], salt: &str) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(model.len() + 2 * hash.len() + salt.len() + 24);
    // Writing to a string does not fail.
    let _ = write!(text, "{model}@{rank:08x}@{group:x}@");
    for byte in hash {
        text.push(DIGITS[usize::from(byte >> 4)].into());
        text.push(DIGITS[usize::from(byte & 15)].into());
    }
    if !salt.is_empty() {
        text.push('@');
        text.push_str(salt);
    }
    text
}

/// The fields of an object key, in the order of its constructor.
pub(crate) type Fields<'key> = (Vec<u8>, &'key str, u64, u64, &'key str);

/// The fields of a key of that form; none for any other key.
pub(crate) fn fields_of(key: &str) -> Option<Fields<'_>> {
    let fields: Vec<&str> = key.split('@').collect();
    let (model, rank, group, hash, salt) = match fields[..] {
        [model, rank, group, hash] => (model, rank, group, hash, ""),
        [model, rank, group, hash, salt] => (model, rank, group, hash, salt),
        _ => return None,
    };
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let (pairs, []) = hash.as_bytes().as_chunks() else { return None };
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    let hash: Vec<u8> = pairs.iter().map(byte).collect::<Option<_>>()?;
    let (rank, group) = (number(rank)?, number(group)?);
    // One that is written in another way is another key.
    (text_of(model, rank, group, &hash, salt) == key).then_some((hash, model, rank, group, salt))
}

/// Object keys of `class`, and the lengths of their chunks. Keys of another form are left out: LMCache does not know them.
pub(crate) fn objects_of<'py>(
    class: &Bound<'py, PyAny>,
    events: &[KeyEvent],
) -> PyResult<(Vec<Bound<'py, PyAny>>, Vec<u64>)> {
    let (mut keys, mut lengths_bytes) = (Vec::new(), Vec::new());
    for event in events {
        let Some((hash, model, rank, group, salt)) = fields_of(&event.key) else { continue };
        let hash = PyBytes::new(class.py(), &hash);
        // A model or a salt that its constructor refuses came from elsewhere.
        if let Ok(key) = class.call1((hash, model, rank, group, salt)) {
            keys.push(key);
            lengths_bytes.push(event.length_bytes);
        }
    }
    Ok((keys, lengths_bytes))
}
