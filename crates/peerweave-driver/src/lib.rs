//! Access to CUDA's driver for Peerweave's other crates. This crate has errors that name the failed
//! call, traits for device memory, and waits with a deadline. The crate frees memory only after the
//! streams that used the memory have completed.
//!
//! The types of contexts, streams, events and slices are those of cudarc. This crate neither
//! communicates nor shares memory among processes.
//!
//! On a machine without a driver, calls return an error instead of panicking, because every call
//! first calls [`Driver::get`].
//!
//! ```
//! match peerweave_driver::Driver::get() {
//!     Ok(driver) => println!("driver for CUDA {:#}", driver.version()?),
//!     Err(error) => println!("{error}"), // names every path that was tried
//! }
//! # Ok::<(), peerweave_driver::DriverError>(())
//! ```

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod dlpack;
pub mod launch;
mod library;
mod memory;
mod streams;

pub use cudarc;
pub use cudarc::driver::{CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut};
pub use library::{
    Api, CudaCode, CudaError, Driver, DriverError, MulticastDisabled, bind, bind_if_needed, context, local_context,
    multicast_switch, with_context_kept,
};
pub use memory::{Access, DEADLINE, DeviceBuffer, DeviceBufferMut, DeviceMemory, Raw, check_copy, copy_from_host, copy_to_host};
pub use streams::{
    BeforeExit, Keep, PrivateStream, Retired, Streams, alloc_when_freed, deadline_after, drain_retired, free, is_capturing,
    is_per_thread, is_same_capture, join, keep_in_graph, refuse_capture_begun, refuse_per_thread, relaxed, retire, wait,
    wait_past_capture, wait_until,
};
