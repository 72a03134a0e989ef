//! An open store and the jobs that work on it, phase by phase.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvring::{Checksum, Config, Connector, Stats};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use crate::error::{BenchError, PlanError};
use crate::job::{Job, JobContext, Work, WorkKind};
use crate::plan::{Pattern, Plan};
use crate::progress::{Phase, ProgressMeter};
use crate::report::{Operation, PhaseReport, Report, Tally};
use crate::router::Router;

pub(crate) struct Session<'run> {
    plan: Plan,
    connector: Connector,
    router: Router,
    jobs: Vec<Job>,
    /// Of all phases.
    tally: Tally,
    stop: &'run AtomicBool,
    progress: &'run ProgressMeter,
}

/// Opens the store of a plan, and checks that it takes the plan's chunks.
pub(crate) fn open_store(config: Config, plan: &Plan) -> Result<Connector, BenchError> {
    if config.checksum == Checksum::Off && plan.stores_keys_again() {
        let message = format!(
            "rw = {}{} stores keys again, which a store with checksum = off takes for unchanged and does not write; use \
             checksum = crc64nvme, or rw = write or randwrite without runtime",
            plan.rw.name(),
            if plan.runtime.is_some() { " with runtime" } else { "" }
        );
        return Err(PlanError::Conflict(message).into());
    }
    let capacity_bytes = config.capacity_bytes();
    let connector = Connector::open(config)?;
    let (longest_bytes, limit_bytes) =
        (plan.sizes.longest_bytes(), connector.stats().max_chunk_bytes);
    if longest_bytes > limit_bytes {
        connector.close();
        let message = format!(
            "bs = {} is more than the {limit_bytes} bytes that a chunk may have within a capacity of {capacity_bytes} \
             bytes; lower bs or raise capacity",
            plan.sizes
        );
        return Err(PlanError::Conflict(message).into());
    }
    Ok(connector)
}

impl<'run> Session<'run> {
    pub(crate) fn new(
        plan: Plan,
        connector: Connector,
        stop: &'run AtomicBool,
        progress: &'run ProgressMeter,
    ) -> Self {
        let jobs: Vec<_> =
            (0..plan.numjobs as usize).map(|number| Job::new(number, &plan)).collect();
        let router = Router::new(jobs.len());
        Self { plan, connector, router, jobs, tally: Tally::new(), stop, progress }
    }

    /// All phases, and the end of the store.
    pub(crate) fn run(mut self) -> Result<Report, BenchError> {
        if self.plan.registered {
            let Self { jobs, connector, .. } = &mut self;
            jobs.iter_mut().try_for_each(|job| job.register(connector))?;
        }
        let fill = self.fill()?;
        let measured = self.measure()?;
        let check = self.check()?;
        Ok(self.finish(fill, measured, check))
    }

    /// Stores every chunk, where the pattern needs it.
    pub(crate) fn fill(&mut self) -> Result<Option<PhaseReport>, BenchError> {
        if !self.plan.rw.needs_fill() {
            return Ok(None);
        }
        let work = Work { kind: WorkKind::Only(Operation::Set), random: false, deadline: None };
        self.phase(Phase::Fill, work)
    }

    /// What is asked for.
    pub(crate) fn measure(&mut self) -> Result<Option<PhaseReport>, BenchError> {
        let kind = match self.plan.rw {
            Pattern::Read | Pattern::RandRead => WorkKind::Only(Operation::Get),
            Pattern::Write | Pattern::RandWrite => WorkKind::Only(Operation::Set),
            Pattern::ReadWrite | Pattern::RandReadWrite => WorkKind::Mix(self.plan.rwmixread),
            Pattern::Exists => WorkKind::Only(Operation::Exists),
            Pattern::Delete => WorkKind::Only(Operation::Delete),
        };
        let deadline = self.plan.runtime.map(|runtime| Instant::now() + runtime);
        self.phase(Phase::Measure, Work { kind, random: self.plan.rw.is_random(), deadline })
    }

    /// Loads again what was written, to compare it.
    pub(crate) fn check(&mut self) -> Result<Option<PhaseReport>, BenchError> {
        if !(self.plan.verify && self.plan.rw.writes()) {
            return Ok(None);
        }
        let work = Work { kind: WorkKind::Only(Operation::Get), random: false, deadline: None };
        self.phase(Phase::Check, work)
    }

    fn phase(&mut self, phase: Phase, work: Work) -> Result<Option<PhaseReport>, BenchError> {
        if self.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let runtime = work.deadline.and(self.plan.runtime);
        self.progress.enter(phase, runtime, self.plan.keys());
        let Self { connector, router, stop, progress, jobs, .. } = self;
        let context = JobContext { connector, router, stop, progress };
        let mut all = Tally::new();
        let cpu_before = cpu_times();
        let start = Instant::now();
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for job in jobs {
                let context = &context;
                let started = thread::Builder::new()
                    .name("kvring-bench".into())
                    .spawn_scoped(scope, move || job.run(work, context));
                match started {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        stop.store(true, Ordering::Relaxed);
                        return Err(BenchError::Thread(error));
                    }
                }
            }
            for thread in threads {
                let tally =
                    thread.join().map_err(|_| BenchError::Defect("a job panicked".into()))?;
                all.add(tally);
            }
            Ok(())
        })?;
        let elapsed = start.elapsed();
        let cpu_after = cpu_times();
        let cpu = (cpu_after.0 - cpu_before.0, cpu_after.1 - cpu_before.1);
        let report = PhaseReport::new(&all, elapsed, cpu);
        self.tally.add(all);
        Ok(Some(report))
    }

    /// Closes the store and sums up.
    pub(crate) fn finish(
        self,
        fill: Option<PhaseReport>,
        measured: Option<PhaseReport>,
        check: Option<PhaseReport>,
    ) -> Report {
        self.progress.enter(Phase::End, None, 0);
        let stats = self.connector.stats();
        let shutdown = self.connector.close();
        let damaged_chunks = counter(&stats, "checksum_mismatch") + counter(&stats, "read_errors");
        Report {
            fill,
            measured,
            check,
            interrupted: self.stop.load(Ordering::Relaxed) && !self.tally.ended_early,
            failed_keys: self.tally.failed(),
            wrong_chunks: self.tally.wrong_chunks,
            damaged_chunks,
            gave_up: self.tally.ended_early,
            failed_batches: self.tally.failed_batches,
            messages: self.tally.messages,
            stats,
            closed_in_order: shutdown.clean,
            plan: self.plan,
        }
    }
}

fn counter(stats: &Stats, name: &str) -> u64 {
    stats.counters.iter().find(|(other, _)| *other == name).map_or(0, |(_, value)| *value)
}

/// CPU time of the process so far, in user mode and in the kernel.
fn cpu_times() -> (Duration, Duration) {
    let time = |microseconds: i64| Duration::from_micros(u64::try_from(microseconds).unwrap_or(0));
    // It fails for a `who` that does not exist, and in no other way.
    getrusage(UsageWho::RUSAGE_SELF).map_or_else(
        |_| Default::default(),
        |usage| {
            (
                time(usage.user_time().num_microseconds()),
                time(usage.system_time().num_microseconds()),
            )
        },
    )
}

#[cfg(test)]
mod tests;
