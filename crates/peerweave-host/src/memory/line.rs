//! The entry line: how a rank tells all others, in one cache line, that it has entered an operation, which one, and its operand.
//!
//! Moves 24 bytes and a signature of 64 bits; larger operands lie elsewhere. The protocol is [`peerweave_device::sealed`]: each of the eight words
//! holds 32 bits of data and the 32-bit epoch, so that a reader who finds the epoch in all eight has all of the data, whatever order or
//! width the stores had. That lets the writer here use one vector store, after which the line has changed hands once and not eight times.
//!
//! Reuse rule (the invariant): a rank writes epoch `e` into line `e & 1` only after it has read epoch `e - 1` of every rank, and a rank
//! publishes `e - 1` only after it has done with all that belongs to `e - 2`. So nothing is overwritten that somebody may still read.

use peerweave_device::{Word, sealed};
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a line.
pub(crate) const WORDS: usize = 8;

/// Bytes of operand in a line.
pub(crate) const PAYLOAD_BYTES: usize = 24;

/// What a rank says on entering: 64 bits of signature, 24 bytes of operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) signature: u64,
    pub(crate) payload: [u64; 3],
}

/// A line in shared memory, with a neighbour that nobody uses, so that a prefetcher does not join two of them.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Line {
    words: [AtomicU64; WORDS],
    _apart: [u64; WORDS],
}

impl Line {
    /// Publishes `entry` under `epoch`; everything this thread wrote before is visible to whoever reads it.
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
        // Nothing but the compiler has to be kept from moving earlier stores down: on x86-64 stores become visible in program order.
        AtomicU64::fence_release();
        let line = self.words.as_ptr();
        if has_wide_store() {
            // SAFETY: `line` is 64 bytes, 64-byte aligned (repr(align)), inside a mapping that outlives `self`; AVX-512 was found.
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

    /// The entry that was published under `epoch`, if it is there; what its rank wrote before is then visible to this thread.
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

    /// Forgets everything. Only before the team that uses the line begins.
    pub(crate) fn reset(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// The signature that was published under `epoch`, if it is there: all that a barrier needs, in the two words that carry it.
    #[inline]
    pub(crate) fn read_signature(&self, epoch: u32) -> Option<u64> {
        let (mut low, mut high) = ([0], [0]);
        let whole = sealed::try_read(&self.words[..1], epoch, &mut low) && sealed::try_read(&self.words[7..], epoch, &mut high);
        whole.then_some(u64::from(low[0]) | u64::from(high[0]) << 32)
    }

    /// Whether `epoch` was published.
    #[inline]
    pub(crate) fn has(&self, epoch: u32) -> bool {
        self.read(epoch).is_some()
    }
}

/// Writes a line by one store.
///
/// By a register that SSE code cannot name: the upper half of one of the first sixteen, left in use, would slow down SSE code of the caller until
/// someone executes `vzeroupper`. The compiler, which adds one after vector code of its own, does not see what assembly leaves behind.
///
/// # Safety
/// AVX-512F is there; `line` is 64-byte aligned and valid for atomic writes.
#[target_feature(enable = "avx512f")]
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn store_wide(line: *mut AtomicU64, words: &[u64; WORDS]) {
    // SAFETY: reads `words`, writes `line`. The assembly stands for eight relaxed atomic stores of aligned words: readers accept any order and
    // any split of them.
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

/// Whether one store can write the whole line.
#[inline]
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_wide_store() -> bool {
    // The standard library caches the answer in one atomic word.
    std::arch::is_x86_feature_detected!("avx512f")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        Line { words: std::array::from_fn(|_| AtomicU64::new(0)), _apart: [0; WORDS] }
    }

    #[test]
    fn an_entry_is_read_as_published_and_only_under_its_epoch() {
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
    fn a_half_written_line_is_not_read() {
        let line = line();
        line.publish(3, &Entry::default());
        line.words[5].store(sealed::seal(1, 5), Ordering::Relaxed);
        assert_eq!(line.read(3), None);
        assert_eq!(line.read(5), None);
    }

    #[test]
    fn two_threads_exchange_entries_for_many_epochs_without_a_torn_one() {
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
