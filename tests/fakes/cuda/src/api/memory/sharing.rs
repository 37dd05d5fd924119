//! Sharing of virtual memory between processes, by descriptors and by fabric handles.

use core::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use crate::abi::{Code, CuMemHandle, CuPtr, Handle64, In, Out, Result};
use crate::calls::exports;
use crate::calls::settings::{VARIABLES, variable};
use crate::machine::features::fabric_supported;
use crate::memory::allocation::{Allocation, FABRIC, POSIX_FD, available, find, publish};
use crate::memory::physical::Physical;
use crate::os::{ProcessFile, files};

fn export_fabric(physical: &Physical) -> Result<Handle64> {
    let directory = VARIABLES.get(variable::FABRIC_DIR).ok_or(Code::NOT_SUPPORTED)?;
    let ProcessFile { pid, start, fd } = ProcessFile::of_this_process(physical.file.as_raw_fd())?;
    let text = format!("{pid} {start} {fd}");
    std::fs::write(format!("{directory}/{:016x}", physical.number), text).map_err(|_| Code::OPERATING_SYSTEM)?;
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(b"pwfabric");
    bytes[8..16].copy_from_slice(&physical.number.to_le_bytes());
    Ok(Handle64 { bytes })
}

fn open_fabric(handle: &Handle64) -> Result<OwnedFd> {
    let directory = VARIABLES.get(variable::FABRIC_DIR).ok_or(Code::NOT_SUPPORTED)?;
    let number = handle.bytes[8..16].try_into().map(u64::from_le_bytes).map_err(|_| Code::INVALID_VALUE)?;
    if &handle.bytes[..8] != b"pwfabric" {
        return Err(Code::INVALID_VALUE);
    }
    let text = std::fs::read_to_string(format!("{directory}/{number:016x}")).map_err(|_| Code::INVALID_VALUE)?;
    let mut words = text.split(' ').map(str::parse::<u64>);
    let mut word = || words.next().and_then(core::result::Result::ok).ok_or(Code::INVALID_VALUE);
    let file = ProcessFile { pid: word()? as u32, start: word()?, fd: word()? as i32 };
    file.open_numbered(number).ok_or(Code::INVALID_VALUE)
}

exports! {
    10020 fn cuMemExportToShareableHandle(out: Out<c_void>, handle: CuMemHandle, kind: c_int, flags: c_ulonglong) {
        out.required()?;
        let allocation = find(handle)?;
        if flags != 0 || !matches!(kind, POSIX_FD | FABRIC) || allocation.physical.handle_types & kind == 0 {
            return Err(Code::INVALID_VALUE);
        }
        if kind == FABRIC {
            return out.cast::<Handle64>().set(export_fabric(&allocation.physical)?);
        }
        let copy = files::duplicate(&allocation.physical.file)?;
        out.cast::<c_int>().set(copy.into_raw_fd())
    }

    10020 fn cuMemImportFromShareableHandle(handle: Out<CuMemHandle>, given: In<Handle64>, kind: c_int) {
        handle.required()?;
        available()?;
        let file = match kind {
            // The argument is the number of a descriptor. The caller keeps that descriptor open.
            POSIX_FD => files::duplicate_of_caller(given.address() as c_int)?,
            FABRIC if fabric_supported() => open_fabric(&given.get()?)?,
            FABRIC => return Err(Code::NOT_SUPPORTED),
            _ => return Err(Code::INVALID_VALUE),
        };
        handle.set(publish(Allocation::adopt(file)?))
    }

    11070 fn cuMemGetHandleForAddressRange(
        _out: Out<c_void>, _address: CuPtr, _size: usize, _kind: c_int, _flags: c_ulonglong,
    ) {
        // The only kind is a DMA buffer, which the device does not support.
        available()?;
        Err(Code::NOT_SUPPORTED)
    }
}
