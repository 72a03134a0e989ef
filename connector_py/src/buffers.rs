//! Buffer exports: what a caller passes as memory, held until its completion is drained.

use std::mem::MaybeUninit;

use kvring::CallerBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
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

/// One export of an object's memory as plain contiguous bytes. The exporter keeps the memory where it is until the
/// export is dropped.
pub(crate) struct Export(Box<ffi::Py_buffer>);

// SAFETY: the view is only a record of pointers; it is touched again only to release it, with the GIL held (see Drop).
unsafe impl Send for Export {}

impl Export {
    fn new(object: &Bound<'_, PyAny>, usage: Use) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
        // PyBUF_SIMPLE asks for contiguous bytes whatever the item format or the shape.
        let flags = match usage {
            Use::Read => ffi::PyBUF_SIMPLE,
            Use::Fill => ffi::PyBUF_WRITABLE,
        };
        // SAFETY: the GIL is held (there is a Bound), `view` has room for one Py_buffer at an address that stays.
        let status = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) };
        if status != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: filled by PyObject_GetBuffer, which succeeded.
        Ok(Self(unsafe { view.assume_init() }))
    }

    fn span(&self) -> CallerBuffer {
        // SAFETY: the export pins the memory and is released with the completion; that nobody else uses it meanwhile is
        // what LMCache promises by its read and write locks on the objects.
        unsafe { CallerBuffer::new(self.0.buf.cast(), self.0.len.unsigned_abs()) }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // An interpreter that is ending takes no thread in any more; its memory goes with the process.
        let _ = Python::try_attach(|_| {
            // SAFETY: the view was filled by PyObject_GetBuffer and is released once, with the GIL held.
            unsafe { ffi::PyBuffer_Release(&raw mut *self.0) }
        });
    }
}

/// Exports the memory of every object in `objects`.
pub(crate) fn export_all(
    objects: &Bound<'_, PyList>,
    usage: Use,
) -> PyResult<(Vec<Export>, Vec<CallerBuffer>)> {
    let mut exports = Vec::with_capacity(objects.len());
    let mut spans = Vec::with_capacity(objects.len());
    for (position, object) in objects.iter().enumerate() {
        let export = Export::new(&object, usage)
            .map_err(|error| explain(error, position, usage, &object))?;
        spans.push(export.span());
        exports.push(export);
    }
    Ok((exports, spans))
}

/// Says which buffer is refused and what it must be. An object without a buffer stays the TypeError that it is.
fn explain(error: PyErr, position: usize, usage: Use, object: &Bound<'_, PyAny>) -> PyErr {
    if !error.is_instance_of::<PyBufferError>(object.py()) {
        return error;
    }
    let readable = Export::new(object, Use::Read).is_ok();
    SubmitError::new_err(match usage {
        Use::Fill if readable => {
            format!("buffer {position} is read-only; a get needs writable memory")
        }
        _ => format!(
            "buffer {position} is not contiguous; pass one contiguous span of memory per key"
        ),
    })
}
