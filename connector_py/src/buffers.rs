//! Buffer exports: what a caller passes as memory, held until its completion is drained. Tensors of torch export no buffer, so that
//! their address is asked for; of torch itself nothing is needed.

use std::mem::MaybeUninit;

use kvring::{CallerBuffer, KeepAlive, Variant};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PySequence;

use crate::errors::{SubmitError, refused, type_name};

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// The memory is read, by a SET.
    Read,
    /// The memory is filled, by a GET.
    Fill,
}

/// The spans with the variants of their chunks, one for each; none where callers name none.
pub(crate) fn with_variants(
    spans: Vec<CallerBuffer>,
    variants: Option<Vec<i128>>,
) -> PyResult<Vec<CallerBuffer>> {
    let Some(variants) = variants else { return Ok(spans) };
    if variants.len() != spans.len() {
        let (variants, spans) = (variants.len(), spans.len());
        let message = format!("{variants} variants with {spans} chunks; each chunk has one");
        return Err(SubmitError::new_err(message));
    }
    let with_variant = |(span, variant): (CallerBuffer, i128)| {
        let known = Variant::try_from(variant).map(|variant| span.of_variant(variant));
        known.map_err(|_| {
            let message = format!("variant {variant} is not valid; it takes 0 to {}", Variant::MAX);
            SubmitError::new_err(message)
        })
    };
    spans.into_iter().zip(variants).map(with_variant).collect()
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
        Ok(Err(reason)) => Err(refused(position, format!("buffer {position} {reason}"), None)),
        Err(error) => {
            let message = format!(
                "buffer {position} is a tensor whose memory cannot be had ({error}); pass a dense, contiguous tensor on the CPU"
            );
            Err(refused(position, message, Some(error)))
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
    refused(position, message, Some(error))
}

/// What is asked of a tensor.
const ATTRIBUTES: [&str; 5] = ["data_ptr", "device", "is_contiguous", "nbytes", "untyped_storage"];

/// A tensor's memory, and the object that keeps it where it is.
pub(crate) type Storage = (CallerBuffer, Py<PyAny>);

/// Whether it is a tensor, by its class.
pub(crate) fn is_tensor(object: &Bound<'_, PyAny>) -> bool {
    let class = object.get_type();
    let of_torch = |base: &Bound<'_, PyAny>| {
        let module = base.getattr("__module__").and_then(|module| module.extract::<String>());
        module.is_ok_and(|module| module == "torch" || module.starts_with("torch."))
    };
    class.mro().iter().any(|base| of_torch(&base))
        && ATTRIBUTES.iter().all(|name| class.hasattr(name).unwrap_or(false))
}

/// The memory of a tensor, or why it cannot be used and what to do.
pub(crate) fn storage_of(
    tensor: &Bound<'_, PyAny>,
    usage: Use,
) -> PyResult<Result<Storage, String>> {
    let device = tensor.getattr("device")?;
    if !device.getattr("type")?.eq("cpu")? {
        let way_out = match usage {
            Use::Read => "pass a copy on the CPU: tensor.cpu()",
            Use::Fill => "load into a tensor on the CPU and copy it to the device",
        };
        return Ok(Err(format!("is a tensor on device {device}; {way_out}")));
    }
    if !tensor.call_method0("is_contiguous")?.is_truthy()? {
        let way_out = match usage {
            Use::Read => "pass tensor.contiguous()",
            Use::Fill => "load into a contiguous tensor and copy it",
        };
        return Ok(Err(format!("is a tensor that is not contiguous; {way_out}")));
    }
    // Such a view has the memory of other values than its own.
    for name in ["is_conj", "is_neg"] {
        if tensor.hasattr(name)? && tensor.call_method0(name)?.is_truthy()? {
            let reason =
                "is a conjugate or negative view; pass tensor.resolve_conj().resolve_neg()";
            return Ok(Err(reason.into()));
        }
    }
    let address: usize = tensor.call_method0("data_ptr")?.extract()?;
    let length_bytes: usize = tensor.getattr("nbytes")?.extract()?;
    let storage = tensor.call_method0("untyped_storage")?;
    let storage_address: usize = storage.call_method0("data_ptr")?.extract()?;
    let storage_bytes: usize = storage.call_method0("nbytes")?.extract()?;
    // A storage can be emptied under its tensors.
    let is_inside = address.checked_sub(storage_address).is_some_and(|offset| {
        offset.checked_add(length_bytes).is_some_and(|end| end <= storage_bytes)
    });
    if length_bytes > 0 && (address == 0 || !is_inside) {
        return Ok(Err(
            "is a tensor without memory of its own; pass one that has its values".into()
        ));
    }
    // SAFETY: a contiguous tensor on the CPU lies within its storage, as was checked, which torch keeps where it is while
    // `storage` is held, unless the caller resizes it; that nobody uses it meanwhile is what callers promise of any buffer.
    let span =
        unsafe { CallerBuffer::new(std::ptr::with_exposed_provenance_mut(address), length_bytes) };
    Ok(Ok((span, storage.unbind())))
}
