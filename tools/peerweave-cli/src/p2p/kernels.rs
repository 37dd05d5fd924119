//! The kernels of the probe (`probe.rs`), loaded in one context.

use std::sync::Arc;

use peerweave_driver::launch::{Arguments, Image, LaunchConfig, LoadedKernel, Module};
use peerweave_driver::{CudaContext, CudaStream};
use peerweave_vmm::VmmError;

/// The kernels that the probe launches. They belong to one module. The module is unloaded only
/// after all streams that ran its kernels have completed.
pub(super) struct Kernels {
    copy: LoadedKernel,
    ping: LoadedKernel,
}

/// Arguments of one side of a ping-pong.
pub(super) struct Ping {
    /// Address of the flag that this device waits for.
    pub(super) mine: u64,
    /// Address of the flag that the peer waits for.
    pub(super) theirs: u64,
    /// Address of the word that reports an error. If the flag does not arrive in a round, the
    /// kernel stores the number of this round in the word.
    pub(super) failed: u64,
    /// Whether this side sends the first flag.
    pub(super) is_first: bool,
    /// Number of round trips.
    pub(super) rounds: u32,
    /// Maximum number of times that the kernel reads its flag in a round before it reports an
    /// error.
    pub(super) most_looks: u32,
}

impl Kernels {
    pub(super) fn load(context: &Arc<CudaContext>) -> Result<Self, VmmError> {
        let module = Module::load(context, Image::Ptx(include_str!("kernels.ptx")))?;
        Ok(Self { copy: module.kernel("peerweave_probe_copy")?, ping: module.kernel("peerweave_probe_ping")? })
    }

    /// Enqueues a kernel that copies `pieces` times 16 bytes. `shape` is the number of blocks and
    /// the number of threads of a block.
    ///
    /// # Safety
    /// Both addresses point to `pieces` times 16 bytes, which the device may access until the
    /// kernel has ended. Until then, no other work writes the source or the target, or reads the
    /// target.
    pub(super) unsafe fn copy(
        &self,
        stream: &Arc<CudaStream>,
        target: u64,
        source: u64,
        pieces: u64,
        (blocks, threads): (u32, u32),
    ) -> Result<(), VmmError> {
        let arguments = (target, source, pieces);
        // SAFETY: the caller guarantees the access to the memory; the arguments have the types of
        // the kernel's parameters.
        let done = unsafe {
            self.copy.launch(stream, &LaunchConfig::new(blocks, threads), &Arguments::new().with_all(&arguments), Vec::new())
        };
        Ok(done?)
    }

    /// Enqueues the kernel of one side of a ping-pong.
    ///
    /// # Safety
    /// The device may access the words at the three addresses of `ping` until the kernel has ended.
    /// Until then, only this kernel and the peer's kernel use these words.
    pub(super) unsafe fn ping(&self, stream: &Arc<CudaStream>, ping: &Ping) -> Result<(), VmmError> {
        let Ping { mine, theirs, failed, is_first, rounds, most_looks } = *ping;
        let arguments = (mine, theirs, u32::from(is_first), rounds, most_looks, failed);
        // SAFETY: the caller guarantees the access to the memory; the arguments have the types of
        // the kernel's parameters.
        let done =
            unsafe { self.ping.launch(stream, &LaunchConfig::new(1, 1), &Arguments::new().with_all(&arguments), Vec::new()) };
        Ok(done?)
    }
}
