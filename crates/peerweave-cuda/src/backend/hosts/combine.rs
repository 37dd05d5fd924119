//! The kernels that combine operands.

use peerweave_collectives::LINE_BYTES;
use peerweave_collectives::combine::{self, Combine};
use peerweave_core::Error;
use peerweave_driver::launch::{Arguments, LaunchConfig, LoadedKernel};
use peerweave_types::{DType, ReduceOp};

use crate::backend::enqueue::Enqueue;
use crate::backend::error::driver;

/// Maximum number of bytes of the operands that are gathered at a time.
pub(super) const PIECE: usize = 32 << 20;

/// Maximum number of bytes of an all_reduce in which every rank gathers and combines all operands.
/// One step then sends all data. In a longer call, each rank combines a part, and a second step
/// sends the results.
const GATHERED: usize = 32 << 10;

/// Returns whether every rank gathers and combines all operands of an all_reduce.
pub(super) fn is_gathered(dtype: DType, count: usize) -> bool {
    count.saturating_mul(dtype.size_bytes()) <= GATHERED
}

/// The element type and the reduction of a call whose operands are already scaled.
#[derive(Clone, Copy)]
pub(super) struct Reduction {
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
}

/// Operands at equal distances in memory of this device.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    pub(super) at: u64,
    pub(super) stride: usize,
    pub(super) number: usize,
}

impl Reduction {
    /// Returns the reduction for the operands of one host. Its result is later combined with the
    /// results of other hosts.
    pub(super) fn inside(self) -> Self {
        Self { op: if self.op == ReduceOp::Avg { ReduceOp::Sum } else { self.op }, ..self }
    }
}

impl<'a> Enqueue<'a> {
    /// Returns the kernel that combines elements of a type, and loads it at the first call.
    pub(super) fn combiner(&self, dtype: DType) -> Result<&'a LoadedKernel, Error> {
        let slot = &self.state.combiners[dtype as usize];
        if let Some(kernel) = slot.get() {
            return Ok(kernel);
        }
        let kernel = combine::kernel(dtype);
        let kernel = kernel.unwrap_or_else(|| panic!("peerweave-core bug: no kernel combines elements of {dtype}"));
        let loaded = self.gpu.0.entry(kernel.ptx(), kernel.name()).map_err(self.state.portable(self.call))?;
        Ok(slot.get_or_init(|| loaded))
    }

    /// Enqueues the reduction of `count` elements of each operand to `to`. With
    /// [`ReduceOp::PreMulSum`], every operand is multiplied by `scalar`. `ranks` is the number by
    /// which [`ReduceOp::Avg`] divides.
    pub(super) fn combine(
        &mut self,
        Reduction { dtype, op }: Reduction,
        operands: Operands,
        to: u64,
        count: usize,
        ranks: usize,
        scalar: u64,
    ) -> Result<(), Error> {
        const THREADS: usize = 256;
        if count == 0 {
            return Ok(());
        }
        self.state.poisoned(self.call, self.state.world())?;
        let kernel = self.combiner(dtype)?;
        let Operands { at: send, stride, number } = operands;
        let call = Combine {
            send,
            recv: to,
            count: count as u64,
            stride: stride as u64,
            scalar,
            operands: number as u32,
            ranks: ranks as u32,
            op: op as u32,
            reserved: 0,
        };
        let lines = (count * dtype.size_bytes()).div_ceil(LINE_BYTES);
        let blocks = lines.div_ceil(THREADS).clamp(1, 1024) as u32;
        let context = self.gpu.kernels.context();
        let arguments = Arguments::new().with(&context).with(&call);
        let keep = self.capturing.then(|| self.kept_by_kernels());
        // SAFETY: the kernel takes the context and a call; operands and result stay allocated until
        // the stream has passed the call: they are recorded or held, and a graph keeps them.
        let launched = unsafe { kernel.launch_into(self.stream, &LaunchConfig::new(blocks, THREADS as u32), &arguments, keep) };
        launched.map_err(|error| driver(self.call, error))
    }
}
