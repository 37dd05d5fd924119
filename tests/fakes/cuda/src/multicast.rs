//! Multicast objects: a team of devices, the memory that each binds, and stores to all of that
//! memory. Handles and mappings are in [`crate::vmm`]. The driver's copies and fills and
//! `peerweave_fake_multicast_store` replace the stores of kernels; a plain store of the host to a
//! multicast address faults. Invariant: the table in the object's file changes only under the
//! file's lock, and every process reads the same table.

use core::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::abi::{Code, CuDevice, CuMemHandle, CuPtr, In, MulticastProp, Out, Result};
use crate::address::{Access, Kind, Need, Place};
use crate::calls;
use crate::calls::{exports, functions};
use crate::context;
use crate::device::has_multicast;
use crate::driver::{Driver, driver};
use crate::memory::change;
use crate::physical::{GRANULARITY, Physical};
use crate::share;
use crate::sync::lock;
use crate::vmm::{aligned, available, check_handle_types, find, new_number, publish};

/// The recommended granularity: larger than the minimum, so that tests detect a confusion of the
/// two.
const RECOMMENDED_BYTES: u64 = 16 << 20;

/// Returns how long binding and mapping wait for devices that other processes must still add. A
/// real driver waits forever.
fn wait_for_team() -> Duration {
    Duration::from_millis(calls::settings::number(calls::settings::variable::TEAM_WAIT_MS).unwrap_or(2000))
}

/// The size of the table: a header of words, then bindings.
const TABLE_BYTES: u64 = 64 << 10;
const WANTED: usize = 0;
const ADDED: usize = 1;
const FIRST_BINDING: usize = 8;
const BINDING_WORDS: usize = 9;
const BINDINGS: usize = 800;

/// The part of a multicast object that all processes share.
pub(crate) struct Team {
    table: u64,
    /// A separate descriptor, so that its lock belongs to this object.
    own: OwnedFd,
    number: u64,
}

/// Memory of this process that is bound; it stays allocated after its handle is released.
static BOUND: Mutex<Vec<(u64, Binding, Arc<Physical>)>> = Mutex::new(Vec::new());

/// The objects that this process has open, once for each open.
static OPEN: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// One binding in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Binding {
    device: u64,
    at: u64,
    size: u64,
    memory: u64,
    memory_at: u64,
    pid: u64,
    start: u64,
    fd: u64,
}

impl Binding {
    fn to_words(self) -> [u64; BINDING_WORDS] {
        [1, self.device, self.at, self.size, self.memory, self.memory_at, self.pid, self.start, self.fd]
    }

    fn from_words(words: [u64; BINDING_WORDS]) -> Option<Binding> {
        let [used, device, at, size, memory, memory_at, pid, start, fd] = words;
        (used == 1).then_some(Binding { device, at, size, memory, memory_at, pid, start, fd })
    }

    fn overlaps(&self, at: u64, size: u64) -> bool {
        self.at < at + size && at < self.at + self.size
    }

