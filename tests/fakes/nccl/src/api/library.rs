//! Functions for the whole library: its version, encryption, its log for users.
//!
//! Invariant: none of these functions needs a communicator.

use core::ffi::c_int;

use crate::abi::{EncryptionConfig, Header, MAGIC, Out, invalid, not_null};
use crate::call::exports;
use crate::report::{debug, log};
use crate::settings;

exports! {
    /// Returns the emulated version.
    fn ncclGetVersion(version: *mut c_int) {
        not_null(version, "version")?;
        Out(version).set(settings::get().version);
        Ok(())
    }

    /// Sets the encryption of connections between processes; connections within a machine's memory
    /// are not encrypted.
    fn ncclSetEncryption(config: *const EncryptionConfig) {
        not_null(config, "config")?;
        // SAFETY: the pointer is not null, and every version's struct begins with this header.
        let header = unsafe { config.cast::<Header>().read() };
        header.check(MAGIC, "ncclEncryptionConfig_t")?;
        if header.size < size_of::<EncryptionConfig>() {
            return invalid(format!("ncclEncryptionConfig_t has an unsupported size of {} bytes", header.size));
        }
        // SAFETY: the struct is as long as this library's.
        let config = unsafe { &*config };
        match config.mode {
            0 => Ok(()),
            1 if config.psk.is_null() => invalid("encryption with a key requires the key"),
            1 => Ok(()),
            mode => invalid(format!("unknown encryption mode {mode}")),
        }
    }
}

/// Reads the logging variables again.
#[unsafe(no_mangle)]
extern "C" fn ncclResetDebugInit() {
    debug::reset();
    log::line("ncclResetDebugInit()");
}

/// Reads the logging variables again; this name is not in the header.
#[unsafe(no_mangle)]
extern "C" fn ncclResetDebugInitInternal() {
    debug::reset();
    log::line("ncclResetDebugInitInternal()");
}
