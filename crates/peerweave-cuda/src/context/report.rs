//! The status block and the abort word: how a kernel that failed is heard, and how one that waits
//! is ended.
//!
//! Both are in pinned memory, so that neither side needs the other's progress. Invariant: the
//! layout of the words is that of `KernelStatus`.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use peerweave_driver::launch::MappedWords;
use peerweave_driver::{CudaContext, CudaStream, DriverError, Keep};
use peerweave_types::{FailureKind, KernelOp, KernelStatus, Pe};

use crate::error::KernelFailure;

const STATUS_WORDS: usize = size_of::<KernelStatus>() / 4;
/// In a line of its own: waits read it often.
const ABORT: usize = 32;
const WORDS: usize = 64;

/// Status block and abort word of one GPU.
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

    /// Where kernels write the status.
    pub(crate) fn status_address(&self) -> u64 {
        self.0.device_address(0)
    }

    /// Where kernels read whether they are to end.
    pub(crate) fn abort_address(&self) -> u64 {
        self.0.device_address(ABORT)
    }

    /// Has all waits of kernels fail, now and later, until [`clear`](Self::clear).
    pub(crate) fn abort(&self) {
        self.0.word(ABORT).store(1, Ordering::SeqCst);
    }

    /// What the first kernel that failed wrote, if it has written all of it.
    pub(crate) fn failure(&self) -> Option<KernelFailure> {
        // Written last, by a release.
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

    /// Forgets a failure and lets waits wait again. No kernel of this GPU may run.
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
