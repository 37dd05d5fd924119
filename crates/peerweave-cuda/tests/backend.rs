//! Tests of the portable API on GPUs of the fake driver. The tests cover every operation of the
//! backend, in streams and as blocking calls.
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use peerweave_core::{Buffer, Compare, Error, Rank, ReduceOp, Reduction, Strides, VectorCounts, World, bf16};
use peerweave_cuda::GpuOptions;
use peerweave_fakes::Fakes;

use common::worlds;

fn options() -> GpuOptions {
    GpuOptions::new(4 << 20).deadline(Duration::from_secs(60)).slots(4)
}

fn fakes() -> Fakes {
    Fakes::new().cuda()
}

/// Returns the rank after this PE and the rank before this PE, in a ring of all PEs.
fn neighbors(world: &World) -> (Rank, Rank) {
    let (me, n) = (world.my_pe().get(), world.n_pes() as u32);
    (Rank::new((me + 1) % n), Rank::new((me + n - 1) % n))
}

#[test]
fn put_with_signal_delivers_data_before_the_signal() {
    fakes().run(|| {
        worlds(3, options(), |world| {
            let (team, (right, left)) = (world.team(), neighbors(world));
            let (data, words) = (world.alloc_zeroed::<u32>(1000).unwrap(), world.alloc_zeroed::<u64>(1).unwrap());
            let (stream, arrived) = (world.stream().unwrap(), words.signal(0).unwrap());
            let mine: Vec<u32> = (0..1000).map(|i| 1000 * world.my_pe().get() + i).collect();
            let theirs: Vec<u32> = (0..1000).map(|i| 1000 * left.get() + i).collect();
            // There are three puts: a blocking call, a put from a buffer in a stream, and a put
            // from symmetric memory.
            team.put_signal_blocking(&mine, &data, arrived.add(1), right).unwrap();
            assert_eq!(team.wait_until_blocking(&arrived, Compare::Ge, 1).unwrap(), 1);
            assert_eq!(data.to_vec().unwrap(), theirs);
            team.barrier_blocking().unwrap();
            data.fill(0).unwrap();
            team.barrier_blocking().unwrap();
            let back = Buffer::<u32>::zeroed(1000);
            team.put_signal(&stream, &Buffer::from(mine.clone()), &data, arrived.set(7), right).unwrap();
            let seen = team.wait_until(&stream, &arrived, Compare::Eq, 7).unwrap();
            stream.copy(&data, &back).unwrap().wait().unwrap();
            assert_eq!((seen.wait().unwrap(), back.to_vec()), (7, theirs.clone()));
            team.barrier(&stream).unwrap().wait().unwrap();
            let source = world.alloc::<u32>(1000).unwrap();
            source.copy_from(&mine).unwrap();
            team.put_signal(&stream, &source, &data, arrived.add(1), right).unwrap();
            team.wait_until(&stream, &arrived, Compare::Eq, 8).unwrap().wait().unwrap();
            assert_eq!(data.to_vec().unwrap(), theirs);
            let mut got = vec![0; 10];
            team.get_blocking(&data.slice(5..15).unwrap(), &mut got, right).unwrap();
            assert_eq!(got, mine[5..15]);
            team.barrier_blocking().unwrap();
            for memory in [data, source] {
                memory.release().unwrap();
            }
            words.release().unwrap();
        });
    });
}

#[test]
fn single_element_put_and_get_support_every_element_size() {
    fakes().run(|| {
        worlds(2, options(), |world| {
            let (team, stream, (other, _)) = (world.team(), world.stream().unwrap(), neighbors(world));
            let (bytes, halves) = (world.alloc_zeroed::<u8>(3).unwrap(), world.alloc_zeroed::<bf16>(3).unwrap());
            let (words, wide) = (world.alloc_zeroed::<f32>(3).unwrap(), world.alloc_zeroed::<i64>(3).unwrap());
            team.p_blocking(&bytes, 1, 0xfe, other).unwrap();
            team.p(&stream, &halves, 1, bf16::from_f32(-2.5), other).unwrap();
            team.p_blocking(&words, 2, -2.5, other).unwrap();
            team.p(&stream, &wide, 2, i64::MIN, other).unwrap().wait().unwrap();
            team.barrier_blocking().unwrap();
            assert_eq!(bytes.to_vec().unwrap(), [0, 0xfe, 0]);
            assert_eq!(halves.to_vec().unwrap(), [0.0, -2.5, 0.0].map(bf16::from_f32));
            assert_eq!((words.to_vec().unwrap(), wide.to_vec().unwrap()), (vec![0.0, 0.0, -2.5], vec![0, 0, i64::MIN]));
            assert_eq!(team.g_blocking(&bytes, 1, other).unwrap(), 0xfe);
            assert_eq!(team.g(&stream, &halves, 1, other).unwrap().wait().unwrap().to_f32(), -2.5);
            assert_eq!(team.g_blocking(&words, 2, other).unwrap(), -2.5);
            assert_eq!(team.g(&stream, &wide, 2, other).unwrap().wait().unwrap(), i64::MIN);
            words.store(0, 9.0).unwrap();
            assert_eq!(words.load(0).unwrap(), 9.0);
            team.barrier_blocking().unwrap();
            bytes.release().unwrap();
            halves.release().unwrap();
            words.release().unwrap();
            wide.release().unwrap();
        });
    });
}

