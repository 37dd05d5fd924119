//! GPUs: the functions that a kernel calls when it is compiled to PTX. Most are inline assembly.
//!
//! Each instruction is written out, so that its semantics, scope and state space do not depend on
//! the compiler. Barriers, shuffles and votes use forms that threads of a warp may reach at
//! different instructions, because the compiler may duplicate code that contains them.

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
