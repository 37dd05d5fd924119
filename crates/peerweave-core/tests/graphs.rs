//! Checks operations on streams that are captured into a graph.

use peerweave_core::backend::Op;
use peerweave_core::noop::{Call, Noop};
use peerweave_core::{Buffer, MisuseKind, Rank, ReduceOp, World};
use std::time::Duration;

#[test]
fn captured_operations_run_only_when_the_graph_is_launched() {
    let noop = Noop::new(0, 1);
    let world = World::new(noop.clone()).unwrap();
    let (team, stream, x) = (world.team(), world.stream().unwrap(), world.alloc_zeroed::<i32>(1).unwrap());
    noop.capture_streams(true);
    let ticket = team.atomic_inc(&stream, &x, 0, Rank::new(0)).unwrap();
    noop.capture_streams(false);
    assert!(ticket.is_captured() && !ticket.is_complete());
    assert_eq!(x.load(0).unwrap(), 0);
    noop.replay().unwrap();
    noop.replay().unwrap();
    assert_eq!(x.load(0).unwrap(), 2);
    let direct = team.atomic_inc(&stream, &x, 0, Rank::new(0)).unwrap();
    assert!(!direct.is_captured() && direct.is_complete());
}

#[test]
fn waiting_for_a_captured_operation_is_a_misuse() {
    let noop = Noop::new(0, 1);
    let world = World::new(noop.clone()).unwrap();
    noop.capture_streams(true);
    let ticket = world.team().barrier(&world.stream().unwrap()).unwrap();
    for error in [ticket.wait().unwrap_err(), ticket.wait_within(Duration::from_secs(9)).unwrap_err()] {
        assert_eq!(error.misuse(), Some(&MisuseKind::Captured), "{error}");
    }
}

#[test]
fn graph_keeps_the_memory_of_captured_operations_alive() {
    let noop = Noop::new(0, 1);
    let world = World::new(noop.clone()).unwrap();
    let (stream, source, dest) = (world.stream().unwrap(), Buffer::from(vec![1.0f32, 2.0]), Buffer::zeroed(2));
    noop.capture_streams(true);
    drop(world.team().all_reduce(&stream, &source, &dest, ReduceOp::Sum).unwrap());
    let source = source.into_vec().expect_err("the graph also holds the buffer");
    noop.replay().unwrap();
    assert_eq!(dest.to_vec(), [1.0, 2.0]);
    noop.drop_graph();
    assert!(source.into_vec().is_ok() && dest.into_vec().is_ok());
    assert!(matches!(&noop.take_calls()[..], [Call::Submit(Op::Collective(_))]));
}
