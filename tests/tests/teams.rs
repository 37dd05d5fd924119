//! Scenarios to come.
fn main() {}
