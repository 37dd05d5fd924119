//! Models of sealed lines: each rank has two lines, which the rank uses alternately. In one model
//! all ranks read all lines. In the other model, only rank 1 reads data, and rank 0 runs ahead as
//! far as the rule for the reuse of lines allows.

use crate::words::{Exact, NoAcquire, NoRelease, TestWord};
use crate::{GaveUp, Patience, Plain, Team, check, refuted, several};
use peerweave_device::{Pause, Word, sealed};

/// Number of words of a line.
const LINE: usize = 2;

fn data(rank: usize, epoch: u64) -> [u32; LINE] {
    let data = epoch as u32 * 10 + rank as u32;
    [data, !data]
}

/// A function that publishes data in a line for an epoch.
type Publish<W> = fn(&[W], u32, &[u32; LINE]);

/// In each epoch every rank writes a cell, publishes a line, reads the line of the other rank, and
/// then reads the cell of the other rank.
fn lines_change_hands<W: TestWord>(publish: Publish<W>) {
    check(
        Team::PAIR,
        move || (several::<W>(4 * LINE), [several::<Plain>(2), several::<Plain>(2)]),
        move |rank, (words, cells)| {
            for epoch in 1..=3 {
                let line = |rank: usize| &words[(2 * rank + (epoch & 1) as usize) * LINE..][..LINE];
                let cells = &cells[(epoch & 1) as usize];
                let (other, mut got) = (1 - rank, [0; LINE]);
                cells[rank].set(epoch);
                publish(line(rank), epoch as u32, &data(rank, epoch));
                read(line(other), epoch as u32, &mut got, &mut Patience::endless())?;
                assert_eq!(got, data(other, epoch), "line is torn or overwritten");
                assert_eq!(cells[other].get(), epoch);
            }
            Ok(())
        },
    );
}

fn read<W: Word>(line: &[W], epoch: u32, into: &mut [u32], patience: &mut Patience) -> Result<(), GaveUp> {
    while !sealed::try_read(line, epoch, into) {
        patience.pause()?;
    }
    Ok(())
}

fn forward<W: Word>(line: &[W], epoch: u32, data: &[u32; LINE]) {
    sealed::publish(line, epoch, data);
}

/// Publishes the words of a line in reverse order. This emulates a vector store, whose words become
/// visible in any order.
fn backward<W: Word>(line: &[W], epoch: u32, data: &[u32; LINE]) {
    W::fence_release();
    for (word, value) in line.iter().zip(sealed::seal_line(data, epoch)).rev() {
        word.store_relaxed(value);
    }
}

#[test]
fn lines_of_two_ranks_are_read_intact_in_three_epochs() {
    lines_change_hands::<Exact>(forward);
}

/// Rank 0 publishes in each epoch, and rank 1 reads the data of rank 0. Rank 0 reads no data of
/// rank 1. Before rank 0 reuses a line, it waits until rank 1 has published the epoch that `behind`
/// returns.
fn line_of_rank_0_is_read<W: TestWord>(behind: fn(u64) -> u64) {
    check(
        Team::PAIR,
        || (several::<W>(4 * LINE), several::<Plain>(2)),
        move |rank, (words, cells)| {
            let line = |rank: usize, epoch: u64| &words[(2 * rank + (epoch & 1) as usize) * LINE..][..LINE];
            let mut patience = Patience::endless();
            for epoch in 1..=3 {
                let cell = &cells[(epoch & 1) as usize];
                if rank == 1 {
                    sealed::publish(line(1, epoch), epoch as u32, &data(1, epoch));
                    let mut got = [0; LINE];
                    read(line(0, epoch), epoch as u32, &mut got, &mut patience)?;
                    assert_eq!(got, data(0, epoch), "line is torn or overwritten");
                    assert_eq!(cell.get(), epoch);
                    continue;
                }
                let needed = behind(epoch);
                while needed > 0 && !sealed::has_reached(&line(1, needed)[0], needed as u32, 4) {
                    patience.pause()?;
                }
                cell.set(epoch);
                sealed::publish(line(0, epoch), epoch as u32, &data(0, epoch));
            }
            Ok(())
        },
    );
}

#[test]
fn line_can_be_reused_after_its_reader_published_the_next_epoch() {
    line_of_rank_0_is_read::<Exact>(|epoch| epoch - 1);
}

refuted!(
    a_line_reused_after_its_reader_published_the_same_epoch_is_refuted,
    line_of_rank_0_is_read::<Exact>(|epoch| epoch.saturating_sub(2))
);

#[test]
fn lines_with_words_stored_in_reverse_order_are_read_intact() {
    lines_change_hands::<Exact>(backward);
}

refuted!(a_sealed_line_without_a_release_fence_is_refuted, lines_change_hands::<NoRelease>(forward));
refuted!(a_sealed_line_without_an_acquire_fence_is_refuted, lines_change_hands::<NoAcquire>(forward));
refuted!(a_sealed_line_whose_last_word_has_no_epoch_is_refuted, "line is torn or overwritten", {
    lines_change_hands::<Exact>(|line, epoch, data| {
        line[1].store_relaxed(sealed::seal(0, epoch));
        sealed::publish(line, epoch, data);
    })
});

refuted!(sealed_line_reused_before_it_was_read_is_refuted, {
    check(
        Team::PAIR,
        || (several::<Exact>(2 * LINE), several::<Plain>(2)),
        |rank, (words, cells)| {
            let line = |epoch: u64| &words[(epoch & 1) as usize * LINE..][..LINE];
            if rank == 0 {
                // Never reads the lines of the other rank, which violates the reuse rule.
                for epoch in 1..=3 {
                    cells[(epoch & 1) as usize].set(epoch);
                    sealed::publish(line(epoch), epoch as u32, &data(0, epoch));
                }
            } else {
                read(line(1), 1, &mut [0; LINE], &mut Patience::short())?;
                assert_eq!(cells[1].get(), 1);
            }
            Ok(())
        },
    )
});
