//! Fences, signals, and waits for elements.

mod order;
mod poll;
mod signal;
mod wait;
mod words;

pub use wait::EXCLUDE_NONE;
pub use words::AwaitedWords;
