//! Tests of the portable API on GPUs of several simulated hosts, over fakes of the driver and NCCL.
//! The tests check the results of every collective, calls that need the memory of another host, and
//! the death of PEs on another host.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::Host;
use peerweave_core::{Error, Pe, PeerCause, Rank, ReduceFn, ReduceOp, Team, VectorCounts, World};
use peerweave_cuda::{CollectiveKind, Cuda, GpuOptions, Provider, Query};
use peerweave_driver::PrivateStream;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use peerweave_fakes::Fakes;
use peerweave_types::{DType, bf16};

fn options() -> GpuOptions {
    GpuOptions::new(8 << 20).deadline(Duration::from_secs(60)).slots(4)
}

fn fakes() -> Fakes {
    common::fakes().nccl().env("NCCL_NVLS_ENABLE", "0")
}

/// The tested jobs: for each job, the host of each PE.
const SHAPES: [&[&str]; 5] = [&["a", "b"], &["a", "a", "b", "b"], &["a", "a", "b"], &["a", "b", "c"], &["b", "a", "b", "a"]];

/// Runs `body` on each PE of a world whose PE `i` is on host `hosts[i]`, and then finalizes the
/// world.
fn worlds(hosts: &[&str], body: impl Fn(&World) + Sync) {
    common::pes_on(hosts, options(), |gpu| {
        let world = World::new(Cuda::new(gpu.expect("the GPU is set up")).expect("the backend is created"))
            .expect("the world is created");
        body(&world);
        let report = world.finalize().expect("every PE ends the job");
        assert!(report.is_clean(), "{report}");
    });
}

/// Returns the element at `index` in the input of rank `rank`.
fn given(rank: usize, index: usize) -> i32 {
    (1000 * rank + 7 * index + 1) as i32
}

/// Checks every collective of a team, with parts of `len` elements on the heap.
fn check_collectives(world: &World, team: &Team, len: usize) {
    let (n, me, stream) = (team.size(), team.my_rank().index(), world.stream().unwrap());
    let input: Vec<i32> = (0..n * len).map(|index| given(me, index)).collect();
    let x = world.alloc::<i32>(8 * len).unwrap();
    let y = world.alloc::<i32>(8 * len).unwrap();
    let part = |rank: usize, first: usize| (first..first + len).map(move |index| given(rank, index));
    let sums = |ranks: std::ops::Range<usize>, first: usize| -> Vec<i32> {
        (first..first + len).map(|index| ranks.clone().map(|rank| given(rank, index)).sum()).collect()
    };
    let reset = || {
        x.slice(..n * len).unwrap().copy_from(&input).unwrap();
        y.fill(-1).unwrap();
    };
    let result = |len: usize| {
        stream.synchronize().unwrap();
        y.slice(..len).unwrap().to_vec().unwrap()
    };
    let (one, whole, to) = (x.slice(..len).unwrap(), x.slice(..n * len).unwrap(), y.slice(..len).unwrap());
    let all = y.slice(..n * len).unwrap();
    let root = Rank::new(n as u32 - 1);
    let is_root = me == n - 1;
    reset();
    team.all_reduce(&stream, &one, &to, ReduceOp::Sum).unwrap();
    assert_eq!(result(len), sums(0..n, 0), "all_reduce");
    team.all_reduce(&stream, &one, &to, ReduceOp::Xor).unwrap();
    let xor: Vec<i32> = (0..len).map(|index| (0..n).fold(0, |bits, rank| bits ^ given(rank, index))).collect();
    assert_eq!(result(len), xor, "all_reduce by xor");
    reset();
    team.reduce(&stream, &one, &to, ReduceOp::Max, root).unwrap();
    assert_eq!(result(len), if is_root { part(n - 1, 0).collect() } else { vec![-1; len] }, "reduce");
    team.reduce_scatter(&stream, &whole, &to, ReduceOp::Sum).unwrap();
    assert_eq!(result(len), sums(0..n, me * len), "reduce_scatter");
    team.scan(&stream, &one, &to, ReduceOp::Sum).unwrap();
    assert_eq!(result(len), sums(0..me + 1, 0), "scan");
    reset();
    team.exclusive_scan(&stream, &one, &to, ReduceOp::Sum).unwrap();
    assert_eq!(result(len), if me == 0 { vec![-1; len] } else { sums(0..me, 0) }, "exclusive_scan");
    team.all_gather(&stream, &one, &all).unwrap();
    assert_eq!(result(n * len), (0..n).flat_map(|rank| part(rank, 0)).collect::<Vec<_>>(), "all_gather");
    team.all_to_all(&stream, &whole, &all).unwrap();
    assert_eq!(result(n * len), (0..n).flat_map(|rank| part(rank, me * len)).collect::<Vec<_>>(), "all_to_all");
    reset();
    team.broadcast(&stream, &one, &to, root).unwrap();
    assert_eq!(result(len), part(n - 1, 0).collect::<Vec<_>>(), "broadcast");
    reset();
    team.gather(&stream, &one, &all, root).unwrap();
    let gathered: Vec<i32> = (0..n).flat_map(|rank| part(rank, 0)).collect();
    assert_eq!(result(n * len), if is_root { gathered } else { vec![-1; n * len] }, "gather");
    team.scatter(&stream, &whole, &to, root).unwrap();
    assert_eq!(result(len), part(n - 1, me * len).collect::<Vec<_>>(), "scatter");
    team.barrier(&stream).unwrap().wait().unwrap();
    // The following calls are in place.
    reset();
    team.all_reduce_in_place_blocking(&one, ReduceOp::Sum).unwrap();
    assert_eq!(one.to_vec().unwrap(), sums(0..n, 0), "all_reduce in place");
    reset();
    team.all_to_all_in_place_blocking(&whole).unwrap();
    assert_eq!(whole.to_vec().unwrap(), (0..n).flat_map(|rank| part(rank, me * len)).collect::<Vec<_>>());
    reset();
    team.all_gather_in_place_blocking(&whole).unwrap();
    assert_eq!(whole.to_vec().unwrap(), (0..n).flat_map(|rank| part(rank, rank * len)).collect::<Vec<_>>());
    reset();
    team.reduce_scatter_in_place_blocking(&whole, ReduceOp::Sum).unwrap();
    assert_eq!(x.slice(me * len..(me + 1) * len).unwrap().to_vec().unwrap(), sums(0..n, me * len));
    drop((one, whole, to, all));
    x.release().unwrap();
    y.release().unwrap();
}

