//! The collectives of a communicator, each with a buffer to read and one to write.
//!
//! In one buffer is `in_place.rs`; between two ranks, and with a count for each rank, `point_to_point.rs`; recorded in groups, `group.rs`. What is checked
//! is in `requests.rs`.
//!
//! Invariant: a call is issued inside the gate, after everything about it has been checked.

use std::sync::Arc;

use peerweave_driver::{CudaStream, DeviceBuffer, DeviceBufferMut};
use peerweave_types::Element;

use crate::communicator::{Communicator, Inner};
use crate::error::{MisuseKind, NcclError};
use crate::red_op::Reduction;
use crate::request::{At, Checked, Holds, Operations, Request};
use crate::state::Allowed;
use crate::{Call, CollConfig, requests, spans};

/// What all calls that enqueue work have in common.
///
/// They return when the work is enqueued, and not when it is done: [`Communicator::wait`] waits for that. Buffers may be dropped at any time after the
/// call; their memory stays until the stream has passed the work. Counts are in elements.
///
/// # Collective
/// All ranks, in the same order of calls on the communicator, with the same element type and lengths that fit together. A thread that has
/// several ranks issues their calls in a group ([`Nccl::group`](crate::Nccl::group)).
///
/// # Errors
/// [`NcclError::Misuse`] names what is wrong with a length, a root, a device, a stream, or with borrowed memory on a stream that is being captured; then
/// nothing was enqueued. [`NcclError::Dead`], [`NcclError::Unsupported`], NCCL's own. [`NcclError::Timeout`] if NCCL cannot connect the ranks by the
/// [`deadline`](Communicator::deadline); then the communicator is aborted.
impl Communicator {
    /// Reduces over all ranks; every rank gets the result.
    pub fn all_reduce<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: &impl DeviceBuffer<T>,
        recv: &mut impl DeviceBufferMut<T>,
        op: impl Reduction<T>,
    ) -> Result<(), NcclError> {
        self.run(Call::AllReduce, stream, None, |at| requests::all_reduce(at, send, recv, op))
    }

    /// Copies the root's buffer to every rank's. Only the root gives a send buffer; what others give is not read.
    pub fn broadcast<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: Option<&dyn DeviceBuffer<T>>,
        recv: &mut impl DeviceBufferMut<T>,
        root: usize,
    ) -> Result<(), NcclError> {
        self.run(Call::Broadcast, stream, None, |at| requests::broadcast(at, send, recv, root))
    }

    /// Reduces over all ranks; the root gets the result. Only the root gives a receive buffer; what others give is not written.
    pub fn reduce<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: &impl DeviceBuffer<T>,
        recv: Option<&mut dyn DeviceBufferMut<T>>,
        op: impl Reduction<T>,
        root: usize,
    ) -> Result<(), NcclError> {
        self.run(Call::Reduce, stream, None, |at| requests::reduce(at, send, recv, op, root))
    }

    /// Every rank gets what all sent, in the order of ranks. The receive buffer is as many times longer than the send buffer as there are ranks.
    pub fn all_gather<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: &impl DeviceBuffer<T>,
        recv: &mut impl DeviceBufferMut<T>,
    ) -> Result<(), NcclError> {
        self.run(Call::AllGather, stream, None, |at| requests::all_gather(at, send, recv))
    }

    /// Reduces over all ranks; each rank gets its part of the result. The send buffer is as many times longer than the receive buffer as there are
    /// ranks.
    pub fn reduce_scatter<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: &impl DeviceBuffer<T>,
        recv: &mut impl DeviceBufferMut<T>,
        op: impl Reduction<T>,
    ) -> Result<(), NcclError> {
        self.run(Call::ReduceScatter, stream, None, |at| requests::reduce_scatter(at, send, recv, op))
    }

    /// Rank `i`'s part `j` becomes rank `j`'s part `i`. Both buffers have a part of equal length for each rank.
    ///
    /// Before NCCL 2.28 it is composed of sends and receives.
    pub fn all_to_all<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: &impl DeviceBuffer<T>,
        recv: &mut impl DeviceBufferMut<T>,
    ) -> Result<(), NcclError> {
        self.run(Call::AllToAll, stream, None, |at| requests::all_to_all(at, send, recv))
    }

    /// The root gets what all sent, in the order of ranks. Only the root gives a receive buffer; what others give is not written.
    ///
    /// Before NCCL 2.28 it is composed of sends and receives.
    pub fn gather<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: &impl DeviceBuffer<T>,
        recv: Option<&mut dyn DeviceBufferMut<T>>,
        root: usize,
    ) -> Result<(), NcclError> {
        self.run(Call::Gather, stream, None, |at| requests::gather(at, send, recv, root))
    }

    /// Each rank gets its part of the root's buffer. Only the root gives a send buffer; what others give is not read.
    ///
    /// Before NCCL 2.28 it is composed of sends and receives.
    pub fn scatter<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: Option<&dyn DeviceBuffer<T>>,
        recv: &mut impl DeviceBufferMut<T>,
        root: usize,
    ) -> Result<(), NcclError> {
        self.run(Call::Scatter, stream, None, |at| requests::scatter(at, send, recv, root))
    }

    /// The collectives with a configuration for the call. NCCL 2.31.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use peerweave_driver::{CudaStream, DeviceMemory};
    /// # use peerweave_nccl::{CollConfig, Communicator, NcclError, ReduceOp};
    /// # fn f(communicator: &Communicator, stream: &Arc<CudaStream>, values: &mut DeviceMemory<f32>) -> Result<(), NcclError> {
    /// let few = CollConfig::new().max_ctas(4);
    /// communicator.with(&few).all_reduce_in_place(stream, values, ReduceOp::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with<'a>(&'a self, config: &'a CollConfig) -> Configured<'a> {
        Configured { communicator: self, config }
    }

    /// Checks, issues and counts one call.
    ///
    /// All checks come before the turn is taken, as they do in groups: so where nobody else is inside and nothing is captured, one step takes the turn and
    /// dives, right before NCCL is called.
    #[inline]
    pub(crate) fn run<'a>(
        &self,
        call: Call,
        stream: &'a Arc<CudaStream>,
        config: Option<&CollConfig>,
        prepare: impl FnOnce(&mut At<'_, 'a>) -> Checked<Operations>,
    ) -> Result<(), NcclError> {
        let (inner, name) = (&self.inner, call.name());
        let _span = is_traced().then(|| spans::of(inner, name));
        inner.check_live(name)?;
        inner.bind()?;
        let mut holds = Holds::default();
        inner.check_stream(name, stream)?;
        let capturing = inner.is_capturing(stream)?;
        let operations = prepare(&mut At::new(call, inner, stream, capturing, &mut holds)).map_err(|error| *error)?;
        if let (None, Operations::One(operation), false) = (config, &operations, holds.is_captured())
            && let Some(inside) = inner.gate.plunge()
        {
            inner.count(call);
            let (comm, stream) = (inner.handle.get(), stream.cu_stream());
            // SAFETY: the handle is live inside the gate; the operation's buffers are as long as it says, since it was checked, and live as long as what it
            // holds, until NCCL is done, and after that for as long as the stream needs them.
            let code = inner.nccl.code(name, |api| unsafe { operation.issue(api, inner, comm, stream, std::ptr::null()) })?;
            return inner.settle(name, code, inside);
        }
        run_in_turn(inner, Request { call, stream, operations, holds }, config)
    }
}

