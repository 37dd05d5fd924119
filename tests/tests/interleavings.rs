//! Checks critical interleavings of calls on the host backend: late calls after a peer timed out,
//! concurrent calls of threads of one PE, calls with equal signatures, and teams that are destroyed
//! with pending operations.
//!
//! PEs are threads. They coordinate outside of the library, so that the order of calls does not
//! depend on the speed of the machine.

use peerweave::host::{HostOptions, on_threads};
use peerweave::{Buffer, Compare, Error, Pe, PeerCause, Rank, ReduceOp, Result, Team, Ticket, VectorCounts};
use peerweave_tests::named;
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{scope, sleep, yield_now};
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    peerweave_tests::main(
        named![],
        named![
            late_collective_fails_after_a_peer_timed_out,
            concurrent_splits_use_different_team_slots,
            different_counts_with_equal_hashes_are_a_mismatch,
            message_of_a_sender_that_timed_out_is_not_received,
            mismatched_destroy_leaves_the_team_usable,
            destroy_waits_for_queued_sends_and_receives,
            two_threads_can_share_a_stream_and_a_team,
            empty_part_of_all_to_all_v_can_have_any_offset,
            all_to_all_v_mixes_short_and_long_parts,
            late_peer_does_not_extend_the_deadline,
            mismatch_reported_by_a_ticket_leaves_the_stream_usable,
            event_recorded_after_a_failure_fails,
        ],
    )
}

/// A deadline that no successful test reaches.
const PATIENT: Duration = Duration::from_secs(60);

fn options(deadline: Duration) -> HostOptions {
    let mut options = HostOptions::default();
    (options.deadline, options.heap_bytes) = (deadline, Some(8 << 20));
    options
}

/// Counts the steps that the threads of a test have completed.
#[derive(Default)]
struct Steps(AtomicUsize);

