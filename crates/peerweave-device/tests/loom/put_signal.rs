//! Model of puts that are followed by a signal.

use crate::words::{Exact, NoAcquire, NoRelease, RmwNoRelease, TestWord};
use crate::{GaveUp, Patience, Plain, Team, check, refuted, several};
use peerweave_device::put_signal::{self, EXCLUDE_NONE, Several};
use peerweave_types::{Compare, SignalOp};

/// Rank 0 writes two cells, and sets the signal after each. If rank 1 sees the second signal, it
/// also reads the second cell.
fn set<W: TestWord>() {
    check(
        Team::PAIR,
        || (W::default(), several::<Plain>(2)),
        |rank, (word, data)| {
            if rank == 0 {
                data[0].set(11);
                put_signal::signal(word, 1, SignalOp::Set);
                data[1].set(22);
                put_signal::signal(word, 2, SignalOp::Set);
            } else {
                let seen = put_signal::wait_until(word, Compare::Ge, 1, &mut Patience::endless())?;
                assert_eq!(data[0].get(), 11);
                if seen == 2 {
                    assert_eq!(data[1].get(), 22);
                }
            }
            Ok(())
        },
    );
}

/// Ranks 1 and 2 each write a cell and add to one signal. Rank 0 waits for both additions. The
/// release of the first addition must remain effective after the second addition.
fn add<W: TestWord>() {
    check(
        Team::of_three(3),
        || (W::default(), several::<Plain>(2)),
        |rank, (word, data)| {
            if rank == 0 {
                let seen = put_signal::wait_until(word, Compare::Eq, 2, &mut Patience::endless())?;
                assert_eq!((seen, data[0].get(), data[1].get()), (2, 101, 102));
            } else {
                data[rank - 1].set(100 + rank as u64);
                put_signal::signal(word, 1, SignalOp::Add);
            }
            Ok(())
        },
    );
}

#[test]
fn signalling_by_set_makes_earlier_data_visible() {
    set::<Exact>();
}

#[test]
fn signalling_by_add_makes_data_of_two_senders_visible() {
    add::<Exact>();
}

refuted!(a_set_that_does_not_release_is_refuted, set::<NoRelease>());
refuted!(a_wait_that_does_not_acquire_is_refuted, set::<NoAcquire>());
refuted!(an_add_that_does_not_release_is_refuted, add::<RmwNoRelease>());
refuted!(a_signal_before_its_data_is_refuted, {
    check(
        Team::PAIR,
        || (Exact::default(), Plain::default()),
        |rank, (word, data)| {
            if rank == 0 {
                put_signal::signal(word, 1, SignalOp::Set);
                data.set(1);
            } else {
                let _ = put_signal::wait_until(word, Compare::Ne, 0, &mut Patience::endless())?;
                data.get();
            }
            Ok(())
        },
    )
});

/// A wait of rank 0 for the words of ranks 1 and 2. Returns the indices of the words that satisfied
/// the comparison.
type WaitSeveral<W> = fn(&Several<&[W], fn(usize) -> bool>) -> Result<Vec<usize>, GaveUp>;

/// Ranks 1 and 2 each write a cell, and set their own signal word. Rank 0 waits by `wait`.
fn two_words<W: TestWord>(wait: WaitSeveral<W>, exclude: fn(usize) -> bool) {
    check(
        Team::of_three(3),
        || (several::<W>(2), several::<Plain>(2)),
        move |rank, (words, data)| {
            if rank == 0 {
                for seen in wait(&Several { words, exclude, compare: Compare::Eq, value: 9 })? {
                    assert!(!exclude(seen));
                    assert_eq!(data[seen].get(), seen as u64 + 5);
                }
            } else {
                data[rank - 1].set(rank as u64 + 4);
                put_signal::signal(&words[rank - 1], 9, SignalOp::Set);
            }
            Ok(())
        },
    );
}

fn all<W: TestWord>(words: &Several<&[W], fn(usize) -> bool>) -> Result<Vec<usize>, GaveUp> {
    words.wait_all(&mut Patience::endless())?;
    Ok((0..2).filter(|index| !(words.exclude)(*index)).collect())
}

fn any<W: TestWord>(words: &Several<&[W], fn(usize) -> bool>) -> Result<Vec<usize>, GaveUp> {
    let index = words.wait_any(&mut Patience::endless())?;
    Ok(vec![index.expect("wait_any returned None, expected an index (not all words are excluded)")])
}

fn some<W: TestWord>(words: &Several<&[W], fn(usize) -> bool>) -> Result<Vec<usize>, GaveUp> {
    let mut indices = Vec::new();
    let count = words.wait_some(&mut Patience::endless(), |index, seen| {
        assert_eq!(seen, 9);
        indices.push(index);
    })?;
    assert!(count > 0 && count == indices.len());
    Ok(indices)
}

#[test]
fn wait_all_makes_data_of_all_signals_visible() {
    two_words::<Exact>(all, EXCLUDE_NONE);
}

#[test]
fn wait_any_makes_data_of_the_found_signal_visible() {
    two_words::<Exact>(any, EXCLUDE_NONE);
}

#[test]
fn wait_some_makes_data_of_the_found_signals_visible() {
    two_words::<Exact>(some, EXCLUDE_NONE);
}

#[test]
fn waits_ignore_excluded_signals() {
    two_words::<Exact>(all, |index| index == 0);
    two_words::<Exact>(any, |index| index == 0);
}

refuted!(a_wait_any_that_does_not_acquire_is_refuted, two_words::<NoAcquire>(any, EXCLUDE_NONE));
refuted!(a_wait_all_that_claims_excluded_words_is_refuted, {
    two_words::<Exact>(
        |words| {
            let exclude = |index| index == 1;
            let _ = Several { words: words.words, exclude, compare: words.compare, value: words.value }
                .wait_all(&mut Patience::endless())?;
            Ok(vec![0, 1])
        },
        EXCLUDE_NONE,
    )
});
