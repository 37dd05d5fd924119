//! Prints what the Rust side believes of one version of NVSHMEM: sizes, offsets, constants, functions.
//!
//! Loads nothing. `cargo xtask abi-nvshmem` compares it with the headers and the library of that version.

use peerweave_nvshmem::{Nvshmem, Version, sys};

fn main() {
    let version: Version = std::env::args().nth(1).expect("a version").parse().expect("major.minor.patch");
    for (fact, since, number) in sys::facts() {
        if version.at_least(since) {
            println!("{fact} {number}");
        }
    }
    for (name, number) in sys::constants() {
        println!("value {name} {number}");
    }
    for symbol in Nvshmem::functions() {
        println!("symbol {} {}", symbol.name, symbol.since);
    }
}
