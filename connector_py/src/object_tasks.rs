//! The tasks of LMCache's L2 adapter interface (`l2_adapters/base.py`) on a connector: object keys in, bitmaps out.
//!
//! Stores, lookups and loads have an eventfd each. LMCache polls it, clears it, and then asks for results. A completed task
//! waits here until it is asked for, and keeps its memory objects until then.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvring::{CallerBuffer, Completion, KeepAlive, ObjectKey, Variant};
use nix::sys::eventfd::{EfdFlags, EventFd};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::buffers::{Use, export_all, with_variants};
use crate::completed_tasks::CompletedTasks;
use crate::connector::Connector;
use crate::errors::{SubmitError, code_of, from_io, from_submit};
use crate::key_watch::KeyWatch;
use crate::keys::{Keys, objects_of, rendered};
use crate::logging::hand_over;

/// Task, code of the failure, error, bytes that are stored.
type StoreOutcome = (u64, Option<&'static str>, String, usize);

/// Keys of a listing, with the fields of LMCache's object keys and the lengths of their chunks, and where to go on.
type Listing = (Vec<(String, String, u64, u64, String, u64)>, Option<u64>);

/// A store as LMCache's L2 adapters are asked: by tasks.
#[pyclass(module = "kvring._native", frozen, extends = KeyWatch)]
pub(crate) struct ObjectTasks {
    connector: Py<Connector>,
    /// LMCache's classes.
    bitmap: Py<PyAny>,
    object_key: Py<PyAny>,
    lookup_event: EventFd,
    next_lookup: AtomicU64,
    lookups: Mutex<HashMap<u64, Vec<bool>>>,
    locks: Mutex<ObjectLocks>,
    loads: CompletedTasks,
}

#[pymethods]
impl ObjectTasks {
    /// Take over a connector: its completions are taken here from now on.
    #[new]
    fn new(
        py: Python<'_>,
        connector: Py<Connector>,
        bitmap: Py<PyAny>,
        object_key: Py<PyAny>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let lookup_event = EventFd::from_flags(flags).map_err(|errno| from_io(errno.into()))?;
        connector.get().core.split_completions().map_err(from_io)?;
        let watch = KeyWatch::new(connector.clone_ref(py));
        let tasks = Self {
            connector,
            bitmap,
            object_key,
            lookup_event,
            next_lookup: AtomicU64::new(0),
            lookups: Mutex::default(),
            locks: Mutex::default(),
            loads: CompletedTasks::default(),
        };
        Ok(PyClassInitializer::from(watch).add_subclass(tasks))
    }

    /// Descriptors to poll for stores, lookups and loads.
    fn event_fds(&self) -> (RawFd, RawFd, RawFd) {
        let core = self.core();
        (core.set_event_fd(), self.lookup_event.as_raw_fd(), core.event_fd())
    }

    /// Store memory objects of these variants; return the task.
    #[pyo3(signature = (keys, objects, variants = None))]
    fn submit_store(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        objects: &Bound<'_, PyAny>,
        variants: Option<Vec<i128>>,
    ) -> PyResult<u64> {
        let keys = rendered(keys)?;
        let (held, spans) = memory_of(objects, Use::Read)?;
        let spans = with_variants(spans, variants)?;
        py.detach(|| self.core().submit_set(&keys, &spans, Box::new(held))).map_err(from_submit)
    }

    /// Take what became of stores: task, code of the failure or None, error (empty if it succeeded), bytes that are stored.
    fn pop_stores(&self, py: Python<'_>) -> PyResult<Vec<StoreOutcome>> {
        hand_over(py);
        let mut completions = Vec::new();
        self.core().take(true, &mut completions);
        let outcome = |completion: &Completion| {
            let held = completion.keep_alive().and_then(|held| held.downcast_ref::<TaskMemory>());
            let lengths = held.map_or(&[][..], |held| &held.lengths_bytes);
            let stored = lengths.iter().zip(&completion.results).filter(|(_, stored)| **stored);
            let stored_bytes = stored.map(|(length, _)| length).sum();
            (completion.future_id, code_of(completion), completion.error.clone(), stored_bytes)
        };
        Ok(completions.iter().map(outcome).collect())
    }

    /// Look keys up and lock those that are stored in these variants; return the task.
    #[pyo3(signature = (keys, variants = None))]
    fn submit_lookup(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        variants: Option<Vec<Option<Variant>>>,
    ) -> PyResult<u64> {
        let keys = rendered(keys)?;
        let variants = variants.unwrap_or_default();
        let looked_up = py.detach(|| {
            // Before they are looked up: a delete that sees no lock has removed the key by then.
            locked(&self.locks).lock(keys.iter().cloned(), Instant::now());
            let stored = self.core().exists_as(&keys, &variants);
            let is_hit = |number: usize| stored.as_ref().is_ok_and(|stored| stored[number]);
            let misses = keys.iter().enumerate().filter(|(number, _)| !is_hit(*number));
            locked(&self.locks).unlock(misses.map(|(_, key)| key));
            let stored = stored?;
            let task = self.next_lookup.fetch_add(1, Ordering::Relaxed);
            locked(&self.lookups).insert(task, stored);
            // The only error is EAGAIN at 2^64-2 unread rings: the descriptor is readable then as well.
            let _ = self.lookup_event.write(1);
            Ok(task)
        });
        looked_up.map_err(from_submit)
    }

    /// Take the bitmap of a lookup, once.
    fn query_lookup<'py>(&self, py: Python<'py>, task: u64) -> PyResult<Option<Bound<'py, PyAny>>> {
        let stored = locked(&self.lookups).remove(&task);
        stored.map(|stored| self.bitmap_of(py, &stored)).transpose()
    }

    /// Give locks of lookups back.
    fn unlock(&self, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let keys = rendered(keys)?;
        locked(&self.locks).unlock(&keys);
        Ok(())
    }

    /// Load into memory objects what is of these variants; return the task.
    #[pyo3(signature = (keys, objects, variants = None))]
    fn submit_load(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        objects: &Bound<'_, PyAny>,
        variants: Option<Vec<i128>>,
    ) -> PyResult<u64> {
        let keys = rendered(keys)?;
        let (held, spans) = memory_of(objects, Use::Fill)?;
        let spans = with_variants(spans, variants)?;
        py.detach(|| self.core().submit_get(&keys, &spans, Box::new(held))).map_err(from_submit)
    }

    /// Take the bitmap of a load, once; None as long as it is under way.
    fn query_load<'py>(&self, py: Python<'py>, task: u64) -> PyResult<Option<Bound<'py, PyAny>>> {
        hand_over(py);
        let completion = self.loads.take(self.core(), |loads| loads.remove(&task));
        completion.map(|completion| self.bitmap_of(py, &completion.results)).transpose()
    }

    /// Delete keys that no lookup has locked. Returns for each whether it was stored; None if it is locked.
    fn delete(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<Option<bool>>> {
        let keys = rendered(keys)?;
        let deleted = py.detach(|| {
            let (locks, now) = (locked(&self.locks), Instant::now());
            let is_locked: Vec<bool> = keys.iter().map(|key| locks.holds(key, now)).collect();
            let free = keys.iter().zip(&is_locked).filter(|(_, is_locked)| !**is_locked);
            let free: Vec<&String> = free.map(|(key, _)| key).collect();
            // No lookup locks a key between the look at its lock and its removal.
            let (were_there, removal) = self.core().begin_delete(&free)?;
            drop(locks);
            removal.wait()?;
            let mut were_there = were_there.into_iter();
            let of_key = |is_locked| if is_locked { None } else { were_there.next() };
            Ok(is_locked.into_iter().map(of_key).collect())
        });
        deleted.map_err(from_submit)
    }

    /// Count a use of each key now.
    fn touch(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let keys = rendered(keys)?;
        py.detach(|| self.core().touch(&keys)).map_err(from_submit).map(|_| ())
    }

    /// Say of each key whether it is stored now, without a lease.
    fn holds(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
        let keys = rendered(keys)?;
        py.detach(|| self.core().holds(&keys)).map_err(from_submit)
    }

    /// Object keys for keys as they are in the store, and the lengths of their chunks; without keys of another form.
    fn object_keys<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        lengths_bytes: Vec<u64>,
    ) -> PyResult<(Vec<Bound<'py, PyAny>>, Vec<u64>)> {
        objects_of(self.object_key.bind(py), &keys.0, &lengths_bytes)
    }

    /// List stored keys of a model, or all, from a cursor on.
    fn list_keys(
        &self,
        py: Python<'_>,
        model: Option<String>,
        cursor: u64,
        limit: usize,
    ) -> PyResult<Listing> {
        let listed = py.detach(|| self.core().stored_keys(model.as_deref(), cursor, limit));
        let (keys, next) = listed.map_err(from_submit)?;
        let one = |(key, length_bytes): &(String, u64)| {
            let key = ObjectKey::parse(key)?;
            let (model, salt) = (key.model_name.to_owned(), key.cache_salt.to_owned());
            let (rank, group) = (key.kv_rank, key.object_group_id);
            Some((key.hash_text(), model, rank, group, salt, *length_bytes))
        };
        Ok((keys.iter().filter_map(one).collect(), next))
    }

    /// Keys that lookups have locked.
    fn locked_keys(&self) -> usize {
        locked(&self.locks).len()
    }
}

