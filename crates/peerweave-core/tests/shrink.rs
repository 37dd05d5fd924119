//! Checks the handles of a world that `World::shrink` has replaced, and the new world, on the
//! recording backend.

use peerweave_core::noop::{Call, Noop};
use peerweave_core::{Error, MisuseKind, Pe, Rank, ReduceOp, Team, TeamName, World, backend::TeamId};
use std::time::Duration;

fn world(noop: &std::sync::Arc<Noop>) -> World {
    World::new(noop.clone()).unwrap()
}

fn is_shrunk<T: std::fmt::Debug>(outcome: Result<T, Error>) {
    let error = outcome.unwrap_err();
    assert!(matches!(error.misuse(), Some(MisuseKind::Shrunk)), "{error}");
    assert!(error.to_string().contains("World::shrink"), "{error}");
}

#[test]
fn survivors_of_a_shrink_keep_their_order_and_are_renumbered() {
    let noop = Noop::new(2, 5);
    let old = world(&noop);
    assert_eq!(old.former_pes().len(), 5);
    noop.set_survivors([0, 2, 4]);
    let new = old.shrink().unwrap();
    assert!(noop.take_calls().iter().any(|call| matches!(call, Call::Shrink)));
    assert_eq!((new.my_pe(), new.n_pes()), (Pe::new(1), 3));
    assert_eq!(new.former_pes(), [0, 2, 4].map(Pe::new));
    assert_eq!(new.team().size(), 3);
    assert_eq!(new.shrink().unwrap().former_pes(), [0, 1, 2].map(Pe::new), "no PE has failed");
}

#[test]
fn calls_on_a_shrunk_world_fail_with_an_error_that_names_shrink() {
    let noop = Noop::new(0, 2);
    let old = world(&noop);
    let (x, stream, team) = (old.alloc::<u64>(4).unwrap(), old.stream().unwrap(), old.team().clone());
    let new = old.shrink().unwrap();
    let shrink_again = old.shrink();
    assert!(shrink_again.as_ref().unwrap_err().to_string().starts_with("shrink: "), "{shrink_again:?}");
    is_shrunk(shrink_again);
    is_shrunk(old.alloc::<u8>(1));
    is_shrunk(old.stream());
    is_shrunk(old.finalize());
    is_shrunk(old.team_of(&[Pe::new(0)]));
    is_shrunk(stream.synchronize());
    is_shrunk(team.put_blocking(&[1u64], &x.slice(..1).unwrap(), Rank::new(1)));
    is_shrunk(team.barrier_blocking());
    is_shrunk(Team::split(&team, Some(0), 0));
    is_shrunk(x.clone().release());
    is_shrunk(old.symmetric_at::<u64>(x.offset(), 1));
    // The new world refuses memory of the old world.
    let foreign = new.team().all_reduce_in_place_blocking(&x, ReduceOp::Sum).unwrap_err();
    assert!(matches!(foreign.misuse(), Some(MisuseKind::ForeignBuffer { .. })), "{foreign}");
}

#[test]
fn local_memory_of_a_shrunk_world_stays_accessible() {
    let noop = Noop::new(0, 2);
    let old = world(&noop);
    let x = old.alloc_zeroed::<u64>(4).unwrap();
    x.store(3, 7).unwrap();
    let new = old.shrink().unwrap();
    drop(old);
    assert_eq!(x.to_vec().unwrap(), [0, 0, 0, 7]);
    assert_eq!(x.load(3).unwrap(), 7);
    x.slice(1..3).unwrap().copy_from(&[5, 6]).unwrap();
    x.split_at(1).unwrap().0.fill(4).unwrap();
    let y = new.alloc::<u64>(4).unwrap();
    let mut carried = [0; 4];
    x.copy_to(&mut carried).unwrap();
    y.copy_from(&carried).unwrap();
    assert_eq!(y.to_vec().unwrap(), [4, 5, 6, 7]);
    // SAFETY: nothing else accesses the memory.
    assert_eq!(unsafe { x.as_slice() }.unwrap(), [4, 5, 6, 7]);
    // The new world reports leaks of its own memory only, not of `x`.
    y.release().unwrap();
    assert!(new.finalize().unwrap().is_clean());
}

#[test]
fn world_stays_usable_after_a_shrink_that_timed_out() {
    let noop = Noop::new(0, 3);
    let old = world(&noop);
    let team = TeamName { id: TeamId::WORLD, size: 3 };
    let late = peerweave_core::Timeout {
        call: "shrink",
        team,
        waited: Duration::from_secs(1),
        missing: vec![Pe::new(2)],
        running: None,
        holder: None,
        word: None,
    };
    noop.fail_next(Error::Timeout(Box::new(late)));
    let error = old.shrink().unwrap_err();
    assert_eq!(error.blamed(), [Pe::new(2)]);
    assert!(old.alloc::<u8>(1).is_ok(), "the world is still usable");
    assert_eq!(old.shrink().unwrap().n_pes(), 3);
}

#[test]
fn finalized_world_cannot_be_shrunk() {
    let old = world(&Noop::new(0, 1));
    let x = old.alloc::<u8>(1).unwrap();
    assert!(!old.finalize().unwrap().is_clean());
    let error = old.shrink().unwrap_err();
    assert!(matches!(error.misuse(), Some(MisuseKind::Finalized)), "{error}");
    assert!(matches!(x.to_vec().unwrap_err().misuse(), Some(MisuseKind::Finalized)));
}

#[test]
fn only_one_of_several_concurrent_shrinks_succeeds() {
    let old = world(&Noop::new(0, 2));
    let outcomes = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| old.shrink())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let (done, refused): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
    assert_eq!((done.len(), refused.len()), (1, 7));
    refused.into_iter().for_each(is_shrunk);
}
