//! The two kernels of a combination: send, receive.
//!
//! The experts of a token may be on several ranks. Each of these ranks multiplies the results of
//! its own experts by the experts' weights, and adds up the products in `f32`. The rank rounds this
//! partial sum to the element type of results, and sends the partial sum to the rank that sent the
//! token. The rank that sent the token adds up the partial sums in the order of ranks, again in
//! `f32`.

use crate::call::{Peers, order, pe_of};
use crate::dispatch::each_token;
use crate::layout::{Exchange, NOTHING};
use crate::line::{BATCH, Operand, halves, in_batches, push_batch, take_batch};
use crate::sums::{BFloat16, Class, Float16, Float32, Sums};
use peerweave_device::gpu;
use peerweave_device::prelude::*;

#[inline(always)]
fn send<C: Class>(ctx: &Context, exchange: &Exchange, team: KernelTeam, results: SymSlice<u128>) -> Result<(), Failed> {
    order();
    let peers = Peers::find(ctx, exchange, team, exchange.returns)?;
    let (places, entries) = (ctx.local(exchange.places), ctx.local(exchange.entries));
    let results = Operand::new(ctx, results);
    let result_lines = u64::from(exchange.result_lines);
    each_token(ctx, exchange, |rank, token, wanted| {
        let (to, at) = (peers.lines(rank), exchange.result(exchange.rank, token));
        let entry = exchange.entry(rank, token);
        in_batches(result_lines, |batch| {
            let (mut sums, mut lines) = (Sums::<C>::new(), [[0; 2]; BATCH]);
            let row = |left: u32| u64::from(places.read(entry + left.trailing_zeros() as usize)) * result_lines;
            let weight = |left: u32| f32::from_bits((entries.read(entry + left.trailing_zeros() as usize) >> 32) as u32);
            let mut left = wanted;
            while left != 0 {
                let (this, next) = (left, left & (left - 1));
                if cfg!(target_arch = "nvptx64") {
                    // The accesses to two rows are in flight at the same time.
                    let mut others = [[0; 2]; BATCH];
                    results.read_batch(row(this), batch, &mut lines);
                    if next != 0 {
                        results.read_batch(row(next), batch, &mut others);
                    }
                    let factor = weight(this);
                    sums.add(batch, &lines, |value| factor * value);
                    if next != 0 {
                        let factor = weight(next);
                        sums.add(batch, &others, |value| factor * value);
                    }
                    left = next & next.wrapping_sub(1);
                } else {
                    if next != 0 {
                        results.prefetch_batch(row(next), batch);
                    }
                    results.read_batch(row(this), batch, &mut lines);
                    let factor = weight(this);
                    sums.add(batch, &lines, |value| factor * value);
                    left = next;
                }
            }
            sums.round(batch, &mut lines);
            push_batch(to, at, batch, &lines);
            Ok(())
        })
    })
}

#[inline(always)]
fn receive<C: Class>(ctx: &Context, exchange: &Exchange, team: KernelTeam, outputs: SymSlice<u128>) -> Result<(), Failed> {
    let returns = exchange.own(ctx, exchange.returns);
    let (routes, counts) = (ctx.local(exchange.routes), ctx.local(exchange.counts));
    let outputs = Operand::new(ctx, outputs);
    let (top_k, result_lines) = (u64::from(exchange.top_k), u64::from(exchange.result_lines));
    let count = u64::from(counts.read(exchange.rank as usize));
    let mut token = u64::from(gpu::block_rank());
    while token < count {
        let mut ranks = 0_u64;
        for k in 0..top_k {
            let rank = routes.read((token * top_k + k) as usize);
            if rank != NOTHING {
                ranks |= 1 << rank;
            }
        }
        in_batches(result_lines, |batch| {
            let (mut sums, mut lines) = (Sums::<C>::new(), [[0; 2]; BATCH]);
            let mut left = ranks;
            while left != 0 {
                let rank = left.trailing_zeros();
                left &= left - 1;
                let at = exchange.result(rank, token);
                take_batch(returns, ctx, halves(exchange.sentinel), at, batch, &mut lines, || pe_of(ctx, team, rank))?;
                sums.add(batch, &lines, |value| value);
            }
            sums.round(batch, &mut lines);
            outputs.write_batch(token * result_lines, batch, &lines);
            Ok(())
        })?;
        token += gpu::grid_dim().count();
    }
    order();
    Ok(())
}

macro_rules! entries {
    ($($class:ident: $send:ident, $receive:ident;)*) => {$(
        /// Adds up this rank's weighted results for each token, and sends this partial sum to the
        /// rank that sent the token. `results` has a row for each row that the dispatch has filled
        /// on this rank.
        #[kernel(max_threads = 512)]
        pub fn $send(ctx: &Context, exchange: Exchange, team: KernelTeam, results: SymSlice<u128>) -> Result<(), Failed> {
            send::<$class>(ctx, &exchange, team, results)
        }

        /// Receives the partial sums for the tokens of this rank. Each rank that has experts of a
        /// token has sent one partial sum. Adds up the partial sums of each token, and writes the
        /// total to a row of `outputs`.
        #[kernel(max_threads = 512)]
        pub fn $receive(ctx: &Context, exchange: Exchange, team: KernelTeam, outputs: SymSlice<u128>) -> Result<(), Failed> {
            receive::<$class>(ctx, &exchange, team, outputs)
        }
    )*};
}

entries! {
    BFloat16: moe_combine_send_bf16, moe_combine_receive_bf16;
    Float16: moe_combine_send_f16, moe_combine_receive_f16;
    Float32: moe_combine_send_f32, moe_combine_receive_f32;
}
