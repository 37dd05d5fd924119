//! The secret that the PEs of a job share. The launcher passes the secret in the environment.
//!
//! Invariant: a token is never printed (`Debug` hides it) and is compared in constant time.

use std::fmt;
use std::hint;
use std::str::FromStr;

use crate::error::BootstrapError;

/// Length of a token in bytes.
pub const TOKEN_LEN_BYTES: usize = 32;

/// The shared secret of a job. A PE needs the secret to join the job.
///
/// ```
/// use peerweave_bootstrap::Token;
///
/// let token = Token::random()?;
/// assert_eq!(token.to_hex().parse::<Token>()?, token);
/// assert_eq!(format!("{token:?}"), "Token(..)");
/// # Ok::<(), peerweave_bootstrap::BootstrapError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Token([u8; TOKEN_LEN_BYTES]);

impl Token {
    /// Creates a random token from random numbers that the operating system provides.
    ///
    /// # Errors
    /// [`BootstrapError::Io`] if the operating system provides no random numbers.
    pub fn random() -> Result<Self, BootstrapError> {
        let mut bytes = [0; TOKEN_LEN_BYTES];
        fill_random(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// Derives a token from the identity of a job, so that PEs of different jobs do not connect to
    /// each other.
    ///
    /// A derived token prevents accidents, not attacks. Anyone who knows the identity can compute
    /// the token.
    pub fn derived_from(identity: &str) -> Self {
        let mut bytes = [0; TOKEN_LEN_BYTES];
        for (salt, chunk) in bytes.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&fingerprint(identity, salt as u64 + 1).to_le_bytes());
        }
        Self(bytes)
    }

    /// Returns the token as 64 hexadecimal digits, the form that `PEERWEAVE_TOKEN` has. Do not log
    /// the result.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) const fn from_bytes(bytes: [u8; TOKEN_LEN_BYTES]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; TOKEN_LEN_BYTES] {
        &self.0
    }
}

impl PartialEq for Token {
    /// Compares two tokens in constant time.
    fn eq(&self, other: &Self) -> bool {
        let difference = self.0.iter().zip(&other.0).fold(0, |acc, (a, b)| hint::black_box(acc | (a ^ b)));
        hint::black_box(difference) == 0
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl FromStr for Token {
    type Err = BootstrapError;

    /// Parses 64 hexadecimal digits. The error does not contain the digits.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || BootstrapError::Misuse {
            call: "Token::from_str",
            what: "a token",
            value: format!("{} characters, hidden", text.chars().count()),
            expected: format!("{} hexadecimal digits", 2 * TOKEN_LEN_BYTES),
        };
        if text.len() != 2 * TOKEN_LEN_BYTES || !text.bytes().all(|c| c.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; TOKEN_LEN_BYTES];
        for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

/// Fills `bytes` with random numbers that the operating system provides.
///
/// # Errors
/// [`BootstrapError::Io`] if the operating system provides no random numbers.
///
/// ```
/// let mut seed = [0; 16];
/// peerweave_bootstrap::fill_random(&mut seed)?;
/// # Ok::<(), peerweave_bootstrap::BootstrapError>(())
/// ```
pub fn fill_random(bytes: &mut [u8]) -> Result<(), BootstrapError> {
    getrandom::fill(bytes).map_err(|error| BootstrapError::Io {
        call: "getrandom",
        kind: std::io::ErrorKind::Other,
        message: error.to_string(),
    })
}

/// Returns a 64-bit hash of `text` (FNV-1a, then the finaliser of splitmix64). Each value of `salt`
/// selects a different hash function. The hash is the same in every build, because the PEs of one
/// job may be different binaries. Hashes of the standard library can change between versions.
pub(crate) fn fingerprint(text: &str, salt: u64) -> u64 {
    let seed = 0xcbf2_9ce4_8422_2325 ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = text.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tokens_differ_and_parse_from_hex() {
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.to_hex().to_uppercase().parse::<Token>().unwrap(), one);
    }

    #[test]
    fn derived_tokens_are_equal_if_and_only_if_the_identities_are() {
        assert_eq!(Token::derived_from("job 1"), Token::derived_from("job 1"));
        assert_ne!(Token::derived_from("job 1"), Token::derived_from("job 2"));
        let bytes = *Token::derived_from("job 1").as_bytes();
        assert_ne!(bytes[..8], bytes[8..16]);
    }

    #[test]
    fn malformed_token_is_refused_and_not_shown() {
        for wrong in ["", "12", &"g".repeat(64), &"é".repeat(32), &"0".repeat(65)] {
            let error = wrong.parse::<Token>().unwrap_err();
            assert!(wrong.len() < 3 || !error.to_string().contains(wrong), "{error}");
        }
    }

    #[test]
    fn tokens_differing_in_one_bit_are_unequal() {
        let token = Token::random().unwrap();
        for bit in 0..8 * TOKEN_LEN_BYTES {
            let mut bytes = *token.as_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Token::from_bytes(bytes), token, "bit {bit}");
        }
    }
}
