//! Layouts and places: chunk files, devices, several paths, listings.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

#[path = "../../common/mod.rs"]
mod common;

mod checksums;
mod device;
mod files;
mod paths;
mod stored_chunks;
