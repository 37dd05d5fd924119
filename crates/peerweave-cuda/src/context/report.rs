//! The status block and the abort word of a GPU. A failed kernel writes its failure report to the
//! status block. The host sets the abort word to end waiting kernels.
//!
//! The words are in pinned memory, so the host can access them while kernels run. Invariant: the
//! words of the status block have the layout of `KernelStatus`.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use peerweave_driver::launch::MappedWords;
use peerweave_driver::{CudaContext, CudaStream, DriverError, Keep};
use peerweave_types::{FailureKind, KernelOp, KernelStatus, Pe};

use crate::error::KernelFailure;

const STATUS_WORDS: usize = size_of::<KernelStatus>() / 4;
/// Index of the abort word, in 32-bit words. The word has its own cache line, because waiting
/// kernels read it often.
const ABORT: usize = 32;
const WORDS: usize = 64;

/// The status block and the abort word of a GPU, in pinned memory.
#[derive(Clone, Debug)]
pub(crate) struct Report(MappedWords);

macro_rules! word_of {
    ($field:ident) => {
        offset_of!(KernelStatus, $field) / 4
    };
}

impl Report {
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        const { assert!(STATUS_WORDS <= ABORT) };
        Ok(Self(MappedWords::new(context, WORDS)?))
    }

    /// Returns the device address of the status block.
    pub(crate) fn status_address(&self) -> u64 {
        self.0.device_address(0)
    }

    /// Returns the device address of the abort word.
    pub(crate) fn abort_address(&self) -> u64 {
        self.0.device_address(ABORT)
    }

    /// Makes all current and later waits of kernels fail, until [`clear`](Self::clear) is called.
    pub(crate) fn abort(&self) {
        self.0.word(ABORT).store(1, Ordering::SeqCst);
    }

    /// Returns the failure report of the first kernel that failed. Returns `None` if no kernel has
    /// failed, or if the report is not complete.
    pub(crate) fn failure(&self) -> Option<KernelFailure> {
        // The kernel writes this word last, with release ordering.
        let kind = self.0.word(word_of!(kind)).load(Ordering::Acquire);
        if kind == 0 {
            return None;
        }
        let word = |index: usize| self.0.word(index).load(Ordering::Relaxed);
        let wide = |index: usize| u64::from(word(index)) | u64::from(word(index + 1)) << 32;
        let named = |number: u32| (number != KernelStatus::NONE).then_some(number);
        Some(KernelFailure {
            kind: FailureKind::from_number(kind),
            operation: KernelOp::from_number(word(word_of!(operation))),
            pe: named(word(word_of!(pe))).map(Pe::new),
            team: named(word(word_of!(team))),
            expected: wide(word_of!(expected)),
            found: wide(word_of!(found)),
            block: word(word_of!(block)),
            thread: word(word_of!(thread)),
        })
    }

    /// Clears the failure report and the abort word. No kernel of this GPU may run during the call.
    pub(crate) fn clear(&self) {
        let claimed = word_of!(claimed);
        (0..STATUS_WORDS).filter(|index| *index != claimed).for_each(|index| self.0.word(index).store(0, Ordering::Relaxed));
        self.0.word(ABORT).store(0, Ordering::Release);
        self.0.word(claimed).store(0, Ordering::Release);
    }

    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        self.0.note(stream);
    }

    pub(crate) fn keep(&self) -> Keep {
        self.0.keep()
    }
}
