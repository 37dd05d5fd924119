//! Moves bytes: copies, fills, single words. Invariant: bytes are accessed only while the map of
//! addresses is locked, so that no memory is freed during a copy.

use std::sync::Arc;

use super::address::{Access, AddressMap, Need, Place, read};
use crate::abi::{Code, Result};
use crate::machine::driver::{Driver, driver};

/// Source of a copy.
#[derive(Clone)]
pub(crate) enum Source {
    Address(u64),
    /// Pageable memory of the host, read when the copy was enqueued.
    Staged(Arc<[u8]>),
}

/// A copy of rows; a linear copy has one row.
#[derive(Clone)]
pub(crate) struct Copy {
    pub(crate) to: u64,
    pub(crate) from: Source,
    pub(crate) row_bytes: u64,
    pub(crate) rows: u64,
    pub(crate) to_pitch: u64,
    pub(crate) from_pitch: u64,
    /// The devices that write and read: the devices of the two contexts for a peer copy. `None`
    /// means the stream's device.
    pub(crate) writer: Option<usize>,
    pub(crate) reader: Option<usize>,
}

/// A fill of rows with a pattern.
#[derive(Clone)]
pub(crate) struct Fill {
    pub(crate) to: u64,
    pub(crate) pattern: u32,
    pub(crate) element_bytes: u64,
    pub(crate) elements: u64,
    pub(crate) rows: u64,
    pub(crate) pitch: u64,
}

/// Checks the addresses of work before it is enqueued.
pub(crate) fn check(device: usize, address: u64, bytes: u64, need: Need, pageable: bool) -> Result {
    if bytes == 0 {
        return Ok(());
    }
    let driver = driver()?;
    read().place(driver, address, bytes, Access { device, need, pageable, queued: false }).map(|_| ())
}

/// Returns whether an address is pageable host memory, which the driver does not know.
pub(crate) fn is_pageable(address: u64) -> bool {
    driver().is_ok() && read().find(address).is_none()
}

/// Looks up bytes again when the work runs. An access to freed memory returns `ILLEGAL_ADDRESS`.
fn place(driver: &Driver, map: &AddressMap, device: usize, address: u64, bytes: u64, need: Need) -> Result<Place> {
    map.place(driver, address, bytes, Access { device, need, pageable: true, queued: true }).map_err(|_| Code::ILLEGAL_ADDRESS)
}

/// Writes bytes to an address, with the rights of `device`.
fn write(driver: &Driver, map: &AddressMap, device: usize, address: u64, from: *const u8, bytes: u64) -> Result {
    match place(driver, map, device, address, bytes, Need::Write)? {
        Place::Plain { owner } => {
            if owner.is_some_and(|owner| driver.loses_writes(driver.slot(device), owner)) {
                return Ok(());
            }
            // SAFETY: `place` found the destination live, the caller found the source live, and the
            // map stays locked during the copy.
            unsafe { core::ptr::copy(from, address as *mut u8, bytes as usize) };
            Ok(())
        }
        Place::Multicast { allocation, offset } => {
            let mut staged = vec![0_u8; bytes as usize];
            // SAFETY: as above; the destination is the new vector.
            unsafe { core::ptr::copy_nonoverlapping(from, staged.as_mut_ptr(), bytes as usize) };
            allocation.replicate(offset, &staged)
        }
    }
}

/// Writes bytes of the caller to an address.
pub(crate) fn store(device: usize, address: u64, bytes: &[u8]) -> Result {
    let driver = driver()?;
    write(driver, &read(), device, address, bytes.as_ptr(), bytes.len() as u64)
}

/// Reads a word of 4 or 8 bytes by one load, because another thread may write it at the same time.
pub(crate) fn load(device: usize, address: u64, bytes: u64) -> Result<u64> {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    let driver = driver()?;
    let map = read();
    place(driver, &map, device, address, bytes, Need::Read)?;
    // SAFETY: the word is live while the map is locked, and its address is a multiple of its size
    // (checked when it was queued).
    Ok(unsafe {
        if bytes == 4 {
            u64::from(AtomicU32::from_ptr(address as *mut u32).load(Ordering::Acquire))
        } else {
            AtomicU64::from_ptr(address as *mut u64).load(Ordering::Acquire)
        }
    })
}

impl Copy {
    /// Returns a linear copy.
    pub(crate) fn flat(to: u64, from: Source, bytes: u64) -> Copy {
        Copy { to, from, row_bytes: bytes, rows: 1, to_pitch: bytes, from_pitch: bytes, writer: None, reader: None }
    }

    /// Moves the bytes.
    pub(crate) fn run(&self, device: usize) -> Result {
        if self.row_bytes == 0 {
            return Ok(());
        }
        let driver = driver()?;
        let map = read();
        let writer = self.writer.unwrap_or(device);
        let reader = self.reader.unwrap_or(device);
        for row in 0..self.rows {
            let to = self.to + row * self.to_pitch;
            let from = match &self.from {
                Source::Staged(bytes) => bytes[(row * self.from_pitch) as usize..].as_ptr(),
                Source::Address(from) => {
                    let from = from + row * self.from_pitch;
                    place(driver, &map, reader, from, self.row_bytes, Need::Read)?;
                    from as *const u8
                }
            };
            // In a peer copy, the reading device performs the writes, so a broken pair loses the
            // data.
            if reader != writer
                && driver.loses_writes(driver.slot(reader), driver.slot(writer))
                && matches!(place(driver, &map, writer, to, self.row_bytes, Need::Write)?, Place::Plain { .. })
            {
                continue;
            }
            write(driver, &map, writer, to, from, self.row_bytes)?;
        }
        Ok(())
    }
}

impl Fill {
    /// Writes the pattern.
    pub(crate) fn run(&self, device: usize) -> Result {
        if self.elements == 0 {
            return Ok(());
        }
        let driver = driver()?;
        let map = read();
        let pattern = self.pattern.to_ne_bytes();
        let row_bytes = self.elements * self.element_bytes;
        // Writes a part of a row at a time, because a row may be gigabytes long.
        let part_bytes = row_bytes.min(1 << 20);
        let part: Vec<u8> = pattern[..self.element_bytes as usize].iter().copied().cycle().take(part_bytes as usize).collect();
        for row in 0..self.rows {
            let mut done = 0;
            while done < row_bytes {
                let bytes = part_bytes.min(row_bytes - done);
                write(driver, &map, device, self.to + row * self.pitch + done, part.as_ptr(), bytes)?;
                done += bytes;
            }
        }
        Ok(())
    }
}
