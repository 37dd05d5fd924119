//! CUDA's driver for the crates above: errors with their call, device memory by trait, stream-ordered lifetimes, waits with a deadline.
//!
//! Does not wrap what cudarc wraps well: its contexts, streams, events and slices are the types here too. Neither communicates nor shares
//! memory between processes.
//!
//! Nothing panics where there is no driver: [`Driver::get`] comes first, and is an error there.
//!
//! ```
//! match peerweave_driver::Driver::get() {
//!     Ok(driver) => println!("driver for CUDA {:#}", driver.version()?),
//!     Err(error) => println!("{error}"), // names every path that was tried
//! }
//! # Ok::<(), peerweave_driver::DriverError>(())
//! ```

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod api;
mod buffer;
mod capture;
mod code;
mod copy;
pub mod dlpack;
mod driver;
mod error;
mod fences;
mod free;
mod join;
mod keeper;
pub mod launch;
mod memory;
mod private;
mod reaper;
mod streams;
mod switch;
mod wait;

pub use api::Api;
pub use buffer::{Access, DeviceBuffer, DeviceBufferMut, Keep, Raw};
pub use capture::{is_capturing, is_same_capture, keep_in_graph, refuse_capture_begun, relaxed};
pub use code::CudaCode;
pub use copy::{check_copy, copy_from_host, copy_to_host};
pub use cudarc;
pub use cudarc::driver::{CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut};
pub use driver::{Driver, bind, bind_if_needed, context, local_context, with_context_kept};
pub use error::{CudaError, DriverError};
pub use free::free;
pub use join::join;
pub use keeper::Keeper;
pub use memory::{DEADLINE, DeviceMemory};
pub use private::PrivateStream;
pub use reaper::{Retired, alloc_when_freed, retire, settle};
pub use streams::{Streams, is_per_thread, refuse_per_thread};
pub use switch::{MulticastDisabled, multicast_switch};
pub use wait::{deadline_after, wait, wait_past_capture, wait_until};
