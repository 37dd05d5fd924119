//! The protocols among threads, over the atomics of the language: many epochs, counts that wrap, waits that end.

use peerweave_device::barrier::{self, Central};
use peerweave_device::mailbox::{Consumer, Producer, Ring, Ticket};
use peerweave_device::put_signal::{self, EXCLUDE_NONE, Several};
use peerweave_device::slot::{self, Slots};
use peerweave_device::{Line, Pause, flag, pause, word};
use peerweave_types::{Compare, Rank, SignalOp};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Epochs that each scenario runs through: fewer where an interpreter runs it.
const EPOCHS: u64 = if cfg!(miri) { 20 } else { 2_000 };

/// The epoch before the first: such that the counts wrap in the middle of a scenario.
const BEFORE: u64 = 0u64.wrapping_sub(EPOCHS / 2);

fn epochs() -> impl Iterator<Item = u64> {
    (1..=EPOCHS).map(|n| BEFORE.wrapping_add(n))
}

fn words(n: usize, value: u64) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(value)).collect()
}

/// Yields, for a minute.
fn patient() -> impl Pause<Error = &'static str> {
    let end = Instant::now() + Duration::from_secs(60);
    pause::from_fn(move || {
        std::thread::yield_now();
        if Instant::now() < end { Ok(()) } else { Err("a minute is over") }
    })
}

/// Gives up after some looks.
fn impatient(mut looks: u32) -> impl Pause<Error = &'static str> {
    pause::from_fn(move || {
        looks = looks.checked_sub(1).ok_or("out of patience")?;
        Ok(())
    })
}

/// Runs each rank of a team in a thread of its own.
fn team(ranks: usize, body: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let body = &body;
            scope.spawn(move || body(rank));
        }
    });
}

fn ranks_of(missing: impl Iterator<Item = Rank>) -> Vec<u32> {
    missing.map(Rank::get).collect()
}

#[test]
fn epochs_are_compared_by_their_distance() {
    for epoch in [0, 1, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX] {
        assert!(flag::at_or_after(epoch, epoch));
        assert!(flag::at_or_after(epoch.wrapping_add(1), epoch));
        assert!(!flag::at_or_after(epoch, epoch.wrapping_add(1)));
        assert!(flag::at_or_after(epoch.wrapping_add(i64::MAX as u64), epoch));
        assert!(!flag::at_or_after(epoch.wrapping_add(1 << 63), epoch));
    }
}

#[test]
fn a_flag_is_found_without_a_pause_where_it_was_posted_before() {
    let word = AtomicU64::new(0);
    flag::post(&word, 3);
    for epoch in 0..=3 {
        flag::wait(&word, epoch, &mut impatient(0)).unwrap();
    }
    assert_eq!(flag::wait(&word, 4, &mut impatient(5)), Err("out of patience"));
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "a flag never decreases")]
fn a_flag_that_would_decrease_is_noticed_in_debug_builds() {
    let word = AtomicU64::new(3);
    flag::post(&word, 2);
}

/// Each rank counts up a cell of its own, syncs, and finds all cells equal.
fn everybody_is_in_the_same_epoch(ranks: usize, sync: impl Fn(usize, u64) + Sync) {
    let cells = [words(ranks, 0), words(ranks, 0)];
    team(ranks, |rank| {
        for epoch in epochs() {
            let cells = &cells[slot::parity(epoch)];
            cells[rank].store(epoch, Ordering::Relaxed);
            sync(rank, epoch);
            for cell in cells {
                assert_eq!(cell.load(Ordering::Relaxed), epoch);
            }
        }
    });
}

#[test]
fn flat_barrier_survives_epoch_wraparound() {
    for ranks in [1, 2, 5] {
        let words = words(ranks, BEFORE);
        everybody_is_in_the_same_epoch(ranks, |rank, epoch| {
            barrier::sync(words.as_slice(), Rank::new(rank as u32), epoch, &mut patient()).unwrap();
        });
    }
}

#[test]
fn announced_barrier_survives_epoch_wraparound() {
    let ranks = 3;
    let words = words(ranks * ranks, BEFORE);
    everybody_is_in_the_same_epoch(ranks, |rank, epoch| {
        barrier::announce(&word::from_fn(ranks, |target| &words[target * ranks + rank]), epoch);
        barrier::wait(&words[rank * ranks..][..ranks], epoch, &mut patient()).unwrap();
    });
}

