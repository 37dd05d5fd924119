//! Fills, poisons, rewrites and checks the memory that calls work on.
//!
//! Invariant: [`count_wrong`] checks all bits of every element.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

use peerweave::{Buffer, Element, Result, Symmetric};

use crate::workload::geometry::Part;
use crate::workload::pattern::{Sample, poison};

const CACHE_LINE_BYTES: usize = 64;

/// Symmetric or private memory of this PE.
pub trait Memory<T>: Clone {
    /// Returns a handle to the elements of this memory in `range`.
    fn range(&self, range: Range<usize>) -> Result<Self>;
    /// Overwrites all elements of this memory with `from`.
    fn set(&self, from: &[T]) -> Result<()>;
    /// Copies all elements of this memory to `into`.
    fn read(&self, into: &mut [T]) -> Result<()>;
    /// Returns the address of the first element.
    fn address(&self) -> *mut u8;
    /// Returns the number of elements.
    fn count(&self) -> usize;
}

macro_rules! memory {
    ($($name:ident, |$memory:ident| $address:expr);*) => {$(
        impl<T: Element> Memory<T> for $name<T> {
            fn range(&self, range: Range<usize>) -> Result<Self> {
                self.slice(range)
            }
            fn set(&self, from: &[T]) -> Result<()> {
                self.copy_from(from)
            }
            fn read(&self, into: &mut [T]) -> Result<()> {
                self.copy_to(into)
            }
            fn address(&self) -> *mut u8 {
                let $memory = self;
                $address.cast()
            }
            fn count(&self) -> usize {
                self.len()
            }
        }
    )*};
}

memory!(
    Symmetric, |memory| memory.as_ptr().expect("peerweave bug: --dirty was accepted for memory of a GPU");
    Buffer, |memory| memory.as_ptr()
);

/// Fills a range of a buffer, given by `part`, with the elements of `tile`. If the range extends
/// beyond the end of the tile, the tile repeats from its start.
pub fn fill<T: Sample>(memory: &impl Memory<T>, part: &Part, tile: &[T]) -> Result<()> {
    pieces(part, tile.len(), |at, from, len| memory.range(at..at + len)?.set(&tile[from..from + len]))
}

/// Fills a range of a buffer with the value for unwritten elements ([`poison`]), so that a check
/// detects elements that a call has not written.
pub fn spoil<T: Sample>(memory: &impl Memory<T>, range: Range<usize>) -> Result<()> {
    let values = [poison::<T>(); 4096];
    for at in range.clone().step_by(values.len()) {
        let end = range.end.min(at + values.len());
        memory.range(at..end)?.set(&values[..end - at])?;
    }
    Ok(())
}

/// Compares the range `part` of a buffer with the expected elements. Returns the number of elements
/// that differ. The expected elements are the elements of `tile`, repeated up to the end of the
/// range.
pub fn count_wrong<T: Sample>(memory: &impl Memory<T>, part: &Part, tile: &[T]) -> Result<u64> {
    let (mut wrong, mut found) = (0, vec![T::default(); tile.len()]);
    pieces(part, tile.len(), |at, from, len| {
        memory.range(at..at + len)?.read(&mut found[..len])?;
        wrong += differences(&found[..len], &tile[from..from + len]);
        Ok(())
    })?;
    Ok(wrong)
}

/// Counts the elements of a range that differ from the value written by [`spoil`].
pub fn count_unspoiled<T: Sample>(memory: &impl Memory<T>, range: Range<usize>) -> Result<u64> {
    let mut found = vec![T::default(); range.len()];
    memory.range(range)?.read(&mut found)?;
    Ok(differences(&found, &vec![poison::<T>(); found.len()]))
}

fn differences<T: Sample>(found: &[T], due: &[T]) -> u64 {
    std::iter::zip(found, due).map(|(found, due)| u64::from(found.bits64() != due.bits64())).sum()
}

/// Splits a part of a buffer into ranges. The part repeats a tile of `period` elements, and a new
/// range begins wherever the tile begins again. For each range, calls `piece` with three numbers:
/// the start of the range in the buffer, the start of the range in the tile, and the length.
fn pieces(part: &Part, period: usize, mut piece: impl FnMut(usize, usize, usize) -> Result<()>) -> Result<()> {
    let mut done = 0;
    while done < part.len {
        let from = (part.from + done) % period;
        let len = (period - from).min(part.len - done);
        piece(part.at + done, from, len)?;
        done += len;
    }
    Ok(())
}

