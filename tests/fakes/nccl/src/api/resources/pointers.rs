//! Addresses at which kernels access windows.
//!
//! Access from kernels is not emulated. Invariant: every returned address is in a registered
//! window.

use core::ffi::{c_int, c_uint, c_void};

use crate::abi::{Out, Result, Team, invalid, misuse, not_null};
use crate::call::exports;
use crate::comm::window::{Window, find};
use crate::comm::{Comm, live};
use crate::report::undefined;

fn pointer(window: &Window, offset: usize, place: Option<usize>, out: *mut *mut c_void) -> Result {
    not_null(out, "outPtr")?;
    if offset >= window.bytes {
        return invalid(format!("offset {offset} is not in the window of {} bytes", window.bytes));
    }
    Out(out).set(place.map_or(std::ptr::null_mut(), |base| std::ptr::with_exposed_provenance_mut(base + offset)));
    Ok(())
}

fn owner(window: &Window) -> &'static Comm {
    let found = live().into_iter().find(|comm| comm.handle().address() == window.comm);
    found.unwrap_or_else(|| undefined("use of a destroyed communicator's window"))
}

exports! {
    /// Returns the address at which a kernel of this rank accesses the memory of a rank with direct
    /// access.
    fn ncclGetLsaDevicePointer(window: *mut c_void, offset: usize, lsa_rank: c_int, out_ptr: *mut *mut c_void) {
        let window = find(window)?;
        let comm = owner(&window);
        let size = comm.who().lsa_size();
        if lsa_rank < 0 || lsa_rank >= size {
            return invalid(format!("invalid LSA rank {lsa_rank} in a team of {size} ranks"));
        }
        let first = comm.who().rank / size * size;
        pointer(&window, offset, Some(window.places[(first + lsa_rank) as usize].0), out_ptr)
    }

    /// Returns the address at which a kernel accesses the memory of a rank of the communicator;
    /// null without direct access.
    fn ncclGetPeerDevicePointer(window: *mut c_void, offset: usize, peer: c_int, out_ptr: *mut *mut c_void) {
        let window = find(window)?;
        let comm = owner(&window);
        comm.check_peer(peer, "peer")?;
        let size = comm.who().lsa_size();
        let reachable = peer / size == comm.who().rank / size;
        pointer(&window, offset, reachable.then(|| window.places[peer as usize].0), out_ptr)
    }

    /// Returns the multicast address of all ranks with direct access; null without multicast.
    fn ncclGetLsaMultimemDevicePointer(window: *mut c_void, offset: usize, out_ptr: *mut *mut c_void) {
        let window = find(window)?;
        pointer(&window, offset, (window.multimem != 0).then_some(window.multimem), out_ptr)
    }

    /// Returns the multicast address of a team by its handle.
    fn ncclGetMultimemDevicePointer(window: *mut c_void, offset: usize, multimem: usize, out_ptr: *mut *mut c_void) {
        let window = find(window)?;
        pointer(&window, offset, (window.multimem != 0 && multimem != 0).then_some(window.multimem), out_ptr)
    }

    /// Returns an error, because the hardware (CFT) is not emulated.
    fn ncclGetMultimemDeviceLeInfo(window: *mut c_void, _offset: usize, _le_id: *mut c_uint, _le_offset: *mut usize) {
        find(window)?;
        misuse("CFT is not supported")
    }

    /// Returns an error, like [`ncclGetMultimemDeviceLeInfo`].
    fn ncclGetCftDeviceLeInfo(window: *mut c_void, _offset: usize, _peer: c_int, _team: Team, _le_id: *mut c_uint,
        _le_offset: *mut usize) {
        find(window)?;
        misuse("CFT is not supported")
    }

    /// Returns an error, like [`ncclGetMultimemDeviceLeInfo`].
    fn ncclGetPeerDeviceLeInfo(window: *mut c_void, _offset: usize, _peer: c_int, _le_id: *mut c_uint, _le_offset: *mut usize) {
        find(window)?;
        misuse("CFT is not supported")
    }
}
