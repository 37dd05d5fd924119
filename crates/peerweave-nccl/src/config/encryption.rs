//! Encryption of the sockets that NCCL opens (requires NCCL 2.32). NCCL encrypts the bootstrap and
//! the socket network, not NVLink or InfiniBand.

use std::fmt;

use crate::config::of_communicator::{Found, interned};
use crate::sys::{self, Versioned, ncclEncryptionConfig_t};
use crate::{MisuseKind, Nccl, NcclError, Version, version_code};

/// Selects whether NCCL encrypts the data on the sockets that NCCL opens.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncryptionConfig {
    /// NCCL does not encrypt the data.
    Plain,
    /// NCCL uses TLS with a pre-shared key of at least 32 bytes. Every rank must have the same key.
    /// The key stays in memory until the process ends. `Debug` does not print the key.
    PreSharedKey(String),
}

impl fmt::Debug for EncryptionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "Plain",
            Self::PreSharedKey(_) => "PreSharedKey(..)",
        })
    }
}

impl EncryptionConfig {
    fn for_version(&self, found: &Found<'_>) -> Result<ncclEncryptionConfig_t, NcclError> {
        let version = found.version.min(sys::HEADER);
        let Some(size) = ncclEncryptionConfig_t::len_bytes(version) else {
            return Err(found.unsupported("EncryptionConfig (ncclEncryptionConfig_t)", Version::new(2, 32, 0)));
        };
        let (mode, psk) = match self {
            Self::Plain => (sys::NCCL_ENCRYPTION_MODE_NONE, std::ptr::null()),
            // NCCL 2.32.3 refuses shorter keys, and reports the reason only in its log.
            Self::PreSharedKey(key) if key.len() < 32 => {
                let kind = MisuseKind::Text {
                    what: "EncryptionConfig::PreSharedKey",
                    why: "the key is too short, expected at least 32 bytes",
                };
                return Err(NcclError::misuse(found.call, kind));
            }
            Self::PreSharedKey(key) => {
                (sys::NCCL_ENCRYPTION_MODE_PSK, interned(found.call, "EncryptionConfig::PreSharedKey", key)?)
            }
        };
        Ok(ncclEncryptionConfig_t { size, magic: sys::NCCL_API_MAGIC, version: version_code(version).unsigned_abs(), mode, psk })
    }
}

impl Nccl {
    /// Sets the encryption of all sockets that NCCL opens later. Every rank must make this call,
    /// with the same configuration, before it creates a unique id or a communicator. Requires NCCL
    /// 2.32.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] before NCCL 2.32. [`NcclError::Misuse`] for a key that is shorter
    /// than 32 bytes or contains a zero byte. [`NcclError::Nccl`] if NCCL refuses the
    /// configuration.
    pub fn set_encryption(self, config: &EncryptionConfig) -> Result<(), NcclError> {
        let found = Found { call: "Nccl::set_encryption", version: self.version(), path: &self.shared_path() };
        let raw = config.for_version(&found)?;
        // SAFETY: the struct is of the library's version, and its key lives until the process ends.
        self.call("ncclSetEncryption", |api| unsafe { api.ncclSetEncryption(&raw const raw) })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;

    fn build(config: &EncryptionConfig, version: Version) -> Result<ncclEncryptionConfig_t, NcclError> {
        let path: Arc<Path> = Path::new("/opt/libnccl.so.2").into();
        config.for_version(&Found { call: "Nccl::set_encryption", version, path: &path })
    }

    #[test]
    fn encryption_key_is_set_if_the_library_supports_encryption() {
        let config = EncryptionConfig::PreSharedKey("0123456789abcdef0123456789abcdef".into());
        let raw = build(&config, sys::HEADER).expect("NCCL 2.32 supports encryption");
        assert_eq!((raw.size, raw.mode), (32, 1));
        assert!(!raw.psk.is_null());
        assert!(matches!(build(&config, Version::new(2, 31, 2)), Err(NcclError::Unsupported(_))));
        assert_eq!(build(&EncryptionConfig::Plain, sys::HEADER).expect("NCCL 2.32 supports encryption").mode, 0);
    }

    #[test]
    fn error_for_an_invalid_key_does_not_contain_the_key() {
        let config = EncryptionConfig::PreSharedKey("secret".into());
        assert_eq!(format!("{config:?}"), "PreSharedKey(..)");
        for key in ["", "a key of 31 bytes: 1 too short.", "a\0b, and long enough to be a key that is used"] {
            let error = build(&EncryptionConfig::PreSharedKey(key.into()), sys::HEADER).expect_err("the key is invalid");
            assert!(error.misuse_kind().is_some() && !error.to_string().contains(key.get(..3).unwrap_or("secret")), "{error}");
        }
    }
}
