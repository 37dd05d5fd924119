//! The builder of communicators: it has the settings common to all ranks, and a method for each
//! kind of bootstrap.
//!
//! `init.rs` calls NCCL; `split.rs` creates children of a communicator.
//!
//! Invariant: a builder holds no resource of NCCL, so it can be kept, cloned and reused.

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

/// Settings with which communicators are created: the library, the options and the deadline.
/// Created by [`Communicator::builder`].
///
/// Defaults: the library is [`Nccl::load`], no option is set, and the deadline is one minute.
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
    /// Sets the library. It must be the same for all ranks of a process.
    pub fn nccl(mut self, nccl: Nccl) -> Self {
        self.nccl = Some(nccl);
        self
    }

    /// Sets the options of the communicators. NCCL requires most of them to be the same on every
    /// rank.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Sets the time limit for creating the communicators, and for the host's part of each later
    /// call on them ([`Communicator::set_deadline`] changes the latter).
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

    /// Creates communicators like [`init_all`](Self::init_all), given the ordinals of the devices:
    /// rank `i` on the `i`-th device.
    ///
    /// # Errors
    /// As for [`init_all`](Self::init_all); [`NcclError::Cuda`] for a device that does not exist.
    pub fn on_devices(&self, ordinals: impl IntoIterator<Item = usize>) -> Result<Vec<Communicator>, NcclError> {
        let contexts = ordinals.into_iter().map(peerweave_driver::context).collect::<Result<Vec<_>, _>>()?;
        self.init_all(&contexts)
    }

    /// Creates the communicators of one process: rank `i` on the device of `contexts[i]`.
    ///
    /// A thread with several ranks issues their calls in a group ([`Nccl::group`]). Outside of a
    /// group, a call may wait for ranks whose calls come later.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for an empty list of devices or a repeated device;
    /// [`NcclError::Unsupported`] for options that the library does not support;
    /// [`NcclError::Timeout`] at the deadline; [`NcclError::Load`] if no library is found; NCCL's
    /// own.
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
    /// All ranks, each with the same id and number of ranks, on its own process or thread. Several
    /// ranks of one thread join by [`init_ranks`](Self::init_ranks).
    ///
    /// # Errors
    /// [`NcclError::Timeout`] if other ranks do not arrive by the deadline; [`NcclError::Misuse`]
    /// for a rank that is not less than `n_ranks`; otherwise as for [`init_all`](Self::init_all).
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

    /// Joins like [`init_rank`](Self::init_rank), for thousands of ranks: with several ids, created
    /// by different processes, so that not all ranks connect to one process. Requires NCCL 2.23.4.
    ///
    /// # Collective
    /// All ranks, each with the same ids in the same order.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for no id, or for more ids than ranks; [`NcclError::Unsupported`] with
    /// an older NCCL; otherwise as for [`init_rank`](Self::init_rank).
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
            let (found, expected) = (ids.len() as i64, "at least 1 and at most the number of ranks");
            return Err(NcclError::misuse(CALL, MisuseKind::Value { what: "the number of ids", found, expected }));
        }
        self.init(CALL, &members, n_ranks, ids, began).map(only)
    }

    /// Joins a communicator of `n_ranks` ranks with several ranks of this thread, each with its
    /// device. The results are in the order of `members`.
    ///
    /// # Collective
    /// All ranks, as for [`init_rank`](Self::init_rank).
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

    /// Creates the communicator of a job in one call: the ranks are the PEs of the rendezvous,
    /// which also distributes the id. With a rendezvous, the error of a timed-out
    /// [`Communicator::wait`] has the positions of the other ranks, and names the lost ones.
    ///
    /// The rendezvous still belongs to the caller, who may leave it while the communicator lives.
    /// The exchange of the id has the rendezvous' own deadline.
    ///
    /// # Collective
    /// All PEs of the rendezvous.
    ///
    /// # Errors
    /// [`NcclError::Bootstrap`] names the PEs that did not arrive for the exchange of the id;
    /// otherwise as for [`init_rank`](Self::init_rank).
    pub fn from_rendezvous(&self, context: &Arc<CudaContext>, rendezvous: &Arc<Rendezvous>) -> Result<Communicator, NcclError> {
        const CALL: &str = "from_rendezvous";
        let (began, nccl) = (Instant::now(), self.library()?);
        nccl.not_forked(CALL)?;
        let (rank, n_ranks) = (Rank::new(rendezvous.pe().get()), rendezvous.n_pes() as usize);
        // Only rank 0 creates an id. If that fails, rank 0 still takes part in the exchange,
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

    /// Joins a communicator that grows to `n_ranks` ranks ([`Communicator::grow`]), as rank `rank`.
    /// Requires NCCL 2.29.2.
    ///
    /// # Collective
    /// All ranks of the communicator that grows, and all new ranks.
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
            // SAFETY: a new rank has no communicator yet; `out` lives as long as NCCL may write it;
            // id and configuration are read during the call.
            unsafe { api.ncclCommGrow(std::ptr::null_mut(), n, &raw const raw_id, rank, out, raw.as_mut_ptr()) }
        })?;
        // The present ranks know their parent's identity, but a new rank knows only the id. So the
        // identity cannot be a key in a rendezvous.
        let (identity, name) = (mix(0, id.as_bytes()), config.name_set().map(str::to_owned));
        let parts =
            |handle, context| Parts { nccl, handle, context, name: name.clone(), identity, blocking, deadline, world: None };
        adopt_all(handles, &contexts, parts)?.pop().ok_or_else(|| nothing_made(CALL))
    }
}

/// Time within which the rendezvous detects the end of a process, after NCCL has detected the
/// closed connection.
const NOTICED: Duration = Duration::from_millis(500);

/// Returns the rendezvous' error about a lost process, if there is one, instead of `error`.
fn who_is_gone(call: &'static str, rendezvous: &Rendezvous, error: NcclError) -> NcclError {
    let mut lost = None;
    let _ = wait_until(Instant::now() + NOTICED, || {
        lost = rendezvous.check_within(NOTICED).err().filter(|error| matches!(error, BootstrapError::PeLost { .. }));
        Ok::<_, NcclError>(lost.is_some())
    });
    lost.map_or(error, NcclError::bootstrap(call))
}

fn only(mut made: Vec<Communicator>) -> Communicator {
    made.pop().expect("one id was requested")
}