#[test]
fn fill_and_strided_transfers_change_only_selected_elements() {
    fakes().run(|| {
        worlds(2, options(), |world| {
            let (team, stream, (other, _)) = (world.team(), world.stream().unwrap(), neighbors(world));
            let x = world.alloc::<i32>(12).unwrap();
            x.fill(0x0102_0304).unwrap();
            stream.fill(&x.slice(1..3).unwrap(), -1).unwrap();
            stream.fill(&x.slice(3..4).unwrap(), 5).unwrap().wait().unwrap();
            assert_eq!(x.slice(..5).unwrap().to_vec().unwrap(), [0x0102_0304, -1, -1, 5, 0x0102_0304]);
            let wide = world.alloc::<bf16>(700).unwrap();
            wide.fill(bf16::from_f32(1.5)).unwrap();
            assert_eq!(wide.to_vec().unwrap(), vec![bf16::from_f32(1.5); 700]);
            x.fill(0).unwrap();
            team.barrier_blocking().unwrap();
            let strides = Strides { count: 4, source: 1, dest: 3 };
            team.put_strided_blocking(&[1, 2, 3, 4], &x, strides, other).unwrap();
            team.barrier_blocking().unwrap();
            assert_eq!(x.to_vec().unwrap(), [1, 0, 0, 2, 0, 0, 3, 0, 0, 4, 0, 0]);
            let mut back = [9; 7];
            team.get_strided_blocking(&x, &mut back, Strides { count: 4, source: 3, dest: 2 }, other).unwrap();
            assert_eq!(back, [1, 9, 2, 9, 3, 9, 4]);
            let queued = Buffer::from(vec![9; 7]);
            let strides = Strides { count: 4, source: 3, dest: 2 };
            team.get_strided(&stream, &x, &queued, strides, other).unwrap().wait().unwrap();
            assert_eq!(queued.to_vec(), back);
            team.barrier_blocking().unwrap();
            x.release().unwrap();
            wide.release().unwrap();
        });
    });
}

#[test]
fn atomic_operations_change_elements_of_other_gpus() {
    fakes().run(|| {
        worlds(2, options(), |world| {
            let (team, stream, first) = (world.team(), world.stream().unwrap(), Rank::new(0));
            let (wide, half) = (world.alloc_zeroed::<u64>(2).unwrap(), world.alloc_zeroed::<i32>(3).unwrap());
            for _ in 0..5 {
                team.atomic_add_blocking(&wide, 1, 3, first).unwrap();
                team.atomic_inc(&stream, &half, 2, first).unwrap();
            }
            stream.synchronize().unwrap();
            team.barrier_blocking().unwrap();
            assert_eq!(team.atomic_fetch_blocking(&wide, 1, first).unwrap(), 30);
            assert_eq!(team.atomic_fetch(&stream, &half, 2, first).unwrap().wait().unwrap(), 10);
            team.barrier_blocking().unwrap();
            if world.my_pe().get() == 1 {
                assert_eq!(team.atomic_swap_blocking(&half, 2, -4, first).unwrap(), 10);
                assert_eq!(team.atomic_compare_swap_blocking(&half, 2, -4, 6, first).unwrap(), -4);
                assert_eq!(team.atomic_compare_swap_blocking(&half, 2, 0, 1, first).unwrap(), 6);
                assert_eq!(team.atomic_fetch_or_blocking(&wide, 1, 1, first).unwrap(), 30);
                team.atomic_set_blocking(&wide, 0, u64::MAX, first).unwrap();
                assert_eq!(team.atomic_fetch_blocking(&wide, 0, first).unwrap(), u64::MAX);
            }
            team.barrier_blocking().unwrap();
            wide.release().unwrap();
            half.release().unwrap();
        });
    });
}

