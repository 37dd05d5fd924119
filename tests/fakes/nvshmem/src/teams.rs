//! Teams: the predefined ones, splits, teams by id, queries, destruction.
//!
//! `meet` exchanges data among the members. Invariant: the first member allocates a team's slot in
//! shared memory, and the last member that destroys the team frees it.

use core::ffi::{c_int, c_long};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::{Code, MASK_CONTEXTS, MASK_ID, Result, TeamConfig, fail, invalid, word};
use crate::control::{FIRST_MADE, random};
use crate::log::{complain, undefined};
use crate::meet::{Channel, Team, record, wait_for};
use crate::world::World;
use crate::{call, world};

const INVALID: c_int = -1;

/// Creates the predefined teams.
pub(crate) fn predefine(world: &World) {
    let all = || (0..world.ranks).collect::<Vec<_>>();
    let reached = || {
        let memory = world.memory();
        let reaches = |pe: &i32| memory.given(*pe, crate::memory::Place { region: 0, offset: 0 }).is_some();
        if all().iter().all(reaches) { all() } else { vec![world.pe] }
    };
    // NVSHMEM implements operations of the world by these teams and their counters. So all of them
    // share one count of pending collectives.
    let own = |handle: i32, members| {
        let mut team = Team::new(world.control, handle, handle as usize, members, world.pe);
        team.flights = Arc::clone(&world.team.flights);
        team
    };
    let mut teams = world.teams();
    teams.insert(0, Arc::clone(&world.team));
    // SHARED, NODE, SAME_MYPE_NODE, SAME_GPU, GPU_LEADERS
    let kinds = [(1, reached()), (2, all()), (3, vec![world.pe]), (4, vec![world.pe]), (5, all())];
    for (handle, members) in kinds {
        teams.insert(handle, Arc::new(own(handle, members)));
    }
    if world.memory().multicast != 0 {
        teams.insert(6, Arc::new(own(6, all())));
    }
}

/// Returns the number of created teams that were not destroyed.
pub(crate) fn made(world: &World) -> usize {
    world.teams().keys().filter(|handle| **handle >= FIRST_MADE as i32).count()
}

/// Reads the configuration of a team.
fn config(config: *const TeamConfig, mask: c_long) -> Result<(c_int, u64)> {
    if mask == 0 || config.is_null() {
        return Ok((0, u64::MAX));
    }
    // SAFETY: guaranteed by the caller: it points to a configuration.
    let config = unsafe { config.read() };
    if ![1, 2].iter().any(|layout| config.version == word(*layout, size_of::<TeamConfig>())) {
        return invalid(format!("the version word {} of the team's configuration is not supported", config.version));
    }
    let contexts = if mask & MASK_CONTEXTS != 0 { config.contexts } else { 0 };
    Ok((contexts, if mask & MASK_ID != 0 { config.id } else { u64::MAX }))
}

/// Creates one team of members of a parent. All members of the parent call this, each with the
/// members of its own new team; `None` if this PE is in no new team.
fn make(world: &World, parent: &Team, members: Option<Vec<i32>>, same: &[u64], contexts: c_int) -> Result<c_int> {
    parent.idle();
    let mut turn = parent.turn(Channel::Setup);
    let leads = members.as_ref().is_some_and(|members| members[0] == world.pe);
    let full = members.is_some() && made(world) + FIRST_MADE > world.max_teams;
    let taken = if leads && !full { world.control.take_team() } else { None };
    let all = turn.meet(record(same, &[taken.map_or(0, |index| index as u64 + 1), u64::from(full)]));
    let Some(members) = members else { return Ok(INVALID) };
    let rank_of = |pe: i32| parent.members.iter().position(|member| *member == pe).expect("the members are those of the parent");
    let index = all[rank_of(members[0])].own[0];
    if index == 0 || members.iter().any(|pe| all[rank_of(*pe)].own[1] != 0) {
        if let Some(taken) = taken {
            world.control.teams[taken].used.store(0, Ordering::Release);
        }
        return fail(Code::INTERNAL, format!("no free team slot: all {} are in use (NVSHMEM_MAX_TEAMS)", world.max_teams));
    }
    Ok(enlist(world, index as usize - 1, members, contexts, u64::MAX))
}

fn enlist(world: &World, index: usize, members: Vec<i32>, contexts: c_int, id: u64) -> c_int {
    let handle = world.next_handle.fetch_add(1, Ordering::Relaxed);
    let mut team = Team::new(world.control, handle, index, members, world.pe);
    team.contexts = contexts;
    team.id = id;
    world.teams().insert(handle, Arc::new(team));
    handle
}

/// Writes a handle to the program's output.
fn give(place: *mut c_int, handle: c_int) {
    // SAFETY: guaranteed by the caller: it points to a handle.
    unsafe { place.write(handle) };
}

