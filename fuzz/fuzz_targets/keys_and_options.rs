//! `kvring_fuzz::keys_and_options` says what it does.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvring_fuzz::keys_and_options::run(data));
