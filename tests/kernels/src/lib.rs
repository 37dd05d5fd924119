//! Kernels that the tests and checks of the GPU crates launch. Each kernel tests one property of
//! launches, contexts, waits or collectives.
#![no_std]

use peerweave_device::prelude::*;

/// Writes `10 * PE + 7` to the word of the next PE, signals the next PE, and waits for the signal
/// of the previous PE.
#[kernel]
pub fn ring(ctx: &Context, word: SymSlice<u64>, signal: SymSlice<u64>, round: u64) -> Result<(), Failed> {
    let next = (ctx.my_pe() + 1) % ctx.n_pes();
    ctx.p(word, 10 * ctx.my_pe() as u64 + 7, next);
    ctx.signal_op(signal, round, SignalOp::Set, next);
    ctx.signal_wait_until(signal, Compare::Ge, round)?;
    Ok(())
}

/// Waits for a value that no PE writes, until the deadline or an abort. The report names `from` as
/// the missing PE.
#[kernel]
pub fn wait_for_ever(ctx: &Context, signal: SymSlice<u64>, from: u32) -> Result<(), Failed> {
    ctx.signal_wait_until_from(signal, Compare::Ge, u64::MAX, from)?;
    Ok(())
}

/// Like [`wait_for_ever()`], by all threads of the block.
#[kernel]
pub fn wait_for_ever_block(ctx: &Context, signal: SymSlice<u64>, from: u32) -> Result<(), Failed> {
    ctx.signal_wait_until_from_block(signal, Compare::Ge, u64::MAX, from)
}

/// Writes `first + i` to element `i`, without communication.
#[kernel]
pub fn count_up(ctx: &Context, to: SymSlice<u64>, first: u64) {
    let threads = gpu::grid_dim().x * gpu::block_dim().x;
    let mut at = gpu::block_idx().x * gpu::block_dim().x + gpu::thread_idx().x;
    while (at as usize) < to.len() {
        ctx.p(to.at(at as usize), first + at as u64, ctx.my_pe());
        at += threads;
    }
}

/// Synchronises all PEs by `rounds` barriers.
#[kernel]
pub fn barriers(ctx: &Context, rounds: u32) -> Result<(), Failed> {
    for _ in 0..rounds {
        ctx.barrier_all_block()?;
    }
    Ok(())
}

/// Makes `rounds` rounds. In each round, adds this PE's number plus 1 to the word of each member of
/// a team, and then synchronises the team by a barrier.
#[kernel]
pub fn meet_in_team(ctx: &Context, team: KernelTeam, word: SymSlice<u64>, rounds: u32) -> Result<(), Failed> {
    for _ in 0..rounds {
        if gpu::thread_rank() == 0 {
            for rank in 0..ctx.team_n_pes(team) {
                ctx.atomic_add(word, u64::from(ctx.my_pe()) + 1, ctx.team_pe(team, rank).unwrap_or(u32::MAX));
            }
        }
        ctx.barrier_block(team)?;
    }
    Ok(())
}

/// Sums `from` of all members of a team, and writes the sums to `to` of each member.
#[kernel]
pub fn sum_in_team(ctx: &Context, team: KernelTeam, to: SymSlice<u32>, from: SymSlice<u32>) -> Result<(), Failed> {
    ctx.reduce_block(team, to, from, Sum)
}

/// Writes the multicast address of the heap's first byte to `found`; 0 if the heap has no multicast
/// address.
#[kernel]
pub fn multicast_base(ctx: &Context, found: SymSlice<u64>) {
    let base = ctx.get_multicast_array(found).map_or(0, |view| view.address(0) - found.offset().0);
    ctx.local(found).write(0, base);
}