#[test]
fn every_collective_is_correct_in_each_layout_of_pes_on_hosts() {
    fakes().run(|| {
        for hosts in SHAPES {
            worlds(hosts, |world| {
                check_collectives(world, world.team(), 5);
                check_collectives(world, world.team(), 9001);
            });
        }
    });
}

/// Like [`common::process_on`], but takes the name of the simulated host.
fn process_on(child: &peerweave_fakes::Child, host: &str, device: usize, options: GpuOptions) -> common::ProcessGpu {
    common::process_on(child, Some(Host::named(host)), device, options)
}

/// A call, and the name of the call in errors.
type Call<'a> = (&'static str, &'a dyn Fn() -> Result<(), Error>);

#[test]
fn call_that_needs_memory_of_another_host_is_refused() {
    fakes().run(|| {
        worlds(&["a", "a", "b"], |world| {
            let (team, stream, me) = (world.team(), world.stream().unwrap(), world.my_pe().get());
            let (x, y) = (world.alloc_zeroed::<u64>(8).unwrap(), world.alloc_zeroed::<u64>(8).unwrap());
            let (there, words) = (Rank::new(2), world.alloc_zeroed::<u64>(1).unwrap());
            let word = words.signal(0).unwrap();
            if me < 2 {
                let calls: [Call<'_>; 9] = [
                    ("put", &|| team.put(&stream, &x, &y, there).map(drop)),
                    ("put", &|| team.put_blocking(&[1u64; 8], &y, there)),
                    ("get", &|| team.get(&stream, &x, &y, there).map(drop)),
                    ("p", &|| team.p(&stream, &y, 0, 5, there).map(drop)),
                    ("g", &|| team.g(&stream, &y, 0, there).map(drop)),
                    ("put_signal", &|| team.put_signal(&stream, &x, &y, word.set(1), there).map(drop)),
                    ("signal", &|| team.signal(&stream, word.set(1), there).map(drop)),
                    ("atomic_fetch_add", &|| team.atomic_fetch_add(&stream, &y, 0, 1, there).map(drop)),
                    ("atomic_set", &|| team.atomic_set_blocking(&y, 0, 1, there)),
                ];
                for (call, make) in calls {
                    let Err(Error::Unsupported { call: found, backend, why }) = make() else { panic!("{call} was not refused") };
                    assert_eq!((found, backend), (call, "cuda"));
                    assert!(
                        why.contains("PE 2 is on host b, but this PE is on host a") && why.contains("NVSHMEM"),
                        "{call}: {why}"
                    );
                }
                assert_eq!(team.peer_device_address(&y, there).unwrap(), None);
                stream.synchronize().unwrap();
            }
            team.barrier_blocking().unwrap();
            assert_eq!(y.to_vec().unwrap(), [0; 8]);
            // Within a host, these calls succeed.
            if me == 0 {
                team.put(&stream, &x, &y, Rank::new(1)).unwrap();
                team.signal(&stream, word.set(9), Rank::new(1)).unwrap().wait().unwrap();
            }
            team.barrier_blocking().unwrap();
            assert_eq!(words.load(0).unwrap(), if me == 1 { 9 } else { 0 });
            // The refused calls have not changed the state of the world.
            let here = if me < 2 { vec![Pe::new(0), Pe::new(1)] } else { vec![Pe::new(2)] };
            assert_eq!(world.local_pes(), here);
            assert!(world.geometry().is_none());
            words.release().unwrap();
            x.release().unwrap();
            y.release().unwrap();
        });
    });
}

