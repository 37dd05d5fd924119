//! Checks sends and receives between all ranks, of every size, alone and in groups. Also checks
//! mismatches.

use peerweave::{Buffer, Error, MisuseKind, Rank, ReduceOp, Team, World};
use peerweave_tests::check::conformance::team_of;
use peerweave_tests::data::sample::hash;
use peerweave_tests::run::job::say;
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    peerweave_tests::main(
        named![pairs, exchange, ahead, mismatched, mixed_groups, grouped_waits, late_receiver],
        named![
            messages_of_every_size_arrive_between_all_ranks,
            group_accepts_sends_and_receives_in_any_order,
            sender_can_be_many_messages_ahead_of_the_receiver,
            mismatched_receive_fails_and_the_next_message_arrives,
            group_accepts_collectives_and_puts,
            groups_on_streams_overlap_with_the_caller,
            send_without_a_receive_expires_and_names_the_receiver,
        ],
    )
}

fn message(from: usize, to: usize, round: usize, len: usize) -> Vec<u32> {
    let seed = hash(&[from as u64, to as u64, round as u64]) as u32;
    (0..len as u32).map(|i| seed.wrapping_add(i)).collect()
}

fn rank(index: usize) -> Rank {
    Rank::new(index as u32)
}

/// Numbers of elements around the limits of each transport of the host backend: one slot of a
/// mailbox, several slots, and by address.
const LENS: [usize; 13] = [0, 1, 2, 100, 2047, 2048, 2049, 4096, 4097, 8192, 10_000, 70_000, 300_001];

/// Sends messages between all ranks of a team. Argument: the shape of the team.
fn pairs(seat: &Seat) {
    let world = seat.join();
    let Some(team) = team_of(&world, &seat.args) else {
        let _ = world.finalize().unwrap();
        return;
    };
    let (n, me) = (team.size(), team.my_rank().index());
    let stream = world.stream().unwrap();
    for (round, len) in LENS.into_iter().enumerate() {
        for from in 0..n {
            for to in (0..n).filter(|&to| to != from) {
                if me == from {
                    let sent = message(from, to, round, len);
                    match (round + to) % 2 {
                        0 => team.send_blocking(&sent, rank(to)).unwrap(),
                        _ => team.send(&stream, &Buffer::from(sent), rank(to)).unwrap().wait().unwrap(),
                    }
                }
                if me == to {
                    let received = match (round + from) % 2 {
                        0 => {
                            let mut into = vec![7; len];
                            team.recv_blocking(&mut into, rank(from)).unwrap();
                            into
                        }
                        _ => {
                            let into = Buffer::zeroed(len);
                            team.recv(&stream, &into, rank(from)).unwrap().wait().unwrap();
                            into.to_vec()
                        }
                    };
                    assert!(
                        received == message(from, to, round, len),
                        "the message of {len} elements from {from} to {to} is wrong"
                    );
                }
            }
        }
    }
    // A PE can send to itself only inside a group.
    let error = team.send_blocking(&[1u32], team.my_rank()).unwrap_err();
    assert!(matches!(error.misuse(), Some(MisuseKind::Value { argument: "peer", .. })), "{error}");
    let _ = world.finalize().unwrap();
}

fn messages_of_every_size_arrive_between_all_ranks() {
    Job::new("pairs", 2).args("world").everywhere();
    Job::new("pairs", 4).args("reversed").everywhere();
    Job::new("pairs", 5).args("every_second").on_processes();
}

fn exchange(seat: &Seat) {
    let world = seat.join();
    let team = world.team();
    let (n, me) = (team.size(), team.my_rank().index());
    let stream = world.stream().unwrap();
    for (round, len) in LENS.into_iter().enumerate() {
        let sent: Vec<Vec<u32>> = (0..n).map(|to| message(me, to, round, len)).collect();
        let check = |received: &[Vec<u32>], how: &str| {
            for (from, received) in received.iter().enumerate() {
                assert!(
                    *received == message(from, me, round, len),
                    "{how}: the message of {len} elements from {from} to {me} is wrong"
                );
            }
        };
        // Even ranks send first, odd ranks receive first; each rank has its own order of peers,
        // including itself.
        let order: Vec<usize> = (0..n).map(|i| (i * (1 + me % 2) + me) % n).collect();
        let mut order_all: Vec<usize> = order.clone();
        order_all.sort_unstable();
        let order = if order_all.windows(2).all(|pair| pair[0] != pair[1]) { order } else { (0..n).collect() };
        let mut received = vec![vec![0u32; len]; n];
        team.group_blocking(|group| {
            if me.is_multiple_of(2) {
                order.iter().try_for_each(|&to| group.send(&sent[to], rank(to)))?;
            }
            received.iter_mut().enumerate().rev().try_for_each(|(from, into)| group.recv(into, rank(from)))?;
            if !me.is_multiple_of(2) {
                order.iter().try_for_each(|&to| group.send(&sent[to], rank(to)))?;
            }
            Ok(())
        })
        .unwrap();
        check(&received, "slices");

        let [from, into] = [world.alloc::<u32>(n * len).unwrap(), world.alloc::<u32>(n * len).unwrap()];
        from.copy_from(&sent.concat()).unwrap();
        let part = |of: &peerweave::Symmetric<u32>, i: usize| of.slice(i * len..(i + 1) * len).unwrap();
        team.group(&stream, |group| {
            (0..n).try_for_each(|i| group.recv(&part(&into, i), rank(i)))?;
            (0..n).try_for_each(|i| group.send(&part(&from, i), rank(i)))
        })
        .unwrap()
        .wait()
        .unwrap();
        let received: Vec<Vec<u32>> = (0..n).map(|i| part(&into, i).to_vec().unwrap()).collect();
        check(&received, "symmetric");
        from.release().unwrap();
        into.release().unwrap();
    }
    assert!(world.finalize().unwrap().is_clean());
}

