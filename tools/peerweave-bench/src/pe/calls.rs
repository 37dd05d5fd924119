//! Creates, for each operation, a closure that makes a number of calls in a row on given buffers.
//!
//! The closure is called once per batch, so that the indirect call does not affect the measurement.
//!
//! Invariant: for each call, a closure executes the same code as a user's program and nothing else.
//! Exceptions are `g`, `atomics` and `ping-pong`, which compare the received word with the expected
//! word.

use std::cell::Cell;
use std::sync::Arc;

use peerweave::{
    Compare, Element, MaybeDest, MaybeSource, Rank, ReduceOp, Reduction, Result, Scalar, Source, Stream, StreamDest,
    StreamSource, Strides, Symmetric, Team, Ticket, VectorCounts, World,
};

use crate::workload::geometry::{Placement, View, gathered_parts, vector_receives, vector_sends};
use crate::workload::op::BenchOp;
use crate::workload::pattern::{G_DUE, Sample, scalar};

/// A closure that makes the given number of calls.
pub type Calls<'a> = Box<dyn FnMut(u64) -> Result<()> + 'a>;

/// The arguments that all calls of a case share: world, stream and buffers. Used for collectives
/// and for transfers of elements.
pub struct Setting<'a, M> {
    /// The world. All calls are made on the team of the world.
    pub world: &'a World,
    /// The stream, if stream-ordered calls are timed.
    pub stream: Option<&'a Stream>,
    /// Whether a closure of type [`Calls`] waits until the calls that it has enqueued on the stream
    /// are complete. If `false`, the caller of the closure must wait.
    pub waits: bool,
    /// Whether puts and gets are completed by one quiet at the end of a batch.
    pub nbi: bool,
    /// The operation, its counts and this PE's rank.
    pub view: View,
    /// Memory of the input. Unused if input and result share one buffer, as in most in-place forms.
    pub send: M,
    /// Memory of the result. Also memory of the input if input and result share one buffer.
    pub recv: M,
}

/// Additional arguments of one-sided operations: a symmetric word, and a counter of wrong words.
pub struct Words<'a> {
    /// The symmetric word that operations use as a signal or as a counter.
    pub word: &'a Symmetric<u64>,
    /// Number of received words that differed from the expected words.
    pub wrong: &'a Cell<u64>,
}

/// Creates a closure that repeats a blocking call the given number of times.
macro_rules! blocking {
    ($call:expr) => {
        Box::new(move |times| {
            for _ in 0..times {
                $call?;
            }
            Ok(())
        })
    };
}

/// Creates a closure that repeats a call. If there is a stream, the closure enqueues the calls, and
/// then waits for them if `waits` is true. Without a stream, the closure makes blocking calls.
macro_rules! calls {
    ($setting:expr, |$queue:ident| $queued:expr, $blocking:expr) => {
        match $setting.stream {
            None => blocking!($blocking),
            Some($queue) => {
                let waits = $setting.waits;
                Box::new(move |times| {
                    for _ in 0..times {
                        $queued?;
                    }
                    if waits { $queue.synchronize() } else { Ok(()) }
                })
            }
        }
    };
}

