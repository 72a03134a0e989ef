//! Random operations over a small capacity: everything that the store is asked and told, on chunks of 1 KiB to 4 MiB in
//! several namespaces, in sessions of different policy, durability and capacity that end by closing or by a kill. After
//! each step it is compared with what can be there: a hit has the bytes that were stored last, what is pinned or leased
//! is there, what has expired is not, and the directory never takes more than the capacity.
//!
//! `cargo run --release --example random_operations -- --operations 10000000` works on a simulated disk, which keeps the
//! first bytes of each block; `--disk DIRECTORY` on a real one, with whole chunks, in processes of their own that are
//! killed. A failure prints the seed of its session; `--seed` repeats the operations, not the moments at which threads
//! and kills meet them.
#![allow(
    clippy::unwrap_used,
    reason = "a harness that unwraps fails with the place and the reason"
)]

#[path = "random_acts.rs"]
mod acts;
#[path = "../common/mod.rs"]
mod common;
#[path = "random_content.rs"]
mod content;
#[path = "random_disk.rs"]
mod disk;
#[path = "random_driver.rs"]
mod driver;
#[path = "random_judge.rs"]
mod judge;
#[path = "random_ledger.rs"]
mod ledger;
#[path = "random_plan.rs"]
mod plan;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use common::Client;
use common::on_disk_bytes;
use common::random::Random;
use content::{Arena, Contents};
use disk::TagDisk;
use driver::Driver;
use kvring::testing::Clock;
use kvring::{Config, Connector};
use ledger::{Ledger, Tally};
use plan::{End, MIB, Session};

const SIMULATED: &str = "simulated";
/// The first time on the clock: late enough to be set back.
const START_MS: u64 = 1_700_000_000_000;
/// Between two looks at the directory beside the operations.
const LOOK_PAUSE: Duration = Duration::from_millis(2);
/// Small chunks on their way may lie so that there is no room for a long one between them: seldom, beside the first one.
const LEAST_SETS_PER_UNPLACED: u64 = 10_000;
const LONGEST_LIFE_MS: u64 = 400;

/// Does random things to a store and checks what comes of them.
#[derive(Parser)]
struct Arguments {
    /// How many operations at least, each on one key.
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// Start of the random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// "simulated", or an empty directory or block device to work in.
    #[arg(long, default_value = SIMULATED)]
    disk: String,
    /// Layout of the store: 'extents', or on a real disk 'files'; by default what KVRING_TEST_LAYOUT says.
    #[arg(long)]
    layout: Option<String>,
    /// Usual capacity in MiB; sessions have half of it or twice as much as well.
    #[arg(long, default_value_t = 64)]
    capacity_mib: u64,
    /// Number of the first session.
    #[arg(long, default_value_t = 0)]
    first_session: u64,
    /// Work as the process of one session.
    #[arg(long, hide = true)]
    child: bool,
    /// What is known of the keys.
    #[arg(long, hide = true)]
    ledger: Option<PathBuf>,
}

impl Arguments {
    fn session(&self, number: u64) -> Session {
        Session::new(self.seed, number, self.capacity_mib * MIB)
    }
}

fn config(path: &Path, session: &Session, clock: &Arc<AtomicU64>) -> Config {
    let mut config = common::config(path, session.capacity_bytes);
    session.apply(&mut config);
    config.clock = Clock::by_hand(Arc::clone(clock));
    config
}

/// Looks at the directory all the time while `work` runs, and says how much it took at most.
fn watched<R>(path: &Path, work: impl FnOnce() -> R) -> (R, u64) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !is_over.load(Ordering::SeqCst) {
                most = most.max(on_disk_bytes(path));
                thread::sleep(LOOK_PAUSE);
            }
            most
        });
        let result = work();
        is_over.store(true, Ordering::SeqCst);
        (result, watch.join().unwrap())
    })
}

