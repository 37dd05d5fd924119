//! Communicators derived from others: split, shrink, grow.
//!
//! Module `init` creates communicators from unique ids. Invariant: ranks that derive a communicator
//! together compute its number from the parent's number and their arguments, without a message.

use core::ffi::c_int;
use std::sync::atomic::Ordering;

use super::config;
use super::start::start;
use crate::abi::{ConfigStruct, Out, Result, UniqueId, driver, invalid, misuse, not_null};
use crate::call::exports;
use crate::comm::{Comm, CommPtr, Config};
use crate::groups::exchange::{everybody, exchange, next_control};
use crate::groups::{Job, group};
use crate::messages::{Members, bootstrap, numbers};

/// Returns the members of a new communicator that consists of some ranks of `parent`.
fn subset(parent: &Comm, ranks: &[i32], id: u128) -> Members {
    let who = parent.who();
    let rank = ranks.iter().position(|rank| *rank == who.rank).expect("this rank is a member") as i32;
    let pick = |index: &i32| who.addresses[*index as usize].clone();
    let device = |index: &i32| who.devices[*index as usize];
    Members { id, rank, addresses: ranks.iter().map(pick).collect(), devices: ranks.iter().map(device).collect() }
}

fn number(bytes: &[u8], at: usize) -> i32 {
    i32::from_le_bytes(bytes[at..at + 4].try_into().expect("a number has four bytes"))
}

fn split(parent: &'static Comm, color: c_int, key: c_int, newcomm: *mut CommPtr, config: Config) -> Result {
    let tag = next_control(parent);
    let revoked_before = parent.revoked.load(Ordering::Acquire);
    let own = [color.to_le_bytes(), key.to_le_bytes()].concat();
    let find = move |child: Option<&'static Comm>| {
        let stop = || {
            parent.aborted.load(Ordering::Acquire)
                || (!revoked_before && parent.revoked.load(Ordering::Acquire))
                || child.is_some_and(Comm::stopped)
        };
        let all = exchange(parent, &everybody(parent), tag, &own, &stop)?;
        let mut ranks: Vec<i32> = (0..).zip(&all).filter(|(_, bytes)| number(bytes, 0) == color).map(|(rank, _)| rank).collect();
        ranks.sort_by_key(|rank| (number(&all[*rank as usize], 4), *rank));
        Ok((ranks, numbers::derived(parent.who().id, &[1, tag, color as u64])))
    };
    if color == -1 {
        Out(newcomm).set(CommPtr::NULL);
        let run = move || find(None).map(drop);
        return group::submit_job_silently(Job { comm: None, parent: Some(parent), handle: Out(newcomm), run: Box::new(run) });
    }
    let child = Comm::new((parent.device, parent.context), config);
    start(newcomm, child, Some(parent), parent.who().rank, move |child| {
        let (ranks, id) = find(Some(child))?;
        Ok(subset(parent, &ranks, id))
    })
}

fn shrink(parent: &'static Comm, excluded: &[c_int], newcomm: *mut CommPtr, config: Config, abort: bool) -> Result {
    let who = parent.who();
    if excluded.contains(&who.rank) {
        return invalid(format!("rank {} is in the list of excluded ranks", who.rank));
    }
    let survivors: Vec<i32> = (0..who.ranks()).filter(|rank| !excluded.contains(rank)).collect();
    let times = {
        let mut state = parent.state();
        state.shrinks += 1;
        state.shrinks
    };
    if abort {
        parent.abort();
    } else {
        parent.drain();
    }
    let words: Vec<u64> = [2, times].into_iter().chain(survivors.iter().map(|rank| *rank as u64)).collect();
    let id = numbers::derived(who.id, &words);
    let child = Comm::new((parent.device, parent.context), config);
    start(newcomm, child, Some(parent), who.rank, move |child| {
        exchange(parent, &survivors, id as u64 | 1 << 63, &[], &|| child.stopped())?;
        Ok(subset(parent, &survivors, id))
    })
}

/// Returns the communicator from which another can be derived. A revoked communicator is allowed; a
/// finalized or suspended one, or one with background work, is an error.
fn parent(comm: CommPtr) -> Result<&'static Comm> {
    let comm = comm.ready()?;
    if comm.state().finalized {
        return misuse("the communicator was finalized");
    }
    if comm.state().suspended {
        return misuse("the communicator is suspended");
    }
    Ok(comm)
}