/// Returns the closure for an operation that reduces elements, such as all-reduce or scan.
pub fn reducing<'a, T, M>(setting: &'a Setting<'a, M>, redop: ReduceOp) -> Calls<'a>
where
    T: Sample + Scalar,
    for<'m> &'m M: StreamSource<T> + StreamDest<T> + MaybeDest<T, Argument = &'m M>,
{
    let Setting { world, view, send, recv, .. } = setting;
    let (team, root) = (world.team(), Rank::new(view.root as u32));
    let op = match redop {
        ReduceOp::PreMulSum => Reduction::pre_mul_sum(scalar::<T>(view.rank)),
        redop => Reduction::from(redop),
    };
    match (view.op, view.placement) {
        (BenchOp::AllReduce, Placement::OutOfPlace) => {
            calls!(setting, |queue| team.all_reduce(queue, send, recv, op), team.all_reduce_blocking(send, recv, op))
        }
        (BenchOp::AllReduce, Placement::InPlace) => {
            calls!(setting, |queue| team.all_reduce_in_place(queue, recv, op), team.all_reduce_in_place_blocking(recv, op))
        }
        (BenchOp::Reduce, Placement::OutOfPlace) => {
            let recv = (view.rank == view.root).then_some(recv);
            calls!(setting, |queue| team.reduce(queue, send, recv, op, root), team.reduce_blocking(send, recv, op, root))
        }
        (BenchOp::Reduce, Placement::InPlace) => {
            calls!(setting, |queue| team.reduce_in_place(queue, recv, op, root), team.reduce_in_place_blocking(recv, op, root))
        }
        (BenchOp::ReduceScatter, Placement::OutOfPlace) => {
            calls!(setting, |queue| team.reduce_scatter(queue, send, recv, op), team.reduce_scatter_blocking(send, recv, op))
        }
        (BenchOp::ReduceScatter, Placement::InPlace) => {
            calls!(
                setting,
                |queue| team.reduce_scatter_in_place(queue, recv, op),
                team.reduce_scatter_in_place_blocking(recv, op)
            )
        }
        (BenchOp::Scan, Placement::OutOfPlace) => {
            calls!(setting, |queue| team.scan(queue, send, recv, op), team.scan_blocking(send, recv, op))
        }
        (BenchOp::Scan, Placement::InPlace) => {
            calls!(setting, |queue| team.scan_in_place(queue, recv, op), team.scan_in_place_blocking(recv, op))
        }
        (BenchOp::ExclusiveScan, Placement::OutOfPlace) => {
            calls!(setting, |queue| team.exclusive_scan(queue, send, recv, op), team.exclusive_scan_blocking(send, recv, op))
        }
        (BenchOp::ExclusiveScan, Placement::InPlace) => {
            calls!(
                setting,
                |queue| team.exclusive_scan_in_place(queue, recv, op),
                team.exclusive_scan_in_place_blocking(recv, op)
            )
        }
        (other, _) => unreachable!("{} does not reduce, expected an operation for which BenchOp::reduces is true", other.name()),
    }
}

