//! Mapped memory. A mapping keeps its memory and its reservation alive. The memory is unmapped when
//! the last handle is dropped and the streams that used the mapping have completed.
//!
//! Invariants: [M1] the memory and the addresses live as long as the mapping. [M2] Memory is
//! unmapped after all work on every stream that uses the mapping. [M3] No address is returned for a
//! device without rights.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use peerweave_driver::cudarc::driver::sys::{CUdeviceptr, CUmemGenericAllocationHandle, CUmemLocation};
use peerweave_driver::{Access, CudaContext, CudaStream, Keep, Streams, retire};
use peerweave_types::Element;

use crate::error::{Misuse, VmmError};
use crate::memory::access::Rights;
use crate::memory::buffer::buffers;
use crate::memory::physical::PhysicalMemory;
use crate::memory::reservation::Place;
use crate::raw::{self, AccessDescription, Location};

/// A handle to mapped memory. Clones are handles to the same mapping.
///
/// Dropping the last handle does not wait. The memory is unmapped later, when the streams that used
/// the memory have completed their work. [`peerweave_driver::drain_retired`] waits until the memory
/// is unmapped. Until then, the addresses of the mapping are occupied. If another library used the
/// memory on a per-thread stream, the memory stays mapped until the process ends.
#[derive(Clone)]
pub struct Mapping {
    inner: Arc<Inner>,
}

/// The source of a mapping: physical memory or a multicast object.
pub(crate) enum Source {
    Physical(PhysicalMemory),
    /// A multicast object. `_keep` keeps the driver's handle of the object alive.
    Multicast {
        handle: CUmemGenericAllocationHandle,
        _keep: Keep,
    },
}

impl Source {
    pub(crate) fn handle(&self) -> CUmemGenericAllocationHandle {
        match self {
            Self::Physical(memory) => memory.handle(),
            Self::Multicast { handle, .. } => *handle,
        }
    }
}

pub(crate) struct Inner {
    /// The source of the mapping, and the addresses that the mapping occupies. `None` only after
    /// `drop` has moved both to the thread that unmaps the memory.
    parts: Option<(Source, Place)>,
    address: CUdeviceptr,
    bytes: usize,
    context: Arc<CudaContext>,
    rights: Mutex<BTreeMap<usize, Rights>>,
    streams: Arc<Streams>,
    /// Whether the mapping is known not to be used by any stream. `streams` cannot show this,
    /// because other memory may share that list.
    is_unused: AtomicBool,
}

