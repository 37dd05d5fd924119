//! Tests that the collectives of a team run one after the other, on any streams. The fake library
//! ends a process that has two unordered collectives in flight.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Hold, SHORT, count, fakes, misuse, says, start, start_within};
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::{CudaStream, DriverError};
use peerweave_nvshmem::{MisuseKind, NvshmemError, TeamConfig};
use peerweave_types::ReduceOp;

const A_WHILE: Duration = Duration::from_millis(150);

fn capture(stream: &Arc<CudaStream>) {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("it can be captured");
}

#[test]
fn collective_waits_for_the_last_one_on_another_stream() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let hold = Hold::new(&here);
        let (one, other) = (here.new_stream(), here.new_stream());
        let source = here.context.alloc::<u32>(64).expect("memory");
        let sum = here.context.alloc::<u32>(64).expect("memory");
        source.copy_from(&one, &[child.rank as u32 + 1; 64]).expect("a copy");
        let world = here.context.world();
        hold.hold(&one);
        world.barrier(&one).expect("it is enqueued");
        // Another handle of the same team.
        here.context.world().reduce(&sum, &source, ReduceOp::Sum, &other).expect("it is enqueued, and does not wait here");
        world.barrier(&one).expect("it is enqueued");
        hold.release();
        assert_eq!(sum.to_vec(&other).expect("a copy"), [3; 64]);
        for round in 0..20 {
            let (first, second) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
            world.barrier(first).expect("it is enqueued");
            world
                .fcollect(&sum.slice(0..2).expect("inside"), &source.slice(0..1).expect("inside"), second)
                .expect("it is enqueued");
            world.sync(first).expect("it is enqueued");
        }
        assert_eq!(sum.to_vec(&one).expect("a copy")[..2], [1, 2]);
        drop(world);
        hold.free();
        here.context.free(source).expect("freed");
        here.context.free(sum).expect("freed");
        here.end();
    });
}

#[test]
fn blocking_call_waits_for_the_teams_last_stream() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let stream = &here.stream;
        let world = here.context.world();
        let held = |what: &str, call: &dyn Fn()| {
            let hold = Hold::new(&here);
            hold.hold(stream);
            world.barrier(stream).expect("it is enqueued");
            let (_, took) = hold.release_after(A_WHILE, call);
            assert!(took >= A_WHILE / 2, "{what} took {took:?}");
            hold.free();
        };
        held("a barrier", &|| world.barrier_blocking().expect("all come"));
        held("a sync", &|| world.sync_blocking().expect("all come"));
        held("allocating and freeing", &|| {
            let memory = here.context.alloc::<u8>(100).expect("memory");
            here.context.free(memory).expect("freed");
        });
        held("splitting", &|| {
            let team = world.split_strided(0, 1, 2, TeamConfig::default()).expect("it is split").expect("all are in it");
            team.destroy().expect("it ends");
        });
        let made = world.split_strided(0, 1, 2, TeamConfig::default()).expect("it is split").expect("all are in it");
        let hold = Hold::new(&here);
        hold.hold(stream);
        made.barrier(stream).expect("it is enqueued");
        let (_, took) = hold.release_after(A_WHILE, || made.destroy().expect("it ends"));
        assert!(took >= A_WHILE / 2, "it took {took:?}");
        hold.free();
        drop(world);
        here.end();
    });
}

#[test]
fn finalize_waits_for_the_collectives_of_every_team() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let part = here.context.world().split_2d(1, TeamConfig::default()).expect("it is split").1;
        for _ in 0..50 {
            part.barrier(&here.stream).expect("it is enqueued");
        }
        drop(part);
        here.end();
    });
}

#[test]
fn timed_out_wait_for_the_last_stream_can_be_retried() {
    fakes().run_many(2, |child| {
        let here = start_within(&child, SHORT);
        let hold = Hold::new(&here);
        let world = here.context.world();
        hold.hold(&here.stream);
        world.barrier(&here.stream).expect("it is enqueued");
        let error = here.context.alloc::<u8>(8).expect_err("the stream does not come");
        assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
        assert!(error.to_string().contains("nvshmem_malloc"), "{error}");
        says(world.split_strided(0, 1, 1, TeamConfig::default()), &["nvshmem_team_split_strided"]);
        says(world.barrier_blocking(), &["nvshmemx_barrier_on_stream"]);
        // NVSHMEM was not called, so the context is still usable.
        hold.release();
        here.rendezvous.barrier("released").expect("all come");
        world.barrier_blocking().expect("all come");
        drop(world);
        hold.free();
        here.end();
    });
}

#[test]
fn split_teams_have_separate_orders() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let hold = Hold::new(&here);
        let (held, free) = (here.new_stream(), here.new_stream());
        let make = || here.context.world().split_strided(0, 1, 2, TeamConfig::default()).expect("split").expect("all are in it");
        let (team, other) = (make(), make());
        hold.hold(&held);
        team.barrier(&held).expect("it is enqueued");
        other.barrier(&free).expect("it is enqueued");
        here.context.world().barrier(&free).expect("it is enqueued");
        free.synchronize().expect("neither waits for the other team");
        hold.release();
        team.destroy().expect("it ends");
        other.destroy().expect("it ends");
        hold.free();
        here.end();
    });
}

