//! Functions that a kernel calls when it runs on the host.
//!
//! The [`Executor`] runs the threads. Memory is accessed by the atomics of Rust.

pub mod bulk;
mod convert;
mod execution;
pub mod executor;
mod memory;
pub mod multimem;
mod plain;
mod word;

pub use convert::{bf16_pair, bf16_values, f8e4m3_pair, f16_pair, f16_values};
pub use execution::*;
pub use executor::{AlreadySet, Executor, Single, executor, set_executor};
pub use memory::{load_line_relaxed, store_line_relaxed};
pub use plain::*;
pub use word::Word64;
