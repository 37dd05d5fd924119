//! Handles of memory and of multicast objects, which `cuMemCreate`, `cuMulticastCreate` and imports
//! return. Invariant: a mapping keeps the allocation after its handle is released.

use core::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::physical::Physical;
use super::team::Team;
use crate::abi::{Code, CuMemHandle, Result};
use crate::machine::driver::{Driver, driver};
use crate::machine::features::{fabric_supported, has_multicast, has_vmm};
use crate::os::files;
use crate::sync::lock;
use crate::table::Table;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const POSIX_FD: i32 = 1;
/// `CU_MEM_HANDLE_TYPE_FABRIC`.
pub(crate) const FABRIC: i32 = 8;

/// Granularity of the sizes, offsets and addresses of memory that has a handle, in bytes; the same
/// as on hardware.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// All allocations with a handle.
pub(crate) static ALLOCATIONS: Table<Allocation> = Table::new(0x58, Code::INVALID_VALUE);

/// Memory, or a multicast object, behind a handle.
pub(crate) struct Allocation {
    pub(crate) physical: Arc<Physical>,
    /// The team of a multicast object.
    pub(crate) team: Option<Team>,
    /// Number of references to the handle; `cuMemRelease` removes one.
    handles: Mutex<u32>,
}

impl Allocation {
    fn new(physical: Physical, team: Option<Team>) -> Allocation {
        Allocation { physical: Arc::new(physical), team, handles: Mutex::new(1) }
    }

    /// Returns the allocation in an exported file. The label of the file contains the properties of
    /// the allocation.
    pub(crate) fn adopt(file: OwnedFd) -> Result<Allocation> {
        let label = files::label(&file).ok_or(Code::INVALID_VALUE)?;
        let mut words = label.split(':');
        let kind = words.next().unwrap_or_default();
        let mut word = || words.next().and_then(|word| word.parse::<u64>().ok()).ok_or(Code::INVALID_VALUE);
        match kind {
            "memory" => {
                let (slot, types, number) = (word()? as usize, word()? as c_int, word()?);
                let size = files::length(&file)?;
                Ok(Allocation::new(Physical::of_file(file, size, slot, types, number), None))
            }
            "multicast" => {
                let (size, types, number) = (word()?, word()? as c_int, word()?);
                if !has_multicast() {
                    return Err(Code::NOT_SUPPORTED);
                }
                let team = Team::open(&file, number)?;
                Ok(Allocation::multicast(file, size, types, number, team))
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Creates memory of a device.
    pub(crate) fn create(driver: &Driver, size: u64, device: usize, handle_types: c_int) -> Result<Allocation> {
        let physical = Physical::create(driver, size, device, handle_types, new_number())?;
        Ok(Allocation::new(physical, None))
    }

    /// Creates a multicast object for a number of devices.
    pub(crate) fn create_multicast(size: u64, handle_types: u64, devices: u32) -> Result<Allocation> {
        let number = new_number();
        let (file, team) = Team::create(&format!("multicast:{size}:{handle_types}:{number}"), number, devices)?;
        Ok(Allocation::multicast(file, size, handle_types as c_int, number, team))
    }

    fn multicast(file: OwnedFd, size: u64, handle_types: c_int, number: u64, team: Team) -> Allocation {
        Allocation::new(Physical::of_file(file, size, usize::MAX, handle_types, number), Some(team))
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
        *lock(&self.handles) += 1;
    }

    /// Removes a reference. Returns whether no reference remains.
    pub(crate) fn release(&self) -> bool {
        let mut handles = lock(&self.handles);
        *handles = handles.saturating_sub(1);
        *handles == 0
    }
}

/// Returns a number for memory that is unique among all processes.
fn new_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    (u64::from(std::process::id()) << 32) | NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Checks that sizes and offsets are multiples of the granularity.
pub(crate) fn aligned(values: &[u64]) -> Result {
    if values.iter().all(|value| value.is_multiple_of(GRANULARITY)) { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// Returns the driver, or an error if the devices have no virtual memory management.
pub(crate) fn available() -> Result<&'static Driver> {
    let driver = driver()?;
    if has_vmm() { Ok(driver) } else { Err(Code::NOT_SUPPORTED) }
}

/// Refuses handle types that do not exist or that this driver lacks.
pub(crate) fn check_handle_types(types: c_int) -> Result {
    if types & !(POSIX_FD | FABRIC) != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if types & FABRIC != 0 && !fabric_supported() {
        return Err(Code::NOT_SUPPORTED);
    }
    Ok(())
}

/// Returns an allocation by its handle.
pub(crate) fn find(handle: CuMemHandle) -> Result<Arc<Allocation>> {
    available()?;
    ALLOCATIONS.find(handle as usize)
}

/// Creates a handle for an allocation that has none.
pub(crate) fn publish(allocation: Allocation) -> CuMemHandle {
    ALLOCATIONS.add(allocation) as CuMemHandle
}