#[test]
fn sends_and_custom_reductions_across_hosts_are_correct() {
    fakes().run(|| {
        for hosts in [&["a", "a", "b"][..], &["b", "a", "b", "a"], &["a", "b", "c"]] {
            worlds(hosts, |world| {
                let (team, stream, me, n) = (world.team(), world.stream().unwrap(), world.my_pe().index(), world.n_pes());
                let rank = |rank: usize| Rank::new((rank % n) as u32);
                let (x, y) = (world.alloc::<u16>(100).unwrap(), world.alloc_zeroed::<u16>(100).unwrap());
                x.copy_from(&(0..100).map(|index| (1000 * me + index) as u16).collect::<Vec<_>>()).unwrap();
                // Each rank sends to the next rank and receives from the previous rank, in a group.
                let before = (me + n - 1) % n;
                let ring = |group: &mut peerweave_core::Group| {
                    group.send(&x, rank(me + 1))?;
                    group.recv(&y, rank(before))
                };
                team.group(&stream, ring).unwrap().wait().unwrap();
                assert_eq!(y.load(7).unwrap(), (1000 * before + 7) as u16);
                // A token moves from rank to rank. Each rank sends the token after it has received
                // the token.
                let mut token = [0u32; 3];
                if me > 0 {
                    team.recv_blocking(&mut token, rank(me - 1)).unwrap();
                }
                token[1] += me as u32;
                if me + 1 < n {
                    team.send_blocking(&token, rank(me + 1)).unwrap();
                }
                assert_eq!(token[1], (0..=me as u32).sum::<u32>());
                // Rank `a` sends `a + b` elements to rank `b`.
                let (sends, receives): (Vec<usize>, Vec<usize>) =
                    ((0..n).map(|to| me + to).collect(), (0..n).map(|from| from + me).collect());
                let offsets = |counts: &[usize]| {
                    counts.iter().scan(0, |at, count| Some(std::mem::replace(at, *at + count))).collect::<Vec<usize>>()
                };
                let counts = Arc::new(VectorCounts {
                    send_offsets: offsets(&sends),
                    recv_offsets: offsets(&receives),
                    send_counts: sends,
                    recv_counts: receives.clone(),
                });
                y.fill(0).unwrap();
                team.all_to_all_v(&stream, &x, &y, Arc::clone(&counts)).unwrap().wait().unwrap();
                let found = y.to_vec().unwrap();
                for from in 0..n {
                    // Index of the sender's first element for this rank.
                    let first: usize = (0..me).map(|to| from + to).sum();
                    let at = counts.recv_offsets[from];
                    let expected: Vec<u16> = (0..receives[from]).map(|index| (1000 * from + first + index) as u16).collect();
                    assert_eq!(found[at..at + receives[from]], expected, "from {from} to {me}");
                }
                // A reduction by a function of the caller combines the inputs in the order of
                // ranks.
                let function = ReduceFn::new(|a: u32, b: u32| a.wrapping_mul(31).wrapping_add(b));
                let (mine, mut all) = ([me as u32 + 1; 40], [0u32; 40]);
                team.all_reduce_with_blocking(&mine, &mut all, &function).unwrap();
                let expected = (2..=n as u32).fold(1u32, |all, next| all.wrapping_mul(31).wrapping_add(next));
                assert_eq!(all, [expected; 40]);
                x.release().unwrap();
                y.release().unwrap();
            });
        }
    });
}

