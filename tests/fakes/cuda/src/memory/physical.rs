//! The file that holds the memory, or the multicast object, behind a handle. Invariant: the bytes
//! charged to a device are refunded when the last handle, mapping and binding of the memory are
//! released.

use std::os::fd::OwnedFd;

use crate::abi::Result;
use crate::machine::driver::{Driver, driver};
use crate::os::{files, mapping};

/// Memory, or the table of a multicast object, with the properties that an importer can read.
pub(crate) struct Physical {
    pub(crate) file: OwnedFd,
    pub(crate) size: u64,
    /// The device's index in the machine; unused for a multicast object.
    pub(crate) slot: usize,
    /// The device, if this process sees it.
    pub(crate) device: Option<usize>,
    pub(crate) handle_types: i32,
    /// Identifies the memory in all processes.
    pub(crate) number: u64,
    /// Whether this process has charged the device's budget.
    charged: bool,
}

impl Physical {
    /// Returns the memory, or the multicast object, in an existing file.
    pub(crate) fn of_file(file: OwnedFd, size: u64, slot: usize, handle_types: i32, number: u64) -> Physical {
        Physical::new(file, size, slot, handle_types, number, false)
    }

    fn new(file: OwnedFd, size: u64, slot: usize, handle_types: i32, number: u64, charged: bool) -> Physical {
        let device = driver().ok().and_then(|driver| driver.ordinal_of(slot));
        Physical { file, size, slot, device, handle_types, number, charged }
    }

    /// Creates memory of a device and charges its budget.
    pub(crate) fn create(driver: &Driver, size: u64, device: usize, handle_types: i32, number: u64) -> Result<Physical> {
        driver.devices[device].charge(size)?;
        let slot = driver.slot(device);
        let made = files::memory_file(&format!("memory:{slot}:{handle_types}:{number}"), size).and_then(|file| {
            let address = mapping::map(None, size, libc::PROT_READ | libc::PROT_WRITE, Some((&file, 0)))?;
            mapping::poison(address, size);
            mapping::unmap(address, size);
            Ok(file)
        });
        match made {
            Ok(file) => Ok(Physical::new(file, size, slot, handle_types, number, true)),
            Err(code) => {
                driver.devices[device].refund(size);
                Err(code)
            }
        }
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        if self.charged
            && let (Ok(driver), Some(device)) = (driver(), self.device)
        {
            driver.devices[device].refund(self.size);
        }
    }
}
