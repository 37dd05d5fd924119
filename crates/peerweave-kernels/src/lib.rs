//! The kernels that Peerweave ships, with their PTX.
//!
//! Each module is a group of kernels. Each kernel is a function that also runs on the host. Its
//! `KERNEL` is the argument of a launch. `cargo xtask ptx` compares the PTX in `ptx` with the PTX
//! of the sources.
#![no_std]

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod attention;
pub mod bench;
pub mod examples;
pub mod mlp;
