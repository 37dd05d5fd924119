//! Tests of the protocols among threads, on the atomics of Rust: many epochs, epochs that wrap, and
//! waits that fail.

use peerweave_device::barrier;
use peerweave_device::mailbox::{self, Answer, Slot};
use peerweave_device::put_signal::{self, EXCLUDE_NONE, Several};
use peerweave_device::{Pause, flag, pause, word};
use peerweave_types::{Compare, Rank, SignalOp};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of epochs of each scenario; smaller under Miri, which is slow.
const EPOCHS: u64 = if cfg!(miri) { 20 } else { 2_000 };

/// The epoch before the first epoch of a scenario. Its value makes the epochs wrap in the middle of
/// the scenario.
const BEFORE: u64 = 0u64.wrapping_sub(EPOCHS / 2);

fn epochs() -> impl Iterator<Item = u64> {
    (1..=EPOCHS).map(|n| BEFORE.wrapping_add(n))
}

fn words(n: usize, value: u64) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(value)).collect()
}

/// Returns a pause that yields to other threads, and fails after a minute.
fn patient() -> impl Pause<Error = &'static str> {
    let end = Instant::now() + Duration::from_secs(60);
    pause::from_fn(move || {
        std::thread::yield_now();
        if Instant::now() < end { Ok(()) } else { Err("timed out after 60 s") }
    })
}

/// Returns a pause that fails after `looks` calls.
fn impatient(mut looks: u32) -> impl Pause<Error = &'static str> {
    pause::from_fn(move || {
        looks = looks.checked_sub(1).ok_or("no polls remain")?;
        Ok(())
    })
}

/// Calls `body` for each rank of a team, each on its own thread.
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
fn epoch_order_is_correct_across_wraparound() {
    for epoch in [0, 1, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX] {
        assert!(flag::at_or_after(epoch, epoch));
        assert!(flag::at_or_after(epoch.wrapping_add(1), epoch));
        assert!(!flag::at_or_after(epoch, epoch.wrapping_add(1)));
        assert!(flag::at_or_after(epoch.wrapping_add(i64::MAX as u64), epoch));
        assert!(!flag::at_or_after(epoch.wrapping_add(1 << 63), epoch));
    }
}

#[test]
fn wait_returns_at_once_if_the_epoch_has_been_posted() {
    let word = AtomicU64::new(0);
    flag::post(&word, 3);
    for epoch in 0..=3 {
        flag::wait(&word, epoch, &mut impatient(0)).unwrap();
    }
    assert_eq!(flag::wait(&word, 4, &mut impatient(5)), Err("no polls remain"));
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "flag: the posted epoch decreased, expected the same or a later one")]
fn posting_a_decreasing_epoch_panics_in_debug_builds() {
    let word = AtomicU64::new(3);
    flag::post(&word, 2);
}

/// Checks that `sync` is a barrier: in each epoch each rank writes the epoch to its own cell, calls
/// `sync`, and expects the epoch in all cells.
fn check_that_all_ranks_are_in_one_epoch(ranks: usize, sync: impl Fn(usize, u64) + Sync) {
    let cells = [words(ranks, 0), words(ranks, 0)];
    team(ranks, |rank| {
        for epoch in epochs() {
            let cells = &cells[(epoch & 1) as usize];
            cells[rank].store(epoch, Ordering::Relaxed);
            sync(rank, epoch);
            for cell in cells {
                assert_eq!(cell.load(Ordering::Relaxed), epoch);
            }
        }
    });
}

#[test]
fn barrier_synchronises_ranks_across_epoch_wraparound() {
    let ranks = 3;
    let words = words(ranks * ranks, BEFORE);
    check_that_all_ranks_are_in_one_epoch(ranks, |rank, epoch| {
        barrier::announce(&word::from_fn(ranks, |target| &words[target * ranks + rank]), epoch);
        barrier::wait(&words[rank * ranks..][..ranks], epoch, &mut patient()).unwrap();
    });
}

#[test]
fn timed_out_barrier_can_resume_after_missing_ranks_arrive() {
    let words = words(4 * 4, 0);
    let arrive = |rank: usize| barrier::announce(&word::from_fn(4, |target| &words[target * 4 + rank]), 1);
    let mine = &words[..4];
    arrive(2);
    arrive(0);
    assert_eq!(barrier::wait(mine, 1, &mut impatient(9)), Err("no polls remain"));
    assert_eq!(ranks_of(barrier::missing(mine, 1)), [1, 3]);
    arrive(1);
    arrive(3);
    barrier::wait(mine, 1, &mut impatient(0)).unwrap();
    assert_eq!(barrier::missing(mine, 1).next(), None);
}