#[test]
fn wait_and_test_calls_find_the_words_that_meet_the_condition() {
    fakes().run(|| {
        worlds(1, options(), |world| {
            let (team, stream, me) = (world.team(), world.stream().unwrap(), Rank::new(0));
            let words = world.alloc_zeroed::<u64>(70).unwrap();
            for (index, value) in [(1, 5), (66, 6)] {
                team.signal_blocking(words.signal(index).unwrap().set(value), me).unwrap();
            }
            let any = team.wait_until_any(&stream, &words, None, Compare::Gt, 5).unwrap();
            let some = team.wait_until_some(&stream, &words, None, Compare::Gt, 0).unwrap();
            assert_eq!((any.wait().unwrap(), some.wait().unwrap()), (Some(66), vec![1, 66]));
            let mut exclude = [true; 70];
            exclude[1] = false;
            assert_eq!(team.wait_until_some_blocking(&words, Some(&exclude), Compare::Gt, 0).unwrap(), [1]);
            team.wait_until_all_blocking(&words, Some(&exclude), Compare::Eq, 5).unwrap();
            assert_eq!(team.wait_until_any_blocking(&words, Some(&[true; 70]), Compare::Eq, 9).unwrap(), None);
            assert!(team.test(&words.signal(1).unwrap(), Compare::Eq, 5).unwrap());
            assert!(!team.test(&words.signal(1).unwrap(), Compare::Eq, 6).unwrap());
            assert_eq!(team.test_any(&words, None, Compare::Gt, 100).unwrap(), None);
            assert_eq!(team.test_some(&words, None, Compare::Ge, 6).unwrap(), [66]);
            assert!(!team.test_all(&words, None, Compare::Gt, 0).unwrap());
            assert_eq!(team.signal_fetch(&words.signal(66).unwrap()).unwrap(), 6);
            words.release().unwrap();
        });
    });
}

#[test]
fn split_creates_working_teams_that_reuse_team_numbers() {
    fakes().run(|| {
        worlds(3, options(), |world| {
            let color = world.my_pe().get() / 2;
            let pair = world.team().split(Some(color.into()), 0).unwrap().expect("a color was given");
            assert_eq!(pair.size(), if color == 0 { 2 } else { 1 });
            let (stream, x) = (world.stream().unwrap(), world.alloc_zeroed::<u64>(1).unwrap());
            for _ in 0..3 {
                pair.atomic_inc(&stream, &x, 0, Rank::new(0)).unwrap();
                pair.barrier(&stream).unwrap();
            }
            stream.synchronize().unwrap();
            if pair.my_rank() == Rank::new(0) {
                assert_eq!(x.load(0).unwrap(), 3 * pair.size() as u64);
            }
            if pair.size() == 2 {
                let (mut theirs, other) = ([0u8; 4], Rank::new(1 - pair.my_rank().get()));
                let mine = [pair.my_rank().get() as u8; 4];
                pair.group_blocking(|group| {
                    group.send(&mine, other)?;
                    group.recv(&mut theirs, other)
                })
                .unwrap();
                assert_eq!(theirs, [other.get() as u8; 4]);
            }
            // PEs that are not members do not take part in the splits of `pair`. The splits create
            // more teams than there are team numbers, so numbers are reused.
            for _ in 0..16 {
                let alone = pair.split(Some(pair.my_rank().get().into()), 0).unwrap().expect("a color was given");
                assert_eq!((alone.size(), alone.members()), (1, &[world.my_pe()][..]));
                alone.barrier(&stream).unwrap().wait().unwrap();
                alone.destroy().unwrap();
                let first = pair.split((pair.my_rank().get() == 0).then_some(3), 0).unwrap();
                assert_eq!(first.is_some(), pair.my_rank().get() == 0);
                if let Some(first) = first {
                    first.destroy().unwrap();
                }
            }
            pair.destroy().unwrap();
            assert!(world.team().split(None, 0).unwrap().is_none());
            x.release().unwrap();
        });
    });
}

