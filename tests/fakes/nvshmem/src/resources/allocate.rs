//! Allocates and frees symmetric memory.
//!
//! Module `job` records the allocations. Invariant: if PEs allocate differently, the process ends
//! with a message that names both calls.

use core::ffi::c_void;

use peerweave_fake_common::driver;

use crate::call::{self, complain, exports, undefined};
use crate::job::live;
use crate::peers::record;

/// Content of memory that was never written.
const POISON: u8 = 0xC3;
/// Number of bytes of an allocation that are filled with [`POISON`].
const POISONED: usize = 16 << 20;

fn allocate(bytes: usize, alignment: usize, zero: bool) -> *mut c_void {
    let world = live();
    let effect = call::take_effect();
    effect.suffer();
    if bytes == 0 {
        return std::ptr::null_mut();
    }
    let mut turn = world.team.begin_setup();
    let found = {
        let mut memory = world.change_memory();
        // If only the heap of this PE could not grow, NVSHMEM returns null on this PE and memory on
        // the other PEs.
        let offset = if effect.full { None } else { memory.find_room(bytes, alignment) };
        offset.map(|offset| {
            memory.allocations.insert(offset, bytes);
            let address = memory.regions[0].as_ref().expect("the heap lives as long as the job").base + offset;
            // SAFETY: the bytes are mapped, and no caller has their address yet.
            unsafe { std::ptr::write_bytes(address as *mut u8, POISON, bytes.min(POISONED)) };
            if zero {
                // Like NVSHMEM, this does not wait for the work on the default stream.
                call::or_abort(driver::with_context(world.context, || Ok(driver::zero(address, bytes)?)));
            }
            (offset, address)
        })
    };
    // No PE writes to the new memory before all PEs have prepared it.
    let all = turn.meet(record(&[bytes as u64, alignment as u64], &[found.map_or(u64::MAX, |(offset, _)| offset as u64)]));
    let mut got = all.iter().enumerate().filter(|(_, theirs)| theirs.own[0] != u64::MAX);
    let first = got.next().map_or(u64::MAX, |(_, theirs)| theirs.own[0]);
    if let Some((other, _)) = got.find(|(_, theirs)| theirs.own[0] != first) {
        undefined(&format!("{}: the heaps of PE 0 and PE {other} differ", call::function()));
    }
    let Some((_, address)) = found else {
        let why = format!("{bytes} bytes do not fit into the symmetric heap");
        world.torn(&why);
        complain(&format!("{}: {why}", call::function()));
        return std::ptr::null_mut();
    };
    address as *mut c_void
}

fn free(address: usize) {
    let world = live();
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
            None => undefined(&format!("{}: nothing is allocated at {address:#x}", call::function())),
        }
    };
    let mut turn = world.team.begin_setup();
    turn.meet(record(&[offset as u64], &[]));
    world.change_memory().allocations.remove(&offset);
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
            complain(&format!("nvshmem_align: alignment {alignment}, expected a power of two of at least 8"));
            return std::ptr::null_mut();
        }
        allocate(bytes, alignment, false)
    }

    fn nvshmem_free(address: *mut c_void) {
        free(address.addr());
    }
}
