//! One running NVSHMEM: the PEs, the way into the library, and what it has under way on the device.
//!
//! ```text
//!  entry      one call into NVSHMEM at a time, each with a deadline      gate
//!  agree      PEs compare a collective set-up call before any enters it  identity
//!  enqueued   what is under way: streams, orders of teams, graphs        order, pending, streams
//!  deferred   what destructors have to tell NVSHMEM
//! ```
//!
//! Symmetric memory is `heap`. Starting and ending are `startup`.
//!
//! # Invariants
//! - **\[C1\]** At most one context is live in a process.
//! - **\[C2\]** NVSHMEM is called with the device's context current, from one thread at a time, and
//!   not after something left it unusable.

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
use agree::Counted;
use deferred::Deferred;
use enqueued::Enqueued;
use entry::Entry;
use order::take;

/// The NVSHMEM that runs in this process.
pub(crate) struct Comm {
    pub(crate) nvshmem: Nvshmem,
    pub(crate) context: Arc<CudaContext>,
    /// For the blocking forms.
    pub(crate) stream: Arc<CudaStream>,
    /// For looks at a word, which nothing may delay: nothing else uses it.
    pub(crate) side: PrivateStream,
    pub(crate) pe: Pe,
    pub(crate) n_pes: u32,
    pub(crate) deadline: Duration,
    pub(crate) world: Option<Arc<Rendezvous>>,
    /// Tells this life of NVSHMEM from others over the same rendezvous; the same on every PE.
    pub(crate) life: u64,
    pub(crate) entry: Entry,
    pub(crate) enqueued: Enqueued,
    pub(crate) deferred: Deferred,
    counts: Mutex<HashMap<Counted, u64>>,
    /// Held by the thread that is in a collective set-up call, from before the others are met until
    /// it is over.
    setup: Mutex<()>,
}

/// What initialisation found.
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
            enqueued: Enqueued::default(),
            deferred: Deferred::default(),
            counts: Mutex::default(),
            setup: Mutex::default(),
        }
    }

    /// The next number of something that every PE counts alike.
    pub(crate) fn count(&self, what: Counted) -> u64 {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(what).or_default();
        *count += 1;
        *count
    }

    /// The turn to make a collective set-up call: one thread has it, from before the others are met
    /// until NVSHMEM is left, so that no call comes in between the meetings of another, and NVSHMEM
    /// never waits for PEs that wait for another call.
    pub(crate) fn setup_turn(&self, call: &'static str) -> Result<MutexGuard<'_, ()>, NvshmemError> {
        self.alive(call)?;
        take(&self.setup, call, self)
    }

    /// The error of a wait that took too long, with what the rendezvous knows.
    #[cold]
    pub(crate) fn late(&self, call: &'static str, waited: Duration, missing: Vec<Pe>) -> NvshmemError {
        let lost = self.world.as_ref().and_then(|world| world.check().err()).map(|error| error.to_string());
        Timeout { call, waited, pe: Some(self.pe), missing, lost }.into()
    }

    /// An error unless the PE is one of the job's.
    #[inline]
    pub(crate) fn check_pe(&self, call: &'static str, what: &'static str, pe: Pe) -> Result<i32, NvshmemError> {
        if pe.get() < self.n_pes {
            Ok(pe.get() as i32)
        } else {
            Err(NvshmemError::misuse(call, MisuseKind::Pe { what, found: pe, n_pes: self.n_pes }))
        }
    }

    /// An error unless the stream is one of this context's device.
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
        write!(f, "{:?}, {} of {} on device {}", self.nvshmem, self.pe, self.n_pes, self.context.ordinal())
    }
}
