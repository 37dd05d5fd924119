//! The checks that all calls have in common: the communicator, the stream, element types, lengths,
//! ranks, devices, and overlaps of buffers.
//!
//! `shapes.rs` has the lengths that each call expects. This module neither issues calls nor waits.
//!
//! Invariant: a check adds entries to `Holds`. While these entries exist, the memory of the call
//! stays allocated, and the call's stream stays ordered with other streams that use the memory.

use std::ffi::c_int;
use std::sync::Arc;

use peerweave_driver::{Access, CudaStream, DeviceBuffer, DeviceBufferMut, Keep};
use peerweave_types::{DType, Element, Rank};

use crate::library::error::{MisuseKind, NcclError};
use crate::member::membership::Inner;
use crate::ops::holds::Holds;
use crate::ops::operation::Operations;
use crate::ops::reduction::{Made, Reduction};
use crate::sys::{ncclDataType_t, ncclRedOp_t};
use crate::{Call, Nccl, Version};

/// Explanation in the error for a [`ReduceOp`](peerweave_types::ReduceOp) that NCCL lacks.
const NOT_PREDEFINED: &str =
    "expected sum, prod, min, max or avg; NCCL has no bitwise reductions; for a PreMulSum, pass a reference to a PreMulSum value";

/// Returns NCCL's number for an element type. `reduces` states whether the call reduces elements.
/// If the library lacks 8-bit floats, these floats are transferred as bytes, and cannot be reduced.
#[inline]
pub(crate) fn data_type(call: &'static str, nccl: Nccl, dtype: DType, reduces: bool) -> Result<ncclDataType_t, NcclError> {
    Ok(match dtype {
        DType::I8 => ncclDataType_t::ncclInt8,
        DType::U8 => ncclDataType_t::ncclUint8,
        DType::I32 => ncclDataType_t::ncclInt32,
        DType::U32 => ncclDataType_t::ncclUint32,
        DType::I64 => ncclDataType_t::ncclInt64,
        DType::U64 => ncclDataType_t::ncclUint64,
        DType::F16 => ncclDataType_t::ncclFloat16,
        DType::BF16 => ncclDataType_t::ncclBfloat16,
        DType::F32 => ncclDataType_t::ncclFloat32,
        DType::F64 => ncclDataType_t::ncclFloat64,
        DType::F8E4M3 | DType::F8E5M2 => return eight_bits(nccl, dtype, reduces),
        DType::I16 | DType::U16 => {
            return Err(NcclError::misuse(call, MisuseKind::Context { why: "NCCL has no 16-bit integers" }));
        }
        _ => {
            return Err(NcclError::misuse(
                call,
                MisuseKind::Context { why: "NCCL does not support the element type of the buffer" },
            ));
        }
    })
}

fn eight_bits(nccl: Nccl, dtype: DType, reduces: bool) -> Result<ncclDataType_t, NcclError> {
    const SINCE: Version = Version::new(2, 24, 3);
    match dtype {
        _ if !nccl.version().at_least(SINCE) && !reduces => Ok(ncclDataType_t::ncclUint8),
        DType::F8E4M3 => nccl.needs("ncclFloat8e4m3", SINCE).map(|()| ncclDataType_t::ncclFloat8e4m3),
        _ => nccl.needs("ncclFloat8e5m2", SINCE).map(|()| ncclDataType_t::ncclFloat8e5m2),
    }
}

/// The result of a check. The error is boxed to keep the result small, because a small result is
/// returned in registers.
pub(crate) type Checked<T> = Result<T, Box<NcclError>>;

/// A call that is being checked, with its communicator, its stream, and the resources that the call
/// keeps alive.
pub(crate) struct CallBuilder<'c, 'a> {
    pub(crate) call: Call,
    pub(crate) inner: &'c Arc<Inner>,
    pub(crate) stream: &'a Arc<CudaStream>,
    /// Whether the stream is being captured.
    capturing: bool,
    pub(crate) holds: &'c mut Holds<'a>,
    pub(crate) operations: &'c mut Operations,
}

/// Proof that a call was checked and its operations were recorded.
pub(crate) struct Prepared(());

/// Address and length of a buffer that a call uses.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    pub(crate) address: u64,
    len_bytes: u64,
}

/// Index in [`Holds::guards`] for the buffer that the call reads.
const READ: usize = 0;
/// Index in [`Holds::guards`] for the buffer that the call writes.
const WRITTEN: usize = 1;

