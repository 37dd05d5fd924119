//! Queries about teams: ranks, sizes, configurations.
//!
//! Invariant: a query with the handle -1, which means no team, returns -1.

use core::ffi::c_int;

use super::teams::INVALID;
use crate::abi::structs::TeamConfig;
use crate::call::exports;
use crate::job::live;

exports! {
    fn nvshmem_team_my_pe(team: c_int) -> c_int {
        let world = live();
        if team == INVALID { INVALID } else { world.teams.of(team).me as c_int }
    }

    fn nvshmem_team_n_pes(team: c_int) -> c_int {
        let world = live();
        if team == INVALID { INVALID } else { world.teams.of(team).members.len() as c_int }
    }

    fn nvshmem_team_get_config(team: c_int, config: *mut TeamConfig) {
        let world = live();
        if team != INVALID {
            let team = world.teams.of(team);
            // SAFETY: the caller guarantees that `config` points to a configuration.
            let config = unsafe { &mut *config };
            config.contexts = team.contexts;
            config.id = team.id;
        }
    }

    fn nvshmem_team_translate_pe(source: c_int, rank: c_int, target: c_int) -> c_int {
        let world = live();
        if source == INVALID || target == INVALID {
            return INVALID;
        }
        let (source, target) = (world.teams.of(source), world.teams.of(target));
        let pe = usize::try_from(rank).ok().and_then(|rank| source.members.get(rank));
        let found = pe.and_then(|pe| target.members.iter().position(|member| member == pe));
        found.map_or(INVALID, |rank| rank as c_int)
    }
}
