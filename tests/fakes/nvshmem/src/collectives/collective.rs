//! Collectives over data: exchange data of the members of a team and compute results, immediately
//! or in stream order.
//!
//! Module `typed` has the exported functions. Invariant: all members read every source before any
//! member writes its target, so that source and target can be the same memory.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::begin::{in_order, team_of};
use crate::abi::{Result, invalid};
use crate::arithmetic::Combine;
use crate::call;
use crate::job::memory::Place;
use crate::job::{World, counters};
use crate::peers::{Flight, Team, record_of};

/// Kind of collective.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Broadcast { root: c_int },
    Fcollect,
    AllToAll,
    Reduce(Combine),
    ReduceScatter(Combine),
}

/// A collective, as one member calls it. `bytes` is the length of the part that one member has for
/// another member.
#[derive(Clone, Copy)]
pub(super) struct Collective {
    pub(super) kind: Kind,
    pub(super) target: usize,
    pub(super) source: usize,
    pub(super) bytes: usize,
}

impl Collective {
    pub(super) fn new(kind: Kind, target: *mut c_void, source: *const c_void, bytes: usize) -> Self {
        Self { kind, target: target.addr(), source: source.addr(), bytes }
    }

    /// Returns the lengths of the target and of the source, in bytes.
    fn lengths(&self, members: usize) -> (usize, usize) {
        let (one, all) = (self.bytes, self.bytes * members);
        match self.kind {
            Kind::Broadcast { .. } | Kind::Reduce(_) => (one, one),
            Kind::Fcollect => (all, one),
            Kind::AllToAll => (all, all),
            Kind::ReduceScatter(_) => (one, all),
        }
    }

    fn run(&self, world: &World, team: &Team, flight: &mut Flight<'_>, function: &'static str) {
        let members = team.members.len();
        let (target_bytes, source_bytes) = self.lengths(members);
        let find = |what, address, bytes| world.memory().symmetric(function, what, address, bytes);
        let places = (self.bytes > 0)
            .then(|| (find("the target", self.target, target_bytes), find("the source", self.source, source_bytes)));
        let root = if let Kind::Broadcast { root } = self.kind { root as u64 } else { 0 };
        let number = |place: Place| ((place.region as u64) << 48) | place.offset as u64;
        let (to, from) = places.map_or((0, 0), |(target, source)| (number(target), number(source)));
        let same = [team.index as u64, to, from, self.bytes as u64, root];
        flight.turn.meet(record_of(function, &same, &[]));
        let mut result = Vec::new();
        if let Some((_, source)) = places {
            let memory = world.memory();
            // This is checked again, because the memory may have been freed during the wait for the
            // other members.
            memory.symmetric(function, "the source", self.source, source_bytes);
            let part = |rank: usize, index: usize| {
                // SAFETY: the source was found live on this PE, and is therefore live on all PEs.
                // The source stays live while the memory is locked.
                unsafe { std::slice::from_raw_parts(memory.of(team.members[rank], source).add(index * self.bytes), self.bytes) }
            };
            let reduce = |combine: Combine, index: usize| {
                let mut total = part(0, index).to_vec();
                (1..members).for_each(|rank| combine(&mut total, part(rank, index)));
                total
            };
            result = match self.kind {
                Kind::Broadcast { root } => part(root as usize, 0).to_vec(),
                Kind::Fcollect => (0..members).flat_map(|rank| part(rank, 0)).copied().collect(),
                Kind::AllToAll => (0..members).flat_map(|rank| part(rank, team.me)).copied().collect(),
                Kind::Reduce(combine) => reduce(combine, 0),
                Kind::ReduceScatter(combine) => reduce(combine, team.me),
            };
        }
        flight.turn.meet(record_of(function, &same, &[]));
        if places.is_some() {
            let memory = world.memory();
            let target = memory.symmetric(function, "the target", self.target, target_bytes);
            // SAFETY: the target was found live, and stays live while the memory is locked. The
            // target has at least as many bytes as the result.
            unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), memory.of(world.pe, target), result.len()) };
        }
    }

    fn checked(&self, handle: c_int) -> Result<(Arc<World>, Arc<Team>)> {
        let (world, team) = team_of(handle)?;
        if let Kind::Broadcast { root } = self.kind
            && !(0..team.members.len() as c_int).contains(&root)
        {
            return invalid(format!("root {root} does not exist in a team of {} PEs", team.members.len()));
        }
        if self.bytes > 0 {
            let (target_bytes, source_bytes) = self.lengths(team.members.len());
            let memory = world.memory();
            memory.symmetric(call::function(), "the target", self.target, target_bytes);
            memory.symmetric(call::function(), "the source", self.source, source_bytes);
        }
        counters::COLLECTIVES.fetch_add(1, Ordering::Relaxed);
        Ok((world, team))
    }

    /// Runs the collective from the host.
    pub(super) fn on_host(self, team: c_int) -> c_int {
        call::code(|| {
            let (world, team) = self.checked(team)?;
            call::take_effect().suffer();
            self.run(&world, &team, &mut team.begin_on_host(), call::function());
            Ok(())
        })
    }

    /// Enqueues the collective on a stream.
    pub(super) fn on_stream(self, team: c_int, stream: *mut c_void) -> c_int {
        call::code(|| {
            let (_, team) = self.checked(team)?;
            in_order(team, stream, move |world, team, flight, function| self.run(world, team, flight, function))
        })
    }
}
