//! What the fuzz targets do with an input. tests/rust/alone/fuzz_inputs.rs does the same with inputs that were worth keeping.

#[path = "../../tests/common/mod.rs"]
mod common;

mod forged;
mod input;
pub mod keys_and_options;
pub mod open_device;
pub mod open_index;
pub mod operations;
mod sparse_files;
mod used_store;