fn group_accepts_sends_and_receives_in_any_order() {
    for n_pes in [1, 2, 3, 5] {
        Job::new("exchange", n_pes).on_threads();
        Job::new("exchange", n_pes).on_processes();
        Job::new("exchange", n_pes).without_attach().on_processes();
    }
}

fn ahead(seat: &Seat) {
    let world = seat.join();
    let team = world.team();
    let stream = world.stream().unwrap();
    let me = team.my_rank().index();
    let lens = |i: usize| hash(&[i as u64]) as usize % 5000;
    if me == 0 {
        let started = Instant::now();
        let tickets: Vec<_> =
            (0..400).map(|i| team.send(&stream, &Buffer::from(message(0, 1, i, lens(i))), rank(1)).unwrap()).collect();
        // A call on an idle stream may block briefly, but does not wait for the receiver.
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "the calls returned after {:?}, expected less than 20 s",
            started.elapsed()
        );
        team.barrier_blocking().unwrap();
        tickets.iter().for_each(|ticket| ticket.wait().unwrap());
    } else {
        team.barrier_blocking().unwrap();
        for i in 0..400 {
            let mut into = vec![0; lens(i)];
            team.recv_blocking(&mut into, rank(0)).unwrap();
            assert!(into == message(0, 1, i, lens(i)), "message {i} is wrong");
        }
    }
    stream.synchronize().unwrap();
    let _ = world.finalize().unwrap();
}

fn sender_can_be_many_messages_ahead_of_the_receiver() {
    Job::new("ahead", 2).on_threads();
    Job::new("ahead", 2).on_processes();
    Job::new("ahead", 2).without_attach().on_processes();
}

/// Sends messages whose count or type differs from the receive, by each transport. After each of
/// them, sends a message that matches.
fn mismatched(seat: &Seat) {
    let world = seat.join();
    let team = world.team();
    let me = team.my_rank().index();
    let fits = |round: usize| {
        let sent = message(0, 1, round, 3000);
        if me == 0 {
            team.send_blocking(&sent, rank(1)).unwrap();
        } else {
            let mut into = vec![0u32; 3000];
            team.recv_blocking(&mut into, rank(0)).unwrap();
            assert!(into == sent, "the message after mismatch {round} is wrong");
        }
    };
    let is_mismatch = |result: peerweave::Result<()>, what: &str| {
        let error = result.expect_err(what);
        assert!(matches!(error, Error::Mismatch(_)), "{what}: {error}");
        assert_eq!(error.blamed(), [peerweave::Pe::new(1 - me as u32)], "{what}");
    };
    let mut round = 0;
    for (sent, received) in [(3, 4), (4, 3), (0, 1), (1, 0), (5000, 1), (1, 5000), (100_000, 2), (2, 100_000), (100_000, 99_999)]
    {
        for symmetric in [false, true] {
            let here = world.alloc::<u32>(sent.max(received)).unwrap();
            if me == 0 {
                // The send of a small message completes before the receive. The send of a large
                // message fails together with the receive.
                let ended = if symmetric {
                    team.send_blocking(&here.slice(..sent).unwrap(), rank(1))
                } else {
                    team.send_blocking(&vec![1u32; sent], rank(1))
                };
                if let Err(error) = ended {
                    is_mismatch(Err(error), "send");
                }
            } else {
                let ended = if symmetric {
                    team.recv_blocking(&here.slice(..received).unwrap(), rank(0))
                } else {
                    team.recv_blocking(&mut vec![0u32; received], rank(0))
                };
                is_mismatch(ended, &format!("recv of {received} elements of a message of {sent}"));
            }
            fits(round);
            round += 1;
            here.release().unwrap();
        }
    }
    // The same number of elements and bytes, of another type.
    if me == 0 {
        team.send_blocking(&[1.0f32; 8], rank(1)).unwrap();
    } else {
        is_mismatch(team.recv_blocking(&mut [0u32; 8], rank(0)), "another type");
    }
    fits(round);
    assert!(world.finalize().unwrap().is_clean());
}

