//! Buffer exports: what a caller passes as memory, held until its completion is drained.

use std::mem::MaybeUninit;

use kvring::{CallerBuffer, KeepAlive};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PySequence;

use crate::errors::{SubmitError, refused, type_name};
use crate::tensors::{Storage, is_tensor, storage_of};

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

/// The CRC-64/NVME of a key and of the bytes behind it.
#[pyfunction]
pub(crate) fn checksum_with_key(
    py: Python<'_>,
    key: &str,
    memory: &Bound<'_, PyAny>,
) -> PyResult<u64> {
    let export = Export::new(memory, Use::Read)?;
    let length = export.0.len.unsigned_abs();
    if length == 0 {
        return Ok(kvring::checksum_with_key(key, &[]));
    }
    // SAFETY: the export pins so many bytes until the end of this call, and the caller lets nobody write there meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(export.0.buf.cast::<u8>(), length) };
    Ok(py.detach(|| kvring::checksum_with_key(key, bytes)))
}

/// The memory of every object in the sequence `objects`, and what holds it.
pub(crate) fn export_all(
    objects: &Bound<'_, PyAny>,
    usage: Use,
) -> PyResult<(KeepAlive, Vec<CallerBuffer>)> {
    let objects = match objects.cast::<PySequence>() {
        // Memory itself is a sequence as well, of numbers.
        Ok(sequence) if Export::new(objects, Use::Read).is_err() => sequence,
        _ => {
            let kind = type_name(objects);
            let message =
                format!("memoryviews is of type {kind}; pass a list with one buffer for each key");
            return Err(SubmitError::new_err(message));
        }
    };
    let mut exports = Vec::with_capacity(objects.len()?);
    let mut storages = Vec::new();
    let mut spans = Vec::with_capacity(objects.len()?);
    for (position, object) in objects.try_iter()?.enumerate() {
        let object = object?;
        match Export::new(&object, usage) {
            Ok(export) => {
                spans.push(export.span());
                exports.push(export);
            }
            Err(error) if is_tensor(&object) => {
                drop(error);
                let (span, storage) = tensor_storage(&object, position, usage)?;
                spans.push(span);
                storages.push(storage);
            }
            Err(error) => return Err(explain(error, position, usage, &object)),
        }
    }
    Ok((Box::new((exports, storages)), spans))
}

fn tensor_storage(tensor: &Bound<'_, PyAny>, position: usize, usage: Use) -> PyResult<Storage> {
    match storage_of(tensor, usage) {
        Ok(Ok(storage)) => Ok(storage),
        Ok(Err(reason)) => Err(SubmitError::new_err(format!("buffer {position} {reason}"))),
        Err(error) => {
            let message = format!(
                "buffer {position} is a tensor whose memory cannot be had ({error}); pass a dense, contiguous tensor on the CPU"
            );
            Err(refused(tensor.py(), error, message))
        }
    }
}

/// Says which buffer is refused and what it must be.
fn explain(error: PyErr, position: usize, usage: Use, object: &Bound<'_, PyAny>) -> PyErr {
    let py = object.py();
    let is_buffer_error = error.is_instance_of::<PyBufferError>(py);
    let message = if is_buffer_error && usage == Use::Fill && Export::new(object, Use::Read).is_ok()
    {
        format!(
            "buffer {position} is read-only; what is loaded into it needs writable memory, such as a bytearray"
        )
    } else if is_buffer_error {
        format!(
            "buffer {position} is not contiguous; pass one contiguous span of memory per key, such as a copy of it"
        )
    } else if error.is_instance_of::<PyTypeError>(py) {
        let kind = type_name(object);
        format!(
            "buffer {position} is of type {kind}, which has no memory to share; pass a memoryview, a bytearray, or the like"
        )
    } else if error.is_instance_of::<PyValueError>(py) {
        format!("buffer {position} cannot be used ({error}); pass one that is not released")
    } else {
        return error;
    };
    refused(py, error, message)
}
