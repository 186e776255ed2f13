#![no_main]

#[path = "../../tests/replay/content.rs"]
mod content;

libfuzzer_sys::fuzz_target!(|input: &[u8]| content::check(input));
