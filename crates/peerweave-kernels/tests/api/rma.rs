//! Tests of puts and gets: contiguous, of one element, at strides; all element sizes, alignments
//! and scopes.

use crate::{PES, go, job, right};
use peerweave_device::prelude::*;

/// An element that can be created from a number.
trait Sample: Plain + PartialEq + std::fmt::Debug {
    fn sample(number: u32) -> Self;
}

macro_rules! samples {
    ($($t:ty: |$n:ident| $value:expr;)*) => {$(
        impl Sample for $t {
            fn sample($n: u32) -> Self {
                $value
            }
        }
    )*};
}

samples! {
    u8: |n| n as u8;
    u16: |n| n as u16 ^ 0x5a00;
    u32: |n| n.wrapping_mul(0x9e37_79b9);
    f64: |n| f64::from(n) + 0.5;
    u128: |n| u128::from(n) << 100 | 7;
    [u8; 3]: |n| [n as u8, 0xa5, (n >> 8) as u8];
}

/// Defines the kernels and the test of one scope and one type, over lengths and alignments.
macro_rules! moves {
    ($name:ident, $t:ty, $threads:literal: $put:ident $get:ident $put_nbi:ident $get_nbi:ident $put_checked:ident $get_checked:ident
        $barrier:ident) => {
        mod $name {
            use super::*;

            #[kernel]
            fn moves(ctx: &Context, to: SymSlice<$t>, from: SymSlice<$t>, got: SymSlice<$t>, form: u32) -> Result<(), Failed> {
                match form {
                    0 => {
                        assert_eq!(ctx.$put(to, from, right(ctx)), to.len());
                        assert_eq!(ctx.$get(got, from, right(ctx)), got.len());
                    }
                    1 => {
                        ctx.$put_nbi(to, from, right(ctx));
                        ctx.$get_nbi(got, from, right(ctx));
                        ctx.quiet();
                    }
                    2 => {
                        ctx.$put_checked(to, from, right(ctx))?;
                        ctx.$get_checked(got, from, right(ctx))?;
                    }
                    // Copies from and to views of this PE's own memory.
                    _ => {
                        ctx.$put(to, ctx.local(from), right(ctx));
                        ctx.$get(ctx.local(got), from, right(ctx));
                    }
                }
                ctx.$barrier()
            }

            #[test]
            fn put_and_get_copy_only_the_requested_elements() {
                const ROOM: usize = 700;
                let mut n = 0;
                for len in [0, 1, 2, 5, 16, 31, 64, 530] {
                    for (to_skip, from_skip) in [(0, 0), (1, 0), (0, 3), (2, 5), (4, 4)] {
                        n += 1;
                        let mut job = job(n);
                        let [to, from, got] = [0; 3].map(|_| job.alloc::<$t>(ROOM));
                        let value = |pe: u32, index: usize| <$t>::sample(pe * 1000 + index as u32 + 1);
                        for pe in 0..PES {
                            job.write(pe, from, &(0..ROOM).map(|index| value(pe, index)).collect::<Vec<_>>());
                        }
                        let part = |of: SymSlice<$t>, skip: usize| of.slice(skip..skip + len);
                        let args = (part(to, to_skip), part(from, from_skip), part(got, to_skip), (n % 4) as u32);
                        go(&mut job, &moves::KERNEL, $threads, args);
                        for pe in 0..PES {
                            let expected = |source: u32| -> Vec<$t> {
                                (0..ROOM)
                                    .map(|index| {
                                        let arrived = (to_skip..to_skip + len).contains(&index);
                                        if arrived { value(source, index - to_skip + from_skip) } else { zero() }
                                    })
                                    .collect()
                            };
                            assert_eq!(
                                job.read(pe, to),
                                expected((pe + PES - 1) % PES),
                                "put of {len} to {to_skip} from {from_skip}"
                            );
                            assert_eq!(job.read(pe, got), expected((pe + 1) % PES), "get of {len} to {to_skip} from {from_skip}");
                        }
                    }
                }
            }
        }
    };
}

fn zero<T: Plain>() -> T {
    // SAFETY: every bit pattern is a value of a `Plain` type.
    unsafe { std::mem::zeroed() }
}

