//! Prefix hits of the eviction policies: traces before caches of several sizes. Counts only, as JSON on standard output; the
//! same arguments give the same bytes. `make eviction` runs it and writes tables of what it says.
//!
//! `cargo run --release --features bench --example eviction_simulator -- --requests 12000 --trace NAME=FILE`

mod cache;
mod generate;
mod level;
mod min;
mod random;
mod replay;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cache::{Outcome, Policy, Setting};
use clap::Parser;
use kvring::Eviction;
use trace::Trace;

/// A cache has room for one chunk of so many that the trace has.
const FRACTIONS: [usize; 5] = [32, 16, 8, 4, 2];

/// And so has the cache in memory above it, if there is one.
const MEMORIES: [Option<usize>; 3] = [None, Some(64), Some(16)];

/// Plays traces to caches and prints what they found, as JSON.
#[derive(Parser)]
struct Arguments {
    /// Requests of each trace that is made by rule.
    #[arg(long, default_value_t = 12_000)]
    requests: usize,
    /// A trace from a file with a line for each request: the numbers of its chunks, with spaces between them.
    #[arg(long = "trace", value_name = "NAME=FILE", value_parser = parse_named)]
    traces: Vec<(String, PathBuf)>,
    /// Plays one-off prompts among small shared prefixes to a store in this new directory, and to a simulated one; no other trace.
    #[arg(long, value_name = "DIRECTORY")]
    replay: Option<PathBuf>,
}

fn parse_named(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("it is not NAME=FILE")?;
    Ok((name.to_owned(), path.into()))
}

/// A cache before a trace.
struct Cell<'a> {
    trace: &'a Trace,
    fraction: usize,
    memory: Option<usize>,
    setting: Setting,
}

impl Cell<'_> {
    fn simulate(&self) -> Outcome {
        match self.setting.policy {
            Policy::Min => min::simulate(self.trace, self.setting),
            _ => cache::simulate(self.trace, self.setting, cache::coins()),
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(directory) = &arguments.replay {
        let (store, simulated) = replay::replay(&generate::one_off(arguments.requests), directory);
        let told = |one: Outcome| format!("{:?}", one.quarters);
        println!("{{\"store\": {}, \"simulated\": {}}}", told(store), told(simulated));
        return ExitCode::SUCCESS;
    }
    let mut traces = Vec::new();
    for (name, path) in &arguments.traces {
        match Trace::read(name, path) {
            Ok(trace) => traces.push(trace),
            Err(error) => {
                eprintln!("eviction_simulator: {}: {error}", path.display());
                return ExitCode::FAILURE;
            }
        }
    }
    traces.extend(generate::all(arguments.requests));
    let cells: Vec<Cell<'_>> = traces.iter().flat_map(cells).collect();
    let outcomes = in_parallel(&cells);
    let described: Vec<String> = traces.iter().map(trace_json).collect();
    let told: Vec<String> =
        cells.iter().zip(outcomes).map(|(cell, outcome)| cell_json(cell, outcome)).collect();
    println!(
        "{{\"traces\": [\n{}\n],\n\"cells\": [\n{}\n]}}",
        described.join(",\n"),
        told.join(",\n")
    );
    ExitCode::SUCCESS
}

fn cells(trace: &Trace) -> Vec<Cell<'_>> {
    let policies = Eviction::ALL.map(Policy::Evict).into_iter().chain([Policy::Admit, Policy::Min]);
    let mut cells = Vec::new();
    for memory in MEMORIES {
        for fraction in FRACTIONS {
            let (room, memory_room) =
                (trace.room(fraction), memory.map(|memory| trace.room(memory)));
            let setting = |policy| Setting { policy, room, memory: memory_room };
            let cell = |policy| Cell { trace, fraction, memory, setting: setting(policy) };
            cells.extend(policies.clone().map(cell));
        }
    }
    cells
}

/// Simulates all cells, on all processors.
fn in_parallel(cells: &[Cell<'_>]) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let work = || {
        let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        let taken = numbers.map_while(|number| cells.get(number).map(|cell| (number, cell)));
        taken.map(|(number, cell)| (number, cell.simulate())).collect::<Vec<_>>()
    };
    let mut done: Vec<(usize, Outcome)> = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a panic was printed")).collect()
    });
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

fn trace_json(trace: &Trace) -> String {
    format!(
        "{{\"name\": \"{}\", \"set\": \"{}\", \"requests\": {}, \"lookups\": {}, \"chunks\": {}}}",
        trace.name,
        trace.set,
        trace.requests.len(),
        trace.lookups(),
        trace.chunks,
    )
}

fn cell_json(cell: &Cell<'_>, outcome: Outcome) -> String {
    let Cell { trace, setting, fraction, memory } = cell;
    format!(
        "{{\"trace\": \"{}\", \"memory\": {}, \"fraction\": {}, \"policy\": \"{}\", \"prefix_hits\": {}, \
         \"stores\": {}, \"bonus\": {}}}",
        trace.name,
        memory.map_or_else(|| "null".to_owned(), |fraction| fraction.to_string()),
        fraction,
        setting.policy.name(),
        outcome.prefix_hits,
        outcome.stores,
        outcome.bonus,
    )
}
