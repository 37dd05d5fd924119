//! Checks wrong calls in jobs of several PEs. A wrong call of one PE is an error only on that PE,
//! which can call again. If PEs make different calls, all get an error, and the team stays usable.
//!
//! Tests of `peerweave-core` show that every argument is checked.

use peerweave::bootstrap::Job as Place;
use peerweave::{
    Buffer, Compare, Error, MisuseKind, Parts, PrivateBuffers, Rank, ReduceFn, ReduceOp, Reduction, Result, Strides, Symmetric,
    Team, VectorCounts, World, none,
};
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    peerweave_tests::main(
        named![disagree, wrong_alone, foreign, settings, attach_differs],
        named![
            mismatch_is_an_error_on_all_pes_and_the_team_stays_usable,
            wrong_call_of_one_pe_does_not_affect_other_pes,
            handles_of_another_world_are_refused,
            different_settings_are_an_error_on_every_pe,
            private_memory_of_peers_is_not_read_if_a_pe_forbids_reads,
        ],
    )
}

/// The arguments of a PE's call.
struct Caller<'a> {
    team: &'a Team,
    len: usize,
    a: Symmetric<f32>,
    b: Symmetric<f32>,
    symmetric: bool,
}

impl Caller<'_> {
    fn n(&self) -> usize {
        self.team.size()
    }

    fn all_reduce(&self, len: usize, op: impl Into<Reduction<f32>>) -> Result<()> {
        if self.symmetric {
            self.team.all_reduce_blocking(&self.a.slice(..len)?, &self.b.slice(..len)?, op)
        } else {
            self.team.all_reduce_blocking(&vec![1.0; len], &mut vec![0.0; len], op)
        }
    }

    fn broadcast(&self, len: usize, root: u32) -> Result<()> {
        let root = Rank::new(root);
        if self.symmetric {
            self.team.broadcast_blocking(&self.a.slice(..len)?, &self.b.slice(..len)?, root)
        } else {
            self.team.broadcast_blocking(&vec![1.0f32; len], &mut vec![0.0; len], root)
        }
    }

    fn all_gather(&self, len: usize) -> Result<()> {
        if self.symmetric {
            self.team.all_gather_blocking(&self.a.slice(..len)?, &self.b.slice(..len * self.n())?)
        } else {
            self.team.all_gather_blocking(&vec![1.0f32; len], &mut vec![0.0; len * self.n()])
        }
    }

    fn scan(&self, len: usize, is_exclusive: bool, op: ReduceOp) -> Result<()> {
        let (a, b) = (self.a.slice(..len)?, self.b.slice(..len)?);
        let (send, mut recv) = (vec![1.0f32; len], vec![0.0; len]);
        match (self.symmetric, is_exclusive) {
            (true, false) => self.team.scan_blocking(&a, &b, op),
            (true, true) => self.team.exclusive_scan_blocking(&a, &b, op),
            (false, false) => self.team.scan_blocking(&send, &mut recv, op),
            (false, true) => self.team.exclusive_scan_blocking(&send, &mut recv, op),
        }
    }

    fn by_function(&self, len: usize) -> Result<()> {
        let function = ReduceFn::new(f32::max);
        if self.symmetric {
            self.team.all_reduce_with_blocking(&self.a.slice(..len)?, &self.b.slice(..len)?, &function)
        } else {
            self.team.all_reduce_with_blocking(&vec![1.0f32; len], &mut vec![0.0; len], &function)
        }
    }

    /// Exchanges `count` elements with each rank, at every second place.
    fn strided(&self, count: usize) -> Result<()> {
        let (len, strides) = (2 * count * self.n(), Strides { count, source: 2, dest: 2 });
        if self.symmetric {
            self.team.all_to_all_strided_blocking(&self.a.slice(..len)?, &self.b.slice(..len)?, strides)
        } else {
            self.team.all_to_all_strided_blocking(&vec![1.0f32; len], &mut vec![0.0; len], strides)
        }
    }

    fn all_to_all_v(&self, to_next: usize) -> Result<()> {
        let (n, me) = (self.n(), self.team.my_rank().index());
        let mut send = vec![self.len / n; n];
        send[(me + 1) % n] = to_next;
        let counts = VectorCounts::packed(send, vec![self.len / n; n]);
        if self.symmetric {
            let (a, b) = (&self.a, &self.b);
            self.team.all_to_all_v_blocking(a, b, counts)
        } else {
            self.team.all_to_all_v_blocking(&vec![1.0f32; self.len + to_next], &mut vec![0.0; self.len], counts)
        }
    }
}

