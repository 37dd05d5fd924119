//! The kernels of stream-ordered operations: signals, waits, atomic operations, barriers, puts of
//! one element, and fills.
//!
//! Every kernel except [`stream_barrier()`] and [`stream_fill()`] is launched with one thread. A
//! kernel that has a result writes the result to `outcome`, an array of 64-bit words that the host
//! reads after the kernel has ended. Word 0 is [`OUTCOME_DONE`] if the operation succeeded.
//! Invariant: a kernel writes word 0 last, and does not write word 0 if a wait of the kernel has
//! failed.
#![no_std]
#![allow(
    clippy::too_many_arguments,
    reason = "the parameters of a kernel stay in registers; a struct of the parameters would be in memory"
)]

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

use peerweave_device::api::AwaitedWords;
use peerweave_device::prelude::*;
use peerweave_device::types::KernelOp;

/// The value of word 0 of the array `outcome` if the operation succeeded.
pub const OUTCOME_DONE: u64 = 1;
/// The value of word 0 of the array `outcome` if [`stream_wait()`] tested the condition only once
/// and the condition did not hold.
pub const OUTCOME_NOT_YET: u64 = 2;
/// Index of the element of the array `outcome` at which the bits for the condition [`until::SOME`]
/// start. Each element has 64 bits. Bit `i` belongs to awaited word `i`: the bit is 1 if the word
/// satisfies the comparison and is not excluded.
pub const OUTCOME_BITS: usize = 2;

/// The conditions for which [`stream_wait()`] can wait.
pub mod until {
    /// Condition: each awaited word that is not excluded has satisfied the comparison at least
    /// once. If the condition holds, word 1 of the outcome is the value of the last of these words,
    /// or 0 if all words are excluded.
    pub const ALL: u32 = 0;
    /// Condition: at least one awaited word that is not excluded satisfies the comparison, or all
    /// words are excluded. The kernel writes one value to word 1 of the outcome: 1 plus the index
    /// of a non-excluded word that satisfies the comparison, or 0 if there is no such word.
    pub const ANY: u32 = 1;
    /// The same condition as [`ANY`]. In addition, the kernel writes one bit for each awaited word
    /// to the array `outcome`, from index [`OUTCOME_BITS`](super::OUTCOME_BITS) on. A bit is 1 if
    /// its word is not excluded and satisfies the comparison. If no word satisfies the comparison
    /// any more, only the bit of the word that ended the wait is 1.
    pub const SOME: u32 = 2;
}

/// The operations that [`stream_atomic()`] performs. If an operation fetches the old value of the
/// element, the kernel writes this value to word 1 of the array `outcome`.
pub mod atomic {
    /// Fetches the value of the element.
    pub const FETCH: u32 = 0;
    /// Writes the operand to the element.
    pub const SET: u32 = 1;
    /// Writes the operand to the element, and fetches the old value.
    pub const SWAP: u32 = 2;
    /// Writes the operand to the element if the element has the expected value. Fetches the old
    /// value in any case.
    pub const COMPARE_SWAP: u32 = 3;
    /// Adds the operand to the element, and fetches the old value.
    pub const ADD: u32 = 4;
    /// Replaces the element by the bitwise AND of the element and the operand. Fetches the old
    /// value.
    pub const AND: u32 = 5;
    /// Replaces the element by the bitwise OR of the element and the operand. Fetches the old
    /// value.
    pub const OR: u32 = 6;
    /// Replaces the element by the bitwise XOR of the element and the operand. Fetches the old
    /// value.
    pub const XOR: u32 = 7;
}

/// Converts the number of a comparison to the [`Compare`] that has this number.
#[inline(always)]
fn comparison(number: u32) -> Compare {
    match number {
        0 => Compare::Eq,
        1 => Compare::Ne,
        2 => Compare::Gt,
        3 => Compare::Ge,
        4 => Compare::Lt,
        _ => Compare::Le,
    }
}

/// Changes a signal word on PE `pe` after all earlier work in the stream. Sets the word to `value`
/// if `add` is 0, and adds `value` to the word if `add` is 1.
#[kernel]
pub fn stream_signal(ctx: &Context, word: SymSlice<u64>, value: u64, add: u32, pe: u32) {
    ctx.signal_op(word, value, if add == 0 { SignalOp::Set } else { SignalOp::Add }, pe);
}

/// Returns whether the awaited word with the index `index` is excluded. The word is excluded if bit
/// `index` of `exclude` is 1. Bits after the end of `exclude` count as 0.
#[inline(always)]
fn is_excluded(exclude: DeviceSlice<u64>, index: usize) -> bool {
    index / 64 < exclude.len() && exclude.read(index / 64) >> (index % 64) & 1 != 0
}

