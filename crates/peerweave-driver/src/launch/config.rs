//! The shape and options of a launch.

use peerweave_types::Dim3;

/// The shape of a grid and the options of its launch.
///
/// ```
/// use peerweave_driver::launch::LaunchConfig;
///
/// let config = LaunchConfig::new(8, (32, 4)).shared_bytes(4096).cooperative();
/// assert_eq!((config.grid.count(), config.block.count()), (8, 128));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchConfig {
    /// Number of blocks.
    pub grid: Dim3,
    /// Threads per block.
    pub block: Dim3,
    /// Dynamic shared memory per block, in bytes.
    pub shared_bytes: u32,
    /// Whether all blocks must be resident at once. This is necessary if blocks wait for each
    /// other. A launch of a larger grid is refused.
    pub cooperative: bool,
    /// Whether the kernel may start before the previous kernel in the stream has ended. The kernel
    /// must then wait (`griddepcontrol.wait`) before it reads data that the previous kernel writes.
    /// Below compute capability 9.0 this option has no effect.
    pub programmatic: bool,
}

impl LaunchConfig {
    /// Returns a launch of this shape without options.
    pub fn new(grid: impl Into<Dim3>, block: impl Into<Dim3>) -> Self {
        Self { grid: grid.into(), block: block.into(), shared_bytes: 0, cooperative: false, programmatic: false }
    }

    /// Sets the dynamic shared memory per block.
    #[must_use]
    pub fn shared_bytes(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }

    /// Requires all blocks to be resident at once.
    #[must_use]
    pub fn cooperative(self) -> Self {
        Self { cooperative: true, ..self }
    }

    /// Enables the early start described at [`programmatic`](Self::programmatic).
    #[must_use]
    pub fn programmatic(self) -> Self {
        Self { programmatic: true, ..self }
    }
}
