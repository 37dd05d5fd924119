//! Begins and ends groups.
//!
//! Module `groups` runs the calls of a group. Invariant: every begin that returned success has one
//! end.

use core::ffi::c_int;

use crate::abi::{Header, SIM_MAGIC, SimInfo, invalid, not_null};
use crate::call::exports;
use crate::groups::group;

exports! {
    /// Begins a group, which may be nested in an open group.
    fn ncclGroupStart() {
        group::begin();
        Ok(())
    }

    /// Ends a group. The end of the outermost group launches the calls.
    fn ncclGroupEnd() {
        group::end(None)
    }

    /// Ends a group without launching its calls. The end of the outermost group returns an estimate
    /// of the group's time in microseconds.
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
