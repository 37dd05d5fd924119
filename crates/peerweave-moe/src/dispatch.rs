//! The three kernels of a dispatch: send, plan, receive.
//!
//! Every rank pushes a routing table to every rank. The table has the number of the rank's tokens,
//! and the experts and weights of each token. Every rank also pushes each token once to each rank
//! that has at least one of the token's experts. So no rank needs an answer before it sends.

use crate::call::{Peers, order, pe_of};
use crate::layout::{Exchange, MAX_LOCAL_EXPERTS, NO_SUCH_EXPERT, NOTHING, REPEATED_EXPERT, table_lines};
use crate::line::{BATCH, Rows, halves, in_batches, push_batch, take, take_batch};
use peerweave_device::gpu::Vector;
use peerweave_device::prelude::*;

/// Maximum number of threads of [`moe_dispatch_plan()`], which runs as one block.
pub const PLAN_THREADS: u32 = 512;

/// Maximum number of threads in each block of the kernels that run as several blocks.
pub const THREADS: u32 = 512;

/// Maximum number of warps of the kernel `moe_dispatch_plan`.
const WARPS: usize = PLAN_THREADS as usize / 32;

/// Returns the index of this thread in the grid, and the number of threads of the grid.
#[inline(always)]
fn position() -> (u64, u64) {
    let threads = u64::from(gpu::block_threads());
    let first = u64::from(gpu::block_rank()) * threads + u64::from(gpu::thread_rank());
    (first, gpu::grid_dim().count() * threads)
}

/// Sends each of `count` tokens with its scales to the ranks that have the token's experts. Also
/// sends a routing table, with all experts and weights, to every rank.
///
/// `experts` and `weights` have `top_k` elements for each token. -1 stands for no expert. All other
/// experts of a token must be distinct. The kernel does not wait for any other rank.
#[allow(clippy::too_many_arguments, reason = "with separate arguments, the launch checks the memory of each argument")]
#[kernel(max_threads = 512)]
pub fn moe_dispatch_send(
    ctx: &Context,
    exchange: Exchange,
    team: KernelTeam,
    tokens: SymSlice<u128>,
    scales: SymSlice<u128>,
    experts: SymSlice<i32>,
    weights: SymSlice<f32>,
    count: u32,
) -> Result<(), Failed> {
    order();
    let peers = Peers::find(ctx, &exchange, team, exchange.inbox)?;
    let bank = ctx.local(exchange.counter).read(0);
    let (experts, weights) = (ctx.local(experts), ctx.local(weights));
    let (top_k, entries) = (u64::from(exchange.top_k), u64::from(count) * u64::from(exchange.top_k));
    let all_experts = exchange.ranks * exchange.local_experts;

    let entry = |index: u64| {
        if index >= entries {
            return Ok(u64::from(NOTHING));
        }
        let expert = experts.read(index as usize);
        if expert < -1 || expert >= all_experts as i32 {
            return Err(ctx.exit(NO_SUCH_EXPERT | u64::from(expert as u32)));
        }
        for earlier in index / top_k * top_k..index {
            if expert >= 0 && experts.read(earlier as usize) == expert {
                return Err(ctx.exit(REPEATED_EXPERT | u64::from(expert as u32)));
            }
        }
        Ok(u64::from(expert as u32) | (u64::from(weights.read(index as usize).to_bits()) << 32))
    };
    let (first, step) = position();
    let mut line = first;
    while line < table_lines(entries) {
        let value = if line == 0 { [u64::from(count), 0] } else { [entry(2 * line - 2)?, entry(2 * line - 1)?] };
        for rank in 0..exchange.ranks {
            peers.lines(rank).push(exchange.table(bank, exchange.rank) + line, value);
        }
        line += step;
    }

    let rows = Rows::new(ctx, &exchange, tokens, scales, 0);
    let mut token = u64::from(gpu::block_rank());
    while token < u64::from(count) {
        let mut ranks = 0_u64;
        for k in 0..top_k {
            let expert = experts.read((token * top_k + k) as usize);
            if expert >= 0 && expert < all_experts as i32 {
                ranks |= 1 << (expert as u32 / exchange.local_experts);
            }
        }
        let row = exchange.row(bank, exchange.rank, token);
        in_batches(exchange.row_lines(), |batch| {
            let mut values = [[0; 2]; BATCH];
            rows.read_batch(token, batch, &mut values);
            // Each rank sends to the next rank first, so that not all ranks send to one rank at the
            // same time.
            let (mut after, mut until) = (ranks >> exchange.rank >> 1, ranks & (u64::MAX >> (63 - exchange.rank)));
            while after != 0 || until != 0 {
                let rank = if after != 0 {
                    let next = after.trailing_zeros();
                    after &= after - 1;
                    next + exchange.rank + 1
                } else {
                    let next = until.trailing_zeros();
                    until &= until - 1;
                    next
                };
                push_batch(peers.lines(rank), row, batch, &values);
            }
            Ok(())
        })?;
        token += gpu::grid_dim().count();
    }
    Ok(())
}

