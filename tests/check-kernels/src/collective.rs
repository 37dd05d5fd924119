//! Checks collectives at each scope, with each element type and each operator of reductions.

use crate::{Check, Sample, apart, takes_part};
use peerweave_device::api::combine::{Combine, Reducible};
use peerweave_device::prelude::*;
use peerweave_types::{bf16, f16};

/// Required number of elements of `send` and `recv` for each member of the team.
pub const ELEMENTS: usize = 70;

/// Numbers of elements for each member: one, not a multiple of a vector, and more than the threads
/// of a block.
const LENGTHS: [usize; 3] = [1, 13, 67];

/// Returns an operand of a reduction, which is 1 or 2. Products of up to eight operands are exact
/// in every element type.
fn operand(rank: u32, i: usize) -> u64 {
    1 + (u64::from(rank) + i as u64 / 3) % 2
}

/// An operator of reductions, which computes the expected results.
#[derive(Clone, Copy)]
enum Fold {
    Sum,
    Prod,
    Min,
    Max,
    And,
    Or,
    Xor,
}

impl Fold {
    /// Returns element `i` of the expected result of a reduction of `size` ranks.
    fn all(self, size: u32, i: usize) -> u64 {
        let fold = |a: u64, b: u64| match self {
            Self::Sum => a + b,
            Self::Prod => a * b,
            Self::Min => a.min(b),
            Self::Max => a.max(b),
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
        };
        (1..size).fold(operand(0, i), |sum, rank| fold(sum, operand(rank, i)))
    }
}

/// Returns the number for element `i` of a rank. Different ranks and elements have different
/// numbers.
fn number(rank: u32, i: usize) -> u64 {
    1 + 70 * u64::from(rank) + i as u64
}

/// The checks of the collectives of one team, and the buffers of the collectives.
struct Collectives<'a, T> {
    check: Check<'a>,
    team: KernelTeam,
    send: SymSlice<T>,
    recv: SymSlice<T>,
    rank: u32,
    size: u32,
}

impl<T: Sample> Collectives<'_, T> {
    /// Fills `send` with numbers and clears `recv`. Then waits until all members have done the
    /// same.
    #[inline(never)]
    fn begin_moves(&self) -> Result<(), Failed> {
        self.check.fill(self.send, number(self.rank, 0));
        self.check.clear(self.recv);
        self.meet()
    }

    /// Like [`Self::begin_moves`], but fills `send` with operands of reductions.
    #[inline(never)]
    fn begin_reduction(&self) -> Result<(), Failed> {
        let (mine, step) = (self.check.ctx.local(self.send), gpu::block_threads() as usize);
        for i in (gpu::thread_rank() as usize..self.send.len()).step_by(step) {
            mine.write(i, T::of(operand(self.rank, i)));
        }
        self.check.clear(self.recv);
        self.meet()
    }

    /// Runs `call` on the threads for which `inside` is true, and synchronises the block.
    #[inline(always)]
    fn run(&self, inside: bool, call: impl FnOnce() -> Result<(), Failed>) -> Result<(), Failed> {
        let outcome = if inside { apart(call) } else { Ok(()) };
        gpu::sync_threads();
        outcome
    }

    /// Compares `recv` with `total` expected elements, in parts of `len`. The first part contains
    /// the elements of member `first` from index `at`, the second part those of the next member,
    /// and so on. The elements after them must be 0. Then waits until all members have compared.
    #[inline(never)]
    fn expect_parts(&self, line: u32, len: usize, total: usize, first: u32, at: usize) -> Result<(), Failed> {
        let part = |i: usize| number(first + (i / len) as u32, at + i % len);
        self.check.expect(line, self.recv, |i| if i < total { part(i) } else { 0 });
        self.meet()
    }

    /// Compares `recv` with `len` elements of the result of a reduction, from index `at`. Then
    /// waits until all members have compared.
    #[inline(never)]
    fn expect_fold(&self, line: u32, fold: Fold, len: usize, at: usize) -> Result<(), Failed> {
        self.check.expect(line, self.recv, |i| if i < len { fold.all(self.size, at + i) } else { 0 });
        self.meet()
    }

    #[inline(never)]
    fn meet(&self) -> Result<(), Failed> {
        self.check.ctx.barrier_block(self.team)
    }
}

macro_rules! scope {
    ($moves:ident, $reduces:ident, $scatters:ident, $scope:ident: $broadcast:ident, $fcollect:ident, $alltoall:ident, $reduce:ident, $reducescatter:ident) => {
        #[inline(never)]
        fn $moves<T: Sample>(c: &Collectives<'_, T>) -> Result<(), Failed> {
            let (ctx, team, n) = (c.check.ctx, c.team, c.size as usize);
            let inside = takes_part!($scope);
            for len in LENGTHS {
                for root in [0, c.size - 1] {
                    c.begin_moves()?;
                    c.run(inside, || ctx.$broadcast(team, c.recv.slice(..len), c.send.slice(..len), root))?;
                    c.expect_parts(line!(), len, len, root, 0)?;
                }
                c.begin_moves()?;
                c.run(inside, || ctx.$fcollect(team, c.recv.slice(..len * n), c.send.slice(..len)))?;
                c.expect_parts(line!(), len, len * n, 0, 0)?;
                c.begin_moves()?;
                c.run(inside, || ctx.$alltoall(team, c.recv.slice(..len * n), c.send.slice(..len * n)))?;
                c.expect_parts(line!(), len, len * n, 0, c.rank as usize * len)?;
            }
            Ok(())
        }

        #[inline(never)]
        fn $reduces<T: Sample + Reducible, C: Combine<T>>(c: &Collectives<'_, T>, combine: C, fold: Fold) -> Result<(), Failed> {
            let inside = takes_part!($scope);
            for len in LENGTHS {
                c.begin_reduction()?;
                c.run(inside, || c.check.ctx.$reduce(c.team, c.recv.slice(..len), c.send.slice(..len), combine))?;
                c.expect_fold(line!(), fold, len, 0)?;
            }
            Ok(())
        }

        #[inline(never)]
        fn $scatters<T: Sample + Reducible, C: Combine<T>>(c: &Collectives<'_, T>, combine: C, fold: Fold) -> Result<(), Failed> {
            let inside = takes_part!($scope);
            for len in LENGTHS {
                let all = len * c.size as usize;
                c.begin_reduction()?;
                c.run(inside, || c.check.ctx.$reducescatter(c.team, c.recv.slice(..len), c.send.slice(..all), combine))?;
                c.expect_fold(line!(), fold, len, c.rank as usize * len)?;
            }
            Ok(())
        }
    };
}

