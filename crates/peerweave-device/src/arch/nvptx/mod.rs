//! Functions that a kernel calls when it is compiled to PTX. Most functions are inline assembly.
//!
//! Each instruction is written out, so that its semantics, scope and state space do not depend on
//! the compiler. Barriers, shuffles and votes are intrinsics of LLVM, which the compiler does not
//! duplicate.

pub mod bulk;
mod convert;
mod execution;
mod memory;
pub mod multimem;
mod plain;
mod rmw;
mod word;

pub use convert::{bf16_pair, bf16_values, f8e4m3_pair, f16_pair, f16_values};
pub use execution::*;
pub use memory::*;
pub use plain::*;
pub use word::Word64;
