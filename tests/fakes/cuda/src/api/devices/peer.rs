//! Queries, enables and disables access of one device to the memory of another. Invariant: access
//! is per context and in one direction.

use core::ffi::{c_int, c_uint};

use crate::abi::{Code, CuContext, CuDevice, Out};
use crate::calls::exports;
use crate::machine::current::{by_handle, current};
use crate::machine::driver::driver;
use crate::sync::lock;

exports! {
    4000 fn cuDeviceCanAccessPeer(can: Out<c_int>, device: CuDevice, peer: CuDevice) {
        let driver = driver()?;
        let (device, peer) = (driver.device(device)?.slot, driver.device(peer)?.slot);
        can.set(c_int::from(driver.can_access_peer(device, peer)))
    }

    8000 fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_int, from: CuDevice, to: CuDevice) {
        let driver = driver()?;
        let (from, to) = (driver.device(from)?.slot, driver.device(to)?.slot);
        if from == to {
            return Err(Code::INVALID_DEVICE);
        }
        let can = driver.can_access_peer(from, to);
        match attribute {
            1 => value.set(0),                    // performance rank: equal for all pairs
            2 | 3 => value.set(c_int::from(can)), // access, native atomics
            4 => value.set(0),                    // arrays
            5 => value.set(0),                    // only partial native atomics
            _ => Err(Code::INVALID_VALUE),
        }
    }

    4000 fn cuCtxEnablePeerAccess(peer: CuContext, flags: c_uint) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let context = current()?;
        if peer.0 == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        let peer = by_handle(peer)?;
        if peer.device == context.device {
            return Err(Code::INVALID_CONTEXT);
        }
        let driver = driver()?;
        if !driver.can_access_peer(driver.slot(context.device), driver.slot(peer.device)) {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        if lock(&context.peers).insert(peer.device) { Ok(()) } else { Err(Code::PEER_ACCESS_ALREADY_ENABLED) }
    }

    4000 fn cuCtxDisablePeerAccess(peer: CuContext) {
        let context = current()?;
        if peer.0 == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        let peer = by_handle(peer)?;
        if lock(&context.peers).remove(&peer.device) { Ok(()) } else { Err(Code::PEER_ACCESS_NOT_ENABLED) }
    }
}