impl<'c, 'a> CallBuilder<'c, 'a> {
    /// Starts the checks of one call. `capturing` states whether the stream is being captured:
    /// [`begin_call`](Inner::begin_call) returns this value.
    #[inline]
    pub(crate) fn new(
        call: Call,
        inner: &'c Arc<Inner>,
        stream: &'a Arc<CudaStream>,
        capturing: bool,
        holds: &'c mut Holds<'a>,
        operations: &'c mut Operations,
    ) -> Self {
        Self { call, inner, stream, capturing, holds, operations }
    }

    /// Stores the operations of the call. Called when all checks of the call have succeeded.
    #[inline(always)]
    pub(crate) fn prepared(&mut self, operations: Operations) -> Prepared {
        // The previous value is empty. Forgetting the previous value saves the time of dropping it.
        std::mem::forget(std::mem::replace(self.operations, operations));
        Prepared(())
    }

    /// Returns NCCL's number for the element type `T`, for a call that only transfers elements.
    #[inline]
    pub(crate) fn moved<T: Element>(&self) -> Checked<ncclDataType_t> {
        const {
            assert!(T::PARTS == 1, "NCCL has no type for elements that consist of several values; pass a buffer of single values")
        };
        Ok(data_type(self.call.name(), self.inner.nccl, T::DTYPE, false)?)
    }

    /// Returns NCCL's numbers for the element type `T` and for the reduction `op`. If `op` is a
    /// `PreMulSum`, adds `op` to the resources that the call keeps alive.
    #[inline]
    pub(crate) fn reduced<T: Element>(&mut self, op: &impl Reduction<T>) -> Checked<(ncclDataType_t, ncclRedOp_t)> {
        const {
            assert!(T::PARTS == 1, "NCCL has no type for elements that consist of several values; pass a buffer of single values")
        };
        let data_type = data_type(self.call.name(), self.inner.nccl, T::DTYPE, true)?;
        let (op, made) = op.resolve();
        let op = op.ok_or_else(|| misuse(self.call, MisuseKind::Text { what: "the reduction", why: NOT_PREDEFINED }))?;
        if let Some(made) = made {
            made.check(self.call.name(), self.inner, self.stream)?;
            self.own(Arc::<Made>::clone(made));
        }
        Ok((data_type, op))
    }

    /// Stores `owner`, a reduction or a window, in the call. The call keeps `owner` alive.
    pub(crate) fn own(&mut self, owner: Keep) {
        self.holds.owner = Some(owner);
    }

    /// Converts a rank to NCCL's type. Fails if the communicator has no such rank.
    #[inline]
    pub(crate) fn rank(&self, what: &'static str, rank: Rank) -> Checked<c_int> {
        let ranks = self.inner.n_ranks;
        // There are at most `c_int::MAX` ranks.
        if rank.index() < ranks {
            Ok(rank.get() as c_int)
        } else {
            Err(misuse(self.call, MisuseKind::Rank { what, found: rank, ranks }))
        }
    }

    /// Fails if `found` differs from `expected`. Both are lengths in elements.
    #[inline]
    pub(crate) fn length(&self, what: &'static str, found: usize, expected: usize) -> Checked<()> {
        let wrong = || misuse(self.call, MisuseKind::Length { what, found, expected, unit: "elements" });
        if found == expected { Ok(()) } else { Err(wrong()) }
    }

    /// Returns `count` times the number of ranks. On overflow, returns `usize::MAX`, which is not
    /// the length of any buffer.
    #[inline]
    pub(crate) fn of_all(&self, count: usize) -> usize {
        count.saturating_mul(self.inner.n_ranks)
    }

    /// Returns the number of elements of each part of a buffer that has one part for each rank.
    /// Fails unless `len` is a multiple of the number of ranks.
    #[inline]
    pub(crate) fn part(&self, what: &'static str, len: usize) -> Checked<usize> {
        let count = len / self.inner.n_ranks;
        if count * self.inner.n_ranks == len {
            return Ok(count);
        }
        let (found, expected) = (i64::try_from(len).unwrap_or(i64::MAX), "a multiple of the number of ranks");
        Err(misuse(self.call, MisuseKind::Value { what, found, expected }))
    }

    #[inline]
    fn device(&self, what: &'static str, found: usize) -> Checked<()> {
        let expected = self.inner.device();
        if found == expected { Ok(()) } else { Err(misuse(self.call, MisuseKind::Device { what, found, expected })) }
    }

