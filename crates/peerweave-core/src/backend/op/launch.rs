//! Launches of kernels.

use peerweave_device::launch::PtxImage;
use peerweave_types::{ArgVisitor, Dim3, KernelContext};
use std::fmt;
use std::sync::Arc;

/// A kernel with its arguments and the shape of its grid. The core has checked that GPUs can run
/// this shape, and that the arguments name live memory.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel and its arguments.
    pub kernel: Arc<dyn BoundKernel>,
    /// The shape of the grid, in blocks.
    pub grid: Dim3,
    /// The shape of a block, in threads.
    pub block: Dim3,
    /// The dynamic shared memory of each block, in bytes.
    pub shared_bytes: usize,
    /// Whether blocks may wait for each other: either all run at the same time, or the launch
    /// fails.
    pub cooperative: bool,
}

/// A kernel and its arguments, without their types.
pub trait BoundKernel: Send + Sync + fmt::Debug {
    /// Returns the name of the entry in the PTX.
    fn name(&self) -> &'static str;

    /// Returns the PTX of the kernel's crate.
    fn ptx(&self) -> &'static PtxImage;

    /// Runs one thread of the kernel on the calling thread.
    ///
    /// # Safety
    /// The context is alive until the call returns, its addresses are those of this process, and
    /// the memory that the arguments name is allocated.
    unsafe fn run_thread(&self, context: *const KernelContext);

    /// Calls `with` for each argument in order: its address, its size and its alignment in bytes.
    fn arguments(&self, with: &mut dyn FnMut(*const u8, usize, usize));

    /// Passes each view of memory and each team in the arguments to the visitor, in order. The
    /// numbers of these teams are those that [`KernelContext`] uses, from
    /// [`Backend::kernel_team`](crate::backend::Backend::kernel_team).
    fn visit(&self, visitor: &mut dyn ArgVisitor);
}
