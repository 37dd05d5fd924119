//! The first steps of every call on a stream: checking the arguments of the call, and keeping the
//! memory of the call alive.
//!
//! Invariant: before NVSHMEM is called, all memory of the call is recorded as used by the stream,
//! or is owned by the captured graph. If the call is a collective, its stream already waits for the
//! team's last collective.

use std::sync::Arc;

use peerweave_driver::{
    Access, CudaStream, DeviceBuffer, DeviceBufferMut, Keep, is_capturing, keep_in_graph, refuse_capture_begun,
};
use peerweave_dylib::MissingSymbol;
use peerweave_types::{Element, Pe};

use crate::comm::Comm;
use crate::comm::streams::Streams;
use crate::error::{MisuseKind, NvshmemError};
use crate::heap::Heap;
use crate::heap::registration::Registered;
use crate::sys::{Api, CType, Families};
use crate::{SymmetricBuffer, Team};

/// A call that is being prepared and will be enqueued on a stream.
pub(crate) struct Enqueue<'a> {
    comm: &'a Arc<Comm>,
    call: &'static str,
    stream: &'a Arc<CudaStream>,
    capturing: bool,
    keeps: Vec<Keep>,
    team: Option<&'a Team>,
    /// The effect of this call on `nbi` transfers: it starts one, waits for all, or has no effect.
    left: NbiEffect<'a>,
    /// The registration of this PE's memory, if the transfer needs one. The value is held until
    /// NVSHMEM has enqueued the transfer, so that the memory stays registered until then. Later,
    /// the memory stays registered until the streams that use the registration have completed.
    registered: Option<Arc<Registered>>,
}

