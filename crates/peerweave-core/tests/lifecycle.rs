//! Checks the end of a world: leak reports, handles that outlive the world, and forked children.

use peerweave_core::backend::TeamId;
use peerweave_core::noop::{Call, Noop};
use peerweave_core::{Compare, Error, MisuseKind, Rank, Result, World};

#[test]
fn finalize_reports_leaked_buffers_with_allocation_site() {
    let world = World::new(Noop::new(0, 1)).unwrap();
    let released = world.alloc::<u8>(10).unwrap();
    released.release().unwrap();
    let line = line!() + 1;
    drop(world.alloc::<f32>(100).unwrap());
    let alive = world.alloc_zeroed::<u64>(3).unwrap();
    let report = world.finalize().unwrap();
    assert!(!report.is_clean());
    let [parked, living] = &report.leaked[..] else { panic!("expected two leaks: {report}") };
    assert_eq!((parked.elements, parked.type_name, parked.bytes, parked.dropped), (100, "f32", 400, true));
    assert_eq!((parked.allocated_at.line(), parked.allocated_at.file()), (line, file!()));
    assert_eq!((living.elements, living.type_name, living.bytes, living.dropped), (3, "u64", 24, false));
    let text = report.to_string();
    assert!(text.contains(&format!("100 × f32 (400 bytes) allocated at {}:{line}:", file!())), "{text}");
    assert!(text.ends_with(": still alive"), "{text}");
    drop(alive);
}

#[test]
fn world_is_finalized_by_only_one_of_several_threads() {
    static WORLD: std::sync::OnceLock<World> = std::sync::OnceLock::new();
    let noop = Noop::new(0, 2);
    let world = WORLD.get_or_init(|| World::new(noop.clone()).unwrap());
    let x = world.alloc_zeroed::<u64>(1).unwrap();
    noop.take_calls();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| WORLD.get().unwrap().finalize())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (ended, refused): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
    assert_eq!((ended.len(), refused.len()), (1, 7));
    assert!(refused.iter().all(|error| matches!(error.as_ref().unwrap_err().misuse(), Some(MisuseKind::Finalized))));
    assert!(matches!(noop.take_calls()[..], [Call::Finalize]), "the backend is finalized once");
    for error in [world.fence_blocking(), world.team().p_blocking(&x, 0, 1, Rank::new(1)), x.store(0, 1)] {
        assert!(matches!(error.unwrap_err().misuse(), Some(MisuseKind::Finalized)));
    }
}

#[test]
fn slice_of_a_handle_stays_valid_after_the_handle_is_dropped() {
    let world = World::new(Noop::new(0, 1)).unwrap();
    let x = world.alloc_zeroed::<i32>(4).unwrap();
    let range = x.slice(1..3).unwrap();
    drop(x);
    range.fill(5).unwrap();
    assert_eq!(range.to_vec().unwrap(), [5, 5]);
    drop(range);
    assert!(world.finalize().unwrap().leaked[0].dropped);
}

#[test]
fn clone_of_a_borrowed_slice_outlives_the_original_handle() {
    let world = World::new(Noop::new(0, 1)).unwrap();
    let x = world.alloc_zeroed::<i32>(4).unwrap();
    let kept = {
        let range = x.range(1..3).unwrap();
        range.fill(5).unwrap();
        (*range).clone()
    };
    drop(x);
    assert_eq!(kept.to_vec().unwrap(), [5, 5]);
    drop(kept);
    assert!(world.finalize().unwrap().leaked[0].dropped);
}

#[test]
fn release_of_a_cast_handle_releases_the_allocation() {
    let world = World::new(Noop::new(0, 1)).unwrap();
    let x = world.alloc_zeroed::<u8>(16).unwrap();
    let words = x.cast::<u64>().unwrap();
    words.store(1, u64::MAX).unwrap();
    assert_eq!(x.load(8).unwrap(), 0xff);
    words.release().unwrap();
    assert!(x.is_released() && world.finalize().unwrap().is_clean());
}

#[test]
fn dropping_handles_does_not_call_the_backend() {
    let noop = Noop::new(0, 2);
    let world = World::new(noop.clone()).unwrap();
    let team = world.team().split(Some(0), 0).unwrap().unwrap();
    let (x, stream) = (world.alloc::<u8>(1).unwrap(), world.stream().unwrap());
    noop.take_calls();
    drop((x, stream, team, world));
    assert!(noop.take_calls().is_empty());
}

#[test]
fn handles_stay_usable_after_the_world_is_dropped() {
    let world = World::new(Noop::new(0, 1)).unwrap();
    let (team, x) = (world.team().clone(), world.alloc_zeroed::<i32>(2).unwrap());
    drop(world);
    team.put_blocking(&[3, 4], &x, Rank::new(0)).unwrap();
    assert_eq!(x.to_vec().unwrap(), [3, 4]);
}

#[test]
fn destroying_a_team_frees_the_team_number() {
    let noop = Noop::new(0, 2);
    let world = World::new(noop.clone()).unwrap();
    let first = world.team().split(Some(0), 0).unwrap().unwrap();
    noop.take_calls();
    first.destroy().unwrap();
    let [Call::Destroy(number)] = noop.take_calls()[..] else { panic!("expected one destroyed team") };
    let second = world.team().split(Some(0), 0).unwrap().unwrap();
    assert_eq!((number, second.name().id), (TeamId(1), number));
}

