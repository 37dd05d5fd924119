//! Reduction operators: the built-in ones, and those that first multiply by a scalar.
//!
//! Module `arithmetic` has the arithmetic. Invariant: a created operator belongs to one
//! communicator and one type.

use core::ffi::{c_int, c_void};

use crate::abi::{Out, Result, invalid, not_null};
use crate::arithmetic::{DType, Op, Scalar, read_value};
use crate::call::exports;
use crate::comm::{Comm, CommPtr, RedOp};

/// The smallest number that a created operator has.
const FIRST_OWN: c_int = 5;

/// Returns the operation for the number of an operator on this communicator.
pub(super) fn resolve(comm: &Comm, op: c_int, dtype: DType) -> Result<Op> {
    Ok(match op {
        0 => Op::Sum,
        1 => Op::Prod,
        2 => Op::Max,
        3 => Op::Min,
        4 => Op::Avg,
        own if own >= FIRST_OWN => {
            let state = comm.state();
            let Some(redop) = state.redops.get((own - FIRST_OWN) as usize).copied().flatten() else {
                return invalid(format!("reduction operation {own} unknown to this communicator"));
            };
            if redop.dtype != dtype {
                return invalid(
                    "Data type supplied to user-created ncclRedOp_t does not match type given to reduction operation",
                );
            }
            Op::PreMulSum(redop.scalar)
        }
        other => return invalid(format!("invalid reduction operation {other}")),
    })
}

exports! {
    /// Creates an operator that multiplies this rank's values by a scalar before the sum.
    fn ncclRedOpCreatePreMulSum(op: *mut c_int, scalar: *mut c_void, datatype: c_int, residence: c_int, comm: CommPtr) {
        let comm = comm.ready()?;
        not_null(op, "op")?;
        not_null(scalar, "scalar")?;
        let dtype = DType::from_number(datatype)?;
        let scalar = match residence {
            0 => Scalar::Later(scalar.expose_provenance()),
            1 => Scalar::Now(read_value(scalar.cast(), dtype)),
            other => return invalid(format!("invalid scalar residence {other}")),
        };
        let mut state = comm.state();
        let free = state.redops.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            state.redops.push(None);
            state.redops.len() - 1
        });
        state.redops[place] = Some(RedOp { dtype, scalar });
        Out(op).set(FIRST_OWN + c_int::try_from(place).expect("the number of operators fits 32 bits"));
        Ok(())
    }

    /// Destroys an operator that `ncclRedOpCreatePreMulSum` created.
    fn ncclRedOpDestroy(op: c_int, comm: CommPtr) {
        if (0..FIRST_OWN).contains(&op) {
            return invalid("ncclRedOpDestroy: operation is a NCCL builtin");
        }
        let comm = comm.ready()?;
        let mut state = comm.state();
        let place = usize::try_from(op - FIRST_OWN).ok();
        match place.and_then(|place| state.redops.get_mut(place)).and_then(Option::take) {
            Some(_) => Ok(()),
            None => invalid(format!("ncclRedOpDestroy: operation {op} unknown to this communicator")),
        }
    }
}