impl Steps {
    fn done(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn wait_for(&self, steps: usize) {
        let started = Instant::now();
        while self.0.load(Ordering::Acquire) < steps {
            assert!(started.elapsed() < 2 * PATIENT, "timed out waiting until the threads have completed {steps} steps");
            yield_now();
        }
    }

    fn meet(&self, threads: usize) {
        self.done();
        self.wait_for(threads);
    }
}

/// Returns the result of an operation on a stream, from the call or from the ticket.
fn told<R>(submitted: Result<Ticket<R>>) -> Result<R> {
    submitted?.wait()
}

#[track_caller]
fn is_mismatch<R>(result: Result<R>) {
    let Err(error) = result else { panic!("expected a mismatch, because the calls differ") };
    assert!(matches!(error, Error::Mismatch(_)), "{error}");
}

/// Returns the number of the team's slot in shared memory, which is the low byte of its ID.
fn slot(team: &Team) -> u32 {
    team.name().id.0 & 0xff
}

fn late_collective_fails_after_a_peer_timed_out() {
    for queued in [false, true] {
        let (gave_up, end) = (Steps::default(), Steps::default());
        on_threads(3, &options(Duration::from_millis(400)), |world| {
            let (team, me) = (world.team(), world.my_pe().index());
            let (send, recv) = (Buffer::from(vec![me as f32 + 1.0; 100_000]), Buffer::from(vec![-1.0f32; 100_000]));
            if me > 0 {
                gave_up.wait_for(1);
                // PE 0 has entered, but never provides its part of the sum.
                let error = team.all_reduce_blocking(&send, &recv, ReduceOp::Sum).expect_err("an all_reduce without PE 0 fails");
                assert!(matches!(error, Error::Peer { .. } | Error::Timeout(_)), "{error}");
            } else {
                // The next call of PE 0 must not look to its peers as if PE 0 had completed this
                // call.
                let failed = if queued {
                    let stream = world.stream().unwrap();
                    let first = team.all_reduce(&stream, &send, &recv, ReduceOp::Sum).unwrap();
                    let next = team.barrier(&stream).unwrap();
                    let failed = first.wait_within(PATIENT);
                    let error = next.wait_within(PATIENT).unwrap_err();
                    assert!(matches!(error, Error::Skipped { .. }), "{error}");
                    failed
                } else {
                    let failed = team.all_reduce_blocking(&send, &recv, ReduceOp::Sum);
                    assert!(team.barrier_blocking().is_err());
                    failed
                };
                let error = failed.unwrap_err();
                assert!(matches!(error, Error::Timeout(_)), "{error}");
                assert_eq!(error.blamed(), [Pe::new(1), Pe::new(2)]);
                gave_up.done();
            }
            // No PE leaves before all have their errors.
            end.meet(3);
        })
        .unwrap();
    }
}

fn concurrent_splits_use_different_team_slots() {
    on_threads(2, &options(PATIENT), |world| {
        let me = u64::from(world.my_pe().get());
        let parents = [0, 1].map(|_| world.team().split(Some(0), 0).unwrap().unwrap());
        for round in 0..40 {
            let start = Barrier::new(2);
            let (both, alone) = scope(|scope| {
                let split = |parent: usize, color: u64| {
                    start.wait();
                    parents[parent].split(Some(color), 0).unwrap().unwrap()
                };
                let both = scope.spawn(move || split(0, 0));
                let alone = scope.spawn(move || split(1, me));
                (both.join().unwrap(), alone.join().unwrap())
            });
            assert_ne!(slot(&both), slot(&alone), "round {round}: both teams have the same slot");
            for (team, size) in [(both, 2), (alone, 1)] {
                assert_eq!(team.size(), size);
                let mut all = [0u8; 12];
                let (inside, behind) = all.split_at_mut(4 * size);
                team.all_gather_blocking(&[7u8; 4], &mut *inside).unwrap();
                assert!(
                    inside.iter().all(|&x| x == 7) && behind.iter().all(|&x| x == 0),
                    "round {round}, team of {size}: the result of all_gather is wrong"
                );
                team.destroy().unwrap();
            }
        }
        let _ = world.finalize().unwrap();
    })
    .unwrap();
}

fn different_counts_with_equal_hashes_are_a_mismatch() {
    // Pairs of counts with equal 32-bit signatures.
    const ALIKE: [[usize; 2]; 4] = [[3206, 124_389], [24_499, 140_343], [59_545, 109_356], [34_300, 169_577]];
    on_threads(2, &options(PATIENT), |world| {
        let (team, me) = (world.team(), world.my_pe().index());
        let (ones, zeros) = (world.alloc::<f32>(170_000).unwrap(), world.alloc_zeroed::<f32>(170_000).unwrap());
        ones.fill(1.0).unwrap();
        for counts in ALIKE {
            let count = counts[me];
            let (send, recv) = (ones.slice(..count).unwrap(), zeros.slice(..count).unwrap());
            is_mismatch(team.all_reduce_blocking(&send, &recv, ReduceOp::Sum));
            is_mismatch(team.broadcast_blocking(&send, &recv, Rank::new(0)));
            team.barrier_blocking().unwrap();
            assert!(
                zeros.to_vec().unwrap().iter().all(|&x| x == 0.0),
                "a failed call with the counts {counts:?} wrote to memory"
            );
            let mut private = vec![0.0f32; count];
            is_mismatch(team.all_reduce_blocking(&vec![1.0f32; count], &mut private, ReduceOp::Sum));
            assert!(private.iter().all(|&x| x == 0.0), "a failed call with the counts {counts:?} wrote to memory");
        }
        is_mismatch(world.alloc::<f32>([106_548, 178_800][me]));
        // Both heaps still give the next allocation the same offset.
        let at = world.alloc::<f32>(1000).unwrap().offset().0;
        let mut all = [0u64; 2];
        team.all_gather_blocking(&[at], &mut all).unwrap();
        assert_eq!(all, [at; 2]);
        let _ = world.finalize().unwrap();
    })
    .unwrap();
}

fn message_of_a_sender_that_timed_out_is_not_received() {
    let (start, gave_up, end) = (Steps::default(), Steps::default(), Steps::default());
    on_threads(2, &options(Duration::from_secs(5)), |world| {
        let team = world.team();
        start.meet(2);
        let message = world.alloc_zeroed::<u64>(10_000).unwrap();
        if world.my_pe().index() == 0 {
            message.fill(1).unwrap();
            let error = team.send_blocking(&message, Rank::new(1)).unwrap_err();
            assert!(matches!(error, Error::Timeout(_)), "{error}");
            // The sender can reuse its memory.
            message.fill(666).unwrap();
            gave_up.done();
        } else {
            gave_up.wait_for(1);
            let mut received = vec![0u64; 10_000];
            let error = team
                .recv_blocking(&mut received, Rank::new(0))
                .expect_err("the receive fails, because the message was withdrawn");
            assert!(matches!(&error, Error::Peer { pe, cause: PeerCause::Failed, .. } if pe.get() == 0), "{error}");
        }
        end.meet(2);
    })
    .unwrap();
}

fn mismatched_destroy_leaves_the_team_usable() {
    on_threads(3, &options(PATIENT), |world| {
        let me = world.my_pe().get();
        let first = world.team().split((me < 2).then_some(0), 0).unwrap();
        match (&first, me) {
            (Some(team), 0) => is_mismatch(team.clone().destroy()),
            (Some(team), _) => is_mismatch(team.barrier_blocking()),
            (None, _) => {}
        }
        // PE 0 is in both teams, which must not share a slot.
        let second = world.team().split((me != 1).then_some(0), 0).unwrap();
        if let (Some(first), Some(second)) = (&first, &second) {
            assert_ne!(slot(first), slot(second));
        }
        for round in 0..10 {
            for (team, members) in [(&second, [0, 2]), (&first, [0, 1])] {
                if let Some(team) = team {
                    let mut all = [0u32; 2];
                    team.all_gather_blocking(&[me + round], &mut all).unwrap();
                    assert_eq!(all, members.map(|pe| pe + round));
                }
            }
        }
        for team in [first, second].into_iter().flatten() {
            team.destroy().unwrap();
        }
        world.team().barrier_blocking().unwrap();
        let _ = world.finalize().unwrap();
    })
    .unwrap();
}

fn destroy_waits_for_queued_sends_and_receives() {
    // The first message fits into a slot of a mailbox. The send of the second one must wait for the
    // receiver.
    for len in [4, 20_000] {
        on_threads(2, &options(PATIENT), |world| {
            let sends = world.my_pe().get() == 0;
            let stream = world.stream().unwrap();
            let words = world.alloc_zeroed::<u64>(1).unwrap();
            let team = world.team().split(Some(0), 0).unwrap().unwrap();
            let old_slot = slot(&team);
            let message = Buffer::from(vec![if sends { 111u64 } else { 0 }; len]);
            let ticket = if sends {
                drop(team.wait_until(&stream, &words.signal(0).unwrap(), Compare::Eq, 1).unwrap());
                team.send(&stream, &message, Rank::new(1)).unwrap()
            } else {
                team.recv(&stream, &message, Rank::new(0)).unwrap()
            };
            scope(|scope| {
                if sends {
                    scope.spawn(|| {
                        sleep(Duration::from_millis(50));
                        words.store(0, 1).unwrap();
                    });
                }
                team.destroy().unwrap();
                assert!(!sends || words.load(0).unwrap() == 1, "the message was not sent");
                assert!(message.to_vec().iter().all(|&x| x == 111), "the message has not arrived");
            });
            ticket.wait().unwrap();
            // The next team gets only its own messages.
            let next = world.team().split(Some(0), 0).unwrap().unwrap();
            assert_eq!(slot(&next), old_slot, "the slot is reused");
            let mut other = vec![if sends { 222u64 } else { 0 }; len];
            if sends {
                next.send_blocking(&other, Rank::new(1)).unwrap();
            } else {
                next.recv_blocking(&mut other, Rank::new(0)).unwrap();
            }
            assert!(other.iter().all(|&x| x == 222) && message.to_vec().iter().all(|&x| x == 111));
            next.destroy().unwrap();
            words.release().unwrap();
            let _ = world.finalize().unwrap();
        })
        .unwrap();
    }
}

fn two_threads_can_share_a_stream_and_a_team() {
    on_threads(2, &options(PATIENT), |world| {
        let me = world.my_pe().index();
        let (team, stream, gate) = (world.team(), world.stream().unwrap(), Steps::default());
        scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for round in 1..=120 {
                        gate.meet(2 * round);
                        // This PE is late, so that the other PE's operations move to the thread of
                        // the stream.
                        if me == round % 2 && round % 3 == 0 {
                            sleep(Duration::from_millis(3));
                        }
                        // Both threads make the same call in a round, so that their order does not
                        // matter.
                        if round % 4 < 2 {
                            team.barrier(&stream).unwrap().wait_within(PATIENT).unwrap();
                        } else {
                            let sum = Buffer::from(vec![round as u64; 700]);
                            team.all_reduce_in_place(&stream, &sum, ReduceOp::Sum).unwrap().wait_within(PATIENT).unwrap();
                            assert_eq!(sum.to_vec(), [2 * round as u64; 700]);
                        }
                    }
                });
            }
        });
        stream.synchronize().unwrap();
        assert!(stream.is_idle());
        let _ = world.finalize().unwrap();
    })
    .unwrap();
}

