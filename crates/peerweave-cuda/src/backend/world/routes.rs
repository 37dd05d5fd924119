//! Chooses the method that carries out each collective, and explains the choice. The route table
//! determines the method, unless the caller has chosen one. The table and the caller's choices are
//! the same on all PEs.

use std::sync::Arc;

use peerweave_core::backend::{CollectiveKind, TeamId};
use peerweave_core::{Error, Team};

use super::{Cuda, CudaOptions};
use crate::backend::error::{interned, unsupported};
use crate::backend::{hosts, ops};
use crate::error::{CudaError, misuse};
use crate::gpu::Gpu;
use crate::route::{Explanation, Limits, Method, Query, RouteTable, Routes};

/// Returns the route table and the forced methods that `options` select. All PEs call this
/// function, which fails if their options or tables differ. If `options` names no file and the GPUs
/// have different architectures, all PEs use the built-in table whose architecture is `any`.
///
/// # Errors
/// [`CudaError::Routes`] if this PE cannot use the file with the route table.
/// [`CudaError::PeFailed`] if another PE cannot use its file. [`CudaError::Misuse`] if the PEs have
/// different options or tables. Errors of the rendezvous.
pub(super) fn agreed(gpu: &Gpu, options: &CudaOptions) -> Result<Arc<Routes>, CudaError> {
    const CALL: &str = "Cuda::new";
    let arch = gpu.arch().to_string();
    let table = match &options.route_table {
        Some(path) => RouteTable::read(path, &arch),
        None => Ok(RouteTable::builtin(&arch)),
    };
    // A PE without a table still takes part in the exchange, so that no other PE waits for it.
    let mine = match &table {
        Ok(table) => {
            let (is_file, nccl) = (options.route_table.is_some(), if options.nccl { "auto" } else { "off" });
            format!("ok {is_file} nccl={nccl} {}\n{}", options.forced, table.digest())
        }
        Err(error) => format!("error {error}"),
    };
    let label = format!("peerweave-cuda/routes/{}", gpu.0.next_collectives());
    let all = gpu.rendezvous().exchange(&label, mine.as_bytes())?;
    let table = table?;
    let head = |text: &str| text.lines().next().unwrap_or("").to_owned();
    let mut is_one = true;
    for (pe, theirs) in (0..).map(peerweave_types::Pe::new).zip(&all) {
        let theirs = String::from_utf8_lossy(theirs);
        if let Some(message) = theirs.strip_prefix("error ") {
            return Err(CudaError::PeFailed { call: CALL, pe, message: message.to_owned() });
        }
        is_one &= theirs == mine;
        let is_file = |text: &str| text.starts_with("ok true");
        if head(&theirs) != head(&mine) || (theirs != mine && is_file(&mine)) {
            let show = |text: &str| {
                let choices =
                    head(text).split_once(' ').and_then(|(_, rest)| rest.split_once(' ').map(|(_, rest)| rest.to_owned()));
                format!(
                    "{:?} with {}",
                    choices.unwrap_or_default(),
                    if is_file(text) { "a table from a file" } else { "the built-in table" }
                )
            };
            let expected = format!("the choice of {pe}: {}; all PEs need the same methods and route table", show(&theirs));
            return Err(misuse(CALL, "the choice of methods on this PE", show(&mine), &expected));
        }
    }
    let table = if is_one { table } else { RouteTable::builtin("any") };
    Ok(Arc::new(Routes { table, forced: options.forced.clone() }))
}

impl Cuda {
    /// Returns the method by which this backend would carry out a collective of a team, and the
    /// reason. The method is an algorithm of Peerweave's kernels, or a library. All ranks use the
    /// same method.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if this backend does not support the call, or if the operation has
    /// only one method; [`Error::Misuse`] if the team has been destroyed, or if the world has been
    /// finalized.
    ///
    /// ```no_run
    /// use peerweave_core::backend::CollectiveKind;
    /// use peerweave_cuda::{Cuda, Query};
    /// # use peerweave_types::DType;
    ///
    /// # fn f(world: &peerweave_core::World) -> peerweave_core::Result<()> {
    /// let cuda = world.backend::<Cuda>().expect("the world runs on GPUs");
    /// println!("{}", cuda.explain(world.team(), &Query::new(CollectiveKind::AllReduce, DType::BF16, 1 << 20))?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn explain(&self, team: &Team, query: &Query) -> Result<Explanation, Error> {
        const CALL: &str = "explain";
        let (state, kind) = (&*self.state, query.kind);
        let team = state.team(CALL, team.name().id)?;
        let refuse = |why| Err(unsupported(kind.name(), why));
        if kind.is_scan() || kind == CollectiveKind::AllToAllStrided {
            return refuse("this operation has only one method, so there is no choice to explain");
        }
        if kind.reduces() && !query.op.accepts(query.dtype) {
            return refuse("the reduction is not defined for the type");
        }
        if let Some(span) = &team.span {
            if !state.nccl.between.is_ready() {
                return Err(unsupported(kind.name(), interned(state.nccl.between.unavailable().to_owned())));
            }
            let how = hosts::how(span, query);
            let ranks = team.members.len() as u32;
            return Ok(Explanation::between_hosts(query, ranks, how, span.n_hosts(), state.routes.table.name()));
        }
        let libraries = state.nccl.libraries(team.id == TeamId::WORLD);
        match &team.collectives {
            Some(collectives) => Ok(collectives.explain_with(query, &libraries, state.nccl.unavailable())),
            None if team.members.len() == 1 => {
                let limits = Limits { ranks: 1, bank_bytes: 0, channel_bytes: 0, max_blocks: 1 };
                Ok(state.routes.explain(query, &limits, &libraries, ""))
            }
            None => refuse(ops::NO_KERNELS),
        }
    }

    /// Sets the method that carries out an operation in all later calls, for all teams of this PE.
    /// `None` restores the choice of the route table. Returns `false` and changes nothing if the
    /// method cannot carry out the operation. A collective in a graph keeps the method with which
    /// it was captured.
    ///
    /// # Collective
    /// All PEs must make the same call, at the same point in their sequence of collective calls.
    pub fn choose(&self, kind: CollectiveKind, method: Option<Method>) -> bool {
        self.state.routes.forced.set(kind, method)
    }

    /// Returns the architecture of this PE's GPU, such as `sm_90`.
    ///
    /// # Errors
    /// [`Error::Misuse`] if the world has been finalized.
    pub fn arch(&self) -> Result<String, Error> {
        Ok(self.state.gpu("arch")?.arch().to_string())
    }

    /// Returns the route table that this backend uses.
    pub fn route_table(&self) -> &RouteTable {
        &self.state.routes.table
    }
}
