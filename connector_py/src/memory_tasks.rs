//! Tasks of programs that name memory by its address: vLLM's tiers, SGLang's storage backends.
//!
//! A key of theirs is stored in one part or in several, each a chunk of its own under `prefix@part@key`. A key is there if all of its
//! parts are.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kvring::{CallerBuffer, Completion, KeepAlive};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::completed_tasks::{ByTask, CompletedTasks};
use crate::connector::Connector;
use crate::errors::{ClosedError, SubmitError, code_of, from_submit};
use crate::key_watch::KeyWatch;
use crate::keys::Keys;
use crate::logging::hand_over;

/// Task, an answer for each key, code of the failure, error, seconds.
type Outcome = (u64, Vec<bool>, Option<&'static str>, String, f64);

/// `submit_set` or `submit_get`.
type Submit = fn(
    &kvring::Connector,
    &[String],
    &[CallerBuffer],
    KeepAlive,
) -> Result<u64, kvring::SubmitError>;

/// A store as programs ask it that name memory by its address.
#[pyclass(module = "kvring._native", frozen, extends = KeyWatch)]
pub(crate) struct MemoryTasks {
    connector: Py<Connector>,
    finished: CompletedTasks,
    /// Tasks whose outcome nobody has yet.
    running: Mutex<HashSet<u64>>,
    process_id: u32,
}

/// What is to be known of a task when it has completed.
struct Task {
    submitted: Instant,
    parts: usize,
}

#[pymethods]
impl MemoryTasks {
    /// Take over a connector: its completions are taken here from now on.
    #[new]
    fn new(py: Python<'_>, connector: Py<Connector>) -> PyClassInitializer<Self> {
        let watch = KeyWatch::new(connector.clone_ref(py));
        let tasks = Self {
            connector,
            finished: CompletedTasks::default(),
            running: Mutex::default(),
            process_id: std::process::id(),
        };
        PyClassInitializer::from(watch).add_subclass(tasks)
    }

    /// Store memory; return the task.
    fn store(
        &self,
        py: Python<'_>,
        prefix: &str,
        keys: Keys,
        addresses: Vec<usize>,
        lengths_bytes: Vec<usize>,
    ) -> PyResult<u64> {
        let submit = kvring::Connector::submit_set;
        py.detach(|| self.submit(prefix, &keys, &addresses, &lengths_bytes, submit))
    }

    /// Load into memory; return the task.
    fn load(
        &self,
        py: Python<'_>,
        prefix: &str,
        keys: Keys,
        addresses: Vec<usize>,
        lengths_bytes: Vec<usize>,
    ) -> PyResult<u64> {
        let submit = kvring::Connector::submit_get;
        py.detach(|| self.submit(prefix, &keys, &addresses, &lengths_bytes, submit))
    }

    /// Take what became of all tasks that have completed.
    fn take_finished(&self, py: Python<'_>) -> PyResult<Vec<Outcome>> {
        hand_over(py);
        let taken = py.detach(|| {
            self.in_its_process()?;
            Ok(self.finished.take(self.core(), |all| {
                let mut running = self.running();
                all.keys().for_each(|task| {
                    running.remove(task);
                });
                std::mem::take(all)
            }))
        });
        let taken: ByTask = taken.map_err(from_submit)?;
        Ok(taken.into_values().map(outcome).collect())
    }

    /// Wait for a task, and take what became of it.
    fn wait(&self, py: Python<'_>, task: u64) -> PyResult<Outcome> {
        let waited = py.detach(|| {
            self.in_its_process()?;
            let has_ended = |all: &mut ByTask| all.contains_key(&task).then_some(());
            Ok(self.finished.wait(self.core(), has_ended))
        });
        let waited = waited.map_err(from_submit)?;
        // Before it is taken: what a handler of the application does costs no completion.
        hand_over(py);
        let taken = py.detach(|| {
            self.running().remove(&task);
            waited.and_then(|()| self.finished.take(self.core(), |all| all.remove(&task)))
        });
        taken.map(outcome).ok_or_else(closed)
    }

    /// Wait until all tasks have completed; what became of them is left to be taken.
    fn wait_all(&self, py: Python<'_>) -> PyResult<()> {
        let waited = py.detach(|| {
            self.in_its_process()?;
            let begun: Vec<u64> = self.running().iter().copied().collect();
            let have_ended = |all: &mut ByTask| {
                // What another thread takes is running no more.
                let running = self.running();
                begun
                    .iter()
                    .all(|task| all.contains_key(task) || !running.contains(task))
                    .then_some(())
            };
            Ok(self.finished.wait(self.core(), have_ended))
        });
        waited.map_err(from_submit)?.ok_or_else(closed)
    }

    /// Say of each key whether it is stored, and lease it.
    #[pyo3(signature = (prefix, keys, parts = 1))]
    fn exists(
        &self,
        py: Python<'_>,
        prefix: &str,
        keys: Keys,
        parts: usize,
    ) -> PyResult<Vec<bool>> {
        let stored = py.detach(|| self.core().exists(&rendered(prefix, &keys, parts)));
        stored.map(|stored| of_keys(&stored, parts)).map_err(from_submit)
    }

    /// Return how many leading keys are stored, and lease them.
    #[pyo3(signature = (prefix, keys, parts = 1))]
    fn count_leading(
        &self,
        py: Python<'_>,
        prefix: &str,
        keys: Keys,
        parts: usize,
    ) -> PyResult<usize> {
        let leading = py.detach(|| self.core().prefix(&rendered(prefix, &keys, parts)));
        leading.map(|leading| leading / parts.max(1)).map_err(from_submit)
    }

    /// Count a use of each key now; say of each whether it is stored.
    #[pyo3(signature = (prefix, keys, parts = 1))]
    fn touch(&self, py: Python<'_>, prefix: &str, keys: Keys, parts: usize) -> PyResult<Vec<bool>> {
        let stored = py.detach(|| self.core().touch(&rendered(prefix, &keys, parts)));
        stored.map(|stored| of_keys(&stored, parts)).map_err(from_submit)
    }

    /// Say of each key whether it is stored now, without a lease.
    #[pyo3(signature = (prefix, keys, parts = 1))]
    fn holds(&self, py: Python<'_>, prefix: &str, keys: Keys, parts: usize) -> PyResult<Vec<bool>> {
        let stored = py.detach(|| self.core().holds(&rendered(prefix, &keys, parts)));
        stored.map(|stored| of_keys(&stored, parts)).map_err(from_submit)
    }
}

impl MemoryTasks {
    fn core(&self) -> &kvring::Connector {
        &self.connector.get().core
    }

    /// Refuses a fork, before any lock: one that another thread held at that moment stays held there for ever.
    fn in_its_process(&self) -> Result<(), kvring::SubmitError> {
        if self.process_id == std::process::id() {
            return Ok(());
        }
        self.core().exists::<&str>(&[]).map(drop)
    }

    fn running(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(
        &self,
        prefix: &str,
        keys: &Keys,
        addresses: &[usize],
        lengths_bytes: &[usize],
        submit: Submit,
    ) -> PyResult<u64> {
        let (count, spans) = (keys.0.len(), addresses.len());
        let parts = spans.checked_div(count).unwrap_or(0);
        if parts * count != spans || spans != lengths_bytes.len() {
            let message = format!(
                "{count} keys with {spans} addresses and {} lengths; each key takes as many addresses as any other, and each address a length",
                lengths_bytes.len()
            );
            return Err(SubmitError::new_err(message));
        }
        if let Some(position) = addresses.iter().position(|address| *address == 0) {
            let message = format!("address {position} is 0; pass where the memory begins");
            return Err(SubmitError::new_err(message));
        }
        let span = |(address, length_bytes): (&usize, &usize)| {
            let start = std::ptr::with_exposed_provenance_mut(*address);
            // SAFETY: who passes an address promises to keep the memory in its place, and to use it for nothing else, until the task
            // has completed or the connector is closed.
            unsafe { CallerBuffer::new(start, *length_bytes) }
        };
        let spans: Vec<_> = addresses.iter().zip(lengths_bytes).map(span).collect();
        let keys = rendered(prefix, keys, parts);
        let task = Box::new(Task { submitted: Instant::now(), parts });
        self.in_its_process().map_err(from_submit)?;
        // With the lock: the task may have completed before its number is known here.
        let mut running = self.running();
        let number = submit(self.core(), &keys, &spans, task).map_err(from_submit)?;
        running.insert(number);
        Ok(number)
    }
}

fn rendered(prefix: &str, keys: &Keys, parts: usize) -> Vec<String> {
    let of_key = |key: &'_ PyBackedStr| {
        (0..parts).map(|part| kvring::part_key(prefix, part, key)).collect::<Vec<_>>()
    };
    keys.0.iter().flat_map(of_key).collect()
}

fn of_keys(stored: &[bool], parts: usize) -> Vec<bool> {
    stored.chunks(parts.max(1)).map(|parts| parts.iter().all(|is_stored| *is_stored)).collect()
}

fn outcome(completion: Completion) -> Outcome {
    let task = completion.keep_alive().and_then(|task| task.downcast_ref::<Task>());
    let (parts, seconds) = task.map_or((1, 0.0), |task| {
        let taken = completion.completed_at.saturating_duration_since(task.submitted);
        (task.parts, taken.as_secs_f64())
    });
    let results = of_keys(&completion.results, parts);
    (completion.future_id, results, code_of(&completion), completion.error.clone(), seconds)
}

fn closed() -> PyErr {
    ClosedError::new_err("the connector was closed, and nobody knows what became of it")
}
