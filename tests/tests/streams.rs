//! Checks streams: calls return before late peers have arrived, operations stay in order, errors
//! stay until they are read, and handles can be dropped while operations are pending.

use peerweave::{Buffer, Compare, Error, Pe, Rank, ReduceOp, World};
use peerweave_tests::data::sample::hash;
use peerweave_tests::run::job::say;
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    peerweave_tests::main(
        named![late_peer, many_streams, events, sticky, missing, dropped, threads_use_separate_teams, queued_mismatch],
        named![
            call_returns_before_a_late_peer_has_arrived,
            streams_of_one_team_run_in_the_order_of_the_calls,
            event_orders_two_streams,
            stream_error_stays_until_the_stream_is_synchronized,
            timeout_error_names_the_missing_pes,
            handles_can_be_dropped_while_operations_are_pending,
            threads_of_one_pe_use_separate_teams_concurrently,
            queued_mismatch_is_an_error_on_every_pe,
        ],
    )
}

fn rank(index: usize) -> Rank {
    Rank::new(index as u32)
}

/// Makes the calls of the late PE only after all other PEs have reported that their calls returned.
fn late_peer(seat: &Seat) {
    let world = seat.join();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let (n, me) = (team.size(), team.my_rank().index());
    let expected = (0..n as u64).sum::<u64>();
    let words = world.alloc_zeroed::<u64>(1).unwrap();
    let returned = words.signal(0).unwrap();
    for (round, bytes) in [8usize, 24, 2000, 100_000].into_iter().cycle().take(8 * n).enumerate() {
        let late = round % n;
        let (send, recv) = (Buffer::from(vec![me as u64; bytes / 8]), Buffer::<u64>::zeroed(bytes / 8));
        team.barrier_blocking().unwrap();
        if me == late {
            team.wait_until_blocking(&returned, Compare::Eq, n as u64 - 1).unwrap();
            words.store(0, 0).unwrap();
            sleep(Duration::from_millis(round as u64 % 4));
        }
        let ticket = team.all_reduce(&stream, &send, &recv, ReduceOp::Sum).unwrap();
        // An operation that is enqueued behind the first one waits too.
        let again = team.all_reduce_in_place(&stream, &recv, ReduceOp::Max).unwrap();
        if me != late {
            // Both calls have returned. The late PE makes its calls only after all other PEs have
            // signalled that their calls returned. So a call that waited for the late PE could not
            // have returned here.
            assert!(!ticket.is_complete() && !again.is_complete() && !stream.is_idle());
            assert!(matches!(ticket.wait_within(Duration::ZERO), Err(Error::Timeout(_))));
            team.signal_blocking(returned.add(1), rank(late)).unwrap();
        }
        again.wait().unwrap();
        assert!(ticket.is_complete() && ticket.wait().is_ok());
        assert_eq!(recv.to_vec(), vec![expected; bytes / 8]);
        stream.synchronize().unwrap();
        assert!(stream.is_idle());
    }
    words.release().unwrap();
    let _ = world.finalize().unwrap();
}

fn call_returns_before_a_late_peer_has_arrived() {
    Job::new("late_peer", 2).on_threads();
    Job::new("late_peer", 2).on_processes();
    Job::new("late_peer", 3).on_processes();
}

fn many_streams(seat: &Seat) {
    let world = seat.join();
    let team = world.team();
    let (n, me) = (team.size() as u64, team.my_rank().index() as u64);
    let streams: Vec<_> = (0..4).map(|_| world.stream().unwrap()).collect();
    let mut results = Vec::new();
    for round in 0..500u64 {
        // PEs use different streams for the same call.
        let stream = &streams[(hash(&[round, me]) % 4) as usize];
        if hash(&[round, me, 1]).is_multiple_of(50) {
            sleep(Duration::from_millis(2));
        }
        let len = [1usize, 3, 100, 5000][(round % 4) as usize];
        let buffer = Buffer::from(vec![round * 10 + me; len]);
        let ticket = match round % 5 {
            4 => {
                let mut sum = [0u64];
                team.all_reduce_blocking(&[round], &mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum[0], round * n);
                continue;
            }
            _ => team.all_reduce_in_place(stream, &buffer, ReduceOp::Max).unwrap(),
        };
        results.push((round, buffer, ticket));
    }
    for (round, buffer, ticket) in results {
        ticket.wait().unwrap();
        assert!(buffer.to_vec().iter().all(|&x| x == round * 10 + n - 1), "round {round}: the result of all_reduce is wrong");
    }
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    let _ = world.finalize().unwrap();
}

