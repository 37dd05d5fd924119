//! Checks the results of calls, and the state after them, when a backend fails.

use peerweave_core::backend::TeamId;
use peerweave_core::noop::Noop;
use peerweave_core::{Buffer, Error, Pe, PeerCause, Rank, ReduceOp, TeamName, World};
use std::sync::Arc;

fn world() -> (Arc<Noop>, World) {
    let noop = Noop::new(0, 1);
    let world = World::new(noop.clone()).unwrap();
    (noop, world)
}

fn peer_died() -> Error {
    let team = TeamName { id: TeamId::WORLD, size: 1 };
    Error::Peer { call: "all_reduce", team, pe: Pe::new(0), cause: PeerCause::Died }
}

#[test]
fn failed_access_to_local_memory_returns_the_backend_error() {
    let (noop, world) = world();
    let x = world.alloc_zeroed::<i32>(3).unwrap();
    let gone = || noop.fail_next_access(Error::system("cuMemcpyDtoHAsync", std::io::Error::other("the device is lost")));
    let copies: [&dyn Fn() -> Result<(), Error>; 6] = [
        &|| x.to_vec().map(drop),
        &|| x.copy_to(&mut [0; 3]),
        &|| x.copy_from(&[1; 3]),
        &|| x.fill(1),
        &|| x.load(0).map(drop),
        &|| x.store(0, 1),
    ];
    for copy in copies {
        gone();
        assert!(matches!(copy(), Err(Error::System { .. })));
        copy().unwrap();
    }
}

#[test]
fn timed_out_operation_keeps_buffers_alive_while_work_runs() {
    let (noop, world) = world();
    let team = world.team();
    let (send, recv) = (Buffer::from(vec![1i32, 2]), Buffer::zeroed(2));
    noop.time_out_next();
    assert!(matches!(team.all_reduce_blocking(&send, &recv, ReduceOp::Sum), Err(Error::Timeout(_))));
    let send = send.into_vec().expect_err("running work still holds the buffer");
    let recv = recv.into_vec().expect_err("running work still holds the buffer");
    noop.run_all();
    assert!(send.into_vec().is_ok() && recv.into_vec().is_ok());
}

#[test]
fn timed_out_group_keeps_buffers_alive_while_work_runs() {
    let (noop, world) = world();
    let (source, dest) = (Buffer::from(vec![1i32, 2]), Buffer::<i32>::zeroed(2));
    noop.time_out_next();
    let outcome = world.team().group_blocking(|g| {
        g.send(&source, Rank::new(0))?;
        g.recv(&dest, Rank::new(0))
    });
    assert!(matches!(outcome, Err(Error::Timeout(_))));
    let source = source.into_vec().expect_err("running work still holds the buffer");
    noop.run_all();
    assert!(source.into_vec().is_ok() && dest.into_vec().is_ok());
}

#[test]
fn poisoned_team_error_contains_the_first_failure() {
    let (noop, world) = world();
    let (team, x) = (world.team(), world.alloc_zeroed::<u8>(1).unwrap());
    assert!(team.failure().is_none());
    noop.poison(TeamId::WORLD, peer_died());
    assert!(matches!(team.failure(), Some(Error::Peer { .. })));
    let error = team.barrier_blocking().unwrap_err();
    assert!(matches!(error, Error::Poisoned { call: "barrier", .. }), "{error}");
    assert_eq!(error.blamed(), [Pe::new(0)]);
    assert_eq!(
        error.to_string(),
        "barrier: the world (1 PE) is poisoned by an earlier failure: all_reduce on the world (1 PE): PE 0 died"
    );
    // Operations that need no other rank still run.
    team.p_blocking(&x, 0, 7, Rank::new(0)).unwrap();
    assert_eq!(x.load(0).unwrap(), 7);
}
