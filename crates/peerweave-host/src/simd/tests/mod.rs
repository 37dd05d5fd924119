//! Tests the copies and reductions against simple implementations, with every instruction set of
//! this processor.
//!
//! Invariant: a test compares bits exactly, without a tolerance.

mod copying;
mod oracle;
mod races;
mod reducing;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod registers;

/// A generator of pseudo-random numbers, which are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // xorshift64*, Vigna 2016.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 32) as u8).collect()
    }
}

/// Memory at a chosen distance from a cache-line boundary. Guard bytes on both sides must not
/// change.
struct Guarded {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

const GUARD_BYTES: usize = 192;
const GUARD: u8 = 0xa5;

impl Guarded {
    fn new(content: &[u8], misalignment: usize) -> Self {
        let mut memory = vec![GUARD; content.len() + 2 * GUARD_BYTES + 128];
        let start = GUARD_BYTES + (memory.as_ptr().addr() + GUARD_BYTES).wrapping_neg() % 64 + misalignment % 64;
        memory[start..start + content.len()].copy_from_slice(content);
        Self { memory, start, len: content.len() }
    }

    /// Returns a mutable pointer, which tests also use for the source of a copy. The portable
    /// implementation reads through an atomic, and Stacked Borrows allows that only if the pointer
    /// allows writing.
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory[self.start..].as_mut_ptr()
    }

    fn content(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    #[track_caller]
    fn assert_guards(&self, what: &dyn std::fmt::Display) {
        let outside = self.memory[..self.start].iter().chain(&self.memory[self.start + self.len..]);
        assert!(outside.into_iter().all(|&byte| byte == GUARD), "{what}: bytes outside of the buffer were written");
    }
}
