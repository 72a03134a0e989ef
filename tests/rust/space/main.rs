//! Full stores: eviction, expiry, growth, quotas, chunks that must stay.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

#[path = "../../common/mod.rs"]
mod common;

mod adaptive;
mod capacity;
mod growth;
mod live_limits;
mod must_stay;
mod namespaces;
mod path_limits;
mod upkeep;
mod waiting_sets;
mod write_streams;