#[test]
fn central_barrier_survives_epoch_wraparound() {
    for ranks in [1, 2, 5] {
        let (arrivals, generation) = (AtomicU64::new(BEFORE.wrapping_mul(ranks)), AtomicU64::new(BEFORE));
        let barrier = Central { arrivals: &arrivals, generation: &generation, ranks };
        everybody_is_in_the_same_epoch(ranks as usize, |_, epoch| barrier.sync(epoch, &mut patient()).unwrap());
        assert_eq!(generation.into_inner(), BEFORE.wrapping_add(EPOCHS));
    }
}

#[test]
fn a_barrier_that_gives_up_names_who_is_missing_and_can_be_taken_up_again() {
    let words = words(4, 0);
    let words = words.as_slice();
    barrier::arrive(words, Rank::new(2), 1);
    assert_eq!(barrier::sync(words, Rank::new(0), 1, &mut impatient(9)), Err("out of patience"));
    assert_eq!(ranks_of(barrier::missing(words, 1)), [1, 3]);
    assert!(!barrier::is_complete(words, 1));
    barrier::arrive(words, Rank::new(1), 1);
    barrier::arrive(words, Rank::new(3), 1);
    barrier::wait(words, 1, &mut impatient(0)).unwrap();
    assert!(barrier::is_complete(words, 1));
}

#[test]
#[should_panic(expected = "rank 4 arrived in a team of 4")]
fn a_rank_outside_the_team_does_not_arrive() {
    barrier::arrive(words(4, 0).as_slice(), Rank::new(4), 1);
}

#[test]
fn a_central_barrier_that_gives_up_tells_how_many_have_arrived() {
    for before in [0, u64::MAX] {
        let epoch = before.wrapping_add(1);
        let (arrivals, generation) = (AtomicU64::new(before.wrapping_mul(3)), AtomicU64::new(before));
        let barrier = Central { arrivals: &arrivals, generation: &generation, ranks: 3 };
        assert_eq!(barrier.arrived(epoch), 0);
        assert!(!barrier.arrive(epoch));
        assert_eq!(barrier.sync(epoch, &mut impatient(9)), Err("out of patience"));
        assert_eq!(barrier.arrived(epoch), 2);
        assert!(barrier.arrive(epoch));
        barrier.wait(epoch, &mut impatient(0)).unwrap();
        assert_eq!((barrier.arrived(epoch), barrier.arrived(epoch.wrapping_add(1))), (3, 0));
    }
}

/// Words of a line: the sequence and three of payload.
const LINE: usize = 4;

fn slots(words: &[AtomicU64]) -> impl Slots<Word = AtomicU64> + '_ {
    slot::from_fn(words.len() / (2 * LINE), |rank, parity| Line::from_words(&words[(2 * rank + parity) * LINE..][..LINE]))
}

/// Lines of which those of the parity of `BEFORE` hold that epoch, and the others the one before.
fn slot_words(ranks: usize) -> Vec<AtomicU64> {
    let words = words(2 * LINE * ranks, 0);
    for rank in 0..ranks {
        for epoch in [BEFORE.wrapping_sub(1), BEFORE] {
            slots(&words).slot(rank, slot::parity(epoch)).sequence.store(epoch, Ordering::Relaxed);
        }
    }
    words
}

fn payload(rank: usize, epoch: u64) -> [u64; 3] {
    [epoch, !epoch, epoch.rotate_left(rank as u32)]
}

#[test]
fn slots_hand_over_whole_payloads_while_epochs_wrap() {
    for ranks in [2, 4] {
        let words = slot_words(ranks);
        team(ranks, |rank| {
            let slots = slots(&words);
            for epoch in epochs() {
                slot::publish(&slots, Rank::new(rank as u32), epoch, &payload(rank, epoch));
                for other in 0..ranks {
                    let mut got = [0; 3];
                    slot::read(&slots, Rank::new(other as u32), epoch, &mut got, &mut patient()).unwrap();
                    assert_eq!(got, payload(other, epoch));
                }
            }
        });
    }
}

#[test]
fn a_broadcast_is_not_overwritten_before_the_slowest_has_read_it() {
    let ranks = 3;
    let words = slot_words(ranks);
    team(ranks, |rank| {
        let slots = slots(&words);
        for (turn, epoch) in epochs().enumerate() {
            let root = turn / 7 % ranks;
            slot::ready(&slots, epoch, &mut patient()).unwrap();
            if rank == root {
                slot::publish(&slots, Rank::new(rank as u32), epoch, &payload(rank, epoch));
            } else {
                slot::publish(&slots, Rank::new(rank as u32), epoch, &[]);
                let mut got = [0; 3];
                slot::read(&slots, Rank::new(root as u32), epoch, &mut got, &mut patient()).unwrap();
                assert_eq!(got, payload(root, epoch));
            }
        }
    });
}

