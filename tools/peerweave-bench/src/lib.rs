//! The processes of `peerweave bench`: measures an operation, with the portable API, NCCL or
//! NVSHMEM, and checks every element of its results.
//!
//! This package is separate from the command, because it is compiled with all optimizations: the
//! calls that it measures are compiled once for each element type.

#![cfg(target_os = "linux")]

pub mod console;
pub mod cuda;
pub mod pe;
pub mod workload;
