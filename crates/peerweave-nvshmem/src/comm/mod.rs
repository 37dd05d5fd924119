//! One running NVSHMEM: its PEs, the lock for calls (the gate), and work in flight on the device.
//!
//! ```text
//!  module     purpose                                                    uses the modules
//!  entry      one call into NVSHMEM at a time, each with a deadline      gate
//!  agree      PEs compare a set-up call before any PE calls NVSHMEM      identity
//!  enqueued   work that has not completed: streams, teams, graphs        order, pending, streams
//!  deferred   calls that destructors request, made when the gate is free
//! ```
//!
//! `heap` has symmetric memory; `startup` starts and ends NVSHMEM.
//!
//! # Invariants
//! - **\[C1\]** At most one context is live in a process.
//! - **\[C2\]** NVSHMEM is called with the device's context current, by one thread at a time, and
//!   only while NVSHMEM is usable.

pub(crate) mod agree;
pub(crate) mod deferred;
pub(crate) mod enqueued;
pub(crate) mod entry;
pub(crate) mod gate;
pub(crate) mod identity;
pub(crate) mod order;
pub(crate) mod pending;
pub(crate) mod streams;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use peerweave_bootstrap::Rendezvous;
use peerweave_driver::{CudaContext, CudaStream, PrivateStream, refuse_per_thread};
use peerweave_types::Pe;

use crate::error::{MisuseKind, NvshmemError, Timeout};
use crate::library::Nvshmem;
use agree::Counter;
use deferred::Deferred;
use enqueued::InFlight;
use entry::Entry;
use order::take;

/// The running NVSHMEM of this process: its PEs, the lock for its calls, and its work in flight.
pub(crate) struct Comm {
    pub(crate) nvshmem: Nvshmem,
    pub(crate) context: Arc<CudaContext>,
    /// The stream that blocking calls use.
    pub(crate) stream: Arc<CudaStream>,
    /// A private stream on which the host copies data and fills new memory with zeros. The program
    /// cannot enqueue work on this stream, so no other work delays the copies.
    pub(crate) side: PrivateStream,
    pub(crate) pe: Pe,
    pub(crate) n_pes: u32,
    pub(crate) deadline: Duration,
    pub(crate) world: Option<Arc<Rendezvous>>,
    /// Number that distinguishes this run of NVSHMEM from other runs over the same rendezvous. The
    /// number is the same on every PE.
    pub(crate) life: u64,
    pub(crate) entry: Entry,
    pub(crate) enqueued: InFlight,
    pub(crate) deferred: Deferred,
    counts: Mutex<HashMap<Counter, u64>>,
    /// The lock for collective setup calls. Before the PEs compare their arguments, the calling
    /// thread acquires this lock. The thread holds the lock until the setup call has returned.
    setup: Mutex<()>,
    /// A token by which `Context::gone` detects that this struct has been dropped. The token is the
    /// last field, so it is dropped after all other fields, including the rendezvous.
    pub(crate) alive: Arc<()>,
}

/// The values from which an initialisation creates a [`Comm`].
pub(crate) struct Parts {
    pub(crate) nvshmem: Nvshmem,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) side: PrivateStream,
    pub(crate) pe: Pe,
    pub(crate) n_pes: u32,
    pub(crate) deadline: Duration,
    pub(crate) world: Option<Arc<Rendezvous>>,
    pub(crate) life: u64,
    pub(crate) entry: Entry,
}

impl Comm {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { nvshmem, context, stream, side, pe, n_pes, deadline, world, life, entry } = parts;
        Self {
            nvshmem,
            context,
            stream,
            side,
            pe,
            n_pes,
            deadline,
            world,
            life,
            entry,
            enqueued: InFlight::default(),
            deferred: Deferred::default(),
            counts: Mutex::default(),
            setup: Mutex::default(),
            alive: Arc::new(()),
        }
    }

    /// Adds 1 to the counter `what`, and returns the new value. All PEs that take part in the
    /// counted calls get the same value.
    pub(crate) fn count(&self, what: Counter) -> u64 {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(what).or_default();
        *count += 1;
        *count
    }

    /// Waits until this thread may make a collective setup call. Only one thread of the process
    /// makes such a call at a time. The PEs compare the arguments of the call during the call.
    /// Comparisons of two calls therefore never interleave, and NVSHMEM never waits for PEs that
    /// make a different call.
    pub(crate) fn setup_turn(&self, call: &'static str) -> Result<MutexGuard<'_, ()>, NvshmemError> {
        self.check_usable(call)?;
        take(&self.setup, call, self)
    }

    /// Returns the error of a wait that timed out. The error includes the PEs that the rendezvous
    /// reports as lost.
    #[cold]
    pub(crate) fn late(&self, call: &'static str, waited: Duration, missing: Vec<Pe>) -> NvshmemError {
        let lost = self.world.as_ref().and_then(|world| world.check().err()).map(|error| error.to_string());
        Timeout { call, waited, pe: Some(self.pe), missing, lost }.into()
    }

    /// Checks that the job has the PE `pe`, and returns the PE's number as NVSHMEM's integer type.
    #[inline]
    pub(crate) fn check_pe(&self, call: &'static str, what: &'static str, pe: Pe) -> Result<i32, NvshmemError> {
        if pe.get() < self.n_pes {
            Ok(pe.get() as i32)
        } else {
            Err(NvshmemError::misuse(call, MisuseKind::Pe { what, found: pe, n_pes: self.n_pes }))
        }
    }

    /// Checks that the stream belongs to this context's device, and is not the per-thread default
    /// stream.
    #[inline]
    pub(crate) fn check_stream(&self, call: &'static str, stream: &CudaStream) -> Result<(), NvshmemError> {
        refuse_per_thread(call, stream)?;
        let (found, expected) = (stream.context().ordinal(), self.context.ordinal());
        if found == expected {
            Ok(())
        } else {
            Err(NvshmemError::misuse(call, MisuseKind::Device { what: "the stream", found, expected }))
        }
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nvshmem, pe, n_pes, .. } = self;
        write!(f, "{nvshmem:?}, {pe} of {n_pes} PEs, on device {}", self.context.ordinal())
    }
}
