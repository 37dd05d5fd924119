//! The entry line: one cache line in which a rank publishes that it has entered an operation, the
//! signature of its call, and up to 24 bytes of operand.
//!
//! The protocol, with its rule for the reuse of lines, is [`peerweave_device::sealed`]: each of the
//! eight words holds 32 bits of data and the 32-bit epoch. A reader that finds the epoch in all
//! eight words has all of the data, independent of the order in which they were stored. So one
//! vector store writes the line, and the cache line moves between cores once instead of eight
//! times.

use peerweave_device::{Word, sealed};
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of words of a line.
pub(crate) const WORDS: usize = 8;

/// The number of bytes of operand in a line.
pub(crate) const PAYLOAD_BYTES: usize = 24;

/// The content of a line: a signature of 64 bits, and 24 bytes of operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) signature: u64,
    pub(crate) payload: [u64; 3],
}

/// A line in shared memory. The cache line after it is unused, so that a prefetcher does not fetch
/// two lines in use together.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Line {
    words: [AtomicU64; WORDS],
    _apart: [u64; WORDS],
}

impl Line {
    /// Publishes `entry` under `epoch`. Earlier writes of this thread are visible to a thread that
    /// reads it.
    #[inline]
    pub(crate) fn publish(&self, epoch: u32, entry: &Entry) {
        let half = |i: usize| (entry.payload[i / 2] >> (32 * (i % 2))) as u32;
        let data: [u32; WORDS] = std::array::from_fn(|i| match i {
            0 => entry.signature as u32,
            1..=6 => half(i - 1),
            _ => (entry.signature >> 32) as u32,
        });
        self.store(&sealed::seal_line(&data, epoch));
    }

    #[inline]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn store(&self, words: &[u64; WORDS]) {
        // Only the compiler could reorder earlier stores: on x86-64 stores become visible in
        // program order.
        AtomicU64::fence_release();
        let line = self.words.as_ptr();
        if has_wide_store() {
            // SAFETY: `line` is 64 bytes, 64-byte aligned (repr(align)), inside a mapping that
            // outlives `self`; AVX-512 was found.
            unsafe { store_wide(line.cast_mut(), words) };
        } else {
            for (to, &from) in self.words.iter().zip(words) {
                to.store(from, Ordering::Relaxed);
            }
        }
    }

    #[inline]
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fn store(&self, words: &[u64; WORDS]) {
        AtomicU64::fence_release();
        for (to, &from) in self.words.iter().zip(words) {
            to.store(from, Ordering::Relaxed);
        }
    }

    /// Returns the entry that was published under `epoch`; `None` if it was not published. Earlier
    /// writes of its rank are then visible to this thread.
    #[inline]
    pub(crate) fn read(&self, epoch: u32) -> Option<Entry> {
        let mut data = [0u32; WORDS];
        if !sealed::try_read(&self.words, epoch, &mut data) {
            return None;
        }
        let word = |i: usize| u64::from(data[i]) | u64::from(data[i + 1]) << 32;
        let signature = u64::from(data[0]) | u64::from(data[7]) << 32;
        Some(Entry { signature, payload: [word(1), word(3), word(5)] })
    }

    /// Resets the line, before a team that uses it starts.
    pub(crate) fn reset(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Returns the signature that was published under `epoch`, from the two words that hold it: a
    /// barrier needs no more.
    #[inline]
    pub(crate) fn read_signature(&self, epoch: u32) -> Option<u64> {
        let (mut low, mut high) = ([0], [0]);
        let whole = sealed::try_read(&self.words[..1], epoch, &mut low) && sealed::try_read(&self.words[7..], epoch, &mut high);
        whole.then_some(u64::from(low[0]) | u64::from(high[0]) << 32)
    }

    /// Returns whether `epoch` was published.
    #[inline]
    pub(crate) fn has(&self, epoch: u32) -> bool {
        self.read(epoch).is_some()
    }
}

/// Writes a line with one store.
///
/// Uses a register that SSE code cannot name. If the upper half of one of the first sixteen
/// registers stays in use, SSE code of the caller runs slowly until the next `vzeroupper`, which
/// the compiler does not add after assembly.
///
/// # Safety
/// The processor has AVX-512F; `line` is 64-byte aligned and valid for atomic writes.
#[target_feature(enable = "avx512f")]
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn store_wide(line: *mut AtomicU64, words: &[u64; WORDS]) {
    // SAFETY: reads `words`, writes `line`. The assembly stands for eight relaxed atomic stores of
    // aligned words: readers accept them in any order.
    unsafe {
        std::arch::asm!(
            "vmovdqu64 zmm16, [{from}]",
            "vmovdqa64 [{to}], zmm16",
            out("zmm16") _,
            from = in(reg) words.as_ptr(),
            to = in(reg) line,
            options(nostack, preserves_flags)
        );
    }
}

/// Returns whether one store can write the whole line.
#[inline]
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_wide_store() -> bool {
    // The standard library caches the result in one atomic word.
    std::arch::is_x86_feature_detected!("avx512f")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        Line { words: std::array::from_fn(|_| AtomicU64::new(0)), _apart: [0; WORDS] }
    }

    #[test]
    fn entry_is_read_as_published_and_only_under_its_epoch() {
        let line = line();
        let entry = Entry { signature: 0xdead_beef_0bad_cafe, payload: [u64::MAX, 0x0123_4567_89ab_cdef, 7] };
        line.publish(9, &entry);
        assert_eq!(line.read(9), Some(entry));
        assert_eq!(line.read_signature(9), Some(entry.signature));
        assert_eq!(line.read_signature(7), None);
        assert_eq!(line.read(7), None);
        assert_eq!(line.read(11), None);
    }

    #[test]
    fn half_written_line_is_not_read() {
        let line = line();
        line.publish(3, &Entry::default());
        line.words[5].store(sealed::seal(1, 5), Ordering::Relaxed);
        assert_eq!(line.read(3), None);
        assert_eq!(line.read(5), None);
    }

    #[test]
    fn threads_exchange_whole_entries_over_many_epochs() {
        let lines = [[line(), line()], [line(), line()]];
        std::thread::scope(|scope| {
            for me in 0..2usize {
                let lines = &lines;
                scope.spawn(move || {
                    for epoch in 1..20_000u32 {
                        let mine = u64::from(epoch) * (me as u64 + 3);
                        let entry = Entry { signature: u64::from(epoch) << 7, payload: [mine, !mine, mine ^ 0xffff] };
                        lines[me][(epoch & 1) as usize].publish(epoch, &entry);
                        let theirs = loop {
                            if let Some(entry) = lines[1 - me][(epoch & 1) as usize].read(epoch) {
                                break entry;
                            }
                            std::thread::yield_now();
                        };
                        let expected = u64::from(epoch) * (1 - me as u64 + 3);
                        assert_eq!(
                            theirs,
                            Entry { signature: u64::from(epoch) << 7, payload: [expected, !expected, expected ^ 0xffff] }
                        );
                    }
                });
            }
        });
    }
}
