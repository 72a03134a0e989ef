//! Random operations over a small capacity: everything that the store is asked and told, on chunks of 1 KiB to 4 MiB in
//! several namespaces, in sessions of different policy, durability and capacity that end by closing or by a kill. After
//! each step it is compared with what can be there: a hit has the bytes that were stored last, what is pinned or leased
//! is there, what has expired is not, and the directory never takes more than the capacity.
//!
//! It works on a simulated disk, which keeps the first bytes of each block; `--disk DIRECTORY` on a real one, with whole chunks, in
//! processes of their own that are killed. A failure prints the seed of its session; `--seed` repeats the operations, not the moments at
//! which threads and kills meet them.

mod acts;
mod content;
mod disk;
mod driver;
mod session;
mod step;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvring::testing::Clock;
use kvring::{Config, Connector};

use self::content::{Arena, Contents};
use self::disk::TagDisk;
use self::driver::Driver;
use self::session::Session;
use super::common::random::Random;
use super::common::{self, Client, MIB, on_disk_bytes};
use super::ledger::Ledger;
use super::plan::End;
use super::{close_idle, set_layout};

const SIMULATED: &str = "simulated";
/// The first time on the clock: late enough to be set back.
const START_MS: u64 = 1_700_000_000_000;
/// Between two looks at the directory beside the operations.
const LOOK_PAUSE: Duration = Duration::from_millis(2);
/// Small chunks on their way may lie so that there is no room for a long one between them: seldom, beside the first one.
const LEAST_SETS_PER_UNPLACED: u64 = 10_000;
const LONGEST_LIFE_MS: u64 = 400;

#[derive(clap::Args)]
pub(crate) struct Arguments {
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
    ledger: &mut Ledger,
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
    ledger.note_most("most_bytes", most);
    for (tally, name) in [("evicted", "evicted"), ("expired", "expired")] {
        ledger.count(tally, client.counter(name));
    }
    outcome?;
    match most <= session.capacity_bytes {
        true => Ok(()),
        false => Err(format!("{most} bytes on disk of {}", session.capacity_bytes)),
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
    ledger: &mut Ledger,
    contents: &Contents,
    session: &Session,
    was_closed: bool,
) -> Result<(), String> {
    let clock = Arc::new(AtomicU64::new(ledger.tally("clock_ms")));
    let mut random = Random::new(!session.seed);
    // Many kills while it opens.
    let events = match session.end {
        End::Kill if random.one_of(8) => 1 + random.below(50),
        End::Kill => 1 + random.below(session.operations),
        _ => u64::MAX,
    };
    let config = config(path, session, &clock);
    let client = opened(disk.open(config, events, random.below(u64::MAX)), was_closed)?;
    let was_killed = || disk.was_killed();
    live(&client, ledger, contents, session, path, &clock, &was_killed)?;
    if session.end == End::Close {
        return close_idle(&client);
    }
    disk.kill();
    drop(client);
    disk.restore();
    Ok(())
}

// --- on a real disk ---

/// The process of one session: it is told what is known, and tells what it does.
fn child(arguments: &Arguments) -> Result<(), String> {
    let mut ledger = Ledger::default();
    std::io::stdin().lines().for_each(|line| assert!(ledger.read(&line.unwrap())));
    ledger.tells = true;
    let ledger = &mut ledger;
    let path = Path::new(&arguments.disk);
    let session = arguments.session(arguments.first_session);
    let clock = Arc::new(AtomicU64::new(ledger.tally("clock_ms")));
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
    close_idle(&client)
}

/// Has a process work for one session. Says whether it was killed.
fn in_a_child(arguments: &Arguments, ledger: &mut Ledger, number: u64) -> Result<bool, String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("random").arg("--child").arg("--disk").arg(&arguments.disk);
    for (name, value) in [
        ("--seed", arguments.seed),
        ("--capacity-mib", arguments.capacity_mib),
        ("--first-session", number),
    ] {
        command.arg(name).arg(value.to_string());
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let known: String = ledger.lines().map(|line| line + "\n").collect();
    // One that is killed at once reads nothing.
    let _ = child.stdin.take().unwrap().write_all(known.as_bytes());
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        ledger.read(&line);
    }
    let status = child.wait().unwrap();
    match status.signal() {
        Some(libc::SIGKILL) => Ok(true),
        None if status.success() => Ok(false),
        _ => Err(format!("its process ended: {status}")),
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, String> {
    set_layout(arguments.layout.as_deref());
    if arguments.child {
        return child(arguments).map(|()| "done".into());
    }
    if arguments.disk == SIMULATED && common::layout() != kvring::Layout::Extents {
        return Err("the simulated disk has layout 'extents' only: give --disk a directory".into());
    }
    let temporary = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = temporary.path();
    let mut ledger = Ledger::default();
    ledger.set_tally("clock_ms", START_MS);
    let is_simulated = arguments.disk == SIMULATED;
    let (disk, contents) = (TagDisk::new(store), Contents::new(false));
    let (start, mut was_closed) = (Instant::now(), true);
    let mut number = arguments.first_session;
    while ledger.tally("operations") < arguments.operations {
        let session = arguments.session(number);
        let outcome = if is_simulated {
            simulated(&disk, store, &mut ledger, &contents, &session, was_closed)
                .map(|()| session.end == End::Kill)
        } else {
            in_a_child(arguments, &mut ledger, number)
        };
        let was_killed = outcome.map_err(|error| {
            format!("seed {}, session {number}: {error}; {session:?}", arguments.seed)
        })?;
        was_closed = !was_killed;
        ledger.end_session(was_killed);
        ledger.count(if was_killed { "kills" } else { "closes" }, 1);
        number += 1;
    }
    let tally = |name| ledger.tally(name);
    let unplaced = tally("unplaced");
    if unplaced.saturating_sub(1) * LEAST_SETS_PER_UNPLACED > tally("sets") {
        return Err(format!(
            "seed {}: {unplaced} SETs found no room with nothing in the way",
            arguments.seed
        ));
    }
    let names = [
        ("sets", "SETs"),
        ("sets_failed", "of them without room"),
        ("unplaced", "though nothing was guarded"),
        ("hits", "hits"),
        ("misses", "misses"),
        ("evicted", "chunks evicted"),
        ("expired", "expired"),
        ("purged", "purged"),
        ("resizes", "resizes"),
        ("guarded", "times something guarded"),
        ("checks", "checks"),
        ("most_permille", "permille of the capacity allocated at most"),
        ("most_bytes", "bytes on disk at most"),
    ];
    let counted: String =
        names.iter().map(|(name, what)| format!(", {} {what}", tally(name))).collect();
    Ok(format!(
        "{} operations in {:.0} s, with {} kills and {} closes between them: nothing wrong, nothing over the capacity{counted}",
        tally("operations"),
        start.elapsed().as_secs_f64(),
        tally("kills"),
        tally("closes"),
    ))
}
