//! Operations by which a kernel orders its puts and gets, signals other PEs, and waits for signals
//! or elements.

mod order;
mod poll;
mod signal;
mod wait;
mod words;

pub use wait::EXCLUDE_NONE;
pub use words::AwaitedWords;