/// Returns the closure for an operation that neither reduces elements nor is one-sided, such as
/// broadcast, barrier, or send and receive.
pub fn moving<'a, T, M>(setting: &'a Setting<'a, M>) -> Calls<'a>
where
    T: Sample,
    for<'m> &'m M: StreamSource<T> + StreamDest<T> + MaybeSource<T, Argument = &'m M> + MaybeDest<T, Argument = &'m M>,
{
    let Setting { world, view, send, recv, .. } = setting;
    let View { rank, n_pes, counts, .. } = *view;
    let (team, root, is_root) = (world.team(), Rank::new(view.root as u32), rank == view.root);
    match (view.op, view.placement) {
        (BenchOp::Barrier, _) => calls!(setting, |queue| team.barrier(queue), team.barrier_blocking()),
        (BenchOp::Sync, _) => calls!(setting, |queue| team.sync(queue), team.sync_blocking()),
        (BenchOp::Broadcast, Placement::OutOfPlace) => {
            let send = is_root.then_some(send);
            calls!(setting, |queue| team.broadcast(queue, send, recv, root), team.broadcast_blocking(send, recv, root))
        }
        (BenchOp::Broadcast, Placement::InPlace) => {
            calls!(setting, |queue| team.broadcast_in_place(queue, recv, root), team.broadcast_in_place_blocking(recv, root))
        }
        (BenchOp::AllGather, Placement::OutOfPlace) => {
            calls!(setting, |queue| team.all_gather(queue, send, recv), team.all_gather_blocking(send, recv))
        }
        (BenchOp::AllGather, Placement::InPlace) => {
            calls!(setting, |queue| team.all_gather_in_place(queue, recv), team.all_gather_in_place_blocking(recv))
        }
        (BenchOp::AllToAll, Placement::OutOfPlace) => {
            calls!(setting, |queue| team.all_to_all(queue, send, recv), team.all_to_all_blocking(send, recv))
        }
        (BenchOp::AllToAll, Placement::InPlace) => {
            calls!(setting, |queue| team.all_to_all_in_place(queue, recv), team.all_to_all_in_place_blocking(recv))
        }
        (BenchOp::AllToAllV, placement) => {
            let (sends, receives) = (vector_sends(counts.param, n_pes, rank), vector_receives(counts.param, n_pes, rank));
            let counts = Arc::new(VectorCounts::packed(sends, receives));
            match placement {
                Placement::OutOfPlace => calls!(
                    setting,
                    |queue| team.all_to_all_v(queue, send, recv, counts.clone()),
                    team.all_to_all_v_blocking(send, recv, counts.clone())
                ),
                Placement::InPlace => calls!(
                    setting,
                    |queue| team.all_to_all_v_in_place(queue, recv, counts.clone()),
                    team.all_to_all_v_in_place_blocking(recv, counts.clone())
                ),
            }
        }
        (BenchOp::AllGatherV, placement) => {
            let parts = Arc::new(gathered_parts(counts.param, n_pes));
            match placement {
                Placement::OutOfPlace => calls!(
                    setting,
                    |queue| team.all_gather_v(queue, send, recv, parts.clone()),
                    team.all_gather_v_blocking(send, recv, parts.clone())
                ),
                Placement::InPlace => calls!(
                    setting,
                    |queue| team.all_gather_v_in_place(queue, recv, parts.clone()),
                    team.all_gather_v_in_place_blocking(recv, parts.clone())
                ),
            }
        }
        (BenchOp::GatherV, placement) => {
            let parts = Arc::new(gathered_parts(counts.param, n_pes));
            match placement {
                Placement::OutOfPlace => {
                    let recv = is_root.then_some(recv);
                    calls!(
                        setting,
                        |queue| team.gather_v(queue, send, recv, parts.clone(), root),
                        team.gather_v_blocking(send, recv, parts.clone(), root)
                    )
                }
                Placement::InPlace => {
                    let both = if is_root { recv } else { send };
                    calls!(
                        setting,
                        |queue| team.gather_v_in_place(queue, both, parts.clone(), root),
                        team.gather_v_in_place_blocking(both, parts.clone(), root)
                    )
                }
            }
        }
        (BenchOp::ScatterV, placement) => {
            let parts = Arc::new(gathered_parts(counts.param, n_pes));
            match placement {
                Placement::OutOfPlace => {
                    let send = is_root.then_some(send);
                    calls!(
                        setting,
                        |queue| team.scatter_v(queue, send, recv, parts.clone(), root),
                        team.scatter_v_blocking(send, recv, parts.clone(), root)
                    )
                }
                Placement::InPlace => calls!(
                    setting,
                    |queue| team.scatter_v_in_place(queue, recv, parts.clone(), root),
                    team.scatter_v_in_place_blocking(recv, parts.clone(), root)
                ),
            }
        }
        (BenchOp::AllToAllStrided, _) => {
            let strides = every_other(view);
            calls!(
                setting,
                |queue| team.all_to_all_strided(queue, send, recv, strides),
                team.all_to_all_strided_blocking(send, recv, strides)
            )
        }
        (BenchOp::Gather, Placement::OutOfPlace) => {
            let recv = is_root.then_some(recv);
            calls!(setting, |queue| team.gather(queue, send, recv, root), team.gather_blocking(send, recv, root))
        }
        (BenchOp::Gather, Placement::InPlace) => {
            let both = if is_root { recv } else { send };
            calls!(setting, |queue| team.gather_in_place(queue, both, root), team.gather_in_place_blocking(both, root))
        }
        (BenchOp::Scatter, Placement::OutOfPlace) => {
            let send = is_root.then_some(send);
            calls!(setting, |queue| team.scatter(queue, send, recv, root), team.scatter_blocking(send, recv, root))
        }
        (BenchOp::Scatter, Placement::InPlace) => {
            calls!(setting, |queue| team.scatter_in_place(queue, recv, root), team.scatter_in_place_blocking(recv, root))
        }
        (BenchOp::SendRecv, _) => {
            let (next, before) = (Rank::new(((rank + 1) % n_pes) as u32), Rank::new(((rank + n_pes - 1) % n_pes) as u32));
            calls!(
                setting,
                |queue| team.group(queue, |group| {
                    group.send(send, next)?;
                    group.recv(recv, before)
                }),
                team.group_blocking(|group| {
                    group.send(send, next)?;
                    group.recv(recv, before)
                })
            )
        }
        (other, _) => unreachable!("{} does not move elements, expected a collective or send-recv", other.name()),
    }
}

