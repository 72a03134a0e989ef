//! What is durable when it is answered, and what power loss leaves.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

#[path = "../../common/mod.rs"]
mod common;
#[path = "../../common/simulated_disk.rs"]
mod simulated_disk;
#[path = "../../common/simulated_engine.rs"]
mod simulated_engine;
#[path = "../../common/turns.rs"]
mod turns;

mod durability;
mod failed_groups;
mod flushes;
mod power_loss;
