//! Groups: calls that NCCL receives together. In a group, one thread can issue calls that wait for
//! each other, such as the calls of several ranks.
//!
//! A group records calls. NCCL is called after the closure has returned. So after an error or a
//! panic in the closure, no call of the group has been issued. Resources of a call cannot be freed
//! before the group is launched.
//!
//! Invariant: between `ncclGroupStart` and `ncclGroupEnd`, no code of the caller runs on the
//! thread.

mod agreement;
pub(crate) mod sim_info;

use std::mem::ManuallyDrop;
use std::sync::Arc;

use peerweave_driver::{CudaStream, DeviceBuffer, DeviceBufferMut};
use peerweave_types::{Element, Rank};

use crate::comm::communicator::Communicator;
use crate::comm::complete::{end_group, enter_blocking_all, refuse_group};
use crate::comm::wait::root_cause;
use crate::library::error::{MisuseKind, NcclError};
use crate::member::enter_all::enter_all;
use crate::member::membership::Inner;
use crate::member::spans;
use crate::member::state::Allowed;
use crate::ops::check::{CallBuilder, Checked, Prepared};
use crate::ops::holds::Holds;
use crate::ops::issue::Request;
use crate::ops::operation::Operations;
use crate::ops::reduction::Reduction;
use crate::ops::shapes;
use crate::ops::signatures::{collectives, transfers};
use crate::sys::ncclResult_t;
use crate::{Call, CollConfig, Nccl, SimInfo, Version};

/// A group of recorded calls that are issued together. Created by [`Nccl::group`].
///
/// The resources of a call stay borrowed until the group has been launched:
///
/// ```compile_fail,E0597
/// # use std::sync::Arc;
/// # use peerweave_nccl::{CudaStream, DeviceMemory};
/// # use peerweave_nccl::{Communicator, Nccl, ReduceOp};
/// # fn f(nccl: Nccl, comm: &Communicator, stream: &Arc<CudaStream>, mut values: DeviceMemory<f32>) {
/// nccl.group(|group| {
///     let mut local = values.clone();
///     group.all_reduce_in_place(comm, stream, &mut local, ReduceOp::Sum) // `local` does not live long enough
/// });
/// # }
/// ```
pub struct Group<'env> {
    members: Vec<Member<'env>>,
    nccl: Nccl,
}

/// A recorded call, with its communicator.
struct Member<'env> {
    inner: Arc<Inner>,
    request: Request<'env>,
}

impl Member<'_> {
    /// Fails if NCCL cannot simulate this call. In a simulated group, NCCL would launch such a call
    /// instead of estimating its duration.
    fn can_be_simulated(&self, call: &'static str) -> Result<(), NcclError> {
        let why = match self.request.call {
            _ if !self.inner.blocking => {
                "NCCL would launch a group of non-blocking communicators instead of estimating the duration; use blocking communicators"
            }
            _ if self.inner.n_ranks == 1 => {
                "NCCL would execute a call on a communicator of one rank immediately; use a communicator of several ranks"
            }
            _ if self.request.is_captured() => "the stream is being captured; end the capture before the simulation",
            Call::AllReduce | Call::Reduce | Call::AllGather | Call::ReduceScatter => return Ok(()),
            Call::AllReduceInPlace | Call::ReduceInPlace | Call::AllGatherInPlace | Call::ReduceScatterInPlace => return Ok(()),
            Call::Broadcast | Call::BroadcastInPlace if !self.inner.nccl.version().at_least(BROADCASTS_ARE_SENT) => return Ok(()),
            _ => {
                "NCCL would queue this call and launch it with the next group; only all-reduce, reduce, all-gather and reduce-scatter can be estimated"
            }
        };
        Err(NcclError::misuse(call, MisuseKind::Context { why }))
    }
}

/// First version of NCCL whose group simulation cannot estimate broadcasts. From this version on,
/// NCCL queues broadcasts in the same way as sends.
const BROADCASTS_ARE_SENT: Version = Version::new(2, 29, 2);

