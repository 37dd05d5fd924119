//! Tests of the errors on machines without NVIDIA's libraries.
#![cfg(target_os = "linux")]

use std::path::Path;

use peerweave_link::{LinkError, NvJitLink, Nvrtc};

#[test]
fn error_for_a_missing_nvidia_library_names_the_path() {
    // SAFETY: nothing is loaded, because the file does not exist.
    let error = unsafe { Nvrtc::open(Path::new("/nowhere/libnvrtc.so.13")) }
        .expect_err("the load fails, because the file does not exist");
    assert!(matches!(error, LinkError::Load(_)) && error.to_string().contains("/nowhere/libnvrtc.so.13"), "{error}");
    // SAFETY: as above.
    let error = unsafe { NvJitLink::open(Path::new("/nowhere/libnvJitLink.so.13")) }
        .expect_err("the load fails, because the file does not exist");
    assert!(matches!(error, LinkError::Load(_)) && error.to_string().contains("/nowhere/libnvJitLink.so.13"), "{error}");
}
