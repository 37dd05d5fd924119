//! `CommunicatorBuilder`: the settings with which communicators are created, and one method for
//! each kind of bootstrap.
//!
//! `init.rs` calls NCCL. `split.rs` creates children of a communicator.
//!
//! Invariant: a builder owns no resource of NCCL, so a program can store, clone and reuse a
//! builder.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::{BootstrapError, Rendezvous};
use peerweave_driver::{CudaContext, wait_until};

use crate::comm::communicator::Communicator;
use crate::library::error::{MisuseKind, NcclError};
use crate::member::membership::{Parts, World};
use crate::setup::init::{JoinRequest, adopt_all, check_members, init, make_first, mix, with_mode};
use crate::setup::split::{grown, nothing_made};
use crate::{Config, Nccl, Rank, UniqueId, Version};

/// Settings with which communicators are created: the NCCL library, the options and the deadline.
/// Created by [`Communicator::builder`].
///
/// By default, [`Nccl::load`] selects the library, no option is set, and the deadline is one
/// minute.
///
/// ```no_run
/// use std::time::Duration;
/// use peerweave_nccl::prelude::*;
///
/// let ranks = Communicator::builder().config(Config::new().name("all")).deadline(Duration::from_secs(20)).on_devices([0, 1])?;
/// assert_eq!(ranks[1].rank(), Rank::new(1));
/// # Ok::<(), NcclError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder has no effect until one of its methods creates communicators"]
pub struct CommunicatorBuilder {
    nccl: Option<Nccl>,
    config: Config,
    deadline: Duration,
}

impl Communicator {
    /// Returns a builder with default settings.
    pub fn builder() -> CommunicatorBuilder {
        CommunicatorBuilder { nccl: None, config: Config::new(), deadline: peerweave_driver::DEADLINE }
    }
}

impl CommunicatorBuilder {
    /// Sets the NCCL library. All ranks that one communicator has in this process must use the same
    /// library.
    pub fn nccl(mut self, nccl: Nccl) -> Self {
        self.nccl = Some(nccl);
        self
    }

