//! File descriptors and their exchange on Linux; on other systems each use is an error.
//!
//! Invariant: all code of this crate that depends on the operating system is in this module.

use peerweave_bootstrap::Rendezvous;
use peerweave_types::Pe;

use crate::error::VmmError;

/// A file descriptor.
#[cfg(unix)]
pub type Descriptor = std::os::fd::OwnedFd;
/// A file descriptor. Systems without descriptors have no such value.
#[cfg(not(unix))]
#[derive(Debug)]
pub struct Descriptor(std::convert::Infallible);

/// Whether memory can be exported as a descriptor.
pub(crate) const POSSIBLE: bool = cfg!(target_os = "linux");

#[cfg(not(target_os = "linux"))]
fn nowhere() -> VmmError {
    let found = std::env::consts::OS.to_owned();
    VmmError::Unsupported { feature: "memory that can be exported as a file descriptor", needs: "Linux".to_owned(), found }
}

/// Takes ownership of a descriptor that the driver has just opened, and sets close-on-exec, because
/// a child program would otherwise keep the memory allocated.
pub(crate) fn own(number: i32) -> Result<Descriptor, VmmError> {
    #[cfg(unix)]
    if number >= 0 {
        // SAFETY: by the contract of this function it has no other owner.
        let fd: Descriptor = unsafe { std::os::fd::FromRawFd::from_raw_fd(number) };
        if let Err(error) = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC) {
            tracing::warn!(%error, "cannot set close-on-exec: child programs inherit a descriptor of GPU memory");
        }
        return Ok(fd);
    }
    let (needs, found) = ("a descriptor from the driver".to_owned(), number.to_string());
    Err(VmmError::Unsupported { feature: "memory that can be exported as a file descriptor", needs, found })
}

/// Checks that this process can open `count` more descriptors. The leader of an exchange cannot
/// distinguish a connection for which it has no descriptor from one that never arrived.
pub(crate) fn check_room(fd: &Descriptor, count: usize) -> Result<(), VmmError> {
    #[cfg(unix)]
    {
        let copies: Result<Vec<Descriptor>, std::io::Error> = (0..count).map(|_| fd.try_clone()).collect();
        copies.map(drop).map_err(|error| {
            let (needs, found) = (format!("{count} more open descriptors"), error.to_string());
            VmmError::Unsupported { feature: "memory that can be exported as a file descriptor", needs, found }
        })
    }
    #[cfg(not(unix))]
    {
        let _ = count;
        match fd.0 {}
    }
}

/// Returns the descriptor's number as a pointer, the form that the driver expects.
pub(crate) fn as_pointer(fd: &Descriptor) -> *mut std::ffi::c_void {
    #[cfg(unix)]
    return std::ptr::without_provenance_mut(usize::try_from(std::os::fd::AsRawFd::as_raw_fd(fd)).unwrap_or(usize::MAX));
    #[cfg(not(unix))]
    match fd.0 {}
}

/// Calls [`Rendezvous::exchange_descriptors`].
pub(crate) fn exchange(rendezvous: &Rendezvous, members: &[Pe], fd: Descriptor) -> Result<Vec<Descriptor>, VmmError> {
    #[cfg(target_os = "linux")]
    return Ok(rendezvous.exchange_descriptors(members, fd)?);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (rendezvous, members, fd);
        Err(nowhere())
    }
}

/// Calls [`Rendezvous::share_descriptor`].
pub(crate) fn share(rendezvous: &Rendezvous, members: &[Pe], fd: Option<Descriptor>) -> Result<Descriptor, VmmError> {
    #[cfg(target_os = "linux")]
    return Ok(rendezvous.share_descriptor(members, fd)?);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (rendezvous, members, fd);
        Err(nowhere())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[test]
    fn driver_descriptors_are_closed_on_exec() {
        let file = std::fs::File::open("/dev/null").expect("every system has it");
        let inherited = rustix::io::dup(&file).expect("there is room");
        let flags = |fd: &Descriptor| rustix::io::fcntl_getfd(fd).expect("a descriptor");
        assert!(!flags(&inherited).contains(rustix::io::FdFlags::CLOEXEC), "as some drivers give it");
        let ours = own(inherited.into_raw_fd()).expect("a number of a descriptor");
        assert!(flags(&ours).contains(rustix::io::FdFlags::CLOEXEC));
        assert!(own(-1).is_err());
    }
}
