//! The collectives all_gather and all_to_all, in which each rank gets a part from every rank.

use std::sync::Arc;

use peerweave_collectives::exchange::{self, Exchange};
use peerweave_collectives::{Call, LINE_BYTES};
use peerweave_core::backend::CollectiveKind;
use peerweave_driver::CudaStream;
use peerweave_types::KernelOp;

use super::Collectives;
use super::operands::check_parts;
use crate::error::CudaError;
use crate::route::OwnPath;

impl Collectives {
    /// Enqueues an all_gather: every rank contributes one part of `bytes` bytes, and gets the parts
    /// of all ranks in the order of ranks. `send` may be this rank's part of `recv`.
    ///
    /// # Collective
    /// All ranks, with the same length.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce).
    pub unsafe fn all_gather(&self, stream: &Arc<CudaStream>, send: u64, recv: u64, bytes: u64) -> Result<(), CudaError> {
        const CALL: &str = "all_gather";
        self.check_gather(CALL, send, recv, bytes)?;
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.exchange(CALL, Exchange::AllGather, stream, send, recv, bytes) }
    }

    /// Checks the operands of an all_gather, or of a gather on the root. In both calls, `recv` gets
    /// the parts of all ranks. Returns whether `send` is this rank's part of `recv`.
    pub(super) fn check_gather(&self, call: &'static str, send: u64, recv: u64, bytes: u64) -> Result<bool, CudaError> {
        let ranks = u64::from(self.staging.limits.ranks);
        let is_own = recv.checked_add(bytes.saturating_mul(u64::from(self.rank.get()))) == Some(send);
        let operands = if is_own { [(recv, ranks), (recv, 0)] } else { [(send, 1), (recv, ranks)] };
        check_parts(call, operands, bytes, 1)?;
        Ok(is_own)
    }

    /// Enqueues an all_to_all: rank `r` gets part `r` of the `send` of every rank. On rank `r`, the
    /// part from rank `s` becomes part `s` of `recv`. A part has `bytes` bytes. `send` may be equal
    /// to `recv`.
    ///
    /// # Collective
    /// All ranks, with the same length.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce).
    pub unsafe fn all_to_all(&self, stream: &Arc<CudaStream>, send: u64, recv: u64, bytes: u64) -> Result<(), CudaError> {
        const CALL: &str = "all_to_all";
        let ranks = u64::from(self.staging.limits.ranks);
        // In place, a thread sends its lines of all parts before it writes these lines.
        let operands = if send == recv { [(send, ranks), (recv, 0)] } else { [(send, ranks), (recv, ranks)] };
        check_parts(CALL, operands, bytes, 1)?;
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.exchange(CALL, Exchange::AllToAll, stream, send, recv, bytes) }
    }

    /// Enqueues an all_gather or an all_to_all. The argument `exchange` selects one of them.
    ///
    /// # Safety
    /// As for [`all_gather`](Self::all_gather) or [`all_to_all`](Self::all_to_all).
    unsafe fn exchange(
        &self,
        name: &'static str,
        exchange: Exchange,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        bytes: u64,
    ) -> Result<(), CudaError> {
        let limits = &self.staging.limits;
        let (kind, operation, stride) = match exchange {
            Exchange::AllGather => (CollectiveKind::AllGather, KernelOp::AllGather, 0),
            Exchange::AllToAll => (CollectiveKind::AllToAll, KernelOp::AllToAll, bytes),
        };
        let (OwnPath::Lines { route, .. }, _, _) = self.routes.exchange(kind, bytes, limits) else {
            let sent = |rank: u64| send + rank * stride;
            // SAFETY: the caller guarantees the operands. In place, a block sends its chunk of a
            // part before it overwrites this chunk by the received chunk.
            return unsafe { self.exchange_messages(name, operation, stream, sent, recv, bytes) };
        };
        if bytes == 0 {
            return Ok(());
        }
        let is_whole = (send | recv | bytes).is_multiple_of(LINE_BYTES as u64);
        let slot = &self.exchanges[exchange as usize][usize::from(is_whole)];
        let kernel = self.loaded(slot, name, None, || exchange::kernel(exchange, limits.ranks, is_whole))?;
        let call = Call { send, recv, count: bytes, ..self.staging.banks };
        // SAFETY: the caller guarantees the operands; the areas belong to this team.
        unsafe { self.enqueue(name, stream, kernel, route, call, bytes * u64::from(limits.ranks)) }
    }
}
