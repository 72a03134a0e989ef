//! A child works on a store and is killed at a random moment, again and again; what it told is compared with what is there afterwards. In
//! between, a child closes the store with little time to finish what it has begun, and what it says of that is compared too.

#[path = "kills_child.rs"]
mod child;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use kvring::{Connector, Durability};

use super::common::random::Random;
use super::common::{Client, MIB, config_of};
use super::ledger::Ledger;
use super::{judge, set_layout};

const CAPACITY: u64 = 64 * MIB;
const KEYS: u64 = 64;
const KILLS_PER_CLOSE: u64 = 4;
/// Of a small store; a recovery takes milliseconds.
const LONGEST_OPEN: Duration = Duration::from_secs(60);
/// What a child says when its store is open, and when it has closed it.
const OPEN: &str = "open";
const CLOSED: &str = "closed ";

#[derive(Clone, clap::Args)]
pub(crate) struct Arguments {
    /// How often to kill.
    #[arg(long, default_value_t = 200)]
    rounds: u64,
    /// Directory or block device to work in; a temporary directory by default.
    #[arg(long)]
    path: Option<PathBuf>,
    /// How many paths the store has: directories below --path. Each owner names them in an order of its own.
    #[arg(long, default_value_t = 1)]
    paths: usize,
    /// Start of the random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Longest life of a child, of some from its start and of others from when its store is open, in milliseconds.
    #[arg(long, default_value_t = 60)]
    life_ms: u64,
    /// Layout of the store: 'extents' or 'files'; by default what KVRING_TEST_LAYOUT says.
    #[arg(long)]
    layout: Option<String>,
    /// Work as this child until killed.
    #[arg(long, hide = true)]
    child: Option<u64>,
    /// Close the store after some turns.
    #[arg(long, hide = true)]
    closes: bool,
}

/// What a child does: drawn by the parent and by the child alike.
struct Round {
    seed: u64,
    first_version: u64,
    persistent: bool,
    reactors: usize,
    /// Which path is named first.
    first_path: usize,
    /// Turns until it closes, and the time that closing has for what is begun.
    turns: u64,
    drain: Duration,
}

impl Round {
    fn new(arguments: &Arguments, number: u64) -> Self {
        let seed = arguments.seed + number;
        let mut random = Random::new(seed);
        Self {
            seed,
            first_version: number * 1_000_000,
            persistent: number.is_multiple_of(2),
            reactors: 1 + (number / 2 % 3) as usize,
            first_path: random.below(arguments.paths as u64) as usize,
            turns: random.below(30),
            drain: Duration::from_millis(random.choose(&[0, 0, 1, 20, 5000])),
        }
    }

    fn open(
        &self,
        path: &Path,
        paths: usize,
        reactors: usize,
    ) -> Result<Client, kvring::OpenError> {
        let number = |number| path.join(format!("{}", (self.first_path + number) % paths));
        let paths =
            if paths == 1 { vec![path.to_owned()] } else { (0..paths).map(number).collect() };
        let mut config = config_of(&paths, CAPACITY);
        config.io_threads = Some(reactors);
        // Else others could fill the disk, and chunks would be evicted.
        config.min_free_bytes = Some(0);
        if self.persistent {
            config.durability = Durability::Persistent;
        }
        Connector::open(config).map(Client::from)
    }
}

struct Kills {
    path: PathBuf,
    arguments: Arguments,
    ledger: Ledger,
    /// Children started so far.
    children: u64,
    /// Whether the store was open once: before, a kill can leave a device formatted and its index not begun.
    has_begun: bool,
}

