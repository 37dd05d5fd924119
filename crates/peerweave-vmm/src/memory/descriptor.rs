//! File descriptors of exported memory, and their exchange among PEs. Only Linux supports the
//! exchange; on other systems, the exchange returns [`VmmError::Unsupported`].
//!
//! Invariant: only this module has code that depends on the operating system.

use peerweave_bootstrap::Rendezvous;
use peerweave_types::Pe;

use crate::error::VmmError;

/// A file descriptor of exported memory.
#[cfg(unix)]
pub type Descriptor = std::os::fd::OwnedFd;
/// A file descriptor of exported memory. On this operating system, no value of this type can exist.
#[cfg(not(unix))]
#[derive(Debug)]
pub struct Descriptor(std::convert::Infallible);

/// Whether this system can export memory as a file descriptor.
pub(crate) const POSSIBLE: bool = cfg!(target_os = "linux");

#[cfg(not(target_os = "linux"))]
fn nowhere() -> VmmError {
    let found = std::env::consts::OS.to_owned();
    VmmError::Unsupported { feature: "memory that can be exported as a file descriptor", needs: "Linux".to_owned(), found }
}

/// Takes ownership of a descriptor that the driver has just opened, and sets close-on-exec. A child
/// program that inherited the descriptor would keep the memory allocated.
///
/// # Errors
/// [`VmmError::Unsupported`] if `number` is negative, or if the operating system is not Unix.
pub(crate) fn own(number: i32) -> Result<Descriptor, VmmError> {
    #[cfg(unix)]
    if number >= 0 {
        // SAFETY: by the contract of this function the descriptor has no other owner.
        let fd: Descriptor = unsafe { std::os::fd::FromRawFd::from_raw_fd(number) };
        if let Err(error) = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC) {
            tracing::warn!(%error, "cannot set close-on-exec: child programs inherit a descriptor of GPU memory");
        }
        return Ok(fd);
    }
    let (needs, found) = ("a non-negative descriptor from the driver".to_owned(), number.to_string());
    Err(VmmError::Unsupported { feature: "memory that can be exported as a file descriptor", needs, found })
}

/// Checks that this process can open `count` more descriptors, by making `count` duplicates of
/// `fd`. Callers make this check before an exchange of descriptors, because they can then still
/// report an error to the other PEs.
pub(crate) fn check_room(fd: &Descriptor, count: usize) -> Result<(), VmmError> {
    #[cfg(unix)]
    {
        let copies: Result<Vec<Descriptor>, std::io::Error> = (0..count).map(|_| fd.try_clone()).collect();
        copies.map(drop).map_err(|error| {
            let (needs, found) = (format!("room for {count} more open descriptors (see ulimit -n)"), error.to_string());
            VmmError::Unsupported { feature: "memory that can be exported as a file descriptor", needs, found }
        })
    }
    #[cfg(not(unix))]
    {
        let _ = count;
        match fd.0 {}
    }
}

/// Converts the number of the descriptor to a pointer, as the driver expects.
pub(crate) fn as_pointer(fd: &Descriptor) -> *mut std::ffi::c_void {
    #[cfg(unix)]
    return std::ptr::without_provenance_mut(usize::try_from(std::os::fd::AsRawFd::as_raw_fd(fd)).unwrap_or(usize::MAX));
    #[cfg(not(unix))]
    match fd.0 {}
}

/// Exchanges descriptors among `members` by [`Rendezvous::exchange_descriptors`].
pub(crate) fn exchange(rendezvous: &Rendezvous, members: &[Pe], fd: Descriptor) -> Result<Vec<Descriptor>, VmmError> {
    #[cfg(target_os = "linux")]
    return Ok(rendezvous.exchange_descriptors(members, fd)?);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (rendezvous, members, fd);
        Err(nowhere())
    }
}

/// Sends a descriptor from the first member to the other members by
/// [`Rendezvous::share_descriptor`]. The first member passes the descriptor as `fd`, and the other
/// members pass `None`. The call returns this member's descriptor of the same open file.
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
    fn descriptors_from_the_driver_are_closed_on_exec() {
        let file = std::fs::File::open("/dev/null").expect("/dev/null exists on every Unix system");
        let inherited = rustix::io::dup(&file).expect("dup returns a new descriptor");
        let flags = |fd: &Descriptor| rustix::io::fcntl_getfd(fd).expect("fcntl returns the flags of an open descriptor");
        assert!(!flags(&inherited).contains(rustix::io::FdFlags::CLOEXEC), "dup must return a descriptor without close-on-exec");
        let ours = own(inherited.into_raw_fd()).expect("the descriptor is valid");
        assert!(flags(&ours).contains(rustix::io::FdFlags::CLOEXEC));
        assert!(own(-1).is_err());
    }
}
