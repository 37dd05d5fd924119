//! Devices: their names, and the memory budget. Invariant: the used bytes of a budget never exceed
//! its total.

use std::sync::Mutex;

use super::pool::{POOLS, Pool};
use crate::abi::{Code, Result, Uuid};
use crate::calls::settings::{VARIABLES, variable};
use crate::os::arena::Arena;
use crate::sync::lock;

/// One simulated H200.
pub(crate) struct Device {
    pub(crate) ordinal: usize,
    /// The device's index in the machine, which is the same in every process.
    pub(crate) slot: usize,
    pub(crate) total_bytes: u64,
    used_bytes: Mutex<u64>,
    pub(crate) arena: Mutex<Arena>,
    pub(crate) default_pool: usize,
    pub(crate) current_pool: Mutex<usize>,
    /// Reference count of the primary context, and its flags.
    pub(crate) primary: Mutex<Primary>,
}

/// State of a device's primary context.
#[derive(Default)]
pub(crate) struct Primary {
    pub(crate) handle: usize,
    pub(crate) retained: u32,
    pub(crate) flags: u32,
}

impl Device {
    pub(crate) fn new(ordinal: usize, slot: usize) -> Device {
        let total_bytes = VARIABLES.number(variable::MEMORY_BYTES).unwrap_or(4 << 30);
        let default_pool = POOLS.add(Pool::new(ordinal, true));
        Device {
            ordinal,
            slot,
            total_bytes,
            used_bytes: Mutex::new(0),
            arena: Mutex::new(Arena::new(ordinal, total_bytes)),
            default_pool,
            current_pool: Mutex::new(default_pool),
            primary: Mutex::default(),
        }
    }

    /// Subtracts bytes from the budget.
    pub(crate) fn charge(&self, bytes: u64) -> Result {
        let mut used = lock(&self.used_bytes);
        if bytes > self.total_bytes - *used {
            return Err(Code::OUT_OF_MEMORY);
        }
        *used += bytes;
        Ok(())
    }

    /// Returns bytes to the budget.
    pub(crate) fn refund(&self, bytes: u64) {
        let mut used = lock(&self.used_bytes);
        *used = used.saturating_sub(bytes);
    }

    /// Returns the remaining budget.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.total_bytes - *lock(&self.used_bytes)
    }

    pub(crate) fn name(&self) -> &'static str {
        "Peerweave fake CUDA device"
    }

    /// Returns the bus number of the simulated slot.
    pub(crate) fn bus(&self) -> usize {
        0x10 + self.slot
    }

    pub(crate) fn bus_id(&self) -> String {
        format!("0000:{:02X}:00.0", self.bus())
    }

    /// Returns the UUID: unique among devices, the same in every process.
    pub(crate) fn uuid(&self) -> Uuid {
        let mut bytes = *b"peerweave-fake\0\0";
        bytes[14..].copy_from_slice(&(self.slot as u16).to_be_bytes());
        Uuid { bytes }
    }
}
