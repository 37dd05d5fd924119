//! Creation of communicators from other communicators: split, shrink and grow.
//!
//! `init.rs` creates communicators without parents.
//!
//! Invariant: the identity of a child is computed from the identity of the parent, and from calls
//! that all ranks make in the same order.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use peerweave_driver::CudaContext;
use peerweave_dylib::MissingSymbol;

use crate::comm::communicator::Communicator;
use crate::config::of_communicator::RawConfig;
use crate::library::error::{MisuseKind, NcclError};
use crate::member::enter_all::enter_all;
use crate::member::membership::{Handle, Inner, Parts, World};
use crate::member::state::{Allowed, State};
use crate::setup::init::{make, mix};
use crate::sys::{self, Api, ncclComm_t, ncclConfig_t, ncclResult_t};
use crate::{Call, Config, Rank, Switch, UniqueId, Version};

/// Selects how [`Communicator::shrink`] handles pending work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShrinkMode {
    /// Shrinking lets pending work complete. Use this mode if no rank is lost and no work is stuck.
    Default,
    /// Pending work is ended before the communicator is shrunk. Use this mode if a rank is lost or
    /// work is stuck.
    Abort,
}

impl Communicator {
    /// Splits the communicator. The ranks that pass the same color form a new communicator. In the
    /// new communicator, ranks are ordered by `key`. Ranks with equal keys are ordered by their
    /// rank in this communicator. A rank that passes `None` as color joins no new communicator, and
    /// its call returns `None`.
    ///
    /// The new communicator has the configuration of this communicator.
    /// [`split_all`](Self::split_all) accepts a different configuration.
    ///
    /// # Collective
    /// All ranks must make this call, each in a separate thread or process. A thread with several
    /// ranks calls [`split_all`](Self::split_all) instead.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for a color above 2147483647; [`NcclError::Dead`];
    /// [`NcclError::Timeout`] at [`deadline`](Self::deadline); errors that NCCL returns.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>, NcclError> {
        Self::split_all(&[(self, color, key)], None).map(|mut made| made.pop().flatten())
    }

    /// Splits like [`split`](Self::split), but for several ranks of this thread, and optionally
    /// with a configuration. `members` contains the communicator, the color and the key of each
    /// rank. The results are in the order of `members`.
    ///
    /// Without `config`, a new communicator has the configuration of its parent, which is the
    /// communicator that is split. With `config`, a new communicator inherits from its parent only
    /// whether calls block. Other options that `config` does not set have NCCL's defaults.
    ///
    /// # Collective
    /// All ranks must make this call.
    ///
    /// # Errors
    /// As for [`split`](Self::split); [`NcclError::Misuse`] also if `config` sets
    /// [`Config::blocking`] to a value that differs from the setting of the communicators.
    pub fn split_all(members: &[(&Self, Option<u32>, i32)], config: Option<&Config>) -> Result<Vec<Option<Self>>, NcclError> {
        const CALL: &str = "split";
        let mut colors = Vec::new();
        for (_, color, _) in members {
            colors.push(match color {
                None => sys::NCCL_SPLIT_NOCOLOR,
                Some(color) => c_int::try_from(*color).map_err(|_| {
                    let (found, expected) = (i64::from(*color), "a number of at most 2147483647");
                    NcclError::misuse(CALL, MisuseKind::Value { what: "the color", found, expected })
                })?,
            });
        }
        let parents: Vec<_> = members.iter().map(|(parent, ..)| *parent).collect();
        let parts = |index: usize, hash: u64| mix(hash, &colors[index].to_le_bytes());
        let made = children(CALL, Call::Split, Allowed::SPLIT, &parents, config, parts, |api, index, comm, out, config| {
            // SAFETY: the parent is live inside its gate. `out` lives as long as NCCL may write to
            // it. The configuration is null, or NCCL reads it only during the call.
            unsafe { api.ncclCommSplit(comm, colors[index], members[index].2, out, config) }
        })?;
        match made.iter().zip(members).any(|(child, (_, color, _))| child.is_none() && color.is_some()) {
            true => Err(nothing_made(CALL)),
            false => Ok(made),
        }
    }

    /// Creates a communicator without the excluded ranks. The excluded ranks do not make this call.
    /// The other ranks keep their order. Requires NCCL 2.27.3.
    ///
    /// With [`ShrinkMode::Abort`], the excluded ranks may be lost, and pending work of this
    /// communicator is ended. After this call, [`wait`](Self::wait) for this work returns
    /// [`NcclError::Dead`], and so do new calls on this communicator. This also applies if NCCL
    /// fails to shrink the communicator. This communicator can only be shrunk again, aborted or
    /// dropped.
    ///
    /// [`ShrinkMode::Abort`] works only if NCCL has not detected the loss of a rank. Over NVLink,
    /// NCCL does not detect a lost rank, and the work is stuck. Over a network, NCCL may report the
    /// loss as an asynchronous error, and then refuses this call. In this case create a new
    /// communicator from the remaining ranks, with a new [`UniqueId`].
    ///
    /// # Collective
    /// All ranks that are not excluded must make this call, with the same list. A thread with
    /// several ranks calls [`shrink_all`](Self::shrink_all) instead.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] if `excluded` is empty, contains this rank, or contains a rank that
    /// does not exist or is repeated; [`NcclError::Unsupported`]; [`NcclError::Timeout`] at
    /// [`deadline`](Self::deadline); [`NcclError::Dead`]; errors that NCCL returns.
    pub fn shrink(&self, excluded: &[Rank], mode: ShrinkMode) -> Result<Self, NcclError> {
        Self::shrink_all(&[self], excluded, mode, None)
            .map(|mut made| made.pop().expect("the list has one communicator for each rank"))
    }

    /// Shrinks like [`shrink`](Self::shrink), but for several ranks of this thread, and optionally
    /// with a configuration. [`split_all`](Self::split_all) documents the effect of `config`.
    ///
    /// # Collective
    /// As for [`shrink`](Self::shrink).
    ///
    /// # Errors
    /// As for [`shrink`](Self::shrink).
    pub fn shrink_all(
        members: &[&Self],
        excluded: &[Rank],
        mode: ShrinkMode,
        config: Option<&Config>,
    ) -> Result<Vec<Self>, NcclError> {
        const CALL: &str = "shrink";
        let mut list = Vec::new();
        for (index, &rank) in excluded.iter().enumerate() {
            let value = |expected| {
                NcclError::misuse(CALL, MisuseKind::Value { what: "an excluded rank", found: rank.get().into(), expected })
            };
            if excluded[..index].contains(&rank) {
                return Err(value("a rank that occurs only once in the list"));
            }
            for member in members {
                if rank.index() >= member.n_ranks() {
                    let ranks = member.n_ranks();
                    return Err(NcclError::misuse(CALL, MisuseKind::Rank { what: "an excluded rank", found: rank, ranks }));
                }
                if rank == member.rank() {
                    return Err(value("a rank that does not make this call"));
                }
            }
            list.push(c_int::try_from(rank.get()).unwrap_or(c_int::MAX));
        }
        if list.is_empty() {
            let kind = MisuseKind::TooShort { what: "the list of excluded ranks", found: 0, at_least: 1, unit: "ranks" };
            return Err(NcclError::misuse(CALL, kind));
        }
        list.sort_unstable();
        let count = c_int::try_from(list.len()).unwrap_or(c_int::MAX);
        let flags = match mode {
            ShrinkMode::Default => sys::NCCL_SHRINK_DEFAULT,
            ShrinkMode::Abort => sys::NCCL_SHRINK_ABORT,
        };
        if let Some(first) = members.first() {
            // This check precedes all changes of the communicators.
            first.nccl().needs_function("ncclCommShrink", Version::new(2, 27, 3))?;
        }
        let allowed = if mode == ShrinkMode::Abort { Allowed::SHRINK } else { Allowed::SPLIT };
        let bytes: Vec<u8> = list.iter().flat_map(|rank| rank.to_le_bytes()).collect();
        let identity = |_, hash| mix(hash, &bytes);
        let made = children(CALL, Call::Shrink, allowed, members, config, identity, |api, _, comm, out, config| {
            // SAFETY: as in `split_all`. NCCL only reads the list, during the call.
            unsafe { api.ncclCommShrink(comm, list.as_mut_ptr(), count, out, config, flags) }
        })?;
        made.into_iter().map(|child| child.ok_or_else(|| nothing_made(CALL))).collect()
    }

    /// Creates an id with which new ranks join this communicator. One of the existing ranks creates
    /// the id and passes the id to [`grow`](Self::grow). New ranks pass the id to
    /// [`CommunicatorBuilder::join`](crate::CommunicatorBuilder::join). Requires NCCL 2.29.2.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`]; [`NcclError::Dead`]; errors that NCCL returns.
    pub fn grow_id(&self) -> Result<UniqueId, NcclError> {
        let empty = sys::ncclUniqueId { internal: [0; sys::NCCL_UNIQUE_ID_BYTES] };
        let id = self.inner.call_into("grow_id", Allowed::LIVE, empty, |api, comm, id| {
            // SAFETY: the handle is live inside the gate. `id` points to 128 bytes.
            unsafe { api.ncclCommGetUniqueId(comm, id) }
        })?;
        Ok(UniqueId::from_raw(id))
    }

    /// Creates a communicator of `n_ranks` ranks. The new communicator consists of the ranks of
    /// this communicator, with unchanged numbers, and of new ranks. New ranks join by calling
    /// [`CommunicatorBuilder::join`](crate::CommunicatorBuilder::join). Requires NCCL 2.29.2.
    ///
    /// The rank that created the id passes the id. The other ranks of this communicator pass
    /// `None`. Drop this communicator after this call.
    ///
    /// # Collective
    /// All ranks of this communicator must make this call, and all new ranks must call
    /// [`CommunicatorBuilder::join`](crate::CommunicatorBuilder::join).
    ///
    /// # Errors
    /// [`NcclError::Misuse`] if `n_ranks` is not greater than the current number of ranks;
    /// [`NcclError::Unsupported`]; [`NcclError::Timeout`] at [`deadline`](Self::deadline);
    /// [`NcclError::Dead`]; errors that NCCL returns.
    pub fn grow(&self, n_ranks: usize, id: Option<&UniqueId>) -> Result<Self, NcclError> {
        const CALL: &str = "grow";
        let n = grown(CALL, n_ranks, self.n_ranks())?;
        let id = id.map(|id| id.to_raw());
        let identity = |_, hash| mix(hash, &n.to_le_bytes());
        let mut made = children(CALL, Call::Grow, Allowed::LIVE, &[self], None, identity, |api, _, comm, out, config| {
            let id = id.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: as in `split_all`. The id is null, or NCCL reads it only during the call. The
            // rank -1 means that the rank keeps its number.
            unsafe { api.ncclCommGrow(comm, n, id, -1, out, config) }
        })?;
        made.pop().flatten().ok_or_else(|| nothing_made(CALL))
    }
}

