//! Collectives at warp and block scope, with each element type and each reduction.

use crate::{Check, Sample, takes_part};
use peerweave_device::api::combine::{Combine, Reducible};
use peerweave_device::prelude::*;
use peerweave_types::{bf16, f16};

/// Elements of `send` and `recv` for each PE.
pub const ELEMENTS: usize = 70;

/// Lengths for each PE: fewer than lanes, no multiple of a vector, more than threads.
const LENGTHS: [usize; 3] = [1, 13, 67];

/// 1 or 2: products of up to eight of them are exact in every type.
fn operand(rank: u32, i: usize) -> u64 {
    1 + (u64::from(rank) + i as u64 / 3) % 2
}

/// Any number, different for each rank and element.
fn number(rank: u32, i: usize) -> u64 {
    1 + 70 * u64::from(rank) + i as u64
}

/// What the kernel works with.
struct Collectives<'a, T> {
    check: Check<'a>,
    team: KernelTeam,
    send: SymSlice<T>,
    recv: SymSlice<T>,
    rank: u32,
    size: u32,
}

impl<T: Sample> Collectives<'_, T> {
    /// Fills `send` and empties `recv`, calls, compares `recv`, and waits until all have.
    #[inline(always)]
    fn run(
        &self,
        line: u32,
        inside: bool,
        given: impl Fn(usize) -> u64,
        call: impl FnOnce() -> Result<(), Failed>,
        expected: impl Fn(usize) -> u64,
    ) -> Result<(), Failed> {
        self.check.fill(self.send, given);
        self.check.fill(self.recv, |_| 0);
        self.check.ctx.barrier_block(self.team)?;
        let outcome = if inside { call() } else { Ok(()) };
        gpu::sync_threads();
        outcome?;
        self.check.expect(line, self.recv, expected);
        self.check.ctx.barrier_block(self.team)
    }
}

macro_rules! scope {
    ($moves:ident, $reduces:ident, $scope:ident: $broadcast:ident, $fcollect:ident, $alltoall:ident, $reduce:ident, $reducescatter:ident) => {
        fn $moves<T: Sample>(c: &Collectives<'_, T>) -> Result<(), Failed> {
            let (ctx, team, rank, n) = (c.check.ctx, c.team, c.rank, c.size as usize);
            let inside = takes_part!($scope);
            for len in LENGTHS {
                for root in [0, c.size - 1] {
                    let call = || ctx.$broadcast(team, c.recv.slice(..len), c.send.slice(..len), root);
                    let expected = |i: usize| if i < len { number(root, i) } else { 0 };
                    c.run(line!(), inside, |i| number(rank, i), call, expected)?;
                }
                let call = || ctx.$fcollect(team, c.recv.slice(..len * n), c.send.slice(..len));
                let expected = |i: usize| if i < len * n { number((i / len) as u32, i % len) } else { 0 };
                c.run(line!(), inside, |i| number(rank, i), call, expected)?;
                let call = || ctx.$alltoall(team, c.recv.slice(..len * n), c.send.slice(..len * n));
                let expected = |i: usize| if i < len * n { number((i / len) as u32, rank as usize * len + i % len) } else { 0 };
                c.run(line!(), inside, |i| number(rank, i), call, expected)?;
            }
            Ok(())
        }

        fn $reduces<T: Sample + Reducible, C: Combine<T>>(
            c: &Collectives<'_, T>,
            combine: C,
            fold: fn(u64, u64) -> u64,
        ) -> Result<(), Failed> {
            let (ctx, team, rank, n) = (c.check.ctx, c.team, c.rank, c.size as usize);
            let inside = takes_part!($scope);
            let all = |i: usize| (1..c.size).fold(operand(0, i), |sum, rank| fold(sum, operand(rank, i)));
            for len in LENGTHS {
                let call = || ctx.$reduce(team, c.recv.slice(..len), c.send.slice(..len), combine);
                c.run(line!(), inside, |i| operand(rank, i), call, |i| if i < len { all(i) } else { 0 })?;
                let call = || ctx.$reducescatter(team, c.recv.slice(..len), c.send.slice(..len * n), combine);
                let expected = |i: usize| if i < len { all(rank as usize * len + i) } else { 0 };
                c.run(line!(), inside, |i| operand(rank, i), call, expected)?;
            }
            Ok(())
        }
    };
}

scope!(moves_warp, reduces_warp, warp: broadcast_warp, fcollect_warp, alltoall_warp, reduce_warp, reducescatter_warp);
scope!(moves_block, reduces_block, block: broadcast_block, fcollect_block, alltoall_block, reduce_block, reducescatter_block);

/// One kernel for each element type: at both scopes, what moves elements and each reduction.
macro_rules! kernels {
    ($($name:ident: $t:ty, $($operation:ident |$a:ident, $b:ident| $fold:expr),*;)*) => {$(
        #[doc = concat!("Checks collectives of `", stringify!($t), "`. `send` and `recv` have [`ELEMENTS`] elements for each member of `team`, at most eight.")]
        /// One block.
        #[kernel]
        pub fn $name(
            ctx: &Context,
            team: KernelTeam,
            send: SymSlice<$t>,
            recv: SymSlice<$t>,
            result: SymSlice<u64>,
        ) -> Result<(), Failed> {
            let (rank, size) = (ctx.team_my_pe(team).unwrap_or(0), ctx.team_n_pes(team));
            let c = Collectives { check: Check::new(ctx, result), team, send, recv, rank, size };
            moves_warp(&c)?;
            moves_block(&c)?;
            $(
                reduces_warp(&c, $operation, |$a, $b| $fold)?;
                reduces_block(&c, $operation, |$a, $b| $fold)?;
            )*
            c.check.finish();
            Ok(())
        }
    )*};
}

macro_rules! integers {
    ($($name:ident: $t:ty;)*) => {
        kernels! {$(
            $name: $t, Sum |a, b| a + b, Prod |a, b| a * b, Min |a, b| a.min(b), Max |a, b| a.max(b), And |a, b| a & b,
                Or |a, b| a | b, Xor |a, b| a ^ b;
        )*}
    };
}

macro_rules! floats {
    ($($name:ident: $t:ty;)*) => {
        kernels! {$(
            $name: $t, Sum |a, b| a + b, Prod |a, b| a * b, Min |a, b| a.min(b), Max |a, b| a.max(b);
        )*}
    };
}

integers! {
    check_collective_i8: i8;
    check_collective_u8: u8;
    check_collective_i32: i32;
    check_collective_u32: u32;
    check_collective_i64: i64;
    check_collective_u64: u64;
}

floats! {
    check_collective_f16: f16;
    check_collective_bf16: bf16;
    check_collective_f32: f32;
    check_collective_f64: f64;
}
