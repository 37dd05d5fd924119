//! Splits a team: creates new teams from the ranks of a parent team.

use peerweave_core::backend::{SplitPart, TeamRecord};
use peerweave_core::{Error, TeamName};

use super::Cuda;
use crate::backend::error::portable;
use crate::backend::teams::{self, TeamOf};
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::team::{Exchange, Parent, Team};

/// Parses the bytes that a rank sends in a split. The first result is the rank's
/// [`State::splits`](crate::backend::state::State::splits), a counter of splits. The second result
/// is a sentinel: random bits that fill staging memory until data arrives.
fn split_attached(attached: &[u8]) -> (u32, [u64; 2]) {
    let word = |at: usize| {
        attached.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes fit the array")))
    };
    (word(0) as u32, [word(4), word(12)])
}

/// Returns the name that a new team uses in exchanges through the rendezvous. The name depends on
/// the name `parent` of the team that is split, and on the color `color` of the new team. It also
/// depends on `calls`, the number of calls that the members of the parent team made together before
/// the split. All returned names have the same length.
pub(super) fn path_of(parent: &str, calls: u64, color: u64) -> String {
    format!("{:016x}", teams::digest((parent, calls, color)))
}

/// Names that a call uses while it creates a team: `call` and `name` in errors, and `path` in
/// exchanges through the rendezvous.
pub(super) struct Made {
    /// Name of the call.
    pub(super) call: &'static str,
    /// The team that error messages name: the parent team or the team of all PEs, because the new
    /// team does not exist yet.
    pub(super) name: TeamName,
    /// Name of the new team in exchanges through the rendezvous.
    pub(super) path: String,
}

impl Cuda {
    /// Creates the state that operations of a new team need. `count` distinguishes the team from
    /// earlier teams with the same number (see [`teams::id`]). `sentinel` is the value that each
    /// 16-byte line of the staging memory holds until data arrives in the line. The first member on
    /// this host has chosen this value.
    fn state_of(
        &self,
        call: &'static str,
        gpu: &Gpu,
        team: Team,
        path: String,
        count: u32,
        sentinel: [u64; 2],
    ) -> Result<TeamOf, Error> {
        let number = team.kernel_team();
        let kernels = self.state.kernels_of(gpu, number, team.members(), sentinel).map_err(self.state.portable(call))?;
        let (members, me) = (team.members().to_vec(), team.rank().index());
        let made = TeamOf::new(teams::id(number, count), &members, me, path, kernels, Some(team));
        if let Some(calls) = &self.state.calls {
            calls.begin(&made);
        }
        Ok(made)
    }

    /// Splits the team `parent`, after its ranks have agreed that they make the same call.
    /// `attached` has the bytes that each rank has sent for this split, in the format that
    /// [`split_attached`] parses. Increases `splits`, this PE's counter of splits.
    #[expect(clippy::too_many_arguments, reason = "both callers have these arguments in separate variables")]
    pub(super) fn split_parent(
        &self,
        gpu: &Gpu,
        parent: &TeamOf,
        exchange: &Exchange<'_>,
        made: Made,
        splits: &mut u32,
        attached: &[Vec<u8>],
        part: Option<SplitPart>,
    ) -> Result<Option<TeamRecord>, Error> {
        let (state, Made { call, name, path }) = (&*self.state, made);
        let attached: Vec<(u32, [u64; 2])> = attached.iter().map(|attached| split_attached(attached)).collect();
        *splits = attached.iter().map(|(count, _)| count + 1).max().unwrap_or(1);
        let sentinel_of = |team: &Team| {
            let here = state.members_here(team.members());
            let first = parent.members.iter().position(|pe| Some(pe) == here.first());
            attached[first.unwrap_or(parent.me)].1
        };
        let of = Parent { pes: &parent.members, exchange };
        let split = gpu.split_among(&of, call, "", part.map(|part| part.color), part.map_or(0, |part| part.key));
        let split = split.map_err(|error| match error {
            CudaError::Misuse { what: "the number of teams", .. } => {
                Error::TooManyTeams { call, max_teams: state.caps.max_teams }
            }
            error => portable(call, name, error),
        })?;
        let team = split.map(|team| {
            let sentinel = sentinel_of(&team);
            self.state_of(call, gpu, team, path, *splits, sentinel)
        });
        let team = team.transpose();
        // No member calls an operation of the team before the memory of all members is ready.
        let failed = team.as_ref().err().map(Error::to_string).unwrap_or_default();
        let all = exchange("/ready", failed.as_bytes()).map_err(|error| portable(call, name, error))?;
        let team = team?;
        if let Some(rank) = all.iter().position(|text| !text.is_empty()) {
            let message = String::from_utf8_lossy(&all[rank]).into_owned();
            return Err(portable(call, name, CudaError::PeFailed { call, pe: parent.members[rank], message }));
        }
        Ok(team.map(|team| {
            let record = TeamRecord { id: team.id, members: team.members.to_vec() };
            state.teams.add(team);
            record
        }))
    }
}
