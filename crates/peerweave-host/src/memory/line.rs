//! Entry lines. An entry line is a cache line in which a rank announces that it has entered an
//! operation. The announcement is called an entry. It has an epoch, the signature of the call, and
//! up to 24 bytes of the operand. The epoch is the number of the operation in its team.
//!
//! The protocol, with its rule for the reuse of lines, is [`peerweave_device::sealed`]. Each of the
//! eight words contains 32 bits of data and the 32-bit epoch. A reader that finds the epoch in all
//! eight words has all data, whatever the order of the stores. So one vector store can write the
//! line, and the cache line moves between cores once instead of eight times.
//!
//! The operand of a small broadcast may need more than 24 bytes. The root then writes the operand
//! into the cache line after its entry line, and publishes the entry afterwards.

use crate::memory::layout::ENTRY_LINES;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use peerweave_device::Word;
use peerweave_device::sealed;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of 64-bit words in an entry line, which is one cache line.
pub(crate) const WORDS: usize = 8;

/// Size of a cache line, in bytes.
pub(crate) const BYTES: usize = 64;

/// Maximum size, in bytes, of an operand that fits in the payload of an [`Entry`].
pub(crate) const PAYLOAD_BYTES: usize = 24;

/// The content of an entry line: the 64-bit signature of a call, and 24 bytes of payload. The
/// payload is a small operand, or words that describe the buffers of the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) signature: u64,
    pub(crate) payload: [u64; 3],
}

/// An entry line in shared memory, and the cache line after it. Hardware prefetchers fetch these
/// two cache lines together. So the second cache line contains only the operand of a small
/// broadcast: other ranks read this operand together with the entry.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Line {
    words: [AtomicU64; WORDS],
    operand: [AtomicU64; WORDS],
}

impl Line {
    /// Publishes `entry` under `epoch`. A thread that reads the entry also sees the earlier writes
    /// of this thread.
    #[inline]
    pub(crate) fn publish(&self, epoch: u32, entry: &Entry) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if has_wide_store() {
            // On x86-64, stores become visible in program order. So only the compiler must be
            // prevented from reordering earlier stores.
            AtomicU64::fence_release();
            // SAFETY: the line has 64 bytes, is 64-byte aligned (repr(align)), and is inside a
            // mapping that outlives `self`. The processor has the instructions.
            unsafe { store_wide(self.words.as_ptr(), epoch, entry) };
            return;
        }
        let word = |i: usize| if i < 2 { entry.signature } else { entry.payload[i / 2 - 1] };
        let data: [u32; WORDS] = std::array::from_fn(|i| (word(i) >> (32 * (i % 2))) as u32);
        sealed::publish(&self.words, epoch, &data);
    }

    /// Returns the entry that was published under `epoch`. Returns `None` if no entry was published
    /// under this epoch. After `Some`, this thread also sees the earlier writes of the publishing
    /// rank.
    #[inline]
    pub(crate) fn read(&self, epoch: u32) -> Option<Entry> {
        let mut data = [0u32; WORDS];
        if !sealed::try_read(&self.words, epoch, &mut data) {
            return None;
        }
        let word = |i: usize| u64::from(data[i]) | u64::from(data[i + 1]) << 32;
        Some(Entry { signature: word(0), payload: [word(2), word(4), word(6)] })
    }

    /// Clears the line before a new team uses the line. A destroyed team with the same slot number
    /// may have left an entry in the line.
    pub(crate) fn reset(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Returns the signature that was published under `epoch`. Reads only the two words that
    /// contain the signature, which is enough for a barrier.
    #[inline]
    pub(crate) fn read_signature(&self, epoch: u32) -> Option<u64> {
        let mut halves = [0; 2];
        let whole = sealed::try_read(&self.words[..2], epoch, &mut halves);
        whole.then_some(u64::from(halves[0]) | u64::from(halves[1]) << 32)
    }

    /// Returns whether the entry in this line has the epoch `epoch` or a later epoch. An epoch is
    /// the number of an operation in its team. The epoch in the line must be less than
    /// `epoch + 2 * ENTRY_LINES`: for larger epochs, the function returns `false`.
    #[inline]
    pub(crate) fn has_reached(&self, epoch: u32) -> bool {
        sealed::has_reached(&self.words[0], epoch, 2 * ENTRY_LINES as u32)
    }

    /// Returns the address of the [`BYTES`] bytes for the operand of a small broadcast. A rank
    /// writes these bytes before it publishes the entry. Other ranks read these bytes after they
    /// have read the entry.
    #[inline]
    pub(crate) fn operand(&self) -> *mut u8 {
        self.operand.as_ptr().cast::<u8>().cast_mut()
    }

    /// Prefetches the line for writing (see [`own`]).
    #[inline]
    pub(crate) fn own(&self) {
        own(self.words.as_ptr().cast());
    }

    /// Returns whether this line contains an entry that was published under `epoch`.
    #[inline]
    pub(crate) fn has(&self, epoch: u32) -> bool {
        self.read(epoch).is_some()
    }
}

