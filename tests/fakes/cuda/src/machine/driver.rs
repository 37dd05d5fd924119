//! The state that `cuInit` creates: the visible devices, and the access between them. Invariant:
//! the first successful `cuInit` creates the state, and nothing destroys it.

use std::sync::OnceLock;

use super::device::Device;
use crate::abi::{Code, Result};
use crate::calls::settings::{self, VARIABLES, variable};

/// The devices and their peers.
pub(crate) struct Driver {
    pub(crate) devices: Vec<Device>,
    broken_peers: Vec<(Option<usize>, Option<usize>)>,
    unreachable_peers: Vec<(Option<usize>, Option<usize>)>,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

/// Creates the state at the first call; fails if no device is visible.
pub(crate) fn init() -> Result<&'static Driver> {
    let slots = visible_slots();
    if slots.is_empty() {
        return Err(Code::NO_DEVICE);
    }
    Ok(DRIVER.get_or_init(|| Driver {
        devices: slots.iter().enumerate().map(|(ordinal, slot)| Device::new(ordinal, *slot)).collect(),
        broken_peers: settings::pairs(variable::BROKEN_PEER),
        unreachable_peers: settings::pairs(variable::NO_PEER),
    }))
}

/// Returns the state; fails if `cuInit` was not called.
pub(crate) fn driver() -> Result<&'static Driver> {
    DRIVER.get().ok_or(Code::NOT_INITIALIZED)
}

impl Driver {
    /// Returns the device with an ordinal.
    pub(crate) fn device(&self, ordinal: i32) -> Result<&Device> {
        usize::try_from(ordinal).ok().and_then(|ordinal| self.devices.get(ordinal)).ok_or(Code::INVALID_DEVICE)
    }

    /// Returns a device's index in the machine, which is the same in every process, independent of
    /// the device's ordinal.
    pub(crate) fn slot(&self, ordinal: usize) -> usize {
        self.devices[ordinal].slot
    }

    /// Returns the ordinal of the device in a slot of the machine, if this process sees it.
    pub(crate) fn ordinal_of(&self, slot: usize) -> Option<usize> {
        self.devices.iter().position(|device| device.slot == slot)
    }

    /// Returns whether writes of the device in slot `from` to the memory of slot `to` are lost.
    pub(crate) fn loses_writes(&self, from: usize, to: usize) -> bool {
        from != to && names(&self.broken_peers, from, to)
    }

    /// Returns whether the device in slot `from` can access the memory of slot `to`.
    pub(crate) fn can_access_peer(&self, from: usize, to: usize) -> bool {
        from != to && !names(&self.unreachable_peers, from, to)
    }
}

/// Returns the devices of the machine that this process sees, in order: all devices, or those of
/// `CUDA_VISIBLE_DEVICES` up to the first invalid number.
fn visible_slots() -> Vec<usize> {
    let count: usize = VARIABLES.number(variable::DEVICES).unwrap_or(8);
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Err(_) => (0..count).collect(),
        Ok(list) => list.split(',').map_while(|slot| slot.trim().parse::<usize>().ok().filter(|slot| *slot < count)).collect(),
    }
}

fn names(pairs: &[(Option<usize>, Option<usize>)], from: usize, to: usize) -> bool {
    pairs.iter().any(|(a, b)| a.is_none_or(|a| a == from) && b.is_none_or(|b| b == to))
}
