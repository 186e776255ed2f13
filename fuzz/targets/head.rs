#![no_main]

#[path = "../../tests/replay/head.rs"]
mod head;
#[path = "../../tests/replay/strict.rs"]
mod strict;

libfuzzer_sys::fuzz_target!(|input: &[u8]| head::check(input));
