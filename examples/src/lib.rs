//! Code shared by the examples of Peerweave: data and a model to train.
//!
//! Nothing here communicates; the numbered examples in `examples/` do.
#![forbid(unsafe_code)]

pub mod digits;
pub mod digits_model;

pub use digits::share;
