//! Tests of the order of collectives, sends and receives of a team on several streams.
#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use peerweave_core::{Buffer, Error, Pe, Rank, ReduceOp};
use peerweave_cuda::GpuOptions;
use peerweave_fakes::Fakes;

fn options() -> GpuOptions {
    GpuOptions::new(4 << 20).deadline(Duration::from_secs(20)).slots(4)
}

#[test]
fn messages_and_collectives_run_in_the_order_of_calls() {
    Fakes::new().cuda().run(|| {
        common::worlds(2, options(), |world| {
            let (team, me, other) = (world.team(), world.my_pe().get(), Rank::new(1 - world.my_pe().get()));
            let streams = [0; 3].map(|_| world.stream().unwrap());
            // The short messages are sent as 16-byte lines, and the long messages through rings.
            for len in [40, 20_000] {
                let [x, sum] = [0; 2].map(|_| world.alloc_zeroed::<u32>(len).unwrap());
                let host = Buffer::<u32>::zeroed(len);
                for round in 1..6 {
                    x.fill(if me == 1 { round } else { 0 }).unwrap();
                    // Each call needs the result of the previous call, which runs on another
                    // stream.
                    if me == 1 {
                        team.send(&streams[0], &x, other).unwrap();
                    } else {
                        team.recv(&streams[0], &x, other).unwrap();
                    }
                    team.all_reduce(&streams[1], &x, &sum, ReduceOp::Sum).unwrap();
                    if me == 0 {
                        team.send(&streams[2], &sum, other).unwrap();
                    } else {
                        team.recv(&streams[2], &host, other).unwrap();
                    }
                    team.all_reduce(&streams[0], &sum, &x, ReduceOp::Sum).unwrap();
                    streams.iter().for_each(|stream| stream.synchronize().unwrap());
                    assert_eq!(x.to_vec().unwrap(), vec![4 * round; len], "round {round}");
                    assert!(me == 0 || host.to_vec() == vec![2 * round; len], "round {round}");
                    team.barrier_blocking().unwrap();
                }
                x.release().unwrap();
                sum.release().unwrap();
            }
        });
    });
}

#[test]
fn receive_before_barrier_times_out_if_send_is_after_barrier() {
    Fakes::new().cuda().run(|| {
        let outcomes = common::worlds(2, options().deadline(Duration::from_secs(2)), |world| {
            let (team, me, other) = (world.team(), world.my_pe().get(), Rank::new(1 - world.my_pe().get()));
            let (first, second) = (world.stream().unwrap(), world.stream().unwrap());
            let x = world.alloc_zeroed::<u32>(4).unwrap();
            let start = Instant::now();
            // Rank 0 calls the receive before the barrier, and rank 1 calls the send after the
            // barrier.
            let outcome = if me == 0 {
                let ticket = team.recv(&first, &x, other).unwrap();
                let _ = team.barrier(&second);
                ticket.wait()
            } else {
                let ticket = team.barrier(&first).unwrap();
                let _ = team.send(&second, &x, other);
                ticket.wait()
            };
            assert!(start.elapsed() < Duration::from_secs(10), "the call took {:?}", start.elapsed());
            let _ = (first.synchronize(), second.synchronize());
            x.release().unwrap();
            outcome
        });
        // When the first wait ends, the other rank may continue without an error.
        let errors: Vec<_> =
            outcomes.iter().enumerate().filter_map(|(pe, outcome)| Some((pe, outcome.as_ref().err()?))).collect();
        assert!(!errors.is_empty(), "no call timed out, expected a timeout on at least one PE");
        for (pe, error) in errors {
            let Error::Timeout(timeout) = error else { panic!("PE {pe}: {error}, expected a timeout") };
            assert_eq!(timeout.missing, [Pe::new(1 - pe as u32)], "PE {pe}: {error}");
        }
    });
}
