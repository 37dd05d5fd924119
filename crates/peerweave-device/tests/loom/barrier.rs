//! Model of a barrier: in each epoch the ranks of a team write data, synchronise, and read the data
//! of all ranks.

use crate::words::{Exact, NoAcquire, NoRelease, TestWord};
use crate::{GaveUp, Patience, Plain, Team, check, refuted, several};
use peerweave_device::{barrier, word};

const EPOCHS: u64 = 3;

/// A function that synchronises a rank with the team. The parameters are the words, the rank, the
/// epoch and the pause.
type Step<W> = fn(&[W], usize, u64, &mut Patience) -> Result<(), GaveUp>;

/// In each epoch every rank writes its cell, synchronises by `step`, and reads the cells of all
/// ranks. The cells of epoch `k` are written again in epoch `k + 2`. Only the barrier of epoch `k +
/// 1` orders these writes after the reads of epoch `k`.
fn cells_are_visible_to_all_ranks_at_every_epoch<W: TestWord>(team: Team, words: usize, step: Step<W>) {
    check(
        team,
        move || (several::<W>(words), [several::<Plain>(team.ranks), several::<Plain>(team.ranks)]),
        move |rank, (words, cells)| {
            for epoch in 1..=EPOCHS {
                let cells = &cells[epoch as usize % 2];
                cells[rank].set(epoch * 10 + rank as u64);
                step(words, rank, epoch, &mut team.patience())?;
                for (other, cell) in cells.iter().enumerate() {
                    assert_eq!(cell.get(), epoch * 10 + other as u64, "cell has a wrong value");
                }
            }
            Ok(())
        },
    );
}

/// Synchronises by the barrier. The words are a square matrix, in which each rank polls its own
/// row.
fn sync<W: TestWord>(words: &[W], rank: usize, epoch: u64, patience: &mut Patience) -> Result<(), GaveUp> {
    let ranks = words.len().isqrt();
    barrier::announce(&word::from_fn(ranks, |target| &words[target * ranks + rank]), epoch);
    barrier::wait(&words[rank * ranks..][..ranks], epoch, patience)
}

/// Like `sync`, but by the relaxed form of the barrier. If `fences` is true, calls the fences
/// before and after the barrier.
fn relaxed<W: TestWord>(fences: bool, words: &[W], rank: usize, epoch: u64, patience: &mut Patience) -> Result<(), GaveUp> {
    let ranks = words.len().isqrt();
    if fences {
        W::fence_release();
    }
    barrier::announce_relaxed(&word::from_fn(ranks, |target| &words[target * ranks + rank]), epoch);
    barrier::wait_relaxed(&words[rank * ranks..][..ranks], epoch, patience)?;
    if fences {
        W::fence_acquire();
    }
    Ok(())
}

/// Like `sync`, but wrong: waits only for the first `first` ranks, and for epoch `waited`.
fn broken(words: &[Exact], rank: usize, epoch: u64, waited: u64, first: usize, patience: &mut Patience) -> Result<(), GaveUp> {
    let ranks = words.len().isqrt();
    barrier::announce(&word::from_fn(ranks, |target| &words[target * ranks + rank]), epoch);
    barrier::wait(&words[rank * ranks..][..first], waited, patience)
}

#[test]
fn barrier_orders_accesses_of_two_pes() {
    cells_are_visible_to_all_ranks_at_every_epoch::<Exact>(Team::PAIR, 4, sync);
}

#[test]
fn barrier_orders_accesses_of_three_pes() {
    cells_are_visible_to_all_ranks_at_every_epoch::<Exact>(Team::of_three(1), 9, sync);
}

#[test]
fn relaxed_barrier_between_fences_orders_accesses_of_two_pes() {
    cells_are_visible_to_all_ranks_at_every_epoch::<Exact>(Team::PAIR, 4, |words, rank, epoch, patience| {
        relaxed(true, words, rank, epoch, patience)
    });
}

refuted!(relaxed_barrier_alone_is_refuted, {
    cells_are_visible_to_all_ranks_at_every_epoch::<Exact>(Team::PAIR, 4, |words, rank, epoch, patience| {
        relaxed(false, words, rank, epoch, patience)
    })
});
refuted!(barrier_without_release_is_refuted, cells_are_visible_to_all_ranks_at_every_epoch::<NoRelease>(Team::PAIR, 4, sync));
refuted!(barrier_without_acquire_is_refuted, cells_are_visible_to_all_ranks_at_every_epoch::<NoAcquire>(Team::PAIR, 4, sync));
refuted!(barrier_that_ignores_the_last_rank_is_refuted, "cell has a wrong value", {
    cells_are_visible_to_all_ranks_at_every_epoch::<Exact>(Team::PAIR, 4, |words, rank, epoch, patience| {
        broken(words, rank, epoch, epoch, 1, patience)
    })
});
refuted!(barrier_that_waits_for_the_previous_epoch_is_refuted, "cell has a wrong value", {
    cells_are_visible_to_all_ranks_at_every_epoch::<Exact>(Team::PAIR, 4, |words, rank, epoch, patience| {
        broken(words, rank, epoch, epoch - 1, 2, patience)
    })
});
refuted!(barrier_of_three_that_ignores_a_rank_once_is_refuted, {
    cells_are_visible_to_all_ranks_at_every_epoch::<Exact>(Team::of_three(1), 9, |words, rank, epoch, patience| {
        broken(words, rank, epoch, epoch, if epoch == EPOCHS { 2 } else { 3 }, patience)
    })
});
