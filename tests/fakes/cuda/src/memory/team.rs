//! Multicast objects: a team of devices, the memory that each device binds, and stores to all of
//! that memory. Invariant: the table in the object's file changes only under the file's lock, and
//! every process reads the same table.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::binding::{BINDING_WORDS, Binding};
use super::physical::Physical;
use crate::abi::{Code, Result};
use crate::calls::settings::{VARIABLES, variable};
use crate::os::{files, mapping};
use crate::sync::lock;

/// Returns how long binding and mapping wait for devices that other processes must still add. A
/// real driver waits forever.
fn wait_for_team() -> Duration {
    Duration::from_millis(VARIABLES.number(variable::TEAM_WAIT_MS).unwrap_or(2000))
}

/// The size of the table: a header of words, then bindings.
const TABLE_BYTES: u64 = 64 << 10;
const WANTED: usize = 0;
const ADDED: usize = 1;
const FIRST_BINDING: usize = 8;
const BINDINGS: usize = 800;

/// The part of a multicast object that all processes share.
pub(crate) struct Team {
    table: u64,
    /// A separate descriptor, so that its file lock belongs to this `Team` alone.
    own: OwnedFd,
    number: u64,
}

/// The numbers of the multicast objects that this process has open, with one entry for each open.
static OPEN: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// The table while its lock is held.
struct Locked<'a>(&'a Team);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: an open descriptor.
        unsafe { libc::flock(self.0.own.as_raw_fd(), libc::LOCK_UN) };
    }
}

impl Locked<'_> {
    fn word(&self, index: usize) -> u64 {
        // SAFETY: the index is inside the table, which is mapped while the team lives; the lock
        // keeps writers away.
        unsafe { (self.0.table as *const u64).add(index).read_volatile() }
    }

    fn set(&self, index: usize, value: u64) {
        // SAFETY: as above, and this value holds the lock.
        unsafe { (self.0.table as *mut u64).add(index).write_volatile(value) }
    }

    fn binding(&self, slot: usize) -> Option<Binding> {
        let first = FIRST_BINDING + slot * BINDING_WORDS;
        Binding::from_words(core::array::from_fn(|word| self.word(first + word)))
    }

    fn set_binding(&self, slot: usize, binding: Option<Binding>) {
        let first = FIRST_BINDING + slot * BINDING_WORDS;
        let words = binding.map_or([0; BINDING_WORDS], Binding::to_words);
        for (word, value) in words.into_iter().enumerate() {
            self.set(first + word, value);
        }
    }

    fn bindings(&self) -> impl Iterator<Item = (usize, Binding)> + '_ {
        (0..BINDINGS).filter_map(|slot| self.binding(slot).map(|binding| (slot, binding)))
    }

    fn is_complete(&self) -> bool {
        u64::from(self.word(ADDED).count_ones()) == self.word(WANTED)
    }
}

impl Team {
    /// Creates the file of a multicast object, and the object's team.
    pub(super) fn create(label: &str, number: u64, devices: u32) -> Result<(OwnedFd, Team)> {
        let file = files::memory_file(label, TABLE_BYTES)?;
        let team = Team::open(&file, number)?;
        team.lock()?.set(WANTED, u64::from(devices));
        Ok((file, team))
    }

    /// Opens the team in the file of a multicast object, which another process may have created.
    pub(super) fn open(file: &OwnedFd, number: u64) -> Result<Team> {
        let own = files::reopen(file)?;
        let table = mapping::map(None, TABLE_BYTES, libc::PROT_READ | libc::PROT_WRITE, Some((&own, 0)))?;
        lock(&OPEN).push(number);
        Ok(Team { table, own, number })
    }

