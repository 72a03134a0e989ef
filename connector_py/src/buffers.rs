//! Buffer exports: what a caller passes as memory, held until its completion is drained.

use kvring::CallerBuffer;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::errors::SubmitError;

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// The memory is read, by a SET.
    Read,
    /// The memory is filled, by a GET.
    Fill,
}

/// Exports the memory of every object in `objects`.
pub(crate) fn export_all(
    objects: &Bound<'_, PyList>,
    usage: Use,
) -> PyResult<(Vec<PyUntypedBuffer>, Vec<CallerBuffer>)> {
    let mut exports = Vec::with_capacity(objects.len());
    let mut spans = Vec::with_capacity(objects.len());
    for (position, object) in objects.iter().enumerate() {
        let export = PyUntypedBuffer::get(&object)?;
        if !export.is_c_contiguous() {
            return Err(SubmitError::new_err(format!(
                "buffer {position} is not contiguous; pass one contiguous span of memory per key"
            )));
        }
        if usage == Use::Fill && export.readonly() {
            return Err(SubmitError::new_err(format!(
                "buffer {position} is read-only; a get needs writable memory"
            )));
        }
        // SAFETY: the export pins the memory and is released with the completion; that nobody else uses it meanwhile is
        // what LMCache promises by its read and write locks on the objects.
        spans.push(unsafe { CallerBuffer::new(export.buf_ptr().cast(), export.len_bytes()) });
        exports.push(export);
    }
    Ok((exports, spans))
}