#[test]
fn gpu_reductions_are_correct_on_every_rank() {
    fakes().run(|| {
        worlds(3, options(), |world| {
            let (team, stream, me) = (world.team(), world.stream().unwrap(), world.my_pe().get());
            for len in [1, 300, 4000] {
                let mine: Vec<f32> = (0..3 * len).map(|i| (i % 100) as f32 + me as f32).collect();
                let sum = |i: usize| (3 * (i % 100) + 3) as f32;
                let mut got = vec![0.0; 3 * len];
                team.all_reduce_blocking(&mine, &mut got, ReduceOp::Sum).unwrap();
                assert_eq!(got, (0..3 * len).map(sum).collect::<Vec<f32>>());
                let (from, to) = (Buffer::from(mine.clone()), Buffer::zeroed(len));
                team.reduce_scatter(&stream, &from, &to, ReduceOp::Sum).unwrap().wait().unwrap();
                assert_eq!(to.to_vec(), (me as usize * len..(me as usize + 1) * len).map(sum).collect::<Vec<f32>>());
                let x = world.alloc::<f32>(3 * len).unwrap();
                x.copy_from(&mine).unwrap();
                team.reduce_scatter_in_place_blocking(&x, ReduceOp::Sum).unwrap();
                let own = me as usize * len..(me as usize + 1) * len;
                assert_eq!(x.slice(own.clone()).unwrap().to_vec().unwrap(), own.map(sum).collect::<Vec<f32>>());
                x.release().unwrap();
                let x = world.alloc::<f32>(3 * len).unwrap();
                x.copy_from(&mine).unwrap();
                team.reduce_in_place_blocking(&x, ReduceOp::Max, Rank::new(1)).unwrap();
                let expected = if me == 1 { (0..3 * len).map(|i| (i % 100) as f32 + 2.0).collect() } else { mine.clone() };
                assert_eq!(x.to_vec().unwrap(), expected);
                team.all_reduce_in_place(&stream, &x, Reduction::pre_mul_sum(if me == 1 { 2.0 } else { 0.0 }))
                    .unwrap()
                    .wait()
                    .unwrap();
                assert_eq!(x.load(0).unwrap(), 4.0);
                x.release().unwrap();
            }
            let pair = world.team().split(Some(u64::from(me / 2)), 0).unwrap().unwrap();
            let mut least = [me as i64, -(me as i64)];
            pair.all_reduce_in_place_blocking(&mut least, ReduceOp::Min).unwrap();
            assert_eq!(least, if me == 2 { [2, -2] } else { [0, -1] });
            pair.destroy().unwrap();
        });
    });
}

#[test]
fn sends_and_receives_match_in_call_order() {
    fakes().run(|| {
        // The lengths include messages that are sent as 16-byte lines, messages that need rings,
        // and empty messages.
        worlds(3, options(), |world| {
            let (team, stream, (right, left)) = (world.team(), world.stream().unwrap(), neighbors(world));
            let message = |from: Rank, len: usize| (0..len as u32).map(|i| from.get() << 24 | i).collect::<Vec<_>>();
            let me = team.my_rank();
            for len in [1, 30_000, 0, 5] {
                let (from, to) = (Buffer::from(message(me, len)), Buffer::<u32>::zeroed(len));
                team.group(&stream, |group| {
                    group.send(&from, right)?;
                    group.recv(&to, left)
                })
                .unwrap()
                .wait()
                .unwrap();
                assert_eq!(to.to_vec(), message(left, len));
            }
            // One group has two messages to one rank and one message to this rank itself.
            let (first, second, own) = (message(me, 20_000), message(me, 7), message(me, 9));
            let (mut to_first, mut to_second, mut to_own) = (vec![0; 20_000], vec![0; 7], vec![0; 9]);
            team.group_blocking(|group| {
                group.recv(&mut to_first, left)?;
                group.recv(&mut to_second, left)?;
                group.send(&first, right)?;
                group.send(&second, right)?;
                group.send(&own, me)?;
                group.recv(&mut to_own, me)
            })
            .unwrap();
            assert_eq!((to_first, to_second, to_own), (message(left, 20_000), message(left, 7), own));
            if me.get() == 0 {
                team.send_blocking(&[1u8, 2, 3], Rank::new(1)).unwrap();
            } else if me.get() == 1 {
                let mut got = [0u8; 3];
                team.recv_blocking(&mut got, Rank::new(0)).unwrap();
                assert_eq!(got, [1, 2, 3]);
            }
            team.barrier_blocking().unwrap();
        });
    });
}