/// The effect of a call on the `nbi` transfers, which run on NVSHMEM's own streams.
enum NbiEffect<'a> {
    Nothing,
    /// The call starts an `nbi` transfer. The array has an element for each buffer of the transfer,
    /// and one for the signal word, which is `None` without a signal. An element is the list of the
    /// streams that use the memory.
    Transfer([Option<&'a Arc<Streams>>; 3]),
    /// The call makes its stream wait for all transfers on NVSHMEM's own streams.
    WaitsForAll,
}

impl<'a> Enqueue<'a> {
    pub(crate) fn begin(comm: &'a Arc<Comm>, call: &'static str, stream: &'a Arc<CudaStream>) -> Result<Self, NvshmemError> {
        comm.check_usable(call)?;
        comm.check_stream(call, stream)?;
        let (capturing, keeps, left) = (is_capturing(stream)?, Vec::new(), NbiEffect::Nothing);
        Ok(Self { comm, call, stream, capturing, keeps, team: None, left, registered: None })
    }

    /// Returns an error with the reason `why` if the stream is being captured.
    pub(crate) fn not_captured(&self, why: &'static str) -> Result<(), NvshmemError> {
        if self.capturing { Err(NvshmemError::misuse(self.call, MisuseKind::Context { why })) } else { Ok(()) }
    }

    /// Records that the call uses the memory of `buffer`, so that the memory stays allocated until
    /// the stream has completed the call. Returns the address of the memory on this PE.
    pub(crate) fn symmetric<T>(&mut self, what: &'static str, buffer: &SymmetricBuffer<T>) -> Result<u64, NvshmemError> {
        check_context(self.comm, self.call, what, buffer)?;
        buffer.allocation.note(self.stream);
        if self.capturing {
            self.keeps.push(buffer.keep_handle());
        }
        Ok(buffer.address())
    }

    /// Records that the call will start an `nbi` transfer between the buffers `one` and `other`.
    /// Such a transfer runs on NVSHMEM's own streams.
    pub(crate) fn starts_nbi<T>(&mut self, one: &'a SymmetricBuffer<T>, other: &'a SymmetricBuffer<T>) {
        self.left = NbiEffect::Transfer([Some(&one.allocation.streams), Some(&other.allocation.streams), None]);
    }

    /// Records that a signal to `word` will follow the `nbi` transfer of this call. The caller must
    /// have called [`starts_nbi`](Self::starts_nbi) before.
    pub(crate) fn starts_nbi_signal(&mut self, word: &'a SymmetricBuffer<u64>) {
        if let NbiEffect::Transfer([.., signal]) = &mut self.left {
            *signal = Some(&word.allocation.streams);
        }
    }

    /// Records that the call makes its stream wait for NVSHMEM's own streams, on which `nbi`
    /// transfers run. Returns an error if the stream is being captured while `nbi` transfers are
    /// incomplete.
    pub(crate) fn waits_for_nbi(&mut self) -> Result<(), NvshmemError> {
        self.left = NbiEffect::WaitsForAll;
        // This check is made before the team's order is changed.
        if self.capturing { self.comm.enqueued.pending.check_capture(self.call) } else { Ok(()) }
    }

    /// Makes the checks of [`check_pair`]. If the transfer needs a registration of this PE's
    /// memory, keeps the registration until the stream has completed its work. In a capture, keeps
    /// the registration as long as the graph exists.
    pub(crate) fn reach(
        &mut self,
        heap: &Heap,
        (local_name, local): (&'static str, u64),
        (remote_name, remote): (&'static str, u64),
        bytes: usize,
        pe: Pe,
    ) -> Result<(), NvshmemError> {
        if let Some(registered) = check_pair(heap, self.call, (local_name, local), (remote_name, remote), bytes, pe)? {
            registered.note(self.stream);
            if self.capturing {
                self.keeps.push(Arc::<Registered>::clone(&registered));
            }
            // Kept until NVSHMEM is called: the next thread that acquires the gate makes deferred
            // calls, which could unregister the memory.
            self.registered = Some(registered);
        }
        Ok(())
    }

    /// Adds the buffer that the call will read, which is memory of this PE. Returns the [`Access`],
    /// which has the address of the memory.
    pub(crate) fn source<T>(&mut self, what: &'static str, buffer: &'a impl DeviceBuffer<T>) -> Result<Access<'a>, NvshmemError> {
        self.check_device(what, buffer)?;
        if self.capturing { self.owned(buffer) } else { Ok(buffer.read(self.stream)?) }
    }

    /// Adds the buffer that the call will write, which is memory of this PE. Returns the
    /// [`Access`], which has the address of the memory.
    pub(crate) fn target<T>(
        &mut self,
        what: &'static str,
        buffer: &'a mut impl DeviceBufferMut<T>,
    ) -> Result<Access<'a>, NvshmemError> {
        self.check_device(what, buffer)?;
        if self.capturing { self.owned(buffer) } else { Ok(buffer.write(self.stream)?) }
    }

    fn owned<T>(&mut self, buffer: &impl DeviceBuffer<T>) -> Result<Access<'static>, NvshmemError> {
        let why =
            "the stream is being captured, and a graph cannot keep borrowed memory alive; use owned memory, such as DeviceMemory";
        let (address, keep) = buffer.keep().ok_or_else(|| NvshmemError::misuse(self.call, MisuseKind::Context { why }))?;
        self.keeps.push(keep);
        Ok(Access::new(address))
    }

    fn check_device<T>(&self, what: &'static str, buffer: &impl DeviceBuffer<T>) -> Result<(), NvshmemError> {
        let (found, expected) = (buffer.device(), self.comm.context.ordinal());
        if found == expected {
            Ok(())
        } else {
            Err(NvshmemError::misuse(self.call, MisuseKind::Device { what, found, expected }))
        }
    }

    /// Adds the team to the call, and returns NVSHMEM's handle of the team.
    pub(crate) fn team(&mut self, team: &'a Team) -> Result<i32, NvshmemError> {
        team.check(self.call, self.comm)?;
        if self.capturing {
            self.keeps.push(team.keep_handle());
        }
        self.team = Some(team);
        Ok(team.handle())
    }

    /// Makes the prepared call. If the stream is being captured, the graph first gets handles to
    /// the call's memory. The memory then lives as long as the graph.
    #[inline]
    pub(crate) fn call(
        self,
        function: impl FnOnce(&'static Api, &'static Families) -> Result<(), MissingSymbol>,
    ) -> Result<(), NvshmemError> {
        self.call_status(|api, families| function(api, families).map(|()| 0))
    }

    /// Makes the prepared call, like [`call`](Self::call), but for a `function` that returns a
    /// status code of NVSHMEM. Any code other than success becomes an error.
    ///
    /// Only this short wrapper is generic. [`run`](Self::run), which does the work, is compiled
    /// once.
    #[inline]
    pub(crate) fn call_status(
        self,
        function: impl FnOnce(&'static Api, &'static Families) -> Result<i32, MissingSymbol>,
    ) -> Result<(), NvshmemError> {
        let mut function = Some(function);
        self.run(&mut |api, families| function.take().expect("`run` calls the function at most once")(api, families))
    }

    /// Makes the prepared call. Calls `function` once, unless a check before the call fails.
    fn run(self, function: Function<'_>) -> Result<(), NvshmemError> {
        if self.capturing {
            let mut keeps = self.keeps;
            keeps.push(Arc::<()>::clone(&self.comm.enqueued.captured));
            keep_in_graph(self.stream, keeps)?;
        }
        // The turn is kept until NVSHMEM has enqueued the call, so that no other collective of the
        // team is enqueued before it.
        let _turn = match self.team {
            Some(team) => Some(team.order().follow(self.call, self.comm, self.stream, self.capturing)?),
            None => None,
        };
        let left = match &self.left {
            NbiEffect::Nothing => None,
            NbiEffect::Transfer(memory) => Some(self.comm.enqueued.pending.add(*memory)),
            NbiEffect::WaitsForAll => Some(self.comm.enqueued.pending.wait_for_all(self.call, self.stream, self.capturing)?),
        };
        // The stream is recorded even if the call has no memory, such as a quiet, because
        // `finalize` waits for recorded streams.
        self.comm.enqueued.used.note(self.stream);
        let result = self.comm.issue(self.call, function);
        // A capture may have begun after the check in `begin`. The graph would then contain memory
        // that is borrowed or that only the stream's list keeps alive.
        let alone = if self.capturing { Ok(()) } else { refuse_capture_begun(self.call, self.stream) };
        self.comm.nvshmem.check(self.call, result?)?;
        alone?;
        // The list is emptied only after success, because after a failed call no stream waits for
        // the transfers.
        if let (NbiEffect::WaitsForAll, Some(mut left)) = (self.left, left) {
            left.empty();
        }
        Ok(())
    }
}

