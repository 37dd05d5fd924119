//! Registers memory outside the heap: for this PE, or as symmetric memory.
//!
//! Module `job` records the registrations. Invariant: symmetric memory is registered on all PEs or
//! on none.

use core::ffi::{c_int, c_void};

use peerweave_fake_common::driver;

use crate::abi::{Result, invalid};
use crate::call::{self, complain, exports};
use crate::job::region::Region;
use crate::job::world::Growth;
use crate::job::{World, live};
use crate::peers::record;

fn register_symmetric(address: usize, bytes: usize, wish: usize) -> Result<usize> {
    let world = live();
    call::take_effect().suffer();
    let step = if let Growth::By(step) = world.growth { step } else { driver::GRANULARITY };
    let handle = if bytes == 0 || !bytes.is_multiple_of(step) {
        // NVSHMEM rounds the length up, and maps more memory than exists.
        invalid(format!("the length of {bytes} bytes is not a multiple of {step}"))
    } else {
        driver::with_context(world.context, || Ok(driver::handle_at(address)?))
    };
    let mut turn = world.team.begin_setup();
    // A PE that cannot register its memory reports that before any PE maps memory.
    let failed = turn.find_failed(&[bytes as u64], handle.is_ok());
    let handle = handle.inspect_err(|failure| world.torn(&failure.text))?;
    if let Some(other) = failed {
        return invalid(format!("PE {other} cannot register its memory"));
    }
    let (processes, pe) = (&world.processes, world.pe as usize);
    let map = || Region::map(&mut turn, processes, pe, world.device, handle, bytes, wish);
    let region = driver::with_context(world.context, map)?;
    let base = region.base;
    world.change_memory().regions.push(Some(region));
    Ok(base)
}

fn unregister_symmetric(world: &World, address: usize, bytes: usize) -> Result {
    world.quiet_of_host();
    let found = {
        let memory = world.memory();
        let is = |region: &Option<Region>| region.as_ref().is_some_and(|region| (region.base, region.bytes) == (address, bytes));
        memory.regions.iter().skip(1).position(is).map(|index| index + 1)
    };
    let Some(index) = found else {
        return invalid(format!("{bytes} bytes at {address:#x} are not registered"));
    };
    let mut turn = world.team.begin_setup();
    turn.meet(record(&[index as u64], &[]));
    let region = world.change_memory().regions[index].take();
    driver::with_context(world.context, || region.map_or(Ok(()), |region| region.unmap(world.pe as usize)))
}

/// Registers symmetric memory, at address `wish` if possible. Returns null and prints the reason if
/// the registration fails.
fn register(address: usize, bytes: usize, wish: usize) -> *mut c_void {
    register_symmetric(address, bytes, wish).unwrap_or_else(|failure| {
        complain(&format!("{}: {}", call::function(), failure.text));
        0
    }) as *mut c_void
}

exports! {
    fn nvshmemx_buffer_register(address: *mut c_void, bytes: usize) -> c_int {
        call::code(|| {
            let world = live();
            let mut memory = world.change_memory();
            let (start, end) = (address.addr(), address.addr() + bytes);
            if start == 0 || bytes == 0 {
                return invalid(format!("{bytes} bytes at {start:#x}: expected a length and an address other than 0"));
            }
            if memory.registered.iter().any(|(other, length)| *other < end && start < other + length) {
                return invalid(format!("{bytes} bytes at {start:#x} overlap registered memory"));
            }
            memory.registered.insert(start, bytes);
            Ok(())
        })
    }

    fn nvshmemx_buffer_unregister(address: *mut c_void) -> c_int {
        call::code(|| match live().change_memory().registered.remove(&address.addr()) {
            Some(_) => Ok(()),
            None => invalid(format!("nothing is registered at {:#x}", address.addr())),
        })
    }

    fn nvshmemx_buffer_unregister_all() {
        live().change_memory().registered.clear();
    }

    fn nvshmemx_buffer_register_symmetric(address: *mut c_void, bytes: usize, flags: c_int) -> *mut c_void {
        let _ = flags;
        register(address.addr(), bytes, 0)
    }

    fn nvshmemx_buffer_register_symmetric_at_preferred_address(
        address: *mut c_void, bytes: usize, preferred: *mut c_void, flags: c_int,
    ) -> *mut c_void {
        let _ = flags;
        register(address.addr(), bytes, preferred.addr())
    }

    fn nvshmemx_buffer_unregister_symmetric(address: *mut c_void, bytes: usize) -> c_int {
        call::code(|| {
            let world = live();
            call::take_effect().suffer();
            unregister_symmetric(&world, address.addr(), bytes)
        })
    }
}