/// Rewrites one byte of every cache line without changing its value, so that the lines are in the
/// state "modified" in the cache of this PE's core.
pub fn rewrite<T: Element>(memory: &impl Memory<T>) {
    let bytes = memory.count() * size_of::<T>();
    let at = memory.address();
    for offset in (0..bytes).step_by(CACHE_LINE_BYTES) {
        // SAFETY: `as_ptr` of both kinds of memory guarantees that `at` is valid for `bytes` bytes
        // while `memory` lives, and the allocation is released only after the last case. The
        // accesses are atomic, as both kinds of memory require, because peers may read at the same
        // time.
        let byte = unsafe { AtomicU8::from_ptr(at.add(offset)) };
        byte.store(byte.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::geometry::{GUARD, Tile};
    use crate::workload::pattern::{PERIOD, input_tile, moved_tile, reduced_tile, tile};
    use peerweave::ReduceOp;

    const PART: Part = Part { at: 5, len: 2 * PERIOD + 100, of: Tile::Reduced, from: PERIOD - 3 };

    fn filled(tile: &[f32]) -> Buffer<f32> {
        let buffer = Buffer::<f32>::zeroed(PART.at + PART.len + GUARD);
        spoil(&buffer, 0..buffer.len()).unwrap();
        fill(&buffer, &PART, tile).unwrap();
        buffer
    }

    #[test]
    fn correct_result_has_no_wrong_elements() {
        let tile = reduced_tile::<f32>(ReduceOp::Sum, 4, 4, 0);
        let buffer = filled(&tile);
        assert_eq!(count_wrong(&buffer, &PART, &tile).unwrap(), 0);
        assert_eq!(count_unspoiled(&buffer, PART.at + PART.len..buffer.len()).unwrap(), 0);
    }

    #[test]
    fn wrong_element_is_counted_at_any_position() {
        let tile = reduced_tile::<f32>(ReduceOp::Sum, 4, 4, 0);
        for at in [0, 1, 2, 3, PERIOD, PERIOD + 2, 2 * PERIOD, PART.len - 1] {
            let buffer = filled(&tile);
            let element = buffer.slice(PART.at + at..=PART.at + at).unwrap();
            let mut value = element.to_vec();
            // Changes only the last bit, the smallest possible error.
            value[0] = f32::from_bits(value[0].to_bits() ^ 1);
            element.copy_from(&value).unwrap();
            assert_eq!(count_wrong(&buffer, &PART, &tile).unwrap(), 1, "element {at}");
        }
    }

    #[test]
    fn unwritten_result_has_more_than_75_percent_wrong_elements() {
        let tile = moved_tile::<u8>(1, 0);
        let buffer = Buffer::<u8>::zeroed(4 * PERIOD);
        spoil(&buffer, 0..buffer.len()).unwrap();
        let part = Part { at: 0, len: buffer.len(), of: Tile::Input(1), from: 0 };
        assert!(count_wrong(&buffer, &part, &tile).unwrap() > 3 * PERIOD as u64);
    }

    #[test]
    fn shifted_result_has_more_than_90_percent_wrong_elements() {
        let tile = moved_tile::<f32>(1, 0);
        let buffer = filled(&tile);
        for shift in [1, 2, 64, 4096, 8192] {
            let part = Part { from: PART.from + shift, ..PART };
            assert!(count_wrong(&buffer, &part, &tile).unwrap() > PART.len as u64 * 9 / 10, "shifted by {shift}");
        }
    }

    #[test]
    fn write_between_strided_elements_is_detected() {
        let (due, input) = (tile::<f32>(Tile::EveryOther(0), None, 2, 0), moved_tile::<f32>(0, 0));
        let part = Part { at: 0, len: 3 * PERIOD, of: Tile::EveryOther(0), from: 0 };
        let buffer = Buffer::<f32>::zeroed(part.len);
        spoil(&buffer, 0..part.len).unwrap();
        for at in (0..part.len).step_by(2) {
            buffer.slice(at..=at).unwrap().copy_from(&[input[at % PERIOD]]).unwrap();
        }
        assert_eq!(count_wrong(&buffer, &part, &due).unwrap(), 0);
        buffer.slice(PERIOD..=PERIOD).unwrap().copy_from(&[input[0]]).unwrap();
        assert_eq!(count_wrong(&buffer, &part, &due).unwrap(), 1, "an odd element was written");
    }

    #[test]
    fn data_of_a_different_rank_or_round_counts_as_wrong() {
        let tile = |rank, round| input_tile::<f32>(ReduceOp::Sum, 2, rank, round);
        let buffer = filled(&tile(0, 0));
        for other in [tile(1, 0), tile(0, 1)] {
            assert!(count_wrong(&buffer, &PART, &other).unwrap() > PART.len as u64 * 9 / 10);
        }
    }

    #[test]
    fn write_after_the_end_of_the_result_is_detected() {
        let buffer = filled(&moved_tile::<f32>(1, 0));
        let end = PART.at + PART.len;
        buffer.slice(end..end + 1).unwrap().copy_from(&[0.0]).unwrap();
        assert_eq!(count_unspoiled(&buffer, end..buffer.len()).unwrap(), 1);
    }

    #[test]
    fn buffer_values_are_unchanged_after_a_rewrite_in_place() {
        let tile = moved_tile::<f32>(1, 0);
        let buffer = filled(&tile);
        rewrite(&buffer);
        assert_eq!(count_wrong(&buffer, &PART, &tile).unwrap(), 0);
    }
}
