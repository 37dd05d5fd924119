//! A memory word that records the abort of a job whose PEs are threads of one process.

use super::error::Error;
use peerweave_types::Pe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Records whether the job has been aborted. If so, also records the PE that aborted the job first,
/// and the exit code. All clones share one memory word.
#[derive(Clone, Debug, Default)]
pub struct AbortWord(Arc<AtomicU64>);

/// The bit that is set in a word that records an abort. Before an abort, the word is 0.
const ABORTED: u64 = 1 << 63;

impl AbortWord {
    /// Returns a word that records an abort: the PE `by` aborted the job with the exit code `code`.
    /// The word can be stored in memory that several processes share.
    pub fn encode(by: Pe, code: u8) -> u64 {
        ABORTED | u64::from(by.get()) << 8 | u64::from(code)
    }

    /// Returns the PE that aborted the job, and the exit code of the abort; `None` if `word` does
    /// not record an abort.
    pub fn decode(word: u64) -> Option<(Pe, u8)> {
        (word & ABORTED != 0).then(|| (Pe::new((word >> 8) as u32), word as u8))
    }

    /// Aborts the job, unless the job has already been aborted. Returns the PE and the exit code of
    /// the first abort.
    pub fn abort(&self, by: Pe, code: u8) -> (Pe, u8) {
        match self.0.compare_exchange(0, Self::encode(by, code), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => (by, code),
            Err(first) => Self::decode(first).unwrap_or((by, code)),
        }
    }

    /// Returns whether the job has been aborted.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Returns the error with which calls fail after an abort; `None` if the job has not been
    /// aborted.
    pub fn error(&self) -> Option<Error> {
        Self::decode(self.0.load(Ordering::Acquire)).map(|(by, code)| Error::Aborted { by, code })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_abort_does_not_replace_the_first_abort() {
        for (pe, code) in [(0, 0), (7, 255), (4095, 1)] {
            let word = AbortWord::default();
            assert!(!word.is_set() && word.error().is_none());
            assert_eq!(word.abort(Pe::new(pe), code), (Pe::new(pe), code));
            assert_eq!(word.clone().abort(Pe::new(1), 9), (Pe::new(pe), code));
            assert!(matches!(word.error(), Some(Error::Aborted { by, code: found }) if by.get() == pe && found == code));
        }
    }
}
