//! The abort of a job by one of its PEs.
//!
//! PEs agree on the first abort through one word, which the first abort sets. If PEs are processes,
//! the word is in the page of PE 0, and a PE that finds the word set ends its process. The word is
//! set before any process ends because of the abort. So a PE that first finds another PE gone, and
//! then reads the word, detects the abort and does not report a death. Only PEs that wait for other
//! PEs read the word. The rendezvous notifies the PEs that do not wait.

use crate::memory::layout::Segments;
use crate::sync::peers::Peers;
use peerweave_bootstrap::end_process;
use peerweave_core::Error;
use peerweave_core::backend::AbortWord;
use peerweave_types::Pe;
use std::sync::atomic::Ordering;

/// The location of the abort word of the job.
#[derive(Clone, Debug)]
pub(crate) enum JobAbort {
    /// PEs are threads of this process. They share this abort word.
    OfThreads(AbortWord),
    /// PEs are processes. The abort word is in the shared memory segment of PE 0.
    OfProcesses,
}

/// Aborts a job of processes, unless the job was aborted before. Returns the PE and the exit code
/// of the first abort.
fn claim(segments: &Segments, by: Pe, code: u8) -> (Pe, u8) {
    let word = AbortWord::encode(by, code);
    match segments.page(0).abort.compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => (by, code),
        Err(first) => AbortWord::decode(first).unwrap_or((by, code)),
    }
}

/// Ends this process after the rendezvous has reported that PE `by` has aborted the job with the
/// exit code `code`. The exit code of this process comes from the abort word, which contains the
/// first abort. It may differ from `code` if two PEs abort the job at the same time. If the abort
/// word is empty, this function stores the reported abort in it.
pub(crate) fn end_notified(segments: &Segments, by: Pe, code: u8) -> ! {
    end_process(claim(segments, by, code).1)
}

impl Peers {
    /// Aborts the job, unless the job was aborted before. Returns the PE and the exit code of the
    /// first abort.
    pub(crate) fn claim_abort(&self, code: u8) -> (Pe, u8) {
        let me = Pe::new(self.me as u32);
        match &self.job_abort {
            JobAbort::OfThreads(word) => word.abort(me, code),
            JobAbort::OfProcesses => claim(&self.segments, me, code),
        }
    }

    /// Returns `None` if the job was not aborted. If the job was aborted, there are two cases. If
    /// PEs are threads, returns the error that all later calls return. If PEs are processes, ends
    /// this process.
    pub(crate) fn abort_error(&self) -> Option<Error> {
        match &self.job_abort {
            JobAbort::OfThreads(word) => word.error(),
            JobAbort::OfProcesses => match AbortWord::decode(self.segments.page(0).abort.load(Ordering::Acquire)) {
                Some((_, code)) => end_process(code),
                None => None,
            },
        }
    }

    /// Succeeds if the job was not aborted. If the job was aborted, there are two cases. If PEs are
    /// threads, returns an error. If PEs are processes, ends this process.
    pub(crate) fn check_abort(&self) -> Result<(), Error> {
        self.abort_error().map_or(Ok(()), Err)
    }
}