#[test]
fn local_and_remote_sends_of_a_group_run_at_the_same_time() {
    fakes().run(|| {
        worlds(&["a", "a", "b"], |world| {
            let (team, stream) = (world.team(), world.stream().unwrap());
            // The messages are so long that a send waits for the call of the receiver.
            let (x, y) = (world.alloc::<u64>(100_000).unwrap(), world.alloc_zeroed::<u64>(100_000).unwrap());
            x.fill(world.my_pe().get().into()).unwrap();
            let rank = Rank::new;
            match world.my_pe().get() {
                0 => team.group(&stream, |group| {
                    group.send(&x, rank(1))?;
                    group.send(&x, rank(2))
                }),
                // Rank 1 first receives from rank 2, which waits for rank 0.
                1 => team.recv(&stream, &y, rank(2)).and_then(|_| team.recv(&stream, &y, rank(0))),
                _ => team.recv(&stream, &y, rank(0)).and_then(|_| team.send(&stream, &y, rank(1))),
            }
            .unwrap()
            .wait()
            .unwrap();
            assert_eq!(y.load(99_999).unwrap(), 0);
            team.barrier_blocking().unwrap();
            x.release().unwrap();
            y.release().unwrap();
        });
    });
}

#[test]
fn team_within_a_host_uses_only_peerweave_kernels() {
    fakes().run(|| {
        worlds(&["a", "a", "b", "b"], |world| {
            let (me, cuda) = (world.my_pe().get(), world.backend::<Cuda>().unwrap());
            let query = Query::new(CollectiveKind::AllReduce, DType::F32, 100);
            let explained = cuda.explain(world.team(), &query).unwrap();
            assert_eq!(explained.provider, Provider::Hosts);
            let text = explained.to_string();
            assert!(text.contains("by 4 ranks") && text.contains("NCCL") && text.contains("the ranks are on 2 hosts"), "{text}");
            let host = world.team().split(Some(u64::from(me / 2)), 0).unwrap().expect("a color was given");
            assert_eq!(cuda.explain(&host, &query).unwrap().provider, Provider::Own);
            check_collectives(world, &host, 33);
            let across = world.team().split(Some(u64::from(me % 2)), -i64::from(me)).unwrap().expect("a color was given");
            assert_eq!(cuda.explain(&across, &query).unwrap().provider, Provider::Hosts);
            check_collectives(world, &across, 33);
            // Only the members create this team.
            if me != 1 {
                let members = [3, 0, 2].map(Pe::new);
                let team = world.team_of(&members).unwrap();
                let mut sum = [me];
                team.all_reduce_in_place_blocking(&mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum, [5]);
                team.destroy().unwrap();
            }
            across.destroy().unwrap();
            host.destroy().unwrap();
        });
    });
}

#[test]
fn graph_of_collectives_between_hosts_can_be_relaunched() {
    fakes().run(|| {
        worlds(&["a", "a", "b"], |world| {
            let (cuda, me) = (world.backend::<Cuda>().unwrap(), world.my_pe().get());
            let own = PrivateStream::new(cuda.context()).unwrap();
            let queue = world.adopt_stream(cuda.wrap_stream(own.clone()).unwrap()).unwrap();
            let (x, y) = (world.alloc::<bf16>(64).unwrap(), world.alloc_zeroed::<bf16>(64).unwrap());
            x.fill(bf16::from_f32(me as f32 + 1.0)).unwrap();
            let calls = || {
                world.team().all_reduce(&queue, &x, &y, ReduceOp::Sum)?;
                world.team().barrier(&queue)
            };
            calls().unwrap();
            queue.synchronize().unwrap();
            own.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
            let captured = calls();
            let graph = own.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            captured.unwrap();
            let graph = graph.unwrap().expect("the capture returns a graph");
            for _ in 0..3 {
                y.fill(bf16::ZERO).unwrap();
                world.team().barrier_blocking().unwrap();
                graph.launch().unwrap();
                assert!(peerweave_driver::wait(&own, Instant::now() + Duration::from_secs(60)).unwrap());
                assert_eq!(y.to_vec().unwrap(), [bf16::from_f32(6.0); 64]);
                world.team().barrier_blocking().unwrap();
                calls().unwrap();
            }
            queue.synchronize().unwrap();
            drop(graph);
            drop((queue, own));
            world.team().barrier_blocking().unwrap();
            x.release().unwrap();
            y.release().unwrap();
        });
    });
}