    /// Opens the memory's file; `None` if its process has ended.
    fn open(&self, object: u64) -> Option<OwnedFd> {
        let mine = lock(&BOUND);
        if let Some((_, _, physical)) = mine.iter().find(|(number, binding, _)| *number == object && binding == self) {
            return share::duplicate(&physical.file).ok();
        }
        drop(mine);
        if share::process_start(self.pid as u32) != Some(self.start) {
            return None;
        }
        let file = share::open_of_process(self.pid as u32, self.fd as i32)?;
        // The number of a descriptor may have been given to another file since.
        let number = self.memory.to_string();
        share::label(&file).filter(|label| label.rsplit(':').next() == Some(number.as_str())).map(|_| file)
    }
}

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
        // SAFETY: as above, and the lock is ours.
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
    fn create(file: &OwnedFd, number: u64, devices: u32) -> Result<Team> {
        let team = Team::open(file, number)?;
        team.lock()?.set(WANTED, u64::from(devices));
        Ok(team)
    }

    /// Opens the team in an object's file, which may be of another process.
    pub(crate) fn open(file: &OwnedFd, number: u64) -> Result<Team> {
        let own = share::open_of_process(std::process::id(), file.as_raw_fd()).ok_or(Code::OPERATING_SYSTEM)?;
        let table = share::map(None, TABLE_BYTES, libc::PROT_READ | libc::PROT_WRITE, Some((&own, 0)))?;
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

    fn add(&self, device: usize) -> Result {
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

    fn bind(&self, at: u64, physical: &Arc<Physical>, memory_at: u64, size: u64) -> Result {
        let pid = std::process::id();
        let binding = Binding {
            device: physical.slot as u64,
            at,
            size,
            memory: physical.number,
            memory_at,
            pid: u64::from(pid),
            start: share::process_start(pid).ok_or(Code::OPERATING_SYSTEM)?,
            fd: physical.file.as_raw_fd() as u64,
        };
        let table = self.lock()?;
        if table.bindings().any(|(_, other)| other.device == binding.device && other.overlaps(at, size)) {
            return Err(Code::INVALID_VALUE);
        }
        let slot = (0..BINDINGS).find(|slot| table.binding(*slot).is_none()).ok_or(Code::OUT_OF_MEMORY)?;
        lock(&BOUND).push((self.number, binding, Arc::clone(physical)));
        table.set_binding(slot, Some(binding));
        Ok(())
    }

    fn unbind(&self, device: usize, at: u64, size: u64) -> Result {
        let removed = {
            let table = self.lock()?;
            let (slot, binding) = table
                .bindings()
                .find(|(_, binding)| binding.device == device as u64 && binding.at == at && binding.size == size)
                .ok_or(Code::INVALID_VALUE)?;
            table.set_binding(slot, None);
            binding
        };
        let mut bound = lock(&BOUND);
        let place = bound.iter().position(|(number, binding, _)| *number == self.number && *binding == removed);
        let kept = place.map(|place| bound.remove(place));
        drop(bound);
        drop(kept);
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
            let mine: Vec<_> = lock(&BOUND).iter().filter(|bound| bound.0 == self.number).map(|bound| bound.1).collect();
            for binding in mine {
                let _ = self.unbind(binding.device as usize, binding.at, binding.size);
            }
        }
        share::unmap(self.table, TABLE_BYTES);
    }
}

fn supported() -> Result<&'static Driver> {
    let driver = available()?;
    if has_multicast() { Ok(driver) } else { Err(Code::NOT_SUPPORTED) }
}

fn check_prop(prop: &MulticastProp) -> Result {
    let types = c_int::try_from(prop.handle_types).map_err(|_| Code::INVALID_VALUE)?;
    check_handle_types(types)?;
    if prop.devices == 0 || prop.devices > 64 || prop.flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    Ok(())
}

fn team_of(physical: &Physical) -> Result<&Team> {
    physical.team.as_ref().ok_or(Code::INVALID_VALUE)
}

fn bind(object: &Physical, device: Option<CuDevice>, at: u64, memory: &Arc<Physical>, memory_at: u64, size: u64) -> Result {
    let team = team_of(object)?;
    aligned(&[at, memory_at, size])?;
    let inside = |from: u64, whole: u64| from.checked_add(size).is_some_and(|end| end <= whole);
    if memory.is_multicast() || size == 0 || !inside(at, object.size) || !inside(memory_at, memory.size) {
        return Err(Code::INVALID_VALUE);
    }
    // An object that other processes can import must not contain memory that they cannot import.
    if object.handle_types != 0 && memory.handle_types == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if device.is_some_and(|device| Some(device as usize) != memory.device) {
        return Err(Code::INVALID_DEVICE);
    }
    team.wait_for_devices()?;
    if !team.has_slot(memory.slot)? {
        return Err(Code::INVALID_DEVICE);
    }
    team.bind(at, memory, memory_at, size)
}

fn bind_memory(
    object: CuMemHandle,
    device: Option<CuDevice>,
    at: usize,
    memory: CuMemHandle,
    memory_at: usize,
    size: usize,
    flags: c_ulonglong,
) -> Result {
    supported()?;
    let (object, memory) = (find(object)?, find(memory)?);
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    bind(&object, device, at as u64, &memory, memory_at as u64, size as u64)
}

