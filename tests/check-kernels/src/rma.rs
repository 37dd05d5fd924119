//! Checks puts and gets at each scope, of elements of 1 to 16 bytes, at several alignments, and by
//! bulk copies.

use crate::{Check, Sample, apart, takes_part};
use peerweave_device::prelude::*;

/// Required number of elements of `send` and `recv`.
pub const ELEMENTS: usize = 600;

/// Shapes of copies: the length, the index of the first element at the target, and the index of the
/// first element at the source.
const SHAPES: [(usize, usize, usize); 6] = [(0, 3, 3), (1, 0, 1), (7, 2, 5), (64, 16, 32), (255, 3, 1), (513, 1, 4)];

/// Shapes for kernels that lend shared memory. All but the last are aligned to 16 bytes for
/// elements of each size, so that these copies are bulk copies. The longest copy needs several
/// buffers.
const BULK_SHAPES: [(usize, usize, usize); 6] =
    [(0, 16, 16), (16, 0, 16), (64, 32, 16), (256, 16, 0), (512, 16, 64), (255, 3, 1)];

/// Number of bytes of shared memory that a kernel lends. Each of the two buffers has 384 bytes.
const LENT_BYTES: usize = 1024;

/// Required number of words of `signal`.
pub const SIGNALS: usize = 2;

/// Returns the number for element `i` of `send` of a PE in a round.
fn number(pe: u32, round: u64, i: usize) -> u64 {
    1 + 31 * u64::from(pe) + 7 * round + i as u64
}

/// Description of a copy: the number of elements, and their indices at the target and at the
/// source.
#[derive(Clone, Copy)]
struct Moved {
    count: usize,
    to: usize,
    to_step: usize,
    from: usize,
    from_step: usize,
}

impl Moved {
    /// Returns the copy of a contiguous range. The argument is the length, the first index at the
    /// target, and the first index at the source.
    fn contiguous((count, to, from): (usize, usize, usize)) -> Self {
        Self { count, to, to_step: 1, from, from_step: 1 }
    }

    /// Returns the index at the source of the element that is copied to index `at` of the target;
    /// `None` if no element is copied there.
    fn source(&self, at: usize) -> Option<usize> {
        let behind = at.checked_sub(self.to)?;
        let index = behind / self.to_step;
        (behind % self.to_step == 0 && index < self.count).then_some(self.from + index * self.from_step)
    }
}

/// The check of puts and gets, with the buffers and the number of the current round.
struct Rma<'a, T> {
    check: Check<'a>,
    send: SymSlice<T>,
    recv: SymSlice<T>,
    /// The first word is set by puts with signals, the second word is added to.
    signal: SymSlice<u64>,
    shapes: [(usize, usize, usize); 6],
    round: u64,
}

impl<T: Sample> Rma<'_, T> {
    /// Makes one round: runs `act` between two barriers of all PEs, and then compares `recv`. In
    /// `shape`, `recv` must contain the elements of `from_pe`, and zeros elsewhere.
    #[inline(always)]
    fn moved(
        &mut self,
        line: u32,
        shape: (usize, usize, usize),
        from_pe: u32,
        act: impl FnOnce(&Self, SymSlice<T>, SymSlice<T>) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let (len, to, from) = shape;
        self.begin()?;
        apart(|| act(self, self.recv.slice(to..to + len), self.send.slice(from..from + len)))?;
        self.end(line, Moved::contiguous(shape), from_pe)
    }

    /// Begins a round: fills `send` and clears `recv`. Then waits until all PEs have done the same.
    #[inline(never)]
    fn begin(&mut self) -> Result<(), Failed> {
        self.round += 1;
        self.check.fill(self.send, number(self.check.ctx.my_pe(), self.round, 0));
        self.check.clear(self.recv);
        self.check.meet()
    }

    /// Ends a round: waits until all PEs have called this method, and compares `recv`. It must
    /// contain the copied elements of `from_pe`, and zeros elsewhere.
    #[inline(never)]
    fn end(&self, line: u32, moved: Moved, from_pe: u32) -> Result<(), Failed> {
        self.check.meet()?;
        self.check.expect(line, self.recv, |i| moved.source(i).map_or(0, |at| number(from_pe, self.round, at)));
        self.check.meet()
    }
}

