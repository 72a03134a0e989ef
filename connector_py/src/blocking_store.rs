//! A connector as programs ask it that wait for each answer, with a timeout, and may be interrupted (Ctrl-C) meanwhile.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvring::{CallerBuffer, Completion, KeepAlive};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::buffers::{Use, export_all};
use crate::completed_tasks::{ByTask, CompletedTasks, Step};
use crate::connector::Connector;
use crate::errors::{ClosedError, code_of, duration_of, from_submit};
use crate::keys::Keys;
use crate::logging::hand_over;

/// One bool per key, code of the failure or none, error; none at all if it did not come in time.
type Answer = Option<(Vec<bool>, Option<&'static str>, String)>;

/// `submit_set` or `submit_get`.
type Submit = fn(
    &kvring::Connector,
    &[PyBackedStr],
    &[CallerBuffer],
    KeepAlive,
) -> Result<u64, kvring::SubmitError>;

/// A connector as programs ask it that wait for each answer.
#[pyclass(module = "kvring._native", frozen)]
pub(crate) struct BlockingStore {
    connector: Py<Connector>,
    completed: CompletedTasks,
    /// Batches that nobody waits for any more. Their memory is held until their completions come.
    abandoned: Mutex<HashSet<u64>>,
}

#[pymethods]
impl BlockingStore {
    /// Take over a connector: its completions are taken here from now on.
    #[new]
    fn new(connector: Py<Connector>) -> Self {
        Self { connector, completed: CompletedTasks::default(), abandoned: Mutex::default() }
    }

    /// Store chunks, and wait.
    fn put(
        &self,
        py: Python<'_>,
        keys: Keys,
        memory: &Bound<'_, PyAny>,
        timeout_s: f64,
    ) -> PyResult<Answer> {
        self.move_chunks(py, &keys, (memory, Use::Read), timeout_s, kvring::Connector::submit_set)
    }

    /// Load chunks, and wait.
    fn get(
        &self,
        py: Python<'_>,
        keys: Keys,
        memory: &Bound<'_, PyAny>,
        timeout_s: f64,
    ) -> PyResult<Answer> {
        self.move_chunks(py, &keys, (memory, Use::Fill), timeout_s, kvring::Connector::submit_get)
    }

    /// Remove keys, and wait for the index file.
    fn delete(&self, py: Python<'_>, keys: Keys, timeout_s: f64) -> PyResult<Answer> {
        let timeout = duration_of("timeout_s", timeout_s)?;
        let batch = py.detach(|| self.core().submit_delete(&keys.0)).map_err(from_submit)?;
        self.wait(py, batch, timeout)
    }

    /// Say of each key whether it is stored, and lease it.
    fn exists(&self, py: Python<'_>, keys: Keys) -> PyResult<Vec<bool>> {
        py.detach(|| self.core().exists(&keys.0)).map_err(from_submit)
    }

    /// The length of the chunk of each key in bytes; none where a load would miss.
    fn lengths(&self, py: Python<'_>, keys: Keys) -> PyResult<Vec<Option<u64>>> {
        py.detach(|| self.core().lengths(&keys.0)).map_err(from_submit)
    }
}

impl BlockingStore {
    fn core(&self) -> &kvring::Connector {
        &self.connector.get().core
    }

    fn move_chunks(
        &self,
        py: Python<'_>,
        keys: &Keys,
        (memory, usage): (&Bound<'_, PyAny>, Use),
        timeout_s: f64,
        submit: Submit,
    ) -> PyResult<Answer> {
        let timeout = duration_of("timeout_s", timeout_s)?;
        let (keep_alive, spans) = export_all(memory, usage)?;
        let submitted = py.detach(|| submit(self.core(), &keys.0, &spans, keep_alive));
        // A fork is refused by the submit, before any lock that another thread may have held.
        self.wait(py, submitted.map_err(from_submit)?, timeout)
    }

    fn wait(&self, py: Python<'_>, batch: u64, timeout: Duration) -> PyResult<Answer> {
        // Before it is taken: what a handler of the application does costs no completion.
        hand_over(py);
        let waited = self.wait_for(py, batch, Instant::now() + timeout);
        if !matches!(waited, Ok(Some(_))) {
            py.detach(|| self.abandoned().insert(batch));
        }
        self.drop_abandoned(py);
        Ok(waited?.map(answer))
    }

    /// None at the deadline; an error if a handler of a signal raises one, or the connector is closed.
    fn wait_for(
        &self,
        py: Python<'_>,
        batch: u64,
        deadline: Instant,
    ) -> PyResult<Option<Completion>> {
        let take = |all: &mut ByTask| all.remove(&batch);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match py.detach(|| self.completed.wait_step(self.core(), left, take)) {
                Step::Found(completion) => return Ok(Some(completion)),
                Step::Closed => {
                    return Err(ClosedError::new_err(
                        "the connector was closed, and nobody knows what became of it",
                    ));
                }
                Step::Pending => py.check_signals()?,
            }
            if left.is_zero() {
                return Ok(py.detach(|| self.completed.take(self.core(), take)));
            }
        }
    }

    /// Lets the memory go of those that have completed by now.
    fn drop_abandoned(&self, py: Python<'_>) {
        // Dropped with the GIL, and without a lock.
        let _completions: Vec<Completion> = py.detach(|| {
            let mut abandoned = self.abandoned();
            if abandoned.is_empty() {
                return Vec::new();
            }
            let batches: Vec<u64> = abandoned.iter().copied().collect();
            self.completed.take(self.core(), |all| {
                let mut ended = Vec::new();
                for batch in batches {
                    if let Some(completion) = all.remove(&batch) {
                        abandoned.remove(&batch);
                        ended.push(completion);
                    }
                }
                ended
            })
        });
    }

    fn abandoned(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn answer(mut completion: Completion) -> (Vec<bool>, Option<&'static str>, String) {
    let code = code_of(&completion);
    (std::mem::take(&mut completion.results), code, std::mem::take(&mut completion.error))
}
