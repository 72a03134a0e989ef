//! Which engine moves the bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::sync::Mutex;
use crate::config::{Config, EngineChoice};
use crate::engine::posix::PosixEngine;
use crate::engine::uring::UringEngine;
use crate::engine::{EngineError, RegisteredMemory, Waker};
use crate::error::OpenError;
use crate::reactor::{MakeEngine, REACTORS_ABOVE_THREADS};
use crate::store::DRIVE_DEPTH;

/// Most threads that read and write, of all reactors together: a container's limit on processes has room for them.
const MOST_THREADS: usize = 128;

/// Refuses io_uring where it cannot be had, before a store is opened for nothing.
pub(super) fn check(config: &Config) -> Result<(), OpenError> {
    if config.engine == EngineChoice::IoUring {
        let waker = Waker::new().map_err(OpenError::io("make an eventfd for", config.path()))?;
        UringEngine::new(config.tuning.queue_depth.unwrap_or(DRIVE_DEPTH), waker)?;
    }
    Ok(())
}

/// The engine that is configured, which uses the memory that is registered in `memory`. It warns once if the posix engine has to take the place of io_uring.
pub(super) fn maker(config: &Config, memory: &Arc<RegisteredMemory>) -> MakeEngine {
    let choice = config.engine;
    let reactors = config.io_threads.unwrap_or(REACTORS_ABOVE_THREADS) * config.paths.len();
    // Loads and stores of one reactor have two threads each at least.
    let most_threads = (MOST_THREADS / reactors).max(4);
    let (path, memory) = (config.path().to_owned(), Arc::clone(memory));
    let mut has_warned = false;
    Arc::new(Mutex::new(Box::new(move |queue_depth, waker| {
        let posix = |waker| PosixEngine::new(queue_depth.min(most_threads), waker);
        if choice == EngineChoice::Posix {
            return Ok(Box::new(posix(waker)?));
        }
        let ring = UringEngine::new(queue_depth, Arc::clone(&waker));
        match ring.map(|ring| ring.with_memory(&memory)) {
            Ok(engine) => Ok(Box::new(engine)),
            Err(EngineError::Unavailable(refusal)) if choice == EngineChoice::Auto => {
                let engine = posix(waker)?;
                if !std::mem::replace(&mut has_warned, true) {
                    log::warn!(
                        "{}: threads take the place of io_uring, which is faster: {refusal}; or set engine to 'posix'",
                        path.display()
                    );
                }
                Ok(Box::new(engine))
            }
            Err(error) => Err(error),
        }
    })))
}

/// The engines of all reactors, with the number of each where they differ: the system may run short of rings or threads.
pub(super) fn describe(engines: &[&str]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for engine in engines {
        *counts.entry(engine).or_default() += 1;
    }
    let counted = counts.iter().map(|(engine, count)| match counts.len() {
        1 => (*engine).to_owned(),
        _ => format!("{count} x {engine}"),
    });
    counted.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_that_differ_are_counted() {
        assert_eq!(describe(&["a", "a"]), "a");
        assert_eq!(describe(&["b", "a", "b"]), "1 x a, 2 x b");
    }
}
