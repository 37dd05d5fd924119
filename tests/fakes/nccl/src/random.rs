//! Numbers that no other process has.
//!
//! Not in this module: secrets. Invariant: two calls give the same number only by accident.

use std::hash::{BuildHasher as _, Hasher as _};

/// A word from the hasher's random keys, which the system seeds.
pub(crate) fn word() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

/// Two words.
pub(crate) fn wide() -> u128 {
    (u128::from(word()) << 64) | u128::from(word())
}

/// A number made of another and of what distinguishes it, the same in every process.
pub(crate) fn derived(from: u128, by: &[u64]) -> u128 {
    let mut state = from;
    for word in by {
        state = (state ^ u128::from(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) ^ (state >> 61);
        state ^= state >> 67;
    }
    state
}
