//! How users make communicators: what is the same for all ranks is set on a builder, and each way
//! to meet is one method of it.
//!
//! What NCCL is asked is `init.rs`; children of a communicator are `split.rs`.
//!
//! Invariant: a builder holds nothing of NCCL's: it can be kept, cloned and used again.

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

/// How communicators are made: the library, the options and the longest wait. Made by
/// [`Communicator::builder`].
///
/// What is not set: the library is [`Nccl::load`], no option is set, and the deadline is a minute.
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
#[must_use = "a builder makes nothing by itself"]
pub struct CommunicatorBuilder {
    nccl: Option<Nccl>,
    config: Config,
    deadline: Duration,
}

impl Communicator {
    /// Returns a builder with nothing set.
    pub fn builder() -> CommunicatorBuilder {
        CommunicatorBuilder { nccl: None, config: Config::new(), deadline: peerweave_driver::DEADLINE }
    }
}

impl CommunicatorBuilder {
    /// Sets the library. The same for all ranks of a process.
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

    /// Sets how long creating the communicators may take, and then how long a call on them may take
    /// on the host ([`Communicator::set_deadline`] changes that).
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

    /// Creates communicators as [`init_all`](Self::init_all) does, by the ordinals of the devices:
    /// rank `i` on the `i`-th of them.
    ///
    /// # Errors
    /// As [`init_all`](Self::init_all); [`NcclError::Cuda`] for a device that does not exist.
    pub fn on_devices(&self, ordinals: impl IntoIterator<Item = usize>) -> Result<Vec<Communicator>, NcclError> {
        let contexts = ordinals.into_iter().map(peerweave_driver::context).collect::<Result<Vec<_>, _>>()?;
        self.init_all(&contexts)
    }

    /// Makes the communicators of one process: rank `i` on the device of `contexts[i]`.
    ///
    /// One thread that drives several ranks issues their calls in a group ([`Nccl::group`]): alone,
    /// a call may wait for the ranks that come later.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for no device or one that comes twice; [`NcclError::Unsupported`] for
    /// options that the library does not know; [`NcclError::Timeout`] by the deadline;
    /// [`NcclError::Load`] where there is no library; NCCL's own.
    pub fn init_all(&self, contexts: &[Arc<CudaContext>]) -> Result<Vec<Communicator>, NcclError> {
        const CALL: &str = "init_all";
        let began = Instant::now();
        let members: Vec<_> = (0..).map(Rank::new).zip(contexts).map(|(rank, context)| (Arc::clone(context), rank)).collect();
        check_members(CALL, &members, contexts.len())?;
        let id = self.library()?.unique_id()?;
        self.init(CALL, &members, contexts.len(), &[id], began)
    }

    /// Joins a communicator of `n_ranks` as rank `rank`, on the device of `context`. The arguments
    /// are in NCCL's order.
    ///
    /// # Collective
    /// All ranks, each with the same id and number of ranks, from its own process or thread. Ranks
    /// of one thread join by [`init_ranks`](Self::init_ranks).
    ///
    /// # Errors
    /// [`NcclError::Timeout`] if others do not come by the deadline; [`NcclError::Misuse`] for a
    /// rank that is not below `n_ranks`; else as [`init_all`](Self::init_all).
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

    /// Joins as [`init_rank`](Self::init_rank) does, for thousands of ranks: several ids, created
    /// by different processes, so that not all ranks meet at one. NCCL 2.23.4.
    ///
    /// # Collective
    /// All ranks, each with the same ids in the same order.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for no id, or more than there are ranks; [`NcclError::Unsupported`]
    /// before; else as [`init_rank`](Self::init_rank).
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

    /// Joins a communicator of `n_ranks` with several ranks of this thread, each with its device.
    /// The result is in the order of `members`.
    ///
    /// # Collective
    /// All ranks, as [`init_rank`](Self::init_rank).
    ///
    /// # Errors
    /// As [`init_rank`](Self::init_rank).
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

    /// Makes the communicator of a job in one call: the ranks are the PEs of the rendezvous, and
    /// the id travels over it. With it, an expired [`Communicator::wait`] says where the other
    /// ranks are and which are gone.
    ///
    /// The rendezvous stays the caller's: the communicator does not keep it from leaving. Waiting
    /// for the others to exchange the id has the rendezvous' own deadline, if that is longer.
    ///
    /// # Collective
    /// All PEs of the rendezvous.
    ///
    /// # Errors
    /// [`NcclError::Bootstrap`] names the PEs that did not come to exchange the id; else as
    /// [`init_rank`](Self::init_rank).
    pub fn from_rendezvous(&self, context: &Arc<CudaContext>, rendezvous: &Arc<Rendezvous>) -> Result<Communicator, NcclError> {
        const CALL: &str = "from_rendezvous";
        let (began, nccl) = (Instant::now(), self.library()?);
        nccl.not_forked(CALL)?;
        let (rank, n_ranks) = (Rank::new(rendezvous.pe().get()), rendezvous.n_pes() as usize);
        // Only rank 0's counts; a failure to make it must reach the others too, or they wait for
        // it.
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

    /// Joins a communicator that grows to `n_ranks` ([`Communicator::grow`]), as rank `rank`. NCCL
    /// 2.29.2.
    ///
    /// # Collective
    /// All ranks of the communicator that grows, and all new ones.
    ///
    /// # Errors
    /// As [`init_rank`](Self::init_rank); [`NcclError::Unsupported`] before.
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
        // The present ranks know their parent's identity; a new one only the id. So it is no name
        // in a rendezvous.
        let (identity, name) = (mix(0, id.as_bytes()), config.name_set().map(str::to_owned));
        let parts =
            |handle, context| Parts { nccl, handle, context, name: name.clone(), identity, blocking, deadline, world: None };
        adopt_all(handles, &contexts, parts)?.pop().ok_or_else(|| nothing_made(CALL))
    }
}

/// How long after a connection was cut, which NCCL notices at once, the rendezvous may take to
/// notice that its process is gone.
const NOTICED: Duration = Duration::from_millis(500);

/// An error or an expired deadline that came because a process died is that process's loss.
fn who_is_gone(call: &'static str, rendezvous: &Rendezvous, error: NcclError) -> NcclError {
    let mut lost = None;
    let _ = wait_until(Instant::now() + NOTICED, || {
        lost = rendezvous.check_within(NOTICED).err().filter(|error| matches!(error, BootstrapError::PeLost { .. }));
        Ok::<_, NcclError>(lost.is_some())
    });
    lost.map_or(error, NcclError::bootstrap(call))
}

fn only(mut made: Vec<Communicator>) -> Communicator {
    made.pop().expect("one was asked for")
}
