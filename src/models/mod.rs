//! Races, searched for by shuttle and loom: each model is a test that runs again and again, with another order of its threads each time.
//!
//! `tools/models.py` runs them. They are built with `--cfg kvring_model="shuttle"` or `"loom"`, which replaces what `sync` has to
//! offer; all else is the code that ships. Loom tries every order with few interruptions, and every value that the memory
//! model lets a load see. Shuttle draws orders of larger models, whole stores among them, and lets a load see the last value only.
//!
//! A lost wake-up shows itself as a deadlock: nobody waits for a time here, as timeouts never pass.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

mod batches;
#[cfg(kvring_model = "shuttle")]
mod chunks;
mod completions;
mod condvar;
#[cfg(kvring_model = "shuttle")]
mod reactors;
#[cfg(kvring_model = "shuttle")]
mod store;
mod wakers;

#[cfg(kvring_model = "loom")]
pub(crate) use on_loom::{explore, spawn};
#[cfg(kvring_model = "shuttle")]
pub(crate) use on_shuttle::{explore, spawn};

use std::io::Write;

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// How long each model is searched.
fn seconds() -> f64 {
    setting("KVRING_MODEL_SECONDS").unwrap_or(1.0)
}

fn tell(count: u64, how: &str) {
    // Past the capture of the test harness, which hides what passes.
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    let _ = writeln!(std::io::stderr(), "model {name}: {count} {how}");
}

#[cfg(kvring_model = "shuttle")]
mod on_shuttle {
    use std::sync::Arc;
    use std::time::Duration;

    pub(crate) use shuttle::thread::spawn;

    use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
    use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

    /// Switches between threads that PCT places at will.
    const DEPTH: usize = 4;

    /// Runs `model` in random orders: half of the time each switch is drawn, half of it a few switches are.
    pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) {
        let model = Arc::new(model);
        let seed = super::setting("KVRING_MODEL_SEED").unwrap_or(1);
        if let Ok(schedule) = std::env::var("KVRING_MODEL_SCHEDULE") {
            run(ReplayScheduler::new_from_file(schedule).unwrap(), &model);
            return;
        }
        let most = usize::MAX;
        let count = run(RandomScheduler::new_from_seed(seed, most), &model)
            + run(PctScheduler::new_from_seed(seed, DEPTH, most), &model);
        super::tell(count, "orders");
    }

    fn run(
        scheduler: impl Scheduler + 'static,
        model: &Arc<impl Fn() + Send + Sync + 'static>,
    ) -> u64 {
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        config.max_steps = MaxSteps::FailAfter(1_000_000);
        config.max_time = Some(Duration::from_secs_f64(super::seconds() / 2.0));
        config.silence_warnings = true;
        let directory = super::setting("KVRING_MODEL_FAILURES");
        config.failure_persistence = FailurePersistence::File(directory);
        let model = Arc::clone(model);
        Runner::new(scheduler, config).run(move || model()) as u64
    }
}

#[cfg(kvring_model = "loom")]
mod on_loom {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    pub(crate) use loom::thread::spawn;

    use loom::model::Builder;

    /// How often a thread is interrupted, at most.
    const INTERRUPTIONS: usize = 3;

    /// Runs `model` in each order that there is with few interruptions, as far as the time allows.
    pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) {
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        let mut builder = Builder::new();
        builder.preemption_bound = Some(INTERRUPTIONS);
        builder.max_branches = 10_000;
        // It looks at the time so often.
        builder.checkpoint_interval = 100;
        let longest = Duration::from_secs_f64(super::seconds());
        builder.max_duration = Some(longest);
        let began = std::time::Instant::now();
        builder.check(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            model();
        });
        let how = if began.elapsed() < longest { "orders, which are all" } else { "orders" };
        super::tell(count.load(Ordering::Relaxed), how);
    }
}