#[test]
fn all_to_all_v_moves_parts_of_any_length() {
    fakes().run(|| {
        worlds(3, options(), |world| {
            let team = world.team();
            let me = world.my_pe().index();
            // Rank `r` sends `r + 2 * s` elements to rank `s`.
            let sent: Vec<usize> = (0..3).map(|to| me + 2 * to).collect();
            let received: Vec<usize> = (0..3).map(|from| from + 2 * me).collect();
            let counts = VectorCounts::packed(sent.clone(), received.clone());
            let mine: Vec<i32> = (0..3).flat_map(|to| vec![(10 * me + to) as i32; sent[to]]).collect();
            let mut got = vec![0; received.iter().sum()];
            team.all_to_all_v_blocking(&mine, &mut got, counts).unwrap();
            let mut square = [10 * me as i32, 10 * me as i32 + 1, 10 * me as i32 + 2];
            team.all_to_all_v_in_place_blocking(&mut square, VectorCounts::packed([1; 3], [1; 3])).unwrap();
            assert_eq!(square, [me as i32, 10 + me as i32, 20 + me as i32]);
            let expected: Vec<i32> = (0..3).flat_map(|from| vec![(10 * from + me) as i32; received[from]]).collect();
            assert_eq!(got, expected);
            team.barrier_blocking().unwrap();
        });
    });
}

#[test]
fn data_moving_collectives_deliver_the_parts_of_all_ranks() {
    fakes().run(|| {
        // A part is so long that its transfer takes several rounds.
        worlds(3, options(), |world| {
            let (team, stream, me) = (world.team(), world.stream().unwrap(), world.my_pe().get());
            const COUNT: usize = 40_000;
            let part = |from: u32, to: u32| (0..COUNT as u32).map(move |i| from << 28 | to << 24 | i);
            let row = |rank: u32| (0..3).flat_map(|to| part(rank, to)).collect::<Vec<u32>>();
            let column = |rank: u32| (0..3).flat_map(|from| part(from, rank)).collect::<Vec<u32>>();
            let firsts = (0..3).flat_map(|from| part(from, 0)).collect::<Vec<u32>>();
            let first: Vec<u32> = part(me, 0).collect();
            let x = world.alloc_zeroed::<u32>(3 * COUNT).unwrap();
            // These operands are memory of the host, in a blocking call and in a stream.
            let mut all = vec![0; 3 * COUNT];
            team.all_gather_blocking(&first, &mut all).unwrap();
            assert_eq!(all, firsts);
            let (from, to) = (Buffer::from(row(me)), Buffer::zeroed(3 * COUNT));
            team.all_to_all(&stream, &from, &to).unwrap().wait().unwrap();
            assert_eq!(to.to_vec(), column(me));
            // These operands are symmetric memory, in place.
            x.copy_from(&row(me)).unwrap();
            team.all_to_all_in_place(&stream, &x).unwrap().wait().unwrap();
            assert_eq!(x.to_vec().unwrap(), column(me));
            for root in 0..3 {
                let at = Rank::new(root);
                let mut copy = first.clone();
                team.broadcast_in_place_blocking(&mut copy, at).unwrap();
                assert_eq!(copy, part(root, 0).collect::<Vec<u32>>());
                team.gather_blocking(&first, &x, at).unwrap();
                if me == root {
                    assert_eq!(x.to_vec().unwrap(), firsts);
                    x.copy_from(&row(root)).unwrap();
                }
                let mut share = vec![0; COUNT];
                team.scatter_blocking(&x, &mut share, at).unwrap();
                assert_eq!(share, part(root, me).collect::<Vec<u32>>());
            }
            x.release().unwrap();
        });
    });
}

#[test]
fn collectives_of_one_team_on_two_streams_run_in_order() {
    fakes().run(|| {
        worlds(2, options(), |world| {
            let (team, streams) = (world.team(), [world.stream().unwrap(), world.stream().unwrap()]);
            let results: Vec<Buffer<u32>> = (0..20).map(|_| Buffer::zeroed(2)).collect();
            for (round, result) in (0..).zip(&results) {
                let mine = Buffer::from(vec![10 * round + world.my_pe().get()]);
                team.all_gather(&streams[round as usize % 2], &mine, result).unwrap();
                team.barrier(&streams[(round as usize + 1) % 2]).unwrap();
            }
            streams.iter().for_each(|stream| stream.synchronize().unwrap());
            for (round, result) in (0..).zip(&results) {
                assert_eq!(result.to_vec(), [10 * round, 10 * round + 1]);
            }
        });
    });
}

