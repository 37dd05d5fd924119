//! Operations on elements at equal distances: strided puts and gets, and the strided all-to-all.

use peerweave_core::Error;
use peerweave_core::backend::{Collective, Direction, Place, Strided};
use peerweave_driver::cudarc::driver::sys::{CUDA_MEMCPY2D, CUmemorytype};

use super::collectives::Path;
use crate::backend::enqueue::{Enqueue, Source};
use crate::backend::resources::Staged;
use crate::backend::teams::TeamOf;

/// The positions of elements at equal distances: the address of the first element, and the distance
/// in bytes from the start of one element to the start of the next.
type Rows = (u64, usize);

/// Returns the number of bytes that `count` elements span, from the start of the first element to
/// the end of the last element. An element has `width` bytes. The starts of consecutive elements
/// are `stride` elements apart.
fn reach(count: usize, stride: usize, width: usize) -> usize {
    count.checked_sub(1).map_or(0, |last| (last * stride + 1) * width)
}

impl Enqueue<'_> {
    /// Enqueues a copy of `count` elements of `width` bytes. The memory between the elements of the
    /// target does not change.
    fn copy_rows(&self, to: Rows, from: Rows, width: usize, count: usize) -> Result<(), Error> {
        if count == 0 || to == from {
            return Ok(());
        }
        if to.1 == width && from.1 == width {
            return self.copy(to.0, from.0, count * width);
        }
        const UNIFIED: CUmemorytype = CUmemorytype::CU_MEMORYTYPE_UNIFIED;
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: UNIFIED,
            srcHost: std::ptr::null(),
            srcDevice: from.0,
            srcArray: std::ptr::null_mut(),
            srcPitch: from.1,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: UNIFIED,
            dstHost: std::ptr::null_mut(),
            dstDevice: to.0,
            dstArray: std::ptr::null_mut(),
            dstPitch: to.1,
            WidthInBytes: width,
            Height: count,
        };
        // SAFETY: `peerweave-core` has checked that the last element at each stride lies in its
        // allocation, which is recorded or held.
        self.drive("cuMemcpy2DAsync_v2", |api| Ok(unsafe { api.cuMemcpy2DAsync_v2(&raw const copy, self.stream.cu_stream()) }?))
    }

    pub(super) fn strided(&mut self, op: &Strided) -> Result<Source, Error> {
        if op.count == 0 {
            return Ok(Source::Copy);
        }
        let remote = self.state.remote(self.call, op.pe, op.remote)?;
        let (width, rows) = (op.element_bytes, op.count);
        let local_bytes = reach(rows, op.local_stride, width);
        self.note(op.remote, reach(rows, op.remote_stride, width));
        let theirs = (remote, op.remote_stride * width);
        if op.direction == Direction::Send {
            let local = self.reading(op.local, local_bytes)?;
            self.copy_rows(theirs, (local, op.local_stride * width), width, rows)?;
            return Ok(Source::Copy);
        }
        let (local, staged) = self.writing_between(op.local, local_bytes, op.local_stride)?;
        self.copy_rows((local, op.local_stride * width), theirs, width, rows)?;
        self.written(staged)?;
        Ok(Source::Copy)
    }

    /// Like [`writing`](Self::writing), but for a result of strided elements. The bytes between the
    /// elements must not change. So if the result is in memory of the host, the caller's bytes are
    /// first copied to the pinned memory. [`written`](Self::written) later copies all of these
    /// bytes back.
    fn writing_between(&mut self, place: Place, bytes: usize, stride: usize) -> Result<(u64, Option<Staged>), Error> {
        let before = match place {
            Place::Private(_) if stride > 1 => Some(self.reading(place, bytes)?),
            _ => None,
        };
        let (to, staged) = self.writing(place, bytes)?;
        if let Some(before) = before {
            self.copy(to, before, bytes)?;
        }
        Ok((to, staged))
    }

    /// Enqueues a strided all-to-all. The stream copies the elements to contiguous memory,
    /// exchanges them, and copies them to the result at the result's stride.
    pub(super) fn all_to_all_strided(&mut self, team: &TeamOf, op: &Collective) -> Result<Source, Error> {
        let (n, width, [source, dest]) = (team.members.len(), op.element_bytes(), op.strides());
        let rows = n * op.count;
        let (Some(send), Some(recv)) = (op.send, op.recv) else { panic!("peerweave-core bug: {} has no operands", self.call) };
        if rows == 0 {
            return Ok(Source::Copy);
        }
        let from = (self.reading(send, reach(rows, source, width))?, source * width);
        let (to, staged) = self.writing_between(recv, reach(rows, dest, width), dest)?;
        let to = (to, dest * width);
        let outcome = if n == 1 {
            self.copy_rows(to, from, width, rows)?;
            Source::Copy
        } else {
            let packed = |enqueue: &mut Self, rows_at: Rows| match rows_at.1 == width {
                true => Ok(rows_at),
                false => enqueue.scratch(rows * width).map(|scratch| (scratch, width)),
            };
            let (sent, received) = (packed(self, from)?, packed(self, to)?);
            self.copy_rows(sent, from, width, rows)?;
            let part = op.count * width;
            let source = match self.kernels_of(team)? {
                Path::Kernels(collectives) => {
                    // SAFETY: both ranges have a part for each rank. They stay allocated until the
                    // stream has passed the call: they are recorded or held. The core has checked
                    // that they do not overlap.
                    let enqueued = unsafe { collectives.all_to_all(self.stream, sent.0, received.0, part as u64) };
                    self.enqueued(team, enqueued)?
                }
                Path::Hosts(span) => self.all_to_all_between(team, span, sent.0, received.0, part)?,
            };
            self.copy_rows(to, received, width, rows)?;
            source
        };
        self.written(staged)?;
        Ok(outcome)
    }
}
