//! Launches of kernels, as plain data that a backend runs.

use peerweave_device::launch::PtxImage;
use peerweave_types::{ArgVisitor, Dim3, KernelContext};
use std::fmt;
use std::sync::Arc;

/// A kernel with its arguments and the shape of its grid. peerweave-core has checked that GPUs can
/// run a grid of this shape, and that the arguments refer to live memory.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel and its arguments.
    pub kernel: Arc<dyn BoundKernel>,
    /// The dimensions of the grid, in blocks.
    pub grid: Dim3,
    /// The dimensions of a block, in threads.
    pub block: Dim3,
    /// The dynamic shared memory of each block, in bytes.
    pub shared_bytes: usize,
    /// Whether blocks may wait for each other. If set, the blocks of the grid all run at the same
    /// time, or the launch fails.
    pub cooperative: bool,
}

/// A kernel and its arguments, with their types erased.
pub trait BoundKernel: Send + Sync + fmt::Debug {
    /// Returns the name of the kernel's entry function in the PTX.
    fn name(&self) -> &'static str;

    /// Returns the PTX of the crate that defines the kernel.
    fn ptx(&self) -> &'static PtxImage;

    /// Runs one thread of the kernel on the calling thread.
    ///
    /// # Safety
    /// Until the call returns, `context` points to a live [`KernelContext`], and the addresses in
    /// the context are valid in this process. The memory to which the arguments refer stays
    /// allocated.
    unsafe fn run_thread(&self, context: *const KernelContext);

    /// Calls `with(address, size, alignment)` for each argument, in the order of the kernel's
    /// parameters. The size and the alignment are in bytes.
    fn arguments(&self, with: &mut dyn FnMut(*const u8, usize, usize));

    /// Calls the visitor for each memory view and each team in the arguments, in order. A team is
    /// passed as its index in the [`KernelContext`]: the number that
    /// [`Backend::kernel_team`](crate::backend::Backend::kernel_team) has returned.
    fn visit(&self, visitor: &mut dyn ArgVisitor);
}
