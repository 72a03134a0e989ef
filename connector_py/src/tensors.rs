//! Tensors of torch as memory. They export no buffer, so that their address is asked for; of torch itself nothing is needed.

use kvring::CallerBuffer;
use pyo3::prelude::*;

use crate::buffers::Use;

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
