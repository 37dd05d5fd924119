//! Tests that the collectives of a team run one after the other, on any streams. If two collectives
//! are in flight without an order, the fake library ends the process.
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
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
}

#[test]
fn collective_waits_for_previous_collective_on_other_stream() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let hold = Hold::new(&here);
        let (one, other) = (here.new_stream(), here.new_stream());
        let source = here.context.alloc::<u32>(64).expect("the memory is allocated");
        let sum = here.context.alloc::<u32>(64).expect("the memory is allocated");
        source.copy_from(&one, &[child.rank as u32 + 1; 64]).expect("the copy completes");
        let world = here.context.world();
        hold.hold(&one);
        world.barrier(&one).expect("the work is enqueued");
        // This is another handle of the same team.
        here.context
            .world()
            .reduce(&sum, &source, ReduceOp::Sum, &other)
            .expect("the work is enqueued without a wait of the host");
        world.barrier(&one).expect("the work is enqueued");
        hold.release();
        assert_eq!(sum.to_vec(&other).expect("the copy completes"), [3; 64]);
        for round in 0..20 {
            let (first, second) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
            world.barrier(first).expect("the work is enqueued");
            world
                .fcollect(
                    &sum.slice(0..2).expect("the range is in bounds"),
                    &source.slice(0..1).expect("the range is in bounds"),
                    second,
                )
                .expect("the work is enqueued");
            world.sync(first).expect("the work is enqueued");
        }
        assert_eq!(sum.to_vec(&one).expect("the copy completes")[..2], [1, 2]);
        drop(world);
        hold.free();
        here.context.free(source).expect("all PEs free the memory");
        here.context.free(sum).expect("all PEs free the memory");
        here.end();
    });
}

#[test]
fn blocking_call_of_a_team_waits_for_an_enqueued_collective() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let stream = &here.stream;
        let world = here.context.world();
        let held = |what: &str, call: &dyn Fn()| {
            let hold = Hold::new(&here);
            hold.hold(stream);
            world.barrier(stream).expect("the work is enqueued");
            let (_, took) = hold.release_after(A_WHILE, call);
            assert!(took >= A_WHILE / 2, "{what} took {took:?}, expected a wait for the held stream");
            hold.free();
        };
        held("a barrier", &|| world.barrier_blocking().expect("all PEs make the call"));
        held("a sync", &|| world.sync_blocking().expect("all PEs make the call"));
        held("allocating and freeing", &|| {
            let memory = here.context.alloc::<u8>(100).expect("the memory is allocated");
            here.context.free(memory).expect("all PEs free the memory");
        });
        held("splitting", &|| here.team_of_first(2).destroy().expect("all PEs destroy the team"));
        let made = here.team_of_first(2);
        let hold = Hold::new(&here);
        hold.hold(stream);
        made.barrier(stream).expect("the work is enqueued");
        let (_, took) = hold.release_after(A_WHILE, || made.destroy().expect("all PEs destroy the team"));
        assert!(took >= A_WHILE / 2, "destroy took {took:?}, expected a wait for the held stream");
        hold.free();
        drop(world);
        here.end();
    });
}

#[test]
fn finalize_waits_for_the_collectives_of_every_team() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let part = here.context.world().split_2d(1, TeamConfig::default()).expect("the team is split").1;
        for _ in 0..50 {
            part.barrier(&here.stream).expect("the work is enqueued");
        }
        drop(part);
        here.end();
    });
}

#[test]
fn context_is_usable_if_a_call_timed_out_before_nvshmem_ran() {
    fakes().run_many(2, |child| {
        let here = start_within(&child, SHORT);
        let hold = Hold::new(&here);
        let world = here.context.world();
        hold.hold(&here.stream);
        world.barrier(&here.stream).expect("the work is enqueued");
        let error = here.context.alloc::<u8>(8).expect_err("the stream does not complete");
        assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
        assert!(error.to_string().contains("nvshmem_malloc"), "{error}");
        says(world.split_strided(0, 1, 1, TeamConfig::default()), &["nvshmem_team_split_strided"]);
        says(world.barrier_blocking(), &["nvshmemx_barrier_on_stream"]);
        // NVSHMEM was not called, so the context is usable.
        hold.release();
        here.rendezvous.barrier("released").expect("all PEs make the call");
        world.barrier_blocking().expect("all PEs make the call");
        drop(world);
        hold.free();
        here.end();
    });
}

#[test]
fn collectives_of_split_teams_do_not_wait_for_other_teams() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let hold = Hold::new(&here);
        let (held, free) = (here.new_stream(), here.new_stream());
        let (team, other) = (here.team_of_first(2), here.team_of_first(2));
        hold.hold(&held);
        team.barrier(&held).expect("the work is enqueued");
        other.barrier(&free).expect("the work is enqueued");
        here.context.world().barrier(&free).expect("the work is enqueued");
        free.synchronize().expect("the teams do not wait for each other");
        hold.release();
        team.destroy().expect("all PEs destroy the team");
        other.destroy().expect("all PEs destroy the team");
        hold.free();
        here.end();
    });
}