fn empty_part_of_all_to_all_v_can_have_any_offset() {
    for n_pes in [1, 2] {
        on_threads(n_pes, &options(PATIENT), |world| {
            let (team, me) = (world.team(), world.my_pe().index());
            for far in [5, 1 << 50, usize::MAX / 8, usize::MAX] {
                // This PE sends nothing to itself, and elements 1 and 2 or nothing to the other PE.
                for len in [2, 0] {
                    let counts: Vec<usize> = (0..n_pes).map(|rank| if rank == me { 0 } else { len }).collect();
                    let offsets: Vec<usize> = counts.iter().map(|&count| if count == 0 { far } else { 1 }).collect();
                    let counts = VectorCounts {
                        send_counts: counts.clone(),
                        send_offsets: offsets.clone(),
                        recv_counts: counts,
                        recv_offsets: offsets,
                    };
                    let theirs = if len > 0 && n_pes > 1 { 1 - me } else { me } as u64;
                    let expected = [me as u64, theirs, theirs, me as u64];
                    let mut buffer = [me as u64; 4];
                    team.all_to_all_v_in_place_blocking(&mut buffer, counts.clone()).unwrap();
                    assert_eq!(buffer, expected, "empty parts at {far}, in place");
                    let mut recv = [me as u64; 4];
                    team.all_to_all_v_blocking(&[me as u64; 4], &mut recv, counts.clone()).unwrap();
                    assert_eq!(recv, expected, "empty parts at {far}");
                    let symmetric = world.alloc::<u64>(4).unwrap();
                    symmetric.fill(me as u64).unwrap();
                    team.all_to_all_v_in_place_blocking(&symmetric, counts).unwrap();
                    assert_eq!(symmetric.to_vec().unwrap(), expected, "empty parts at {far}, in symmetric memory");
                    symmetric.release().unwrap();
                }
            }
            let _ = world.finalize().unwrap();
        })
        .unwrap();
    }
}

