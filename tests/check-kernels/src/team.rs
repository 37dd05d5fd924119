//! Checks barriers and syncs at each scope: no member continues before all members have arrived,
//! and earlier puts are visible afterwards.

use crate::{Check, apart, takes_part};
use peerweave_device::prelude::*;

/// Required number of words of `words` for each block.
pub const WORDS: usize = 2;

/// Number of rounds in which each barrier and sync is checked.
const ROUNDS: u64 = 5;

/// Checks one barrier or sync. In each round every member adds to a word of every member, makes the
/// call `$call`, and compares its own word. `$syncs` is whether the call is a sync.
macro_rules! meets {
    ($check:ident, $team:ident, $words:ident, $total:ident, $scope:ident, $syncs:literal, $call:expr) => {
        for _ in 0..ROUNDS {
            let (ctx, size) = ($check.ctx, $check.ctx.team_n_pes($team));
            if gpu::thread_rank() == 0 {
                for rank in 0..size {
                    let pe = ctx.team_pe($team, rank).unwrap_or(u32::MAX);
                    ctx.atomic_add_relaxed($words.at(0), 1, pe);
                }
                // Only a barrier completes the additions. Before a sync, a quiet completes them.
                if $syncs {
                    ctx.quiet();
                }
            }
            gpu::sync_threads();
            if takes_part!($scope) {
                apart(|| $call)?;
            }
            gpu::sync_threads();
            // A relaxed sync orders nothing, so a fence follows.
            if $syncs {
                ctx.fence();
            }
            $total += u64::from(size);
            $check.same(line!(), ctx.signal_fetch($words.at(0)), $total);
            gpu::sync_threads();
            // No PE may add for the next round before all PEs have compared their words in this
            // round.
            apart(|| ctx.barrier_block($team))?;
        }
    };
}

/// Checks the barriers and syncs of `team`, of which this PE must be a member. `words` has
/// [`WORDS`] words for each block, initially 0.
#[kernel]
pub fn check_team(ctx: &Context, team: KernelTeam, words: SymSlice<u64>, result: SymSlice<u64>) -> Result<(), Failed> {
    let check = Check::new(ctx, result);
    let block = gpu::block_rank() as usize;
    let words = words.slice(WORDS * block..WORDS * (block + 1));
    let mut total = 0;
    let rank = ctx.team_my_pe(team);
    check.same(line!(), u64::from(rank.and_then(|rank| ctx.team_pe(team, rank)).unwrap_or(u32::MAX)), u64::from(ctx.my_pe()));
    check.same(line!(), u64::from(ctx.team_pe(team, ctx.team_n_pes(team)).is_some()), 0);
    meets!(check, team, words, total, thread, false, ctx.barrier(team));
    meets!(check, team, words, total, warp, false, ctx.barrier_warp(team));
    meets!(check, team, words, total, block, false, ctx.barrier_block(team));
    meets!(check, team, words, total, thread, true, ctx.sync(team));
    meets!(check, team, words, total, warp, true, ctx.sync_warp(team));
    meets!(check, team, words, total, block, true, ctx.sync_block(team));
    meets!(check, team, words, total, thread, true, ctx.sync_relaxed(team));
    meets!(check, team, words, total, warp, true, ctx.sync_relaxed_warp(team));
    meets!(check, team, words, total, block, true, ctx.sync_relaxed_block(team));
    check.finish();
    Ok(())
}

/// Checks the barriers and syncs of all PEs. `words` is as for [`check_team()`].
#[kernel]
pub fn check_team_all(ctx: &Context, words: SymSlice<u64>, result: SymSlice<u64>) -> Result<(), Failed> {
    let check = Check::new(ctx, result);
    let (team, block) = (KernelTeam::WORLD, gpu::block_rank() as usize);
    let words = words.slice(WORDS * block..WORDS * (block + 1));
    let mut total = 0;
    check.same(line!(), u64::from(ctx.team_n_pes(team)), u64::from(ctx.n_pes()));
    meets!(check, team, words, total, thread, false, ctx.barrier_all());
    meets!(check, team, words, total, warp, false, ctx.barrier_all_warp());
    meets!(check, team, words, total, block, false, ctx.barrier_all_block());
    meets!(check, team, words, total, thread, true, ctx.sync_all());
    meets!(check, team, words, total, warp, true, ctx.sync_all_warp());
    meets!(check, team, words, total, block, true, ctx.sync_all_block());
    meets!(check, team, words, total, thread, true, ctx.sync_all_relaxed());
    meets!(check, team, words, total, warp, true, ctx.sync_all_relaxed_warp());
    meets!(check, team, words, total, block, true, ctx.sync_all_relaxed_block());
    check.finish();
    Ok(())
}
