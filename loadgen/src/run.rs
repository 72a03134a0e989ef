//! A run in threads of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kvring::Config;
use parking_lot::{Condvar, Mutex};

use crate::error::BenchError;
use crate::plan::Plan;
use crate::progress::{Progress, ProgressMeter};
use crate::report::Report;
use crate::session::{Session, open_store};

/// A run that has been started. Dropping it stops it and closes its store.
pub struct Run {
    shared: Arc<RunShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct RunShared {
    stop: AtomicBool,
    progress: ProgressMeter,
    result: Mutex<Option<Result<Report, BenchError>>>,
    ended: AtomicBool,
    wakeup: Condvar,
}

/// Says that the run has ended, even if it ends in a panic.
struct Ending(Arc<RunShared>);

impl Drop for Ending {
    fn drop(&mut self) {
        let mut result = self.0.result.lock();
        result.get_or_insert_with(|| Err(BenchError::Defect("the run panicked".into())));
        self.0.ended.store(true, Ordering::Release);
        self.0.wakeup.notify_all();
    }
}

impl Run {
    /// Opens the store of `config`, which should be empty, and starts to work on it as `plan` says. Nothing is removed
    /// afterwards.
    ///
    /// # Errors
    /// The store cannot be opened, its chunks are shorter than the plan's, or the system refuses a thread.
    pub fn start(config: Config, plan: Plan) -> Result<Self, BenchError> {
        let connector = open_store(config, &plan)?;
        let shared = Arc::new(RunShared {
            stop: AtomicBool::new(false),
            progress: ProgressMeter::new(),
            result: Mutex::new(None),
            ended: AtomicBool::new(false),
            wakeup: Condvar::new(),
        });
        let ending = Ending(Arc::clone(&shared));
        let main = move || {
            let Ending(shared) = &ending;
            let result = Session::new(plan, connector, &shared.stop, &shared.progress).run();
            *shared.result.lock() = Some(result);
        };
        let thread = thread::Builder::new()
            .name("kvring-bench-main".into())
            .spawn(main)
            .map_err(BenchError::Thread)?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// How far it is. Never waits.
    pub fn poll(&self) -> Progress {
        self.shared.progress.get()
    }

    /// Asks it to end: nothing more is submitted, what is in flight is waited for.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for its end, at most `timeout`; returns whether it has ended.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut result = self.shared.result.lock();
        let running = |_: &mut _| !self.shared.ended.load(Ordering::Acquire);
        self.shared.wakeup.wait_while_for(&mut result, running, timeout);
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Waits for its end and returns what it has measured, once.
    ///
    /// # Errors
    /// A thread could not be started or panicked, or the report was taken before.
    pub fn finish(&self) -> Result<Report, BenchError> {
        self.join();
        let taken = || Err(BenchError::Defect("its report was taken before".into()));
        self.shared.result.lock().take().unwrap_or_else(taken)
    }

    fn join(&self) {
        if let Some(thread) = self.thread.lock().take() {
            // A panic is in the result.
            let _ = thread.join();
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop();
        self.join();
    }
}
