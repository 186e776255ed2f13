#![no_main]

#[path = "../../tests/replay/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::check(input));
