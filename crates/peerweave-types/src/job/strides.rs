//! Layout of strided transfers. Does not check bounds.

/// Number of elements of a strided put or get, and their distances on both sides, in elements.
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
    /// Number of elements.
    pub count: usize,
    /// Distance between elements in the source; at least 1.
    pub source: usize,
    /// Distance between elements in the destination; at least 1.
    pub dest: usize,
}
