//! Tests the access among the PEs of a machine by writing and reading memory.
//!
//! Invariant: a path between two PEs passes the test only if the transferred data was compared at
//! the receiving PE. The driver's report about peer access is not sufficient.

use std::time::Instant;

use peerweave_types::Pe;

use super::{State, SymmetricHeap};
use crate::agree::agree;
use crate::error::VmmError;
use crate::heap::symmetric::SymmetricMemory;
use crate::memory::streams::wait_for;
use crate::peer::pattern_word;
use crate::{copy, read, write};

/// Number of 8-byte words that each PE writes to every PE of its machine.
const WORDS: usize = 8192;

impl SymmetricHeap {
    /// Writes to and reads from the memory of every PE of this machine, and compares every word.
    /// The test allocates memory on the heap. The test frees this memory even after an error. If
    /// this PE's device does not complete its work, the memory stays allocated.
    ///
    /// # Collective
    /// All PEs of the job call this function.
    ///
    /// # Errors
    /// [`VmmError::BrokenPeer`] on the PE that detects wrong or missing data; the error names the
    /// two PEs between which the data was transferred. The other PEs get [`VmmError::Peer`]. Also
    /// the errors of [`alloc`](Self::alloc).
    pub fn check_peers(&self) -> Result<(), VmmError> {
        const CALL: &str = "SymmetricHeap::check_peers";
        let n = self.inner.rendezvous.n_pes() as usize;
        // The lock is kept, so no other call on this heap runs between the exchanges.
        let state = &mut *self.inner.enter(CALL)?;
        let mailbox: SymmetricMemory<u64> = self.alloc_in(state, n * WORDS, align_of::<u64>())?;
        let staging = self.alloc_in(state, WORDS, align_of::<u64>());
        let mut until = self.inner.own_deadline();
        let (checked, staging) = match staging {
            Ok(mut staging) => {
                let put = self.put_patterns(&mailbox, &mut staging, until);
                let mut checked = self.round(state, CALL, "put", put);
                if checked.is_ok() {
                    until = self.inner.own_deadline();
                    let seen = self.compare_patterns(&mailbox, &mut staging, until);
                    checked = self.round(state, CALL, "seen", seen);
                }
                (checked, Some(staging))
            }
            Err(error) => (Err(error), None),
        };
        // After a failure that all PEs know, all PEs free the memory within the remaining time. If
        // a stream is stuck, no more work is enqueued on it, and the memory stays allocated.
        let until = if checked.is_ok() { self.inner.own_deadline() } else { until };
        let mut freed = Ok(());
        for memory in staging.into_iter().chain([mailbox]) {
            if state.broken.is_none() {
                freed = freed.and(self.free_in(state, memory, until));
            }
        }
        checked.and(freed)
    }

    fn round(&self, state: &mut State, call: &str, what: &str, outcome: Result<(), VmmError>) -> Result<(), VmmError> {
        let agreed = agree(&self.inner.rendezvous, &self.inner.label(state, what), call, outcome.map(|()| Vec::new()));
        self.inner.conclude(state, call, agreed).map(drop)
    }

    fn put_patterns(
        &self,
        mailbox: &SymmetricMemory<u64>,
        staging: &mut SymmetricMemory<u64>,
        until: Instant,
    ) -> Result<(), VmmError> {
        let me = self.inner.rendezvous.pe();
        let stream = &self.inner.stream;
        for pe in self.members() {
            write(stream, staging, &words(me, *pe), until)?;
            copy(stream, &mut mailbox.peer(*pe)?.slice(slot(me))?, staging)?;
            // Waits for each copy before the next copy is enqueued, so that an error names the
            // broken path.
            broken_path(wait_for(stream, "SymmetricHeap::check_peers", Instant::now(), until), me, *pe, "written")?;
        }
        Ok(())
    }

    fn compare_patterns(
        &self,
        mailbox: &SymmetricMemory<u64>,
        staging: &mut SymmetricMemory<u64>,
        until: Instant,
    ) -> Result<(), VmmError> {
        let me = self.inner.rendezvous.pe();
        let stream = &self.inner.stream;
        for pe in self.members() {
            let found = read(stream, &mailbox.slice(slot(*pe))?, until)?;
            compare(&found, *pe, me, "written")?;
        }
        for pe in self.members() {
            // The peer wrote this data to its own memory. So wrong data here was corrupted on the
            // path from the peer to this PE.
            copy(stream, staging, &mailbox.peer(*pe)?.slice(slot(*pe))?)?;
            let found = broken_path(read(stream, staging, until), me, *pe, "read")?;
            compare_with(&found, (*pe, *pe), (me, *pe), "read")?;
        }
        Ok(())
    }
}

/// If `waited` is a timeout, returns [`VmmError::BrokenPeer`] instead, which names the PEs `from`
/// and `to`. `direction` is `read` or `written`, and describes the data that did not arrive.
fn broken_path<T>(waited: Result<T, VmmError>, from: Pe, to: Pe, direction: &str) -> Result<T, VmmError> {
    waited.map_err(|error| match error {
        VmmError::Timeout { .. } => broken(from, to, format!("data was not {direction} by the deadline")),
        error => error,
    })
}

/// Returns the range of words that PE `of` writes in the test buffer of every PE.
fn slot(of: Pe) -> std::ops::Range<usize> {
    of.index() * WORDS..(of.index() + 1) * WORDS
}

fn seed(from: Pe, to: Pe) -> u64 {
    u64::from(from.get()) << 32 | u64::from(to.get())
}

fn words(from: Pe, to: Pe) -> Vec<u64> {
    crate::peer::pattern(seed(from, to), WORDS)
}

fn compare(found: &[u64], from: Pe, to: Pe, direction: &str) -> Result<(), VmmError> {
    compare_with(found, (from, to), (from, to), direction)
}

/// Compares `found` with a test pattern. Each pair of PEs has its own pattern: `pattern` has the PE
/// that writes the data, and the PE for which the data is written. If `found` differs, the error
/// names the two PEs in `blamed`, because the tested path lies between these two PEs.
fn compare_with(found: &[u64], pattern: (Pe, Pe), blamed: (Pe, Pe), direction: &str) -> Result<(), VmmError> {
    let expected = |at| pattern_word(seed(pattern.0, pattern.1), at);
    match found.iter().enumerate().find(|(at, word)| **word != expected(*at)) {
        None => Ok(()),
        Some((at, word)) => Err(broken(
            blamed.0,
            blamed.1,
            format!("word {at} of the data that was {direction} is {word:#018x}, expected {:#018x}", expected(at)),
        )),
    }
}

fn broken(from: Pe, to: Pe, what: String) -> VmmError {
    VmmError::BrokenPeer { from: from.to_string(), to: to.to_string(), what }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn error_names_both_pes_if_peer_data_arrives_too_late() {
        let late = || VmmError::Timeout { call: "copy".into(), waited: Duration::from_secs(1), missing: Vec::new() };
        let error = broken_path::<()>(Err(late()), Pe::new(1), Pe::new(3), "written").expect_err("the data did not arrive");
        let text = "peer access from PE 1 to PE 3 is broken: data was not written by the deadline";
        assert_eq!(error.to_string(), text);
        let other = broken_path::<()>(Err(broken(Pe::new(0), Pe::new(2), "lost".into())), Pe::new(1), Pe::new(3), "written");
        assert!(other.expect_err("the data was lost").to_string().contains("from PE 0 to PE 2"));
        assert!(broken_path(Ok(5), Pe::new(1), Pe::new(3), "written").is_ok_and(|broken_path| broken_path == 5));
    }
}
