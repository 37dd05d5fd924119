//! Sends and receives bytes with descriptors in one message of a Unix socket. The functions never
//! block.
//!
//! Invariant: every received descriptor immediately becomes an `OwnedFd`, so unused descriptors are
//! closed.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Maximum number of descriptors in one message. The kernel's limit is 253.
pub(super) const PER_MESSAGE: usize = 64;

/// Sends bytes with up to [`PER_MESSAGE`] descriptors, which are attached to the first byte.
/// Returns the number of bytes sent.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_MESSAGE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        let text = format!("the message has {} descriptors, expected at most {PER_MESSAGE}", fds.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
}

/// Receives bytes. Appends to `fds` the descriptors that were sent with the bytes. Returns an error
/// of kind `WouldBlock` if no bytes are available.
pub(super) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_MESSAGE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(received.bytes)
}