/// Receives the routing tables, and assigns one row to each token for each of the token's experts
/// on this rank. Rows are ordered by expert, then by rank, then by token. Launch this kernel as one
/// block.
///
/// Writes the index of each expert's first row to `offsets`. The last element of `offsets` is the
/// total number of rows. The kernel does not access `rows` and `scales`, to which the kernel
/// `moe_dispatch_receive` writes. They are arguments only so that an error in them is found when
/// this kernel is launched.
#[kernel(max_threads = 512)]
pub fn moe_dispatch_plan(
    ctx: &Context,
    exchange: Exchange,
    team: KernelTeam,
    rows: SymSlice<u128>,
    scales: SymSlice<u128>,
    offsets: SymSlice<u32>,
) -> Result<(), Failed> {
    let _ = (rows, scales);
    let counter = ctx.local(exchange.counter);
    let bank = counter.read(0);
    let received = receive_tables(ctx, &exchange, team, bank);
    if gpu::sync_threads_or(received.is_err()) {
        // A thread that has not failed itself calls `exit`. This call has no effect, because
        // another thread has already reported its failure.
        return received.and_then(|()| Err(ctx.exit(0)));
    }
    place(ctx, &exchange, ctx.local(offsets));
    if gpu::thread_rank() == 0 {
        counter.write(0, bank + 1);
    }
    order();
    Ok(())
}

/// Receives the routing tables of all ranks, and stores the entries of these tables. `bank` is the
/// number of this dispatch, which selects a bank of the inbox.
#[inline(always)]
fn receive_tables(ctx: &Context, exchange: &Exchange, team: KernelTeam, bank: u64) -> Result<(), Failed> {
    let inbox = exchange.own(ctx, exchange.inbox);
    let counts = ctx.local(exchange.counts);
    let sentinel = halves(exchange.sentinel);
    let mut rank = gpu::thread_rank();
    let mut outcome = Ok(());
    while rank < exchange.ranks && outcome.is_ok() {
        let at = exchange.table(bank, rank);
        outcome = take(inbox, ctx, sentinel, at, || pe_of(ctx, team, rank)).map(|[count, _]| {
            counts.write(rank as usize, (count as u32).min(exchange.max_tokens));
        });
        rank += gpu::block_threads();
    }
    if gpu::sync_threads_or(outcome.is_err()) {
        return outcome.and_then(|()| Err(ctx.exit(0)));
    }
    for rank in 0..exchange.ranks {
        let arriving = u64::from(counts.read(rank as usize)) * u64::from(exchange.top_k);
        let at = exchange.table(bank, rank);
        let mut line = 1 + u64::from(gpu::thread_rank());
        while line < table_lines(exchange.entries_per_rank()) {
            let mut value: Vector = [u64::from(NOTHING); 2];
            if line < table_lines(arriving) {
                value = take(inbox, ctx, sentinel, at + line, || pe_of(ctx, team, rank))?;
            }
            keep(ctx, exchange, rank, 2 * line - 2, value[0]);
            keep(ctx, exchange, rank, 2 * line - 1, value[1]);
            line += u64::from(gpu::block_threads());
        }
    }
    Ok(())
}

/// Stores one entry of a routing table. `rank` has sent the table, and `index` is the index of the
/// entry in the table. The entry consists of the number of an expert and a weight. Experts are
/// numbered over all ranks. If `index` is after the last entry, stores nothing.
#[inline(always)]
fn keep(ctx: &Context, exchange: &Exchange, rank: u32, index: u64, entry: u64) {
    if index >= exchange.entries_per_rank() {
        return;
    }
    let (expert, weight) = (entry as u32, entry & !u64::from(u32::MAX));
    let local = if expert == NOTHING { NOTHING } else { expert.wrapping_sub(exchange.rank * exchange.local_experts) };
    let local = if local < exchange.local_experts { local } else { NOTHING };
    ctx.local(exchange.entries).write(exchange.entry(rank, 0) + index as usize, weight | u64::from(local));
    if rank == exchange.rank {
        let route = if expert == NOTHING { NOTHING } else { expert / exchange.local_experts };
        ctx.local(exchange.routes).write(index as usize, route);
    }
}