macro_rules! moves_of {
    ($($t:ty: $thread:ident $warp:ident $block:ident;)*) => {$(
        moves!($thread, $t, 1: put get put_nbi get_nbi put_checked get_checked barrier_all);
        moves!($warp, $t, 32: put_warp get_warp put_nbi_warp get_nbi_warp put_checked_warp get_checked_warp barrier_all_warp);
        moves!($block, $t, 48: put_block get_block put_nbi_block get_nbi_block put_checked_block get_checked_block
            barrier_all_block);
    )*};
}

moves_of! {
    u8: u8_thread u8_warp u8_block;
    u16: u16_thread u16_warp u16_block;
    u32: u32_thread u32_warp u32_block;
    f64: f64_thread f64_warp f64_block;
    u128: u128_thread u128_warp u128_block;
    [u8; 3]: odd_thread odd_warp odd_block;
}

macro_rules! single {
    ($($name:ident $t:ty;)*) => {$(
        mod $name {
            use super::*;

            #[kernel]
            fn single(ctx: &Context, to: SymSlice<$t>, got: SymSlice<$t>) -> Result<(), Failed> {
                ctx.p(to.slice(1..), <$t>::sample(ctx.my_pe() + 7), right(ctx));
                ctx.barrier_all()?;
                let value = ctx.g(to.at(1), right(ctx));
                ctx.local(got).write(2, value);
                Ok(())
            }

            #[test]
            fn g_returns_the_element_that_p_wrote_to_the_next_pe() {
                let mut job = job(3);
                let [to, got] = [0; 2].map(|_| job.alloc::<$t>(4));
                go(&mut job, &single::KERNEL, 1, (to, got));
                for pe in 0..PES {
                    let sent = <$t>::sample((pe + PES - 1) % PES + 7);
                    assert_eq!(job.read(pe, to), [zero(), sent, zero(), zero()]);
                    assert_eq!(job.read(pe, got), [zero(), zero(), <$t>::sample(pe + 7), zero()]);
                }
            }
        }
    )*};
}

single! { single_u8 u8; single_u16 u16; single_u32 u32; single_f64 f64; single_u128 u128; single_odd [u8; 3]; }

macro_rules! strided {
    ($name:ident, $threads:literal: $iput:ident $iget:ident $barrier:ident) => {
        mod $name {
            use super::*;

            #[kernel]
            fn strided(
                ctx: &Context,
                to: SymSlice<u32>,
                from: SymSlice<u32>,
                got: SymSlice<u32>,
                count: u32,
            ) -> Result<(), Failed> {
                ctx.$iput(to, from, 2, 3, count as usize, right(ctx));
                ctx.$iget(got, from, 3, 2, count as usize, right(ctx));
                ctx.$iput(to, from, 0, 1, 4, right(ctx));
                ctx.$barrier()
            }

            #[test]
            fn strided_copies_end_at_the_shorter_operand() {
                for count in [0usize, 1, 9, 40, 1000] {
                    let mut job = job(count as u64);
                    let [to, from, got] = [300, 200, 250].map(|len| job.alloc::<u32>(len));
                    for pe in 0..PES {
                        job.write(pe, from, &(0..200).map(|index| pe * 1000 + index + 1).collect::<Vec<_>>());
                    }
                    go(&mut job, &strided::KERNEL, $threads, (to, from, got, count as u32));
                    for pe in 0..PES {
                        let (mut put, mut gotten) = (vec![0; 300], vec![0; 250]);
                        for k in 0..count.min(67) {
                            put[2 * k] = (pe + PES - 1) % PES * 1000 + 3 * k as u32 + 1;
                        }
                        for k in 0..count.min(84) {
                            gotten[3 * k] = (pe + 1) % PES * 1000 + 2 * k as u32 + 1;
                        }
                        assert_eq!(job.read(pe, to), put);
                        assert_eq!(job.read(pe, got), gotten);
                    }
                }
            }
        }
    };
}

strided!(strided_thread, 1: iput iget barrier_all);
strided!(strided_warp, 32: iput_warp iget_warp barrier_all_warp);
strided!(strided_block, 48: iput_block iget_block barrier_all_block);

