//! The first phase of kernels that move lines: every rank pushes lines to the other ranks.

use crate::Call;
use crate::epoch;
use crate::line::Lines;
use crate::wait::{bank, position};
use peerweave_device::gpu::Vector;
use peerweave_device::prelude::*;

/// Calls [`push_lines`] with the banks of the epoch, from line `region` of each bank, and counts
/// the launch. Returns this rank's bank, from its first line.
///
/// # Safety
/// The counter of the call meets the requirements of [`epoch::read`]. The areas of the call have
/// banks with these lines from `region`.
#[inline(always)]
pub(crate) unsafe fn push_to_banks<const W: usize, const MORE: bool, const FIRST: u32, const SAME: bool>(
    call: &Call,
    lines: u64,
    region: u64,
    there: impl Fn(u32, u64) -> bool,
    load: impl Fn(u32, u64) -> Vector,
    keep: impl Fn(u64, Vector),
) -> Result<Lines, Failed> {
    let mut epoch = 0;
    let open = || {
        // SAFETY: the caller guarantees the counter.
        epoch = unsafe { epoch::read(call.counter) };
        let epoch = epoch;
        // SAFETY: the caller guarantees the banks.
        Ok(move |k| unsafe { bank(call, k, epoch) }.from(region))
    };
    push_lines::<W, MORE, FIRST, SAME, _>(call.ranks, lines, there, load, keep, open)?;
    // SAFETY: as above. The launch is counted while the lines are in transit.
    unsafe { epoch::end(call.counter) };
    // SAFETY: as above.
    Ok(unsafe { bank(call, 0, epoch) })
}

/// Pushes the lines with numbers below `lines` to the other ranks. Here, `k` stands for the rank
/// `k` places after this rank, and is below `ranks`.
///
/// `load` reads a line for a rank. It is called for each `k` from `FIRST` for which `there` returns
/// true. With `SAME` it is called only for `k == 0`, and that line is pushed to all ranks. If
/// `FIRST` is 0, `keep` gets the line of `k == 0`. `open` waits until the lines of the other ranks
/// may be written, and returns a function that gives their place for each `k`.
///
/// The first lines are loaded before `open` is called, so that all loads are in flight at the same
/// time. Ranks are handled in groups of `W`; without `MORE` there is only one group.
#[inline(always)]
pub(crate) fn push_lines<const W: usize, const MORE: bool, const FIRST: u32, const SAME: bool, To: Fn(u32) -> Lines>(
    ranks: u32,
    lines: u64,
    there: impl Fn(u32, u64) -> bool,
    load: impl Fn(u32, u64) -> Vector,
    keep: impl Fn(u64, Vector),
    open: impl FnOnce() -> Result<To, Failed>,
) -> Result<(), Failed> {
    let (first, step) = position();
    let is_sent = |k: u32, line: u64| k < ranks && there(k, line);
    let load_group = |base: u32, line: u64, values: &mut [Vector; W]| {
        for index in 0..W {
            let k = base + index as u32;
            if if SAME { k == 0 } else { k >= FIRST && is_sent(k, line) } {
                values[index] = load(k, line);
            }
        }
    };
    let mut values = [[0; 2]; W];
    if first < lines {
        load_group(0, first, &mut values);
    }
    let to = open()?;
    let mut line = first;
    while line < lines {
        if FIRST == 0 && is_sent(0, line) {
            keep(line, values[0]);
        }
        let mut base = 0;
        loop {
            for index in 0..W {
                let k = base + index as u32;
                if k > 0 && is_sent(k, line) {
                    to(k).push(line, values[if SAME { 0 } else { index }]);
                }
            }
            base += W as u32;
            if !MORE || base >= ranks {
                break;
            }
            if !SAME {
                load_group(base, line, &mut values);
            }
        }
        line += step;
        if line < lines {
            load_group(0, line, &mut values);
        }
    }
    Ok(())
}
