//! What the examples of Peerweave share: data and a model to train.
//!
//! No communication here: that is in the examples themselves, numbered, in `examples/`.
#![forbid(unsafe_code)]

pub mod digits;
pub mod digits_model;

pub use digits::share;
