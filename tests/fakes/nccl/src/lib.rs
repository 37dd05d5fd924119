//! A libnccl.so.2 without a GPU: NCCL 2.32's C interface over the memory of a host, for tests of programs that use NCCL.
//!
//! What is not here: speed, kernels, networks. It stands in for nothing in a claim about hardware. Everything else is really done:
//! every collective is enqueued as a host function on its CUDA stream (of whatever driver `libcuda.so.1` is), in which the ranks of the
//! communicator meet, exchange their data and compute. Ranks may be threads of one process or processes of one machine.
//!
//! Invariant: what NCCL leaves undefined (a destroyed communicator is used) ends the process with a line that begins with
//! `fake nccl:`; where NCCL would hang (ranks disagree, a rank is dead, a graph outlives its communicator), so does this.

#![allow(non_snake_case)]
#![cfg(target_os = "linux")]

#[macro_use]
mod call;

mod abi;
mod bootstrap;
mod collectives;
mod comm;
mod compute;
mod config;
mod counters;
mod derive;
mod driver;
mod errors;
mod execute;
mod faults;
mod fp8;
mod group;
mod lifecycle;
mod log;
mod mailbox;
mod memory;
mod post;
mod query;
mod random;
mod redop;
mod settings;
mod version;
mod window;
mod wire;
