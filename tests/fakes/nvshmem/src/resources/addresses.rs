//! Addresses of other PEs' parts of symmetric memory.
//!
//! Invariant: an address is returned only for memory that is allocated or registered.

use core::ffi::{c_int, c_void};

use crate::call::exports;
use crate::job::live;

exports! {
    fn nvshmem_ptr(address: *const c_void, pe: c_int) -> *mut c_void {
        let world = live();
        world.check_pe(pe);
        let memory = world.memory();
        let given = memory.find(address.addr(), 0).and_then(|place| memory.given(pe, place));
        given.unwrap_or(0) as *mut c_void
    }

    fn nvshmemx_mc_ptr(team: c_int, address: *const c_void) -> *mut c_void {
        let world = live();
        if team < 0 {
            return std::ptr::null_mut();
        }
        world.teams.of(team);
        let memory = world.memory();
        match memory.find(address.addr(), 0) {
            Some(place) if place.region == 0 && memory.multicast != 0 => (memory.multicast + place.offset) as *mut c_void,
            _ => std::ptr::null_mut(),
        }
    }
}
