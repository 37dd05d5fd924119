//! The numbers of communicators.
//!
//! The numbers are not secrets. Invariant: two calls of [`wide`] return the same number only by
//! chance; [`derived`] returns the same number in every process.

use peerweave_fake_common::random_word;

/// Returns a new random number.
pub(crate) fn wide() -> u128 {
    (u128::from(random_word()) << 64) | u128::from(random_word())
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
