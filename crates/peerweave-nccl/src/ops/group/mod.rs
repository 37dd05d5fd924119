//! Groups: calls that NCCL receives together, so that none waits for another.
//!
//! A group records calls; NCCL is called when the closure has returned. So after an error or a
//! panic no call of the group has been issued, and no resource of a group can be freed before it is
//! launched.
//!
//! Invariant: between `ncclGroupStart` and `ncclGroupEnd` only this file runs, on one thread.

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

/// Calls that are issued together. Created by [`Nccl::group`].
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

struct Member<'env> {
    inner: Arc<Inner>,
    request: Request<'env>,
}

impl Member<'_> {
    /// Fails unless NCCL only estimates this call, without launching it.
    fn can_be_simulated(&self, call: &'static str) -> Result<(), NcclError> {
        let why = match self.request.call {
            _ if !self.inner.blocking => "NCCL would launch a group of non-blocking communicators instead of estimating it",
            _ if self.inner.n_ranks == 1 => "NCCL would execute a call of a communicator of one rank immediately",
            _ if self.request.is_captured() => "the stream is being captured",
            Call::AllReduce | Call::Reduce | Call::AllGather | Call::ReduceScatter => return Ok(()),
            Call::AllReduceInPlace | Call::ReduceInPlace | Call::AllGatherInPlace | Call::ReduceScatterInPlace => return Ok(()),
            Call::Broadcast | Call::BroadcastInPlace if !self.inner.nccl.version().at_least(BROADCASTS_ARE_SENT) => return Ok(()),
            _ => {
                "NCCL would keep sends and launch them with the next group; only reductions and gathers to all ranks can be estimated"
            }
        };
        Err(NcclError::misuse(call, MisuseKind::Context { why }))
    }
}

/// The first version that queues broadcasts like sends.
const BROADCASTS_ARE_SENT: Version = Version::new(2, 29, 2);

/// A group while a closure records calls in it. When this value is dropped, all calls recorded
/// after the first `before` ones are removed.
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
    /// Issues the calls that the closure records, together, when it has returned.
    ///
    /// If the closure returns an error or panics, no call is issued. A group is required if one
    /// thread has several ranks, and if ranks send to each other. It also lets NCCL run several
    /// operations concurrently. The group locks each of its communicators only while it is issued.
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
    /// The closure's. [`MisuseKind::Disagreement`](crate::MisuseKind::Disagreement) if ranks of one
    /// communicator issue collectives that do not match (lengths, element types, roots, reductions,
    /// another collective), or if a receive has another length than its send: no call is issued
    /// then. The first error of any of the calls.
    /// [`MisuseKind::NotInGroup`](crate::MisuseKind::NotInGroup) if NCCL cannot connect the ranks
    /// because this thread omitted one. [`NcclError::Timeout`] if NCCL cannot connect the ranks by
    /// the longest [`deadline`](Communicator::deadline) of the communicators, which are then
    /// aborted.
    pub fn group<'env, R>(self, record: impl FnOnce(&mut Group<'env>) -> Result<R, NcclError>) -> Result<R, NcclError> {
        let mut group = Group { members: Vec::new(), nccl: self };
        let result = record(&mut group)?;
        group.launch()?;
        Ok(result)
    }

    /// Returns NCCL's estimate of the time of the calls that the closure records. No call is
    /// issued. Requires NCCL 2.22.3.
    ///
    /// The communicators must block ([`Config::blocking`](crate::Config::blocking)) and have
    /// several ranks; NCCL would launch a group of other communicators. The calls must be
    /// reductions, gathers to all ranks of equal lengths, or, before NCCL 2.29.2, broadcasts. NCCL
    /// would keep sends and receives, and calls composed of them, and launch them with the next
    /// group.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for other communicators and calls, and for streams that are being
    /// captured; otherwise as for [`group`](Self::group); [`NcclError::Unsupported`].
    pub fn simulate<'env>(self, record: impl FnOnce(&mut Group<'env>) -> Result<(), NcclError>) -> Result<SimInfo, NcclError> {
        const CALL: &str = "simulate";
        let mut info = ManuallyDrop::new(Box::new(SimInfo::empty(self)?));
        // Checked before NCCL begins a group that could not be ended.
        self.needs_function("ncclGroupSimulateEnd", Version::new(2, 22, 3))?;
        let mut group = Group { members: Vec::new(), nccl: self };
        record(&mut group)?;
        group.members.iter().try_for_each(|member| member.can_be_simulated(CALL))?;
        // SAFETY: `issue` has started the group, and the struct is of this library's version.
        group.issue(CALL, false, |nccl| nccl.code(CALL, |api| unsafe { api.ncclGroupSimulateEnd(&raw mut **info) }))?;
        // NCCL has finished with the struct. After an error NCCL may still use it, so the struct is
        // leaked.
        let info = ManuallyDrop::into_inner(info);
        Ok(SimInfo::of(&info))
    }
}

impl<'env> Group<'env> {
    /// Records a group within the group; NCCL receives both together. For functions that form
    /// groups and are called inside groups.
    ///
    /// If the closure returns an error or panics, none of its calls is issued.
    ///
    /// # Errors
    /// The closure's.
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

    /// Returns whether no call was recorded.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Checks and records one call. As in [`Communicator::run`], only `prepare` depends on types.
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
        let mut prepare = |builder: &mut CallBuilder<'_, 'env>| prepare.take().expect("a call is prepared once")(builder);
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
        inner.check_live(name)?;
        inner.bind()?;
        let mut holds = Holds::default();
        let capturing = inner.check_stream(name, stream).and_then(|()| inner.is_capturing(stream))?;
        let mut operations = Operations::default();
        let mut builder = CallBuilder::new(call, inner, stream, Some(capturing), &mut holds, &mut operations);
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
        // Captures may have begun or ended while this thread waited for the gates. Every step that
        // can fail without NCCL comes before the first call of NCCL.
        let (mut before, mut contexts) = (None, 0);
        for Member { inner, request } in &self.members {
            // Queries the driver once for consecutive calls on one stream, the most frequent case.
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
            // If all calls have the same context, it is already current.
            let bound = if contexts > 1 { inner.bind() } else { Ok(()) };
            // Inside a group NCCL only records a call: this thread does not block, and a thread
            // that aborts one of the communicators waits until it has left.
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
        // After an error of this crate NCCL has part of the group, which the other ranks would
        // never join.
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
        // Only from here on may the memory of the members be freed.
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
        /// The calls of [`Communicator`], recorded.
        impl<'a> Group<'a> {
            $(
                #[doc = concat!("Records [`Communicator::", stringify!($name), "`], issued when the group is launched. The lengths are the same.")]
                #[doc = ""]
                #[doc = "# Errors"]
                #[doc = concat!("[As for the call](Communicator::", stringify!($name), "), as far as they are detected before the launch; the call is then not recorded.")]
                #[doc = "The other errors are returned by [`Nccl::group`](Nccl::group)."]
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
