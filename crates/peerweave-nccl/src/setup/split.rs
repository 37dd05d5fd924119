//! Communicators created from others: by splitting, without some ranks, or with more ranks.
//!
//! `init.rs` creates communicators without parents.
//!
//! Invariant: a child's identity follows from its parent's, and from calls that all ranks make in
//! the same order.

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

/// The treatment of the parent's pending work when it is shrunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShrinkMode {
    /// Pending work completes. For a parent whose remaining ranks are healthy and have no stuck
    /// work.
    Default,
    /// Pending work is ended first. For a parent with a dead rank or stuck work.
    Abort,
}

impl Communicator {
    /// Splits the ranks: the ranks that pass the same color form a new communicator, ordered by
    /// `key`, then by their rank in this one. A rank that passes `None` takes no part and gets
    /// `None`.
    ///
    /// The child has the configuration of this communicator; [`split_all`](Self::split_all) accepts
    /// another configuration.
    ///
    /// # Collective
    /// All ranks, each on its own thread or process; several ranks of one thread by
    /// [`split_all`](Self::split_all).
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for a color above 2147483647; [`NcclError::Dead`];
    /// [`NcclError::Timeout`] at [`deadline`](Self::deadline); errors of NCCL.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>, NcclError> {
        Self::split_all(&[(self, color, key)], None).map(|mut made| made.pop().flatten())
    }

    /// Splits like [`split`](Self::split), for several ranks of this thread, each with its color
    /// and key, and with a configuration. Unset options have NCCL's defaults, not the parent's
    /// values. The results are in the order of `members`.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// As for [`split`](Self::split); [`NcclError::Misuse`] also if the configuration blocks and
    /// the communicators do not, or vice versa.
    pub fn split_all(members: &[(&Self, Option<u32>, i32)], config: Option<&Config>) -> Result<Vec<Option<Self>>, NcclError> {
        const CALL: &str = "split";
        let mut colors = Vec::new();
        for (_, color, _) in members {
            colors.push(match color {
                None => sys::NCCL_SPLIT_NOCOLOR,
                Some(color) => c_int::try_from(*color).map_err(|_| {
                    let (found, expected) = (i64::from(*color), "at most 2147483647");
                    NcclError::misuse(CALL, MisuseKind::Value { what: "the color", found, expected })
                })?,
            });
        }
        let parents: Vec<_> = members.iter().map(|(parent, ..)| *parent).collect();
        let parts = |index: usize, hash: u64| mix(hash, &colors[index].to_le_bytes());
        let made = children(CALL, Call::Split, Allowed::SPLIT, &parents, config, parts, |api, index, comm, out, config| {
            // SAFETY: the parent is live inside its gate; `out` lives as long as NCCL may write it;
            // the configuration is null or read during the call.
            unsafe { api.ncclCommSplit(comm, colors[index], members[index].2, out, config) }
        })?;
        match made.iter().zip(members).any(|(child, (_, color, _))| child.is_none() && color.is_some()) {
            true => Err(nothing_made(CALL)),
            false => Ok(made),
        }
    }

    /// Creates a communicator without the excluded ranks, which do not make this call. The other
    /// ranks keep their order. Requires NCCL 2.27.3.
    ///
    /// With [`ShrinkMode::Abort`], the excluded ranks may be dead, and pending work of this
    /// communicator is ended. From then on waits for it and new calls return [`NcclError::Dead`],
    /// even if this call fails. The communicator can be shrunk again, aborted or dropped.
    ///
    /// This helps if work is stuck without an error, as over NVLink. If NCCL itself detected the
    /// loss (by an asynchronous error, as over a network), NCCL refuses the call: create a new
    /// communicator of the remaining ranks, with a new [`UniqueId`].
    ///
    /// # Collective
    /// All ranks that are not excluded, with the same list; several ranks of one thread by
    /// [`shrink_all`](Self::shrink_all).
    ///
    /// # Errors
    /// [`NcclError::Misuse`] if this rank is excluded, or if an excluded rank does not exist or is
    /// repeated; [`NcclError::Unsupported`]; [`NcclError::Timeout`] at
    /// [`deadline`](Self::deadline); [`NcclError::Dead`]; errors of NCCL.
    pub fn shrink(&self, excluded: &[Rank], mode: ShrinkMode) -> Result<Self, NcclError> {
        Self::shrink_all(&[self], excluded, mode, None).map(|mut made| made.pop().expect("one communicator was requested"))
    }

    /// Shrinks like [`shrink`](Self::shrink), for several ranks of this thread, and with a
    /// configuration like [`split_all`](Self::split_all).
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
                return Err(value("each rank only once"));
            }
            for member in members {
                if rank.index() >= member.n_ranks() {
                    let ranks = member.n_ranks();
                    return Err(NcclError::misuse(CALL, MisuseKind::Rank { what: "an excluded rank", found: rank, ranks }));
                }
                if rank == member.rank() {
                    return Err(value("a rank other than the calling ones"));
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
            // Checked before anything changes.
            first.nccl().needs_function("ncclCommShrink", Version::new(2, 27, 3))?;
        }
        let allowed = if mode == ShrinkMode::Abort { Allowed::SHRINK } else { Allowed::SPLIT };
        let bytes: Vec<u8> = list.iter().flat_map(|rank| rank.to_le_bytes()).collect();
        let identity = |_, hash| mix(hash, &bytes);
        let made = children(CALL, Call::Shrink, allowed, members, config, identity, |api, _, comm, out, config| {
            // SAFETY: as for splitting; NCCL only reads the list, during the call.
            unsafe { api.ncclCommShrink(comm, list.as_mut_ptr(), count, out, config, flags) }
        })?;
        made.into_iter().map(|child| child.ok_or_else(|| nothing_made(CALL))).collect()
    }

    /// Creates an id by which new ranks join ([`grow`](Self::grow),
    /// [`CommunicatorBuilder::join`](crate::CommunicatorBuilder::join)). One of the present ranks
    /// creates it. Requires NCCL 2.29.2.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`]; [`NcclError::Dead`]; errors of NCCL.
    pub fn grow_id(&self) -> Result<UniqueId, NcclError> {
        let empty = sys::ncclUniqueId { internal: [0; sys::NCCL_UNIQUE_ID_BYTES] };
        let id = self.inner.call_into("grow_id", Allowed::LIVE, empty, |api, comm, id| {
            // SAFETY: the handle is live inside the gate; the place has 128 bytes.
            unsafe { api.ncclCommGetUniqueId(comm, id) }
        })?;
        Ok(UniqueId::from_raw(id))
    }

    /// Creates a communicator of `n_ranks` ranks: the ranks of this one, with unchanged numbers,
    /// and new ranks, which join by
    /// [`CommunicatorBuilder::join`](crate::CommunicatorBuilder::join). Requires NCCL 2.29.2.
    ///
    /// The rank that created the id passes it; the others pass `None`. This communicator should be
    /// dropped afterwards.
    ///
    /// # Collective
    /// All ranks of this communicator, and all new ranks.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] unless `n_ranks` exceeds the present number;
    /// [`NcclError::Unsupported`]; [`NcclError::Timeout`] at [`deadline`](Self::deadline);
    /// [`NcclError::Dead`]; errors of NCCL.
    pub fn grow(&self, n_ranks: usize, id: Option<&UniqueId>) -> Result<Self, NcclError> {
        const CALL: &str = "grow";
        let n = grown(CALL, n_ranks, self.n_ranks())?;
        let id = id.map(|id| id.to_raw());
        let identity = |_, hash| mix(hash, &n.to_le_bytes());
        let mut made = children(CALL, Call::Grow, Allowed::LIVE, &[self], None, identity, |api, _, comm, out, config| {
            let id = id.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: as for splitting; the id is null or read during the call; -1 is "the rank
            // that it has".
            unsafe { api.ncclCommGrow(comm, n, id, -1, out, config) }
        })?;
        made.pop().flatten().ok_or_else(|| nothing_made(CALL))
    }
}

