//! Checks what a kernel can ask about its PEs and teams, and the waits of a kernel's own protocol.

use crate::{Check, takes_part};
use peerweave_device::prelude::*;
use peerweave_device::types::KernelOp;

/// Required number of words of `words`.
pub const WORDS: usize = 2;

/// Checks the numbers of PEs and ranks, mapped peers, and waits of the kernel's own protocol.
/// `words` has [`WORDS`] words, initially 0. The launch has one block.
#[kernel]
pub fn check_context(ctx: &Context, team: KernelTeam, words: SymSlice<u64>, result: SymSlice<u64>) -> Result<(), Failed> {
    let check = Check::new(ctx, result);
    let (me, next, before) = check.ring();
    let same = |line, found: Option<u32>, expected: Option<u32>| {
        let word = |rank: Option<u32>| rank.map_or(u64::MAX, u64::from);
        check.same(line, word(found), word(expected));
    };
    check.same(line!(), u64::from(me < ctx.n_pes()), 1);
    check.same(line!(), u64::from(ctx.node_pe() < ctx.node_n_pes()), 1);
    check.same(line!(), u64::from(ctx.node_n_pes() <= ctx.n_pes()), 1);
    for pe in 0..ctx.n_pes() {
        check.same(line!(), u64::from(ctx.get_peer_array(words, pe).is_some()), u64::from(ctx.is_mapped(pe)));
    }
    check.same(line!(), u64::from(ctx.is_mapped(ctx.n_pes())), 0);

    let size = ctx.team_n_pes(team);
    let world = KernelTeam::WORLD;
    for rank in 0..size {
        let pe = ctx.team_pe(team, rank);
        same(line!(), ctx.team_translate_pe(team, rank, world), pe);
        same(line!(), ctx.team_translate_pe(world, pe.unwrap_or(u32::MAX), team), Some(rank));
        same(line!(), ctx.team_translate_pe(team, rank, team), Some(rank));
    }
    same(line!(), ctx.team_translate_pe(team, size, world), None);
    same(line!(), ctx.team_translate_pe(world, ctx.n_pes(), team), None);
    same(line!(), ctx.team_my_pe(team).and_then(|rank| ctx.team_translate_pe(team, rank, world)), Some(me));

    // Waits until the previous PE has changed a word: by one thread, then by the block.
    if takes_part!(thread) {
        ctx.signal_op(words.at(0), 40, SignalOp::Set, next);
        let look = || Some(ctx.signal_fetch(words.at(0))).filter(|word| *word != 0);
        check.same(line!(), ctx.poll(KernelOp::WaitUntil, look, || before)?, 40);
        ctx.signal_op(words.at(1), 50, SignalOp::Set, next);
    }
    let polls = gpu::thread_rank() == gpu::block_threads() - 1;
    let look = || Some(()).filter(|()| ctx.signal_fetch(words.at(1)) == 50);
    ctx.poll_block(KernelOp::WaitUntil, polls, look, || before)?;
    check.same(line!(), ctx.local(words).read(1), 50);
    check.meet()?;
    check.finish();
    Ok(())
}