/// Tests all awaited words, and writes one bit for each word to `outcome`. The bit is 1 if the word
/// is not excluded and satisfies the comparison. Returns whether any bit is 1.
#[inline(always)]
fn mark(ctx: &Context, words: &AwaitedWords<impl Fn(usize) -> u64, impl Fn(usize) -> bool>, outcome: DeviceSlice<u64>) -> bool {
    let (mut place, mut bits) = (0, 0);
    let count = ctx.test_words(words, |index, _| {
        while place < index / 64 {
            outcome.write(OUTCOME_BITS + place, bits);
            (place, bits) = (place + 1, 0);
        }
        bits |= 1 << (index % 64);
    });
    // Writes zeros too, because each replay of a graph writes to the same outcome.
    while place < words.count().div_ceil(64) {
        outcome.write(OUTCOME_BITS + place, bits);
        (place, bits) = (place + 1, 0);
    }
    count > 0
}

/// Waits until words on this PE, the awaited words, satisfy `condition`, which is a constant of
/// [`until`]. If `once` is not 0, tests the awaited words only once.
/// Each awaited word has `size` bytes. `sign` is the sign bit of signed words, or 0 for unsigned
/// words. `exclude` is empty or has a bit for each awaited word. A word whose bit is 1 is excluded.
/// Awaited word `i` is compared with `values[i]`, or with `value` if `values` is empty. `compare`
/// is the comparison as `u32`. For [`until::ANY`] and [`until::SOME`], the kernel searches from
/// awaited word `start` to the last awaited word. Then the kernel searches the awaited words before
/// `start`, from word 0 on.
///
/// For [`until::SOME`], the kernel also writes one bit for each awaited word to the array
/// `outcome`, from index [`OUTCOME_BITS`] on. The array must have room for these bits.
#[kernel]
pub fn stream_wait(
    ctx: &Context,
    words: SymSlice<u8>,
    size: u32,
    sign: u64,
    exclude: DeviceSlice<u64>,
    compare: u32,
    value: u64,
    values: DeviceSlice<u64>,
    condition: u32,
    start: u64,
    once: u32,
    outcome: DeviceSlice<u64>,
) -> Result<(), Failed> {
    let excluded = |index: usize| is_excluded(exclude, index);
    let value_of = |index: usize| if values.is_empty() { value } else { values.read(index) };
    let words = &AwaitedWords { bytes: words, size, sign, compare: comparison(compare), value: value_of, exclude: excluded };
    let count = words.count();
    let mut holds = true;
    if condition == until::ALL {
        let mut last = 0;
        if once != 0 {
            let included = (0..count).filter(|&index| !excluded(index)).count();
            holds = ctx.test_words(words, |_, seen| last = seen) == included;
        } else {
            let operation = if count == 1 { KernelOp::SignalWaitUntil } else { KernelOp::WaitUntilAll };
            last = ctx.wait_words_all(words, operation)?.unwrap_or(0);
        }
        outcome.write(1, last);
    } else {
        let any_is_left = (0..count).any(|index| !excluded(index));
        let (start, operation) =
            (start as usize, if condition == until::ANY { KernelOp::WaitUntilAny } else { KernelOp::WaitUntilSome });
        let found = if once != 0 { ctx.test_words_any(words, start) } else { ctx.wait_words_any(words, start, operation)? };
        holds = found.is_some() || !any_is_left;
        outcome.write(1, found.map_or(0, |index| index as u64 + 1));
        if condition == until::SOME && holds {
            // Word `found` may no longer satisfy the comparison. Then `mark` may set no bit.
            if !mark(ctx, words, outcome)
                && let Some(index) = found
            {
                outcome.write(OUTCOME_BITS + index / 64, 1 << (index % 64));
            }
        }
    }
    outcome.write(0, if holds { OUTCOME_DONE } else { OUTCOME_NOT_YET });
    Ok(())
}

