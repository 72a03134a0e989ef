//! The harness of pairs: two or three mechanisms of a store meet, as a seed draws them, over the real engine with faults. What is
//! acknowledged is a hit at once and after a reopen; a SET fails only if what must stay leaves no room; equal bytes turn no hit into a
//! miss; a healthy path stays and a dead one goes; trouble ends; nothing is held at rest.
//!
//! `cargo test --example harness` runs it for a minute or two.

mod calls;
mod checks;
mod driver;
mod faults;
mod late;
mod model;
mod pauses;
mod plan;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvring::Connector;
use kvring::testing::Clock;
use parking_lot::Mutex;
use tempfile::TempDir;

use self::driver::{Driver, ask_beside};
use self::faults::{Faults, FaultyFiles};
use self::late::LateEngine;
use self::model::Model;
use self::plan::{Mechanism, Plan};
use super::close_idle;
use super::common::chunks::copy_all;
use super::common::faults::FaultEngine;
use super::common::random::Random;
use super::common::{Client, MIB, config_of};

/// A step that takes longer hangs.
const HANG: Duration = Duration::from_secs(75);
/// Of data files where the store grows by many: whatever it wants, halved as often as needed, is less than twice the shortest one.
const SHORT_FILE_BYTES: u64 = 32 * MIB - 1;
const START_MS: u64 = 1_700_000_000_000;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many lives at least.
    #[arg(long, default_value_t = 1)]
    lives: u64,
    /// For how long at least.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Seed of the first life; each further one has the next.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What meets in each life, by name: for instance `--with kill --with seconduse`.
    #[arg(long, value_enum, ignore_case = true)]
    with: Vec<Mechanism>,
}

struct Life {
    plan: Plan,
    directory: TempDir,
    model: Model,
    random: Random,
    clock: Arc<AtomicU64>,
    may_have_lost: bool,
}

impl Life {
    fn new(plan: Plan) -> Self {
        Self {
            random: Random::new(plan.seed ^ 0x5eed),
            plan,
            directory: new_directory(),
            model: Model::default(),
            clock: Arc::new(AtomicU64::new(START_MS)),
            may_have_lost: false,
        }
    }

    fn paths(&self) -> Vec<PathBuf> {
        (0..self.plan.paths)
            .map(|number| self.directory.path().join(format!("path{number}")))
            .collect()
    }

    fn open(&self, session: usize) -> Result<(Client, Arc<Faults>), String> {
        begin_step(self.plan.seed, "open");
        let paths = self.paths();
        let faults = Faults::new(&paths, self.plan.seed.wrapping_mul(100) + session as u64);
        let mut config = config_of(&paths, self.plan.capacity_bytes);
        self.plan.apply(&mut config);
        config.clock = Clock::by_hand(Arc::clone(&self.clock));
        let longest_run_bytes = self.plan.has(Mechanism::Growth).then_some(SHORT_FILE_BYTES);
        config.files = Arc::new(FaultyFiles { faults: Arc::clone(&faults), longest_run_bytes });
        let (hand, engines) = (Arc::clone(&faults), AtomicU64::new(0));
        let (late_one_in, seed) = (self.plan.late_one_in(), self.plan.seed);
        let make_engine = move |queue_depth, waker| {
            let (faults, path) = (Arc::clone(&hand), engines.fetch_add(1, Ordering::SeqCst));
            let script = move |_, action, length| faults.of_transfer(path as usize, action, length);
            let engine = FaultEngine::new(queue_depth, waker, Box::new(script), Arc::default())?;
            Ok(LateEngine::new(engine, late_one_in, seed + path))
        };
        let connector = Connector::open_with_engine(config, make_engine);
        let connector = connector.map_err(|error| format!("open failed: {error}"))?;
        Ok((Client::from(connector), faults))
    }

    fn run(&mut self) -> Result<(), String> {
        for session in 0..self.plan.sessions {
            self.session(session).map_err(|error| format!("session {session}: {error}"))?;
        }
        let (client, faults) = self.open(self.plan.sessions)?;
        self.driver(&client, &faults, |driver, may_have_lost| driver.look(may_have_lost))
    }