#[test]
fn data_put_before_a_signal_is_visible_after_the_signal() {
    let (signal, answer, data) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    team(2, |rank| {
        for n in 1..=EPOCHS {
            if rank == 0 {
                data.store(n * 3, Ordering::Relaxed);
                put_signal::signal(&signal, 1, SignalOp::Add);
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
fn signal_addition_wraps_on_overflow() {
    let word = AtomicU64::new(u64::MAX);
    put_signal::signal(&word, 3, SignalOp::Add);
    assert_eq!(put_signal::test(&word, Compare::Eq, 2), Some(2));
    assert_eq!(put_signal::test(&word, Compare::Gt, 2), None);
}

#[test]
fn wait_and_test_functions_find_only_the_matching_words() {
    let words = words(5, 0);
    let several = Several { words: words.as_slice(), exclude: |index| index == 1, compare: Compare::Ge, value: 5 };
    let some = || {
        let mut found = Vec::new();
        (several.test_some(|index, seen| found.push((index, seen))), found)
    };
    words[1].store(9, Ordering::Relaxed);
    assert_eq!((several.test_all(), several.test_any(), some()), (false, None, (0, vec![])));
    assert_eq!(several.wait_any(&mut impatient(4)), Err("no polls remain"));
    assert_eq!(
        several.wait_some(&mut impatient(4), |_, _| panic!("called although no word satisfies the comparison")),
        Err("no polls remain")
    );
    words[4].store(5, Ordering::Relaxed);
    words[2].store(6, Ordering::Relaxed);
    assert_eq!((several.test_all(), several.test_any(), some()), (false, Some(2), (2, vec![(2, 6), (4, 5)])));
    assert_eq!(several.wait_any(&mut impatient(0)), Ok(Some(2)));
    assert_eq!(several.wait_some(&mut impatient(0), |_, _| ()), Ok(2));
    assert_eq!(several.wait_all(&mut impatient(4)), Err("no polls remain"));
    words[0].store(7, Ordering::Relaxed);
    words[3].store(7, Ordering::Relaxed);
    assert!(several.test_all());
    assert_eq!(several.wait_all(&mut impatient(0)), Ok(Some(5)));
}

#[test]
fn waits_return_immediately_if_all_words_are_excluded() {
    let words = words(2, 0);
    let excluded = Several { words: words.as_slice(), exclude: |_| true, compare: Compare::Ne, value: 0 };
    let empty = Several { words: &words[..0], exclude: EXCLUDE_NONE, compare: Compare::Ne, value: 0 };
    assert!(excluded.all_excluded() && excluded.test_all() && empty.all_excluded() && empty.test_all());
    assert_eq!((excluded.wait_all(&mut impatient(0)), empty.wait_all(&mut impatient(0))), (Ok(None), Ok(None)));
    assert_eq!((excluded.wait_any(&mut impatient(0)), empty.wait_any(&mut impatient(0))), (Ok(None), Ok(None)));
    assert_eq!(excluded.wait_some(&mut impatient(0), |_, _| ()), Ok(0));
}

/// Number of words of a slot: the number of the message, three words of payload, the answer.
const SLOT: usize = 5;

fn slot(words: &[AtomicU64], number: u64) -> Slot<'_, AtomicU64> {
    let words = &words[mailbox::index(number, words.len() / SLOT) * SLOT..][..SLOT];
    Slot { number: &words[0], payload: &words[1..4], answer: &words[4] }
}

fn message(number: u64) -> [u64; 3] {
    [number, !number, number.rotate_left(9)]
}

#[test]
fn mailbox_messages_arrive_in_order_and_intact() {
    for capacity in [1, 3, 8] {
        let words = words(capacity * SLOT, 0);
        team(2, |rank| {
            for number in 1..=EPOCHS {
                let slot = slot(&words, number);
                if rank == 0 {
                    while slot.free_for(number, capacity).is_none() {
                        std::thread::yield_now();
                    }
                    slot.publish(number, &message(number));
                } else {
                    let mut got = [0; 3];
                    while !slot.read(number, &mut got) {
                        std::thread::yield_now();
                    }
                    assert_eq!(got, message(number));
                    slot.respond(number, Answer::Accepted);
                }
            }
        });
    }
}

#[test]
fn mailbox_slot_is_free_after_the_receiver_answers() {
    let words = words(2 * SLOT, 0);
    let slot = |number| slot(&words, number);
    assert!(!slot(1).read(1, &mut []));
    for number in 1..=2 {
        assert_eq!(slot(number).free_for(number, 2), Some(Answer::Accepted));
        slot(number).publish(number, &message(number));
    }
    assert_eq!((slot(3).free_for(3, 2), slot(1).answered(1)), (None, None));
    assert!(slot(1).read(1, &mut []));
    slot(1).respond(1, Answer::Refused);
    assert_eq!((slot(1).answered(1), slot(2).answered(2)), (Some(Answer::Refused), None));
    assert_eq!(slot(3).free_for(3, 2), Some(Answer::Refused));
    slot(3).publish(3, &message(3));
    slot(3).respond(3, Answer::Accepted);
    assert_eq!(slot(1).answered(1), Some(Answer::Accepted), "slot 1 has answered message 3, so message 1 counts as accepted");
}

#[test]
fn receiver_detects_that_the_sender_withdrew_the_message() {
    let words = words(SLOT, 0);
    let slot = slot(&words, 1);
    slot.publish(1, &message(1));
    assert!(!slot.is_withdrawn());
    slot.withdraw();
    let mut got = [0];
    assert!(slot.is_withdrawn() && slot.read(1, &mut got));
    assert_eq!(got, [mailbox::WITHDRAWN]);
}

#[test]
#[should_panic(expected = "the message has 4 words, expected at most 3")]
fn publishing_an_oversized_message_panics() {
    slot(&words(SLOT, 0), 1).publish(1, &[0; 4]);
}