/// Returns the calls of a one-sided operation. PE 0 accesses the memory of PE 1; other PEs make no
/// calls.
pub fn one_sided<'a, T, M>(setting: &'a Setting<'a, M>, target: &'a Symmetric<T>, words: Words<'a>) -> Calls<'a>
where
    T: Sample,
    for<'m> &'m M: StreamSource<T> + StreamDest<T>,
{
    let Setting { world, stream, nbi, view, send, recv, .. } = setting;
    let (team, peer) = (world.team(), Rank::new(1));
    if view.rank > 1 || (view.rank == 1 && view.op != BenchOp::PingPong) {
        return Box::new(|_| Ok(()));
    }
    let Words { word, wrong } = words;
    if *nbi {
        return one_sided_nbi(setting, target, word);
    }
    let mut made = 0u64;
    match view.op {
        BenchOp::Put => calls!(
            setting,
            |queue| team.put(queue, send, target, peer).and_then(|_| world.quiet(queue)),
            team.put_blocking(send, target, peer).and_then(|()| world.quiet_blocking())
        ),
        BenchOp::Get => calls!(setting, |queue| team.get(queue, target, recv, peer), team.get_blocking(target, recv, peer)),
        BenchOp::PutSignal => {
            let signal = first_signal(word);
            calls!(
                setting,
                |queue| team.put_signal(queue, send, target, signal.add(1), peer).and_then(|_| world.quiet(queue)),
                team.put_signal_blocking(send, target, signal.add(1), peer).and_then(|()| world.quiet_blocking())
            )
        }
        BenchOp::PutStrided => {
            let strides = every_other(view);
            calls!(
                setting,
                |queue| team.put_strided(queue, send, target, strides, peer).and_then(|_| world.quiet(queue)),
                team.put_strided_blocking(send, target, strides, peer).and_then(|()| world.quiet_blocking())
            )
        }
        BenchOp::P => calls!(
            setting,
            |queue| {
                made += 1;
                team.p(queue, target, 0, T::from_bits64(made), peer).and_then(|_| world.quiet(queue))
            },
            {
                made += 1;
                team.p_blocking(target, 0, T::from_bits64(made), peer).and_then(|()| world.quiet_blocking())
            }
        ),
        BenchOp::G => {
            let due = T::from_bits64(G_DUE);
            let check = move |got: T| wrong.set(wrong.get() + u64::from(got.bits64() != due.bits64()));
            match *stream {
                None => blocking!(team.g_blocking(target, 0, peer).map(check)),
                Some(queue) => last_of(queue, move || team.g(queue, target, 0, peer), move |got, _| check(got)),
            }
        }
        BenchOp::Atomics => match *stream {
            None => blocking!({
                made += 1;
                let old = team.atomic_fetch_add_blocking(word, 0, 1, peer);
                old.map(|old| wrong.set(wrong.get() + u64::from(old + 1 != made)))
            }),
            Some(queue) => last_of(
                queue,
                move || team.atomic_fetch_add(queue, word, 0, 1, peer),
                move |old, times| {
                    made += times;
                    wrong.set(wrong.get() + u64::from(old + 1 != made));
                },
            ),
        },
        BenchOp::PingPong => ping_pong(team, view, send, target, Words { word, wrong }),
        other => unreachable!("{} is not one-sided, expected an operation for which BenchOp::is_one_sided is true", other.name()),
    }
}

/// Creates a closure that makes a call the given number of times, and then completes all of these
/// calls by one quiet.
macro_rules! calls_and_quiet {
    ($setting:expr, |$queue:ident| $queued:expr, $blocking:expr) => {
        match $setting.stream {
            None => Box::new(move |times| {
                for _ in 0..times {
                    $blocking?;
                }
                $setting.world.quiet_blocking()
            }),
            Some($queue) => Box::new(move |times| {
                for _ in 0..times {
                    $queued?;
                }
                $setting.world.quiet($queue)?.wait()?;
                $queue.synchronize()
            }),
        }
    };
}

