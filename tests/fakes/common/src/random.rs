//! Numbers that differ between calls and between processes.
//!
//! The numbers are not secrets. Invariant: two calls return the same number only by chance.

use std::hash::{BuildHasher as _, Hasher as _};

/// Returns a word from the hasher's random keys, which the system seeds.
pub fn random_word() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}