/// Prefetches a cache line for writing: requests that the line is moved into this processor's
/// cache, and that other caches drop it. Does not wait for the line, and changes no memory. `line`
/// may be any address.
#[inline]
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) fn own(line: *const u8) {
    // SAFETY: the instruction is a hint, which neither faults nor changes memory. A processor that
    // does not know the hint executes a no-op.
    unsafe { std::arch::asm!("prefetchw [{line}]", line = in(reg) line, options(nostack, preserves_flags, readonly)) };
}

/// Prefetches a cache line for writing: requests that the line is moved into this processor's
/// cache, and that other caches drop it. Does not wait for the line, and changes no memory. `line`
/// may be any address.
#[inline]
#[cfg(all(target_arch = "aarch64", not(miri)))]
pub(crate) fn own(line: *const u8) {
    // SAFETY: the instruction is a hint, which neither faults nor changes memory.
    unsafe { std::arch::asm!("prfm pstl1keep, [{line}]", line = in(reg) line, options(nostack, preserves_flags, readonly)) };
}

/// Does nothing. On x86-64 and AArch64, the function of this name prefetches a cache line for
/// writing.
#[inline]
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(crate) fn own(_line: *const u8) {}

/// Fetches a cache line into the cache of this processor for reading. Does not wait for the line.
/// `line` may be any address.
#[inline]
pub(crate) fn fetch(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction is a hint, which neither faults nor changes memory.
    unsafe {
        std::arch::asm!("prefetcht0 [{line}]", line = in(reg) line, options(nostack, preserves_flags, readonly))
    };
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: the instruction is a hint, which neither faults nor changes memory.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{line}]", line = in(reg) line, options(nostack, preserves_flags, readonly))
    };
    let _ = line;
}

/// Assembles a line in registers, and writes the line with one store. Assembling the line in memory
/// would take longer: a load of the whole line would wait until the stores of its words have
/// reached the cache.
///
/// Uses the registers 16 and 17, which SSE code cannot name. If the upper half of a register below
/// 16 stayed in use, SSE code of the caller would run slowly until the next `vzeroupper`. The
/// compiler does not add this instruction after inline assembly.
///
/// # Safety
/// [`has_wide_store`] returns `true`. `line` is 64-byte aligned and valid for atomic writes of
/// [`WORDS`] words.
#[inline]
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn store_wide(line: *const AtomicU64, epoch: u32, entry: &Entry) {
    let [a, b, c] = entry.payload;
    // SAFETY: writes `line`. The assembly is equivalent to eight relaxed atomic stores of aligned
    // words, which are the stores of `sealed::publish`. Readers accept these stores in any order.
    // The caller guarantees that the processor has the instructions.
    unsafe {
        std::arch::asm!(
            // The 32 bytes of the entry.
            "vmovq xmm16, {signature}",
            "vpinsrq xmm16, xmm16, {a}, 1",
            "vmovq xmm17, {b}",
            "vpinsrq xmm17, xmm17, {c}, 1",
            "vinserti32x4 ymm16, ymm16, xmm17, 1",
            // Every 32 bits of the entry become the lower half of a word. The epoch becomes the
            // upper half.
            "vpmovzxdq zmm16, ymm16",
            "vpbroadcastq zmm17, {epoch}",
            "vporq zmm16, zmm16, zmm17",
            "vmovdqa64 [{line}], zmm16",
            signature = in(reg) entry.signature,
            a = in(reg) a,
            b = in(reg) b,
            c = in(reg) c,
            epoch = in(reg) u64::from(epoch) << 32,
            line = in(reg) line,
            out("xmm16") _,
            out("xmm17") _,
            options(nostack, preserves_flags)
        );
    }
}

/// Returns whether this processor can write a whole cache line with one store.
#[inline]
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_wide_store() -> bool {
    // The standard library caches the results in one atomic word.
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512vl")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        Line { words: std::array::from_fn(|_| AtomicU64::new(0)), operand: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    #[test]
    fn entry_is_returned_only_for_the_published_epoch() {
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
    fn half_written_entry_is_not_returned() {
        let line = line();
        line.publish(3, &Entry::default());
        line.words[5].store(sealed::seal(1, 5), Ordering::Relaxed);
        assert_eq!(line.read(3), None);
        assert_eq!(line.read(5), None);
    }

    #[test]
    fn entries_published_by_another_thread_are_never_torn() {
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
