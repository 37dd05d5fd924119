//! GPUs: what a kernel calls when it is compiled to PTX. Everything is inline assembly.
//!
//! Each instruction is written out, so that what a function does is what its text says: semantics,
//! scope and state space are never the compiler's choice. Barriers, shuffles and votes use the
//! forms that threads of a warp may reach at different instructions: the compiler may duplicate
//! code that holds them.

pub mod bulk;
mod execution;
mod memory;
pub mod multimem;
mod plain;
mod rmw;
mod word;

pub use execution::*;
pub use memory::*;
pub use plain::*;
pub use word::Word64;
