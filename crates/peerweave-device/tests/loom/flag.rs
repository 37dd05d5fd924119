//! Model of one PE that posts a flag, and another PE that waits for the flag.

use crate::words::{Exact, NoAcquire, NoRelease, TestWord};
use crate::{Patience, Plain, Team, check, refuted, several};
use peerweave_device::flag;

/// Rank 0 writes one more cell before each epoch that it posts. Rank 1 waits only for every second
/// epoch, and reads all cells up to that epoch.
fn data_is_visible_when_the_flag_is_reached<W: TestWord>() {
    check(
        Team::PAIR,
        || (W::default(), several::<Plain>(3)),
        |rank, (word, data)| {
            if rank == 0 {
                for (epoch, data) in (1..).zip(data) {
                    data.set(epoch * 7);
                    flag::post(word, epoch);
                }
            } else {
                for epoch in [1, 3] {
                    flag::wait(word, epoch, &mut Patience::endless())?;
                    for before in 1..=epoch {
                        assert_eq!(data[before as usize - 1].get(), before * 7);
                    }
                }
            }
            Ok(())
        },
    );
}

#[test]
fn reached_flag_makes_earlier_writes_visible() {
    data_is_visible_when_the_flag_is_reached::<Exact>();
}

refuted!(a_flag_that_does_not_release_is_refuted, data_is_visible_when_the_flag_is_reached::<NoRelease>());
refuted!(a_flag_that_does_not_acquire_is_refuted, data_is_visible_when_the_flag_is_reached::<NoAcquire>());

/// Two PEs wait for each other's flag, and access one cell alternately.
#[test]
fn two_pes_that_take_turns_through_flags_do_not_race() {
    check(
        Team::PAIR,
        || ([Exact::default(), Exact::default()], Plain::default()),
        |rank, (words, cell)| {
            for epoch in 1..=3 {
                if rank == 0 {
                    cell.set(epoch);
                    flag::post(&words[0], epoch);
                    flag::wait(&words[1], epoch, &mut Patience::endless())?;
                    assert_eq!(cell.get(), epoch + 100);
                } else {
                    flag::wait(&words[0], epoch, &mut Patience::endless())?;
                    assert_eq!(cell.get(), epoch);
                    cell.set(epoch + 100);
                    flag::post(&words[1], epoch);
                }
            }
            Ok(())
        },
    );
}