    fn driver<R>(
        &mut self,
        client: &Client,
        faults: &Faults,
        work: impl FnOnce(&mut Driver<'_>, bool) -> R,
    ) -> R {
        let (plan, clock) = (&self.plan, &self.clock);
        let mut driver =
            Driver::new(client, plan, &mut self.model, faults, clock, &mut self.random);
        work(&mut driver, self.may_have_lost)
    }

    fn session(&mut self, session: usize) -> Result<(), String> {
        let (client, faults) = self.open(session)?;
        let (rounds, is_over) = (self.plan.rounds, AtomicBool::new(false));
        let asks = self.plan.has(Mechanism::Growth);
        let closes_busy = self.plan.has(Mechanism::BusyClose);
        self.may_have_lost = thread::scope(|scope| {
            // Also where it panics: the scope waits for those beside.
            let _over = Over(&is_over);
            if self.plan.has(Mechanism::Pauses) {
                let random = Random::new(self.plan.seed);
                scope.spawn(|| pauses::pause_threads(random, &is_over));
            }
            for _ in 0..if asks { 4 } else { 0 } {
                scope.spawn(|| ask_beside(&client, &is_over));
            }
            self.driver(&client, &faults, |driver, may_have_lost| -> Result<bool, String> {
                driver.store_again()?;
                driver.look(may_have_lost)?;
                for round in 0..rounds {
                    driver.round().map_err(|error| format!("round {round}: {error}"))?;
                }
                driver.rest()?;
                if closes_busy {
                    driver.close_busy()?;
                }
                Ok(driver.has_lost_a_path())
            })
        })?;
        let is_killed = self.plan.has(Mechanism::Kill) && self.random.one_of(2);
        if is_killed {
            let next = new_directory();
            copy_all(self.directory.path(), next.path());
            drop(client);
            self.directory = next;
        } else {
            begin_step(self.plan.seed, "close");
            close_idle(&client)?;
        }
        self.model.end_session(is_killed);
        if self.plan.has(Mechanism::Resize) {
            let before = self.plan.capacity_bytes;
            self.plan.capacity_bytes = self.random.choose(&[16, 24, 32]) * MIB;
            self.may_have_lost |= self.plan.capacity_bytes < before;
        }
        Ok(())
    }
}

/// Says that it is over once it is dropped.
struct Over<'session>(&'session AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn new_directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

/// Lives a life, and says what did not hold.
fn live(plan: Plan) -> Result<(), String> {
    let told = format!("{plan:?}");
    let outcome = catch_unwind(AssertUnwindSafe(|| Life::new(plan).run()));
    let outcome = outcome.unwrap_or_else(|_| Err("a panic, see above".into()));
    outcome.map_err(|error| format!("{error}; {told}"))
}

thread_local! {
    /// The step that this thread has begun, and when.
    static STEP: Arc<Mutex<(String, Instant)>> = Arc::new(Mutex::new((String::new(), Instant::now())));
}

/// A step begins: one that does not end is a hang, and it is named.
pub(crate) fn begin_step(seed: u64, step: &str) {
    STEP.with(|current| *current.lock() = (format!("seed {seed}: {step}"), Instant::now()));
}

/// Ends the process where a step of this thread hangs, until what is returned is dropped.
fn watch_for_hangs() -> Arc<()> {
    let (watching, step) = (Arc::new(()), STEP.with(Arc::clone));
    let is_watching = Arc::downgrade(&watching);
    thread::spawn(move || {
        while is_watching.strong_count() > 0 {
            thread::sleep(Duration::from_millis(100));
            let (step, since) = &*step.lock();
            if since.elapsed() > HANG {
                eprintln!("{step} hangs");
                std::process::exit(1);
            }
        }
    });
    watching
}

/// Lives of the seeds from the first on: so many, and for so long. Says how many there were.
fn live_all(
    first: u64,
    lives: u64,
    time: Duration,
    plan: impl Fn(u64) -> Plan,
) -> Result<u64, String> {
    begin_step(first, "begin");
    let (_watching, mut count, began) = (watch_for_hangs(), 0, Instant::now());
    while count < lives || began.elapsed() < time {
        let seed = first + count;
        live(plan(seed)).map_err(|error| format!("seed {seed}: {error}"))?;
        count += 1;
    }
    Ok(count)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, String> {
    let time = Duration::from_secs(arguments.seconds);
    let plan = |seed| Plan::drawn(seed, &arguments.with);
    let count = live_all(arguments.seed, arguments.lives, time, plan)?;
    Ok(format!("{count} lives, from seed {}: nothing wrong", arguments.seed))
}

#[cfg(test)]
mod tests {
    use kvring::{Durability, Layout};

    use super::*;

    /// Every acknowledged chunk is loaded right after its acknowledgement, whatever the device and the file system refuse.
    #[test]
    fn what_is_acknowledged_beside_random_faults_is_there() {
        let kinds = [
            (Layout::Extents, Durability::BestEffort),
            (Layout::Extents, Durability::Persistent),
            (Layout::Files, Durability::BestEffort),
            (Layout::Files, Durability::Persistent),
        ];
        let plan = |seed| {
            let (layout, durability) = kinds[seed as usize % kinds.len()];
            let mechanisms = vec![Mechanism::Faults, Mechanism::FailedSyncs];
            Plan::of(seed, mechanisms, layout, durability)
        };
        live_all(1, 40, Duration::ZERO, plan).unwrap();
    }

    #[test]
    fn pairs_of_mechanisms_keep_the_promises() {
        live_all(1, 80, Duration::ZERO, |seed| Plan::drawn(seed, &[])).unwrap();
    }
}
