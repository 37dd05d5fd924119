//! What calls take: symmetric memory, buffers, slices, signal words, reductions.

pub(crate) mod buffer;
pub(crate) mod reduction;
pub(crate) mod shared_bytes;
pub(crate) mod signal;
pub(crate) mod span;
pub(crate) mod symmetric;

pub use buffer::Buffer;
pub use reduction::Reduction;
pub use signal::{Signal, SignalUpdate};
pub use span::{Dest, MaybeDest, MaybeSource, Source, StreamDest, StreamSource, none};
pub use symmetric::Symmetric;