    fn lock(&self) -> Result<Locked<'_>> {
        // SAFETY: an open descriptor.
        let failed = unsafe { libc::flock(self.own.as_raw_fd(), libc::LOCK_EX) } != 0;
        if failed { Err(Code::OPERATING_SYSTEM) } else { Ok(Locked(self)) }
    }

    /// Returns whether the device in the slot was added.
    pub(crate) fn has_slot(&self, slot: usize) -> Result<bool> {
        Ok(slot < 64 && self.lock()?.word(ADDED) & (1 << slot) != 0)
    }

    /// Returns whether all devices of the object were added.
    fn is_complete(&self) -> Result<bool> {
        Ok(self.lock()?.is_complete())
    }

    pub(crate) fn add(&self, device: usize) -> Result {
        let table = self.lock()?;
        let added = table.word(ADDED);
        if device >= 64 {
            return Err(Code::INVALID_DEVICE);
        }
        if added & (1 << device) != 0 || table.is_complete() {
            return Err(Code::INVALID_VALUE);
        }
        table.set(ADDED, added | (1 << device));
        Ok(())
    }

    /// Waits until the team is complete.
    pub(crate) fn wait_for_devices(&self) -> Result {
        let deadline = Instant::now() + wait_for_team();
        while !self.is_complete()? {
            if Instant::now() >= deadline {
                return Err(Code::SYSTEM_NOT_READY);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(crate) fn bind(&self, at: u64, physical: &Arc<Physical>, memory_at: u64, size: u64) -> Result {
        let binding = Binding::of(physical, at, memory_at, size)?;
        let table = self.lock()?;
        if table.bindings().any(|(_, other)| other.device == binding.device && other.overlaps(at, size)) {
            return Err(Code::INVALID_VALUE);
        }
        let slot = (0..BINDINGS).find(|slot| table.binding(*slot).is_none()).ok_or(Code::OUT_OF_MEMORY)?;
        binding.keep(self.number, physical);
        table.set_binding(slot, Some(binding));
        Ok(())
    }

    pub(crate) fn unbind(&self, device: usize, at: u64, size: u64) -> Result {
        let removed = {
            let table = self.lock()?;
            let (slot, binding) = table
                .bindings()
                .find(|(_, binding)| binding.device == device as u64 && binding.at == at && binding.size == size)
                .ok_or(Code::INVALID_VALUE)?;
            table.set_binding(slot, None);
            binding
        };
        removed.forget(self.number);
        Ok(())
    }

    /// Stores bytes at an offset to the memory of every device of the team.
    pub(crate) fn replicate(&self, offset: u64, bytes: &[u8]) -> Result {
        let (added, bindings) = {
            let table = self.lock()?;
            (table.word(ADDED), table.bindings().map(|(_, binding)| binding).collect::<Vec<_>>())
        };
        let end = offset + bytes.len() as u64;
        let mut pieces = Vec::new();
        for device in (0..64_u64).filter(|device| added & (1 << device) != 0) {
            let mut at = offset;
            while at < end {
                // An address at which some device has no bound memory is invalid.
                let binding = bindings
                    .iter()
                    .find(|binding| binding.device == device && binding.overlaps(at, 1))
                    .ok_or(Code::ILLEGAL_ADDRESS)?;
                let stop = end.min(binding.at + binding.size);
                let file = binding.open(self.number).ok_or(Code::ILLEGAL_ADDRESS)?;
                pieces.push((file, binding.memory_at + (at - binding.at), (at - offset) as usize..(stop - offset) as usize));
                at = stop;
            }
        }
        for (file, at, part) in pieces {
            std::fs::File::from(file).write_all_at(&bytes[part], at).map_err(|_| Code::ILLEGAL_ADDRESS)?;
        }
        Ok(())
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        // When the last handle or mapping of the object in this process is released, the process's
        // bindings are removed.
        let last = {
            let mut open = lock(&OPEN);
            let place = open.iter().position(|number| *number == self.number);
            place.map(|place| open.swap_remove(place));
            !open.contains(&self.number)
        };
        if last {
            for binding in Binding::of_this_process(self.number) {
                let _ = self.unbind(binding.device as usize, binding.at, binding.size);
            }
        }
        mapping::unmap(self.table, TABLE_BYTES);
    }
}