/// Guard for the closure of a nested group. If the closure fails or panics, dropping the guard
/// removes the calls that the nested group has recorded. Calls that were recorded earlier stay
/// recorded.
struct Part<'a, 'env> {
    group: &'a mut Group<'env>,
    before: usize,
}

impl Drop for Part<'_, '_> {
    fn drop(&mut self) {
        self.group.members.truncate(self.before);
    }
}

impl Nccl {
    /// Runs the closure, which records calls, and then issues all recorded calls together.
    ///
    /// If the closure returns an error or panics, no call is issued. A group is required in two
    /// cases: if one thread has several ranks, and if ranks send to each other. A group also lets
    /// NCCL run several operations concurrently. The communicators are locked while the calls are
    /// issued, but not while the calls are recorded.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use peerweave_nccl::{CudaStream, DeviceMemory};
    /// # use peerweave_nccl::{Communicator, Nccl, NcclError, Rank};
    /// # fn exchange(nccl: Nccl, comm: &Communicator, stream: &Arc<CudaStream>, mine: &DeviceMemory<f32>, theirs: &mut DeviceMemory<f32>)
    /// # -> Result<(), NcclError> {
    /// let (rank, n) = (comm.rank().get(), comm.n_ranks() as u32);
    /// let (next, previous) = (Rank::new((rank + 1) % n), Rank::new((rank + n - 1) % n));
    /// nccl.group(|group| {
    ///     group.send(comm, stream, mine, next)?;
    ///     group.recv(comm, stream, theirs, previous)
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error that the closure returns, or the first error that one of the calls returns.
    /// [`MisuseKind::Disagreement`](crate::MisuseKind::Disagreement) if ranks of one communicator
    /// issue different collectives, or the same collective with different lengths, element types,
    /// roots or reductions. `Disagreement` also if the lengths of a send and of the matching
    /// receive differ. After a disagreement no call is issued.
    /// [`MisuseKind::NotInGroup`](crate::MisuseKind::NotInGroup) if NCCL cannot connect the ranks
    /// because this thread omitted a rank. [`NcclError::Timeout`] if NCCL cannot connect the ranks
    /// by the longest [`deadline`](Communicator::deadline) among the communicators. In this case
    /// all communicators of the group are aborted.
    pub fn group<'env, R>(self, record: impl FnOnce(&mut Group<'env>) -> Result<R, NcclError>) -> Result<R, NcclError> {
        let mut group = Group { members: Vec::new(), nccl: self };
        let result = record(&mut group)?;
        group.launch()?;
        Ok(result)
    }

    /// Runs the closure, which records calls, and returns NCCL's estimate of the duration of these
    /// calls. No call is executed. Requires NCCL 2.22.3.
    ///
    /// The communicators must be blocking ([`Config::blocking`](crate::Config::blocking)) and have
    /// several ranks. On other communicators NCCL would launch the calls instead of estimating the
    /// duration. NCCL can estimate only all-reduce, reduce, all-gather and reduce-scatter. Versions
    /// before NCCL 2.29.2 can also estimate broadcast. This method refuses all other calls, because
    /// NCCL would queue them and launch them with the next group.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for communicators and calls that NCCL cannot simulate, and for streams
    /// that are being captured. [`NcclError::Unsupported`] before NCCL 2.22.3. All errors that
    /// [`group`](Self::group) returns.
    pub fn simulate<'env>(self, record: impl FnOnce(&mut Group<'env>) -> Result<(), NcclError>) -> Result<SimInfo, NcclError> {
        const CALL: &str = "simulate";
        let mut info = ManuallyDrop::new(Box::new(SimInfo::empty(self)?));
        // The function is checked first, because a group that has begun could not be ended without
        // the function.
        self.needs_function("ncclGroupSimulateEnd", Version::new(2, 22, 3))?;
        let mut group = Group { members: Vec::new(), nccl: self };
        record(&mut group)?;
        group.members.iter().try_for_each(|member| member.can_be_simulated(CALL))?;
        // SAFETY: `issue` has started the group, and the struct is of this library's version.
        group.issue(CALL, false, |nccl| nccl.code(CALL, |api| unsafe { api.ncclGroupSimulateEnd(&raw mut **info) }))?;
        // NCCL has finished with the struct. After an error NCCL may still use the struct, so the
        // struct is leaked.
        let info = ManuallyDrop::into_inner(info);
        Ok(SimInfo::of(&info))
    }
}

