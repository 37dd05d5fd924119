//! Symmetric memory: allocates and frees it, returns addresses of other PEs' parts, and registers
//! other memory.
//!
//! `memory` records the allocations. Invariant: if PEs allocate differently, the process ends and
//! names both calls.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::{Result, invalid};
use crate::log::{complain, undefined};
use crate::meet::{Channel, record};
use crate::memory::Region;
use crate::world::{Growth, World};
use crate::{call, driver, world};

/// Content of memory that was never written.
const POISON: u8 = 0xC3;
/// Number of bytes of an allocation that are filled with [`POISON`].
const POISONED: usize = 16 << 20;

fn allocate(bytes: usize, alignment: usize, zero: bool) -> *mut c_void {
    let world = world::live();
    let effect = call::take_effect();
    effect.suffer();
    if bytes == 0 {
        return std::ptr::null_mut();
    }
    world.team.idle();
    let mut turn = world.team.turn(Channel::Setup);
    let found = {
        let mut memory = world.change_memory();
        // The heap of this PE alone could not grow: NVSHMEM then returns null here and memory on
        // the other PEs.
        let found = if effect.full { None } else { memory.find_room(bytes, alignment) };
        if let Some(offset) = found {
            memory.allocations.insert(offset, bytes);
            let base = memory.regions[0].as_ref().expect("the heap lives as long as the job").base;
            // SAFETY: nobody has these bytes yet, and they are mapped.
            unsafe { std::ptr::write_bytes((base + offset) as *mut u8, POISON, bytes.min(POISONED)) };
            if zero {
                // Like NVSHMEM, which does not wait for this work on the default stream.
                call::or_abort(driver::with_context(world.context, || Ok(driver::zero(base + offset, bytes)?)));
            }
        }
        found.map(|offset| (offset, memory.regions[0].as_ref().map_or(0, |heap| heap.base) + offset))
    };
    // Nobody writes here before all have prepared it.
    let all = turn.meet(record(&[bytes as u64, alignment as u64], &[found.map_or(u64::MAX, |(offset, _)| offset as u64)]));
    let mut got = all.iter().enumerate().filter(|(_, theirs)| theirs.own[0] != u64::MAX);
    let first = got.next().map_or(u64::MAX, |(_, theirs)| theirs.own[0]);
    if let Some((other, _)) = got.find(|(_, theirs)| theirs.own[0] != first) {
        undefined(&format!("{}: the heaps of PE 0 and PE {other} differ", call::function()));
    }
    match found {
        Some((_, address)) => address as *mut c_void,
        None => {
            world.torn(&format!("{bytes} bytes do not fit into the symmetric heap"));
            complain(&format!("{}: {bytes} bytes do not fit into the symmetric heap", call::function()));
            std::ptr::null_mut()
        }
    }
}

fn ended(call: &str, address: usize) -> ! {
    undefined(&format!("{call}: nothing is allocated at {address:#x}"))
}

fn free(address: usize) {
    let world = world::live();
    call::take_effect().suffer();
    if address == 0 {
        return;
    }
    world.quiesce(false);
    world.quiet_of_host();
    let offset = {
        let memory = world.memory();
        let place = memory.find(address, 0).filter(|place| place.region == 0);
        match place.filter(|place| memory.allocations.contains_key(&place.offset)) {
            Some(place) => place.offset,
            None => ended(call::function(), address),
        }
    };
    world.team.idle();
    let mut turn = world.team.turn(Channel::Setup);
    turn.meet(record(&[offset as u64], &[]));
    world.change_memory().allocations.remove(&offset);
}

fn register_symmetric(address: usize, bytes: usize, wish: usize) -> Result<usize> {
    let world = world::live();
    call::take_effect().suffer();
    let step = if let Growth::By(step) = world.growth { step } else { driver::GRANULARITY };
    let handle = if bytes == 0 || !bytes.is_multiple_of(step) {
        // NVSHMEM rounds the length up, and maps more memory than exists.
        invalid(format!("the length of {bytes} bytes is not a multiple of {step}"))
    } else {
        driver::with_context(world.context, || Ok(driver::handle_at(address)?))
    };
    world.team.idle();
    let mut turn = world.team.turn(Channel::Setup);
    // A PE that cannot register its memory reports that before any PE maps memory.
    let able = turn.meet(record(&[bytes as u64], &[u64::from(handle.is_ok())]));
    let handle = handle.inspect_err(|failure| world.torn(&failure.text))?;
    if let Some(other) = able.iter().position(|theirs| theirs.own[0] == 0) {
        return invalid(format!("PE {other} cannot register its memory"));
    }
    let (processes, pe) = (&world.processes, world.pe as usize);
    let map = || Region::map(&mut turn, processes, pe, world.device, handle, bytes, wish);
    let region = driver::with_context(world.context, map)?;
    let base = region.base;
    world.change_memory().regions.push(Some(region));
    Ok(base)
}

