//! The lengths (counts) and offsets of the parts of a buffer, for collectives whose parts have
//! different lengths.

use crate::backend::VectorCounts;
use peerweave_types::Rank;
use std::ops::Range;

/// Returns the offset of each part, for parts that lie one after the other without gaps.
fn running_sums(counts: &[usize]) -> Vec<usize> {
    let mut next = 0usize;
    // The sum saturates, so that the check of the bounds fails for counts that are too large.
    let mut offset = |&count| {
        let offset = next;
        next = next.saturating_add(count);
        offset
    };
    counts.iter().map(&mut offset).collect()
}

/// Constructors for the counts of an all-to-all-v.
///
/// To derive the receive counts from the send counts, use
/// [`Team::exchange_counts`](crate::Team::exchange_counts).
impl VectorCounts {
    /// Returns counts for parts that are contiguous and in rank order in the send buffer and in the
    /// receive buffer: each offset is the sum of the counts before it. Accepts arrays, slices and
    /// vectors.
    ///
    /// ```
    /// use peerweave::VectorCounts;
    ///
    /// let received = vec![3, 0];
    /// let counts = VectorCounts::packed([1, 2], &received[..]);
    /// assert_eq!(counts.send_offsets, [0, 1]);
    /// assert_eq!(counts.recv_offsets, [0, 3]);
    /// ```
    pub fn packed(send_counts: impl Into<Vec<usize>>, recv_counts: impl Into<Vec<usize>>) -> Self {
        let (send_counts, recv_counts) = (send_counts.into(), recv_counts.into());
        let (send_offsets, recv_offsets) = (running_sums(&send_counts), running_sums(&recv_counts));
        Self { send_counts, send_offsets, recv_counts, recv_offsets }
    }

    /// Returns counts for `ranks` ranks, where each rank sends `count` elements to every rank. The
    /// parts are contiguous and in rank order, as in [`Team::all_to_all`](crate::Team::all_to_all).
    ///
    /// ```
    /// use peerweave::VectorCounts;
    ///
    /// assert_eq!(VectorCounts::equal(2, 3), VectorCounts::packed([3, 3], [3, 3]));
    /// ```
    pub fn equal(ranks: usize, count: usize) -> Self {
        Self::packed(vec![count; ranks], vec![count; ranks])
    }

    /// Returns the minimum length of the send buffer: the end of the part that ends last, in
    /// elements.
    pub fn send_end(&self) -> usize {
        end(&self.send_offsets, &self.send_counts)
    }

    /// Returns the minimum length of the receive buffer: the end of the part that ends last, in
    /// elements.
    pub fn recv_end(&self) -> usize {
        end(&self.recv_offsets, &self.recv_counts)
    }
}

/// Returns the end of the non-empty part that ends last, in elements; 0 if all parts are empty.
fn end(offsets: &[usize], counts: &[usize]) -> usize {
    let parts = std::iter::zip(offsets, counts).filter(|&(_, &count)| count > 0);
    parts.map(|(offset, &count)| offset.saturating_add(count)).max().unwrap_or(0)
}

/// The length and the offset of each rank's part in a buffer of
/// [`all_gather_v`](crate::Team::all_gather_v), [`gather_v`](crate::Team::gather_v) or
/// [`scatter_v`](crate::Team::scatter_v), in elements. Each list has one entry per rank of the
/// team.
///
/// The default value has no parts. In a gather-v or scatter-v, only the root uses the parts, so the
/// other ranks can pass the default value.
///
/// ```
/// use peerweave::{Parts, Rank};
///
/// let parts = Parts::packed([2, 0, 3]);
/// assert_eq!(parts.offsets, [0, 2, 2]);
/// assert_eq!(parts.range(Rank::new(2)), 2..5);
/// assert_eq!(parts.end(), 5); // the length of a buffer that holds them
/// assert_eq!(Parts::equal(3, 4), Parts::packed([4, 4, 4]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Parts {
    /// The number of elements in each part, by rank.
    pub counts: Vec<usize>,
    /// The offset of each part in the buffer, by rank. The offset of an empty part is ignored.
    pub offsets: Vec<usize>,
}

impl Parts {
    /// Creates parts with the lengths `counts` at the offsets `offsets`.
    pub fn new(counts: impl Into<Vec<usize>>, offsets: impl Into<Vec<usize>>) -> Self {
        Self { counts: counts.into(), offsets: offsets.into() }
    }

    /// Creates contiguous parts, in rank order, with the lengths `counts`.
    pub fn packed(counts: impl Into<Vec<usize>>) -> Self {
        let counts = counts.into();
        let offsets = running_sums(&counts);
        Self { counts, offsets }
    }

    /// Creates `ranks` contiguous parts, in rank order, of `count` elements each.
    pub fn equal(ranks: usize, count: usize) -> Self {
        Self::packed(vec![count; ranks])
    }

    /// Returns the range of buffer indices that the part of `rank` occupies.
    ///
    /// # Panics
    /// Panics if the lists have no entry for `rank`.
    pub fn range(&self, rank: Rank) -> Range<usize> {
        let (offset, count) = (self.offsets[rank.index()], self.counts[rank.index()]);
        offset..offset.saturating_add(count)
    }

    /// Returns the minimum length of the buffer: the end of the part that ends last, in elements.
    pub fn end(&self) -> usize {
        end(&self.offsets, &self.counts)
    }
}
