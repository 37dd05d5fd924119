//! Ensures that NCCL creates no multicast objects while multicast objects are disabled in this
//! process.
//!
//! When NCCL creates a communicator, NCCL also creates multicast objects for NVLink switches,
//! unless the environment variable `NCCL_NVLS_ENABLE` is 0. The variables `PEERWEAVE_MULTICAST` and
//! `NVSHMEM_DISABLE_NVLS` also disable multicast objects in this process, but NCCL does not read
//! these two variables. Peerweave's crates check all three variables before they create or request
//! multicast objects.
//!
//! Invariant: while multicast objects are disabled, a communicator is created only if
//! `NCCL_NVLS_ENABLE` is 0.

use peerweave_driver::multicast_switch;

use crate::library::error::{MisuseKind, NcclError};

/// Checks that NCCL obeys Peerweave's switch for multicast objects. Fails if multicast objects are
/// disabled in this process, but NCCL's own setting does not disable them.
///
/// # Errors
/// [`NcclError::Misuse`], which names the environment variable to set.
pub(crate) fn obeys_the_switch(call: &'static str) -> Result<(), NcclError> {
    let told = std::env::var("NCCL_NVLS_ENABLE").ok();
    if is_obeyed(multicast_switch().is_ok(), told.as_deref()) {
        return Ok(());
    }
    let why = "PEERWEAVE_MULTICAST or NVSHMEM_DISABLE_NVLS disables multicast objects, but NCCL would create multicast objects; \
               also set NCCL_NVLS_ENABLE=0";
    Err(NcclError::misuse(call, MisuseKind::Context { why }))
}

fn is_obeyed(allowed: bool, told: Option<&str>) -> bool {
    allowed || told.is_some_and(|value| value.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_disables_multicast_only_if_nccl_nvls_enable_is_0() {
        for (told, obeyed) in [(None, false), (Some(""), false), (Some("1"), false), (Some("2"), false), (Some(" 0 "), true)] {
            assert_eq!(is_obeyed(false, told), obeyed, "{told:?}");
            assert!(is_obeyed(true, told));
        }
    }
}
