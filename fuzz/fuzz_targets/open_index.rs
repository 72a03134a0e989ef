//! `kvring_fuzz::open_index` says what it does.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvring_fuzz::open_index::run(data));
