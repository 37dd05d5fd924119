//! Queries of devices, and the pool of a device.

use core::ffi::{c_char, c_int};

use crate::abi::{Code, CuDevice, CuPool, In, Out, Result, Uuid};
use crate::calls::exports;
use crate::machine::attributes;
use crate::machine::driver::driver;
use crate::machine::features::capability;
use crate::machine::pool::POOLS;
use crate::sync::lock;

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
        value.set(attributes::attribute(driver()?.device(device)?, attribute)?)
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
        let found = POOLS.find(pool.0)?;
        if found.device != device.ordinal {
            return Err(Code::INVALID_VALUE);
        }
        *lock(&device.current_pool) = pool.0;
        Ok(())
    }
}
