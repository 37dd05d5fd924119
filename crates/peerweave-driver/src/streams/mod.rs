//! Streams: recording the streams that use memory, waiting for streams, capturing streams, and
//! running functions after streams have completed.
//!
//! ```text
//!  list      the streams that use some memory
//!  fences    memory fences between users of a list and the thread that removes streams
//!  wait      waits with a deadline
//!  join      makes one stream wait for another
//!  capture   streams that are being captured, and the values that their graph keeps
//!  private   streams for a library's own use
//!  reaper    frees memory when the streams that used it have completed
//!  free      calls that free memory without waiting for the whole device
//!  exit      waits for driver calls of background threads before the driver shuts down
//! ```

use std::any::Any;
use std::sync::Arc;

pub(crate) mod capture;
mod exit;
mod fences;
mod free;
mod join;
mod list;
pub(crate) mod private;
pub(crate) mod reaper;
pub(crate) mod wait;

pub use capture::{is_capturing, is_same_capture, keep_in_graph, refuse_capture_begun, relaxed};
pub use exit::BeforeExit;
pub use free::free;
pub use join::join;
pub(crate) use list::is_of_every_context;
pub use list::{Streams, is_per_thread, refuse_per_thread};
pub use private::PrivateStream;
pub use reaper::{Retired, alloc_when_freed, drain_retired, retire};
pub use wait::{deadline_after, wait, wait_past_capture, wait_until};

/// An owner of a resource, such as memory. The resource stays alive while the owner or a clone of
/// the owner lives.
pub type Keep = Arc<dyn Any + Send + Sync>;