fn mismatched_receive_fails_and_the_next_message_arrives() {
    Job::new("mismatched", 2).on_threads();
    Job::new("mismatched", 2).on_processes();
    Job::new("mismatched", 2).without_attach().on_processes();
}

fn mixed_groups(seat: &Seat) {
    let world = seat.join();
    let team = world.team();
    let (n, me) = (team.size(), team.my_rank().index());
    let [a, b, c] = [0; 3].map(|_| world.alloc_zeroed::<u64>(n).unwrap());
    let words = world.alloc_zeroed::<u64>(1).unwrap();
    let word = words.signal(0).unwrap();
    let stream = world.stream().unwrap();
    for round in 0..30u64 {
        let mine = [round + me as u64];
        let mut sum = [0u64];
        let mut left = [0u64];
        let (right, my_part) = (rank((me + 1) % n), a.slice(me..me + 1).unwrap());
        team.group_blocking(|group| {
            group.all_reduce(&mine, &mut sum, ReduceOp::Sum)?;
            group.put_signal(&mine, &my_part, word.add(1), right)?;
            group.recv(&mut left, rank((me + n - 1) % n))?;
            group.send(&mine, right)?;
            group.barrier()
        })
        .unwrap();
        assert_eq!(sum[0], (0..n as u64).map(|pe| round + pe).sum());
        assert_eq!(left[0], round + ((me + n - 1) % n) as u64);
        assert_eq!(words.load(0).unwrap(), round + 1);
        b.store(me, round).unwrap();
        let all = c.clone();
        team.group(&stream, |group| {
            group.all_gather(&b.slice(me..me + 1).unwrap(), &all)?;
            group.broadcast_in_place(&a.slice(0..1).unwrap(), rank(0))
        })
        .unwrap()
        .wait()
        .unwrap();
        assert_eq!(c.to_vec().unwrap(), vec![round; n]);
        // An empty group does nothing, and a group whose closure fails runs nothing.
        team.group_blocking(|_| Ok(())).unwrap();
        let failed = team.group_blocking(|group| {
            group.send(&mine, right)?;
            group.send(&mine, rank(n))
        });
        assert!(matches!(failed.unwrap_err().misuse(), Some(MisuseKind::Rank { .. })));
        team.barrier_blocking().unwrap();
    }
    for buffer in [a, b, c, words] {
        buffer.release().unwrap();
    }
    let _ = world.finalize().unwrap();
}

fn group_accepts_collectives_and_puts() {
    for n_pes in [1, 2, 4] {
        Job::new("mixed_groups", n_pes).on_threads();
        Job::new("mixed_groups", n_pes).on_processes();
    }
}

/// Waits for peers in a group on a stream while the caller communicates with other ranks.
fn grouped_waits(seat: &Seat) {
    fn ring(team: &Team, world: &World, round: usize) {
        let stream = world.stream().unwrap();
        let (n, me) = (team.size(), team.my_rank().index());
        let len = LENS[round % LENS.len()];
        let [from, into] = [Buffer::from(message(me, 9, round, len)), Buffer::zeroed(len)];
        let ticket = team
            .group(&stream, |group| {
                group.recv(&into, rank((me + n - 1) % n))?;
                group.send(&from, rank((me + 1) % n))
            })
            .unwrap();
        drop(from);
        let mut all = vec![0u64; n];
        team.all_gather_blocking(&[round as u64], &mut all).unwrap();
        assert!(all.iter().all(|&x| x == round as u64));
        ticket.wait().unwrap();
        assert!(into.to_vec() == message((me + n - 1) % n, 9, round, len));
    }
    let world = seat.join();
    (0..40).for_each(|round| ring(world.team(), &world, round));
    let _ = world.finalize().unwrap();
}

fn groups_on_streams_overlap_with_the_caller() {
    for n_pes in [2, 5] {
        Job::new("grouped_waits", n_pes).on_threads();
        Job::new("grouped_waits", n_pes).on_processes();
        Job::new("grouped_waits", n_pes).without_attach().on_processes();
    }
}

fn late_receiver(seat: &Seat) {
    let world = seat.join();
    let team = world.team();
    if team.my_rank().index() == 0 {
        let started = Instant::now();
        let error = team.send_blocking(&vec![1u8; 100_000], rank(1)).unwrap_err();
        assert!(matches!(&error, Error::Timeout(timeout) if timeout.call == "send"), "{error}");
        assert_eq!(error.blamed(), [peerweave::Pe::new(1)]);
        assert!(started.elapsed() >= Duration::from_secs(5) && started.elapsed() < Duration::from_secs(20));
        say("timed out");
    }
    // PE 1 sleeps until the scenario ends it.
    std::thread::sleep(Duration::from_secs(60));
}

fn send_without_a_receive_expires_and_names_the_receiver() {
    let mut running = Job::new("late_receiver", 2).deadline(Duration::from_secs(5)).start();
    assert_eq!(running.line(0), "timed out");
}