impl<'env> Group<'env> {
    /// Records a nested group. NCCL receives the calls of the nested group together with the calls
    /// of this group. A nested group is useful in a function that forms a group and may be called
    /// inside another group.
    ///
    /// If the closure returns an error or panics, the calls that the closure has recorded are
    /// removed from the group.
    ///
    /// # Errors
    /// The error that the closure returns.
    pub fn group<R>(&mut self, record: impl FnOnce(&mut Self) -> Result<R, NcclError>) -> Result<R, NcclError> {
        let mut inner = Part { before: self.members.len(), group: self };
        let result = record(inner.group);
        if result.is_ok() {
            inner.before = inner.group.members.len();
        }
        result
    }

    /// Returns the number of recorded calls.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns whether the group contains no calls.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Checks one call, and adds the call to the group. `prepare` checks the arguments of the call.
    /// Only `prepare` depends on the types of the buffers, as in [`Communicator::run`].
    #[inline]
    pub(crate) fn record(
        &mut self,
        call: Call,
        communicator: &Communicator,
        stream: &'env Arc<CudaStream>,
        config: Option<&CollConfig>,
        prepare: impl FnOnce(&mut CallBuilder<'_, 'env>) -> Checked<Prepared>,
    ) -> Result<(), NcclError> {
        let mut prepare = Some(prepare);
        let mut prepare =
            |builder: &mut CallBuilder<'_, 'env>| prepare.take().expect("`prepare` is called at most once")(builder);
        self.record_prepared(call, communicator, stream, config, &mut prepare)
    }

    fn record_prepared(
        &mut self,
        call: Call,
        communicator: &Communicator,
        stream: &'env Arc<CudaStream>,
        config: Option<&CollConfig>,
        prepare: &mut dyn FnMut(&mut CallBuilder<'_, 'env>) -> Checked<Prepared>,
    ) -> Result<(), NcclError> {
        let (inner, name) = (&communicator.inner, call.name());
        if inner.nccl != self.nccl {
            let (found, expected) = (inner.nccl.shared_path(), self.nccl.shared_path());
            return Err(NcclError::misuse(name, MisuseKind::WrongLibrary { what: "the communicator", found, expected }));
        }
        let capturing = inner.begin_call(name, stream)?;
        let (mut holds, mut operations) = (Holds::default(), Operations::default());
        let mut builder = CallBuilder::new(call, inner, stream, capturing, &mut holds, &mut operations);
        prepare(&mut builder).map_err(|error| *error)?;
        let mut request = Request::new(call, stream, operations, holds);
        request.configure(inner, config)?;
        self.members.push(Member { inner: Arc::clone(inner), request });
        Ok(())
    }

    fn launch(self) -> Result<(), NcclError> {
        const CALL: &str = "group";
        let nccl = self.nccl;
        // SAFETY: `issue` has started the group.
        self.issue(CALL, true, move |_| nccl.code("ncclGroupEnd", |api| unsafe { api.ncclGroupEnd() }))
    }

