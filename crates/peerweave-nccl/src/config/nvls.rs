//! The switch that forbids multicast objects, where NCCL would make them by itself.
//!
//! NCCL makes multicast objects with a communicator, for NVLink's switches, and knows only its own
//! variable. What Peerweave's own crates make is guarded by them; a device communicator's multimem
//! is guarded where it is asked for.
//!
//! Invariant: while multicast objects are forbidden, no communicator is created unless NCCL is
//! configured not to use them.

use peerweave_driver::multicast_switch;

use crate::library::error::{MisuseKind, NcclError};

/// An error where NCCL would do what is forbidden.
///
/// # Errors
/// [`NcclError::Misuse`] with what to set.
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
    fn nccl_must_be_told_what_is_forbidden() {
        for (told, obeyed) in [(None, false), (Some(""), false), (Some("1"), false), (Some("2"), false), (Some(" 0 "), true)] {
            assert_eq!(is_obeyed(false, told), obeyed, "{told:?}");
            assert!(is_obeyed(true, told));
        }
    }
}