impl Kills {
    /// Lets a child work, and checks what it leaves. Says whether it came to work at all.
    fn round(&mut self, closes: bool) -> Result<bool, String> {
        self.children += 1;
        let round = Round::new(&self.arguments, self.children);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("kills").arg("--path").arg(&self.path);
        for (name, value) in [
            ("--paths", self.arguments.paths as u64),
            ("--seed", self.arguments.seed),
            ("--child", self.children),
        ] {
            command.arg(name).arg(value.to_string());
        }
        if closes {
            command.arg("--closes");
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (is_open, opened) = mpsc::channel();
        let reader = thread::spawn(move || {
            let note = |line: &String| {
                if line == OPEN {
                    // Nobody may wait for it.
                    let _ = is_open.send(());
                }
            };
            lines.map_while(Result::ok).inspect(note).collect::<Vec<String>>()
        });
        if !closes {
            // Many kills within the first milliseconds: during the open, and so during recovery. However long that takes, half of all
            // children come to work.
            let mut random = Random::new(!round.seed);
            let (from_its_start, life_ms) = match random.below(4) {
                0 => (true, 5),
                1 => (true, self.arguments.life_ms),
                _ => (false, self.arguments.life_ms),
            };
            let is_in_time = from_its_start || opened.recv_timeout(LONGEST_OPEN).is_ok();
            thread::sleep(Duration::from_micros(random.below(life_ms * 1000)));
            let has_ended = child.try_wait().unwrap().is_some();
            let _ = child.kill();
            if !is_in_time || has_ended {
                let status = child.wait().unwrap();
                return Err(format!(
                    "the child did not open in time, or ended by itself: {status}"
                ));
            }
        }
        let status = child.wait().unwrap();
        let lines = reader.join().unwrap();
        let others: Vec<&String> = lines.iter().filter(|line| !self.ledger.read(line)).collect();
        let worked = others.iter().any(|line| *line == OPEN);
        self.has_begun |= worked;
        if closes {
            let closed = others.iter().find_map(|line| line.strip_prefix(CLOSED));
            let Some(said) = closed.filter(|_| status.success()) else {
                return Err(format!("instead of closing, the child ended: {status}"));
            };
            let client = self.open(&round)?;
            let outcome = self.judge_close(said, &client, round.persistent);
            outcome.and_then(|()| self.check(&client)).map_err(|error| told(&client, &error))?;
            return Ok(worked);
        }
        self.ledger.end_session(true);
        // Now and then nobody looks before the next child starts on what this one left.
        if !round.turns.is_multiple_of(4) {
            let client = self.open(&round)?;
            self.check(&client).map_err(|error| told(&client, &error))?;
        }
        Ok(worked)
    }

    fn open(&mut self, round: &Round) -> Result<Client, String> {
        let opened = round.open(&self.path, self.arguments.paths, 1);
        let client = opened.map_err(|error| format!("open failed: {error}"))?;
        if let Some(path) = client.connector.stats().paths.iter().find(|path| !path.in_use) {
            return Err(format!("{} is not in use: {}", path.path.display(), path.reason));
        }
        let recovery = client.connector.recovery();
        // A kill between two stores of one record leaves it torn, and between two records both of them: nothing else. All paths are
        // there in each life, so every key stays where it is.
        let is_reset = std::mem::replace(&mut self.has_begun, true) && recovery.reset.is_some();
        let damaged = recovery.out_of_range + recovery.overlapping;
        if is_reset || damaged + recovery.moved + recovery.stale > 0 {
            return Err(format!("unexpected damage, or keys of another path: {recovery}"));
        }
        Ok(client)
    }

    fn check(&mut self, client: &Client) -> Result<(), String> {
        judge::look(client, &mut self.ledger, 0..KEYS, |_| false)?;
        match client.counter("checksum_mismatch") {
            0 => Ok(()),
            _ => Err("a chunk did not match its checksum".into()),
        }
    }

    /// Compares what a child said of its close with what it left undone. Ends the session.
    fn judge_close(&mut self, said: &str, client: &Client, persistent: bool) -> Result<(), String> {
        let words: Vec<&str> = said.split(' ').collect();
        let (is_partial, abandoned) = (words[1] == "true", words[2].parse::<u64>().unwrap());
        let recovery = client.connector.recovery();
        let is_clean = words[0] == "true" && recovery.clean_shutdown;
        if !is_clean || is_partial != (abandoned > 0) {
            return Err(format!("{said}, but {recovery}"));
        }
        let open: Vec<_> = (0..KEYS).map(|key| self.ledger.unanswered(key)).collect();
        if abandoned == 0 {
            for (key, open) in (0..).zip(&open) {
                open.iter().for_each(|(id, _)| self.ledger.end(key, *id));
            }
        }
        self.ledger.end_session(false);
        let (mut undone, mut is_exact) = (0, true);
        let found = judge::look(client, &mut self.ledger, 0..KEYS, |_| false)?;
        for (open, (_, held)) in open.iter().zip(found) {
            // In order: what is there was done last, and what comes behind it was not.
            let done = open.iter().position(|(_, result)| *result == held);
            let is_countable = open.iter().all(|(_, result)| result.is_some());
            is_exact &= is_countable;
            if is_countable {
                undone += (open.len() - done.map_or(0, |last| last + 1)) as u64;
            }
        }
        let all = open.iter().map(Vec::len).sum::<usize>() as u64;
        // In `persistent` a SET whose predecessor is cleared already stands, although it is not acknowledged.
        let is_wrong = is_exact && !persistent && undone != abandoned;
        if abandoned > all || undone > abandoned || is_wrong {
            return Err(format!("of {all} {abandoned} abandoned, {undone} SETs undone: {said}"));
        }
        Ok(())
    }
}

/// What went wrong, with what the store says of itself.
fn told(client: &Client, error: &str) -> String {
    let counters = client.connector.stats().counters;
    let counted: Vec<_> = counters.iter().filter(|(_, count)| *count > 0).collect();
    format!("{error}; {}; {counted:?}", client.connector.recovery())
}

pub(crate) fn run(arguments: Arguments) -> Result<String, String> {
    set_layout(arguments.layout.as_deref());
    if let Some(number) = arguments.child {
        let path = arguments.path.as_deref().expect("a child is told where");
        child::work(path, &arguments, &Round::new(&arguments, number));
        return Ok("done".into());
    }
    // Not in a child, which is killed before it could remove it.
    let temporary = tempfile::tempdir().unwrap();
    let path = arguments.path.clone().unwrap_or_else(|| temporary.path().to_owned());
    let (rounds, seed) = (arguments.rounds, arguments.seed);
    let mut kills =
        Kills { path, arguments, ledger: Ledger::default(), children: 0, has_begun: false };
    let (mut worked, mut closes) = (0, 0);
    for round in 0..rounds {
        let mut outcome = kills.round(false);
        worked += u64::from(outcome == Ok(true));
        if outcome.is_ok() && round % KILLS_PER_CLOSE == 0 {
            outcome = kills.round(true);
            closes += 1;
        }
        outcome.map_err(|error| format!("round {round}, seed {seed}: {error}"))?;
    }
    Ok(format!(
        "{rounds} kills, {worked} of them after the store was open, and {closes} closes: nothing lost, nothing wrong"
    ))
}
