//! Enqueues waits for words in this PE's symmetric memory, and tests of such words.

use peerweave_core::Error;
use peerweave_core::backend::{Until, WaitMode, WaitUntil, WaitValues};
use peerweave_stream_kernels::{OUTCOME_BITS, until};
use peerweave_types::Compare;

use crate::backend::enqueue::{Enqueue, Source, Wait};

impl Enqueue<'_> {
    /// Enqueues a kernel that waits for words, or tests them. The kernel uses a slot in pinned
    /// memory, which contains, in this order:
    /// - The outcome of the wait, with one bit for each word.
    /// - If words are excluded: one bit for each word, which is set if the word is excluded.
    /// - If each word is compared with its own value: these values.
    pub(super) fn wait(&mut self, wait: &WaitUntil) -> Result<Source, Error> {
        let bits = wait.count.div_ceil(64);
        let n_excluded = if wait.exclude.is_some() { bits } else { 0 };
        let (value, values) = match &wait.values {
            WaitValues::Same(value) => (*value, &[][..]),
            WaitValues::Each(values) => (0, &values[..]),
        };
        let outcome_words = OUTCOME_BITS + bits;
        let slot = self.slot(outcome_words + n_excluded + values.len())?;
        for (index, excluded) in wait.exclude.iter().flat_map(|exclude| exclude.chunks(64)).enumerate() {
            let word = excluded.iter().rev().fold(0, |word, excluded| word << 1 | u64::from(*excluded));
            slot.set(outcome_words + index, word);
        }
        for (index, value) in values.iter().enumerate() {
            slot.set(outcome_words + n_excluded + index, *value);
        }
        let condition = match wait.until {
            Until::All => until::ALL,
            Until::Any => until::ANY,
            Until::Some => until::SOME,
        };
        let size = wait.dtype.size_bytes();
        self.note(wait.at, wait.count * size);
        let arguments = (
            self.view::<u8>(wait.at, wait.count * size),
            size as u32,
            Compare::sign_bit(wait.dtype),
            slot.view(outcome_words, n_excluded),
            wait.compare as u32,
            value,
            slot.view(outcome_words + n_excluded, values.len()),
            condition,
            wait.start as u64,
            u32::from(wait.mode == WaitMode::Test),
            slot.view(0, outcome_words),
        );
        self.kernel(|kernels| &kernels.wait, arguments)?;
        let word = (wait.count == 1).then(|| wait.awaited(0, 0));
        Ok(Source::Wait(slot, Wait { until: wait.until, count: wait.count, word }))
    }
}