fn streams_of_one_team_run_in_the_order_of_the_calls() {
    for n_pes in [1, 2, 4] {
        Job::new("many_streams", n_pes).on_threads();
        Job::new("many_streams", n_pes).on_processes();
    }
}

fn events(seat: &Seat) {
    let world = seat.join();
    let (team, one, two) = (world.team(), world.stream().unwrap(), world.stream().unwrap());
    let words = world.alloc_zeroed::<u64>(2).unwrap();
    let (go, seen) = (words.signal(0).unwrap(), words.signal(1).unwrap());
    let me = team.my_rank();
    for round in 1..=50u64 {
        let before = one.record().unwrap();
        let waited = team.wait_until(&one, &go, Compare::Ge, round).unwrap();
        let mark = one.record().unwrap();
        two.wait_event(&mark).unwrap();
        let after = team.signal(&two, seen.set(round), me).unwrap();
        before.wait().unwrap();
        assert!(!mark.is_complete() && !after.is_complete());
        assert_eq!(mark.elapsed_since(&before), None);
        assert!(!team.test(&seen, Compare::Ge, round).unwrap(), "the second stream did not wait for the event");
        let error = mark.wait_within(Duration::from_millis(1)).unwrap_err();
        assert!(matches!(error, Error::Timeout(_)), "{error}");
        team.signal_blocking(go.set(round), me).unwrap();
        after.wait().unwrap();
        assert_eq!(waited.wait().unwrap(), round);
        mark.wait().unwrap();
        assert!(mark.is_complete() && mark.elapsed_since(&before).is_some() && before.elapsed_since(&mark).is_none());
        assert_eq!(words.load(1).unwrap(), round);
    }
    let _ = world.finalize().unwrap();
}

fn event_orders_two_streams() {
    Job::new("events", 1).on_threads();
    Job::new("events", 2).on_processes();
}

/// Returns the result of an operation on a stream, from the call or from the ticket.
fn told<R>(submitted: peerweave::Result<peerweave::Ticket<R>>) -> peerweave::Result<R> {
    submitted?.wait()
}

fn sticky(seat: &Seat) {
    let world = seat.join();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let me = team.my_rank();
    let words = world.alloc_zeroed::<u64>(1).unwrap();
    let word = words.signal(0).unwrap();
    // A wait that no PE ends fails at the deadline; later operations do not run.
    let failing = team.wait_until(&stream, &word, Compare::Ge, 1).unwrap();
    let behind = team.signal(&stream, word.set(9), me).unwrap();
    let mark = stream.record().unwrap();
    let error = failing.wait().unwrap_err();
    assert!(matches!(error, Error::Timeout(_)), "{error}");
    let error = behind.wait().unwrap_err();
    assert!(matches!(&error, Error::Skipped { because, .. } if matches!(**because, Error::Timeout(_))), "{error}");
    assert!(mark.wait().is_err());
    // The stream still skips operations.
    let error = told(team.signal(&stream, word.set(9), me)).unwrap_err();
    assert!(matches!(error, Error::Skipped { .. }), "{error}");
    assert_eq!(words.load(0).unwrap(), 0);
    let error = stream.synchronize().unwrap_err();
    assert!(matches!(error, Error::Timeout(_)), "{error}");
    // After the error was returned, the stream is usable.
    stream.synchronize().unwrap();
    told(team.signal(&stream, word.set(9), me)).unwrap();
    assert_eq!(words.load(0).unwrap(), 9);
    assert!(failing.wait().is_err(), "a ticket returns the same error again");
    // The team is not affected.
    team.barrier_blocking().unwrap();
    words.release().unwrap();
    let _ = world.finalize().unwrap();
}