/// Largest number of elements of a broadcast in which the root does not wait for the other ranks.
const SMALL_BROADCAST: usize = 16;

type Call = fn(&Caller<'_>, odd: bool) -> Result<()>;

/// Calls that differ among ranks, each with a description of the difference. Odd ranks make the
/// call for `odd`.
const DISAGREEMENTS: &[(&str, Call)] =
    &[
        ("barrier or sync", |c, odd| if odd { c.team.barrier_blocking() } else { c.team.sync_blocking() }),
        ("a barrier or a reduction", |c, odd| if odd { c.team.barrier_blocking() } else { c.all_reduce(c.len, ReduceOp::Sum) }),
        ("the collective", |c, odd| if odd { c.broadcast(c.len, 0) } else { c.all_reduce(c.len, ReduceOp::Sum) }),
        ("the count, by one", |c, odd| c.all_reduce(c.len - usize::from(odd), ReduceOp::Sum)),
        ("the count, so that one is small", |c, odd| c.all_reduce(if odd { 1 } else { c.len }, ReduceOp::Sum)),
        ("the count, so that one is zero", |c, odd| c.all_gather(if odd { 0 } else { c.len })),
        ("the reduction", |c, odd| c.all_reduce(c.len, if odd { ReduceOp::Min } else { ReduceOp::Max })),
        ("a scalar or none", |c, odd| {
            if odd { c.all_reduce(c.len, Reduction::pre_mul_sum(1.0)) } else { c.all_reduce(c.len, ReduceOp::Sum) }
        }),
        // A small broadcast does not wait for all ranks. Its mismatches are tested in
        // `mismatches.rs` of `peerweave-host`.
        ("the root", |c, odd| c.broadcast(c.len.max(SMALL_BROADCAST + 1), u32::from(odd))),
        ("the root, which alone passes a buffer", |c, odd| {
            let root = Rank::new(u32::from(odd));
            let (send, mut recv) = (vec![1.0f32; c.len], vec![0.0f32; c.len]);
            if c.team.my_rank() == root {
                c.team.reduce_blocking(&send, &mut recv, ReduceOp::Sum, root)
            } else {
                c.team.reduce_blocking(&send, none(), ReduceOp::Sum, root)
            }
        }),
        ("the element type, of the same size", |c, odd| {
            if odd {
                c.team.all_reduce_in_place_blocking(&mut vec![1u32; c.len], ReduceOp::Sum)
            } else {
                c.all_reduce(c.len, ReduceOp::Sum)
            }
        }),
        ("the element type, of another size", |c, odd| {
            if odd {
                c.team.all_reduce_in_place_blocking(&mut vec![1u8; c.len], ReduceOp::Sum)
            } else {
                c.all_reduce(c.len, ReduceOp::Sum)
            }
        }),
        ("the count of a scan", |c, odd| c.scan(c.len - usize::from(odd), false, ReduceOp::Sum)),
        ("a scan or an exclusive one", |c, odd| c.scan(c.len, odd, ReduceOp::Sum)),
        ("the reduction of a scan", |c, odd| c.scan(c.len, false, if odd { ReduceOp::Min } else { ReduceOp::Sum })),
        (
            "a scan or a reduction",
            |c, odd| if odd { c.scan(c.len, false, ReduceOp::Sum) } else { c.all_reduce(c.len, ReduceOp::Sum) },
        ),
        ("a function or an operation", |c, odd| if odd { c.by_function(c.len) } else { c.all_reduce(c.len, ReduceOp::Sum) }),
        ("the count of a reduction by a function", |c, odd| c.by_function(c.len - usize::from(odd))),
        ("the count of a strided exchange", |c, odd| c.strided(c.len / (2 * c.n()) - usize::from(odd))),
        (
            "a strided exchange or another one",
            |c, odd| {
                if odd { c.strided(c.len / (2 * c.n())) } else { c.all_to_all_v(c.len / c.n()) }
            },
        ),
        ("counts or a reduction", |c, odd| {
            if odd { c.team.exchange_counts(&vec![1; c.n()]).map(drop) } else { c.all_reduce(c.len, ReduceOp::Sum) }
        }),
        ("the count that is sent to the next rank", |c, odd| c.all_to_all_v(c.len / c.n() + usize::from(odd))),
        ("the length of a part that all gather", |c, odd| {
            let mut counts = vec![c.len / c.n(); c.n()];
            counts[0] -= usize::from(odd);
            let parts = Parts::packed(counts);
            let mine = parts.counts[c.team.my_rank().index()];
            if c.symmetric {
                c.team.all_gather_v_blocking(&c.a.slice(..mine)?, &c.b, parts)
            } else {
                c.team.all_gather_v_blocking(&vec![1.0f32; mine], &mut vec![0.0; c.len], parts)
            }
        }),
        ("the length of a part that the root scatters", |c, odd| {
            let (part, root) = (c.len / c.n(), Rank::new(0));
            let mine = part + usize::from(odd);
            let parts = Parts::equal(c.n(), part);
            if c.symmetric {
                c.team.scatter_v_blocking(&c.a, &c.b.slice(..mine)?, parts, root)
            } else {
                c.team.scatter_v_blocking(&vec![1.0f32; c.len], &mut vec![0.0; mine], parts, root)
            }
        }),
        ("the length of a part that the root gathers", |c, odd| {
            let (part, root) = (c.len / c.n(), Rank::new(0));
            if odd {
                c.team.gather_v_blocking(&vec![1.0f32; part + 1], none(), Parts::default(), root)
            } else {
                c.team.gather_v_blocking(&vec![1.0f32; part], &c.b, Parts::equal(c.n(), part), root)
            }
        }),
        (
            "a split or a reduction",
            |c, odd| {
                if odd { c.team.split(Some(1), 0).map(drop) } else { c.all_reduce(c.len, ReduceOp::Sum) }
            },
        ),
    ];

fn disagree(seat: &Seat) {
    let world = seat.join();
    let team = world.team().split(Some(0), -i64::from(world.my_pe().get())).unwrap().unwrap();
    let (n, me) = (team.size(), team.my_rank().index());
    for len in [2 * n, 100 * n, 10_000 * n, 200_000 * n] {
        let elements = (len * (n + 1)).max(SMALL_BROADCAST + 1);
        let [a, b] = [0; 2].map(|_| world.alloc_zeroed::<f32>(elements).unwrap());
        for symmetric in [true, false] {
            let caller = Caller { team: &team, len, a: a.clone(), b: b.clone(), symmetric };
            for (what, call) in DISAGREEMENTS {
                b.fill(-7.0).unwrap();
                let error = call(&caller, me % 2 == 1).expect_err(what);
                let whole = format!("ranks differ in {what}; {len} elements, symmetric: {symmetric}: {error}");
                let Error::Mismatch(mismatch) = &error else { panic!("{whole}") };
                // The error names a PE, not a rank, whose call differs from that of this PE.
                let rank = team.rank_of(mismatch.pe).unwrap_or_else(|| panic!("{whole}"));
                assert_ne!(rank, team.my_rank(), "{whole}");
                assert_ne!(mismatch.mine, mismatch.theirs, "{whole}");
                assert_eq!(mismatch.team, team.name(), "{whole}");
                assert!(b.to_vec().unwrap().iter().all(|&x| x == -7.0), "the failed call wrote to its buffer: {whole}");
                // The team is usable again.
                let mut sum = [0u64; 5];
                team.all_reduce_blocking(&[me as u64; 5], &mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum, [(n * (n - 1) / 2) as u64; 5], "after {whole}");
            }
        }
        a.release().unwrap();
        b.release().unwrap();
    }
    team.destroy().unwrap();
    assert!(world.finalize().unwrap().is_clean());
}

fn mismatch_is_an_error_on_all_pes_and_the_team_stays_usable() {
    Job::new("disagree", 2).on_threads();
    Job::new("disagree", 3).on_processes();
    Job::new("disagree", 3).without_attach().check_calls().on_processes();
}

fn wrong_alone(seat: &Seat) {
    let world = seat.join();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let (n, me) = (team.size(), team.my_rank().index());
    let [a, b] = [0; 2].map(|_| world.alloc_zeroed::<i32>(8 * n).unwrap());
    let words = world.alloc_zeroed::<u64>(2).unwrap();
    let is = |result: Result<()>, right: fn(&MisuseKind) -> bool| {
        let error = result.expect_err("a wrong call fails");
        assert!(error.misuse().is_some_and(right), "{error}");
    };
    for round in 0..n {
        if me == round {
            // Each of these fails at once, while the others wait in a barrier.
            let none_such = Rank::new(n as u32);
            is(team.all_reduce_blocking(&[1i32; 3], &mut [0; 2], ReduceOp::Sum), |kind| {
                matches!(kind, MisuseKind::Length { .. })
            });
            is(team.all_gather_blocking(&[1i32; 3], &mut vec![0; 3 * n + 1]), |kind| matches!(kind, MisuseKind::Length { .. }));
            is(team.broadcast_in_place_blocking(&mut [0i32; 3], none_such), |kind| matches!(kind, MisuseKind::Rank { .. }));
            is(team.reduce_scatter_in_place_blocking(&mut vec![0i32; 8 * n + 1], ReduceOp::Sum), |kind| {
                matches!(kind, MisuseKind::NotDivisible { .. } | MisuseKind::Length { .. })
            });
            is(team.all_reduce_blocking(&a, &a.slice(..).unwrap(), ReduceOp::Sum), |kind| {
                matches!(kind, MisuseKind::Overlap { .. })
            });
            is(team.all_to_all_blocking(&a.slice(0..4 * n).unwrap(), &a.slice(n..5 * n).unwrap()), |kind| {
                matches!(kind, MisuseKind::Overlap { .. })
            });
            is(team.all_reduce_in_place_blocking(&mut [1.0f32], ReduceOp::Xor), |kind| {
                matches!(kind, MisuseKind::Reduction { .. })
            });
            is(team.all_reduce_in_place_blocking(&mut [1i32], ReduceOp::PreMulSum), |kind| {
                matches!(kind, MisuseKind::Missing { .. })
            });
            is(team.reduce_blocking(&[1i32], none(), ReduceOp::Sum, team.my_rank()), |kind| {
                matches!(kind, MisuseKind::Missing { .. })
            });
            is(team.put_blocking(&[1i32; 3], &a.slice(0..2).unwrap(), Rank::new(0)), |kind| {
                matches!(kind, MisuseKind::Length { .. })
            });
            is(team.put_blocking(&[1i32; 2], &a.slice(0..2).unwrap(), none_such), |kind| matches!(kind, MisuseKind::Rank { .. }));
            is(team.p_blocking(&a, 8 * n, 1, Rank::new(0)), |kind| matches!(kind, MisuseKind::Index { .. }));
            is(team.scan_blocking(&[1i32; 3], &mut [0; 2], ReduceOp::Sum), |kind| matches!(kind, MisuseKind::Length { .. }));
            is(team.exclusive_scan_in_place_blocking(&mut [1i32], ReduceOp::Avg), |kind| {
                matches!(kind, MisuseKind::Value { .. })
            });
            is(team.all_gather_v_blocking(&[1i32; 3], &b, Parts::equal(n, 2)), |kind| matches!(kind, MisuseKind::Length { .. }));
            is(team.scatter_v_blocking(&a, &mut [0i32; 3], Parts::equal(n, 3), none_such), |kind| {
                matches!(kind, MisuseKind::Rank { .. })
            });
            let no_stride = Strides { count: 1, source: 0, dest: 1 };
            is(team.all_to_all_strided_blocking(&a, &b, no_stride), |kind| matches!(kind, MisuseKind::Value { .. }));
            let first = ReduceFn::new(|a: i32, _| a);
            is(team.exclusive_scan_with_blocking(&[1i32; 3], &mut [0; 2], &first), |kind| {
                matches!(kind, MisuseKind::Length { .. })
            });
            let context = team.context().unwrap();
            is(context.put(&a, &b.slice(1..).unwrap(), Rank::new(0)), |kind| matches!(kind, MisuseKind::Length { .. }));
            is(context.p(&a, 0, 1, none_such), |kind| matches!(kind, MisuseKind::Rank { .. }));
            is(team.wait_until_blocking((&a, 8 * n), Compare::Eq, 1).map(drop), |kind| matches!(kind, MisuseKind::Index { .. }));
            is(a.slice(1..).unwrap().cast::<u64>().map(drop), |kind| matches!(kind, MisuseKind::Value { .. }));
            is(team.send_blocking(&[1i32], none_such), |kind| matches!(kind, MisuseKind::Rank { .. }));
            is(team.wait_until_all_blocking(&words, Some(&[true]), Compare::Eq, 1), |kind| {
                matches!(kind, MisuseKind::Length { .. })
            });
            is(team.all_reduce(&stream, &a, &b.slice(1..).unwrap(), ReduceOp::Sum).map(drop), |kind| {
                matches!(kind, MisuseKind::Length { .. })
            });
            is(
                team.group(&stream, |group| {
                    group.recv(&a, Rank::new(0))?;
                    group.recv(&a, Rank::new(0))
                })
                .map(drop),
                |kind| matches!(kind, MisuseKind::OverlapWithin { .. }),
            );
            stream.synchronize().unwrap();
        }
        team.barrier_blocking().unwrap();
        let mut sum = [0i32];
        team.all_reduce_blocking(&[1i32], &mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(sum[0], n as i32);
    }
    assert!(a.to_vec().unwrap().iter().all(|&x| x == 0), "a refused call wrote to its buffer");
    let _ = world.finalize().unwrap();
}

fn wrong_call_of_one_pe_does_not_affect_other_pes() {
    Job::new("wrong_alone", 2).on_threads();
    Job::new("wrong_alone", 3).on_processes();
}

fn foreign(seat: &Seat) {
    let world = seat.join();
    let other = World::builder().job(Place::single()).build().unwrap();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let (theirs, their_stream) = (other.team(), other.stream().unwrap());
    let (a, b) = (world.alloc_zeroed::<u64>(4).unwrap(), other.alloc_zeroed::<u64>(4).unwrap());
    let (me, zero) = (team.my_rank(), Rank::new(0));
    let buffer = |result: Result<()>| {
        let error = result.expect_err("a call with a buffer of another world fails");
        assert!(matches!(error.misuse(), Some(MisuseKind::ForeignBuffer { .. })), "{error}");
    };
    buffer(team.all_reduce_blocking(&a, &b, ReduceOp::Sum));
    buffer(team.all_reduce_blocking(&b, &a, ReduceOp::Sum));
    buffer(team.put_blocking(&a, &b, me));
    buffer(team.get_blocking(&b, &a, me));
    buffer(team.signal_blocking(b.signal(0).unwrap().set(1), me));
    buffer(team.put_signal_blocking(&[0u64; 4], &a, b.signal(0).unwrap().set(1), me));
    buffer(team.wait_until_blocking(&b.signal(0).unwrap(), Compare::Eq, 0).map(drop));
    buffer(team.atomic_inc_blocking(&b, 0, me));
    buffer(theirs.broadcast_in_place_blocking(&a, zero));
    buffer(team.group_blocking(|group| group.put(&[1u64; 4], &b, me)));
    let queue = |result: Result<()>| {
        let error = result.expect_err("a call with a stream of another world fails");
        assert!(matches!(error.misuse(), Some(MisuseKind::ForeignQueue { .. })), "{error}");
    };
    queue(team.barrier(&their_stream).map(drop));
    queue(team.put(&their_stream, &Buffer::zeroed(4), &a, me).map(drop));
    queue(theirs.all_reduce_in_place(&stream, &b, ReduceOp::Sum).map(drop));
    queue(team.group(&their_stream, |_| Ok(())).map(drop));
    queue(stream.wait_event(&their_stream.record().unwrap()));
    queue(world.quiet(&their_stream).map(drop));
    assert_eq!(team.translate(me, theirs), None);
    // Both worlds stay usable.
    team.barrier_blocking().unwrap();
    theirs.all_reduce_in_place_blocking(&b, ReduceOp::Sum).unwrap();
    a.release().unwrap();
    b.release().unwrap();
    assert!(world.finalize().unwrap().is_clean());
    assert!(other.finalize().unwrap().is_clean());
}

fn handles_of_another_world_are_refused() {
    Job::new("foreign", 2).on_threads();
    Job::new("foreign", 2).on_processes();
}

/// Joins with heaps of different sizes. Argument: the heap size of PE 1 in MiB; the other heaps
/// have 2 MiB.
fn settings(seat: &Seat) {
    let place = Place::from_env().unwrap();
    let heap_bytes = if place.pe.get() == 1 { seat.arg::<usize>(0) << 20 } else { 2 << 20 };
    let made = World::builder().heap_bytes(heap_bytes).build().map(|world| world.describe());
    assert!(made.is_err(), "{made:?}");
}

fn different_settings_are_an_error_on_every_pe() {
    for megabytes in ["1", "64"] {
        Job::new("settings", 3).args(megabytes).limit(Duration::from_secs(50)).on_processes();
    }
}

fn attach_differs(_: &Seat) {
    let place = Place::from_env().unwrap();
    let world = World::builder().cross_memory_attach(place.pe.get() != 1).build().unwrap();
    assert_eq!(world.caps().private_buffers, PrivateBuffers::Staged, "PE 1 forbids access, so all PEs stage");
    let (n, me) = (world.n_pes(), world.my_pe().index());
    let mut buffer = vec![me as u64; 100_000];
    world.team().all_reduce_in_place_blocking(&mut buffer, ReduceOp::Sum).unwrap();
    assert!(buffer.iter().all(|&x| x == (n * (n - 1) / 2) as u64));
    let _ = world.finalize().unwrap();
}

fn private_memory_of_peers_is_not_read_if_a_pe_forbids_reads() {
    Job::new("attach_differs", 3).on_processes();
}
