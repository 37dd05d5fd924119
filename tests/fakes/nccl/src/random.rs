//! Generates numbers that are unique among processes.
//!
//! The numbers are not secrets. Invariant: two calls return the same number only by chance.

use std::hash::{BuildHasher as _, Hasher as _};

/// Returns a word from the hasher's random keys, which the system seeds.
pub(crate) fn word() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

/// Returns two words as one number.
pub(crate) fn wide() -> u128 {
    (u128::from(word()) << 64) | u128::from(word())
}

/// Derives a number from another and from distinguishing words; the same in every process.
pub(crate) fn derived(from: u128, by: &[u64]) -> u128 {
    let mut state = from;
    for word in by {
        state = (state ^ u128::from(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) ^ (state >> 61);
        state ^= state >> 67;
    }
    state
}
