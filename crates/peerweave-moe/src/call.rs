//! Functions that several kernels call. They find the 16-byte lines that ranks exchange, and order
//! the accesses to these lines.

use crate::layout::{Exchange, MAX_RANKS, NOT_MAPPED};
use peerweave_device::gpu::{self, Fence, Sys};
use peerweave_device::lines::Lines;
use peerweave_device::prelude::*;

impl Exchange {
    /// Returns the lines of a slice of symmetric memory on this rank. The argument `of` is the
    /// slice: [`Exchange::inbox`] or [`Exchange::returns`].
    #[inline(always)]
    pub(crate) fn own(&self, ctx: &Context, of: SymSlice<u128>) -> Lines {
        // SAFETY: this is symmetric memory of this PE. Only kernels of this crate access it, by
        // whole lines.
        unsafe { Lines::at(ctx.local(of).address()) }
    }
}

/// Returns the PE of a rank; `u32::MAX` if the team has no such rank. No PE has this number, so an
/// access to the memory of that PE fails.
#[inline(always)]
pub(crate) fn pe_of(ctx: &Context, team: KernelTeam, rank: u32) -> u32 {
    ctx.team_pe(team, rank).unwrap_or(u32::MAX)
}

/// Addresses of the copies of one symmetric slice. For each rank there is one address, at which
/// this PE accesses the copy of that rank. The addresses are stored in the block's shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Peers(SharedSlice<u64>);

impl Peers {
    /// Looks up the address of a slice of symmetric memory on each rank of the team. The argument
    /// `of` is the slice. All threads of the block must call this function.
    ///
    /// # Errors
    /// If the memory of a rank is not mapped on this PE. In this case all threads of the block
    /// return the error.
    #[inline(always)]
    pub(crate) fn find(ctx: &Context, exchange: &Exchange, team: KernelTeam, of: SymSlice<u128>) -> Result<Self, Failed> {
        let addresses = peerweave_device::shared_array!(PEERS: [u64; MAX_RANKS]);
        let mut failed = false;
        let mut rank = gpu::thread_rank();
        while rank < exchange.ranks {
            let mapped = ctx.get_peer_array(of, pe_of(ctx, team, rank));
            failed |= mapped.is_none();
            addresses.write(rank as usize, mapped.map_or(0, DeviceSlice::address));
            rank += gpu::block_threads();
        }
        if gpu::sync_threads_or(failed) { Err(ctx.exit(NOT_MAPPED)) } else { Ok(Self(addresses)) }
    }

    /// Returns the lines of `rank`'s copy of the slice.
    #[inline(always)]
    pub(crate) fn lines(self, rank: u32) -> Lines {
        // SAFETY: `find` looked up this address of the same symmetric memory on another PE.
        unsafe { Lines::at(self.0.read(rank as usize)) }
    }
}

/// Executes a fence that orders the accesses of this kernel and of the kernels before and after it.
/// A kernel that sends lines calls this function first, and a kernel that receives lines calls it
/// last. On GPUs this function does nothing, because kernel boundaries order the accesses.
#[inline(always)]
pub(crate) fn order() {
    if !cfg!(target_arch = "nvptx64") {
        <Sys as Fence>::acq_rel();
    }
}
