//! What the examples of Peerweave share: data and a model to train.
//!
//! No communication here: that is in the examples themselves, numbered, in `examples/`.
pub mod digits;
pub mod digits_model;
