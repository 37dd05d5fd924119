//! Functions of the operating system. They provide memory that PEs share, report on which processor
//! a thread runs, detect that another process has ended, and read the memory of another process.
//!
//! `linux` has all of these functions. `portable` has the functions that PEs need if they are
//! threads of one process. `portable` uses only the standard library, and is for other systems.
//! `--cfg peerweave_portable` selects `portable` on Linux too, for tests.

#[cfg(all(target_os = "linux", not(peerweave_portable)))]
mod linux;
#[cfg(all(target_os = "linux", not(peerweave_portable)))]
pub(crate) use linux::*;

#[cfg(not(all(target_os = "linux", not(peerweave_portable))))]
mod portable;
#[cfg(not(all(target_os = "linux", not(peerweave_portable))))]
pub(crate) use portable::*;

use peerweave_bootstrap::BootstrapError;
use std::io;

/// The reason why PEs could not share a range of memory.
#[derive(Debug)]
pub(crate) enum ShareError {
    System(io::Error),
    Rendezvous(BootstrapError),
}

impl From<io::Error> for ShareError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<BootstrapError> for ShareError {
    fn from(error: BootstrapError) -> Self {
        Self::Rendezvous(error)
    }
}