/// Performs the atomic operation `kind`, a constant of the module [`atomic`], on one element on PE
/// `pe`. `bytes` is the size of the element: 4 or 8. `expected` is used only by
/// [`atomic::COMPARE_SWAP`].
#[kernel]
pub fn stream_atomic(
    ctx: &Context,
    element: SymSlice<u64>,
    bytes: u32,
    kind: u32,
    operand: u64,
    expected: u64,
    pe: u32,
    outcome: DeviceSlice<u64>,
) {
    let old = if bytes == 8 {
        match kind {
            atomic::FETCH => ctx.atomic_fetch(element, pe),
            atomic::SET => {
                ctx.atomic_set(element, operand, pe);
                0
            }
            atomic::SWAP => ctx.atomic_swap(element, operand, pe),
            atomic::COMPARE_SWAP => ctx.atomic_compare_swap(element, expected, operand, pe),
            atomic::ADD => ctx.atomic_fetch_add(element, operand, pe),
            atomic::AND => ctx.atomic_fetch_and(element, operand, pe),
            atomic::OR => ctx.atomic_fetch_or(element, operand, pe),
            _ => ctx.atomic_fetch_xor(element, operand, pe),
        }
    } else {
        // SAFETY: the launch gives the offset of an aligned element of 4 bytes.
        let element = unsafe { SymSlice::<u32>::from_raw(element.offset(), 1) };
        let (operand, expected) = (operand as u32, expected as u32);
        let old = match kind {
            atomic::FETCH => ctx.atomic_fetch(element, pe),
            atomic::SET => {
                ctx.atomic_set(element, operand, pe);
                0
            }
            atomic::SWAP => ctx.atomic_swap(element, operand, pe),
            atomic::COMPARE_SWAP => ctx.atomic_compare_swap(element, expected, operand, pe),
            atomic::ADD => ctx.atomic_fetch_add(element, operand, pe),
            atomic::AND => ctx.atomic_fetch_and(element, operand, pe),
            atomic::OR => ctx.atomic_fetch_or(element, operand, pe),
            _ => ctx.atomic_fetch_xor(element, operand, pe),
        };
        u64::from(old)
    };
    outcome.write(1, old);
    outcome.write(0, OUTCOME_DONE);
}

/// Synchronises the members of a team. Launch this kernel as one block. When the kernel has ended,
/// the effects of the earlier work in every member's stream are visible to this PE.
#[kernel]
pub fn stream_barrier(ctx: &Context, team: KernelTeam, outcome: DeviceSlice<u64>) -> Result<(), Failed> {
    ctx.barrier_block(team)?;
    if gpu::thread_rank() == 0 {
        outcome.write(0, OUTCOME_DONE);
    }
    Ok(())
}

/// Writes the low `bytes` bytes of `bits` to one element on PE `pe`. `bytes` is 1, 2, 4 or 8.
#[kernel]
pub fn stream_put_element(ctx: &Context, element: SymSlice<u8>, bits: u64, bytes: u32, pe: u32) {
    // SAFETY: the launch gives the offset of an aligned element of that many bytes.
    unsafe {
        match bytes {
            1 => ctx.p(element, bits as u8, pe),
            2 => ctx.p(SymSlice::<u16>::from_raw(element.offset(), 1), bits as u16, pe),
            4 => ctx.p(SymSlice::<u32>::from_raw(element.offset(), 1), bits as u32, pe),
            _ => ctx.p(SymSlice::<u64>::from_raw(element.offset(), 1), bits, pe),
        }
    }
}

/// Sets each of `count` elements, starting at `first`, to the low `bytes` bytes of `bits`. `bytes`
/// is 2, 4 or 8. The grid's threads divide the memory among themselves. They write vectors of 16
/// bytes, and single elements before the first and after the last aligned vector.
#[kernel]
pub fn stream_fill(first: DeviceSlice<u8>, bits: u64, bytes: u32, count: u64) {
    let threads = u64::from(gpu::grid_dim().x) * u64::from(gpu::block_dim().x);
    let start = u64::from(gpu::block_idx().x) * u64::from(gpu::block_dim().x) + u64::from(gpu::thread_idx().x);
    let (address, bytes) = (first.address(), u64::from(bytes));
    let before = ((address.next_multiple_of(VECTOR_BYTES) - address) / bytes).min(count);
    let vectors = (count - before) * bytes / VECTOR_BYTES;
    let after = before + vectors * (VECTOR_BYTES / bytes);
    // The elements of a vector, four, two or one in each half.
    let half = match bytes {
        2 => (bits & 0xffff) * 0x0001_0001_0001_0001,
        4 => (bits & 0xffff_ffff) * 0x0000_0001_0000_0001,
        _ => bits,
    };
    let mut index = start;
    while index < vectors {
        let to = core::ptr::with_exposed_provenance_mut((address + before * bytes + index * VECTOR_BYTES) as usize);
        // SAFETY: the launch gives the address of the elements, and this aligned vector consists of
        // elements.
        unsafe { gpu::store_vector_global(to, [half, half]) };
        index += threads;
    }
    // SAFETY: the launch gives the address of that many aligned elements of `bytes` bytes.
    let (halves, words, wide) = unsafe {
        (
            DeviceSlice::<u16>::from_raw(address, count as usize),
            DeviceSlice::<u32>::from_raw(address, count as usize),
            DeviceSlice::<u64>::from_raw(address, count as usize),
        )
    };
    let mut index = start;
    while index < count - (after - before) {
        let element = if index < before { index } else { index + (after - before) } as usize;
        match bytes {
            2 => halves.write(element, bits as u16),
            4 => words.write(element, bits as u32),
            _ => wide.write(element, bits),
        }
        index += threads;
    }
}

/// Size in bytes of the vectors that [`stream_fill()`] writes.
const VECTOR_BYTES: u64 = 16;
