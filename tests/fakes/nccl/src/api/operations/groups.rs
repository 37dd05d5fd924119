//! Begins and ends groups.
//!
//! Module `groups` runs the calls of a group. Invariant: every begin that returned success has one
//! end.

use core::ffi::c_int;

use crate::abi::{Header, SIM_MAGIC, SimInfo, invalid, not_null};
use crate::call::exports;
use crate::groups::group;

exports! {
    /// Begins a group, or a nested one.
    fn ncclGroupStart() {
        group::begin();
        Ok(())
    }

    /// Ends a group; the end of the outermost one launches its calls.
    fn ncclGroupEnd() {
        group::end(None)
    }

    /// Ends a group without launching it; the end of the outermost one returns an estimate of its
    /// time in microseconds.
    fn ncclGroupSimulateEnd(sim_info: *mut SimInfo) {
        not_null(sim_info, "simInfo").and_then(|()| {
            // SAFETY: the pointer is not null, and every version's struct begins with this header.
            let header = unsafe { sim_info.cast::<Header>().read() };
            if header.size < size_of::<SimInfo>() {
                return invalid(format!("ncclSimInfo_t has an unsupported size of {} bytes", header.size));
            }
            header.check(SIM_MAGIC, "ncclSimInfo_t")
        })?;
        group::end(Some(sim_info))
    }
}

/// Returns how many groups are open on the calling thread; groups can be nested.
#[unsafe(no_mangle)]
extern "C" fn peerweave_fake_nccl_group_depth() -> c_int {
    group::depth() as c_int
}