fn split_strided(parent: c_int, [start, stride, count]: [c_int; 3], contexts: c_int) -> Result<c_int> {
    let world = world::live();
    call::take_effect().suffer();
    if parent == INVALID {
        return invalid("no parent team");
    }
    let parent = world.team_of(parent);
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

/// Joins a team that is created by an id: waits for the other members, and returns the handle of
/// the team.
fn by_id(ranks: c_int, rank: c_int, id: u64, contexts: c_int) -> Result<c_int> {
    let world = world::live();
    call::take_effect().suffer();
    if id == u64::MAX || id == 0 {
        return invalid("the configuration contains no team id");
    }
    if !(1..=world.ranks).contains(&ranks) || !(0..ranks).contains(&rank) {
        return invalid(format!("rank {rank} does not exist in a team of {ranks} PEs"));
    }
    if made(&world) + FIRST_MADE > world.max_teams {
        return fail(Code::INTERNAL, format!("no free team slot: all {} are in use (NVSHMEM_MAX_TEAMS)", world.max_teams));
    }
    let slots = &world.control.ids;
    // The id alone names the slot, so that members that come at different times find the same one.
    // A slot keeps its id until the last member has left; a team whose slot is taken waits for
    // that.
    let slot = &slots[id as usize % slots.len()];
    let is_ours = || match slot.id.compare_exchange(0, id, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => true,
        Err(found) => found == id,
    };
    wait_for(world.control, is_ours, || "a team created by another id".to_owned());
    if slot.members[rank as usize].compare_exchange(0, world.pe + 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
        undefined(&format!("{}: rank {rank} has joined twice", call::function()));
    }
    let mut members = Vec::new();
    for (other, place) in slot.members[..ranks as usize].iter().enumerate() {
        wait_for(world.control, || place.load(Ordering::Acquire) != 0, || format!("rank {other} of a team created by an id"));
        members.push(place.load(Ordering::Acquire) - 1);
    }
    if rank == 0 {
        let index = world.control.take_team().unwrap_or_else(|| undefined("no free team slot"));
        slot.team.store(index as u32 + 1, Ordering::Release);
    }
    wait_for(world.control, || slot.team.load(Ordering::Acquire) != 0, || "rank 0 of a team created by an id".to_owned());
    let index = slot.team.load(Ordering::Acquire) as usize - 1;
    if slot.left.fetch_add(1, Ordering::AcqRel) + 1 == ranks as u32 {
        slot.members.iter().for_each(|place| place.store(0, Ordering::Relaxed));
        slot.team.store(0, Ordering::Relaxed);
        slot.left.store(0, Ordering::Relaxed);
        slot.id.store(0, Ordering::Release);
    }
    Ok(enlist(&world, index, members, contexts, id))
}

fn destroy(handle: c_int) {
    let world = world::live();
    call::take_effect().suffer();
    if handle == INVALID {
        return;
    }
    let team = world.team_of(handle);
    if handle < FIRST_MADE as c_int {
        complain(&format!("nvshmem_team_destroy: team {handle} is predefined"));
        return;
    }
    team.idle();
    team.turn(Channel::Setup).meet(record(&[team.index as u64], &[]));
    world.teams().remove(&handle);
    team.leave();
}

exports! {
    fn nvshmem_team_my_pe(team: c_int) -> c_int {
        let world = world::live();
        if team == INVALID { INVALID } else { world.team_of(team).me as c_int }
    }

    fn nvshmem_team_n_pes(team: c_int) -> c_int {
        let world = world::live();
        if team == INVALID { INVALID } else { world.team_of(team).members.len() as c_int }
    }

    fn nvshmem_team_get_config(team: c_int, config: *mut TeamConfig) {
        let world = world::live();
        if team != INVALID {
            let team = world.team_of(team);
            // SAFETY: guaranteed by the caller: it points to a configuration.
            let config = unsafe { &mut *config };
            config.contexts = team.contexts;
            config.id = team.id;
        }
    }

    fn nvshmem_team_translate_pe(source: c_int, rank: c_int, target: c_int) -> c_int {
        let world = world::live();
        if source == INVALID || target == INVALID {
            return INVALID;
        }
        let (source, target) = (world.team_of(source), world.team_of(target));
        let pe = usize::try_from(rank).ok().and_then(|rank| source.members.get(rank));
        let found = pe.and_then(|pe| target.members.iter().position(|member| member == pe));
        found.map_or(INVALID, |rank| rank as c_int)
    }

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
            let world = world::live();
            call::take_effect().suffer();
            if parent == INVALID || width < 1 {
                return invalid(format!("invalid parent team or width {width}"));
            }
            let parent = world.team_of(parent);
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

    fn nvshmemx_team_get_uniqueid(id: *mut u64) -> c_int {
        call::code(|| {
            world::live();
            // SAFETY: guaranteed by the caller: it points to an id.
            unsafe { id.write(random() >> 1 | 1) };
            Ok(())
        })
    }

    fn nvshmemx_team_init(team: *mut c_int, settings: *mut TeamConfig, mask: c_long, ranks: c_int, rank: c_int) -> c_int {
        call::code(|| {
            give(team, INVALID);
            let (contexts, id) = config(settings, mask)?;
            give(team, by_id(ranks, rank, id, contexts)?);
            Ok(())
        })
    }

    fn nvshmem_team_destroy(team: c_int) {
        destroy(team);
    }
}