/// Everything but the opening and the end.
fn live(
    client: &Client,
    ledger: &Ledger,
    contents: &Contents,
    session: &Session,
    path: &Path,
    clock: &Arc<AtomicU64>,
    was_killed: &dyn Fn() -> bool,
) -> Result<(), String> {
    // A step has a quarter of the capacity, and each of its chunks up to a block more.
    let mut arena = Arena::new((session.capacity_bytes / 4 + MIB) as usize);
    let (outcome, most) = watched(path, || {
        let clock = Arc::clone(clock);
        let mut driver =
            Driver::new(client, ledger, contents, &mut arena, session, path, clock, was_killed);
        driver.check()?;
        driver.look(session.seed.is_multiple_of(4))?;
        if was_killed() { Ok(()) } else { driver.work() }
    });
    ledger.note_most(Tally::MostBytes, most);
    for (tally, name) in [(Tally::Evicted, "evicted"), (Tally::Expired, "expired")] {
        ledger.count(tally, client.counter(name));
    }
    outcome?;
    match most <= session.capacity_bytes {
        true => Ok(()),
        false => Err(format!("{most} bytes on disk of {}", session.capacity_bytes)),
    }
}

fn close(client: &Client) -> Result<(), String> {
    let shutdown = client.connector.close();
    match shutdown.clean && !shutdown.partial_flush {
        true => Ok(()),
        false => Err(format!("closed with nothing to do, but {shutdown}")),
    }
}

fn opened(
    opened: Result<Connector, kvring::OpenError>,
    was_closed: bool,
) -> Result<Client, String> {
    let client = Client::from(opened.map_err(|error| format!("open failed: {error}"))?);
    let recovery = client.connector.recovery();
    let is_odd = recovery.reset.is_some() || recovery.truncated || recovery.overlapping > 0;
    if is_odd || recovery.clean_shutdown != was_closed {
        return Err(format!("unexpected: {recovery}"));
    }
    Ok(client)
}

// --- on the simulated disk ---

fn simulated(
    disk: &Arc<TagDisk>,
    path: &Path,
    ledger: &Ledger,
    contents: &Contents,
    session: &Session,
    was_closed: bool,
) -> Result<(), String> {
    let clock = Arc::new(AtomicU64::new(ledger.tally(Tally::ClockMs)));
    let mut random = Random::new(!session.seed);
    let events = match session.end {
        End::Close => u64::MAX,
        // Many while it opens.
        End::Kill if random.one_of(8) => 1 + random.below(50),
        End::Kill => 1 + random.below(session.operations),
    };
    let config = config(path, session, &clock);
    let client = opened(disk.open(config, events, random.below(u64::MAX)), was_closed)?;
    let was_killed = || disk.was_killed();
    live(&client, ledger, contents, session, path, &clock, &was_killed)?;
    match session.end {
        End::Close => close(&client),
        End::Kill => {
            disk.kill();
            drop(client);
            disk.restore();
            Ok(())
        }
    }
}

// --- on a real disk ---

/// The process of one session.
fn child(arguments: &Arguments, ledger: &Ledger) -> Result<(), String> {
    let path = Path::new(&arguments.disk);
    let session = arguments.session(arguments.first_session);
    let clock = Arc::new(AtomicU64::new(ledger.tally(Tally::ClockMs)));
    if session.end == End::Kill {
        let mut random = Random::new(!session.seed);
        // Many within the first milliseconds, while it opens.
        let longest_us = if random.one_of(8) { 10_000 } else { LONGEST_LIFE_MS * 1000 };
        let life = Duration::from_micros(random.below(longest_us));
        thread::spawn(move || {
            thread::sleep(life);
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
        });
    }
    let config = config(path, &session, &clock);
    // How the last one ended is not told: a kill may come before it was open.
    let client = Connector::open(config).map(Client::from);
    let client = client.map_err(|error| format!("open failed: {error}"))?;
    let contents = Contents::new(true);
    live(&client, ledger, &contents, &session, path, &clock, &|| false)?;
    close(&client)
}

