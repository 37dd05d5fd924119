//! Threads and memory of this machine: what a kernel calls when it runs on the host.
//!
//! Execution goes through the [`Executor`]; memory is accessed by the atomics of the language.

mod execution;
pub mod executor;
mod word;

pub use execution::*;
pub use executor::{AlreadySet, Executor, Single, executor, set_executor};
