//! Memory behind a handle: the file that holds it, and the properties that an importer can read.
//! [`crate::vmm`] maps it. Invariant: the charge of a device for memory is refunded when the last
//! handle and the last mapping are gone.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use crate::abi::{Code, Result};
use crate::driver::driver;
use crate::multicast::Team;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const POSIX_FD: i32 = 1;
/// `CU_MEM_HANDLE_TYPE_FABRIC`.
pub(crate) const FABRIC: i32 = 8;

/// The granularity of memory behind handles: of its size, its offsets and its addresses, as on
/// hardware.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// Memory, or a multicast object, behind a handle.
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
    /// Number of references to the handle; `cuMemRelease` removes one.
    pub(crate) handles: Mutex<u32>,
    pub(crate) team: Option<Team>,
}

impl Physical {
    pub(crate) fn new(file: OwnedFd, size: u64, slot: usize, handle_types: i32, number: u64, charged: bool) -> Physical {
        let device = driver().ok().and_then(|driver| driver.ordinal_of(slot));
        Physical { file, size, slot, device, handle_types, number, charged, handles: Mutex::new(1), team: None }
    }

    pub(crate) fn with_team(mut self, team: Team) -> Physical {
        self.team = Some(team);
        self
    }

    pub(crate) fn is_multicast(&self) -> bool {
        self.team.is_some()
    }

    /// Stores bytes to all memory that is bound at an offset of a multicast object.
    pub(crate) fn replicate(&self, offset: u64, bytes: &[u8]) -> Result {
        self.team.as_ref().ok_or(Code::ILLEGAL_ADDRESS)?.replicate(offset, bytes)
    }

    /// Adds a reference to the handle.
    pub(crate) fn retain(&self) {
        *self.handles.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// Removes a reference; returns whether it was the last.
    pub(crate) fn release(&self) -> bool {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        *handles = handles.saturating_sub(1);
        *handles == 0
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
