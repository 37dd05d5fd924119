//! Devices: the results of queries, and the memory budget. Contexts are in [`crate::context`].
//! Invariant: the used bytes of a budget never exceed its total.

use core::ffi::{c_char, c_int, c_uint};
use std::sync::Mutex;

use crate::abi::{Code, CuContext, CuDevice, CuPool, In, Out, Result, Uuid};
use crate::arena::Arena;
use crate::calls::exports;
use crate::calls::settings::{self, variable};
use crate::driver::driver;
use crate::pool::Pool;
use crate::sync::lock;
use crate::table::Table;

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
    pub(crate) fn new(ordinal: usize, slot: usize, pools: &Table<Pool>) -> Device {
        let total_bytes = settings::number(variable::MEMORY_BYTES).unwrap_or(4 << 30);
        let default_pool = pools.add(Pool::new(ordinal, true));
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

    fn name(&self) -> &'static str {
        "Peerweave fake CUDA device"
    }

    /// Returns the bus number of the simulated slot.
    fn bus(&self) -> usize {
        0x10 + self.slot
    }

    fn bus_id(&self) -> String {
        format!("0000:{:02X}:00.0", self.bus())
    }

    /// Returns the UUID: unique among devices, the same in every process.
    fn uuid(&self) -> Uuid {
        let mut bytes = *b"peerweave-fake\0\0";
        bytes[14..].copy_from_slice(&(self.slot as u16).to_be_bytes());
        Uuid { bytes }
    }

    fn attribute(&self, attribute: c_int) -> Result<c_int> {
        if !(1..=last_attribute(crate::driver::version())).contains(&attribute) {
            return Err(Code::INVALID_VALUE);
        }
        let vmm = c_int::from(has_vmm());
        Ok(match attribute {
            1 => 1024,                 // threads per block
            2 | 3 => 1024,             // block x, y
            4 => 64,                   // block z
            5 => c_int::MAX,           // grid x
            6 | 7 => 65535,            // grid y, z
            8 => 49152,                // shared memory per block
            9 => 65536,                // constant memory
            10 => 32,                  // warp
            11 => c_int::MAX,          // pitch
            12 | 82 => 65536,          // registers per block, per multiprocessor
            13 => 1_980_000,           // clock, kHz
            14 => 512,                 // texture alignment
            16 => 132,                 // multiprocessors
            33 => self.bus() as c_int, // PCI bus
            34 | 50 => 0,              // PCI device, domain
            36 => 2_619_000,           // memory clock, kHz
            37 => 6144,                // bus width, bits
            38 => 62_914_560,          // L2
            39 => 2048,                // threads per multiprocessor
            40 => 3,                   // copy engines
            75 => capability().0,
            76 => capability().1,
            81 => 233_472, // shared memory per multiprocessor
            87 => 2,
            97 => 232_448, // shared memory opt-in
            106 => 32,     // blocks per multiprocessor
            111 => 1024,   // reserved shared memory
            // Supported features: overlap, mapped host memory, concurrent kernels, ECC, unified
            // addressing, priorities, L1 caches, managed memory, preemption, host registration,
            // 64-bit stream memory operations, cooperative launch, clusters, IPC events.
            15 | 19 | 31 | 32 | 41 | 78..=80 | 83 | 89..=96 | 98 | 99 | 113 | 116 | 120 | 122 | 123 | 125 | 126 => 1,
            115 => c_int::from(has_pools()),
            119 => 0,         // pools cannot be shared between processes here
            102 | 103 => vmm, // virtual memory, POSIX file descriptors
            110 => 0,         // no RDMA
            128 => c_int::from(vmm == 1 && fabric_supported()),
            132 => c_int::from(vmm == 1 && has_multicast()),
            130 | 131 | 134 => -1, // no NUMA
            _ => 0,
        })
    }
}

/// Returns the last attribute that a driver of this version knows.
fn last_attribute(version: c_int) -> c_int {
    match version {
        ..11040 => 118,
        11040..11060 => 119,
        11060..11070 => 121,
        11070..12000 => 124,
        12000..12010 => 129,
        12010..12020 => 132,
        12020..12050 => 134,
        12050..12080 => 135,
        12080..13000 => 143,
        13000..13010 => 147,
        13010..13030 => 148,
        13030..13040 => 156,
        _ => 161,
    }
}

/// Returns the compute capability of the devices: that of an H200 unless a test sets another.
fn capability() -> (c_int, c_int) {
    let text = settings::setting(variable::CAPABILITY).unwrap_or_else(|| "9.0".to_owned());
    let numbers = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    numbers.unwrap_or_else(|| panic!("{}={text:?}: expected major.minor", variable::CAPABILITY))
}

