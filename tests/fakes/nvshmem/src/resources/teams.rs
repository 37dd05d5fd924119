//! Creates teams by splitting other teams, and destroys teams.
//!
//! Module `exchange` exchanges data among the members. Invariant: the first member allocates a
//! team's slot in the control memory, and the last member that destroys the team frees it.

use core::ffi::{c_int, c_long};
use std::sync::atomic::Ordering;

use crate::abi::structs::{MASK_CONTEXTS, MASK_ID, TeamConfig, word};
use crate::abi::{Code, Result, fail, invalid};
use crate::call::{self, complain, exports};
use crate::job::{World, live};
use crate::peers::control::FIRST_MADE;
use crate::peers::{Team, record};

/// The handle that means no team.
pub(super) const INVALID: c_int = -1;

/// Reads the configuration of a team.
pub(super) fn config(config: *const TeamConfig, mask: c_long) -> Result<(c_int, u64)> {
    if mask == 0 || config.is_null() {
        return Ok((0, u64::MAX));
    }
    // SAFETY: the caller guarantees that `config` points to a configuration.
    let config = unsafe { config.read() };
    if ![1, 2].iter().any(|layout| config.version == word(*layout, size_of::<TeamConfig>())) {
        return invalid(format!("the version word {} of the team's configuration is not supported", config.version));
    }
    let contexts = if mask & MASK_CONTEXTS != 0 { config.contexts } else { 0 };
    Ok((contexts, if mask & MASK_ID != 0 { config.id } else { u64::MAX }))
}

/// Creates one team of members of a parent. All members of the parent call this function. Each
/// passes the members of its own new team, or `None` if it is in no new team.
fn make(world: &World, parent: &Team, members: Option<Vec<i32>>, same: &[u64], contexts: c_int) -> Result<c_int> {
    let mut turn = parent.begin_setup();
    let leads = members.as_ref().is_some_and(|members| members[0] == world.pe);
    let full = members.is_some() && world.teams.is_full();
    let taken = if leads && !full { world.control.take_team() } else { None };
    let all = turn.meet(record(same, &[taken.map_or(0, |index| index as u64 + 1), u64::from(full)]));
    let Some(members) = members else { return Ok(INVALID) };
    let rank_of =
        |pe: i32| parent.members.iter().position(|member| *member == pe).expect("every member is a member of the parent");
    let index = all[rank_of(members[0])].own[0];
    if index == 0 || members.iter().any(|pe| all[rank_of(*pe)].own[1] != 0) {
        if let Some(taken) = taken {
            world.control.teams[taken].used.store(0, Ordering::Release);
        }
        return no_slot(world);
    }
    Ok(enlist(world, index as usize - 1, members, contexts, u64::MAX))
}

/// Adds a team of this PE, and returns its handle.
pub(super) fn enlist(world: &World, index: usize, members: Vec<i32>, contexts: c_int, id: u64) -> c_int {
    world.teams.add(|handle| {
        let mut team = Team::new(world.control, handle, index, members, world.pe);
        team.contexts = contexts;
        team.id = id;
        team
    })
}

/// Returns a failure because the job cannot have another team.
pub(super) fn no_slot<T>(world: &World) -> Result<T> {
    fail(Code::INTERNAL, format!("no free team slot: all {} are in use (NVSHMEM_MAX_TEAMS)", world.teams.max))
}

/// Writes a handle to the program's output.
pub(super) fn give(place: *mut c_int, handle: c_int) {
    // SAFETY: the caller guarantees that `place` points to a handle.
    unsafe { place.write(handle) };
}

fn split_strided(parent: c_int, [start, stride, count]: [c_int; 3], contexts: c_int) -> Result<c_int> {
    let world = live();
    call::take_effect().suffer();
    if parent == INVALID {
        return invalid(format!("{parent} is not the handle of a parent team"));
    }
    let parent = world.teams.of(parent);
    let ranks = parent.members.len() as c_int;
    let last = i64::from(start) + i64::from(stride) * i64::from(count - 1);
    if count < 1 || stride < 1 || !(0..ranks).contains(&start) || last >= i64::from(ranks) {
        return invalid(format!("start {start}, stride {stride} and count {count} do not describe PEs of a team of {ranks}"));
    }
    let members: Vec<i32> = (0..count).map(|index| parent.members[(start + index * stride) as usize]).collect();
    let mine = members.contains(&world.pe).then_some(members);
    let same = [parent.index as u64, start as u64, stride as u64, count as u64];
    make(&world, &parent, mine, &same, contexts)
}

fn destroy(handle: c_int) {
    let world = live();
    call::take_effect().suffer();
    if handle == INVALID {
        return;
    }
    let team = world.teams.of(handle);
    if handle < FIRST_MADE as c_int {
        complain(&format!("nvshmem_team_destroy: team {handle} is predefined and cannot be destroyed"));
        return;
    }
    team.begin_setup().meet(record(&[team.index as u64], &[]));
    world.teams.lock().remove(&handle);
    team.leave();
}

exports! {
    fn nvshmem_team_split_strided(
        parent: c_int, start: c_int, stride: c_int, count: c_int, settings: *const TeamConfig, mask: c_long, team: *mut c_int,
    ) -> c_int {
        call::code(|| {
            give(team, INVALID);
            let (contexts, _) = config(settings, mask)?;
            give(team, split_strided(parent, [start, stride, count], contexts)?);
            Ok(())
        })
    }

    fn nvshmem_team_split_2d(
        parent: c_int, width: c_int, x_settings: *const TeamConfig, x_mask: c_long, x_team: *mut c_int,
        y_settings: *const TeamConfig, y_mask: c_long, y_team: *mut c_int,
    ) -> c_int {
        call::code(|| {
            give(x_team, INVALID);
            give(y_team, INVALID);
            let ((x_contexts, _), (y_contexts, _)) = (config(x_settings, x_mask)?, config(y_settings, y_mask)?);
            let world = live();
            call::take_effect().suffer();
            if parent == INVALID || width < 1 {
                return invalid(format!("parent team {parent} and width {width}, expected a team and a width of at least 1"));
            }
            let parent = world.teams.of(parent);
            let width = (width as usize).min(parent.members.len());
            let members = |mine: &dyn Fn(usize) -> bool| {
                let ranks = (0..parent.members.len()).filter(|rank| mine(*rank));
                Some(ranks.map(|rank| parent.members[rank]).collect::<Vec<_>>())
            };
            let row = members(&|rank| rank / width == parent.me / width);
            let column = members(&|rank| rank % width == parent.me % width);
            give(x_team, make(&world, &parent, row, &[parent.index as u64, width as u64, 0], x_contexts)?);
            give(y_team, make(&world, &parent, column, &[parent.index as u64, width as u64, 1], y_contexts)?);
            Ok(())
        })
    }

    fn nvshmem_team_destroy(team: c_int) {
        destroy(team);
    }
}
