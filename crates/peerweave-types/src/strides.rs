//! How the elements of a strided transfer lie in memory. Does not check that they fit.

/// How many elements a strided put or get moves, and how far apart they lie on both sides, in elements.
///
/// ```
/// use peerweave_types::Strides;
///
/// // Two elements that follow each other go to every other place.
/// let every_other = Strides { count: 2, source: 1, dest: 2 };
/// assert_eq!(every_other.dest, 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strides {
    /// How many elements.
    pub count: usize,
    /// From one element to the next where they are read; at least 1.
    pub source: usize,
    /// From one element to the next where they are written; at least 1.
    pub dest: usize,
}
