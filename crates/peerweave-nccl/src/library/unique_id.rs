//! The id with which ranks connect to each other. `peerweave-bootstrap` or the caller distributes
//! the id.

use std::ffi::c_char;
use std::fmt;
use std::str::FromStr;

use crate::library::error::{Misuse, MisuseKind, NcclError};
use crate::sys;

/// The id of a new communicator. One process creates the id with
/// [`Nccl::unique_id`](crate::Nccl::unique_id), and every rank of the communicator needs the id.
///
/// An id consists of 128 opaque bytes, which contain the network address of the process that
/// created the id. Any process that has the id can join the communicator, so `Debug` prints only
/// the first bytes.
///
/// ```
/// use peerweave_nccl::UniqueId;
///
/// let id = UniqueId::from_bytes([7; UniqueId::LEN_BYTES]);
/// let text = id.to_hex();
/// assert_eq!(text.len(), 256);
/// assert_eq!(text.parse::<UniqueId>()?, id);
/// # Ok::<(), peerweave_nccl::NcclError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; Self::LEN_BYTES]);

impl UniqueId {
    /// Length of an id in bytes.
    pub const LEN_BYTES: usize = sys::NCCL_UNIQUE_ID_BYTES;

    /// Creates an id from bytes. This function cannot check the bytes. If the bytes are not an id
    /// that NCCL created, connecting the ranks fails.
    pub const fn from_bytes(bytes: [u8; Self::LEN_BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the id, which a program sends to the other ranks.
    pub const fn to_bytes(self) -> [u8; Self::LEN_BYTES] {
        self.0
    }

    /// Returns a reference to the bytes of the id.
    pub const fn as_bytes(&self) -> &[u8; Self::LEN_BYTES] {
        &self.0
    }

    /// Returns the id as 256 hexadecimal digits, for environment variables and command lines.
    /// [`FromStr`] parses this text.
    pub fn to_hex(self) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
    }

    pub(crate) fn from_raw(id: sys::ncclUniqueId) -> Self {
        Self(id.internal.map(|byte| byte as u8))
    }

    pub(crate) fn to_raw(self) -> sys::ncclUniqueId {
        sys::ncclUniqueId { internal: self.0.map(|byte| byte as c_char) }
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "UniqueId({a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

impl TryFrom<&[u8]> for UniqueId {
    type Error = NcclError;

    /// Converts a slice to an id. Fails if the slice does not have exactly 128 bytes.
    fn try_from(bytes: &[u8]) -> Result<Self, NcclError> {
        let found = bytes.len();
        let wrong = |_| wrong_length("UniqueId::try_from", found, Self::LEN_BYTES, "bytes");
        bytes.try_into().map(Self).map_err(wrong)
    }
}

impl FromStr for UniqueId {
    type Err = NcclError;

    /// Parses 256 hexadecimal digits of either case.
    fn from_str(text: &str) -> Result<Self, NcclError> {
        if text.len() != 2 * Self::LEN_BYTES {
            return Err(wrong_length("UniqueId::from_str", text.len(), 2 * Self::LEN_BYTES, "digits"));
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        let mut bytes = [0; Self::LEN_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                let kind = MisuseKind::Text { what: "the id", why: "expected hexadecimal digits only" };
                return Err(Misuse { call: "UniqueId::from_str", kind }.into());
            };
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

fn wrong_length(call: &'static str, found: usize, expected: usize, unit: &'static str) -> NcclError {
    let kind = MisuseKind::Length { what: "the id", found, expected, unit };
    Misuse { call, kind }.into()
}

#[cfg(feature = "serde")]
mod with_serde {
    use serde::de::{Error, SeqAccess, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{UniqueId, fmt};

    impl Serialize for UniqueId {
        /// Serialises the id as hexadecimal text for human-readable formats, and as bytes for other
        /// formats.
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            if serializer.is_human_readable() {
                serializer.serialize_str(&self.to_hex())
            } else {
                serializer.serialize_bytes(&self.0)
            }
        }
    }

    impl<'de> Deserialize<'de> for UniqueId {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            if deserializer.is_human_readable() { deserializer.deserialize_str(Id) } else { deserializer.deserialize_bytes(Id) }
        }
    }

    struct Id;

    impl<'de> Visitor<'de> for Id {
        type Value = UniqueId;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a unique id of 128 bytes or 256 hexadecimal digits")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<UniqueId, E> {
            text.parse().map_err(E::custom)
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<UniqueId, E> {
            bytes.try_into().map_err(E::custom)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<UniqueId, A::Error> {
            let mut bytes = [0; UniqueId::LEN_BYTES];
            for (index, byte) in bytes.iter_mut().enumerate() {
                *byte = sequence.next_element()?.ok_or_else(|| A::Error::invalid_length(index, &self))?;
            }
            if sequence.next_element::<u8>()?.is_some() {
                return Err(A::Error::invalid_length(UniqueId::LEN_BYTES + 1, &self));
            }
            Ok(UniqueId(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting() -> UniqueId {
        UniqueId::from_bytes(std::array::from_fn(|index| (index * 37 % 256) as u8))
    }

    #[test]
    fn unique_id_round_trips_through_bytes_and_text() {
        let id = counting();
        assert_eq!(UniqueId::from_bytes(id.to_bytes()), id);
        assert_eq!(UniqueId::try_from(id.as_bytes().as_slice()).expect("the slice has 128 bytes"), id);
        assert_eq!(id.to_hex().parse::<UniqueId>().expect("the text is hexadecimal"), id);
        assert_eq!(id.to_hex().to_uppercase().parse::<UniqueId>().expect("the text is hexadecimal"), id);
        assert_eq!(UniqueId::from_raw(id.to_raw()), id);
    }

    #[test]
    fn wrong_id_length_or_digit_is_refused() {
        let short = UniqueId::try_from([0; 127].as_slice()).expect_err("the slice is too short");
        assert_eq!(short.to_string(), "UniqueId::try_from: the id has 127 bytes, expected 128");
        let long = "0".repeat(257).parse::<UniqueId>().expect_err("the text is too long");
        assert_eq!(long.to_string(), "UniqueId::from_str: the id has 257 digits, expected 256");
        let mut text = counting().to_hex();
        text.replace_range(10..11, "g");
        assert_eq!(
            text.parse::<UniqueId>().expect_err("the text has an invalid digit").to_string(),
            "UniqueId::from_str: the id: expected hexadecimal digits only"
        );
        // The character has two bytes, so the length in bytes is right, but the text has an invalid
        // digit.
        text.replace_range(10..12, "\u{e9}");
        assert!(text.parse::<UniqueId>().is_err());
    }

    #[test]
    fn debug_prints_only_the_beginning_of_an_id() {
        assert_eq!(format!("{:?}", counting()), "UniqueId(00254a6f..)");
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_writes_an_id_as_hexadecimal_in_readable_formats() {
        let id = counting();
        let text = serde_json::to_string(&id).expect("the id can be written");
        assert_eq!(text, format!("\"{}\"", id.to_hex()));
        assert_eq!(serde_json::from_str::<UniqueId>(&text).expect("the id can be read"), id);
        assert!(serde_json::from_str::<UniqueId>("\"00\"").is_err());
    }
}