/// Defines a function that checks all puts and gets of one scope.
macro_rules! scope {
    ($name:ident, $scope:ident: $put:ident, $get:ident, $put_nbi:ident, $get_nbi:ident, $put_checked:ident, $get_checked:ident,
        $iput:ident, $iget:ident, $put_signal:ident, $put_signal_nbi:ident, $wait:ident, $flush:ident) => {
        #[inline(never)]
        fn $name<T: Sample>(rma: &mut Rma<'_, T>) -> Result<(), Failed> {
            let ctx = rma.check.ctx;
            let (_, next, before) = rma.check.ring();
            let inside = takes_part!($scope);
            let mut added = 0;
            for shape in rma.shapes {
                let len = shape.0;
                rma.moved(line!(), shape, before, |rma, to, from| {
                    if inside {
                        rma.check.same(line!(), ctx.$put(to, from, next) as u64, len as u64);
                    }
                    Ok(())
                })?;
                rma.moved(line!(), shape, next, |rma, to, from| {
                    if inside {
                        rma.check.same(line!(), ctx.$get(to, from, next) as u64, len as u64);
                    }
                    Ok(())
                })?;
                rma.moved(line!(), shape, before, |_, to, from| {
                    if inside {
                        ctx.$put_nbi(to, ctx.local(from), next);
                        ctx.flush();
                        ctx.quiet();
                    }
                    Ok(())
                })?;
                // After the flush of the scope, each thread of the scope may overwrite the source.
                rma.moved(line!(), shape, before, |_, to, from| {
                    if inside {
                        ctx.$put_nbi(to, from, next);
                        ctx.$flush();
                        let (mine, rank, threads) = (ctx.local(from), gpu::thread_rank() as usize, gpu::block_threads() as usize);
                        for i in (0..len).filter(|i| (len - i) % threads == rank) {
                            mine.write(i, T::of(0));
                        }
                        ctx.quiet();
                    }
                    Ok(())
                })?;
                rma.moved(line!(), shape, next, |_, to, from| {
                    if inside {
                        ctx.$get_nbi(ctx.local(to), from, next);
                        ctx.quiet();
                    }
                    Ok(())
                })?;
                rma.moved(line!(), shape, before, |_, to, from| if inside { ctx.$put_checked(to, from, next) } else { Ok(()) })?;
                rma.moved(line!(), shape, next, |_, to, from| if inside { ctx.$get_checked(to, from, next) } else { Ok(()) })?;
                for (nbi, adds) in [(false, false), (true, false), (false, true), (true, true)] {
                    added += 3 * u64::from(adds);
                    rma.moved(line!(), shape, before, |rma, to, from| {
                        let round = rma.round;
                        let (signal, op) = (rma.signal.at(adds as usize), if adds { SignalOp::Add } else { SignalOp::Set });
                        let (value, total) = if adds { (3, added) } else { (round, round) };
                        if inside {
                            let put = if nbi {
                                ctx.$put_signal_nbi(to, from, signal, value, op, next)
                            } else {
                                ctx.$put_signal(to, from, signal, value, op, next)
                            };
                            rma.check.same(line!(), put as u64, len as u64);
                            ctx.$wait(signal, Compare::Eq, total, before)?;
                        }
                        // After the wait for the signal, every thread of the scope must see the
                        // data of the put, without a barrier of the PEs.
                        if inside && len > 0 {
                            let last = ctx.local(to).read(len - 1);
                            let expected = T::of(number(before, rma.round, shape.2 + len - 1));
                            rma.check.same(line!(), last.bits(), expected.bits());
                        }
                        ctx.quiet();
                        Ok(())
                    })?;
                }
                // If the lengths differ, the shorter length is used.
                if len > 1 {
                    rma.moved(line!(), (len - 1, shape.1, shape.2), before, |rma, to, from| {
                        if inside {
                            let longer = rma.send.slice(shape.2..shape.2 + len);
                            rma.check.same(line!(), from.len() as u64, len as u64 - 1);
                            rma.check.same(line!(), ctx.$put(to, longer, next) as u64, len as u64 - 1);
                        }
                        Ok(())
                    })?;
                }
            }
            // The strides are 2 at the target and 3 at the source. Elements between the strides
            // must not change.
            let moved = Moved { count: 101, to: 0, to_step: 2, from: 0, from_step: 3 };
            rma.begin()?;
            if inside {
                apart(|| ctx.$iget(rma.recv, rma.send, 2, 3, 101, next));
            }
            rma.end(line!(), moved, next)?;
            rma.begin()?;
            if inside {
                apart(|| ctx.$iput(rma.recv, rma.send, 2, 3, 101, next));
            }
            rma.end(line!(), moved, before)?;
            Ok(())
        }
    };
}

