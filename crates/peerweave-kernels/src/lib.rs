//! Kernels for examples and benchmarks, with their PTX.
//!
//! Each module is a group of kernels. Each kernel is a function that runs on GPUs and on the host.
//! To launch a kernel, pass the kernel's constant, for example `ring::KERNEL`. `cargo xtask ptx`
//! compares the PTX in the folder `ptx` with the PTX compiled from the sources.
#![no_std]

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod attention;
pub mod bench;
pub mod examples;
pub mod mlp;