pub(crate) fn grown(call: &'static str, n_ranks: usize, now: usize) -> Result<c_int, NcclError> {
    let wrong = || {
        let (found, expected) =
            (i64::try_from(n_ranks).unwrap_or(i64::MAX), "more than the current number of ranks, and at most 2147483647");
        NcclError::misuse(call, MisuseKind::Value { what: "the number of ranks", found, expected })
    };
    if n_ranks <= now { Err(wrong()) } else { c_int::try_from(n_ranks).map_err(|_| wrong()) }
}

#[cold]
pub(crate) fn nothing_made(call: &'static str) -> NcclError {
    NcclError::misuse(call, MisuseKind::Context { why: "NCCL created no communicator for this rank, but returned success" })
}

/// Creates a child of each parent.
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
            let why = "one communicator is passed twice, expected each once";
            return Err(NcclError::misuse(call, MisuseKind::Combination { what: "the communicators", why }));
        }
    }
    let mut raw: Option<RawConfig> = None;
    if let Some(config) = config {
        let mode = if blocking { Switch::On } else { Switch::Off };
        if config.blocking_set().is_some_and(|asked| asked != mode) {
            let why = "expected the same mode as the parent, both blocking or both non-blocking";
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
        // NCCL ends the running work without an error: a caller that waits for it must not take it
        // for complete.
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
        // NCCL keeps the error, or work that a peer never joins, with the parent. The next call on
        // the parent would only fail because of it.
        for (parent, inside) in inside.iter() {
            // A thread that aborts from here on waits for this one to leave; one that aborted
            // before may have freed the communicator.
            inside.leave_blocking();
            // NCCL has counted a child for the ranks whose calls it recorded, but not for the
            // others.
            let is_partial = parents.len() > 1 && !matches!(made, Err(NcclError::Unsupported(_)));
            if !parent.gate.is_closed() && (is_partial || !matches!(parent.ask(), Ok(ncclResult_t::ncclSuccess))) {
                let _ = parent.gate.change(State::Live, State::Failed);
            }
        }
    }
    // If an abort ended the call, its reason is the error.
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
    // Ranks that joined from elsewhere are not in the rendezvous.
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
