//! Checks single values: lengths, indices, ranges and sizes of allocations. Each error names the
//! call and the argument.

use crate::Result;
use crate::backend::error::{Error, MisuseKind, misuse};
use std::ops::{Bound, RangeBounds};

#[cold]
#[inline(never)]
pub(crate) fn wrong_length(call: &'static str, argument: &'static str, found: usize, expected: usize) -> Error {
    misuse(call, MisuseKind::Length { argument, found, expected })
}

#[cold]
#[inline(never)]
pub(crate) fn wrong_range(call: &'static str, argument: &'static str, start: usize, end: usize, len: usize) -> Error {
    misuse(call, MisuseKind::Range { argument, start, end, len })
}

#[cold]
#[inline(never)]
fn wrong_index(call: &'static str, argument: &'static str, found: usize, len: usize) -> Error {
    misuse(call, MisuseKind::Index { argument, found, len })
}

#[cold]
#[inline(never)]
pub(crate) fn wrong_value(call: &'static str, argument: &'static str, found: impl ToString, expected: &'static str) -> Error {
    misuse(call, MisuseKind::Value { argument, found: found.to_string(), expected })
}

#[inline(always)]
pub(crate) fn length(call: &'static str, argument: &'static str, found: usize, expected: usize) -> Result<()> {
    if found == expected { Ok(()) } else { Err(wrong_length(call, argument, found, expected)) }
}

#[inline(always)]
pub(crate) fn index(call: &'static str, argument: &'static str, index: usize, len: usize) -> Result<()> {
    if index < len { Ok(()) } else { Err(wrong_index(call, argument, index, len)) }
}

/// Returns the start and length of `range`, which must lie within `len` elements.
pub(crate) fn range(call: &'static str, len: usize, range: &impl RangeBounds<usize>) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok((start, end - start)),
        (Some(start), Some(end)) if end < start => Err(misuse(call, MisuseKind::ReversedRange { argument: "range", start, end })),
        _ => Err(wrong_range(call, "self", start.unwrap_or(usize::MAX), end.unwrap_or(usize::MAX), len)),
    }
}

pub(crate) fn positive(call: &'static str, argument: &'static str, value: usize) -> Result<()> {
    if value > 0 { Ok(()) } else { Err(wrong_value(call, argument, value, "a number above 0")) }
}

/// Returns the size of an allocation in bytes. The allocation has `elements` elements. Fails if the
/// size or the alignment `align` is invalid.
pub(crate) fn allocation(
    call: &'static str,
    elements: usize,
    element_bytes: usize,
    align: usize,
    max_align: usize,
) -> Result<usize> {
    if !align.is_power_of_two() {
        return Err(wrong_value(call, "align_bytes", align, "an alignment that is a power of two"));
    }
    if align > max_align {
        let limit = "`caps().max_align_bytes` of the world";
        return Err(misuse(call, MisuseKind::Limit { argument: "align_bytes", found: align, max: max_align, limit }));
    }
    match elements.checked_mul(element_bytes) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(bytes),
        _ => Err(wrong_value(call, "count", elements, "a number of elements that fits the address space")),
    }
}

/// Fails unless a handle refers to all elements of its allocation. The handle refers to `len`
/// elements, starting at element `start`. The allocation has `elements` elements.
pub(crate) fn whole(call: &'static str, start: usize, len: usize, elements: usize) -> Result<()> {
    if start == 0 && len == elements {
        return Ok(());
    }
    Err(misuse(call, MisuseKind::PartOfAllocation { argument: "self", start, end: start + len, len: elements }))
}
