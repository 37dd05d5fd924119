//! Code shared by several test files: raw calls, memory behind handles, descriptors passed between
//! processes.
#![allow(dead_code)] // Each file uses its own part.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use cudarc::driver::sys;
use peerweave_fakes::Child;
use sys::CUresult::*;

/// Calls a function of the driver's C interface.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the pointers are to live variables of the right types, or deliberately wrong
        // numbers that the fake looks up.
        unsafe { sys::$name($($argument),*) }
    };
}
pub(crate) use call;

/// Granularity of memory that has a handle, in bytes.
pub(crate) const PIECE: usize = 2 << 20;

pub(crate) const POSIX: sys::CUmemAllocationHandleType = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
pub(crate) const FABRIC: sys::CUmemAllocationHandleType = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;

pub(crate) fn location(device: i32) -> sys::CUmemLocation {
    // SAFETY: the structure consists of numbers, for which zero is valid.
    let mut location: sys::CUmemLocation = unsafe { std::mem::zeroed() };
    location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    // SAFETY: the second word is the number of the device in every version of the structure.
    unsafe { (&raw mut location).cast::<i32>().add(1).write(device) };
    location
}

pub(crate) fn prop(device: i32, types: sys::CUmemAllocationHandleType) -> sys::CUmemAllocationProp {
    // SAFETY: zero is valid for the numbers and the pointer. The kind is set here, and the other
    // enumerations are set below.
    let mut prop: sys::CUmemAllocationProp = unsafe {
        let mut prop = std::mem::MaybeUninit::<sys::CUmemAllocationProp>::zeroed();
        (*prop.as_mut_ptr()).type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.assume_init()
    };
    prop.requestedHandleTypes = types;
    prop.location = location(device);
    prop
}

/// Creates memory of a device and returns its handle.
pub(crate) fn create(device: i32, size: usize) -> Result<u64, sys::CUresult> {
    let mut handle = 0;
    match call!(cuMemCreate(&mut handle, size, &prop(device, POSIX), 0)) {
        CUDA_SUCCESS => Ok(handle),
        code => Err(code),
    }
}

/// Reserves addresses.
pub(crate) fn reserve(size: usize) -> u64 {
    let mut address = 0;
    assert_eq!(call!(cuMemAddressReserve(&mut address, size, 0, 0, 0)), CUDA_SUCCESS);
    address
}

/// Gives a device access to mapped memory.
pub(crate) fn allow(address: u64, size: usize, device: i32, flags: sys::CUmemAccess_flags) -> sys::CUresult {
    let wanted = sys::CUmemAccessDesc { location: location(device), flags };
    call!(cuMemSetAccess(address, size, &wanted, 1))
}

pub(crate) const READ_WRITE: sys::CUmemAccess_flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
pub(crate) const READ: sys::CUmemAccess_flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;

/// Maps all memory of a handle, with read and write access for a device.
pub(crate) fn map(handle: u64, size: usize, device: i32) -> u64 {
    let address = reserve(size);
    assert_eq!(call!(cuMemMap(address, size, 0, handle, 0)), CUDA_SUCCESS);
    assert_eq!(allow(address, size, device, READ_WRITE), CUDA_SUCCESS);
    address
}

/// Copies words of the device to the host.
pub(crate) fn words(address: u64, count: usize) -> Vec<u32> {
    let mut out = vec![0_u32; count];
    assert_eq!(call!(cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), address, count * 4)), CUDA_SUCCESS);
    out
}

/// Fills words of the device, and waits until the fill is complete.
pub(crate) fn fill(address: u64, value: u32, count: usize) {
    assert_eq!(call!(cuMemsetD32_v2(address, value, count)), CUDA_SUCCESS);
    assert_eq!(call!(cuCtxSynchronize()), CUDA_SUCCESS);
}

/// Exports the memory as a descriptor.
pub(crate) fn export(handle: u64) -> OwnedFd {
    let mut fd = -1_i32;
    assert_eq!(call!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, POSIX, 0)), CUDA_SUCCESS);
    // SAFETY: the driver has just created this descriptor, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Imports the memory of a descriptor.
pub(crate) fn import(fd: &OwnedFd) -> Result<u64, sys::CUresult> {
    use std::os::fd::AsRawFd;
    let mut handle = 0;
    match call!(cuMemImportFromShareableHandle(&mut handle, fd.as_raw_fd() as usize as *mut _, POSIX)) {
        CUDA_SUCCESS => Ok(handle),
        code => Err(code),
    }
}

/// Passes a descriptor from child 0 to all other children. Child 0 returns `None`, and every other
/// child the descriptor.
pub(crate) fn share(me: &Child, name: &str, mine: Option<&OwnedFd>) -> Option<OwnedFd> {
    let path = |rank: usize| me.directory.join(format!("{name}.{rank}.sock"));
    if let Some(fd) = mine {
        for rank in 1..me.count {
            me.wait_for_file(&format!("{name}.{rank}.ready"));
            let stream = UnixStream::connect(path(rank)).expect("a child that receives a descriptor listens on its socket");
            send(&stream, fd);
        }
        return None;
    }
    let listener = UnixListener::bind(path(me.rank)).expect("a socket can be bound in the shared directory");
    me.put_file(&format!("{name}.{}.ready", me.rank), b"");
    let (stream, _) = listener.accept().expect("child 0 connects");
    Some(receive(&stream))
}

fn send(stream: &UnixStream, fd: &OwnedFd) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(stream, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).expect("the descriptor can be sent");
}

fn receive(stream: &UnixStream) -> OwnedFd {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::empty()).expect("a message can be received");
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            return fds.next().expect("the message has a descriptor");
        }
    }
    panic!("received a message without a descriptor, expected one descriptor");
}