/// Any call, when its turn has come.
#[cold]
fn run_in_turn(inner: &Arc<Inner>, mut request: Request<'_>, config: Option<&CollConfig>) -> Result<(), NcclError> {
    let name = request.call.name();
    let config = config.map(|config| config.to_raw(name, inner.nccl)).transpose()?;
    if let Some(event) = config.as_ref().and_then(|config| config.event()) {
        let (found, expected) = (event.context().ordinal(), inner.device());
        if found != expected {
            return Err(NcclError::misuse(name, MisuseKind::Device { what: "the launch completion event", found, expected }));
        }
        request.keep_event(event);
    }
    let inside = inner.enter(name, Allowed::LIVE)?;
    // That may have taken a while.
    request.check_capture()?;
    request.hand_to_graph(inner)?;
    inner.dive(name, &inside)?;
    inner.count(request.call);
    let raw = config.as_ref().map_or(std::ptr::null(), |config| config.as_ptr());
    // SAFETY: this thread is inside, and the configuration lives until the end of this function.
    let code = inner.nccl.code(name, |api| unsafe { request.issue(api, inner, raw) })?;
    // The request, and with it the guards of its buffers, lives until NCCL is done.
    inner.settle(name, code, inside)
}

/// Whether somebody may listen for spans: one load, where making one that nobody listens to takes a look at its own place, too.
#[inline]
fn is_traced() -> bool {
    tracing::level_filters::LevelFilter::current() >= tracing::level_filters::LevelFilter::TRACE
}

