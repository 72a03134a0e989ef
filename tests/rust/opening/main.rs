//! Opening and closing: whole, damaged, forged, refused, hung.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

#[path = "../../common/mod.rs"]
mod common;

mod closing;
mod damage;
mod directories;
mod hostile_index;
mod lifecycle;
mod links;
mod open_threads;
mod opening;
mod recovery;
mod refused_opens;
mod verification;