/// Returns the closure that makes nonblocking one-sided calls on PE 0. One quiet at the end of each
/// batch completes the calls.
fn one_sided_nbi<'a, T, M>(setting: &'a Setting<'a, M>, target: &'a Symmetric<T>, word: &'a Symmetric<u64>) -> Calls<'a>
where
    T: Sample,
    for<'m> &'m M: StreamSource<T> + StreamDest<T>,
{
    let Setting { world, view, send, recv, .. } = setting;
    let (team, peer) = (world.team(), Rank::new(1));
    let mut made = 0u64;
    match view.op {
        BenchOp::Put => {
            calls_and_quiet!(setting, |queue| team.put_nbi(queue, send, target, peer), team.put_nbi_blocking(send, target, peer))
        }
        BenchOp::Get => {
            calls_and_quiet!(setting, |queue| team.get_nbi(queue, target, recv, peer), team.get_nbi_blocking(target, recv, peer))
        }
        BenchOp::PutSignal => {
            let signal = first_signal(word);
            calls_and_quiet!(
                setting,
                |queue| team.put_signal_nbi(queue, send, target, signal.add(1), peer),
                team.put_signal_blocking(send, target, signal.add(1), peer)
            )
        }
        BenchOp::PutStrided => {
            let strides = every_other(view);
            calls_and_quiet!(
                setting,
                |queue| team.put_strided(queue, send, target, strides, peer),
                team.put_strided_blocking(send, target, strides, peer)
            )
        }
        BenchOp::P => calls_and_quiet!(
            setting,
            |queue| {
                made += 1;
                team.p(queue, target, 0, T::from_bits64(made), peer)
            },
            {
                made += 1;
                team.p_blocking(target, 0, T::from_bits64(made), peer)
            }
        ),
        other => unreachable!("{} has no nonblocking form; the configuration should have refused it", other.name()),
    }
}

/// Returns strides that select every other element, for put-strided and all-to-all-strided.
fn every_other(view: &View) -> Strides {
    Strides { count: view.counts.param, source: 2, dest: 2 }
}

/// Returns a closure that enqueues operations and waits for all of them. Then the closure passes
/// the value that the last operation returned, and the number of operations, to `check`.
fn last_of<'a, R: 'a>(
    queue: &'a Stream,
    mut enqueue: impl FnMut() -> Result<Ticket<R>> + 'a,
    mut check: impl FnMut(R, u64) + 'a,
) -> Calls<'a> {
    Box::new(move |times| {
        let mut last = None;
        for _ in 0..times {
            last = Some(enqueue()?);
        }
        queue.synchronize()?;
        if let Some(ticket) = last {
            check(ticket.wait()?, times);
        }
        Ok(())
    })
}

fn first_signal(word: &Symmetric<u64>) -> peerweave::Signal<'_> {
    word.signal(0).expect("the buffer of the signal word has one element")
}

/// Returns the calls of a ping-pong. In each call PE 0 puts with a signal, PE 1 waits for the
/// signal and puts back with a signal, and PE 0 waits for that signal. Data of at most 8 bytes is
/// sent as the value of the signal.
fn ping_pong<'a, T: Element, S>(team: &'a Team, view: &View, send: S, target: &'a Symmetric<T>, words: Words<'a>) -> Calls<'a>
where
    S: Source<T> + Copy + 'a,
{
    let signal = first_signal(words.word);
    let (rank, peer, wrong) = (view.rank, Rank::new(1 - view.rank as u32), words.wrong);
    let as_signal = is_signal_alone(view, size_of::<T>());
    let mut round = 0;
    Box::new(move |times| {
        let answer = |round| match as_signal {
            true => team.signal_blocking(signal.set(round), peer),
            false => team.put_signal_blocking(send, target, signal.set(round), peer),
        };
        let wait = |round| -> Result<()> {
            let got = team.wait_until_blocking(&signal, Compare::Ge, round)?;
            wrong.set(wrong.get() + u64::from(got != round));
            Ok(())
        };
        for _ in 0..times {
            round += 1;
            if rank == 0 {
                answer(round)?;
                wait(round)?;
            } else {
                wait(round)?;
                answer(round)?;
            }
        }
        Ok(())
    })
}

/// Returns whether the operation is a ping-pong with at most 8 bytes of data. Such a ping-pong
/// sends only signals. The value of each signal takes the place of the data.
pub fn is_signal_alone(view: &View, element_bytes: usize) -> bool {
    view.op == BenchOp::PingPong && view.counts.param * element_bytes <= size_of::<u64>()
}
