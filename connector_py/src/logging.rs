//! Messages of the core on their way to Python's logging.
//!
//! The core logs from threads and under circumstances in which Python must not be entered: the interpreter may be ending,
//! or a Python thread may hold the GIL and wait for the very thread that logs. So messages are only queued there, and
//! handed to the logger "kvring" by the next call that Python makes.

use std::sync::LazyLock;

use crossbeam_queue::ArrayQueue;
use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

/// Messages that wait at most; then the oldest is dropped.
const CAPACITY: usize = 1024;

struct Queue(LazyLock<ArrayQueue<(Level, String)>>);

static QUEUE: Queue = Queue(LazyLock::new(|| ArrayQueue::new(CAPACITY)));

impl Log for Queue {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.force_push((record.level(), record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

/// Makes the core log here. A second import of the module finds it done.
pub(crate) fn install() {
    if log::set_logger(&QUEUE).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

/// Hands what has come since the last time to Python's logging.
///
/// Call it before completions are taken, never after: nothing of the application may stand between taking and returning them.
/// What a handler raises goes to `sys.unraisablehook`: a call of the store does not fail because of it. Ctrl-C is raised again behind it.
pub(crate) fn hand_over(py: Python<'_>) {
    while let Some((level, message)) = QUEUE.0.pop() {
        if let Err(error) = log_in_python(py, level, &message) {
            if error.is_instance_of::<PyKeyboardInterrupt>(py) {
                // SAFETY: it takes no argument and needs no more than the GIL, which `py` stands for.
                unsafe { pyo3::ffi::PyErr_SetInterrupt() };
            } else {
                error.write_unraisable(py, None);
            }
        }
    }
}

fn log_in_python(py: Python<'_>, level: Level, message: &str) -> PyResult<()> {
    let level = match level {
        Level::Error => "error",
        Level::Warn => "warning",
        Level::Info => "info",
        Level::Debug | Level::Trace => "debug",
    };
    let logger = py.import("kvring.logs")?.call_method0("logger")?;
    logger.call_method1(level, ("%s", message)).map(drop)
}