    /// Sets the options of the communicators. NCCL requires most options to be the same on every
    /// rank.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Sets the time limit for creating the communicators. The value is also the initial
    /// [`Communicator::deadline`] of the created communicators.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    fn library(&self) -> Result<Nccl, NcclError> {
        self.nccl.map_or_else(Nccl::load, Ok)
    }

    fn init(
        &self,
        call: &'static str,
        members: &[(Arc<CudaContext>, Rank)],
        n_ranks: usize,
        ids: &[UniqueId],
        began: Instant,
    ) -> Result<Vec<Communicator>, NcclError> {
        let (config, deadline) = (&self.config, self.deadline);
        init(call, JoinRequest { nccl: self.library()?, members, n_ranks, ids, config, began, deadline, world: None })
    }

    /// Creates communicators like [`init_all`](Self::init_all), but selects the devices by their
    /// ordinals. Rank `i` is on the device whose ordinal is at position `i` of `ordinals`, counted
    /// from 0.
    ///
    /// # Errors
    /// As for [`init_all`](Self::init_all); [`NcclError::Cuda`] for a device that does not exist.
    pub fn on_devices(&self, ordinals: impl IntoIterator<Item = usize>) -> Result<Vec<Communicator>, NcclError> {
        let contexts = ordinals.into_iter().map(peerweave_driver::context).collect::<Result<Vec<_>, _>>()?;
        self.init_all(&contexts)
    }

    /// Creates a communicator whose ranks are all in this process. Rank `i` is on the device of
    /// `contexts[i]`.
    ///
    /// A thread with several ranks issues the calls of these ranks in a group ([`Nccl::group`]).
    /// Outside of a group, the call of one rank may wait for calls of other ranks that the thread
    /// has not issued yet.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for an empty list of devices or a repeated device;
    /// [`NcclError::Unsupported`] for options that the library does not support;
    /// [`NcclError::Timeout`] at the deadline; [`NcclError::Load`] if no library is found; errors
    /// that NCCL returns.
    pub fn init_all(&self, contexts: &[Arc<CudaContext>]) -> Result<Vec<Communicator>, NcclError> {
        const CALL: &str = "init_all";
        let began = Instant::now();
        let members: Vec<_> = (0..).map(Rank::new).zip(contexts).map(|(rank, context)| (Arc::clone(context), rank)).collect();
        check_members(CALL, &members, contexts.len())?;
        let id = self.library()?.unique_id()?;
        self.init(CALL, &members, contexts.len(), &[id], began)
    }

    /// Joins a communicator of `n_ranks` ranks as rank `rank`, on the device of `context`. The
    /// arguments are in NCCL's order.
    ///
    /// # Collective
    /// All ranks must make this call, each in a separate process or thread, with the same id and
    /// number of ranks. A thread with several ranks calls [`init_ranks`](Self::init_ranks) instead.
    ///
    /// # Errors
    /// [`NcclError::Timeout`] if other ranks do not arrive by the deadline. [`NcclError::Misuse`]
    /// for a rank that is not less than `n_ranks`. All other errors that
    /// [`init_all`](Self::init_all) returns.
    pub fn init_rank(
        &self,
        context: &Arc<CudaContext>,
        n_ranks: usize,
        id: &UniqueId,
        rank: Rank,
    ) -> Result<Communicator, NcclError> {
        const CALL: &str = "init_rank";
        let (began, members) = (Instant::now(), [(Arc::clone(context), rank)]);
        check_members(CALL, &members, n_ranks)?;
        self.init(CALL, &members, n_ranks, std::slice::from_ref(id), began).map(only)
    }

    /// Joins a communicator like [`init_rank`](Self::init_rank), but with several ids, for
    /// thousands of ranks. Different processes create the ids, so that the ranks do not all connect
    /// to the same process. Requires NCCL 2.23.4.
    ///
    /// # Collective
    /// All ranks must make this call, with the same ids in the same order.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for an empty list of ids, or for more ids than ranks.
    /// [`NcclError::Unsupported`] with an older NCCL. All other errors that
    /// [`init_rank`](Self::init_rank) returns.
    pub fn init_rank_scalable(
        &self,
        context: &Arc<CudaContext>,
        n_ranks: usize,
        ids: &[UniqueId],
        rank: Rank,
    ) -> Result<Communicator, NcclError> {
        const CALL: &str = "init_rank_scalable";
        let (began, members) = (Instant::now(), [(Arc::clone(context), rank)]);
        check_members(CALL, &members, n_ranks)?;
        self.library()?.needs("ncclCommInitRankScalable", Version::new(2, 23, 4))?;
        if ids.is_empty() || ids.len() > n_ranks {
            let (found, expected) = (ids.len() as i64, "a number from 1 to the number of ranks");
            return Err(NcclError::misuse(CALL, MisuseKind::Value { what: "the number of ids", found, expected }));
        }
        self.init(CALL, &members, n_ranks, ids, began).map(only)
    }

    /// Joins a communicator of `n_ranks` ranks. This thread gets several of the ranks. `members`
    /// contains the context and the rank number of each rank of this thread. The results are in the
    /// order of `members`.
    ///
    /// # Collective
    /// All ranks must join, as for [`init_rank`](Self::init_rank).
    ///
    /// # Errors
    /// As for [`init_rank`](Self::init_rank).
    pub fn init_ranks(
        &self,
        members: &[(Arc<CudaContext>, Rank)],
        n_ranks: usize,
        id: &UniqueId,
    ) -> Result<Vec<Communicator>, NcclError> {
        const CALL: &str = "init_ranks";
        let began = Instant::now();
        check_members(CALL, members, n_ranks)?;
        self.init(CALL, members, n_ranks, std::slice::from_ref(id), began)
    }

    /// Joins a communicator whose ranks are the PEs of the rendezvous. The rendezvous distributes
    /// the id. If a [`Communicator::wait`] on this communicator times out, the error contains the
    /// last calls of the other ranks, or names lost ranks.
    ///
    /// The communicator does not keep the rendezvous alive. The caller may leave the rendezvous
    /// before the communicator ends. The deadline of the rendezvous applies to the exchange of the
    /// id.
    ///
    /// # Collective
    /// All PEs of the rendezvous must make this call.
    ///
    /// # Errors
    /// [`NcclError::Bootstrap`] if the exchange of the id fails. The error names the PEs that did
    /// not arrive. All other errors that [`init_rank`](Self::init_rank) returns.
    pub fn from_rendezvous(&self, context: &Arc<CudaContext>, rendezvous: &Arc<Rendezvous>) -> Result<Communicator, NcclError> {
        const CALL: &str = "from_rendezvous";
        let (began, nccl) = (Instant::now(), self.library()?);
        nccl.not_forked(CALL)?;
        let (rank, n_ranks) = (Rank::new(rendezvous.pe().get()), rendezvous.n_pes() as usize);
        // Only rank 0 creates an id. If rank 0 fails to create an id, it still joins the exchange,
        // because the other ranks wait for the id.
        let made = if rank == Rank::new(0) { nccl.unique_id().map(Some) } else { Ok(None) };
        let mine = made.as_ref().ok().and_then(|id| id.as_ref()).map_or(Vec::new(), |id| id.as_bytes().to_vec());
        let blobs = rendezvous.exchange("peerweave-nccl/unique-id", &mine).map_err(NcclError::bootstrap(CALL))?;
        made?;
        let id: UniqueId = match blobs.first().map(Vec::as_slice) {
            Some([]) | None => {
                let why = "rank 0 could not create an id; see the error of rank 0";
                return Err(NcclError::misuse(CALL, MisuseKind::Context { why }));
            }
            Some(blob) => blob.try_into()?,
        };
        let world = Some(World { rendezvous: Arc::downgrade(rendezvous), ranks_are_pes: true });
        let members = [(Arc::clone(context), rank)];
        check_members(CALL, &members, n_ranks)?;
        let (config, deadline) = (&self.config, self.deadline);
        let joining = JoinRequest { nccl, members: &members, n_ranks, ids: &[id], config, began, deadline, world };
        match init(CALL, joining) {
            Err(error @ NcclError::Timeout(_)) => Err(who_is_gone(CALL, rendezvous, error)),
            Err(NcclError::Nccl(failure)) if failure.code.may_be_a_loss() => {
                Err(who_is_gone(CALL, rendezvous, NcclError::Nccl(failure)))
            }
            made => made.map(only),
        }
    }

    /// Joins a communicator as the new rank `rank`, while the existing ranks call
    /// [`Communicator::grow`]. The communicator grows to `n_ranks` ranks. Requires NCCL 2.29.2.
    ///
    /// # Collective
    /// All ranks of the communicator that grows must call [`Communicator::grow`], and all new ranks
    /// must make this call.
    ///
    /// # Errors
    /// As for [`init_rank`](Self::init_rank); [`NcclError::Unsupported`] with an older NCCL.
    pub fn join(&self, context: &Arc<CudaContext>, n_ranks: usize, id: &UniqueId, rank: Rank) -> Result<Communicator, NcclError> {
        const CALL: &str = "join";
        if rank.index() >= n_ranks {
            return Err(NcclError::misuse(CALL, MisuseKind::Rank { what: "the rank", found: rank, ranks: n_ranks }));
        }
        let n = grown(CALL, n_ranks, 1)?;
        let (nccl, deadline) = (self.library()?, self.deadline);
        let (config, blocking) = with_mode(self.config.clone());
        let mut raw = config.to_raw(CALL, nccl)?;
        let raw_id = id.to_raw();
        let rank = i32::try_from(rank.get()).unwrap_or(i32::MAX);
        let contexts = [Arc::clone(context)];
        let handles = make_first(CALL, nccl, &contexts, blocking, deadline, move |api, _, out| {
            // SAFETY: the communicator is null, because a new rank has no communicator yet. `out`
            // lives as long as NCCL may write to it. NCCL reads the id and the configuration only
            // during the call.
            unsafe { api.ncclCommGrow(std::ptr::null_mut(), n, &raw const raw_id, rank, out, raw.as_mut_ptr()) }
        })?;
        // The existing ranks compute the identity from the identity of their parent, but a new rank
        // knows only the id. So the identity of a grown communicator differs between ranks, and
        // cannot be a key in a rendezvous.
        let (identity, name) = (mix(0, id.as_bytes()), config.name_set().map(str::to_owned));
        let parts =
            |handle, context| Parts { nccl, handle, context, name: name.clone(), identity, blocking, deadline, world: None };
        adopt_all(handles, &contexts, parts)?.pop().ok_or_else(|| nothing_made(CALL))
    }
}

/// After NCCL has failed, a call waits for at most this time for the rendezvous to report a lost
/// PE. The wait is needed because NCCL detects the closed connection of a dead process before the
/// rendezvous detects the lost PE.
const NOTICED: Duration = Duration::from_millis(500);

/// Returns an error that names the lost PEs if the rendezvous reports lost PEs within about
/// [`NOTICED`]. Otherwise returns `error`.
fn who_is_gone(call: &'static str, rendezvous: &Rendezvous, error: NcclError) -> NcclError {
    let mut lost = None;
    let _ = wait_until(Instant::now() + NOTICED, || {
        lost = rendezvous.check_within(NOTICED).err().filter(|error| matches!(error, BootstrapError::PeLost { .. }));
        Ok::<_, NcclError>(lost.is_some())
    });
    lost.map_or(error, NcclError::bootstrap(call))
}

fn only(mut made: Vec<Communicator>) -> Communicator {
    made.pop().expect("the list has one communicator for each rank")
}