exports! {
    /// Creates a communicator of the ranks with the same color, in the order of their keys.
    fn ncclCommSplit(comm: CommPtr, color: c_int, key: c_int, newcomm: *mut CommPtr, config: *const ConfigStruct) {
        let parent = parent(comm)?;
        not_null(newcomm, "newcomm")?;
        if color < -1 {
            return invalid(format!("invalid color {color}"));
        }
        split(parent, color, key, newcomm, config::read(config, parent.config)?)
    }

    /// Creates a communicator without the excluded ranks, which need not take part.
    fn ncclCommShrink(comm: CommPtr, exclude_ranks_list: *const c_int, exclude_ranks_count: c_int, newcomm: *mut CommPtr,
        config: *const ConfigStruct, shrink_flags: c_int) {
        let comm = match shrink_flags {
            0 => parent(comm)?,
            // Running operations are ended first. An asynchronous error remains, and NCCL then
            // creates no child.
            1 => comm.ready()?,
            other => return invalid(format!("invalid shrink flags {other}")),
        };
        not_null(newcomm, "newcomm")?;
        let Some(who) = comm.members.get() else { return invalid("the communicator is not initialised") };
        if exclude_ranks_count < 0 || exclude_ranks_count >= who.ranks() || (exclude_ranks_count > 0 && exclude_ranks_list.is_null()) {
            return invalid(format!("invalid number of excluded ranks {exclude_ranks_count}"));
        }
        let mut excluded = Vec::new();
        for index in 0..exclude_ranks_count as usize {
            // SAFETY: the program promises this many ranks there.
            let rank = unsafe { exclude_ranks_list.add(index).read() };
            if rank < 0 || rank >= who.ranks() || excluded.contains(&rank) {
                return invalid(format!("invalid excluded rank {rank}"));
            }
            excluded.push(rank);
        }
        shrink(comm, &excluded, newcomm, config::read(config, comm.config)?, shrink_flags == 1)
    }

    /// Creates an id by which new ranks join a growing communicator.
    fn ncclCommGetUniqueId(comm: CommPtr, unique_id: *mut UniqueId) {
        let comm = parent(comm)?;
        not_null(unique_id, "uniqueId")?;
        if std::mem::replace(&mut comm.state().grow_id, true) {
            return misuse("an id that ncclCommGetUniqueId created is still unused");
        }
        Out(unique_id).set(bootstrap::make_id()?);
        Ok(())
    }

    /// Creates a communicator with more ranks, from the ranks of an existing one and new ranks.
    fn ncclCommGrow(comm: CommPtr, n_ranks: c_int, unique_id: *const UniqueId, rank: c_int, newcomm: *mut CommPtr,
        config: *const ConfigStruct) {
        not_null(newcomm, "newcomm")?;
        let given = if unique_id.is_null() {
            None
        } else {
            // SAFETY: the program promises an id there.
            let id = unsafe { unique_id.read() };
            bootstrap::check_id(&id)?;
            Some(id)
        };
        if comm.is_null() {
            let Some(id) = given else { return invalid("a new rank requires the id") };
            if rank < 0 || rank >= n_ranks {
                return invalid(format!("Invalid rank requested : {rank}/{n_ranks}"));
            }
            let child = Comm::new(driver::chosen_device()?, config::read(config, Config::DEFAULT)?);
            return start(newcomm, child, None, rank, move |child| {
                bootstrap::join(&[id], n_ranks, rank, child.device, &|| child.stopped())
            });
        }
        let parent = parent(comm)?;
        let who = parent.who();
        if rank != -1 {
            return invalid(format!("an existing rank keeps its number: rank must be -1, not {rank}"));
        }
        if n_ranks <= who.ranks() {
            return invalid(format!("the number of ranks is {n_ranks}, expected more than {}", who.ranks()));
        }
        let tag = next_control(parent);
        let child = Comm::new((parent.device, parent.context), config::read(config, parent.config)?);
        start(newcomm, child, Some(parent), who.rank, move |child| {
            let own = given.map_or(Vec::new(), |id| id.bytes.to_vec());
            let all = exchange(parent, &everybody(parent), tag, &own, &|| child.stopped() || parent.stopped())?;
            let Some(bytes) = all.iter().find(|bytes| bytes.len() == 128) else {
                return invalid("no existing rank has passed the id");
            };
            let id = UniqueId { bytes: bytes[..].try_into().expect("128 bytes") };
            let members = bootstrap::join(&[id], n_ranks, parent.who().rank, child.device, &|| child.stopped())?;
            if given.is_some() {
                parent.state().grow_id = false;
            }
            Ok(members)
        })
    }
}
