//! Operations that a test repeats until a PE dies, on any backend.

use crate::data::calls::{self, Form, On, Root};
use crate::data::memory::{Kind, Mem, arena_len};
use peerweave::{Buffer, Compare, Parts, Rank, ReduceFn, ReduceOp, Reduction, Result, Strides, VectorCounts, World};
use peerweave_moe::{Moe, Received, Shape, Tokens};

/// Kernels during which a PE may die.
mod kernels {
    use peerweave_device::prelude::*;

    /// Synchronises all PEs several times with block-scoped barriers.
    #[kernel]
    pub(super) fn meet(ctx: &Context) -> Result<(), Failed> {
        (0..5).try_for_each(|_| ctx.barrier_all_block())
    }

    /// Puts the first half of `data` into the second half of the next PE's `data`, with a signal.
    /// Then waits for the signal of the previous PE.
    #[kernel]
    pub(super) fn pass_on(ctx: &Context, data: SymSlice<u32>, signal: SymSlice<u64>, round: u64) -> Result<(), Failed> {
        let (me, n) = (ctx.my_pe(), ctx.n_pes());
        let (mine, theirs) = (data.chunk(0, 2), data.chunk(1, 2));
        ctx.put_signal_block(theirs, mine, signal, round, SignalOp::Set, (me + 1) % n);
        // The wait names no PE, so the backend must find out which PE is dead.
        ctx.signal_wait_until_block(signal, Compare::Ge, round)
    }
}

/// An operation that is repeated until it fails.
pub type Act<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

