//! The variable that disables multicast objects, applied to NCCL, which creates them implicitly.
//!
//! NCCL creates multicast objects with a communicator, for NVLink switches, and only reads its own
//! variable. Peerweave's crates check the variable for their own objects; the multimem of a device
//! communicator is checked when it is requested.
//!
//! Invariant: while multicast objects are disabled, no communicator is created unless NCCL is
//! configured not to use them.

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
    let why = "multicast objects are forbidden in this process (PEERWEAVE_MULTICAST or NVSHMEM_DISABLE_NVLS), and NCCL makes some unless \
               NCCL_NVLS_ENABLE=0 is set too";
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
