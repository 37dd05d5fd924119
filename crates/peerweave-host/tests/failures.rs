//! Tests of the results of calls after a failure: calls on a failed team, and finalize after a
//! failure that no call has returned.

use peerweave_core::{Compare, Error, Pe, PeerCause, Rank, ReduceOp, World};
use peerweave_host::{HostOptions, on_threads};
use std::sync::{Barrier, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_secs(2);

fn with_deadline(n_pes: usize, deadline: Duration, program: impl Fn(World) + Sync) {
    let mut options = HostOptions::default();
    options.deadline = deadline;
    on_threads(n_pes, &options, program).expect("the shared memory is mapped");
}

/// Enqueues a wait for a word that no PE sets.
fn wait_in_vain(world: &World) -> peerweave_core::Ticket<u64> {
    let word = world.alloc_zeroed::<u64>(1).unwrap();
    world.team().wait_until(&world.stream().unwrap(), &word.signal(0).unwrap(), Compare::Eq, 1).unwrap()
}

#[test]
fn calls_on_a_failed_team_fail_and_name_the_failed_pe() {
    with_deadline(3, HostOptions::DEADLINE, |world| {
        let (team, stream) = (world.team().clone(), world.stream().unwrap());
        team.barrier_blocking().unwrap();
        if world.my_pe().get() == 1 {
            return;
        }
        let first = team.all_reduce_in_place_blocking(&mut [1f32], ReduceOp::Sum).unwrap_err();
        assert!(matches!(&first, Error::Peer { pe, cause: PeerCause::Left, .. } if pe.get() == 1), "{first}");
        let mut received = [0u8];
        for (name, later) in [
            ("barrier", team.barrier_blocking()),
            ("send", team.send_blocking(&[1u8], Rank::new(1))),
            ("recv", team.recv_blocking(&mut received, Rank::new(1))),
            ("alloc", world.alloc::<u8>(1).map(drop)),
            ("split", team.split(Some(0), 0).map(drop)),
            ("sync", team.sync(&stream).and_then(|ticket| ticket.wait())),
            ("finalize", world.finalize().map(drop)),
        ] {
            let error = later.unwrap_err();
            let Error::Poisoned { call, because, .. } = &error else { panic!("{name}: {error}") };
            assert_eq!((*call, because.to_string()), (name, first.to_string()));
            assert_eq!(error.blamed(), [Pe::new(1)]);
        }
    });
}

/// The barrier of PE 0 fails while one receive runs and a second receive is queued behind it. PE 1
/// makes no call.
#[test]
fn destroying_a_failed_team_ignores_a_receive_that_never_ran() {
    let (outcome, is_over) = (Mutex::new(None), Barrier::new(2));
    with_deadline(2, SHORT, |world| {
        let team = world.team().split(Some(0), 0).unwrap().expect("the rank passed a color");
        if world.my_pe().get() == 0 {
            let receive = || team.recv_blocking(&mut [0u64], Rank::new(1));
            let receives = std::thread::scope(|scope| {
                let barrier = scope.spawn(|| team.barrier_blocking());
                sleep(SHORT / 4);
                let first = scope.spawn(receive);
                sleep(SHORT / 4);
                let second = scope.spawn(receive);
                [barrier, first, second].map(|thread| thread.join().expect("the call returns"))
            });
            let start = Instant::now();
            *outcome.lock().unwrap() = Some((receives, team.destroy(), start.elapsed()));
        }
        is_over.wait();
    });
    let (calls, destroyed, waited) = outcome.into_inner().unwrap().expect("PE 0 has called destroy");
    for call in calls {
        assert_eq!(call.expect_err("PE 1 makes no call").blamed(), [Pe::new(1)]);
    }
    let error = destroyed.expect_err("the team has failed");
    assert!(matches!(&error, Error::Poisoned { call: "destroy", .. }), "{error}");
    assert!(waited < SHORT, "{waited:?}");
}

#[test]
fn finalize_returns_the_failure_of_a_dropped_ticket() {
    with_deadline(1, SHORT, |world| {
        drop(wait_in_vain(&world));
        let buffer = world.alloc::<u8>(1).unwrap();
        // `release` waits until the operation has failed.
        buffer.release().unwrap();
        let error = world.finalize().unwrap_err();
        assert!(matches!(&error, Error::Timeout(timeout) if timeout.call == "wait_until"), "{error}");
    });
}

#[test]
fn finalize_returns_the_failure_of_a_pending_operation() {
    with_deadline(2, SHORT, |world| {
        drop(wait_in_vain(&world));
        let error = world.finalize().unwrap_err();
        assert!(matches!(&error, Error::Timeout(timeout) if timeout.call == "wait_until"), "{error}");
    });
}

#[test]
fn finalize_omits_failures_that_another_call_has_returned() {
    with_deadline(1, SHORT, |world| {
        let ticket = wait_in_vain(&world);
        assert!(matches!(ticket.wait_within(HostOptions::DEADLINE), Err(Error::Timeout(_))));
        let _ = world.finalize().unwrap();
    });
    with_deadline(1, SHORT, |world| {
        let (stream, word) = (world.stream().unwrap(), world.alloc_zeroed::<u64>(1).unwrap());
        drop(world.team().wait_until(&stream, &word.signal(0).unwrap(), Compare::Eq, 1).unwrap());
        assert!(matches!(stream.synchronize_within(HostOptions::DEADLINE), Err(Error::Timeout(_))));
        let _ = world.finalize().unwrap();
    });
    // Here the failure is returned by the ticket of a skipped operation, whose error contains the
    // failure.
    with_deadline(1, SHORT, |world| {
        let (stream, word) = (world.stream().unwrap(), world.alloc_zeroed::<u64>(1).unwrap());
        drop(world.team().wait_until(&stream, &word.signal(0).unwrap(), Compare::Eq, 1).unwrap());
        let skipped = stream.fill(&word, 1).unwrap().wait_within(HostOptions::DEADLINE);
        assert!(matches!(skipped, Err(Error::Skipped { .. })));
        let _ = world.finalize().unwrap();
    });
}

#[test]
fn finalize_timeout_names_the_running_call() {
    const WAIT: Duration = Duration::from_secs(4);
    with_deadline(2, 3 * WAIT / 2, |world| {
        let (stream, words) = (world.stream().unwrap(), world.alloc_zeroed::<u64>(2).unwrap());
        let team = world.team().clone();
        if world.my_pe().get() == 1 {
            // Each wait of PE 0 ends before its deadline, but both waits together take longer than
            // the deadline.
            for i in 0..2 {
                std::thread::sleep(WAIT);
                team.signal_blocking(words.signal(i).unwrap().set(1), Rank::new(0)).ok();
            }
            return;
        }
        for i in 0..2 {
            drop(team.wait_until(&stream, &words.signal(i).unwrap(), Compare::Eq, 1).unwrap());
        }
        let text = world.finalize().unwrap_err().to_string();
        assert!(text.starts_with("finalize on the world (2 PEs): timed out"), "{text}");
        assert!(text.ends_with("this PE is still running wait_until"), "{text}");
    });
}

#[test]
fn wait_with_its_own_time_limit_returns_at_that_limit() {
    with_deadline(1, HostOptions::DEADLINE, |world| {
        let (stream, word) = (world.stream().unwrap(), world.alloc_zeroed::<u64>(1).unwrap());
        let ticket = world.team().wait_until(&stream, &word.signal(0).unwrap(), Compare::Eq, 1).unwrap();
        let started = Instant::now();
        for _ in 0..50 {
            assert!(matches!(ticket.wait_within(Duration::ZERO), Err(Error::Timeout(_))));
            let error = stream.synchronize_within(Duration::from_millis(1)).unwrap_err();
            assert!(error.to_string().ends_with("s; this PE is still running wait_until"), "{error}");
        }
        // With a grace time of 200 ms for each wait, the loop would take 20 s.
        assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
        let state = world.describe();
        assert!(state.ends_with("1 operations queued; a stream runs wait_until"), "{state}");
        world.team().signal_blocking(word.signal(0).unwrap().set(1), Rank::new(0)).unwrap();
        assert_eq!(ticket.wait().unwrap(), 1);
        stream.synchronize().unwrap();
        assert!(world.describe().ends_with("0 operations queued"), "{}", world.describe());
    });
}

#[test]
fn wait_timeout_error_contains_offset_value_and_condition() {
    with_deadline(1, SHORT, |world| {
        let (team, words) = (world.team(), world.alloc_zeroed::<i32>(3).unwrap());
        words.copy_from(&[-7, 9, -8]).unwrap();
        let check = |error: Error, call: &str, word: &str| {
            let text = error.to_string();
            assert!(text.starts_with(&format!("{call} on the world (1 PE): timed out after ")), "{text}");
            assert!(text.ends_with(word), "{text}");
            assert!(error.blamed().is_empty());
        };
        let at = words.offset().0;
        let one = team.wait_until_blocking((&words, 0), Compare::Lt, -7).unwrap_err();
        check(one, "wait_until", &format!("s; the word at symmetric offset {at}: found -7, expected < -7"));
        let all = team.wait_until_all_blocking(&words, Some(&[true, false, false]), Compare::Gt, 8).unwrap_err();
        check(all, "wait_until_all", &format!("s; word 2 (symmetric offset {}): found -8, expected > 8", at + 8));
        let any = team.wait_until_any_vector_blocking(&words, None, Compare::Eq, &[7, 8, 9]).unwrap_err();
        check(any, "wait_until_any_vector", &format!("s; word 0 (symmetric offset {at}): found -7, expected == 7"));
    });
}
