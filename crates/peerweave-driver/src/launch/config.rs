//! The shape of a launch and how it runs.

use peerweave_types::Dim3;

/// The shape of a grid and how it is launched.
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
    /// Blocks.
    pub grid: Dim3,
    /// Threads of a block.
    pub block: Dim3,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Whether all blocks must be resident at once, as is needed where they wait for each other. A
    /// grid that is too large is refused.
    pub cooperative: bool,
    /// Whether the kernel may begin before the one before it in the stream has ended. It must then
    /// wait for it by itself (`griddepcontrol.wait`) before it reads what that kernel writes. Needs
    /// compute capability 9.0; elsewhere the kernel begins later.
    pub programmatic: bool,
}

impl LaunchConfig {
    /// A plain launch of this shape.
    pub fn new(grid: impl Into<Dim3>, block: impl Into<Dim3>) -> Self {
        Self { grid: grid.into(), block: block.into(), shared_bytes: 0, cooperative: false, programmatic: false }
    }

    /// With dynamic shared memory for each block.
    #[must_use]
    pub fn shared_bytes(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }

    /// With all blocks resident at once.
    #[must_use]
    pub fn cooperative(self) -> Self {
        Self { cooperative: true, ..self }
    }

    /// With a programmatic start: see [`programmatic`](Self::programmatic).
    #[must_use]
    pub fn programmatic(self) -> Self {
        Self { programmatic: true, ..self }
    }
}
