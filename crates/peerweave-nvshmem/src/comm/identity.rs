//! The hash (FNV-1a) by which the PEs compute numbers that identify teams and unique ids. Every PE
//! computes the same numbers without communication.

/// Initial value of a hash that identifies a team or an id (FNV-1a).
pub(crate) const SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// Adds the bytes of `number` to the FNV-1a hash `hash`, and returns the new hash. Such hashes
/// identify teams and ids.
pub(crate) fn mix(hash: u64, number: u64) -> u64 {
    number.to_le_bytes().iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
