//! The teams of a communicator, and the resource requirements of kernels.
//!
//! Device communicators are in module `device_comm`. Invariant: the LSA team of a rank contains the
//! ranks whose memory it can access, and its rail team the ranks at the same position in other LSA
//! teams.

use core::ffi::c_int;

use crate::abi::{Out, Result, Team, invalid, not_null};
use crate::call::exports;
use crate::comm::{Comm, CommPtr};
use crate::report::errors;

/// `ncclDevResourceRequirements_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ResourceRequirements {
    pub(super) next: *mut ResourceRequirements,
    pub(super) bytes: usize,
    pub(super) align: usize,
    pub(super) out_buffer: *mut u32,
    pub(super) gin_signals: c_int,
    pub(super) gin_counters: c_int,
    pub(super) out_gin_signal: *mut u32,
    pub(super) out_gin_counter: *mut u32,
}

const _: () = assert!(size_of::<ResourceRequirements>() == 56);

impl ResourceRequirements {
    const NOTHING: Self = Self {
        next: std::ptr::null_mut(),
        bytes: 0,
        align: 0,
        out_buffer: std::ptr::null_mut(),
        gin_signals: 0,
        gin_counters: 0,
        out_gin_signal: std::ptr::null_mut(),
        out_gin_counter: std::ptr::null_mut(),
    };
}

/// A handle: the buffer's offset and a count.
#[repr(C)]
pub(super) struct BufferHandle {
    buffer: u32,
    count: c_int,
}

const NONE: Team = Team { ranks: 0, rank: 0, stride: 0 };

fn team(comm: CommPtr, of: impl FnOnce(&Comm) -> Team) -> Team {
    match comm.ready() {
        Ok(comm) => of(comm),
        Err(failure) => {
            errors::set(&failure.text);
            NONE
        }
    }
}

/// Returns the team of this rank's reachable peers.
pub(super) fn lsa(comm: &Comm) -> Team {
    let size = comm.who().lsa_size();
    Team { ranks: size, rank: comm.who().rank % size, stride: 1 }
}

/// Returns the team of all ranks.
#[unsafe(no_mangle)]
extern "C" fn ncclTeamWorld(comm: CommPtr) -> Team {
    team(comm, |comm| Team { ranks: comm.who().ranks(), rank: comm.who().rank, stride: 1 })
}

/// Returns the team of the ranks whose memory this rank can access.
#[unsafe(no_mangle)]
extern "C" fn ncclTeamLsa(comm: CommPtr) -> Team {
    team(comm, lsa)
}

/// Returns the team of the ranks at the same position in the other LSA teams.
#[unsafe(no_mangle)]
extern "C" fn ncclTeamRail(comm: CommPtr) -> Team {
    team(comm, |comm| {
        let size = comm.who().lsa_size();
        Team { ranks: comm.who().ranks() / size, rank: comm.who().rank / size, stride: size }
    })
}

/// Returns a team of hardware that this library does not emulate: this rank alone.
#[unsafe(no_mangle)]
extern "C" fn ncclTeamCft(comm: CommPtr, _mode: c_int) -> Team {
    team(comm, |_| Team { ranks: 1, rank: 0, stride: 1 })
}

/// Returns this rank alone, like [`ncclTeamCft`].
#[unsafe(no_mangle)]
extern "C" fn ncclTeamCftMultimem(comm: CommPtr) -> Team {
    team(comm, |_| Team { ranks: 1, rank: 0, stride: 1 })
}

/// Converts a rank of a team to a rank of the communicator.
#[unsafe(no_mangle)]
extern "C" fn ncclTeamRankToWorld(comm: CommPtr, of: Team, rank: c_int) -> c_int {
    team(comm, |comm| Team { rank: comm.who().rank + (rank - of.rank) * of.stride, ..NONE }).rank
}

/// Converts a rank of a team to a rank of the LSA team.
#[unsafe(no_mangle)]
extern "C" fn ncclTeamRankToLsa(comm: CommPtr, of: Team, rank: c_int) -> c_int {
    team(comm, |comm| Team { rank: lsa(comm).rank + (rank - of.rank) * of.stride, ..NONE }).rank
}

/// Returns the number of slots for an exchange of this many elements; each slot holds eight bytes.
#[unsafe(no_mangle)]
extern "C" fn ncclLLA2ACalcSlots(max_elts: c_int, max_elt_size: c_int) -> c_int {
    max_elts * ((max_elt_size + 7) / 8)
}

fn buffer_requirement(
    bytes: usize,
    align: usize,
    count: c_int,
    handle: *mut BufferHandle,
    out: *mut ResourceRequirements,
) -> Result {
    not_null(handle, "outHandle")?;
    not_null(out, "outReq")?;
    Out(handle).set(BufferHandle { buffer: 0, count });
    // SAFETY: the handle is not null; only the address of its first field is taken.
    let out_buffer = unsafe { &raw mut (*handle).buffer };
    Out(out).set(ResourceRequirements { bytes, align, out_buffer, ..ResourceRequirements::NOTHING });
    Ok(())
}

exports! {
    /// Returns the requirement of barriers among ranks with direct access.
    fn ncclLsaBarrierCreateRequirement(team: Team, n_barriers: c_int, out_handle: *mut BufferHandle,
        out_req: *mut ResourceRequirements) {
        if n_barriers < 0 || team.ranks < 1 {
            return invalid(format!("invalid requirement: {n_barriers} barriers for a team of {} ranks", team.ranks));
        }
        buffer_requirement((3 + team.ranks as usize) * n_barriers as usize * 4, 4, n_barriers, out_handle, out_req)
    }

    /// Returns the requirement of low-latency exchanges.
    fn ncclLLA2ACreateRequirement(n_blocks: c_int, n_slots: c_int, out_handle: *mut BufferHandle, out_req: *mut ResourceRequirements) {
        if n_blocks < 0 || n_slots < 0 {
            return invalid(format!("invalid requirement: {n_blocks} blocks with {n_slots} slots each"));
        }
        buffer_requirement(n_blocks as usize * (1 + 2 * n_slots as usize) * 16, 16, n_slots, out_handle, out_req)
    }

    /// Returns the requirement of barriers over a network: each has one signal for each rank.
    fn ncclGinBarrierCreateRequirement(comm: CommPtr, team: Team, n_barriers: c_int, out_handle: *mut BufferHandle,
        out_req: *mut ResourceRequirements) {
        comm.ready()?;
        not_null(out_handle, "outHandle")?;
        not_null(out_req, "outReq")?;
        if n_barriers < 0 || team.ranks < 1 {
            return invalid(format!("invalid requirement: {n_barriers} barriers for a team of {} ranks", team.ranks));
        }
        Out(out_handle).set(BufferHandle { buffer: 0, count: 0 });
        // SAFETY: the handle is not null; only the address of its first field is taken.
        let out_gin_signal = unsafe { &raw mut (*out_handle).buffer };
        let gin_signals = n_barriers * team.ranks;
        Out(out_req).set(ResourceRequirements { gin_signals, out_gin_signal, ..ResourceRequirements::NOTHING });
        Ok(())
    }
}