scope!(moves_thread, reduces_thread, scatters_thread, thread: broadcast, fcollect, alltoall, reduce, reducescatter);
scope!(moves_warp, reduces_warp, scatters_warp, warp: broadcast_warp, fcollect_warp, alltoall_warp, reduce_warp, reducescatter_warp);
scope!(moves_block, reduces_block, scatters_block, block: broadcast_block, fcollect_block, alltoall_block, reduce_block, reducescatter_block);

/// Calls a macro with a line for each element type: the type, the group of its operators, and the
/// names of its kernels for the scopes thread, warp and block.
#[macro_export]
macro_rules! for_each_collective {
    ($each:ident) => {
        $each! {
            i8, integer: check_collective_thread_i8, check_collective_warp_i8, check_collective_block_i8;
            u8, integer: check_collective_thread_u8, check_collective_warp_u8, check_collective_block_u8;
            i16, integer: check_collective_thread_i16, check_collective_warp_i16, check_collective_block_i16;
            u16, integer: check_collective_thread_u16, check_collective_warp_u16, check_collective_block_u16;
            i32, integer: check_collective_thread_i32, check_collective_warp_i32, check_collective_block_i32;
            u32, integer: check_collective_thread_u32, check_collective_warp_u32, check_collective_block_u32;
            i64, integer: check_collective_thread_i64, check_collective_warp_i64, check_collective_block_i64;
            u64, integer: check_collective_thread_u64, check_collective_warp_u64, check_collective_block_u64;
            f16, float: check_collective_thread_f16, check_collective_warp_f16, check_collective_block_f16;
            bf16, float: check_collective_thread_bf16, check_collective_warp_bf16, check_collective_block_bf16;
            f32, float: check_collective_thread_f32, check_collective_warp_f32, check_collective_block_f32;
            f64, float: check_collective_thread_f64, check_collective_warp_f64, check_collective_block_f64;
        }
    };
}

/// Checks reductions with each operator of an element type.
macro_rules! each_operator {
    (integer, $c:ident, $reduces:ident, $scatters:ident) => {
        each_operator!($c, $reduces, $scatters: Sum, Prod, Min, Max, And, Or, Xor)
    };
    (float, $c:ident, $reduces:ident, $scatters:ident) => {
        each_operator!($c, $reduces, $scatters: Sum, Prod, Min, Max)
    };
    ($c:ident, $reduces:ident, $scatters:ident: $($operator:ident),*) => {{
        $(
            $reduces($c, $operator, Fold::$operator)?;
            $scatters($c, $operator, Fold::$operator)?;
        )*
        Ok::<(), Failed>(())
    }};
}

/// Defines one kernel, which makes the checks `$check`.
macro_rules! kernel {
    ($name:ident, $t:ty, $scope:literal, |$c:ident| $check:expr) => {
        #[doc = concat!("Checks collectives of `", stringify!($t), "`, called by ", $scope, ". `send` and `recv` have [`ELEMENTS`] elements for")]
        /// each member of `team`, which has at most eight members. The launch has one block.
        #[kernel]
        pub fn $name(
            ctx: &Context,
            team: KernelTeam,
            send: SymSlice<$t>,
            recv: SymSlice<$t>,
            result: SymSlice<u64>,
        ) -> Result<(), Failed> {
            let (rank, size) = (ctx.team_my_pe(team).unwrap_or(0), ctx.team_n_pes(team));
            let $c = &Collectives { check: Check::new(ctx, result), team, send, recv, rank, size };
            $check?;
            $c.check.finish();
            Ok(())
        }
    };
}

/// Defines three kernels for each element type. The assembler would need several times as long for
/// a single kernel with all scopes.
macro_rules! kernels {
    ($($t:ty, $operators:ident: $thread:ident, $warp:ident, $block:ident;)*) => {$(
        kernel!($thread, $t, "one thread", |c| {
            moves_thread(c)?;
            each_operator!($operators, c, reduces_thread, scatters_thread)
        });
        kernel!($warp, $t, "a warp", |c| {
            moves_warp(c)?;
            each_operator!($operators, c, reduces_warp, scatters_warp)
        });
        kernel!($block, $t, "a block", |c| {
            moves_block(c)?;
            each_operator!($operators, c, reduces_block, scatters_block)
        });
    )*};
}

for_each_collective!(kernels);
