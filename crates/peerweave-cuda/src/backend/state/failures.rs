//! Records the first failure of a PE, and finds the reason of a failure.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use peerweave_core::{AwaitedWord, Error, FailureKind, PeerCause, TeamName, Timeout};
use peerweave_types::Pe;

use super::State;
use crate::backend::error::{NAME, cause, mismatch, portable};
use crate::backend::lock::lock;
use crate::backend::teams::TeamOf;
use crate::error::CudaError;

impl State {
    /// Returns the first failure that this PE has recorded: a failure of a kernel or of NCCL, or a
    /// mismatch between the calls of ranks. After a failure, all teams are poisoned.
    pub(crate) fn failure(&self) -> Option<Error> {
        lock(&self.failure).clone()
    }

    /// Records `error` as the failure of this PE if no earlier failure is recorded. Returns
    /// `error`.
    ///
    /// If another PE caused the failure, reports that PE to the rendezvous. If this PE later ends
    /// because of the failure, the errors of other PEs name the reported PE.
    pub(crate) fn record(&self, error: Error) -> Error {
        let mut is_first = false;
        lock(&self.failure).get_or_insert_with(|| {
            is_first = true;
            error.clone()
        });
        self.has_failure.store(true, Ordering::Release);
        let at_fault = error.blamed().into_iter().find(|pe| *pe != self.job.my_pe);
        if let (true, Some(pe), Some(rendezvous)) = (is_first, at_fault, lock(&self.rendezvous).clone()) {
            rendezvous.report_root_cause(pe);
        }
        error
    }

    /// Fails with [`Error::Poisoned`] if this PE has recorded a failure. Operations that need
    /// kernels call this function first.
    pub(crate) fn poisoned(&self, call: &'static str, team: TeamName) -> Result<(), Error> {
        if !self.has_failure.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.failure() {
            Some(because) => Err(Error::Poisoned { call, team, because: Arc::new(because) }),
            None => Ok(()),
        }
    }

    /// Compares the recorded collectives and messages of a team's ranks with those of this PE.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the collectives or messages differ. This error is also recorded as
    /// the failure of this PE.
    pub(crate) fn compare(&self, team: &TeamOf) -> Result<(), Error> {
        let found = self.calls.as_ref().and_then(|calls| calls.difference(team));
        found.map_or(Ok(()), |(pe, mine, theirs)| Err(self.record(mismatch(team.name(), pe, mine, theirs))))
    }

    /// Compares the recorded calls of this PE with the calls of other ranks, in every team of this
    /// PE: see [`compare`](Self::compare). Returns the first error.
    pub(crate) fn compare_all(&self) -> Result<(), Error> {
        if self.calls.is_none() {
            return Ok(());
        }
        self.teams.try_each(|team| self.compare(team))
    }

    /// Returns the error of `call` after a kernel of the application has failed. The error contains
    /// the reason of the failure.
    pub(crate) fn kernel_failure(&self, call: &'static str, team: TeamName) -> Error {
        self.reported_failure(call, team, |error| portable(call, team, error))
    }

    /// Returns the error of `call` after an operation of this backend has failed. The error
    /// contains the reason of the failure. If the operation waited for one word in symmetric
    /// memory, `word` describes that word. The field `found` of `word` is ignored.
    pub(crate) fn operation_failure(&self, call: &'static str, team: TeamName, word: Option<AwaitedWord>) -> Error {
        self.reported_failure(call, team, |error| match error {
            CudaError::Kernel { failure, .. } if failure.kind == Some(FailureKind::Deadline) => {
                let word = word.map(|word| AwaitedWord { found: failure.found, ..word });
                let missing = failure.pe.into_iter().collect();
                Timeout { word, ..Timeout::new(call, team, self.deadline, missing) }.into()
            }
            error => portable(call, team, error),
        })
    }

    fn reported_failure(&self, call: &'static str, team: TeamName, portable: impl Fn(CudaError) -> Error) -> Error {
        let reported = self.gpu(call).and_then(|gpu| gpu.0.ended(call).map_err(portable));
        // The wait may have timed out because ranks wait for each other in different calls.
        if let Err(error) = self.compare_all() {
            return error;
        }
        match (reported, self.shrinks()) {
            // No PE has died, but a PE that the kernel waited for runs no more operations.
            (Err(Error::Kernel(_) | Error::Timeout(_)), Some(pe)) => {
                self.record(Error::Peer { call, team, pe, cause: PeerCause::Shrinks })
            }
            (reported, _) => self.failure_of(call, team, reported),
        }
    }

    fn failure_of(&self, call: &'static str, team: TeamName, reported: Result<(), Error>) -> Error {
        match reported {
            Err(error) => self.record(error),
            // An earlier failure has consumed the report.
            Ok(()) => match self.failure() {
                Some(because) => Error::Poisoned { call, team, because: Arc::new(because) },
                None => Error::system(
                    call,
                    std::io::Error::other("the kernel ended, but stored neither an outcome nor a failure report"),
                ),
            },
        }
    }

    /// Returns another PE that has called `shrink`. Such a PE runs no more operations of this
    /// world. Returns `None` if no other PE has called `shrink`.
    pub(crate) fn shrinks(&self) -> Option<Pe> {
        let calls = self.calls.as_ref()?;
        let others = (0..self.job.n_pes).filter(|pe| *pe != self.me());
        others.into_iter().find(|pe| calls.survivors(*pe).has_begun()).map(|pe| Pe::new(pe as u32))
    }

    /// Fails if this PE knows from the rendezvous that another PE of the job has died. The outcome
    /// of a kernel does not show this: a kernel that does not wait for the dead PE succeeds.
    pub(crate) fn check_targets(&self, call: &'static str, team: TeamName) -> Result<(), Error> {
        // After finalize, no losses are known, so the outcome of an earlier operation does not
        // change.
        let losses = self.gpu(call).map_or_else(|_| Vec::new(), |gpu| gpu.rendezvous().losses());
        let died = losses.into_iter().find(|(_, loss)| cause(loss) == PeerCause::Died);
        died.map_or(Ok(()), |(pe, _)| Err(Error::Peer { call, team, pe, cause: PeerCause::Died }))
    }

    /// Fails if a word for which an operation waits may never change. This is the case if another
    /// PE has died or called `shrink`, or if all other PEs have left the job.
    pub(crate) fn check_signallers(&self, call: &'static str, team: TeamName) -> Result<(), Error> {
        self.check_targets(call, team)?;
        let failed = |pe, cause| Err(Error::Peer { call, team, pe, cause });
        if let Some(pe) = self.shrinks() {
            return failed(pe, PeerCause::Shrinks);
        }
        let losses = self.gpu(call).map_or_else(|_| Vec::new(), |gpu| gpu.rendezvous().losses());
        let mut left = losses.into_iter().filter(|(_, loss)| cause(loss) == PeerCause::Left);
        match left.next() {
            Some((pe, _)) if left.count() + 2 == self.job.n_pes => failed(pe, PeerCause::Left),
            _ => Ok(()),
        }
    }

    /// Returns whether the failure report of this GPU contains a failure of a kernel.
    pub(crate) fn has_failed(&self) -> bool {
        self.gpu(NAME).is_ok_and(|gpu| gpu.0.report.failure().is_some())
    }
}