/// Assigns a row to each entry whose expert is on this rank, and writes the index of the row to
/// [`Exchange::places`]. The token of the entry is later stored in this row. Also writes the first
/// row of each expert to `offsets`, and the total number of rows to the last element of `offsets`.
///
/// Each warp has a range of entries, and counts the entries of each expert in its range. From the
/// counts of all warps, the function computes the first row of each warp for each expert.
#[inline(always)]
fn place(ctx: &Context, exchange: &Exchange, offsets: DeviceSlice<u32>) {
    let counted = peerweave_device::shared_array!(COUNTED: [u32; WARPS * MAX_LOCAL_EXPERTS]);
    let totals = peerweave_device::shared_array!(TOTALS: [u32; MAX_LOCAL_EXPERTS]);
    let firsts = peerweave_device::shared_array!(FIRSTS: [u32; MAX_LOCAL_EXPERTS]);
    let (entries, places) = (ctx.local(exchange.entries), ctx.local(exchange.places));
    let (thread, threads) = (gpu::thread_rank() as usize, gpu::block_threads() as usize);
    let experts = exchange.local_experts as usize;
    let (warp, warps) = (thread / 32, threads.div_ceil(32));
    let all = exchange.ranks as usize * exchange.entries_per_rank() as usize;
    let per_warp = all.div_ceil(warps).next_multiple_of(32);
    let mine = |expert: u32| warp * experts + expert as usize;
    let alone = gpu::warp_mask() == 1;
    let (lane, lanes) = (gpu::lane() as usize, gpu::warp_mask().count_ones() as usize);

    let mut index = thread;
    while index < warps * experts {
        counted.write(index, 0);
        index += threads;
    }
    gpu::sync_threads();
    // Number of bits that distinguish the experts of this rank.
    let bits = u32::BITS - (exchange.local_experts - 1).leading_zeros();
    let end = (per_warp * (warp + 1)).min(all);
    let mut start = per_warp * warp;
    while start < end {
        let index = start + lane;
        let expert = if index < end { entries.read(index) as u32 } else { NOTHING };
        let is_here = expert != NOTHING;
        // One bit for each lane with the same expert. The first of these lanes counts for all of
        // them.
        let same = if alone {
            1
        } else {
            let mut same = gpu::vote_ballot(gpu::warp_members(), is_here);
            for bit in 0..bits {
                let ones = gpu::vote_ballot(gpu::warp_members(), (expert >> bit) & 1 == 1);
                same &= if (expert >> bit) & 1 == 1 { ones } else { !ones };
            }
            same
        };
        let before = if is_here { counted.read(mine(expert)) } else { 0 };
        sync_lanes(alone);
        if is_here && same.trailing_zeros() == lane as u32 {
            counted.write(mine(expert), before + same.count_ones());
        }
        sync_lanes(alone);
        if index < end {
            let earlier = (same & ((1 << lane) - 1)).count_ones();
            places.write(index, if is_here { before + earlier } else { NOTHING });
        }
        start += lanes;
    }
    gpu::sync_threads();
    let mut expert = thread;
    while expert < experts {
        let mut total = 0;
        for warp in 0..warps {
            let count = counted.read(warp * experts + expert);
            counted.write(warp * experts + expert, total);
            total += count;
        }
        totals.write(expert, total);
        expert += threads;
    }
    gpu::sync_threads();
    if warp == 0 {
        add_up(experts, totals, |expert, first| {
            if expert < experts {
                firsts.write(expert, first);
            }
            offsets.write(expert, first);
        });
    }
    gpu::sync_threads();
    let mut start = per_warp * warp;
    while start < end {
        let index = start + lane;
        if index < end {
            let expert = entries.read(index) as u32;
            if expert != NOTHING {
                let first = firsts.read(expert as usize) + counted.read(mine(expert));
                places.write(index, first + places.read(index));
            }
        }
        start += lanes;
    }
}