#[test]
fn collectives_with_a_single_pe_copy_the_operand() {
    fakes().run(|| {
        worlds(1, options(), |world| {
            let (team, stream) = (world.team(), world.stream().unwrap());
            let mut sum = [0.0f32; 3];
            team.all_reduce_blocking(&[1.0, 2.0, 3.0], &mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [1.0, 2.0, 3.0]);
            let (x, y) = (world.alloc::<i32>(2).unwrap(), Buffer::zeroed(2));
            x.copy_from(&[4, 5]).unwrap();
            team.all_gather(&stream, &x, &y).unwrap().wait().unwrap();
            assert_eq!(y.to_vec(), [4, 5]);
            x.release().unwrap();
        });
    });
}

#[test]
fn events_can_order_two_streams_and_measure_time() {
    fakes().run(|| {
        worlds(1, options(), |world| {
            let (team, me) = (world.team(), Rank::new(0));
            let (first, second) = (world.stream().unwrap(), world.stream().unwrap());
            let (x, words) = (world.alloc_zeroed::<u64>(1).unwrap(), world.alloc_zeroed::<u64>(1).unwrap());
            let go = words.signal(0).unwrap();
            let before = first.record().unwrap();
            before.wait().unwrap();
            team.wait_until(&first, &go, Compare::Eq, 1).unwrap();
            team.atomic_set(&first, &x, 0, 5, me).unwrap();
            let after = first.record().unwrap();
            second.wait_event(&after).unwrap();
            let seen = team.atomic_fetch(&second, &x, 0, me).unwrap();
            assert!(!after.is_complete() && !first.is_idle());
            assert!(matches!(seen.wait_within(Duration::from_millis(20)), Err(Error::Timeout(_))));
            team.signal_blocking(go.set(1), me).unwrap();
            assert_eq!(seen.wait().unwrap(), 5);
            after.wait().unwrap();
            assert!(after.elapsed_since(&before).is_some_and(|elapsed| elapsed >= Duration::from_millis(20)));
            assert_eq!(before.elapsed_since(&after), None);
            x.release().unwrap();
            words.release().unwrap();
        });
    });
}

#[test]
fn tickets_can_be_waited_for_on_another_thread() {
    fakes().run(|| {
        worlds(1, options(), |world| {
            let (team, stream, me) = (world.team(), world.stream().unwrap(), Rank::new(0));
            let words = world.alloc_zeroed::<u64>(1).unwrap();
            let ticket = team.wait_until(&stream, &words.signal(0).unwrap(), Compare::Eq, 3).unwrap();
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| ticket.wait());
                scope.spawn(|| team.signal_blocking(words.signal(0).unwrap().set(3), me).unwrap());
                assert_eq!(waiter.join().unwrap().unwrap(), 3);
            });
            words.release().unwrap();
        });
    });
}

#[test]
fn job_without_a_launcher_uses_one_gpu() {
    fakes().run(|| {
        common::register();
        assert_eq!(peerweave_cuda::visible_gpus().unwrap(), 8);
        let mut options = peerweave_cuda::CudaOptions::default();
        options.heap_bytes = Some(1 << 20);
        let cuda = peerweave_cuda::Cuda::join(&peerweave_bootstrap::Job::single(), &options).unwrap();
        let world = World::new(cuda).unwrap();
        assert_eq!((world.backend_name(), world.n_pes(), world.caps().device), ("cuda", 1, Some(0)));
        let x = world.alloc::<f64>(3).unwrap();
        x.fill(2.5).unwrap();
        assert_eq!(x.to_vec().unwrap(), [2.5; 3]);
        let geometry = world.geometry().expect("the world has one PE");
        assert_eq!(geometry.locate(x.device_address().unwrap().0), Some((world.my_pe(), x.offset())));
        x.release().unwrap();
        assert!(world.finalize().unwrap().is_clean());
    });
}

#[test]
fn world_uses_the_requested_gpu_and_a_missing_gpu_is_an_error() {
    fakes().run(|| {
        common::register();
        let mut options = peerweave_cuda::CudaOptions::default();
        (options.heap_bytes, options.device) = (Some(1 << 20), Some(3));
        let world = World::new(peerweave_cuda::Cuda::join(&peerweave_bootstrap::Job::single(), &options).unwrap()).unwrap();
        assert_eq!(world.caps().device, Some(3));
        assert!(world.finalize().unwrap().is_clean());
        options.device = Some(8);
        let error = peerweave_cuda::Cuda::join(&peerweave_bootstrap::Job::single(), &options).unwrap_err();
        assert!(error.to_string().contains("device 8"), "{error}");
    });
}
