//! Element types, and the reductions that are defined for each element type.

mod boolean;
mod dtype;
mod element;
mod fp8;
mod reduce;

pub use boolean::Bool;
pub use dtype::DType;
pub use element::{AtomicElement, AtomicInteger, Element, Integer, Number, Scalar, SingleElement, WaitElement, derived};
pub use fp8::{F8E4M3, F8E5M2};
pub use reduce::ReduceOp;