#[kernel]
fn from_shared(ctx: &Context, to: SymSlice<u32>, got: SymSlice<u32>) -> Result<(), Failed> {
    let tile = peerweave_device::shared_array!(TILE: [u32; 40]);
    let thread = gpu::thread_rank() as usize;
    if thread < 40 {
        tile.write(thread, ctx.my_pe() * 100 + thread as u32);
    }
    gpu::sync_threads();
    ctx.put_block(to, tile, right(ctx));
    ctx.barrier_all_block()?;
    let back = SharedSlice::<u32>::dynamic();
    ctx.get_block(back.slice(..40), to, right(ctx));
    if thread < 40 {
        ctx.local(got).write(thread, back.read(thread));
    }
    Ok(())
}

#[test]
fn shared_memory_is_source_of_puts_and_target_of_gets() {
    for seed in 0..4 {
        let mut job = job(seed);
        let [to, got] = [0; 2].map(|_| job.alloc::<u32>(40));
        let shape = peerweave_grid::Shape::new(1, 48).shared_bytes(1024);
        job.launch_each(&from_shared::KERNEL, shape, |_| Some((to, got))).unwrap();
        for pe in 0..PES {
            let left = (pe + PES - 1) % PES;
            assert_eq!(job.read(pe, to), (0..40).map(|k| left * 100 + k).collect::<Vec<_>>());
            assert_eq!(job.read(pe, got), (0..40).map(|k| pe * 100 + k).collect::<Vec<_>>());
        }
    }
}

#[kernel]
fn from_slices(ctx: &Context, to: SymSlice<u16>, got: SymSlice<u16>) -> Result<(), Failed> {
    let mine = [ctx.my_pe() as u16, 2, 3, 4, 5];
    // SAFETY: on the host the call has no effect.
    unsafe { ctx.lend_shared(SharedSlice::dynamic()) };
    // The shorter length is used.
    assert_eq!(ctx.put(to, &mine, right(ctx)), 5);
    assert_eq!(ctx.put(to.slice(6..), &mine[..3], right(ctx)), 2);
    ctx.reclaim_shared();
    ctx.flush();
    ctx.fence();
    ctx.barrier_all()?;
    let mut back = [0; 4];
    assert_eq!(ctx.get(&mut back, to, right(ctx)), 4);
    ctx.put(got, &back, ctx.my_pe());
    Ok(())
}

#[test]
fn stack_arrays_are_sources_of_puts_and_targets_of_gets() {
    let mut job = job(1);
    let [to, got] = [0; 2].map(|_| job.alloc::<u16>(8));
    go(&mut job, &from_slices::KERNEL, 1, (to, got));
    for pe in 0..PES {
        let left = ((pe + PES - 1) % PES) as u16;
        assert_eq!(job.read(pe, to), [left, 2, 3, 4, 5, 0, left, 2]);
        assert_eq!(job.read(pe, got)[..4], [pe as u16, 2, 3, 4]);
    }
}

#[kernel]
fn views(ctx: &Context, of: SymSlice<u64>) -> Result<(), Failed> {
    assert!(ctx.get_multicast_array(of).is_none());
    assert!(ctx.get_peer_array(of, ctx.n_pes()).is_none());
    assert!(ctx.is_mapped(0) && !ctx.is_mapped(99));
    assert_eq!((ctx.node_pe(), ctx.node_n_pes()), (ctx.my_pe(), ctx.n_pes()));
    let theirs = ctx.get_peer_array(of, right(ctx)).expect("peers on the host are mapped");
    theirs.write(1, u64::from(ctx.my_pe()) + 1);
    ctx.barrier_all()?;
    assert_eq!(theirs.read(1), u64::from(ctx.my_pe()) + 1);
    ctx.local(of).write(2, theirs.read(1));
    Ok(())
}

#[test]
fn views_of_peers_access_the_memory_of_the_peers() {
    let mut job = job(2);
    let of = job.alloc::<u64>(3);
    go(&mut job, &views::KERNEL, 1, (of,));
    for pe in 0..PES {
        assert_eq!(job.read(pe, of), [0, u64::from((pe + PES - 1) % PES) + 1, u64::from(pe) + 1]);
    }
}