#[test]
fn slices_and_methods_access_the_same_symmetric_memory() {
    let world = World::new(Noop::new(0, 1)).unwrap();
    let x = world.alloc_zeroed::<f32>(4).unwrap();
    x.copy_from(&[1.0, 2.0, 3.0, 4.0]).unwrap();
    // SAFETY: no other code uses this world. The slices do not live at the same time, and no call
    // is made while a slice lives.
    unsafe {
        x.as_mut_slice().unwrap()[2] = 7.0;
        assert_eq!(x.as_slice().unwrap(), [1.0, 2.0, 7.0, 4.0]);
    }
    assert_eq!(x.load(2).unwrap(), 7.0);
    let (geometry, address) = (world.geometry().unwrap(), x.as_ptr().unwrap() as u64);
    assert_eq!(geometry.locate(address), Some((world.my_pe(), x.offset())));
}

#[test]
fn handles_can_be_shared_with_other_threads() {
    fn anywhere<T: Send + Sync>() {}
    anywhere::<World>();
    anywhere::<peerweave_core::Team>();
    anywhere::<peerweave_core::Stream>();
    anywhere::<peerweave_core::Event>();
    anywhere::<peerweave_core::Ticket<Vec<usize>>>();
    anywhere::<peerweave_core::Symmetric<f32>>();
    anywhere::<peerweave_core::Buffer<f32>>();
    anywhere::<peerweave_core::Signal<'_>>();
    anywhere::<peerweave_core::Error>();
}

/// Several threads add to one counter of a shared world. CI also runs this test under
/// ThreadSanitizer.
#[test]
fn concurrent_atomic_adds_lose_no_update() {
    let world = World::new(Noop::new(0, 2)).unwrap();
    let (word, peer) = (world.alloc_zeroed::<i64>(1).unwrap(), Rank::new(1));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..250).for_each(|_| world.team().atomic_add_blocking(&word, 0, -2, peer).unwrap()));
        }
    });
    assert_eq!(world.team().atomic_fetch_blocking(&word, 0, peer).unwrap(), -2000);
}

#[test]
fn calls_after_an_abort_fail_with_the_aborting_pe_and_code() {
    let noop = Noop::new(2, 3);
    let world = World::new(noop.clone()).unwrap();
    let x = world.alloc_zeroed::<u64>(1).unwrap();
    let stream = world.stream().unwrap();
    noop.take_calls();
    let errors = [
        world.abort(7),
        world.abort(8),
        world.fence_blocking().unwrap_err(),
        world.alloc::<u8>(1).unwrap_err(),
        world.team().p_blocking(&x, 0, 1, Rank::new(1)).unwrap_err(),
        world.team().barrier(&stream).unwrap_err(),
        x.store(0, 1).unwrap_err(),
        stream.synchronize().unwrap_err(),
        world.finalize().unwrap_err(),
    ];
    for (index, error) in errors.iter().enumerate() {
        assert!(matches!(error, Error::Aborted { by, code: 7 } if by.get() == 2), "call {index}: {error}");
    }
    assert!(matches!(noop.take_calls()[..], [Call::Abort(7)]), "the backend gets only the first abort");
}

#[test]
fn abort_after_finalize_has_no_effect() {
    let noop = Noop::new(0, 1);
    let world = World::new(noop.clone()).unwrap();
    let _ = world.finalize().unwrap();
    noop.take_calls();
    assert!(matches!(world.abort(1).misuse(), Some(MisuseKind::Finalized)));
    assert!(noop.take_calls().is_empty());
}

#[test]
fn calls_on_handles_fail_after_finalize() {
    let noop = Noop::new(0, 1);
    let world = World::new(noop.clone()).unwrap();
    let (team, stream) = (world.team().clone(), world.stream().unwrap());
    let (event, x) = (stream.record().unwrap(), world.alloc_zeroed::<u64>(2).unwrap());
    let signal = x.signal(0).unwrap();
    let _ = world.finalize().unwrap();
    noop.take_calls();
    let rank = Rank::new(0);
    let errors = [
        team.barrier_blocking().unwrap_err(),
        team.barrier(&stream).unwrap_err(),
        team.put_blocking(&[1, 2], &x, rank).unwrap_err(),
        team.g(&stream, &x, 0, rank).unwrap_err(),
        team.group(&stream, |_| Ok(())).unwrap_err(),
        team.atomic_inc_blocking(&x, 0, rank).unwrap_err(),
        team.test(&signal, Compare::Eq, 0).unwrap_err(),
        team.split(None, 0).unwrap_err(),
        team.destroy().unwrap_err(),
        stream.synchronize().unwrap_err(),
        stream.record().unwrap_err(),
        stream.wait_event(&event).unwrap_err(),
        event.wait().unwrap_err(),
        x.load(0).unwrap_err(),
        x.copy_from(&[1, 2]).unwrap_err(),
        x.to_vec().unwrap_err(),
        x.release().unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().ends_with(": the world was finalized"), "{error}");
    }
    assert!(noop.take_calls().is_empty());
}

/// Forks the whole test process. The child uses only the world and ends by `_exit`.
#[cfg(all(unix, not(miri)))]
#[test]
fn call_in_a_forked_child_is_an_error() {
    let world = World::new(Noop::new(0, 1)).unwrap();
    let x = world.alloc_zeroed::<u64>(1).unwrap();
    // SAFETY: the child allocates only for the error, with the system's allocator, which keeps its
    // locks consistent across a fork. The child then exits at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = |result: Result<()>| result.is_err_and(|error| error.misuse() == Some(&MisuseKind::Forked));
        let refused = forked(world.team().barrier_blocking()) && forked(x.store(0, 1)) && World::new(Noop::new(0, 1)).is_ok();
        // SAFETY: ends the child without running anything of the test harness.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: `child` is a child of this process, and `status` is a variable of this test.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status}");
    x.store(0, 1).unwrap();
}
