//! Order and waits: fences, signals, and waits for elements.

mod order;
mod poll;
mod signal;
mod wait;

pub use wait::EXCLUDE_NONE;
