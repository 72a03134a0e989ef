//! Hit ratios of the eviction policies: traces before caches of several sizes. Counts only, as JSON on standard output; the
//! same arguments give the same bytes. `make eviction` runs it and writes a table of what it says.
//!
//! `cargo run --release --features bench --example eviction_simulator -- --requests 12000 --trace NAME=FILE`

mod cache;
mod generate;
mod random;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cache::{Found, Order, Outcome, Setting, Variant, room_blocks, simulate};
use clap::Parser;
use kvring::Eviction;
use trace::{Sizes, Trace};

/// A cache has one block of so many that the trace has.
const FRACTIONS: [u64; 5] = [32, 16, 8, 4, 2];

/// Small queues of S3-FIFO have one block of so many.
const SMALL_SHARES: [u64; 5] = [20, 10, 5, 4, 2];

/// Plays traces to caches and prints what they found, as JSON.
#[derive(Parser)]
struct Arguments {
    /// Requests of each trace that is made by rule.
    #[arg(long, default_value_t = 12_000)]
    requests: usize,
    /// A trace from a file with a line for each request: the numbers of its chunks, with spaces between them.
    #[arg(long = "trace", value_name = "NAME=FILE", value_parser = parse_named)]
    traces: Vec<(String, PathBuf)>,
}

fn parse_named(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("it is not NAME=FILE")?;
    Ok((name.to_owned(), path.into()))
}

/// A cache before a trace.
struct Cell<'a> {
    trace: &'a Trace,
    setting: Setting,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
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
    let generators = [generate::chat, generate::rag, generate::scan];
    traces.extend(generators.iter().map(|generate| generate(arguments.requests)));
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

/// Every policy in either order and behind memory, and variants of S3-FIFO.
fn cells(trace: &Trace) -> Vec<Cell<'_>> {
    let mut cells = Vec::new();
    for sizes in Sizes::ALL {
        for fraction in FRACTIONS {
            let (order, variant) = (Order::Forward, Variant::None);
            let plain = |eviction| Setting {
                eviction,
                sizes,
                fraction,
                order,
                variant,
                behind_memory: false,
            };
            for setting in Eviction::ALL.map(plain) {
                let backward = Setting { order: Order::Backward, ..setting };
                let behind_memory = Setting { behind_memory: true, ..setting };
                cells.extend([setting, backward, behind_memory]);
            }
            let small_queues = SMALL_SHARES.map(Variant::SmallQueue);
            for variant in [Variant::WithoutGhost].into_iter().chain(small_queues) {
                let setting = Setting { variant, ..plain(Eviction::S3Fifo) };
                cells.extend([setting, Setting { behind_memory: true, ..setting }]);
            }
        }
    }
    cells.into_iter().map(|setting| Cell { trace, setting }).collect()
}

/// Simulates all cells, on all processors.
fn in_parallel(cells: &[Cell<'_>]) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let work = || {
        let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        let taken = numbers.map_while(|number| cells.get(number).map(|cell| (number, cell)));
        taken.map(|(number, cell)| (number, simulate(cell.trace, cell.setting))).collect::<Vec<_>>()
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
    let footprint = |sizes| trace.footprint_blocks(sizes);
    format!(
        "{{\"name\": \"{}\", \"about\": \"{}\", \"requests\": {}, \"lookups\": {}, \"chunks\": {}, \
         \"footprint_blocks\": {{\"one\": {}, \"eight\": {}}}}}",
        trace.name,
        trace.about,
        trace.requests.len(),
        trace.lookups(),
        trace.chunks,
        footprint(Sizes::One),
        footprint(Sizes::Eight),
    )
}

fn cell_json(cell: &Cell<'_>, outcome: Outcome) -> String {
    let Cell { trace, setting } = cell;
    format!(
        "{{\"trace\": \"{}\", \"sizes\": \"{}\", \"fraction\": {}, \"policy\": \"{}\", \"order\": \"{}\", \"variant\": \"{}\", \
         \"behind_memory\": {}, \"room_blocks\": {}, \"chunks\": {}, \"blocks\": {}, \"stores\": {}, \"returns\": {}}}",
        trace.name,
        setting.sizes.name(),
        setting.fraction,
        setting.eviction.name(),
        setting.order.name(),
        setting.variant.name(),
        setting.behind_memory,
        room_blocks(trace, *setting),
        found_json(outcome.chunks),
        found_json(outcome.blocks),
        outcome.stores,
        outcome.returns,
    )
}

fn found_json(found: Found) -> String {
    let Found { lookups, hits, prefix_hits } = found;
    format!("{{\"lookups\": {lookups}, \"hits\": {hits}, \"prefix_hits\": {prefix_hits}}}")
}