fn unregister_symmetric(world: &Arc<World>, address: usize, bytes: usize) -> Result {
    world.quiet_of_host();
    let found = {
        let memory = world.memory();
        let is = |region: &Option<Region>| region.as_ref().is_some_and(|region| (region.base, region.bytes) == (address, bytes));
        memory.regions.iter().skip(1).position(is).map(|index| index + 1)
    };
    let Some(index) = found else {
        return invalid(format!("{bytes} bytes at {address:#x} are not registered"));
    };
    world.team.idle();
    let mut turn = world.team.turn(Channel::Setup);
    turn.meet(record(&[index as u64], &[]));
    let region = world.change_memory().regions[index].take();
    driver::with_context(world.context, || region.map_or(Ok(()), |region| region.unmap(world.pe as usize)))
}

exports! {
    fn nvshmem_malloc(bytes: usize) -> *mut c_void {
        allocate(bytes, 0, false)
    }

    fn nvshmem_calloc(count: usize, bytes: usize) -> *mut c_void {
        match count.checked_mul(bytes) {
            Some(bytes) => allocate(bytes, 0, true),
            None => std::ptr::null_mut(),
        }
    }

    fn nvshmem_align(alignment: usize, bytes: usize) -> *mut c_void {
        if !alignment.is_power_of_two() || alignment < size_of::<usize>() {
            complain(&format!("nvshmem_align: invalid alignment {alignment}"));
            return std::ptr::null_mut();
        }
        allocate(bytes, alignment, false)
    }

    fn nvshmem_free(address: *mut c_void) {
        free(address.addr());
    }

    fn nvshmem_ptr(address: *const c_void, pe: c_int) -> *mut c_void {
        let world = world::live();
        world.check_pe(pe);
        let memory = world.memory();
        let given = memory.find(address.addr(), 0).and_then(|place| memory.given(pe, place));
        given.unwrap_or(0) as *mut c_void
    }

    fn nvshmemx_mc_ptr(team: c_int, address: *const c_void) -> *mut c_void {
        let world = world::live();
        if team < 0 {
            return std::ptr::null_mut();
        }
        world.team_of(team);
        let memory = world.memory();
        match memory.find(address.addr(), 0) {
            Some(place) if place.region == 0 && memory.multicast != 0 => (memory.multicast + place.offset) as *mut c_void,
            _ => std::ptr::null_mut(),
        }
    }

    fn nvshmemx_buffer_register(address: *mut c_void, bytes: usize) -> c_int {
        call::code(|| {
            let world = world::live();
            let mut memory = world.change_memory();
            let (start, end) = (address.addr(), address.addr() + bytes);
            if start == 0 || bytes == 0 {
                return invalid(format!("invalid memory to register: {bytes} bytes at {start:#x}"));
            }
            if memory.registered.iter().any(|(other, length)| *other < end && start < other + length) {
                return invalid(format!("{bytes} bytes at {start:#x} overlap registered memory"));
            }
            memory.registered.insert(start, bytes);
            Ok(())
        })
    }

    fn nvshmemx_buffer_unregister(address: *mut c_void) -> c_int {
        call::code(|| match world::live().change_memory().registered.remove(&address.addr()) {
            Some(_) => Ok(()),
            None => invalid(format!("nothing is registered at {:#x}", address.addr())),
        })
    }

    fn nvshmemx_buffer_unregister_all() {
        world::live().change_memory().registered.clear();
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
            let world = world::live();
            call::take_effect().suffer();
            unregister_symmetric(&world, address.addr(), bytes)
        })
    }
}

/// Registers memory; returns null and prints the reason if that fails.
fn register(address: usize, bytes: usize, wish: usize) -> *mut c_void {
    register_symmetric(address, bytes, wish).unwrap_or_else(|failure| {
        complain(&format!("{}: {}", call::function(), failure.text));
        0
    }) as *mut c_void
}
