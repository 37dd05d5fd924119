//! The two kernels of a combination: send, receive.
//!
//! A rank adds up the results of its experts for a token, each times its weight, in `f32`, and
//! sends the sum once to the rank of the token, rounded to the type of results. That rank adds up
//! the sums of all ranks in the order of ranks, again in `f32`.

use crate::call::{Exchange, NOTHING, Peers, order, pe_of};
use crate::dispatch::{each_token, in_batches};
use crate::line::{BATCH, Operand, halves};
use peerweave_device::gpu::{self, Vector};
use peerweave_device::prelude::*;

/// Maximum number of elements of a line.
const MOST: usize = 8;

/// A type of results.
trait Class {
    /// Converts the elements of a line. Those behind the last one are 0.
    fn unpack(line: Vector) -> [f32; MOST];
    /// Converts back, rounded to nearest even.
    fn pack(values: [f32; MOST]) -> Vector;
}

/// Applies a conversion to the four words of a line.
#[inline(always)]
fn words(line: Vector, values: impl Fn(u32) -> [f32; 2]) -> [f32; MOST] {
    let [a, b] = values(line[0] as u32);
    let [c, d] = values((line[0] >> 32) as u32);
    let [e, f] = values(line[1] as u32);
    let [g, h] = values((line[1] >> 32) as u32);
    [a, b, c, d, e, f, g, h]
}

/// The inverse of [`words`].
#[inline(always)]
fn line([a, b, c, d, e, f, g, h]: [f32; MOST], pair: impl Fn([f32; 2]) -> u32) -> Vector {
    let half = |low: u32, high: u32| u64::from(low) | (u64::from(high) << 32);
    [half(pair([a, b]), pair([c, d])), half(pair([e, f]), pair([g, h]))]
}

struct BFloat16;
struct Float16;
struct Float32;

impl Class for BFloat16 {
    #[inline(always)]
    fn unpack(from: Vector) -> [f32; MOST] {
        words(from, |pair| [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)])
    }
    #[inline(always)]
    fn pack(values: [f32; MOST]) -> Vector {
        line(values, gpu::bf16_pair)
    }
}

impl Class for Float16 {
    #[inline(always)]
    fn unpack(from: Vector) -> [f32; MOST] {
        words(from, gpu::f16_values)
    }
    #[inline(always)]
    fn pack(values: [f32; MOST]) -> Vector {
        line(values, gpu::f16_pair)
    }
}

impl Class for Float32 {
    #[inline(always)]
    fn unpack(line: Vector) -> [f32; MOST] {
        let value = |bits: u64| f32::from_bits(bits as u32);
        [value(line[0]), value(line[0] >> 32), value(line[1]), value(line[1] >> 32), 0.0, 0.0, 0.0, 0.0]
    }
    #[inline(always)]
    fn pack(values: [f32; MOST]) -> Vector {
        let bits = |index: usize| u64::from(values[index].to_bits());
        [bits(0) | (bits(1) << 32), bits(2) | (bits(3) << 32)]
    }
}

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
        in_batches(result_lines, |line, step, count| {
            let mut sums = [[0.0; MOST]; BATCH];
            let mut left = wanted;
            while left != 0 {
                let index = entry + left.trailing_zeros() as usize;
                left &= left - 1;
                let place = u64::from(places.read(index));
                let weight = f32::from_bits((entries.read(index) >> 32) as u32);
                for index in 0..BATCH {
                    if index < count {
                        let values = C::unpack(results.read(place * result_lines + line + index as u64 * step));
                        for element in 0..MOST {
                            sums[index][element] += weight * values[element];
                        }
                    }
                }
            }
            for index in 0..BATCH {
                if index < count {
                    to.push(at + line + index as u64 * step, C::pack(sums[index]));
                }
            }
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
        in_batches(result_lines, |line, step, count| {
            let mut sums = [[0.0; MOST]; BATCH];
            let mut left = ranks;
            while left != 0 {
                let rank = left.trailing_zeros();
                left &= left - 1;
                let at = exchange.result(rank, token) + line;
                let values = returns.take::<BATCH>(
                    ctx,
                    halves(exchange.sentinel),
                    |index| index < count,
                    |index| at + index as u64 * step,
                    |_| pe_of(ctx, team, rank),
                )?;
                for index in 0..BATCH {
                    let values = C::unpack(values[index]);
                    for element in 0..MOST {
                        sums[index][element] += values[element];
                    }
                }
            }
            for index in 0..BATCH {
                if index < count {
                    outputs.write(token * result_lines + line + index as u64 * step, C::pack(sums[index]));
                }
            }
            Ok(())
        })?;
        token += gpu::grid_dim().count();
    }
    order();
    Ok(())
}

macro_rules! entries {
    ($($class:ident: $send:ident, $receive:ident;)*) => {$(
        /// Sends the weighted sum of this rank's results for each token to the rank of the token.
        /// `results` has a row for each row of the dispatch.
        #[kernel(max_threads = 512)]
        pub fn $send(ctx: &Context, exchange: Exchange, team: KernelTeam, results: SymSlice<u128>) -> Result<(), Failed> {
            send::<$class>(ctx, &exchange, team, results)
        }

        /// Receives the sums of all ranks, and adds them up into a row of `outputs` for each token.
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
