//! A team arrives, epoch after epoch, and hands data over each time.

use crate::words::{Exact, NoAcquire, NoRelease, RmwNoAcquire, RmwNoRelease, TestWord};
use crate::{GaveUp, Patience, Plain, Team, check, refuted, several};
use peerweave_device::barrier::{self, Central};
use peerweave_device::word;
use peerweave_types::Rank;

const EPOCHS: u64 = 3;

/// Synchronises this rank in an epoch, over these words.
type Step<W> = fn(&[W], usize, u64, &mut Patience) -> Result<(), GaveUp>;

/// Every rank writes a cell, syncs, and reads everybody's. The cells of epoch `k` are written again in `k + 2`, which only the
/// barrier of `k + 1` allows.
fn cells_change_hands_at_every_epoch<W: TestWord>(team: Team, words: usize, sync: Step<W>) {
    check(
        team,
        move || (several::<W>(words), [several::<Plain>(team.ranks), several::<Plain>(team.ranks)]),
        move |rank, (words, cells)| {
            for epoch in 1..=EPOCHS {
                let cells = &cells[epoch as usize % 2];
                cells[rank].set(epoch * 10 + rank as u64);
                sync(words, rank, epoch, &mut team.patience())?;
                for (other, cell) in cells.iter().enumerate() {
                    assert_eq!(cell.get(), epoch * 10 + other as u64, "not handed over");
                }
            }
            Ok(())
        },
    );
}

fn flat<W: TestWord>(words: &[W], rank: usize, epoch: u64, patience: &mut Patience) -> Result<(), GaveUp> {
    barrier::sync(words, Rank::new(rank as u32), epoch, patience)
}

/// `ranks` words for each of `ranks` ranks: each looks at its own row.
fn pushed<W: TestWord>(words: &[W], rank: usize, epoch: u64, patience: &mut Patience) -> Result<(), GaveUp> {
    let ranks = words.len().isqrt();
    barrier::announce(&word::from_fn(ranks, |target| &words[target * ranks + rank]), epoch);
    barrier::wait(&words[rank * ranks..][..ranks], epoch, patience)
}

fn central<W: TestWord, const RANKS: u64>(words: &[W], _rank: usize, epoch: u64, patience: &mut Patience) -> Result<(), GaveUp> {
    Central { arrivals: &words[0], generation: &words[1], ranks: RANKS }.sync(epoch, patience)
}

#[test]
fn flat_barrier_orders_two_pes() {
    cells_change_hands_at_every_epoch::<Exact>(Team::PAIR, 2, flat);
}

#[test]
fn flat_barrier_orders_three_pes() {
    cells_change_hands_at_every_epoch::<Exact>(Team::of_three(1), 3, flat);
}

#[test]
fn announced_barrier_orders_two_pes() {
    cells_change_hands_at_every_epoch::<Exact>(Team::PAIR, 4, pushed);
}

#[test]
fn central_barrier_orders_two_pes() {
    cells_change_hands_at_every_epoch::<Exact>(Team::PAIR, 2, central::<_, 2>);
}

#[test]
fn central_barrier_orders_three_pes() {
    cells_change_hands_at_every_epoch::<Exact>(Team::of_three(3), 2, central::<_, 3>);
}

refuted!(a_flat_barrier_that_does_not_release_is_refuted, cells_change_hands_at_every_epoch::<NoRelease>(Team::PAIR, 2, flat));
refuted!(a_flat_barrier_that_does_not_acquire_is_refuted, cells_change_hands_at_every_epoch::<NoAcquire>(Team::PAIR, 2, flat));
refuted!(
    an_announced_barrier_that_does_not_release_is_refuted,
    cells_change_hands_at_every_epoch::<NoRelease>(Team::PAIR, 4, pushed)
);
refuted!(
    an_announced_barrier_that_does_not_acquire_is_refuted,
    cells_change_hands_at_every_epoch::<NoAcquire>(Team::PAIR, 4, pushed)
);
refuted!(a_central_barrier_whose_generation_does_not_release_is_refuted, {
    cells_change_hands_at_every_epoch::<NoRelease>(Team::PAIR, 2, central::<_, 2>)
});
refuted!(a_central_barrier_whose_generation_does_not_acquire_is_refuted, {
    cells_change_hands_at_every_epoch::<NoAcquire>(Team::PAIR, 2, central::<_, 2>)
});
refuted!(a_central_barrier_whose_arrivals_do_not_acquire_is_refuted, {
    cells_change_hands_at_every_epoch::<RmwNoAcquire>(Team::PAIR, 2, central::<_, 2>)
});
refuted!(a_central_barrier_whose_arrivals_do_not_release_is_refuted, {
    cells_change_hands_at_every_epoch::<RmwNoRelease>(Team::PAIR, 2, central::<_, 2>)
});
refuted!(a_barrier_that_forgets_the_last_rank_is_refuted, "not handed over", {
    cells_change_hands_at_every_epoch::<Exact>(Team::PAIR, 2, |words, rank, epoch, patience| {
        barrier::arrive(words, Rank::new(rank as u32), epoch);
        barrier::wait(&words[..1], epoch, patience)
    })
});
refuted!(a_barrier_that_waits_for_the_epoch_before_is_refuted, "not handed over", {
    cells_change_hands_at_every_epoch::<Exact>(Team::PAIR, 2, |words, rank, epoch, patience| {
        barrier::arrive(words, Rank::new(rank as u32), epoch);
        barrier::wait(words, epoch - 1, patience)
    })
});
refuted!(a_barrier_of_three_that_is_wrong_in_the_last_epoch_alone_is_refuted, {
    cells_change_hands_at_every_epoch::<Exact>(Team::of_three(1), 3, |words, rank, epoch, patience| {
        barrier::arrive(words, Rank::new(rank as u32), epoch);
        let words = if epoch == EPOCHS { &words[..2] } else { words };
        barrier::wait(words, epoch, patience)
    })
});
