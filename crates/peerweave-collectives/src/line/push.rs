//! The first phase of kernels that move 16-byte lines: every rank pushes lines to the staging areas
//! of the other ranks.

use crate::Call;
use crate::epoch;
use crate::line::Lines;
use crate::line::wait::{bank, position};
use peerweave_device::gpu::Vector;
use peerweave_device::prelude::*;

/// Pushes lines to every other rank, and then counts this launch in [`Call::counter`]. A rank gets
/// the lines below `lines` for which `there` returns true. Every staging area has two banks, which
/// launches use alternately. The lines are stored in this launch's bank of the receiver's staging
/// area, starting at line `region`. Returns this launch's bank of this rank's own staging area,
/// starting at line 0.
///
/// The remaining parameters are those of [`push_lines`].
///
/// # Safety
/// [`Call::counter`] meets the requirements of [`epoch::read`]. In every staging area, each bank
/// has `lines` lines from line `region` on.
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
    // SAFETY: the caller guarantees the counter. The launch is counted while the lines are in
    // transit.
    unsafe { epoch::end(call.counter) };
    // SAFETY: the caller guarantees the banks.
    Ok(unsafe { bank(call, 0, epoch) })
}

/// Pushes the lines with numbers below `lines` to the other ranks. The caller passes four
/// functions. Their parameter `k` stands for the rank `k` places after this rank, so `k == 0` is
/// this rank.
///
/// - `there(k, line)` returns whether the line is for rank `k`.
/// - `load(k, line)` reads the line for rank `k`. It is called for each `k` of at least `FIRST` for
///   which `there` returns true. If `SAME` is true, it is called only for `k == 0`, and the line
///   that it reads is pushed to all ranks.
/// - `keep(line, value)` stores a line for this rank itself. It is called only if `FIRST` is 0.
/// - `open()` waits until this rank may write the lines. It returns a function that maps `k` to the
///   destination of the lines for rank `k`.
///
/// `push_lines` loads the first lines before it calls `open`, so that all these loads are in flight
/// at the same time. It handles ranks in groups of `W`. If `MORE` is false, there is only one
/// group.
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
