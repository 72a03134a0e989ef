//! `kvring_fuzz::operations` says what it does.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvring_fuzz::operations::run(data));