/// A closure that calls a function of NVSHMEM with its arguments, and returns the function's status
/// code.
type Function<'f> = &'f mut dyn FnMut(&'static Api, &'static Families) -> Result<i32, MissingSymbol>;

/// Checks that the buffer is symmetric memory of this context.
pub(crate) fn check_context<T>(
    comm: &Arc<Comm>,
    call: &'static str,
    what: &'static str,
    buffer: &SymmetricBuffer<T>,
) -> Result<(), NvshmemError> {
    if Arc::ptr_eq(&buffer.allocation.comm, comm) {
        Ok(())
    } else {
        Err(NvshmemError::misuse(call, MisuseKind::WrongContext { what }))
    }
}

/// Checks that an argument has the expected number of elements.
#[inline]
pub(crate) fn check_len(call: &'static str, what: &'static str, found: usize, expected: usize) -> Result<(), NvshmemError> {
    if found == expected {
        Ok(())
    } else {
        Err(NvshmemError::misuse(call, MisuseKind::Length { what, found, expected, unit: "elements" }))
    }
}

/// Returns the first address that is in both ranges of bytes, or `None` if the ranges do not
/// overlap.
pub(crate) fn overlap(one: (u64, usize), other: (u64, usize)) -> Option<u64> {
    let start = one.0.max(other.0);
    let end = (one.0 + one.1 as u64).min(other.0 + other.1 as u64);
    (start < end).then_some(start)
}

/// Checks that two ranges of memory do not overlap. `read` and `written` each contain the name of a
/// range, its address, and its length in bytes. The error contains both names and the first address
/// that is in both ranges.
pub(crate) fn check_apart(
    call: &'static str,
    read: (&'static str, u64, usize),
    written: (&'static str, u64, usize),
) -> Result<(), NvshmemError> {
    match overlap((read.1, read.2), (written.1, written.2)) {
        None => Ok(()),
        Some(address) => Err(NvshmemError::misuse(call, MisuseKind::Overlap { read: read.0, written: written.0, address })),
    }
}

/// Checks the memory of a transfer of `bytes` bytes: `local` on this PE, and the symmetric memory
/// `remote` on PE `pe`. Makes the checks of [`Heap::check_reach`]. If `pe` is this PE, also checks
/// that the two do not overlap. Returns the registration that the transfer needs, or `None`.
pub(crate) fn check_pair(
    heap: &Heap,
    call: &'static str,
    (local_name, local): (&'static str, u64),
    (remote_name, remote): (&'static str, u64),
    bytes: usize,
    pe: Pe,
) -> Result<Option<Arc<Registered>>, NvshmemError> {
    let registered = heap.check_reach(call, local_name, (local, bytes), remote, pe)?;
    if pe == heap.comm.pe {
        check_apart(call, (local_name, local, bytes), (remote_name, remote, bytes))?;
    }
    Ok(registered)
}

/// Returns the C integer type that has the size of `T`. Elements are transferred as integers of
/// this type.
pub(crate) const fn by_width<T: Element>() -> CType {
    const { assert!(T::PARTS == 1, "NVSHMEM has no type for elements that consist of several values: pass a buffer of single values") };
    match size_of::<T>() {
        1 => CType::Uint8,
        2 => CType::Uint16,
        4 => CType::Uint32,
        _ => CType::Uint64,
    }
}

/// Converts an address to a pointer for NVSHMEM.
pub(crate) fn pointer<T>(address: u64) -> *mut T {
    std::ptr::without_provenance_mut(address as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_do_not_overlap() {
        assert_eq!(overlap((0x100, 16), (0x110, 16)), None);
        assert_eq!(overlap((0x100, 17), (0x110, 16)), Some(0x110));
        assert_eq!(overlap((0x110, 4), (0x100, 64)), Some(0x110));
        assert_eq!(overlap((0x110, 0), (0x100, 64)), None);
    }

    #[test]
    fn overlap_error_names_both_buffers_and_the_address() {
        let error = check_apart("test", ("the source", 0x100, 32), ("the target", 0x110, 32)).expect_err("the ranges overlap");
        assert_eq!(error.to_string(), "test: the source and the target overlap at 0x110, expected separate memory");
    }

    #[test]
    fn element_is_transferred_as_an_unsigned_integer_of_equal_size() {
        assert_eq!(by_width::<i8>(), CType::Uint8);
        assert_eq!(by_width::<i32>(), CType::Uint32);
        assert_eq!(by_width::<f64>(), CType::Uint64);
    }
}
