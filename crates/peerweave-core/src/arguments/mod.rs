//! The types of the arguments of operations: symmetric memory, buffers, device memory, slices,
//! signal words and reductions.

pub(crate) mod buffer;
mod counts;
pub(crate) mod on_device;
mod reduce_fn;
pub(crate) mod reduction;
pub(crate) mod rms_norm;
pub(crate) mod shared_bytes;
pub(crate) mod signal;
pub(crate) mod span;
pub(crate) mod symmetric;
mod view;
pub(crate) mod wait_word;

pub use buffer::Buffer;
pub use counts::Parts;
pub use on_device::OnDevice;
pub use reduce_fn::ReduceFn;
pub use reduction::Reduction;
pub use rms_norm::{NormElement, OutputScale, QuantizedElement, RmsNorm, RowScales, StreamOutputScale};
pub use signal::{Signal, SignalUpdate};
pub use span::{Dest, MaybeDest, MaybeSource, Source, StreamDest, StreamSource, none};
pub use symmetric::Symmetric;
pub use view::SymmetricRange;
pub use wait_word::WaitWord;
