//! The kernels that Peerweave ships, with their PTX.
//!
//! Each module is a group of kernels; each kernel is a function that runs on the host too, with a
//! `KERNEL` beside it for a launch. `cargo xtask ptx` compares the PTX in `ptx` with what the
//! sources give.
#![no_std]

/// The README, whose examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod bench;
pub mod examples;
