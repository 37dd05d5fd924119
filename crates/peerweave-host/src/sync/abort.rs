//! The end of the job by one of its PEs.
//!
//! PEs agree by one word, which the first abort sets. If PEs are processes, it lies in the page of
//! PE 0, and a PE that finds it set ends its process. It is set before any process ends. So a PE
//! that finds another one gone, and looks at the word afterwards, sees the abort and not a death.
//! The rendezvous notifies processes that do not wait.

use crate::memory::layout::Segments;
use crate::sync::peers::Peers;
use peerweave_bootstrap::end_process;
use peerweave_core::Error;
use peerweave_core::backend::AbortWord;
use peerweave_types::Pe;
use std::sync::atomic::Ordering;

/// The word of the job.
#[derive(Clone, Debug)]
pub(crate) enum JobAbort {
    /// PEs are threads of this process.
    OfThreads(AbortWord),
    /// PEs are processes.
    OfProcesses,
}

/// Aborts a job of processes, unless it was aborted before. Returns the first abort.
fn claim(segments: &Segments, by: Pe, code: u8) -> (Pe, u8) {
    let word = AbortWord::encode(by, code);
    match segments.page(0).abort.compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => (by, code),
        Err(first) => AbortWord::decode(first).unwrap_or((by, code)),
    }
}

/// Ends this process because the rendezvous has reported the abort of its job. The word decides
/// the code, since two aborts can reach the word and the rendezvous in different orders.
pub(crate) fn end_notified(segments: &Segments, by: Pe, code: u8) -> ! {
    end_process(claim(segments, by, code).1)
}

impl Peers {
    /// Aborts the job, unless it was aborted before. Returns the first abort.
    pub(crate) fn claim_abort(&self, code: u8) -> (Pe, u8) {
        let me = Pe::new(self.me as u32);
        match &self.job_abort {
            JobAbort::OfThreads(word) => word.abort(me, code),
            JobAbort::OfProcesses => claim(&self.segments, me, code),
        }
    }

    /// Returns the error of calls after an abort; `None` before. Ends the process if PEs are
    /// processes.
    pub(crate) fn abort_error(&self) -> Option<Error> {
        match &self.job_abort {
            JobAbort::OfThreads(word) => word.error(),
            JobAbort::OfProcesses => match AbortWord::decode(self.segments.page(0).abort.load(Ordering::Acquire)) {
                Some((_, code)) => end_process(code),
                None => None,
            },
        }
    }

    /// Fails if the job was aborted.
    pub(crate) fn check_abort(&self) -> Result<(), Error> {
        self.abort_error().map_or(Ok(()), Err)
    }
}