impl ObjectTasks {
    fn core(&self) -> &kvring::Connector {
        &self.connector.get().core
    }

    fn bitmap_of<'py>(&self, py: Python<'py>, bits: &[bool]) -> PyResult<Bound<'py, PyAny>> {
        let leading = bits.iter().position(|bit| !bit).unwrap_or(bits.len());
        let bitmap = self.bitmap.bind(py).call1((bits.len(), leading))?;
        let rest = bits.iter().enumerate().skip(leading).filter(|(_, bit)| **bit);
        let rest: Vec<usize> = rest.map(|(position, _)| position).collect();
        if !rest.is_empty() {
            bitmap.call_method1(intern!(py, "batched_set"), (rest,))?;
        }
        Ok(bitmap)
    }
}

/// What keeps the memory of a task in its place.
struct TaskMemory {
    _objects: Vec<Py<PyAny>>,
    _exports: Vec<KeepAlive>,
    lengths_bytes: Vec<usize>,
}

/// A panic leaves these maps as they were before a step, or after it. No Python runs while one is locked: another thread could
/// wait for it with the GIL.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory of LMCache's memory objects, in their logical lengths, and what holds it.
fn memory_of(objects: &Bound<'_, PyAny>, usage: Use) -> PyResult<(TaskMemory, Vec<CallerBuffer>)> {
    let py = objects.py();
    let count = objects.len()?;
    let (mut spans, mut held) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let mut exports = Vec::new();
    for (position, object) in objects.try_iter()?.enumerate() {
        let object = object?;
        let length_bytes: usize = object.call_method0(intern!(py, "get_size"))?.extract()?;
        match object.getattr(intern!(py, "data_ptr")).and_then(|address| address.extract()) {
            Ok(address @ 1usize..) => {
                let start = std::ptr::with_exposed_provenance_mut(address);
                // SAFETY: LMCache keeps the memory of an object that is locked for a task in its place until it has the task's result, and
                // uses it for nothing else meanwhile; the object itself is held until then.
                spans.push(unsafe { CallerBuffer::new(start, length_bytes) });
            }
            // Bytes that Python alone holds, and cannot be written to.
            _ => {
                let bytes = object.getattr(intern!(py, "byte_array")).map_err(|error| {
                    let message = format!("memory object {position} is in no memory that can be read here ({error}); use an L1 in DRAM");
                    SubmitError::new_err(message)
                })?;
                let (export, span) = export_all(PyList::new(py, [bytes])?.as_any(), usage)?;
                exports.push(export);
                spans.extend(span);
            }
        }
        held.push(object.unbind());
    }
    let lengths_bytes = spans.iter().map(|span| span.length_bytes()).collect();
    Ok((TaskMemory { _objects: held, _exports: exports, lengths_bytes }, spans))
}