fn bind_address(
    object: CuMemHandle,
    device: Option<CuDevice>,
    at: usize,
    address: CuPtr,
    size: usize,
    flags: c_ulonglong,
) -> Result {
    let driver = supported()?;
    let object = find(object)?;
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let (memory, memory_at) = {
        let map = change(driver);
        let range = map.find(address).ok_or(Code::INVALID_VALUE)?;
        let Kind::Mapped(mapped) = &range.kind else { return Err(Code::INVALID_VALUE) };
        if address + size as u64 > range.base + range.size {
            return Err(Code::INVALID_VALUE);
        }
        (Arc::clone(&mapped.physical), mapped.offset + (address - range.base))
    };
    bind(&object, device, at as u64, &memory, memory_at, size as u64)
}

exports! {
    12010 fn cuMulticastCreate(handle: Out<CuMemHandle>, prop: In<MulticastProp>) {
        handle.required()?;
        supported()?;
        let prop = prop.get()?;
        check_prop(&prop)?;
        let size = prop.size as u64;
        aligned(&[size])?;
        if size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let number = new_number();
        let file = share::memory_file(&format!("multicast:{size}:{}:{number}", prop.handle_types), TABLE_BYTES)?;
        let team = Team::create(&file, number, prop.devices)?;
        handle.set(publish(Physical::new(file, size, usize::MAX, prop.handle_types as c_int, number, false).with_team(team))?)
    }

    12010 fn cuMulticastAddDevice(object: CuMemHandle, device: CuDevice) {
        let slot = supported()?.device(device)?.slot;
        team_of(&*find(object)?)?.add(slot)
    }

    12010 fn cuMulticastBindMem(
        object: CuMemHandle, at: usize, memory: CuMemHandle, memory_at: usize, size: usize, flags: c_ulonglong,
    ) {
        bind_memory(object, None, at, memory, memory_at, size, flags)
    }

    13010 fn cuMulticastBindMem_v2(
        object: CuMemHandle, device: CuDevice, at: usize, memory: CuMemHandle, memory_at: usize, size: usize,
        flags: c_ulonglong,
    ) {
        bind_memory(object, Some(device), at, memory, memory_at, size, flags)
    }

    12010 fn cuMulticastBindAddr(object: CuMemHandle, at: usize, address: CuPtr, size: usize, flags: c_ulonglong) {
        bind_address(object, None, at, address, size, flags)
    }

    13010 fn cuMulticastBindAddr_v2(
        object: CuMemHandle, device: CuDevice, at: usize, address: CuPtr, size: usize, flags: c_ulonglong,
    ) {
        bind_address(object, Some(device), at, address, size, flags)
    }

    12010 fn cuMulticastUnbind(object: CuMemHandle, device: CuDevice, at: usize, size: usize) {
        let slot = supported()?.device(device)?.slot;
        team_of(&*find(object)?)?.unbind(slot, at as u64, size as u64)
    }

    12010 fn cuMulticastGetGranularity(granularity: Out<usize>, prop: In<MulticastProp>, option: c_int) {
        granularity.required()?;
        supported()?;
        check_prop(&prop.get()?)?;
        match option {
            0 => granularity.set(GRANULARITY as usize),
            1 => granularity.set(RECOMMENDED_BYTES as usize),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

functions! {
    /// Fake only: has the effect of a kernel's store to a multicast address on the current context's
    /// device, immediately.
    ///
    /// `CUDA_ERROR_INVALID_VALUE` if the bytes are not inside one multicast mapping that the device may
    /// write; `CUDA_ERROR_ILLEGAL_ADDRESS` if a device of the team has bound nothing there, or its
    /// process has ended.
    fn peerweave_fake_multicast_store(address: CuPtr, bytes: *const c_void, length_bytes: usize) {
        let context = context::current()?;
        let driver = driver()?;
        if bytes.is_null() || length_bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let access = Access { device: context.device, need: Need::Write, pageable: false, queued: false };
        let place = change(driver).place(driver, address, length_bytes as u64, access)?;
        let Place::Multicast { physical, offset } = place else { return Err(Code::INVALID_VALUE) };
        // SAFETY: the caller promised this many readable bytes.
        physical.replicate(offset, unsafe { core::slice::from_raw_parts(bytes.cast::<u8>(), length_bytes) })
    }
}