#[test]
fn slots_name_who_has_not_published_and_hold_back_until_then() {
    let words = words(2 * LINE * 3, 0);
    let slots = slots(&words);
    assert!(slot::is_ready(&slots, 1), "the first epoch may be published at once");
    slot::publish(&slots, Rank::new(1), 1, &[7]);
    assert_eq!(ranks_of(slot::missing(&slots, 1)), [0, 2]);
    assert!(!slot::is_ready(&slots, 2));
    assert_eq!(slot::ready(&slots, 2, &mut impatient(3)), Err("out of patience"));
    let mut got = [0];
    assert_eq!(slot::read(&slots, Rank::new(0), 1, &mut got, &mut impatient(3)), Err("out of patience"));
    slot::read(&slots, Rank::new(1), 1, &mut got, &mut impatient(0)).unwrap();
    assert_eq!(got, [7]);
    slot::publish(&slots, Rank::new(0), 1, &[]);
    slot::publish(&slots, Rank::new(2), 1, &[]);
    slot::ready(&slots, 2, &mut impatient(0)).unwrap();
}

#[test]
#[should_panic(expected = "a payload of 4 words for a line of 3")]
fn a_payload_that_does_not_fit_is_not_cut() {
    slot::publish(&slots(&words(2 * LINE, 0)), Rank::new(0), 1, &[0; 4]);
}

#[test]
fn data_put_before_a_signal_is_there_when_the_signal_is_seen() {
    let (signal, answer, data) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    team(2, |rank| {
        for n in 1..=EPOCHS {
            if rank == 0 {
                put_signal::put_with_signal(|| data.store(n * 3, Ordering::Relaxed), &signal, 1, SignalOp::Add);
                put_signal::wait_until(&answer, Compare::Eq, n, &mut patient()).unwrap();
            } else {
                assert_eq!(put_signal::wait_until(&signal, Compare::Ge, n, &mut patient()), Ok(n));
                assert_eq!(data.load(Ordering::Relaxed), n * 3);
                put_signal::signal(&answer, n, SignalOp::Set);
            }
        }
    });
}

#[test]
fn a_signal_that_is_added_wraps() {
    let word = AtomicU64::new(u64::MAX);
    put_signal::signal(&word, 3, SignalOp::Add);
    assert_eq!(put_signal::test(&word, Compare::Eq, 2), Some(2));
    assert_eq!(put_signal::test(&word, Compare::Gt, 2), None);
}

#[test]
fn several_signals_are_awaited_all_any_or_some() {
    let words = words(5, 0);
    let several = Several { words: words.as_slice(), exclude: |index| index == 1, compare: Compare::Ge, value: 5 };
    let some = || {
        let mut found = Vec::new();
        (several.test_some(|index, seen| found.push((index, seen))), found)
    };
    words[1].store(9, Ordering::Relaxed);
    assert_eq!((several.test_all(), several.test_any(), some()), (false, None, (0, vec![])));
    assert_eq!(several.wait_any(&mut impatient(4)), Err("out of patience"));
    assert_eq!(several.wait_some(&mut impatient(4), |_, _| panic!("none satisfies")), Err("out of patience"));
    words[4].store(5, Ordering::Relaxed);
    words[2].store(6, Ordering::Relaxed);
    assert_eq!((several.test_all(), several.test_any(), some()), (false, Some(2), (2, vec![(2, 6), (4, 5)])));
    assert_eq!(several.wait_any(&mut impatient(0)), Ok(Some(2)));
    assert_eq!(several.wait_some(&mut impatient(0), |_, _| ()), Ok(2));
    assert_eq!(several.wait_all(&mut impatient(4)), Err("out of patience"));
    words[0].store(7, Ordering::Relaxed);
    words[3].store(7, Ordering::Relaxed);
    assert!(several.test_all());
    assert_eq!(several.wait_all(&mut impatient(0)), Ok(Some(5)));
}

