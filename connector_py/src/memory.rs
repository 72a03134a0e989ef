//! Registered memory of a connector, held until it is closed.

use std::sync::{Mutex, PoisonError};

use kvring::{CallerBuffer, KeepAlive, MemoryHandle};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList};

use crate::buffers::{Use, export_all};
use crate::errors::from_submit;

/// Memory that a connector has registered. Closed or dropped, it is registered no more.
#[pyclass(module = "kvring._native", frozen)]
pub(crate) struct RegisteredMemory {
    registered_bytes: u64,
    /// The second keeps the memory where it is, and goes after the first.
    held: Mutex<Option<(MemoryHandle, KeepAlive)>>,
}

/// Registers a buffer, or memory that the caller keeps where it is.
pub(crate) fn register(
    py: Python<'_>,
    core: &kvring::Connector,
    memory: &Bound<'_, PyAny>,
    length_bytes: Option<usize>,
) -> PyResult<RegisteredMemory> {
    let (keep_alive, address, length_bytes): (KeepAlive, usize, usize) = match length_bytes {
        Some(length_bytes) if memory.is_instance_of::<PyInt>() => {
            (Box::new(()), memory.extract()?, length_bytes)
        }
        None if !memory.is_instance_of::<PyInt>() => {
            let (keep_alive, spans) = export_all(PyList::new(py, [memory])?.as_any(), Use::Fill)?;
            (keep_alive, spans[0].address(), spans[0].length_bytes())
        }
        _ => {
            let message = "pass a buffer alone, or an address and length_bytes";
            return Err(PyTypeError::new_err(message));
        }
    };
    let registered = py.detach(|| {
        let start = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: an export stays where it is until `keep_alive` is dropped, which `take` does after the handle is closed; for an address
        // the caller promises the same.
        let memory = unsafe { CallerBuffer::new(start, length_bytes) };
        core.register_memory(memory)
    });
    let handle = registered.map_err(from_submit)?;
    let registered_bytes = handle.registered_bytes();
    Ok(RegisteredMemory { registered_bytes, held: Mutex::new(Some((handle, keep_alive))) })
}

impl RegisteredMemory {
    fn take(&self, py: Python<'_>) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((handle, keep_alive)) = held {
            py.detach(|| handle.close());
            drop(keep_alive);
        }
    }
}

#[pymethods]
impl RegisteredMemory {
    /// Bytes, from the start on, that were registered.
    #[getter]
    fn registered_bytes(&self) -> u64 {
        self.registered_bytes
    }

    /// Unregister it. Idempotent.
    fn close(&self, py: Python<'_>) {
        self.take(py);
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.take(py);
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        // Closing may wait for a reactor: other Python threads go on meanwhile.
        let _ = Python::try_attach(|py| self.take(py));
    }
}