fn stream_error_stays_until_the_stream_is_synchronized() {
    Job::new("sticky", 1).deadline(Duration::from_secs(3)).on_threads();
    Job::new("sticky", 2).deadline(Duration::from_secs(5)).on_processes();
}

fn missing(seat: &Seat) {
    let world = seat.join();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let me = team.my_rank().index();
    team.barrier_blocking().unwrap();
    if me == 1 || me == 3 {
        sleep(Duration::from_secs(60));
    }
    let absent = [Pe::new(1), Pe::new(3)];
    let buffer = Buffer::from(vec![1.0f32; 100]);
    let ticket = team.all_reduce_in_place(&stream, &buffer, ReduceOp::Sum).unwrap();
    let behind = team.barrier(&stream).unwrap();
    let error = ticket.wait_within(Duration::from_millis(50)).unwrap_err();
    assert!(matches!(&error, Error::Timeout(timeout) if timeout.waited >= Duration::from_millis(50)), "{error}");
    let error = ticket.wait_within(Duration::from_secs(60)).unwrap_err();
    let Error::Timeout(timeout) = &error else { panic!("{error}") };
    assert_eq!(timeout.missing, absent, "{error}");
    assert!(timeout.waited >= Duration::from_secs(12) && timeout.call.starts_with("all_reduce"), "{error}");
    assert!(error.to_string().contains("missing: PE 1, PE 3"), "{error}");
    assert_eq!(behind.wait_within(Duration::from_secs(60)).unwrap_err().blamed(), absent);
    assert_eq!(stream.synchronize().unwrap_err().blamed(), absent);
    // Later calls of the team fail at once.
    let started = Instant::now();
    assert!(team.barrier_blocking().is_err());
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "the barrier failed after {:?}, expected less than 10 s",
        started.elapsed()
    );
    say("named");
    // Stays alive, so that a PE that still waits does not report that this PE has left.
    sleep(Duration::from_secs(60));
}

fn timeout_error_names_the_missing_pes() {
    let mut running = Job::new("missing", 4).deadline(Duration::from_secs(12)).start();
    running.all_say([0, 2], "named");
}

fn dropped(seat: &Seat) {
    let world = seat.join();
    let team = world.team();
    let (n, me) = (team.size(), team.my_rank().index());
    let sink = world.alloc_zeroed::<u64>(n * 1000).unwrap();
    for round in 1..=60u64 {
        let stream = world.stream().unwrap();
        let late = round as usize % n == me;
        if late {
            sleep(Duration::from_millis(3));
        }
        let kept = Buffer::<u64>::zeroed(1000);
        {
            let source = Buffer::from(vec![round * 100 + me as u64; 1000]);
            drop(team.all_reduce(&stream, &source, &kept, ReduceOp::Max).unwrap());
            for to in 0..n {
                let part = sink.slice(me * 1000..(me + 1) * 1000).unwrap();
                drop(team.put(&stream, &source, &part, rank(to)).unwrap());
            }
            // The source is dropped here, and its memory is reused at once.
        }
        let _trash: Vec<Vec<u64>> = (0..20).map(|i| vec![!i; 1000]).collect();
        let last = team.barrier(&stream).unwrap();
        if round % 2 == 0 {
            drop(stream);
        }
        last.wait().unwrap();
        assert!(
            kept.to_vec().iter().all(|&x| x == round * 100 + n as u64 - 1),
            "round {round}: the kept buffer has a wrong result"
        );
        let found = sink.to_vec().unwrap();
        assert!(
            found.iter().enumerate().all(|(i, &x)| x == round * 100 + (i / 1000) as u64),
            "round {round}: the data of a put is wrong"
        );
        team.barrier_blocking().unwrap();
    }
    // A stream, its tickets and its buffers are dropped while their operations are queued. A
    // release waits for queued operations that use the heap.
    let (cell, gone) = (world.alloc_zeroed::<u64>(1).unwrap(), world.alloc_zeroed::<u64>(1000).unwrap());
    let at = gone.offset();
    {
        let (stream, source) = (world.stream().unwrap(), Buffer::from(vec![5u64; 1000]));
        drop(team.wait_until(&stream, &cell.signal(0).unwrap(), Compare::Eq, 1));
        drop(team.put(&stream, &source, &gone, rank((me + 1) % n)));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sleep(Duration::from_millis(30));
            team.signal_blocking(cell.signal(0).unwrap().set(1), team.my_rank()).unwrap();
        });
        gone.release().unwrap();
    });
    let next = world.alloc::<u64>(1000).unwrap();
    assert_eq!(next.offset(), at, "the memory was not reused");
    next.fill(6).unwrap();
    team.barrier_blocking().unwrap();
    sleep(Duration::from_millis(50));
    assert!(next.to_vec().unwrap().iter().all(|&x| x == 6), "a put arrived after the release");
    next.release().unwrap();
    cell.release().unwrap();
    drop(sink);
    let report = world.finalize().unwrap();
    assert_eq!(report.leaked.len(), 1);
    assert!(report.leaked[0].dropped);
}