fn in_a_child(arguments: &Arguments, ledger: &Path, number: u64) -> Result<bool, String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("--child").arg("--ledger").arg(ledger);
    command.arg("--disk").arg(&arguments.disk).arg("--seed").arg(arguments.seed.to_string());
    command.arg("--capacity-mib").arg(arguments.capacity_mib.to_string());
    command.arg("--first-session").arg(number.to_string());
    let status = command.status().unwrap();
    match status.signal() {
        Some(libc::SIGKILL) => Ok(true),
        None if status.success() => Ok(false),
        _ => Err(format!("its process ended: {status}")),
    }
}

fn run(arguments: &Arguments) -> Result<String, (u64, String)> {
    let temporary = tempfile::tempdir_in("/dev/shm").unwrap();
    let (store, ledger_path) = (temporary.path().join("store"), temporary.path().join("ledger"));
    std::fs::create_dir(&store).unwrap();
    let ledger = Ledger::create(&ledger_path);
    ledger.store(Tally::ClockMs, START_MS);
    let is_simulated = arguments.disk == SIMULATED;
    let (disk, contents) = (TagDisk::new(&store), Contents::new(false));
    let (start, mut was_closed) = (Instant::now(), true);
    let mut number = arguments.first_session;
    while ledger.tally(Tally::Operations) < arguments.operations {
        let session = arguments.session(number);
        let outcome = if is_simulated {
            simulated(&disk, &store, &ledger, &contents, &session, was_closed)
                .map(|()| session.end == End::Kill)
        } else {
            in_a_child(arguments, &ledger_path, number)
        };
        let was_killed = outcome.map_err(|error| (number, format!("{error}; {session:?}")))?;
        was_closed = !was_killed;
        ledger.end_session(was_killed);
        ledger.count(if was_killed { Tally::Kills } else { Tally::Closes }, 1);
        number += 1;
    }
    let tally = |tally| ledger.tally(tally);
    if tally(Tally::Unplaced).saturating_sub(1) * LEAST_SETS_PER_UNPLACED > tally(Tally::Sets) {
        let unplaced = tally(Tally::Unplaced);
        return Err((number, format!("{unplaced} SETs found no room with nothing in the way")));
    }
    Ok(format!(
        "{} operations in {:.0} s, with {} kills and {} closes between them: nothing wrong, nothing over the capacity\n\
         {} SETs, {} of them without room ({} though nothing was guarded); {} hits, {} misses; {} chunks evicted, {} expired, {} purged; \
         {} times something guarded; {} checks; up to {} permille of the capacity allocated, {} bytes on disk at most",
        tally(Tally::Operations),
        start.elapsed().as_secs_f64(),
        tally(Tally::Kills),
        tally(Tally::Closes),
        tally(Tally::Sets),
        tally(Tally::SetsFailed),
        tally(Tally::Unplaced),
        tally(Tally::GetHits),
        tally(Tally::GetMisses),
        tally(Tally::Evicted),
        tally(Tally::Expired),
        tally(Tally::Purged),
        tally(Tally::Guarded),
        tally(Tally::Checks),
        tally(Tally::MostPermille),
        tally(Tally::MostBytes),
    ))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(layout) = &arguments.layout {
        // SAFETY: there is one thread yet. Children inherit it.
        unsafe { std::env::set_var("KVRING_TEST_LAYOUT", layout) };
    }
    if arguments.disk == SIMULATED && common::layout() != kvring::Layout::Extents {
        eprintln!("the simulated disk has layout 'extents' only: give --disk a directory");
        return ExitCode::FAILURE;
    }
    if arguments.child {
        let ledger = Ledger::open(arguments.ledger.as_deref().expect("a child is told where"));
        return match child(&arguments, &ledger) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    match run(&arguments) {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err((number, error)) => {
            eprintln!("seed {}, session {number}: {error}", arguments.seed);
            ExitCode::FAILURE
        }
    }
}
