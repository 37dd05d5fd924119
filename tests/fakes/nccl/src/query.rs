//! Queries of the library and of a communicator.
//!
//! Properties for kernels are in `device_comm`. Invariant: a result that depends on the ranks is
//! available only after they have connected.

use core::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::abi::{Code, EncryptionConfig, Header, MAGIC, invalid};
use crate::comm::{CommPtr, Out, not_null};
use crate::{config, settings};

exports! {
    /// Returns the emulated version.
    fn ncclGetVersion(version: *mut c_int) {
        not_null(version, "version")?;
        Out(version).set(settings::get().version);
        Ok(())
    }

    /// Returns the asynchronous error of a communicator, or whether an operation is pending.
    fn ncclCommGetAsyncError(comm: CommPtr, async_error: *mut c_int) {
        let comm = comm.get()?;
        not_null(async_error, "asyncError")?;
        let fewer = |questions: u32| questions.checked_sub(1);
        let is_pretended = comm.questions.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer).is_ok();
        let state = if is_pretended { Code::InProgress } else { comm.async_state() };
        Out(async_error).set(state as c_int);
        Ok(())
    }

    /// Returns the number of ranks.
    fn ncclCommCount(comm: CommPtr, count: *mut c_int) {
        let comm = comm.ready()?;
        not_null(count, "count")?;
        Out(count).set(comm.who().ranks());
        Ok(())
    }

    /// Returns the device's ordinal.
    fn ncclCommCuDevice(comm: CommPtr, device: *mut c_int) {
        let comm = comm.ready()?;
        not_null(device, "device")?;
        Out(device).set(comm.device);
        Ok(())
    }

    /// Returns this rank.
    fn ncclCommUserRank(comm: CommPtr, rank: *mut c_int) {
        let comm = comm.ready()?;
        not_null(rank, "rank")?;
        Out(rank).set(comm.who().rank);
        Ok(())
    }

    /// Sets the encryption of connections between processes; connections within a machine's memory
    /// are not encrypted.
    fn ncclSetEncryption(config: *const EncryptionConfig) {
        not_null(config, "config")?;
        // SAFETY: the pointer is not null, and every version's struct begins with this header.
        let header = unsafe { config.cast::<Header>().read() };
        config::check_header(&header, MAGIC, "ncclEncryptionConfig_t")?;
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
    crate::debug::reset();
    crate::log::line("ncclResetDebugInit()");
}

/// Reads the logging variables again; this name is not in the header.
#[unsafe(no_mangle)]
extern "C" fn ncclResetDebugInitInternal() {
    crate::debug::reset();
    crate::log::line("ncclResetDebugInitInternal()");
}
