//! A hash of calls. PEs compare their hashes to check that they have made the same calls.

/// FNV-1a hash of a sequence of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct History(u64);

impl Default for History {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl History {
    /// Appends a call to the hashed sequence, and returns the new hash. `words` encodes the call.
    pub(crate) fn with(self, words: &[u64]) -> Self {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        Self(bytes.fold(self.0, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
    }

    /// Returns the hash value.
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hash_of_the_call_history_changes_with_each_call(a in proptest::collection::vec(any::<u64>(), 1..8), b in any::<u64>()) {
            let history = History::default().with(&a);
            prop_assert_ne!(history.with(&[b]), history);
            prop_assert_eq!(history, History::default().with(&a));
        }
    }
}