scope!(thread_scope, thread: put, get, put_nbi, get_nbi, put_checked, get_checked, iput, iget, put_signal, put_signal_nbi,
    signal_wait_until_from, flush);
scope!(warp_scope, warp: put_warp, get_warp, put_nbi_warp, get_nbi_warp, put_checked_warp, get_checked_warp, iput_warp, iget_warp,
    put_signal_warp, put_signal_nbi_warp, signal_wait_until_from_warp, flush_warp);
scope!(block_scope, block: put_block, get_block, put_nbi_block, get_nbi_block, put_checked_block, get_checked_block, iput_block,
    iget_block, put_signal_block, put_signal_nbi_block, signal_wait_until_from_block, flush_block);

/// Checks puts and gets of single elements, and operands that are not symmetric memory. One thread
/// makes these calls, except for shared memory, where the block makes them.
#[inline(never)]
fn operands<T: Sample>(rma: &mut Rma<'_, T>) -> Result<(), Failed> {
    let ctx = rma.check.ctx;
    let (_, next, before) = rma.check.ring();
    let first = takes_part!(thread);
    rma.moved(line!(), (5, 9, 9), before, |rma, to, from| {
        if first {
            for i in 0..5 {
                ctx.p(to.at(i), ctx.local(from).read(i), next);
                let expected = T::of(number(next, rma.round, 9 + i));
                rma.check.same(line!(), ctx.g(from.at(i), next).bits(), expected.bits());
            }
        }
        Ok(())
    })?;
    // Gets to, and puts from, an array of the thread.
    rma.moved(line!(), (8, 1, 2), before, |rma, to, from| {
        if first {
            let mut own = [T::of(0); 8];
            ctx.get(&mut own, from, next);
            for (i, value) in own.into_iter().enumerate() {
                rma.check.same(line!(), value.bits(), T::of(number(next, rma.round, 2 + i)).bits());
            }
            let own: [T; 8] = core::array::from_fn(|i| T::of(number(ctx.my_pe(), rma.round, 2 + i)));
            ctx.put(to, &own, next);
        }
        Ok(())
    })?;
    // Gets to, and puts from, shared memory of the block.
    let shared = SharedSlice::<T>::dynamic().slice(..64);
    rma.moved(line!(), (64, 3, 8), before, |rma, to, from| {
        ctx.get_block(shared, from, next);
        for i in (gpu::thread_rank() as usize..64).step_by(gpu::block_threads() as usize) {
            rma.check.same(line!(), shared.read(i).bits(), T::of(number(next, rma.round, 8 + i)).bits());
            shared.write(i, T::of(number(ctx.my_pe(), rma.round, 8 + i)));
        }
        gpu::sync_threads();
        ctx.put_block(to, shared, next);
        Ok(())
    })?;
    // Reads through a view of the peer's memory, if that memory is mapped.
    rma.moved(line!(), (16, 0, 0), next, |_, to, from| {
        if first {
            match ctx.get_peer_array(from, next) {
                Some(theirs) => (0..16).for_each(|i| ctx.local(to).write(i, theirs.read(i))),
                None => {
                    ctx.get(to, from, next);
                }
            }
        }
        Ok(())
    })
}

/// Calls a macro with a line for each element type: the type, and the names of its kernels for the
/// scopes thread, warp and block.
#[macro_export]
macro_rules! for_each_rma {
    ($each:ident) => {
        $each! {
            u8: check_rma_thread_u8, check_rma_warp_u8, check_rma_block_u8;
            u16: check_rma_thread_u16, check_rma_warp_u16, check_rma_block_u16;
            u32: check_rma_thread_u32, check_rma_warp_u32, check_rma_block_u32;
            u64: check_rma_thread_u64, check_rma_warp_u64, check_rma_block_u64;
            u128: check_rma_thread_u128, check_rma_warp_u128, check_rma_block_u128;
            f32: check_rma_thread_f32, check_rma_warp_f32, check_rma_block_f32;
            f64: check_rma_thread_f64, check_rma_warp_f64, check_rma_block_f64;
        }
    };
}