/// Returns a repeatable operation by its name: a kind, and for some kinds the number of bytes and
/// `symmetric` or `private`, separated by colons. A kind is a name in this function or the name of
/// a [`Form`].
///
/// # Errors
/// The errors of the allocations that the operation needs.
///
/// # Panics
/// If there is no operation of this name.
pub fn act<'a>(world: &'a World, name: &str) -> Result<Act<'a>> {
    let team = world.team();
    let (n, me) = (team.size(), team.my_rank().index());
    let (right, left) = (Rank::new(((me + 1) % n) as u32), Rank::new(((me + n - 1) % n) as u32));
    let mut parts = name.split(':');
    let kind = parts.next().unwrap_or_default();
    let bytes: usize = parts.next().map_or(0, |bytes| bytes.parse().expect("the second part of the name is a number of bytes"));
    let place = parts.next().unwrap_or_default();
    Ok(match kind {
        "alloc" => Box::new(move || world.alloc_zeroed::<u8>(bytes)?.release()),
        "barrier" => Box::new(|| team.barrier_blocking()),
        "sync" => Box::new(|| team.sync_blocking()),
        "split" => Box::new(move || match team.split(Some((me % 2) as u64), 0)? {
            Some(team) => team.destroy(),
            None => Ok(()),
        }),
        "stream" => {
            let stream = world.stream()?;
            Box::new(move || {
                let buffer = Buffer::from(vec![1u8; bytes]);
                team.all_reduce_in_place(&stream, &buffer, ReduceOp::Sum)?;
                team.barrier(&stream)?.wait()?;
                stream.synchronize()
            })
        }
        "wait" => {
            let words = world.alloc_zeroed::<u64>(1)?;
            let mut round = 0;
            Box::new(move || {
                round += 1;
                team.signal_blocking(words.signal(0)?.set(round), right)?;
                team.wait_until_blocking(&words.signal(0)?, Compare::Ge, round).map(drop)
            })
        }
        "wait_on_stream" => {
            let words = world.alloc_zeroed::<u64>(2)?;
            let stream = world.stream()?;
            let mut round = 0;
            Box::new(move || {
                round += 1;
                team.signal(&stream, words.signal(0)?.set(round), right)?;
                team.wait_until_any(&stream, &words, None, Compare::Ge, round)?.wait().map(drop)
            })
        }
        "atomics" => {
            let words = world.alloc_zeroed::<u64>(1)?;
            Box::new(move || {
                let mut ranks = (0..n as u32).map(Rank::new);
                ranks.try_for_each(|rank| team.atomic_fetch_inc_blocking(&words, 0, rank).map(drop))
            })
        }
        "strided" => {
            let (count, strides) = (bytes / 4, Strides { count: bytes / 4 / n, source: 1, dest: 2 });
            let (send, mut recv) = (vec![1u32; count], vec![0u32; 2 * count]);
            let (x, y) = (world.alloc_zeroed::<u32>(count)?, world.alloc_zeroed::<u32>(2 * count)?);
            let is_symmetric = place == "symmetric";
            Box::new(move || match is_symmetric {
                true => team.all_to_all_strided_blocking(&x, &y, strides),
                false => team.all_to_all_strided_blocking(&send, &mut recv, strides),
            })
        }
        "functions" => {
            let (send, mut recv) = (vec![1u32; bytes / 4], vec![0u32; bytes / 4]);
            let largest = ReduceFn::new(|a: u32, b: u32| a.max(b));
            Box::new(move || {
                team.all_reduce_with_blocking(&send, &mut recv, &largest)?;
                team.scan_with_blocking(&send, &mut recv, &largest)?;
                team.exclusive_scan_with_blocking(&send, &mut recv, &largest)?;
                team.reduce_with_blocking(&send, &mut recv, &largest, Rank::new(1))
            })
        }
        "quiet" => Box::new(|| world.quiet_blocking()),
        "context" => {
            let (context, x) = (team.context()?, world.alloc_zeroed::<u32>(64)?);
            let data = Buffer::from(vec![7u32; 64]);
            Box::new(move || {
                (0..n as u32).map(Rank::new).try_for_each(|rank| context.put(&data, &x, rank))?;
                context.fence()?;
                context.quiet()
            })
        }
        // The victim may die while it holds the lock, waits for the lock, or does neither.
        "lock" => {
            let lock = world.alloc_lock()?;
            Box::new(move || {
                lock.lock()?.unlock()?;
                team.sync_blocking()
            })
        }
        "exchange_counts" => Box::new(move || team.exchange_counts(&vec![me; n]).map(drop)),
        "wait16" => {
            let words = world.alloc_zeroed::<u16>(2)?;
            let mut round = 0;
            Box::new(move || {
                round += 1;
                team.p_blocking(&words, 1, round, right)?;
                team.wait_until_blocking((&words, 1), Compare::Ge, round).map(drop)
            })
        }
        "wait_vector" => {
            let words = world.alloc_zeroed::<i32>(3)?;
            let mut round = 0;
            Box::new(move || {
                round -= 1;
                (0..3).try_for_each(|index| team.p_blocking(&words, index, round, right))?;
                team.wait_until_all_vector_blocking(&words, None, Compare::Le, &[round; 3])
            })
        }
        "test" => {
            let words = world.alloc_zeroed::<u64>(1)?;
            Box::new(move || team.test(&words.signal(0)?, Compare::Ne, 0).map(|holds| assert!(!holds)))
        }
        "kernel_barrier" => {
            let stream = world.stream()?;
            Box::new(move || stream.launch(&kernels::meet::KERNEL, 2, 32, ())?.wait())
        }
        "kernel_signal" => {
            let (stream, words, data) =
                (world.stream()?, world.alloc_zeroed::<u64>(1)?, world.alloc_zeroed::<u32>(2 * bytes / 4)?);
            let mut round = 0;
            Box::new(move || {
                round += 1;
                stream.launch(&kernels::pass_on::KERNEL, 1, 64, (&data, &words, round))?.wait()
            })
        }
        "moe" => {
            let stream = world.stream()?;
            let mut moe = Moe::<f32, f32>::new(world, team, &stream, Shape::new(2 * n, 2, 64, 16))?;
            let (tokens, outputs) = (world.alloc::<f32>(16 * 64)?, world.alloc::<f32>(16 * 64)?);
            let (experts, weights) = (world.alloc::<i32>(32)?, world.alloc_zeroed::<f32>(32)?);
            let (rows, offsets) = (world.alloc::<f32>(moe.max_rows() * 64)?, world.alloc::<u32>(3)?);
            experts.copy_from(&(0..32).map(|index| index % (2 * n as i32)).collect::<Vec<_>>())?;
            Box::new(move || {
                let tokens = Tokens { rows: &tokens, scales: None, experts: &experts, weights: &weights };
                moe.dispatch(&tokens, &Received { rows: &rows, scales: None, offsets: &offsets })?;
                moe.combine(&rows, &outputs)?.wait()
            })
        }
        "ring" => {
            let (send, mut recv) = (vec![1u8; bytes], vec![0u8; bytes]);
            Box::new(move || {
                team.group_blocking(|group| {
                    group.send(&send, right)?;
                    group.recv(&mut recv, left)
                })
            })
        }
        // Rank 1, the victim, sends to the other ranks one after the other.
        "star" => {
            let mut buffer = vec![1u8; bytes];
            Box::new(move || {
                if me == 1 {
                    (0..n as u32).filter(|&rank| rank != 1).try_for_each(|rank| team.send_blocking(&buffer, Rank::new(rank)))
                } else {
                    team.recv_blocking(&mut buffer, Rank::new(1))
                }
            })
        }
        form => {
            let reducing = Form::REDUCING.into_iter().find(|known| format!("{known:?}") == form);
            let form = reducing
                .or_else(|| Form::MOVING.into_iter().find(|known| format!("{known:?}") == form))
                .expect("the kind in the name of an operation is the name of a form");
            let count = bytes / 4;
            let root = Root { rank: Rank::new(1), others_pass_none: false };
            let (send_len, recv_len) = form.lens(count, n, me == 1);
            let arenas = [world.alloc::<u32>(arena_len(count * n))?, world.alloc::<u32>(arena_len(count * n))?];
            let memory = if place == "symmetric" { Kind::Symmetric } else { Kind::Slice };
            let send = Mem::new(memory, &arenas[0], 0, &vec![1u32; send_len]);
            let mut recv = Mem::new(memory, &arenas[1], 0, &vec![1u32; recv_len]);
            Box::new(move || match form {
                Form::AllToAllV | Form::AllToAllVInPlace => {
                    let counts = VectorCounts::packed(vec![count; n], vec![count; n]);
                    calls::vector(form, team, On::Caller, &send, &mut recv, counts)
                }
                _ if form.has_parts() => calls::ragged(form, team, On::Caller, &send, &mut recv, Parts::equal(n, count), root),
                _ if reducing.is_some() => {
                    let sum = Reduction::from(ReduceOp::Sum);
                    calls::reduction(form, team, On::Caller, &send, &mut recv, sum, root)
                }
                _ => calls::movement(form, team, On::Caller, &send, &mut recv, root),
            })
        }
    })
}