/// Whoever has not unlocked a key by then never will.
const LONGEST_LOCK: Duration = Duration::from_secs(600);

/// Expired locks are looked for whenever there are so many.
const FEW: usize = 4096;

struct Lock {
    count: u32,
    /// When it was locked last.
    since: Instant,
}

/// Keys that lookups have locked: a delete leaves them alone until they are unlocked.
#[derive(Default)]
pub(crate) struct ObjectLocks {
    locks: HashMap<String, Lock>,
    /// Look for expired ones when there are more than this.
    many: usize,
}

impl ObjectLocks {
    pub(crate) fn lock(&mut self, keys: impl Iterator<Item = String>, now: Instant) {
        for key in keys {
            let lock = self.locks.entry(key).or_insert(Lock { count: 0, since: now });
            lock.count = if is_held(lock, now) { lock.count + 1 } else { 1 };
            lock.since = now;
        }
        if self.locks.len() > self.many.max(FEW) {
            self.locks.retain(|_, lock| is_held(lock, now));
            self.many = 2 * self.locks.len();
        }
    }

    pub(crate) fn unlock<'key>(&mut self, keys: impl IntoIterator<Item = &'key String>) {
        for key in keys {
            if let Some(lock) = self.locks.get_mut(key) {
                lock.count -= 1;
                if lock.count == 0 {
                    self.locks.remove(key);
                }
            }
        }
    }

    pub(crate) fn holds(&self, key: &str, now: Instant) -> bool {
        self.locks.get(key).is_some_and(|lock| is_held(lock, now))
    }

    pub(crate) fn len(&self) -> usize {
        self.locks.len()
    }
}

fn is_held(lock: &Lock, now: Instant) -> bool {
    now.saturating_duration_since(lock.since) < LONGEST_LOCK
}
