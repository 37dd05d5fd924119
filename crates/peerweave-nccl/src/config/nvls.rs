//! Applies the environment variable that disables multicast objects to NCCL.
//!
//! NCCL creates multicast objects for NVLink switches together with a communicator, and reads only
//! its own variable `NCCL_NVLS_ENABLE`. Peerweave's crates check Peerweave's variable for their own
//! multicast objects. For a device communicator, the variable is checked when the program requests
//! multimem.
//!
//! Invariant: while multicast objects are disabled, no communicator is created unless NCCL is
//! configured not to create multicast objects.

use peerweave_driver::multicast_switch;

use crate::library::error::{MisuseKind, NcclError};

/// Fails if multicast objects are disabled but NCCL would create them.
///
/// # Errors
/// [`NcclError::Misuse`] with the option to set.
pub(crate) fn obeys_the_switch(call: &'static str) -> Result<(), NcclError> {
    let told = std::env::var("NCCL_NVLS_ENABLE").ok();
    if is_obeyed(multicast_switch().is_ok(), told.as_deref()) {
        return Ok(());
    }
    let why = "multicast objects are disabled in this process (PEERWEAVE_MULTICAST or NVSHMEM_DISABLE_NVLS), but NCCL creates multicast objects; \
               set NCCL_NVLS_ENABLE=0 too";
    Err(NcclError::misuse(call, MisuseKind::Context { why }))
}

fn is_obeyed(allowed: bool, told: Option<&str>) -> bool {
    allowed || told.is_some_and(|value| value.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disabled_multicast_must_be_configured_in_nccl() {
        for (told, obeyed) in [(None, false), (Some(""), false), (Some("1"), false), (Some("2"), false), (Some(" 0 "), true)] {
            assert_eq!(is_obeyed(false, told), obeyed, "{told:?}");
            assert!(is_obeyed(true, told));
        }
    }
}
