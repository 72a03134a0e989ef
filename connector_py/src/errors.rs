//! The tree of Python exceptions, and which error of the core becomes which.

use std::time::Duration;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOSError};
use pyo3::prelude::*;

create_exception!(kvring, KvRingError, PyException, "Base of every error that kvring raises.");
create_exception!(
    kvring,
    ConfigError,
    KvRingError,
    "An option is unknown, missing, out of range, or a path that no store can be on."
);
create_exception!(
    kvring,
    InUseError,
    KvRingError,
    "Another live connector has the store open, or something else has the block device."
);
create_exception!(kvring, FormatError, KvRingError, "The store was written by a newer kvring.");
create_exception!(
    kvring,
    EngineError,
    KvRingError,
    "The I/O engine cannot be had, or not the one that was asked for."
);
create_exception!(
    kvring,
    NotFormattedError,
    KvRingError,
    "The block device holds something that kvring has not written."
);
create_exception!(
    kvring,
    SubmitError,
    KvRingError,
    "A batch was refused, and nothing of it is queued; or keys are not removed."
);
create_exception!(kvring, ClosedError, SubmitError, "The connector is closed.");

/// The Python exception for a failed open.
pub(crate) fn from_open(error: kvring::OpenError) -> PyErr {
    let message = error.to_string();
    match error {
        kvring::OpenError::Config(_)
        | kvring::OpenError::OtherLayout { .. }
        | kvring::OpenError::ReadOnlyDevice { .. }
        | kvring::OpenError::Nested { .. }
        | kvring::OpenError::SameStore { .. }
        | kvring::OpenError::NoDevice { .. }
        | kvring::OpenError::NotMounted { .. }
        | kvring::OpenError::Unsuitable { .. } => ConfigError::new_err(message),
        kvring::OpenError::ForeignVolume { .. } | kvring::OpenError::Unrelated { .. } => {
            KvRingError::new_err(message)
        }
        kvring::OpenError::InUse { .. } | kvring::OpenError::Claimed { .. } => {
            InUseError::new_err(message)
        }
        kvring::OpenError::NewerFormat { .. } => FormatError::new_err(message),
        kvring::OpenError::NotFormatted { .. } => NotFormattedError::new_err(message),
        // OSError picks its subclass (PermissionError, FileNotFoundError ...) by errno, as callers expect.
        kvring::OpenError::Io { source, .. } | kvring::OpenError::AddressSpace { source, .. } => {
            match errno_of(&source) {
                Some(errno) => PyOSError::new_err((errno, message)),
                None => KvRingError::new_err(message),
            }
        }
        // No engine at all, or one for which the system has no thread or memory left.
        kvring::OpenError::Engine(error) => {
            let errno = match error {
                kvring::EngineError::Failed { source, .. } => source.raw_os_error(),
                kvring::EngineError::Unavailable(_) => None,
            };
            match errno {
                Some(errno) => PyOSError::new_err((errno, message)),
                None => EngineError::new_err(message),
            }
        }
    }
}

/// What the system said; where kvring itself found that the process may not, what it would have said.
fn errno_of(source: &std::io::Error) -> Option<i32> {
    const EACCES: i32 = 13;
    let is_denied = source.kind() == std::io::ErrorKind::PermissionDenied;
    source.raw_os_error().or(is_denied.then_some(EACCES))
}

/// What the system refused, as an `OSError` with its number. The conversion of PyO3 gives other classes for some: `MemoryError` for
/// ENOMEM, which nobody takes for an answer of the system.
pub(crate) fn from_io(error: std::io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(errno) => PyOSError::new_err((errno, error.to_string())),
        None => PyOSError::new_err(error.to_string()),
    }
}

/// The Python exception for a refused batch.
pub(crate) fn from_submit(error: kvring::SubmitError) -> PyErr {
    let message = error.to_string();
    match error {
        kvring::SubmitError::Closed => ClosedError::new_err(message),
        kvring::SubmitError::KeyTooLong { position, .. }
        | kvring::SubmitError::EmptyChunk { position } => refused(position, message, None),
        _ => SubmitError::new_err(message),
    }
}

/// The Python exception for limits that stay what they are.
pub(crate) fn from_limits(error: kvring::LimitError) -> PyErr {
    match error {
        kvring::LimitError::Submit(error) => from_submit(error),
        other => ConfigError::new_err(other.to_string()),
    }
}

/// A batch refused for its key or buffer `position`, because of another exception if there is one.
pub(crate) fn refused(position: usize, message: String, cause: Option<PyErr>) -> PyErr {
    let error = SubmitError::new_err(message);
    Python::attach(|py| {
        error.set_cause(py, cause);
        // An exception of this class takes any attribute.
        let _ = error.value(py).setattr("position", position);
    });
    error
}

/// A time that a call takes at most, in seconds.
pub(crate) fn duration_of(name: &str, seconds: f64) -> PyResult<Duration> {
    if (0.0..=3600.0).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(ConfigError::new_err(format!("{name} = {seconds} is not valid; it takes 0 to 3600")))
}

/// The code of a batch that failed.
pub(crate) fn code_of(completion: &kvring::Completion) -> Option<&'static str> {
    completion.code.map(kvring::FailureCode::name)
}

/// Name of an object's class, for messages.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().qualname().map_or_else(|_| "?".into(), |name| name.to_string())
}
