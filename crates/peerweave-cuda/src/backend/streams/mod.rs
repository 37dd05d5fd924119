//! Streams of the portable API, and operations that block the calling thread.
//!
//! ```text
//!  devices.rs     memory of other libraries as operands
//!  queue.rs       streams and their events      run.rs   one operation on the calling thread
//!  in_flight.rs   operations that are not known to be complete, and their resources
//!  ticket.rs      enqueued operations, and waits for their outcomes
//! ```

mod devices;
mod in_flight;
mod queue;
mod run;
mod ticket;

pub(crate) use queue::{CudaQueue, Queue};
pub(crate) use run::run;

pub use devices::{of_cudarc, on_device};