fn handles_can_be_dropped_while_operations_are_pending() {
    Job::new("dropped", 2).on_threads();
    Job::new("dropped", 3).on_processes();
    Job::new("dropped", 2).without_attach().on_processes();
}

fn threads_use_separate_teams(seat: &Seat) {
    fn work(world: &World, team: &peerweave::Team, thread: u64) {
        let n = team.size() as u64;
        for round in 0..300u64 {
            let mut sum = vec![0u64; 1 + (round as usize * 37) % 1500];
            let mine = vec![round + thread; sum.len()];
            team.all_reduce_blocking(&mine, &mut sum, ReduceOp::Sum).unwrap();
            assert!(sum.iter().all(|&x| x == (round + thread) * n));
            if round % 64 == 0 {
                let stream = world.stream().unwrap();
                team.barrier(&stream).unwrap().wait().unwrap();
            }
        }
    }
    let world = seat.join();
    let teams: Vec<_> = (0..3).map(|_| world.team().split(Some(0), 0).unwrap().unwrap()).collect();
    std::thread::scope(|scope| {
        for (thread, team) in (0..).zip(&teams) {
            let world = &world;
            scope.spawn(move || work(world, team, thread));
        }
    });
    for team in teams {
        team.destroy().unwrap();
    }
    let _ = world.finalize().unwrap();
}

fn threads_of_one_pe_use_separate_teams_concurrently() {
    Job::new("threads_use_separate_teams", 2).on_threads();
    Job::new("threads_use_separate_teams", 3).on_processes();
}

fn queued_mismatch(seat: &Seat) {
    let world = seat.join();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let me = team.my_rank().index();
    for round in 0..20 {
        if me == round % team.size() {
            sleep(Duration::from_millis(4));
        }
        // Whether the operation ran on the caller's thread or on the stream's, each PE gets the
        // error, and the team stays usable.
        let error = told(team.all_reduce_in_place(&stream, &Buffer::from(vec![1u32; 10 + me % 2]), ReduceOp::Sum)).unwrap_err();
        assert!(matches!(error, Error::Mismatch(_)), "{error}");
        // If the stream has stored the error, `synchronize` reports it again.
        if let Err(error) = stream.synchronize() {
            assert!(matches!(error, Error::Mismatch(_)), "{error}");
        }
        told(team.barrier(&stream)).unwrap();
    }
    let _ = world.finalize().unwrap();
}

fn queued_mismatch_is_an_error_on_every_pe() {
    Job::new("queued_mismatch", 2).on_threads();
    Job::new("queued_mismatch", 3).on_processes();
}
