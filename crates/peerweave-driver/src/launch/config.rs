//! The shape and options of a kernel launch.

use peerweave_types::Dim3;

/// The shape of a grid, and the options with which the grid is launched.
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
    /// Number of blocks in each dimension.
    pub grid: Dim3,
    /// Number of threads per block in each dimension.
    pub block: Dim3,
    /// Dynamic shared memory per block, in bytes.
    pub shared_bytes: u32,
    /// Whether all blocks must be resident at once. A kernel whose blocks wait for each other needs
    /// this option. If the grid has more blocks than can be resident, the launch is refused.
    pub cooperative: bool,
    /// Whether the kernel may start before the previous kernel in the stream has ended. With this
    /// option, the kernel must execute `griddepcontrol.wait` before it reads data that the previous
    /// kernel writes. Below compute capability 9.0, this option has no effect.
    pub programmatic: bool,
}

impl LaunchConfig {
    /// Returns the configuration of a launch with `grid` blocks of `block` threads, without
    /// options.
    pub fn new(grid: impl Into<Dim3>, block: impl Into<Dim3>) -> Self {
        Self { grid: grid.into(), block: block.into(), shared_bytes: 0, cooperative: false, programmatic: false }
    }

    /// Sets the size of the dynamic shared memory per block, in bytes.
    #[must_use]
    pub fn shared_bytes(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }

    /// Requires all blocks to be resident at once.
    #[must_use]
    pub fn cooperative(self) -> Self {
        Self { cooperative: true, ..self }
    }

    /// Allows the kernel to start before the previous kernel in the stream has ended. The kernel
    /// must execute `griddepcontrol.wait` before it reads data that the previous kernel writes.
    #[must_use]
    pub fn programmatic(self) -> Self {
        Self { programmatic: true, ..self }
    }
}
