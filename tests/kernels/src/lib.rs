//! Kernels that the tests and checks of the GPU crates launch; each tests one property of launches,
//! contexts or waits.
#![no_std]

use peerweave_device::prelude::*;

/// Puts `10 * PE + 7` into the next PE's word, signals it, and waits for the signal of the previous
/// PE.
#[kernel]
pub fn ring(ctx: &Context, word: SymSlice<u64>, signal: SymSlice<u64>, round: u64) -> Result<(), Failed> {
    let next = (ctx.my_pe() + 1) % ctx.n_pes();
    ctx.p(word, 10 * ctx.my_pe() as u64 + 7, next);
    ctx.signal_op(signal, round, SignalOp::Set, next);
    ctx.signal_wait_until(signal, Compare::Ge, round)?;
    Ok(())
}

/// Waits for a value that `from` never writes.
#[kernel]
pub fn wait_for_ever(ctx: &Context, signal: SymSlice<u64>, from: u32) -> Result<(), Failed> {
    ctx.signal_wait_until_from(signal, Compare::Ge, u64::MAX, from)?;
    Ok(())
}

/// Waits, as a block, for a value that `from` never writes.
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

/// Makes `rounds` barriers of all PEs.
#[kernel]
pub fn barriers(ctx: &Context, rounds: u32) -> Result<(), Failed> {
    for _ in 0..rounds {
        ctx.barrier_all_block()?;
    }
    Ok(())
}

/// Adds this PE's number plus 1 to the word of each member of a team, then makes a barrier of the
/// team: `rounds` times.
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

/// Sums the elements of all members of a team.
#[kernel]
pub fn sum_in_team(ctx: &Context, team: KernelTeam, to: SymSlice<u32>, from: SymSlice<u32>) -> Result<(), Failed> {
    ctx.reduce_block(team, to, from, Sum)
}

/// Writes the multicast address of the heap's first byte to `found`; 0 if there is none.
#[kernel]
pub fn multicast_base(ctx: &Context, found: SymSlice<u64>) {
    let base = ctx.get_multicast_array(found).map_or(0, |view| view.address(0) - found.offset().0);
    ctx.local(found).write(0, base);
}
