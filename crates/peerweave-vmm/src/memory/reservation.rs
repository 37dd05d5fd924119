//! Reserved device addresses. An address is backed by memory only after memory has been mapped to
//! it.
//!
//! `mapping.rs` implements mappings. Invariants: a reservation lives as long as every mapping in
//! it, and no two mappings overlap.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use peerweave_driver::cudarc::driver::sys::CUdeviceptr;
use peerweave_driver::{CudaContext, Streams, retire, wait_until};

use crate::error::{Misuse, VmmError};
use crate::memory::mapping::{Mapping, Source};
use crate::memory::physical::{PhysicalMemory, check_supported};
use crate::raw;

/// A handle to a reserved range of addresses. The range is reserved for all devices of this
/// process. Clones are handles to the same range.
#[derive(Clone)]
pub struct Reservation {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    base: CUdeviceptr,
    bytes: usize,
    context: Arc<CudaContext>,
    /// The mapped ranges: maps the start of each range to its end, in bytes from `base`.
    mapped: Mutex<BTreeMap<usize, usize>>,
}

impl Reservation {
    /// Reserves a range of `bytes` addresses. The first address is a multiple of `alignment_bytes`,
    /// which must be a power of two.
    ///
    /// A reservation uses no device memory.
    ///
    /// # Errors
    /// [`Misuse::Value`] if `bytes` is 0, or if the alignment is not a power of two.
    /// [`VmmError::Unsupported`] if the device lacks virtual memory management.
    /// [`VmmError::Driver`] if a driver call fails, for example because `bytes` is not a multiple
    /// of the granularity.
    pub fn new(context: &Arc<CudaContext>, bytes: usize, alignment_bytes: usize) -> Result<Self, VmmError> {
        let call = "Reservation::new";
        if bytes == 0 {
            return Err(Misuse::Value { call, what: "bytes", value: "0".into(), expected: "at least 1 byte".into() }.into());
        }
        if !alignment_bytes.is_power_of_two() {
            let (value, expected) = (alignment_bytes.to_string(), "a power of two".into());
            return Err(Misuse::Value { call, what: "alignment_bytes", value, expected }.into());
        }
        check_supported(context.ordinal())?;
        raw::bind(context)?;
        let mut base: CUdeviceptr = 0;
        // SAFETY: the pointer is to a live address. No address is requested, and no flags are
        // defined.
        let code = unsafe { raw::api()?.cuMemAddressReserve(&raw mut base, bytes, alignment_bytes, 0, 0) };
        raw::done("cuMemAddressReserve", code)?;
        let inner = Inner { base, bytes, context: Arc::clone(context), mapped: Mutex::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the first address of the range.
    pub fn base(&self) -> CUdeviceptr {
        self.inner.base
    }

    /// Returns the length of the range in bytes.
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// Maps the first `bytes` bytes of `memory` at byte `offset` of this range. `bytes` and
    /// `offset` must be multiples of the granularity. A mapping always begins with the first byte
    /// of `memory`, because the driver supports no other start.
    ///
    /// No device can access the mapping until [`Mapping::allow`] gives it rights.
    ///
    /// # Errors
    /// [`Misuse::OutOfRange`] if `bytes` exceeds the memory, or `offset + bytes` exceeds the range.
    /// [`Misuse::OutOfRange`] also if `bytes` is 0. [`Misuse::Occupied`] if a part of the range is
    /// still mapped. [`VmmError::Driver`] if a driver call fails, for example because `offset` is
    /// not a multiple of the granularity.
    ///
    /// The memory of a dropped mapping stays mapped until the streams that used the mapping have
    /// completed their work. [`peerweave_driver::drain_retired`] waits until the memory is
    /// unmapped.
    pub fn map(&self, offset: usize, memory: &PhysicalMemory, bytes: usize) -> Result<Mapping, VmmError> {
        let call = "Reservation::map";
        range_of(call, 0, bytes, memory.bytes())?;
        self.map_source(call, offset, Source::Physical(memory.clone()), bytes, Arc::default())
    }

    /// Maps `bytes` bytes of `source` at byte `offset` of this range, like [`map`](Self::map). The
    /// source is unmapped only after the work of `streams` has completed.
    pub(crate) fn map_source(
        &self,
        call: &'static str,
        offset: usize,
        source: Source,
        bytes: usize,
        streams: Arc<Streams>,
    ) -> Result<Mapping, VmmError> {
        let range = range_of(call, offset, bytes, self.inner.bytes)?;
        let place = self.inner.occupy(call, range)?;
        raw::bind(&self.inner.context)?;
        let address = self.inner.base + offset as u64;
        // SAFETY: the range is inside this reservation, no memory is mapped to it, and the source's
        // handle is live.
        let code = unsafe { raw::api()?.cuMemMap(address, bytes, 0, source.handle(), 0) };
        raw::done("cuMemMap", code)?;
        Ok(Mapping::new(place, address, bytes, source, streams))
    }
}

impl Reservation {
    /// Waits until all dropped mappings of `range` are unmapped. Returns `false` if the deadline
    /// passes first.
    pub(crate) fn wait_for_room(&self, range: Range<usize>, deadline: Instant) -> bool {
        let is_free = || {
            let mapped = self.inner.mapped.lock().unwrap_or_else(PoisonError::into_inner);
            mapped.range(..range.end).next_back().is_none_or(|(_, end)| *end <= range.start)
        };
        wait_until::<std::convert::Infallible>(deadline, || Ok(is_free())).unwrap_or(false)
    }
}

/// The addresses of a reservation that one mapping occupies. Dropping this value makes the
/// addresses available to other mappings.
pub(crate) struct Place {
    reservation: Arc<Inner>,
    start: usize,
}

impl Place {
    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.reservation.context
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.reservation.mapped.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.start);
    }
}

impl Inner {
    fn occupy(self: &Arc<Self>, call: &'static str, range: Range<usize>) -> Result<Place, Misuse> {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        // No two ranges overlap, so only the last range that starts before `range.end` can overlap
        // `range`.
        if mapped.range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start) {
            return Err(Misuse::Occupied { call, start: range.start, end: range.end });
        }
        mapped.insert(range.start, range.end);
        Ok(Place { reservation: Arc::clone(self), start: range.start })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (base, bytes) = (self.base, self.bytes);
        retire(
            &self.context,
            [],
            Box::new(move || {
                // SAFETY: every mapping in the range kept this value alive, so nothing is mapped in
                // the range any more.
                let code = raw::api().map(|api| unsafe { api.cuMemAddressFree(base, bytes) });
                if let Err(error) = code.and_then(|code| raw::done("cuMemAddressFree", code)) {
                    tracing::warn!(%error, "reserved addresses were not released");
                }
            }),
        );
    }
}

/// Returns the range `start..start + bytes`. Fails if the range is empty or exceeds `len`.
pub(crate) fn range_of(call: &'static str, start: usize, bytes: usize, len: usize) -> Result<Range<usize>, Misuse> {
    match start.checked_add(bytes) {
        Some(end) if end <= len && bytes > 0 => Ok(start..end),
        _ => Err(Misuse::OutOfRange { call, start, end: start.saturating_add(bytes), len, unit: "bytes" }),
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} bytes at {:#x})", self.inner.bytes, self.inner.base)
    }
}
