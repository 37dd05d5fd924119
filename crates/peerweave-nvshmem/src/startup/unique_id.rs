//! The id by which PEs connect. `peerweave-bootstrap` or the caller distributes the id.

use std::ffi::c_char;
use std::fmt;

use crate::error::{MisuseKind, NvshmemError};
use crate::sys;

/// An id with which the PEs of a job connect. One process creates the id by
/// [`Context::unique_id`](crate::Context::unique_id) and sends the id to all PEs.
///
/// An id has 128 opaque bytes. These include the address of the process that created the id. Any
/// process with these bytes can join the job, so `Debug` shows only a hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; Self::LEN_BYTES]);

impl UniqueId {
    /// Length of an id in bytes.
    pub const LEN_BYTES: usize = size_of::<sys::nvshmemx_uniqueid_t>();

    /// Returns the id that consists of `bytes`. If NVSHMEM did not create these bytes, the PEs fail
    /// to connect.
    pub const fn from_bytes(bytes: [u8; Self::LEN_BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the id. The caller sends these bytes to the other PEs.
    pub const fn to_bytes(self) -> [u8; Self::LEN_BYTES] {
        self.0
    }

    pub(crate) fn from_raw(id: &sys::nvshmemx_uniqueid_t) -> Self {
        let mut bytes = [0; Self::LEN_BYTES];
        bytes[..4].copy_from_slice(&id.version.to_ne_bytes());
        for (to, from) in bytes[4..].iter_mut().zip(id.internal) {
            *to = from as u8;
        }
        Self(bytes)
    }

    pub(crate) fn to_raw(self) -> sys::nvshmemx_uniqueid_t {
        let mut id = sys::nvshmemx_uniqueid_t::EMPTY;
        let [a, b, c, d, ..] = self.0;
        id.version = i32::from_ne_bytes([a, b, c, d]);
        for (to, from) in id.internal.iter_mut().zip(&self.0[4..]) {
            *to = *from as c_char;
        }
        id
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mixed =
            self.0.iter().fold(crate::comm::identity::SEED, |hash, byte| crate::comm::identity::mix(hash, (*byte).into()));
        write!(f, "UniqueId(#{:08x})", mixed as u32)
    }
}

impl TryFrom<&[u8]> for UniqueId {
    type Error = NvshmemError;

    /// Converts a slice of exactly 128 bytes to an id. Returns [`MisuseKind::Length`] if the slice
    /// has a different length.
    fn try_from(bytes: &[u8]) -> Result<Self, NvshmemError> {
        let wrong = |_| {
            let kind = MisuseKind::Length { what: "the id", found: bytes.len(), expected: Self::LEN_BYTES, unit: "bytes" };
            NvshmemError::misuse("UniqueId::try_from", kind)
        };
        bytes.try_into().map(Self).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_unchanged_after_conversion_to_bytes_and_back() {
        let id = UniqueId::from_bytes(std::array::from_fn(|index| (index * 37 % 256) as u8));
        assert_eq!(UniqueId::from_raw(&id.to_raw()), id);
        assert_eq!(UniqueId::try_from(id.to_bytes().as_slice()).expect("the id has 128 bytes"), id);
        let short = UniqueId::try_from([0; 127].as_slice()).expect_err("the id is one byte too short");
        assert_eq!(short.to_string(), "UniqueId::try_from: the id has 127 bytes, expected 128");
    }
}
