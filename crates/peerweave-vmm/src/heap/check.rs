//! Whether the PEs of a machine really reach each other's memory: by writing and reading, not by asking.
//!
//! Invariant: a way counts as good only after words that exist nowhere else were compared at its end.

use std::time::Instant;

use peerweave_types::Pe;

use super::SymmetricHeap;
use crate::agree::agree;
use crate::error::VmmError;
use crate::peer::pattern_word;
use crate::streams::wait_for;
use crate::symmetric::SymmetricMemory;
use crate::{copy, read, write};

/// Words that each PE writes to each.
const WORDS: usize = 8192;

impl SymmetricHeap {
    /// Writes to and reads from every PE of this machine, and compares every word. Takes a few pages of the heap meanwhile.
    ///
    /// # Collective
    /// All PEs of the job.
    ///
    /// # Errors
    /// [`VmmError::BrokenPeer`] names the PEs between which data were lost, on the PE that saw it, and [`VmmError::Peer`] tells the others; as [`alloc`](Self::alloc).
    pub fn check_peers(&self) -> Result<(), VmmError> {
        const CALL: &str = "SymmetricHeap::check_peers";
        let n = self.inner.rendezvous.n_pes() as usize;
        let mailbox: SymmetricMemory<u64> = self.alloc(n * WORDS)?;
        let mut staging: SymmetricMemory<u64> = self.alloc(WORDS)?;
        let put = self.put_patterns(CALL, &mailbox, &mut staging);
        self.round(CALL, "put", put)?;
        let seen = self.compare_patterns(CALL, &mailbox, &mut staging);
        self.round(CALL, "seen", seen)?;
        self.free(staging)?;
        self.free(mailbox)
    }

    fn round(&self, call: &str, what: &str, outcome: Result<(), VmmError>) -> Result<(), VmmError> {
        let mut state = self.inner.enter("SymmetricHeap::check_peers")?;
        let agreed = agree(&self.inner.rendezvous, &self.inner.label(&state, what), call, outcome.map(|()| Vec::new()));
        self.inner.settle(&mut state, call, agreed).map(drop)
    }

    fn put_patterns(
        &self,
        call: &'static str,
        mailbox: &SymmetricMemory<u64>,
        staging: &mut SymmetricMemory<u64>,
    ) -> Result<(), VmmError> {
        let (me, until) = (self.inner.rendezvous.pe(), self.inner.own_deadline());
        let stream = &self.inner.stream;
        for pe in self.members() {
            write(stream, staging, &words(me, *pe), until)?;
            copy(stream, &mut mailbox.peer(*pe)?.slice(slot(me))?, staging)?;
        }
        match wait_for(stream, call, Instant::now(), until) {
            Err(VmmError::Timeout { .. }) => Err(broken(me, me, "what was written did not arrive by the deadline".into())),
            waited => waited,
        }
    }

    fn compare_patterns(
        &self,
        call: &'static str,
        mailbox: &SymmetricMemory<u64>,
        staging: &mut SymmetricMemory<u64>,
    ) -> Result<(), VmmError> {
        let (me, until) = (self.inner.rendezvous.pe(), self.inner.own_deadline());
        let stream = &self.inner.stream;
        for pe in self.members() {
            let found = read(stream, &mailbox.slice(slot(*pe))?, until)?;
            compare(&found, *pe, me, "written")?;
        }
        for pe in self.members() {
            // What the peer wrote to itself: no other way than the one that is tried could have lost it.
            copy(stream, staging, &mailbox.peer(*pe)?.slice(slot(*pe))?)?;
            match read(stream, staging, until) {
                Ok(found) => compare_with(&found, (*pe, *pe), (me, *pe), "read")?,
                Err(VmmError::Timeout { .. }) => {
                    return Err(broken(me, *pe, format!("{call}: what was read did not arrive by the deadline")));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Where a PE writes to, in every mailbox.
fn slot(of: Pe) -> std::ops::Range<usize> {
    of.index() * WORDS..(of.index() + 1) * WORDS
}

fn seed(from: Pe, to: Pe) -> u64 {
    u64::from(from.get()) << 32 | u64::from(to.get())
}

fn words(from: Pe, to: Pe) -> Vec<u64> {
    crate::peer::pattern(seed(from, to), WORDS)
}

fn compare(found: &[u64], from: Pe, to: Pe, way: &str) -> Result<(), VmmError> {
    compare_with(found, (from, to), (from, to), way)
}

/// Compares with what `pattern.0` wrote to `pattern.1`; `blamed` are the ends of the way that was tried.
fn compare_with(found: &[u64], pattern: (Pe, Pe), blamed: (Pe, Pe), way: &str) -> Result<(), VmmError> {
    let expected = |at| pattern_word(seed(pattern.0, pattern.1), at);
    match found.iter().enumerate().find(|(at, word)| **word != expected(*at)) {
        None => Ok(()),
        Some((at, word)) => {
            Err(broken(blamed.0, blamed.1, format!("{way}: word {at} is {word:#018x}, expected {:#018x}", expected(at))))
        }
    }
}

fn broken(from: Pe, to: Pe, what: String) -> VmmError {
    VmmError::BrokenPeer { from: from.to_string(), to: to.to_string(), what }
}
