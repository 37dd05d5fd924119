//! The kernel of [`Algorithm::None`](super::Algorithm::None): adds the residual to the input and
//! computes RMSNorm. The kernel does not communicate, because the input already is the sum over all
//! ranks.

use super::Norm;
use super::row::{Operands, Real, added, each_row, normalise};
use crate::Call;
use peerweave_device::prelude::*;

/// Runs the RMSNorm kernel without communication.
#[inline(always)]
pub(super) fn run<T: Real>(call: &Call, norm: &Norm) -> Result<(), Failed> {
    if !call.begin() {
        return Ok(());
    }
    // SAFETY: the launch guarantees the documented properties of the arguments.
    let operands = unsafe { Operands::new::<T>(call, norm) };
    let mut parity = 0;
    each_row(norm, |row| {
        let start = row * norm.row_lines;
        let get = |index| Ok(added::<T>(operands.send.read_whole(start + index), operands.residual.read_whole(start + index)));
        parity += 1;
        normalise::<T>(norm, &operands, row, parity, false, get)
    });
    Ok(())
}
