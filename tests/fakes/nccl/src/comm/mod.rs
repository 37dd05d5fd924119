//! The communicators of this process: their state, their handles and their windows.
//!
//! Module `groups` runs operations, and module `api` creates and ends communicators. Invariant: the
//! memory of a communicator is never freed, so that every use after its end is detected.

mod communicator;
mod config;
pub(crate) mod counters;
mod events;
mod handle;
mod live;
mod state;
pub(crate) mod window;

pub(crate) use communicator::Comm;
pub(crate) use config::Config;
pub(crate) use handle::CommPtr;
pub(crate) use live::live;
pub(crate) use state::RedOp;
