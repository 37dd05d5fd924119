//! Creates teams by an id, whose members find each other without a parent team.
//!
//! Invariant: a slot, which a team's id determines, keeps this id until the last member has joined.

use core::ffi::{c_int, c_long};
use std::sync::atomic::Ordering;

use peerweave_fake_common::random_word;

use super::teams::{INVALID, config, enlist, give, no_slot};
use crate::abi::structs::TeamConfig;
use crate::abi::{Result, invalid};
use crate::call::{self, exports, undefined};
use crate::job::live;
use crate::peers::wait_for;

/// Joins a team that is created by an id: waits for the other members, and returns the handle of
/// the team.
fn by_id(ranks: c_int, rank: c_int, id: u64, contexts: c_int) -> Result<c_int> {
    let world = live();
    call::take_effect().suffer();
    if id == u64::MAX || id == 0 {
        return invalid("the configuration contains no team id");
    }
    if !(1..=world.ranks).contains(&ranks) || !(0..ranks).contains(&rank) {
        return invalid(format!("rank {rank} does not exist in a team of {ranks} PEs"));
    }
    if world.teams.is_full() {
        return no_slot(&world);
    }
    let slots = &world.control.ids;
    // The id alone determines the slot, so that members that arrive at different times find the
    // same slot. A slot keeps its id until the last member has joined. A team whose slot has
    // another id waits until then.
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

exports! {
    fn nvshmemx_team_get_uniqueid(id: *mut u64) -> c_int {
        call::code(|| {
            live();
            // SAFETY: the caller guarantees that `id` points to an id.
            unsafe { id.write(random_word() >> 1 | 1) };
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
}