#[test]
fn predefined_teams_share_one_collective_order() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let (one, other) = (here.new_stream(), here.new_stream());
        let context = &here.context;
        let teams = [
            context.world(),
            context.node().expect("the team exists"),
            context.shared().expect("the team exists"),
            context.same_index().expect("the team exists"),
        ];
        let hold = Hold::new(&here);
        hold.hold(&one);
        for (index, team) in teams.iter().enumerate() {
            // NVSHMEM implements a collective of all PEs by collectives of the other predefined
            // teams. If two of them are in flight, the fake library ends the process.
            team.barrier(if index % 2 == 0 { &one } else { &other }).expect("the work is enqueued");
        }
        hold.release();
        one.synchronize().expect("the stream completes");
        other.synchronize().expect("the stream completes");
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
            let refused = refused.expect_err("the call is captured");
            assert!(matches!(refused, NvshmemError::Cuda(DriverError::Capturing { .. })), "{refused}");
        }
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        drop(stream.end_capture(flags).expect("the capture ends"));
        assert_eq!(count("collectives"), before, "a refused barrier must not be captured");
        here.end();
    });
}

#[test]
fn collectives_of_several_threads_run_one_at_a_time() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let (stream, world) = (here.new_stream(), here.context.world());
                    for round in 0..25 {
                        // The first thread may differ between the PEs, but all threads make the
                        // same calls.
                        world.barrier(&stream).expect("the work is enqueued");
                        if round % 10 == 9 {
                            world.barrier_blocking().expect("all PEs make the call");
                        }
                    }
                    stream.synchronize().expect("the stream completes");
                });
            }
        });
        here.end();
    });
}

#[test]
fn host_waits_for_earlier_work_before_a_collective_is_captured() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let hold = Hold::new(&here);
        let (outside, stream) = (here.new_stream(), here.new_stream());
        let world = here.context.world();
        hold.hold(&outside);
        world.barrier(&outside).expect("the work is enqueued");
        capture(&stream);
        let (result, took) = hold.release_after(A_WHILE, || world.barrier(&stream));
        result.expect("the call is captured");
        assert!(took >= A_WHILE / 2, "the call took {took:?}, expected a wait for the held stream");
        let refused = misuse(world.barrier(&outside));
        assert!(matches!(refused, MisuseKind::Context { why } if why.contains("is being captured")), "{refused:?}");
        says(world.barrier_blocking(), &["is being captured"]);
        let refused = here.context.alloc::<u8>(1).expect_err("a stream that is being captured cannot be waited for");
        assert!(matches!(refused, NvshmemError::Cuda(DriverError::Capturing { .. })), "{refused}");
        // Another stream of the same graph is accepted.
        let fork = here.new_stream();
        fork.join(&stream).expect("the stream joins the capture");
        world.sync(&fork).expect("the call is captured");
        world.barrier(&stream).expect("the call is captured");
        stream.join(&fork).expect("the stream joins the fork");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).expect("the capture ends").expect("the graph has nodes");
        for _ in 0..3 {
            // This crate does not observe the launch of a graph, so `join` places the launch in the
            // order.
            world.barrier(&outside).expect("the work is enqueued");
            world.join(&stream).expect("the stream joins the team's order");
            graph.launch().expect("the graph is launched");
            world.barrier(&outside).expect("the work is enqueued after the graph");
        }
        outside.synchronize().expect("the stream completes");
        drop(graph);
        peerweave_driver::drain_retired(std::time::Instant::now() + common::DEADLINE);
        drop(world);
        hold.free();
        here.end();
    });
}

#[test]
fn collective_on_the_per_thread_default_stream_is_refused() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let stream = here.context.device().per_thread_stream();
        let refused = here.context.world().barrier(&stream).expect_err("a per-thread stream is refused");
        assert!(matches!(refused, NvshmemError::Cuda(DriverError::PerThreadStream { .. })), "{refused}");
        // All handles of the default stream are the same stream.
        let (one, other) = (here.context.device().default_stream(), here.context.device().default_stream());
        here.context.world().barrier(&one).expect("the work is enqueued");
        here.context.world().barrier(&other).expect("the work is enqueued");
        here.end();
    });
}

#[test]
fn barrier_times_out_while_another_thread_allocates() {
    fakes().run_many(2, |child| {
        let here = start_within(&child, SHORT);
        let allocate = || {
            let memory = here.context.alloc::<u8>(8).expect("the other PE makes the call");
            here.context.free(memory).expect("all PEs free the memory");
        };
        if child.rank == 0 {
            std::thread::scope(|scope| {
                let waiting = scope.spawn(allocate);
                std::thread::sleep(Duration::from_secs(1));
                let error = here.context.world().barrier(&here.stream).expect_err("another thread is in a call of the team");
                assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
                child.put_file("late", b"");
                waiting.join().expect("the thread does not panic");
            });
        } else {
            child.wait_for_file("late");
            allocate();
        }
        here.context.world().barrier_blocking().expect("all PEs make the call");
        here.end();
    });
}