    fn issue(
        self,
        call: &'static str,
        runs: bool,
        end: impl FnOnce(Nccl) -> Result<ncclResult_t, NcclError>,
    ) -> Result<(), NcclError> {
        let nccl = self.nccl;
        if self.members.is_empty() {
            return Ok(());
        }
        let _span = spans::of_many_if_enabled(call, self.members.len());
        let deadline = self.members.iter().map(|member| member.inner.deadline()).max().unwrap_or_default();
        let inside = enter_all(call, Allowed::LIVE, self.members.iter().map(|member| &member.inner))?;
        agreement::check(self.members.iter().map(|member| (&member.inner, &member.request)))?;
        // Captures may have begun or ended while this thread waited for the gates. Every step of
        // this crate that can fail precedes the first call of NCCL.
        let (mut before, mut contexts) = (None, 0);
        for Member { inner, request } in &self.members {
            // Consecutive calls often use the same stream. The driver is queried only once for
            // these calls.
            let place = Some((inner.context.cu_ctx(), request.stream.cu_stream(), request.is_captured()));
            if before != place {
                inner.bind()?;
                request.check_capture(inner)?;
                contexts += usize::from(before.is_none_or(|(context, ..)| context != inner.context.cu_ctx()));
                before = place;
            }
            if runs {
                request.hand_to_graph(inner)?;
            }
        }
        // SAFETY: the group is ended below on every path.
        nccl.call("ncclGroupStart", |api| unsafe { api.ncclGroupStart() })?;
        let (mut first_error, mut refused, mut is_ours) = (None, None, false);
        for Member { inner, request } in &self.members {
            if runs {
                inner.count(request.call);
                inner.registered.note(request.stream);
            }
            let name = request.call.name();
            // If all calls have the same context, that context is already current.
            let bound = if contexts > 1 { inner.bind() } else { Ok(()) };
            // Inside a group NCCL only records a call, so this thread does not block. A thread that
            // aborts one of the communicators waits until this thread has left the gate.
            let open = bound.and_then(|()| inner.check_open(name));
            // SAFETY: this thread is inside the gates of all communicators.
            let code = open.and_then(|()| nccl.code(name, |api| unsafe { request.issue(api, inner) }));
            match code {
                Ok(ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress) => continue,
                Ok(code) => (first_error, refused) = (Some(inner.failure(name, code)), Some(Arc::clone(inner))),
                Err(error) => (first_error, is_ours) = (Some(error), runs),
            }
            break;
        }
        // After an error of this crate, NCCL has received only some calls of the group. NCCL would
        // wait forever for the missing calls.
        if runs && is_ours {
            refuse_group(nccl);
        } else if first_error.is_none()
            && let Err(error) = enter_blocking_all(call, &inside)
        {
            refuse_group(nccl);
            (first_error, is_ours) = (Some(error), runs);
        }
        let ended = end_group(call, nccl, end(nccl), inside, is_ours, deadline);
        let captured = match runs {
            true => self.members.iter().try_for_each(|member| member.request.is_captured_as_before(&member.inner)),
            false => Ok(()),
        };
        // NCCL does not use the memory of the calls any more, so the memory may be freed from here
        // on.
        drop(self.members);
        match (first_error, refused) {
            (Some(error), Some(inner)) => Err(root_cause(&inner, error)),
            (Some(error), None) => Err(error),
            (None, _) => captured.and(ended),
        }
    }
}

impl std::fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let calls: Vec<_> = self.members.iter().map(|member| member.request.call.name()).collect();
        write!(f, "Group{calls:?}")
    }
}

macro_rules! recorded {
    ($($(#[$doc:meta])* $Call:ident $name:ident($($argument:ident: $Type:ty),*);)*) => {
        /// Methods that record collectives, sends and receives in the group. NCCL receives the
        /// calls when the group is launched. [`Communicator`] has methods that issue the same calls
        /// immediately.
        impl<'a> Group<'a> {
            $(
                #[doc = concat!("Records [`Communicator::", stringify!($name), "`]. The call is issued when the group is launched. The linked method documents the lengths of the buffers.")]
                #[doc = ""]
                #[doc = "# Errors"]
                #[doc = concat!("[`Communicator::", stringify!($name), "`] lists the possible errors. This method returns an error that is detected before the launch. The group then does not contain the call.")]
                #[doc = "[`Nccl::group`](Nccl::group) returns an error that is detected later."]
                pub fn $name<T: Element>(
                    &mut self,
                    communicator: &Communicator,
                    stream: &'a Arc<CudaStream>,
                    $($argument: $Type),*
                ) -> Result<(), NcclError> {
                    self.record(Call::$Call, communicator, stream, None, |builder| shapes::$name(builder, $($argument),*))
                }
            )*
        }
    };
}

collectives!(recorded);
transfers!(recorded);