/// Calls a macro like [`for_each_rma`], for kernels whose first thread lends shared memory for bulk
/// copies.
#[macro_export]
macro_rules! for_each_bulk {
    ($each:ident) => {
        $each! {
            u8: check_bulk_thread_u8, check_bulk_warp_u8, check_bulk_block_u8;
            u64: check_bulk_thread_u64, check_bulk_warp_u64, check_bulk_block_u64;
        }
    };
}

/// Makes the checks of a scope with bulk copies: lends shared memory, and takes the memory back
/// afterwards.
#[inline(always)]
fn with_bulk<T: Sample>(rma: &mut Rma<'_, T>, scope: impl FnOnce(&mut Rma<'_, T>) -> Result<(), Failed>) -> Result<(), Failed> {
    rma.shapes = BULK_SHAPES;
    let (ctx, region) = (rma.check.ctx, SharedSlice::<u8>::dynamic().slice(..LENT_BYTES));
    if takes_part!(thread) {
        // SAFETY: until `reclaim_shared`, only this thread's context accesses the shared memory of
        // the block. If a check fails, the kernel ends without another access.
        unsafe { ctx.lend_shared(region) };
    }
    scope(rma)?;
    ctx.reclaim_shared();
    gpu::sync_threads();
    // The kernel may use the memory again.
    for i in (gpu::thread_rank() as usize..LENT_BYTES).step_by(gpu::block_threads() as usize) {
        region.write(i, i as u8);
    }
    gpu::sync_threads();
    let at = LENT_BYTES - 1 - gpu::thread_rank() as usize;
    rma.check.same(line!(), u64::from(region.read(at)), at as u64 & 0xff);
    Ok(())
}

/// Defines one kernel, which makes the checks `$check`.
macro_rules! kernel {
    ($name:ident, $t:ty, $scope:literal, |$rma:ident| $check:expr) => {
        #[doc = concat!("Checks puts and gets of `", stringify!($t), "` ", $scope, ". `send` and `recv` have [`ELEMENTS`] elements,")]
        /// `signal` has [`SIGNALS`] words, initially 0. The launch has one block, with 1024 bytes
        /// of dynamic shared memory.
        #[kernel]
        pub fn $name(
            ctx: &Context,
            send: SymSlice<$t>,
            recv: SymSlice<$t>,
            signal: SymSlice<u64>,
            result: SymSlice<u64>,
        ) -> Result<(), Failed> {
            let $rma = &mut Rma { check: Check::new(ctx, result), send, recv, signal, shapes: SHAPES, round: 0 };
            $check?;
            $rma.check.finish();
            Ok(())
        }
    };
}

/// Defines three kernels for each element type. The assembler would need ten times as long for a
/// single kernel with all scopes.
macro_rules! kernels {
    ($($t:ty: $thread:ident, $warp:ident, $block:ident;)*) => {$(
        kernel!($thread, $t, "of single elements and by one thread", |rma| operands(rma).and_then(|()| thread_scope(rma)));
        kernel!($warp, $t, "by a warp", |rma| warp_scope(rma));
        kernel!($block, $t, "by a block", |rma| block_scope(rma));
    )*};
}

for_each_rma!(kernels);

/// Defines three kernels for each element type, like [`kernels`], with bulk copies.
macro_rules! bulk_kernels {
    ($($t:ty: $thread:ident, $warp:ident, $block:ident;)*) => {$(
        kernel!($thread, $t, "by one thread, with bulk copies", |rma| with_bulk(rma, thread_scope));
        kernel!($warp, $t, "by a warp, with bulk copies", |rma| with_bulk(rma, warp_scope));
        kernel!($block, $t, "by a block, with bulk copies", |rma| with_bulk(rma, block_scope));
    )*};
}

for_each_bulk!(bulk_kernels);
