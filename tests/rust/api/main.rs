//! What callers see: the contract, order per key, completions, events, bounds.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

#[path = "../../common/mod.rs"]
mod common;

mod backpressure;
mod bounded_turns;
mod completions;
mod contract;
mod engines;
mod key_events;
mod late_loads;
mod order;
mod owned_chunks;
mod reactor_rule;
mod reactors;
mod registered_memory;
mod variants;
