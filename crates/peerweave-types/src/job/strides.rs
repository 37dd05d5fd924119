//! The layout of strided puts and gets. This module does not check bounds.

/// The number of elements in a strided put or get, and the distances between them, in elements.
///
/// ```
/// use peerweave_types::Strides;
///
/// // Two adjacent elements are copied to every second place.
/// let every_other = Strides { count: 2, source: 1, dest: 2 };
/// assert_eq!(every_other.dest, 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strides {
    /// Number of elements to transfer.
    pub count: usize,
    /// Distance between consecutive elements in the source; at least 1.
    pub source: usize,
    /// Distance between consecutive elements in the destination; at least 1.
    pub dest: usize,
}