/// Computes the exclusive prefix sums of `totals`, which has one total for each expert. Calls
/// `each` with the number of each expert and the sum of the totals of the experts with lower
/// numbers. Also calls `each` with `experts` and the sum of all totals. All threads of one warp
/// must call this function. They divide the experts among themselves.
#[inline(always)]
fn add_up(experts: usize, totals: SharedSlice<u32>, each: impl Fn(usize, u32)) {
    let (members, lane, lanes) = (gpu::warp_members(), gpu::lane(), gpu::warp_mask().count_ones());
    let (mut start, mut before) = (0, 0);
    while start < experts {
        let expert = start + lane as usize;
        let total = if expert < experts { totals.read(expert) } else { 0 };
        // After each step, `sum` includes the totals of twice as many lanes.
        let (mut sum, mut by) = (total, 1);
        while by < lanes {
            let other = gpu::shuffle_up(members, sum, by);
            sum += if lane >= by { other } else { 0 };
            by *= 2;
        }
        if expert < experts {
            each(expert, before + sum - total);
        }
        before += gpu::shuffle_idx(members, sum, lanes - 1);
        start += lanes as usize;
    }
    if lane == 0 {
        each(experts, before);
    }
}

/// Waits until all threads of the warp have called this function. `alone` states whether the warp
/// has only one thread. In this case, the function returns at once on the host.
#[inline(always)]
fn sync_lanes(alone: bool) {
    if cfg!(target_arch = "nvptx64") || !alone {
        gpu::sync_warp(gpu::warp_members());
    }
}

/// Receives the tokens for the experts of this rank. Copies each token to one row for each of the
/// token's experts on this rank.
#[kernel(max_threads = 512)]
pub fn moe_dispatch_receive(
    ctx: &Context,
    exchange: Exchange,
    team: KernelTeam,
    rows: SymSlice<u128>,
    scales: SymSlice<u128>,
) -> Result<(), Failed> {
    let inbox = exchange.own(ctx, exchange.inbox);
    let counts = ctx.local(exchange.counts);
    let all = (0..exchange.ranks).fold(0, |all, rank| all + u64::from(counts.read(rank as usize) * exchange.top_k));
    let rows = Rows::new(ctx, &exchange, rows, scales, if cfg!(target_arch = "nvptx64") { 0 } else { all });
    // The previous kernel, `moe_dispatch_plan`, has counted this dispatch.
    let bank = ctx.local(exchange.counter).read(0).wrapping_sub(1);
    each_token(ctx, &exchange, |rank, token, wanted| {
        let places = ctx.local(exchange.places);
        let entry = exchange.entry(rank, token);
        let at = exchange.row(bank, rank, token);
        in_batches(exchange.row_lines(), |batch| {
            let mut values = [[0; 2]; BATCH];
            take_batch(inbox, ctx, halves(exchange.sentinel), at, batch, &mut values, || pe_of(ctx, team, rank))?;
            let mut left = wanted;
            while left != 0 {
                let place = u64::from(places.read(entry + left.trailing_zeros() as usize));
                left &= left - 1;
                rows.write_batch(place, batch, &values);
            }
            Ok(())
        })
    })?;
    rows.end();
    order();
    Ok(())
}

/// Calls `each` for every token that has an expert on this rank. The arguments are the rank that
/// sent the token, the index of the token on that rank, and a mask. Bit `k` of the mask is 1 if
/// this rank has expert `k` of the token, where the token's experts are counted from 0. The tokens
/// are divided among the blocks.
#[inline(always)]
pub(crate) fn each_token(
    ctx: &Context,
    exchange: &Exchange,
    mut each: impl FnMut(u32, u64, u32) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let (counts, places) = (ctx.local(exchange.counts), ctx.local(exchange.places));
    let all = u64::from(exchange.ranks) * u64::from(exchange.max_tokens);
    let mut index = u64::from(gpu::block_rank());
    while index < all {
        // Neighbouring blocks have tokens of different ranks, and each rank begins with its own
        // tokens.
        let rank = (exchange.rank + (index % u64::from(exchange.ranks)) as u32) % exchange.ranks;
        let token = index / u64::from(exchange.ranks);
        if token < u64::from(counts.read(rank as usize)) {
            let entry = exchange.entry(rank, token);
            let mut wanted = 0;
            for k in 0..exchange.top_k {
                if places.read(entry + k as usize) != NOTHING {
                    wanted |= 1 << k;
                }
            }
            if wanted != 0 {
                each(rank, token, wanted)?;
            }
        }
        index += gpu::grid_dim().count();
    }
    Ok(())
}
