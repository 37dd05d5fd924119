//! Payloads change hands in two lines per rank, which are used again and again.

use crate::words::{Exact, NoAcquire, NoRelease, TestWord};
use crate::{GaveUp, Patience, Plain, Team, check, refuted, several};
use peerweave_device::slot::{self, Slots};
use peerweave_device::{Line, Pause, Word};
use peerweave_types::Rank;

/// Words of a line: the sequence and two of payload, so that one can be new and the other old.
const LINE: usize = 3;

fn slots<W: TestWord>(words: &[W]) -> impl Slots<Word = W> + '_ {
    slot::from_fn(words.len() / (2 * LINE), |rank, parity| Line::from_words(&words[(2 * rank + parity) * LINE..][..LINE]))
}

/// The payload of a rank in an epoch: two words that belong together.
fn payload(rank: usize, epoch: u64) -> [u64; 2] {
    [epoch * 10 + rank as u64, epoch * 1000 + rank as u64]
}

/// Every rank publishes and reads every other; nothing else holds a rank back. A cell of each rank is handed over beside its
/// payload, to see that reading is ordered before the next but one is written.
fn everybody_reads_everybody<W: TestWord>(team: Team, epochs: u64) {
    check(
        team,
        move || (several::<W>(2 * LINE * team.ranks), [several::<Plain>(team.ranks), several::<Plain>(team.ranks)]),
        move |rank, (words, cells)| {
            let slots = slots(words);
            for epoch in 1..=epochs {
                let cells = &cells[slot::parity(epoch)];
                cells[rank].set(epoch);
                slot::publish(&slots, Rank::new(rank as u32), epoch, &payload(rank, epoch));
                for other in (0..team.ranks).filter(|other| *other != rank) {
                    let mut got = [0; 2];
                    slot::read(&slots, Rank::new(other as u32), epoch, &mut got, &mut team.patience())?;
                    assert_eq!(got, payload(other, epoch), "torn or overwritten");
                    assert_eq!(cells[other].get(), epoch);
                }
            }
            Ok(())
        },
    );
}

#[test]
fn payloads_of_two_pes_are_whole_over_four_epochs() {
    everybody_reads_everybody::<Exact>(Team::PAIR, 4);
}

#[test]
fn payloads_of_three_pes_are_whole_when_a_line_is_used_again() {
    everybody_reads_everybody::<Exact>(Team::of_three(1), 3);
}

refuted!(a_slot_that_does_not_release_is_refuted, everybody_reads_everybody::<NoRelease>(Team::PAIR, 3));
refuted!(a_slot_that_does_not_acquire_is_refuted, everybody_reads_everybody::<NoAcquire>(Team::PAIR, 3));

/// The same, with nothing handed over but the payload: the checker's memory shows old words of a line where the orderings allow
/// it.
fn payloads_alone<W: TestWord>() {
    check(
        Team::PAIR,
        || several::<W>(4 * LINE),
        |rank, words| {
            let slots = slots(words);
            for epoch in 1..=3 {
                slot::publish(&slots, Rank::new(rank as u32), epoch, &payload(rank, epoch));
                let other = 1 - rank;
                let mut got = [0; 2];
                slot::read(&slots, Rank::new(other as u32), epoch, &mut got, &mut Patience::endless())?;
                assert_eq!(got, payload(other, epoch), "torn or overwritten");
            }
            Ok(())
        },
    );
}

#[test]
fn payloads_alone_are_whole() {
    payloads_alone::<Exact>();
}

refuted!(a_payload_that_is_not_released_is_refuted, "torn or overwritten", payloads_alone::<NoRelease>());

refuted!(a_payload_that_is_not_acquired_is_refuted, "torn or overwritten", payloads_alone::<NoAcquire>());

/// Holds a rank back before it publishes an epoch in these words.
type HoldBack<W> = fn(&[W], u64, &mut Patience) -> Result<(), GaveUp>;

/// Rank 0 broadcasts a payload, and a cell beside it; the others publish nothing but that they have come, and read rank 0 alone.
/// `hold_back` runs before each publication.
fn broadcast<W: TestWord>(team: Team, epochs: u64, hold_back: HoldBack<W>, patience: Patience) {
    check(
        team,
        move || (several::<W>(2 * LINE * team.ranks), several::<Plain>(2)),
        move |rank, (words, cells)| {
            let slots = slots(words);
            for epoch in 1..=epochs {
                hold_back(words, epoch, &mut { patience })?;
                if rank == 0 {
                    cells[slot::parity(epoch)].set(epoch);
                    slot::publish(&slots, Rank::new(0), epoch, &payload(0, epoch));
                } else {
                    slot::publish(&slots, Rank::new(rank as u32), epoch, &[]);
                    let mut got = [0; 2];
                    slot::read(&slots, Rank::new(0), epoch, &mut got, &mut { patience })?;
                    assert_eq!(got, payload(0, epoch), "torn or overwritten");
                    assert_eq!(cells[slot::parity(epoch)].get(), epoch);
                }
            }
            Ok(())
        },
    );
}

fn ready<W: TestWord>(words: &[W], epoch: u64, patience: &mut Patience) -> Result<(), GaveUp> {
    slot::ready(&slots(words), epoch, patience)
}

#[test]
fn a_broadcast_held_back_by_ready_reaches_one_pe_whole() {
    broadcast::<Exact>(Team::PAIR, 4, ready, Patience::endless());
}

#[test]
fn a_broadcast_held_back_by_ready_reaches_two_pes_whole() {
    broadcast::<Exact>(Team::of_three(2), 3, ready, Patience::short());
}

refuted!(a_broadcast_that_nothing_holds_back_is_refuted, broadcast::<Exact>(Team::PAIR, 3, |_, _, _| Ok(()), Patience::short()));
refuted!(a_broadcast_held_back_by_an_epoch_too_old_is_refuted, {
    broadcast::<Exact>(
        Team::PAIR,
        3,
        |words, epoch, patience| ready(words, epoch.saturating_sub(1).max(1), patience),
        Patience::short(),
    )
});
refuted!(a_broadcast_held_back_without_acquire_is_refuted, {
    let ready_relaxed: HoldBack<Exact> = |words, epoch, patience| {
        let before = epoch - 1;
        for rank in 0..2 {
            while slots(words).slot(rank, slot::parity(before)).sequence.load_relaxed() < before {
                patience.pause()?;
            }
        }
        Ok(())
    };
    broadcast::<Exact>(Team::PAIR, 3, ready_relaxed, Patience::short())
});
refuted!(
    a_broadcast_that_does_not_release_is_refuted,
    "torn or overwritten",
    broadcast::<NoRelease>(Team::PAIR, 3, ready, Patience::short())
);
