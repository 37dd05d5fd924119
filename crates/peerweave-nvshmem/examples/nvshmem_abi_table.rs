//! Prints this crate's declarations of one version of NVSHMEM: sizes, offsets, constants and
//! functions.
//!
//! The program loads no library. `cargo xtask abi-nvshmem` compares the output with the headers and
//! the library of that version.

use clap::Parser;
use peerweave_nvshmem::{Nvshmem, Version, sys};

/// Prints this crate's declarations of one version of NVSHMEM: sizes, offsets, constants,
/// functions.
#[derive(Parser)]
struct Arguments {
    /// The version, such as 3.4.5
    version: Version,
}

fn main() {
    let Arguments { version } = Arguments::parse();
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