#[test]
fn predefined_teams_share_one_order() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let (one, other) = (here.new_stream(), here.new_stream());
        let context = &here.context;
        let teams = [
            context.world(),
            context.node().expect("a team"),
            context.shared().expect("a team"),
            context.same_index().expect("a team"),
        ];
        let hold = Hold::new(&here);
        hold.hold(&one);
        for (index, team) in teams.iter().enumerate() {
            // NVSHMEM implements a collective of all PEs by collectives of the other predefined
            // teams. The fake ends a process that has two of them in flight.
            team.barrier(if index % 2 == 0 { &one } else { &other }).expect("it is enqueued");
        }
        hold.release();
        one.synchronize().expect("it passes");
        other.synchronize().expect("it passes");
        drop(teams);
        hold.free();
        here.end();
    });
}

#[test]
fn blocking_barrier_is_refused_in_a_capture() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let stream = Arc::clone(here.context.stream());
        capture(&stream);
        let before = count("collectives");
        for refused in [here.context.world().barrier_blocking(), here.context.world().sync_blocking()] {
            let refused = refused.expect_err("it is captured");
            assert!(matches!(refused, NvshmemError::Cuda(DriverError::Capturing { .. })), "{refused}");
        }
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        drop(stream.end_capture(flags).expect("it ends"));
        assert_eq!(count("collectives"), before, "nothing was captured");
        here.end();
    });
}

#[test]
fn threads_with_separate_streams_order_their_collectives() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let (stream, world) = (here.new_stream(), here.context.world());
                    for round in 0..25 {
                        // The first thread may differ between the PEs, but all threads make the
                        // same call.
                        world.barrier(&stream).expect("it is enqueued");
                        if round % 10 == 9 {
                            world.barrier_blocking().expect("all come");
                        }
                    }
                    stream.synchronize().expect("it passes");
                });
            }
        });
        here.end();
    });
}

#[test]
fn captured_collective_waits_on_the_host_for_earlier_work() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let hold = Hold::new(&here);
        let (outside, stream) = (here.new_stream(), here.new_stream());
        let world = here.context.world();
        hold.hold(&outside);
        world.barrier(&outside).expect("it is enqueued");
        capture(&stream);
        let (result, took) = hold.release_after(A_WHILE, || world.barrier(&stream));
        result.expect("it is captured");
        assert!(took >= A_WHILE / 2, "it took {took:?}");
        let refused = misuse(world.barrier(&outside));
        assert!(matches!(refused, MisuseKind::Context { why } if why.contains("is being captured")), "{refused:?}");
        says(world.barrier_blocking(), &["is being captured"]);
        let refused = here.context.alloc::<u8>(1).expect_err("nobody can wait for a capture");
        assert!(matches!(refused, NvshmemError::Cuda(DriverError::Capturing { .. })), "{refused}");
        // Another stream of the same graph is allowed.
        let fork = here.new_stream();
        fork.join(&stream).expect("it is part of the graph");
        world.sync(&fork).expect("it is captured");
        world.barrier(&stream).expect("it is captured");
        stream.join(&fork).expect("it comes back");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).expect("a graph").expect("it has nodes");
        for _ in 0..3 {
            // This crate does not observe the launch of a graph, so `join` orders it.
            world.barrier(&outside).expect("it is enqueued");
            world.join(&stream).expect("the stream waits");
            graph.launch().expect("it is launched");
            world.barrier(&outside).expect("it is enqueued, after the graph");
        }
        outside.synchronize().expect("it passes");
        drop(graph);
        peerweave_driver::settle(std::time::Instant::now() + common::DEADLINE);
        drop(world);
        hold.free();
        here.end();
    });
}

#[test]
fn per_thread_stream_is_refused() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let stream = here.context.device().per_thread_stream();
        let refused = here.context.world().barrier(&stream).expect_err("nobody else could wait for it");
        assert!(matches!(refused, NvshmemError::Cuda(DriverError::PerThreadStream { .. })), "{refused}");
        // All handles of the default stream mean the same stream.
        let (one, other) = (here.context.device().default_stream(), here.context.device().default_stream());
        here.context.world().barrier(&one).expect("it is enqueued");
        here.context.world().barrier(&other).expect("it is enqueued");
        here.end();
    });
}

#[test]
fn thread_waiting_for_a_team_blocks_others_until_deadline() {
    fakes().run_many(2, |child| {
        let here = start_within(&child, SHORT);
        let allocate = || {
            let memory = here.context.alloc::<u8>(8).expect("the other PE comes");
            here.context.free(memory).expect("freed");
        };
        if child.rank == 0 {
            std::thread::scope(|scope| {
                let waiting = scope.spawn(allocate);
                std::thread::sleep(A_WHILE);
                let error = here.context.world().barrier(&here.stream).expect_err("the other thread is before it");
                assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
                child.put_file("late", b"");
                waiting.join().expect("it got memory");
            });
        } else {
            child.wait_for_file("late");
            allocate();
        }
        here.context.world().barrier_blocking().expect("all come");
        here.end();
    });
}