/// Checks that ranks whose parts would use different transports agree on one algorithm, and on a
/// mismatch.
fn all_to_all_v_mixes_short_and_long_parts() {
    // Around the limits of the entry line and of the staging area.
    const LENS: [usize; 7] = [0, 1, 2, 120, 128, 129, 50_000];
    on_threads(2, &options(PATIENT), |world| {
        let (team, me) = (world.team(), world.my_pe().index());
        let (from, to) = (world.alloc::<u64>(50_000).unwrap(), world.alloc::<u64>(50_000).unwrap());
        from.fill(7 + me as u64).unwrap();
        for (symmetric, first, second) in
            [true, false].into_iter().flat_map(|s| LENS.into_iter().flat_map(move |a| LENS.map(|b| (s, a, b))))
        {
            let lens = if me == 0 { [first, second] } else { [second, first] };
            let call = |expected: usize, received: &mut [u64]| {
                let of_peer = |len: usize| if me == 0 { vec![0, len] } else { vec![len, 0] };
                let counts = VectorCounts::packed(of_peer(lens[0]), of_peer(expected));
                if !symmetric {
                    return team.all_to_all_v_blocking(&vec![7 + me as u64; lens[0]], &mut *received, counts);
                }
                to.fill(0).unwrap();
                team.all_to_all_v_blocking(&from, &to, counts)?;
                to.slice(..received.len()).unwrap().copy_to(received)
            };
            // Rank 0 expects one element less or more than rank 1 sends.
            let wrong = if me > 0 { lens[1] } else { lens[1].checked_sub(1).unwrap_or(1) };
            is_mismatch(call(wrong, &mut vec![0; wrong]));
            let mut received = vec![0; lens[1]];
            call(lens[1], &mut received).unwrap();
            assert!(
                received.iter().all(|&x| x == 8 - me as u64),
                "parts of {lens:?} elements, symmetric: {symmetric}: the result is wrong"
            );
        }
        from.release().unwrap();
        to.release().unwrap();
        assert!(world.finalize().unwrap().is_clean());
    })
    .unwrap();
}