impl Mapping {
    pub(crate) fn new(place: Place, address: CUdeviceptr, bytes: usize, source: Source, streams: Arc<Streams>) -> Self {
        let context = Arc::clone(place.context());
        let is_unused = AtomicBool::new(false);
        let inner = Inner { parts: Some((source, place)), address, bytes, context, rights: Mutex::default(), streams, is_unused };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the first address of the mapping. While a handle to the mapping lives, the address
    /// is valid on the devices that have rights to the mapping. An access through the address is
    /// `unsafe`.
    pub fn address(&self) -> CUdeviceptr {
        self.inner.address
    }

    /// Returns the length of the mapping in bytes.
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// Sets the rights that `devices` have to the whole mapping. `devices` contains ordinals of
    /// devices.
    ///
    /// The rights of a device cannot be reduced while the device may use the memory.
    ///
    /// # Errors
    /// [`Misuse::Value`] if `devices` is empty. [`Misuse::Value`] also if a device would lose
    /// rights while another handle or a stream may use the memory. [`VmmError::Driver`] if a driver
    /// call fails. After a failed driver call, each device in `devices` counts as having the lesser
    /// of its old rights and its new rights.
    pub fn allow(&self, devices: &[usize], rights: Rights) -> Result<(), VmmError> {
        let call = "Mapping::allow";
        if devices.is_empty() {
            let (value, expected) = ("no device".into(), "at least one device".into());
            return Err(Misuse::Value { call, what: "devices", value, expected }.into());
        }
        let mut known = self.inner.rights.lock().unwrap_or_else(PoisonError::into_inner);
        // Another handle may pass the memory to a stream at any time.
        let may_be_in_use = Arc::strong_count(&self.inner) > 1 || !self.inner.streams.is_empty();
        if let Some(device) = devices.iter().find(|device| may_be_in_use && known.get(device).is_some_and(|has| *has > rights)) {
            let value = format!("{rights:?} for device {device}, whose present rights are {:?}", known[device]);
            let expected = "at least the present rights, because other handles or streams use the memory".into();
            return Err(Misuse::Value { call, what: "rights", value, expected }.into());
        }
        let descriptions: Vec<AccessDescription> = devices
            .iter()
            .map(|device| AccessDescription { location: Location::device(*device), flags: rights.flags() })
            .collect();
        raw::bind(&self.inner.context)?;
        let Inner { address, bytes, .. } = *self.inner;
        // SAFETY: the range is mapped while this mapping lives, and the array has
        // `descriptions.len()` entries.
        let code = unsafe { raw::api()?.cuMemSetAccess(address, bytes, descriptions.as_ptr().cast(), descriptions.len()) };
        let set = raw::done("cuMemSetAccess", code);
        for device in devices {
            let has = known.entry(*device).or_insert(Rights::None);
            // The driver may have changed some devices before it failed, so the lesser of both
            // rights is recorded.
            *has = if set.is_ok() { rights } else { rights.min(*has) };
        }
        set
    }

    /// Returns the rights that a device has to the mapping, according to the driver.
    ///
    /// # Errors
    /// [`VmmError::Driver`] if a driver call fails. [`VmmError::Unsupported`] if the driver reports
    /// rights that this crate does not know.
    pub fn rights(&self, device: usize) -> Result<Rights, VmmError> {
        let location = Location::device(device);
        let mut flags = 0;
        // SAFETY: both pointers are to live values of the driver's layout.
        let code = unsafe {
            raw::api()?.cuMemGetAccess(&raw mut flags, (&raw const location).cast::<CUmemLocation>(), self.inner.address)
        };
        raw::done("cuMemGetAccess", code)?;
        Rights::from_flags(flags).ok_or_else(|| VmmError::Unsupported {
            feature: "the combination of access rights that the driver reports",
            needs: "the flags PROT_NONE, PROT_READ or PROT_READWRITE".into(),
            found: format!("flags {flags}"),
        })
    }

    /// Returns the mapping as a device buffer of whole elements, for work that runs on device
    /// `device`. If the length of the mapping is not a multiple of the element size, the buffer
    /// does not include the remaining bytes.
    ///
    /// # Errors
    /// [`Misuse::Value`] if the device does not have [`Rights::ReadWrite`].
    pub fn memory<T: Element>(&self, device: usize) -> Result<MappedMemory<T>, VmmError> {
        // The lock is kept until the new handle exists, because `allow` counts handles.
        let known = self.inner.rights.lock().unwrap_or_else(PoisonError::into_inner);
        let rights = known.get(&device).copied();
        if rights != Some(Rights::ReadWrite) {
            let value = format!("{:?} for device {device}", rights.unwrap_or(Rights::None));
            let expected = "Rights::ReadWrite, which Mapping::allow gives to a device".into();
            return Err(Misuse::Value { call: "Mapping::memory", what: "rights", value, expected }.into());
        }
        let len = self.inner.bytes / size_of::<T>();
        Ok(MappedMemory { mapping: Arc::clone(&self.inner), device, start: 0, len, _elements: PhantomData })
    }

    /// Returns the mapped physical memory, or `None` for a multicast mapping.
    pub fn physical(&self) -> Option<&PhysicalMemory> {
        match &self.inner.parts.as_ref()?.0 {
            Source::Physical(memory) => Some(memory),
            Source::Multicast { .. } => None,
        }
    }

    /// Returns the address for work that runs on device `device` and is about to be enqueued on
    /// `stream`. The memory stays mapped until the stream has completed this work.
    ///
    /// If the work is captured into a graph, the graph must also own the value that
    /// [`keep`](Self::keep) returns. If the device has write access, [`memory`](Self::memory) also
    /// returns a typed buffer.
    ///
    /// # Errors
    /// [`Misuse::Value`] if the device has no rights.
    pub fn access(&self, device: usize, stream: &Arc<CudaStream>) -> Result<Access<'_>, VmmError> {
        // The lock is kept until the stream is recorded, because `allow` checks the recorded
        // streams.
        let known = self.inner.rights.lock().unwrap_or_else(PoisonError::into_inner);
        if known.get(&device).is_none_or(|rights| *rights == Rights::None) {
            let (value, expected) =
                (format!("none for device {device}"), "rights that Mapping::allow has given to the device".into());
            return Err(Misuse::Value { call: "Mapping::access", what: "rights", value, expected }.into());
        }
        self.note(stream);
        Ok(Access::new(self.address()))
    }