#[test]
fn waits_are_over_at_once_where_all_words_are_excluded_or_there_are_none() {
    let words = words(2, 0);
    let excluded = Several { words: words.as_slice(), exclude: |_| true, compare: Compare::Ne, value: 0 };
    let empty = Several { words: &words[..0], exclude: EXCLUDE_NONE, compare: Compare::Ne, value: 0 };
    assert!(excluded.all_excluded() && excluded.test_all() && empty.all_excluded() && empty.test_all());
    assert_eq!((excluded.wait_all(&mut impatient(0)), empty.wait_all(&mut impatient(0))), (Ok(None), Ok(None)));
    assert_eq!((excluded.wait_any(&mut impatient(0)), empty.wait_any(&mut impatient(0))), (Ok(None), Ok(None)));
    assert_eq!(excluded.wait_some(&mut impatient(0), |_, _| ()), Ok(0));
}

fn ring<'a>(words: &'a [AtomicU64]) -> Ring<'a, AtomicU64, impl Fn(usize) -> Line<'a, AtomicU64>> {
    let (acknowledged, lines) = words.split_first().unwrap();
    Ring::new(lines.len() / LINE, |index| Line::from_words(&lines[index * LINE..][..LINE]), acknowledged)
}

#[test]
fn messages_arrive_in_order_and_whole_while_the_counts_wrap() {
    for capacity in [1, 2, 8] {
        let words = words(1 + capacity * LINE, BEFORE);
        team(2, |rank| {
            let ring = ring(&words);
            if rank == 0 {
                let mut producer = Producer::resume(BEFORE);
                for message in 0..EPOCHS {
                    while producer.try_push(&ring, &payload(1, message)).is_none() {
                        std::thread::yield_now();
                    }
                }
                while producer.in_flight(&ring) > 0 {
                    std::thread::yield_now();
                }
            } else {
                let mut consumer = Consumer::resume(BEFORE);
                for message in 0..EPOCHS {
                    let mut got = [0; 3];
                    let ticket = loop {
                        match consumer.try_pop(&ring, &mut got) {
                            Some(ticket) => break ticket,
                            None => std::thread::yield_now(),
                        }
                    };
                    assert_eq!(ticket.get(), BEFORE.wrapping_add(message));
                    assert_eq!(got, payload(1, message));
                    consumer.acknowledge(&ring, ticket);
                }
            }
        });
    }
}

#[test]
fn a_mailbox_is_full_until_its_oldest_message_is_acknowledged() {
    let words = words(1 + 2 * LINE, 0);
    let (ring, mut producer, mut consumer) = (ring(&words), Producer::new(), Consumer::new());
    let mut got = [0];
    assert_eq!(consumer.try_pop(&ring, &mut got), None);
    let sent: Vec<Ticket> = (10..12).map(|n| producer.try_push(&ring, &[n]).unwrap()).collect();
    assert_eq!(producer.try_push(&ring, &[12]), None);
    let popped: Vec<Ticket> = (0..2).map(|_| consumer.try_pop(&ring, &mut got).unwrap()).collect();
    assert_eq!((consumer.try_pop(&ring, &mut got), consumer.unacknowledged()), (None, 2));
    assert_eq!(producer.try_push(&ring, &[12]), None, "popped is not acknowledged");
    consumer.acknowledge(&ring, popped[0]);
    assert_eq!(sent.iter().map(|ticket| producer.is_acknowledged(&ring, *ticket)).collect::<Vec<_>>(), [true, false]);
    assert!(producer.try_push(&ring, &[12]).is_some());
    let last = consumer.try_pop(&ring, &mut got).unwrap();
    assert_eq!(got, [12]);
    consumer.acknowledge(&ring, last);
    assert!(producer.is_acknowledged(&ring, sent[1]), "with one message, all before it are acknowledged");
    assert_eq!((producer.in_flight(&ring), consumer.unacknowledged()), (0, 0));
}

#[test]
#[should_panic(expected = "descriptor 0 is acknowledged; those under way are 1..1")]
fn a_message_is_not_acknowledged_twice() {
    let words = words(1 + LINE, 0);
    let (ring, mut producer, mut consumer) = (ring(&words), Producer::new(), Consumer::new());
    producer.try_push(&ring, &[]).unwrap();
    let ticket = consumer.try_pop(&ring, &mut []).unwrap();
    consumer.acknowledge(&ring, ticket);
    consumer.acknowledge(&ring, ticket);
}

#[test]
#[should_panic(expected = "a mailbox of 3 lines: must be a power of two")]
fn a_mailbox_of_three_lines_is_refused() {
    ring(&words(1 + 3 * LINE, 0));
}
