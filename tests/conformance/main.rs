//! Conformance.
fn main() {}