/// Checks `n_ranks`, the new number of ranks of a communicator that grows, and converts it to
/// NCCL's type. Fails if `n_ranks` is not greater than `now`, the current number of ranks. Also
/// fails if `n_ranks` is too large.
pub(crate) fn grown(call: &'static str, n_ranks: usize, now: usize) -> Result<c_int, NcclError> {
    let wrong = || {
        let (found, expected) = (
            i64::try_from(n_ranks).unwrap_or(i64::MAX),
            "a number greater than the current number of ranks, and at most 2147483647",
        );
        NcclError::misuse(call, MisuseKind::Value { what: "the number of ranks", found, expected })
    };
    if n_ranks <= now { Err(wrong()) } else { c_int::try_from(n_ranks).map_err(|_| wrong()) }
}

#[cold]
pub(crate) fn nothing_made(call: &'static str) -> NcclError {
    NcclError::misuse(call, MisuseKind::Context { why: "NCCL created no communicator for this rank, but returned success" })
}

/// Creates one child communicator for each parent. `start` calls NCCL for the parent with a given
/// index. `identity` computes the identity of one child. Its first argument is the index of the
/// parent. Its second argument is a hash of three values: the parent's identity, the name of the
/// call, and a number that differs among the children of this parent.
fn children(
    call: &'static str,
    counted: Call,
    allowed: Allowed,
    parents: &[&Communicator],
    config: Option<&Config>,
    identity: impl Fn(usize, u64) -> u64,
    mut start: impl FnMut(&'static Api, usize, ncclComm_t, *mut ncclComm_t, *mut ncclConfig_t) -> Result<ncclResult_t, MissingSymbol>,
) -> Result<Vec<Option<Communicator>>, NcclError> {
    let Some(first) = parents.first().map(|parent| &parent.inner) else { return Ok(Vec::new()) };
    let (nccl, blocking, deadline) = (first.nccl, first.blocking, first.deadline());
    for (index, parent) in parents.iter().enumerate() {
        if parents[..index].iter().any(|earlier| Arc::ptr_eq(&earlier.inner, &parent.inner)) {
            let why = "one communicator is passed twice, expected each communicator once";
            return Err(NcclError::misuse(call, MisuseKind::Combination { what: "the communicators", why }));
        }
    }
    let mut raw: Option<RawConfig> = None;
    if let Some(config) = config {
        let mode = if blocking { Switch::On } else { Switch::Off };
        if config.blocking_set().is_some_and(|asked| asked != mode) {
            let why =
                "the value differs from the mode of the parent communicator; leave the value unset to use the mode of the parent";
            return Err(NcclError::misuse(call, MisuseKind::Combination { what: "Config::blocking", why }));
        }
        raw = Some(config.clone().blocking(mode).to_raw(call, nccl)?);
    }
    let inside = enter_all(call, allowed, parents.iter().map(|parent| &parent.inner))?;
    let mut identities = Vec::new();
    for (index, parent) in parents.iter().enumerate() {
        let inner = &parent.inner;
        inner.count(counted);
        let number = inner.children.fetch_add(1, Ordering::Relaxed);
        identities.push(identity(index, mix(mix(inner.identity, counted.name().as_bytes()), &number.to_le_bytes())));
    }
    if allowed == Allowed::SHRINK {
        // NCCL ends the running work without an error. The new state makes waits for the work fail,
        // so that no caller takes the work for complete.
        for (inner, _) in inside.iter() {
            let _ = inner.gate.change(State::Live, State::Failed);
        }
    }
    let contexts: Vec<Arc<CudaContext>> = parents.iter().map(|parent| Arc::clone(parent.context())).collect();
    let made = make(call, nccl, &contexts, &inside, deadline, |api, index, out| {
        let config = raw.as_mut().map_or(std::ptr::null_mut(), RawConfig::as_mut_ptr);
        start(api, index, parents[index].inner.handle.get(), out, config)
    });
    if let Err(NcclError::Timeout(_)) = &made {
        // NCCL still works on the parents, so no other call on them is possible.
        for (parent, _) in inside.iter() {
            let _ = parent.gate.set(State::Failed);
        }
    } else if made.is_err() {
        // NCCL stores the error, or work that a peer never joins, with the parent. The next call on
        // the parent would fail for this reason, so the parent is marked as failed.
        for (parent, inside) in inside.iter() {
            // From here on, a thread that aborts waits until this thread has left the gate. A
            // thread that has already aborted may have freed the communicator, so the gate is
            // checked below.
            inside.leave_blocking();
            // NCCL has counted a child only for the ranks whose calls it recorded, and not for the
            // other ranks.
            let is_partial = parents.len() > 1 && !matches!(made, Err(NcclError::Unsupported(_)));
            if !parent.gate.is_closed() && (is_partial || !matches!(parent.ask(), Ok(ncclResult_t::ncclSuccess))) {
                let _ = parent.gate.change(State::Live, State::Failed);
            }
        }
    }
    // If an abort ended the call, the reason of the abort is the error.
    let cut_off = made.is_err().then(|| inside.iter().find(|(parent, _)| parent.gate.is_closed())).flatten();
    let made = cut_off.map_or(made, |(parent, _)| Err(parent.abort_error(call)));
    drop(inside);
    let name = config.and_then(Config::name_set).map(str::to_owned);
    let mut children = Vec::new();
    for (index, handle) in made?.into_iter().enumerate() {
        let inner = &parents[index].inner;
        children.push(handle.map(|handle| child(inner, counted, handle, identities[index], name.clone())).transpose());
    }
    children.into_iter().collect()
}

fn child(
    parent: &Arc<Inner>,
    call: Call,
    handle: Handle,
    identity: u64,
    name: Option<String>,
) -> Result<Communicator, NcclError> {
    // Ranks that joined by growing are not in the rendezvous.
    let world = parent.world.as_ref().filter(|_| call != Call::Grow);
    let world = world.map(|world| World { rendezvous: world.rendezvous.clone(), ranks_are_pes: false });
    Communicator::adopt(Parts {
        nccl: parent.nccl,
        handle,
        context: Arc::clone(&parent.context),
        name: name.or_else(|| parent.name.name.clone()),
        identity,
        blocking: parent.blocking,
        deadline: parent.deadline(),
        world,
    })
}