#[test]
fn collectives_between_hosts_are_refused_without_nccl() {
    common::fakes().env("PEERWEAVE_NCCL_PATH", "/nowhere").run(|| {
        worlds(&["a", "a", "b"], |world| {
            let mut sum = [world.my_pe().get()];
            let refused = world.team().all_reduce_in_place_blocking(&mut sum, ReduceOp::Sum).unwrap_err();
            let Error::Unsupported { call: "all_reduce", why, .. } = refused else {
                panic!("{refused}, expected that all_reduce is not supported")
            };
            assert!(why.contains("NCCL cannot be used between hosts: PE 0: NCCL was not found"), "{why}");
            assert!(matches!(world.team().barrier_blocking(), Err(Error::Unsupported { .. })));
            let host = world.team().split(Some(u64::from(world.my_pe().get() / 2)), 0).unwrap().expect("a color was given");
            host.all_reduce_in_place_blocking(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [if world.my_pe().get() < 2 { 1 } else { 2 }]);
            host.destroy().unwrap();
        });
    });
}

#[test]
fn collectives_between_hosts_are_correct_if_pes_share_a_gpu() {
    fakes().run_many(4, |child| {
        let gpu = process_on(&child, if child.rank < 2 { "a" } else { "b" }, 0, options());
        let world = World::new(Cuda::new(gpu.clone()).unwrap()).unwrap();
        check_collectives(&world, world.team(), 50);
        let mut sum = [world.my_pe().get() as f32];
        world.team().all_reduce_in_place_blocking(&mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(sum, [6.0]);
        world.team().barrier_blocking().unwrap();
        drop(world);
        assert!(gpu.end().0.is_ok());
    });
}

#[test]
fn collective_error_names_a_pe_killed_on_another_host() {
    let _ = fakes().run_with_victims(3, &[2], |child| one_is_killed(&child));
}

/// Runs one PE of a job. PE 2, the only PE of its host, dies while the other PEs wait for PE 2.
fn one_is_killed(child: &peerweave_fakes::Child) {
    let gpu = process_on(child, if child.rank < 2 { "a" } else { "b" }, child.rank, options());
    let world = World::new(Cuda::new(gpu.clone()).unwrap()).unwrap();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let (x, y) = (world.alloc_zeroed::<u32>(64).unwrap(), world.alloc_zeroed::<u32>(64).unwrap());
    team.all_reduce_blocking(&x, &y, ReduceOp::Sum).unwrap();
    if world.my_pe() == Pe::new(2) {
        std::thread::sleep(Duration::from_millis(200));
        std::process::abort();
    }
    let start = Instant::now();
    let error = match world.my_pe().get() {
        0 => team.all_reduce_blocking(&x, &y, ReduceOp::Sum).unwrap_err(),
        _ => team.all_reduce(&stream, &x, &y, ReduceOp::Sum).and_then(|ticket| ticket.wait()).unwrap_err(),
    };
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "the call took {:?}, expected an error long before the deadline",
        start.elapsed()
    );
    assert!(matches!(error, Error::Peer { cause: PeerCause::Died, .. }), "{error}");
    assert_eq!(error.blamed(), [Pe::new(2)], "{error}");
    let refused = team.barrier_blocking().unwrap_err();
    assert!(matches!(refused, Error::Poisoned { .. }), "{refused}");
    x.copy_from(&[7; 64]).unwrap();
    assert_eq!(x.load(0).unwrap(), 7);
    drop((x, y, stream));
    drop(world);
    let (ended, took) = gpu.end();
    assert!(ended.is_err(), "the end succeeded, expected an error, because a PE is lost");
    assert!(took < Duration::from_secs(20), "the end took {took:?}, expected no wait for the dead PE");
}

#[test]
fn all_reduce_times_out_if_a_pe_on_another_host_does_not_call() {
    fakes().run(|| {
        let all_have_failed = std::sync::Barrier::new(3);
        common::pes_on(&["a", "a", "b"], options().deadline(Duration::from_secs(5)), |gpu| {
            let world = World::new(Cuda::new(gpu.unwrap()).unwrap()).unwrap();
            let x = world.alloc_zeroed::<u32>(4).unwrap();
            world.team().all_reduce_in_place_blocking(&x, ReduceOp::Sum).unwrap();
            if world.my_pe() != Pe::new(2) {
                let start = Instant::now();
                let error = world.team().all_reduce_in_place_blocking(&x, ReduceOp::Sum).unwrap_err();
                assert!(start.elapsed() < Duration::from_secs(25), "the call took {:?}", start.elapsed());
                assert!(matches!(error, Error::Timeout(_)), "{error}");
                assert!(matches!(world.team().barrier_blocking(), Err(Error::Poisoned { .. })));
            }
            all_have_failed.wait();
            drop(x);
            drop(world);
        });
    });
}