fn late_peer_does_not_extend_the_deadline() {
    const DEADLINE: Duration = Duration::from_secs(5);
    for large in [false, true] {
        let (start, gave_up, end) = (Steps::default(), Steps::default(), Steps::default());
        on_threads(3, &options(DEADLINE), |world| {
            let team = world.team();
            let mut buffer = vec![1u64; if large { 100_000 } else { 0 }];
            let mut call = || match large {
                true => team.all_reduce_in_place_blocking(&mut buffer, ReduceOp::Sum),
                false => team.barrier_blocking(),
            };
            start.meet(3);
            match world.my_pe().get() {
                0 => {
                    let started = Instant::now();
                    let error = call().unwrap_err();
                    let waited = started.elapsed();
                    assert!(matches!(error, Error::Timeout(_)), "{error}");
                    assert!(error.blamed().contains(&Pe::new(2)), "{error}");
                    // PE 1 arrives after 4/5 of the deadline. A deadline that began then would end
                    // after 9/5 of it.
                    assert!(
                        waited >= DEADLINE && waited < DEADLINE * 7 / 4,
                        "waited for {waited:?}, expected about {DEADLINE:?}"
                    );
                    gave_up.done();
                }
                1 => {
                    // PE 1 arrives late, but before the deadline. Its arrival must not extend the
                    // deadline of PE 0.
                    sleep(DEADLINE * 4 / 5);
                    let outcome = call();
                    assert!(!large || outcome.is_err(), "an all_reduce without PE 0 must fail");
                }
                _ => {
                    gave_up.wait_for(1);
                    let outcome = call();
                    assert!(!large || outcome.is_err(), "an all_reduce without PE 0 must fail");
                }
            }
            end.meet(3);
        })
        .unwrap();
    }
}

fn mismatch_reported_by_a_ticket_leaves_the_stream_usable() {
    let called = Steps::default();
    on_threads(2, &options(PATIENT), |world| {
        let (team, stream, me) = (world.team(), world.stream().unwrap(), world.my_pe().index());
        for (round, late) in (1..).zip([0, 1, 0, 1]) {
            let buffer = Buffer::from(vec![1u32; 10 + me]);
            if me == late {
                called.wait_for(round);
            }
            let submitted = team.all_reduce_in_place(&stream, &buffer, ReduceOp::Sum);
            if me != late {
                // On this PE the operation is queued, so the stream keeps its error.
                assert!(submitted.as_ref().is_ok_and(|ticket| !ticket.is_complete()));
                called.done();
            }
            is_mismatch(told(submitted));
            assert_eq!(buffer.to_vec(), vec![1; 10 + me]);
            // Without a synchronize, both PEs can continue.
            told(team.barrier(&stream)).unwrap();
            let sum = Buffer::from(vec![1u32; 10]);
            told(team.all_reduce_in_place(&stream, &sum, ReduceOp::Sum)).unwrap();
            assert_eq!(sum.to_vec(), [2; 10]);
            team.barrier_blocking().unwrap();
        }
        // The stream reports the error once.
        is_mismatch(stream.synchronize());
        stream.synchronize().unwrap();
        told(team.barrier(&stream)).unwrap();
        let _ = world.finalize().unwrap();
    })
    .unwrap();
}

fn event_recorded_after_a_failure_fails() {
    on_threads(1, &options(Duration::from_secs(3)), |world| {
        let team = world.team();
        let (failing, waiting) = (world.stream().unwrap(), world.stream().unwrap());
        let words = world.alloc_zeroed::<u64>(1).unwrap();
        let word = words.signal(0).unwrap();
        let me = team.my_rank();
        // No PE sets this word.
        let error = team.wait_until(&failing, &word, Compare::Ge, 1).unwrap().wait_within(PATIENT).unwrap_err();
        assert!(matches!(error, Error::Timeout(_)), "{error}");
        // The event fails whether the stream is idle or not.
        for rest in [false, true] {
            let started = Instant::now();
            while rest && !failing.is_idle() {
                assert!(started.elapsed() < PATIENT);
                yield_now();
            }
            let mark = failing.record().unwrap();
            let error = mark.wait_within(PATIENT).expect_err("the event fails, because an operation before it failed");
            assert!(matches!(error, Error::Timeout(_)), "{error}");
            // An operation that waits for the mark is skipped too.
            waiting.wait_event(&mark).unwrap();
            let error = told(team.signal(&waiting, word.set(9), me)).unwrap_err();
            assert!(matches!(error, Error::Skipped { .. }), "{error}");
            assert!(waiting.synchronize_within(PATIENT).is_err());
        }
        assert_eq!(words.load(0).unwrap(), 0);
        // After the error is reported, the stream is usable.
        assert!(failing.synchronize_within(PATIENT).is_err());
        let mark = failing.record().unwrap();
        mark.wait_within(PATIENT).unwrap();
        waiting.wait_event(&mark).unwrap();
        told(team.signal(&waiting, word.set(9), me)).unwrap();
        assert_eq!(words.load(0).unwrap(), 9);
        words.release().unwrap();
        let _ = world.finalize().unwrap();
    })
    .unwrap();
}