/// Returns whether the devices have memory pools, and with them stream-ordered allocation.
pub(crate) fn has_pools() -> bool {
    !settings::switch(variable::NO_POOLS) && crate::driver::version() >= 11020
}

/// Returns whether the devices have virtual memory management.
pub(crate) fn has_vmm() -> bool {
    !settings::switch(variable::NO_VMM) && crate::driver::version() >= 10020
}

/// Returns whether the devices have multicast objects.
pub(crate) fn has_multicast() -> bool {
    !settings::switch(variable::NO_MULTICAST) && crate::driver::version() >= 12010
}

/// Returns whether fabric handles are supported.
pub(crate) fn fabric_supported() -> bool {
    settings::setting(variable::FABRIC_DIR).is_some()
}

fn set_text(out: &Out<c_char>, capacity: c_int, text: &str) -> Result {
    let capacity = usize::try_from(capacity).ok().filter(|capacity| *capacity > 0).ok_or(Code::INVALID_VALUE)?;
    let mut bytes: Vec<c_char> = text.bytes().take(capacity - 1).map(|byte| byte as c_char).collect();
    bytes.push(0);
    out.set_array(capacity, &bytes)
}

exports! {
    2000 fn cuDeviceGet(device: Out<CuDevice>, ordinal: c_int) {
        device.required()?;
        device.set(driver()?.device(ordinal)?.ordinal as CuDevice)
    }

    2000 fn cuDeviceGetCount(count: Out<c_int>) {
        count.set(driver()?.devices.len() as c_int)
    }

    2000 fn cuDeviceGetName(name: Out<c_char>, capacity: c_int, device: CuDevice) {
        set_text(&name, capacity, driver()?.device(device)?.name())
    }

    9020 fn cuDeviceGetUuid(uuid: Out<Uuid>, device: CuDevice) {
        uuid.set(driver()?.device(device)?.uuid())
    }

    11040 fn cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: CuDevice) {
        uuid.set(driver()?.device(device)?.uuid())
    }

    3020 fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: CuDevice) {
        bytes.set(driver()?.device(device)?.total_bytes as usize)
    }

    2000 fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: CuDevice) {
        value.required()?;
        value.set(driver()?.device(device)?.attribute(attribute)?)
    }

    4010 fn cuDeviceGetPCIBusId(text: Out<c_char>, capacity: c_int, device: CuDevice) {
        set_text(&text, capacity, &driver()?.device(device)?.bus_id())
    }

    4010 fn cuDeviceGetByPCIBusId(device: Out<CuDevice>, text: In<c_char>) {
        let text = text.text()?.to_ascii_uppercase();
        let found = driver()?.devices.iter().find(|device| {
            let id = device.bus_id();
            text == id || text == id[5..] || text == id[..id.len() - 2]
        });
        device.set(found.ok_or(Code::INVALID_DEVICE)?.ordinal as CuDevice)
    }

    2000 fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: CuDevice) {
        driver()?.device(device)?;
        major.set(capability().0)?;
        minor.set(capability().1)
    }

    11020 fn cuDeviceGetDefaultMemPool(pool: Out<CuPool>, device: CuDevice) {
        pool.set(CuPool(driver()?.device(device)?.default_pool))
    }

    11020 fn cuDeviceGetMemPool(pool: Out<CuPool>, device: CuDevice) {
        pool.set(CuPool(*lock(&driver()?.device(device)?.current_pool)))
    }

    11020 fn cuDeviceSetMemPool(device: CuDevice, pool: CuPool) {
        let driver = driver()?;
        let device = driver.device(device)?;
        let found = driver.pools.get(pool.0).ok_or(Code::INVALID_VALUE)?;
        if found.device != device.ordinal {
            return Err(Code::INVALID_VALUE);
        }
        *lock(&device.current_pool) = pool.0;
        Ok(())
    }

    7000 fn cuDevicePrimaryCtxRetain(context: Out<CuContext>, device: CuDevice) {
        context.required()?;
        context.set(CuContext(crate::context::retain_primary(driver()?.device(device)?)))
    }

    11000 fn cuDevicePrimaryCtxRelease_v2(device: CuDevice) {
        crate::context::release_primary(driver()?.device(device)?)
    }

    11000 fn cuDevicePrimaryCtxReset_v2(device: CuDevice) {
        crate::context::reset_primary(driver()?.device(device)?);
        Ok(())
    }

    7000 fn cuDevicePrimaryCtxGetState(device: CuDevice, flags: Out<c_uint>, active: Out<c_int>) {
        let primary = lock(&driver()?.device(device)?.primary);
        flags.set(primary.flags)?;
        active.set(c_int::from(primary.retained > 0))
    }

    11000 fn cuDevicePrimaryCtxSetFlags_v2(device: CuDevice, flags: c_uint) {
        lock(&driver()?.device(device)?.primary).flags = flags;
        Ok(())
    }
}