    /// Returns a value that keeps the memory mapped. A graph that uses the memory must own this
    /// value.
    pub fn keep(&self) -> Keep {
        // The lock is kept until the new handle exists, because `allow` counts handles.
        let _known = self.inner.rights.lock().unwrap_or_else(PoisonError::into_inner);
        keep_of(&self.inner)
    }

    /// Marks the mapping as used by no stream, so that the memory is unmapped without a wait for
    /// streams. The list `streams` cannot show this, because all memory of a heap shares the list.
    pub(crate) fn unused(&self) {
        self.inner.is_unused.store(true, Ordering::Release);
    }

    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        self.inner.streams.note(stream);
    }
}

/// Returns an owner that keeps the mapping alive: an `Arc` around a clone of `inner`. The clone
/// itself is not returned, because a `Weak` of it could be upgraded at any time. [`Mapping::allow`]
/// counts the clones of `inner` to find out whether other handles exist.
fn keep_of(inner: &Arc<Inner>) -> Keep {
    Arc::new(Arc::clone(inner))
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some((source, place)) = self.parts.take() else { return };
        let (address, bytes) = (self.address, self.bytes);
        let streams = if *self.is_unused.get_mut() { Vec::new() } else { self.streams.all() };
        retire(
            &self.context,
            streams,
            Box::new(move || {
                // SAFETY: only this mapping mapped the range, the last handle was dropped, and the
                // streams that used it have completed that work.
                let code = raw::api().map(|api| unsafe { api.cuMemUnmap(address, bytes) });
                match code.and_then(|code| raw::done("cuMemUnmap", code)) {
                    Ok(()) => drop((source, place)),
                    Err(error) => {
                        // The memory is still mapped, so the memory and the addresses must stay.
                        // They are forgotten before logging, because logging may panic.
                        std::mem::forget((source, place));
                        tracing::warn!(%error, "a mapping that could not be unmapped is leaked");
                    }
                }
            }),
        );
    }
}

/// A handle to mapped memory that one device uses as elements of type `T`. Clones and slices are
/// handles to the same mapping.
///
/// Two handles may be used on different streams. If the work on these streams races, the values of
/// the elements are unspecified, but the race is not undefined behavior.
pub struct MappedMemory<T> {
    mapping: Arc<Inner>,
    device: usize,
    start: usize,
    len: usize,
    _elements: PhantomData<fn() -> T>,
}

impl<T> MappedMemory<T> {
    /// Returns the address of the first element.
    pub fn address(&self) -> CUdeviceptr {
        self.mapping.address + (self.start * size_of::<T>()) as u64
    }

    /// Returns a handle to a part of the memory. The indices in `range` are indices of elements.
    ///
    /// # Errors
    /// [`Misuse::OutOfRange`] if the range exceeds the memory.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, VmmError> {
        let range = elements_of("MappedMemory::slice", range, self.len)?;
        Ok(Self {
            mapping: Arc::clone(&self.mapping),
            device: self.device,
            start: self.start + range.start,
            len: range.len(),
            _elements: PhantomData,
        })
    }

    fn device_of(&self) -> usize {
        self.device
    }

    fn note(&self, stream: &Arc<CudaStream>) {
        self.mapping.streams.note(stream);
    }

    fn keep_alive(&self) -> Keep {
        keep_of(&self.mapping)
    }
}

impl<T> Clone for MappedMemory<T> {
    fn clone(&self) -> Self {
        let Self { device, start, len, .. } = *self;
        Self { mapping: Arc::clone(&self.mapping), device, start, len, _elements: PhantomData }
    }
}

// [D1] `slice` keeps ranges inside the mapping, and the device has rights [M3]. [D2] is [M2]. [D3]
// `keep_alive` returns a handle of the mapping [M1].
buffers!(MappedMemory);

/// Checks that a range of elements is within `len`, and returns the range.
pub(crate) fn elements_of(call: &'static str, range: Range<usize>, len: usize) -> Result<Range<usize>, Misuse> {
    match range.start <= range.end && range.end <= len {
        true => Ok(range),
        false => Err(Misuse::OutOfRange { call, start: range.start, end: range.end, len, unit: "elements" }),
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rights = self.inner.rights.lock().unwrap_or_else(PoisonError::into_inner);
        write!(f, "Mapping({} bytes at {:#x}, rights {rights:?})", self.inner.bytes, self.inner.address)
    }
}
