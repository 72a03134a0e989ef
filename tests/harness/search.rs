//! Five searches for what no single test looks for: kills, closes, crashes (power loss), random operations, and pairs of mechanisms.
//!
//! They draw keys, chunks and operations by one plan, keep one ledger of what was acknowledged, and one judge says what may be there.
//! `cargo run --release --example harness -- kills --rounds 5000` runs one of them. A failure prints its seed, which repeats the draws.
#![allow(
    clippy::unwrap_used,
    reason = "a harness that unwraps fails with the place and the reason"
)]

mod closes;
#[path = "../common/mod.rs"]
mod common;
mod crash_plan;
mod crashes;
mod judge;
mod kills;
mod ledger;
mod pairs;
mod plan;
mod random;
#[path = "../common/simulated_disk.rs"]
mod simulated_disk;
#[path = "../common/simulated_engine.rs"]
mod simulated_engine;
#[path = "../common/turns.rs"]
mod turns;

use std::process::ExitCode;

use clap::Parser;

/// Searches for what a store must not do.
#[derive(Parser)]
enum Search {
    /// Kill a process that works on a store, again and again, and check what is left.
    Kills(kills::Arguments),
    /// Close a store with transfers under way, again and again, and check what is left.
    Closes(closes::Arguments),
    /// Take the power of a store on a simulated disk, again and again, and check what is left.
    Crashes(crashes::Arguments),
    /// Do random things to a store that is full, and check each answer.
    Random(random::Arguments),
    /// Have two or three mechanisms of a store meet, and check what it keeps and says.
    Pairs(pairs::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Search::parse() {
        Search::Kills(arguments) => kills::run(arguments),
        Search::Closes(arguments) => closes::run(arguments),
        Search::Crashes(arguments) => crashes::run(&arguments),
        Search::Random(arguments) => random::run(&arguments),
        Search::Pairs(arguments) => pairs::run(&arguments),
    };
    match outcome {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The layout of all stores of this process and its children, if one is given.
fn set_layout(layout: Option<&str>) {
    if let Some(layout) = layout {
        // SAFETY: there is one thread yet. Children inherit it.
        unsafe { std::env::set_var("KVRING_TEST_LAYOUT", layout) };
    }
}

/// A store that had nothing to do is closed in order.
fn close_idle(client: &common::Client) -> Result<(), String> {
    let shutdown = client.connector.close();
    match shutdown.clean && !shutdown.partial_flush {
        true => Ok(()),
        false => Err(format!("closed with nothing to do, but {shutdown}")),
    }
}
