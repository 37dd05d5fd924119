//! The handle that programs use for a communicator.
//!
//! Invariant: the use of a handle after the end of its communicator ends the process, because in
//! NCCL its behaviour is undefined.

use std::sync::atomic::Ordering;

use super::communicator::Comm;
use crate::abi::{Code, Fail, Result, invalid, misuse};
use crate::report::undefined;

/// The handle that programs use.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct CommPtr(*const Comm);

impl CommPtr {
    pub(crate) const NULL: Self = Self(std::ptr::null());

    pub(super) fn new(comm: &'static Comm) -> Self {
        Self(comm)
    }

    pub(crate) fn address(self) -> usize {
        self.0.addr()
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns the communicator in any state; `None` if the handle is not that of a communicator.
    pub(crate) fn peek(self) -> Option<&'static Comm> {
        if self.0.is_null() || !self.0.is_aligned() {
            return None;
        }
        // SAFETY: a program passes a handle that it got from this library, and the memory of a
        // handle is never freed.
        let comm = unsafe { &*self.0 };
        comm.is_marked().then_some(comm)
    }

    /// Returns the communicator of a valid handle; it need not be ready.
    pub(crate) fn get(self) -> Result<&'static Comm> {
        if self.0.is_null() {
            return invalid("comm argument is NULL");
        }
        let Some(comm) = self.peek() else {
            return invalid("comm argument is not a communicator");
        };
        if comm.is_released() {
            undefined("use of a destroyed communicator");
        }
        Ok(comm)
    }

    /// Returns the communicator, initialised and without background work.
    pub(crate) fn ready(self) -> Result<&'static Comm> {
        let comm = self.get()?;
        match comm.async_state() {
            Code::Success => Ok(comm),
            Code::InProgress => invalid("Attempt to use communicator before the previous operation returned ncclSuccess"),
            code => Err(Fail { code, text: "the communicator has an asynchronous error".into() }),
        }
    }

    /// Returns the communicator, ready for communication.
    pub(crate) fn usable(self) -> Result<&'static Comm> {
        let comm = self.ready()?;
        if comm.revoked.load(Ordering::Acquire) {
            return misuse("the communicator was revoked");
        }
        let state = comm.state();
        if state.finalized {
            return misuse("the communicator was finalized");
        }
        if state.suspended {
            return misuse("the communicator is suspended");
        }
        drop(state);
        Ok(comm)
    }
}
