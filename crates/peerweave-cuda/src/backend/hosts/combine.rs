//! Loads and launches kernels that combine the operands of several ranks. This PE has already
//! gathered these operands in its own memory.

use peerweave_collectives::LINE_BYTES;
use peerweave_collectives::combine::{self, Combine};
use peerweave_core::Error;
use peerweave_driver::launch::{Arguments, LaunchConfig, LoadedKernel};
use peerweave_types::{DType, ReduceOp};

use crate::backend::enqueue::Enqueue;
use crate::backend::error::driver;

/// Maximum number of bytes of operands that a PE gathers before it combines them. A longer call is
/// divided into pieces.
pub(super) const PIECE: usize = 32 << 20;

/// Maximum length in bytes of an all_reduce in which every rank gathers and combines all operands.
/// Such a call sends all data in one step. In a longer call, each rank combines a part of the
/// operands, and a second step sends the results.
const GATHERED: usize = 32 << 10;

/// Returns whether an all_reduce of `count` elements is so short that every rank gathers and
/// combines all operands.
pub(super) fn is_gathered(dtype: DType, count: usize) -> bool {
    count.saturating_mul(dtype.size_bytes()) <= GATHERED
}

/// The element type and the reduction of a call. The factors of `PreMulSum` are already applied to
/// the operands.
#[derive(Clone, Copy)]
pub(super) struct Reduction {
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
}

/// Operands of several ranks, in the memory of this device. The distance between two neighbouring
/// operands is constant.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    /// Address of the first operand.
    pub(super) at: u64,
    /// Distance in bytes from the start of an operand to the start of the next operand.
    pub(super) stride: usize,
    /// Number of operands.
    pub(super) number: usize,
}

impl Reduction {
    /// Returns the reduction that combines the operands of one host, before the results of all
    /// hosts are combined. For `Avg` this is the sum, because only the last step divides.
    pub(super) fn inside(self) -> Self {
        Self { op: if self.op == ReduceOp::Avg { ReduceOp::Sum } else { self.op }, ..self }
    }
}

impl<'a> Enqueue<'a> {
    /// Returns the kernel that combines elements of type `dtype`. The first call for a type loads
    /// the kernel.
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

    /// Enqueues a kernel that reduces the operands element by element, and writes the `count`
    /// results to address `to`. For [`ReduceOp::PreMulSum`], the kernel multiplies every operand by
    /// `scalar`. For [`ReduceOp::Avg`], the kernel divides the sum by `ranks`.
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