/// A communicator with a configuration for single calls. Made by [`Communicator::with`].
#[derive(Clone, Copy, Debug)]
pub struct Configured<'a> {
    communicator: &'a Communicator,
    config: &'a CollConfig,
}

macro_rules! configured {
    ($($Call:ident $name:ident($($argument:ident: $Type:ty),*);)*) => {
        /// The collectives of the communicator, configured. Before NCCL 2.31 each is [`NcclError::Unsupported`].
        impl Configured<'_> {
            $(
                #[doc = concat!("As [`Communicator::", stringify!($name), "`].")]
                #[doc = ""]
                #[doc = "# Errors"]
                #[doc = "As there; [`NcclError::Unsupported`] for what the library does not know."]
                pub fn $name<T: Element>(&self, stream: &Arc<CudaStream>, $($argument: $Type),*) -> Result<(), NcclError> {
                    self.communicator.run(Call::$Call, stream, Some(self.config), |at| requests::$name(at, $($argument),*))
                }
            )*
        }
    };
}

configured! {
    AllReduce all_reduce(send: &impl DeviceBuffer<T>, recv: &mut impl DeviceBufferMut<T>, op: impl Reduction<T>);
    Broadcast broadcast(send: Option<&dyn DeviceBuffer<T>>, recv: &mut impl DeviceBufferMut<T>, root: usize);
    Reduce reduce(send: &impl DeviceBuffer<T>, recv: Option<&mut dyn DeviceBufferMut<T>>, op: impl Reduction<T>, root: usize);
    AllGather all_gather(send: &impl DeviceBuffer<T>, recv: &mut impl DeviceBufferMut<T>);
    ReduceScatter reduce_scatter(send: &impl DeviceBuffer<T>, recv: &mut impl DeviceBufferMut<T>, op: impl Reduction<T>);
    AllToAll all_to_all(send: &impl DeviceBuffer<T>, recv: &mut impl DeviceBufferMut<T>);
    Gather gather(send: &impl DeviceBuffer<T>, recv: Option<&mut dyn DeviceBufferMut<T>>, root: usize);
    Scatter scatter(send: Option<&dyn DeviceBuffer<T>>, recv: &mut impl DeviceBufferMut<T>, root: usize);
    AllReduceInPlace all_reduce_in_place(buffer: &mut impl DeviceBufferMut<T>, op: impl Reduction<T>);
    BroadcastInPlace broadcast_in_place(buffer: &mut impl DeviceBufferMut<T>, root: usize);
    ReduceInPlace reduce_in_place(buffer: &mut impl DeviceBufferMut<T>, op: impl Reduction<T>, root: usize);
    AllGatherInPlace all_gather_in_place(buffer: &mut impl DeviceBufferMut<T>);
    ReduceScatterInPlace reduce_scatter_in_place(buffer: &mut impl DeviceBufferMut<T>, op: impl Reduction<T>);
    GatherInPlace gather_in_place(buffer: &mut impl DeviceBufferMut<T>, root: usize);
    ScatterInPlace scatter_in_place(buffer: &mut impl DeviceBufferMut<T>, root: usize);
}
