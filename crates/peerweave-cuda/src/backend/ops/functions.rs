//! Reductions by a function of the caller, which runs on the host. Each PE gathers the operands of
//! all ranks in pinned memory. A thread of the driver calls the function in stream order. Then the
//! stream copies the result to the result buffer.
//!
//! Invariant **\[G4\]**: on the device, only work that a call has enqueued accesses the pinned
//! memory of the call. The stream runs this work either before the function begins or after the
//! function has ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use peerweave_core::Error;
use peerweave_core::backend::{Collective, CollectiveKind, Special, combine_in_order, function_panicked};

use super::collectives::Path;
use crate::backend::enqueue::{Enqueue, Source};
use crate::backend::error::{driver, unsupported};
use crate::backend::resources::{Pinned, call_in_order};
use crate::backend::teams::TeamOf;

/// Maximum number of bytes of operands that a PE gathers before the function combines them. A
/// longer call is divided into pieces.
const PIECE: usize = 4 << 20;

/// A reduction by a function of the caller: the function, and the operands of all ranks in memory
/// of this PE.
struct Combination {
    call: &'static str,
    special: Arc<Special>,
    /// Pinned memory with the operands of the ranks, one after the other. The result overwrites the
    /// first operand.
    gathered: Arc<Pinned>,
    /// Number of operands that the function combines.
    operands: usize,
    /// The error of the function's first panic. Empty if the function has not panicked.
    panicked: Arc<OnceLock<Error>>,
}

impl Combination {
    /// Runs the reduction function of the program on the gathered operands. Each operand has
    /// `bytes` bytes. If the function panics, stores an error in `panicked`. Does nothing if the
    /// function has panicked before.
    fn run(&self, bytes: usize) {
        let Special::Function(function) = &*self.special else {
            unreachable!("peerweave-cuda bug: the operation has no function")
        };
        if self.panicked.get().is_some() {
            return;
        }
        let count = bytes / function.element_bytes();
        let read = |number: usize, at: usize, into: &mut [u8]| {
            // SAFETY: by [G4] only this thread accesses the words now.
            unsafe { self.gathered.words.read_bytes(number * bytes + at, into) };
        };
        // SAFETY: by [G4] only this thread accesses the words now.
        let write = |at: usize, from: &[u8]| unsafe { self.gathered.words.write_bytes(at, from) };
        let combine = || combine_in_order(&**function, self.operands, count, read, write);
        if let Err(payload) = catch_unwind(AssertUnwindSafe(combine)) {
            self.panicked.get_or_init(|| function_panicked(self.call, &*payload));
        }
    }
}

impl Enqueue<'_> {
    /// Enqueues a reduction or a scan. A function of the caller combines the operands.
    pub(super) fn by_function(&mut self, team: &TeamOf, op: &Collective) -> Result<Source, Error> {
        if self.capturing {
            let why = "a graph cannot capture a reduction by a function on the host; use a `ReduceOp`, or combine in a kernel";
            return Err(unsupported(self.call, why));
        }
        let special = op.special.as_ref().unwrap_or_else(|| panic!("peerweave-core bug: {} has no function", self.call));
        let (kernels, n, width) = (self.kernels_of(team)?, team.members.len(), op.element_bytes());
        let operands = match op.kind {
            CollectiveKind::Reduce if op.root.index() != team.me => 0,
            CollectiveKind::Scan => team.me + 1,
            CollectiveKind::ExclusiveScan => team.me,
            _ => n,
        };
        let bytes = op.count * width;
        let send = op.send.unwrap_or_else(|| panic!("peerweave-core bug: {} has no operand", self.call));
        let from = self.reading(send, bytes)?;
        let (to, staged) = match op.recv {
            Some(recv) if operands > 0 => self.writing(recv, bytes)?,
            _ => (0, None),
        };
        let piece = (PIECE / (n * width)).max(1) * width;
        let gathered = self.pinned(n * piece.min(bytes))?;
        // Makes the queue drop the caller's function, so that the driver's thread, which runs the
        // function, does not drop it.
        self.keep.push(Arc::<Special>::clone(special));
        let panicked = Arc::new(OnceLock::new());
        let combination = Arc::new(Combination {
            call: self.call,
            special: Arc::clone(special),
            gathered: Arc::clone(&gathered),
            operands,
            panicked: Arc::clone(&panicked),
        });
        for start in (0..bytes).step_by(piece) {
            let bytes = piece.min(bytes - start);
            let at = gathered.words.device_address(0);
            match kernels {
                Path::Kernels(collectives) => {
                    // SAFETY: the operand has `bytes` bytes, and the gathered memory `bytes` bytes
                    // for each rank. Both stay allocated until the stream has passed the call: they
                    // are recorded or held.
                    let enqueued = unsafe { collectives.all_gather(self.stream, from + start as u64, at, bytes as u64) };
                    self.enqueued(team, enqueued)?;
                }
                Path::Hosts(span) => {
                    self.all_gather_between(team, span, from + start as u64, at, bytes)?;
                }
            }
            if operands > 1 {
                let combination = Arc::clone(&combination);
                let run = Box::new(move || combination.run(bytes));
                call_in_order(self.stream, run).map_err(|error| driver(self.call, error))?;
            }
            if operands > 0 {
                self.copy(to + start as u64, at, bytes)?;
            }
        }
        self.written(staged)?;
        Ok(Source::Function(panicked))
    }
}
