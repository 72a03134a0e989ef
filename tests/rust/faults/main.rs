//! Devices, drives and index files that fail or stay silent.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

#[path = "../../common/mod.rs"]
mod common;

mod bad_sectors;
mod broken_engines;
mod failed_reactors;
mod faults;
mod files_faults;
mod index_writes;
mod nth_fault;
mod outages;
mod second_attempts;
mod silent_drives;
