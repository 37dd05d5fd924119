//! Prints this crate's declarations of one version of NCCL, which `cargo xtask abi` compares with a
//! header and a library.
//!
//! Each line of the output states one fact in one of these forms: `size STRUCT BYTES`, `offset
//! STRUCT.FIELD BYTES`, `value NAME NUMBER`, `symbol NAME SINCE`. `SINCE` is the version of NCCL
//! that introduced the function.

use clap::Parser;
use peerweave_nccl::{Version, sys};

/// Prints this crate's declarations of one version of NCCL: sizes, offsets, numbers, functions.
#[derive(Parser)]
struct Arguments {
    /// The version, such as 2.28.9
    version: Version,
}

fn main() {
    let Arguments { version } = Arguments::parse();
    for layout in sys::layouts(version) {
        println!("size {} {}", layout.name, layout.len_bytes);
        for field in &layout.fields {
            println!("offset {}.{} {}", layout.name, field.name, field.offset_bytes);
        }
    }
    for (name, since, number) in sys::values() {
        if version >= since {
            println!("value {name} {number}");
        }
    }
    if let Some(len_bytes) = sys::device_comm_len_bytes(version) {
        println!("size ncclDevComm {len_bytes}");
    }
    for symbol in sys::Api::SYMBOLS {
        println!("symbol {} {}", symbol.name, symbol.since);
    }
}