    /// Acquires a buffer that the call reads, and returns the buffer's address and length. Fails if
    /// the buffer belongs to a different device. Called after all other checks, because acquiring a
    /// borrowed slice may make the stream wait for another stream.
    #[inline(always)]
    pub(crate) fn read<T: Element, B: DeviceBuffer<T> + ?Sized>(
        &mut self,
        what: &'static str,
        buffer: &'a B,
    ) -> Checked<Operand> {
        self.device(what, buffer.device())?;
        let len_bytes = (buffer.len() * size_of::<T>()) as u64;
        let address = match self.capturing {
            false => self.borrow(READ, buffer.read(self.stream).map_err(NcclError::from)?),
            true => kept(self.call, self.holds, buffer.keep())?,
        };
        Ok(Operand { address, len_bytes })
    }

    /// Acquires a buffer that the call writes, and returns the buffer's address and length. Like
    /// [`read`](Self::read), called after all other checks.
    #[inline(always)]
    pub(crate) fn write<T: Element, B: DeviceBufferMut<T> + ?Sized>(
        &mut self,
        what: &'static str,
        buffer: &'a mut B,
    ) -> Checked<Operand> {
        self.device(what, buffer.device())?;
        let len_bytes = (buffer.len() * size_of::<T>()) as u64;
        let address = match self.capturing {
            false => self.borrow(WRITTEN, buffer.write(self.stream).map_err(NcclError::from)?),
            true => kept(self.call, self.holds, buffer.keep())?,
        };
        Ok(Operand { address, len_bytes })
    }

    /// Returns the address of the buffer to which `access` belongs. If dropping `access` notifies
    /// the owner of the buffer, stores `access` in [`Holds::guards`] at index `which`. The owner is
    /// then notified only after the work was enqueued.
    #[inline(always)]
    fn borrow(&mut self, which: usize, access: Access<'a>) -> u64 {
        let address = access.address();
        if access.is_guarded() {
            self.holds.guards[which] = Some(access);
        } else {
            // Dropping the access would have no effect, because the owner of the buffer needs no
            // notification. Forgetting the access saves a function call.
            std::mem::forget(access);
        }
        address
    }

    /// Performs the last checks of a call, after its buffers were acquired. Fails if the buffers
    /// overlap. Also fails if the wait for a borrowed slice has made the stream join the capture of
    /// another stream.
    #[inline(always)]
    pub(crate) fn finish(&mut self, send: Option<Operand>, recv: Option<Operand>) -> Checked<()> {
        if let (Some(send), Some(recv)) = (send, recv) {
            let address = send.address.max(recv.address);
            if address < (send.address + send.len_bytes).min(recv.address + recv.len_bytes) {
                return Err(misuse(
                    self.call,
                    MisuseKind::Overlap { send: "the send buffer", recv: "the receive buffer", address },
                ));
            }
        }
        if self.capturing || self.holds.guards.iter().any(Option::is_some) {
            return finish_guarded(self.call, self.inner, self.stream, self.holds);
        }
        Ok(())
    }
}

#[cold]
fn misuse(call: Call, kind: MisuseKind) -> Box<NcclError> {
    Box::new(NcclError::misuse(call.name(), kind))
}

/// Returns the address in `kept`, which is the address of a buffer of a captured call. Moves the
/// buffer's owner from `kept` to `holds`, so that the graph keeps the memory allocated. Fails if
/// `kept` is `None`: the buffer is then a borrowed slice, which a graph cannot keep alive.
#[cold]
fn kept(call: Call, holds: &mut Holds<'_>, kept: Option<(u64, Keep)>) -> Checked<u64> {
    let Some((address, keep)) = kept else {
        let why = "the stream is being captured, and the graph would access the borrowed slice after the call; pass a DeviceMemory or a Raw instead of a borrowed slice";
        return Err(misuse(call, MisuseKind::Context { why }));
    };
    holds.keeps.push(keep);
    Ok(address)
}

/// Performs the last checks of a call whose stream is being captured, or whose buffers have guards
/// (borrowed slices). Without guards, marks the call as captured. With a guard, fails if the stream
/// has joined the capture of another stream. A stream joins that capture if it waits for the last
/// use of a borrowed slice, and this use is part of the capture.
#[inline(never)]
fn finish_guarded(call: Call, inner: &Inner, stream: &CudaStream, holds: &mut Holds<'_>) -> Checked<()> {
    if holds.guards.iter().all(Option::is_none) {
        holds.set_captured();
        return Ok(());
    }
    // A stream that waits for a captured event joins the capture.
    if !inner.is_capturing(stream)? {
        return Ok(());
    }
    let why = "the stream has joined the capture of another stream, because the borrowed slice was last used in this capture; pass a DeviceMemory or a Raw instead of a borrowed slice";
    Err(misuse(call, MisuseKind::Context { why }))
}
