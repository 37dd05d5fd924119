//! Windows: memory that all ranks register together, and to which any rank may write.
//!
//! `one_sided.rs` has operations on windows. `pointers.rs` has the addresses of windows for
//! kernels. `mem.rs` has memory for windows.
//!
//! # Invariants
//! - **[W1]** The memory of a window stays allocated until the window is unregistered on all ranks
//!   or the communicator is freed. Until then a peer may write to the memory.
//! - **[W2]** Dropping a window does not unregister the memory. The memory stays registered until
//!   the communicator is freed, because peers may still write to the memory. Freeing the memory
//!   earlier requires a collective call ([`Window::deregister`]).

use std::ffi::c_int;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use peerweave_driver::{CudaStream, DeviceBuffer, DeviceMemory, Keep, PrivateStream, deadline_after, relaxed};
use peerweave_types::Element;

use crate::comm::communicator::Communicator;
use crate::comm::complete::{end_group, enter_blocking_all, refuse_group};
use crate::library::error::{MisuseKind, NcclError};
use crate::member::enter_all::enter_all;
use crate::member::membership::Inner;
use crate::member::spans;
use crate::member::state::Allowed;
use crate::memory::register::{Place, Raw, meet, unregister};
use crate::sys::{self, ncclResult_t, ncclWindow_t, ncclWindow_vidmem};
use crate::{Rank, Version};

/// First version of NCCL in which the windows of the ranks may have different lengths. Older
/// versions compute addresses in a peer's window from the length of this rank's window, and
/// silently access a wrong address if the lengths differ.
const LENGTHS_DIFFER: Version = Version::new(2, 30, 7);

/// The intended use of a window. The default allows any use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowKind {
    flags: c_int,
    /// For the newest flag in `flags`: the version that introduced the flag, and the flag's name.
    /// `None` if `flags` has only flags that every version with windows supports.
    since: Option<(Version, &'static str)>,
}

impl WindowKind {
    /// The window can be used in every way.
    pub const DEFAULT: Self = Self { flags: sys::NCCL_WIN_DEFAULT, since: None };
    /// The window is used in collectives with NCCL's symmetric kernels. Every rank must pass
    /// buffers at the same offset in its window.
    pub const SYMMETRIC: Self = Self { flags: sys::NCCL_WIN_COLL_SYMMETRIC, since: None };
    /// Accesses from kernels to the window are strictly ordered. Requires NCCL 2.29.7.
    pub const STRICT_ORDERING: Self = Self::since(sys::NCCL_WIN_STRICT_ORDERING, "NCCL_WIN_STRICT_ORDERING", [2, 29, 7]);
    /// NCCL registers the window only for GPU-initiated networking (GIN). Requires NCCL 2.32.0.
    pub const GIN_ONLY: Self = Self::since(sys::NCCL_WIN_GIN_ONLY, "NCCL_WIN_GIN_ONLY", [2, 32, 0]);
    /// NCCL registers the window only for counted operations of the Compute Fabric Transport (CFT).
    /// Requires NCCL 2.32.0.
    pub const CFT_COUNTED: Self = Self::since(sys::NCCL_WIN_CFT_COUNTED, "NCCL_WIN_CFT_COUNTED", [2, 32, 0]);

    const fn since(flags: c_int, name: &'static str, [major, minor, patch]: [u8; 3]) -> Self {
        Self { flags, since: Some((Version::new(major, minor, patch), name)) }
    }

    /// Returns a kind that combines the uses of `self` and `other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        let since = match (self.since, other.since) {
            (Some((one, _)), Some((later, name))) if later.at_least(one) => Some((later, name)),
            (None, other) => other,
            (one, _) => one,
        };
        Self { flags: self.flags | other.flags, since }
    }
}

/// Memory for elements of type `T`, which all ranks of a communicator have registered together.
/// Clones are handles to the same window.
///
/// Dropping a window has no effect on other ranks. Other ranks may still write to the memory, which
/// stays allocated until the communicator has been freed. [`deregister`](Self::deregister)
/// unregisters the window earlier.
///
/// Only elements of type `T` can be written to the window:
///
/// ```compile_fail,E0308
/// # use std::sync::Arc;
/// # use peerweave_nccl::CudaStream;
/// # use peerweave_nccl::{Communicator, NcclError, NcclMem, Rank, Signal, Window};
/// # fn f(communicator: &Communicator, stream: &Arc<CudaStream>, mine: &NcclMem<f64>, theirs: &Window<f32>) -> Result<(), NcclError> {
/// communicator.put_signal(stream, mine, Rank::new(1), theirs, 0, Signal::default())
/// # }
/// ```
pub struct Window<T> {
    pub(crate) inner: Arc<Registered>,
    _elements: PhantomData<fn() -> T>,
}

/// This rank's memory that NCCL has registered as a window. All clones of a [`Window`] share this
/// value.
pub(crate) struct Registered {
    pub(crate) communicator: Communicator,
    handle: Raw<ncclWindow_vidmem>,
    /// Length of every rank's window in bytes.
    pub(crate) lens_bytes: Vec<u64>,
    pub(crate) device_address: u64,
    keep: Keep,
    /// Whether the memory must stay allocated until the communicator is freed, because peers may
    /// still write to the memory ([W1] of this module).
    is_deferred: bool,
}

impl Registered {
    /// Returns NCCL's handle of the window, for a call on the communicator `inner`.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] if the window belongs to a different communicator.
    pub(crate) fn used(&self, call: &'static str, inner: &Arc<Inner>) -> Result<ncclWindow_t, NcclError> {
        if !Arc::ptr_eq(&self.communicator.inner, inner) {
            let (found, expected) = (Arc::clone(&self.communicator.inner.name), Arc::clone(&inner.name));
            return Err(NcclError::misuse(call, MisuseKind::WrongCommunicator { what: "the window", found, expected }));
        }
        Ok(self.handle.0)
    }
}

impl Registered {
    /// Waits until no stream of this rank uses the window, and then makes NCCL unregister the
    /// window.
    fn give_back(&self, call: &'static str, end: Instant) -> Result<(), NcclError> {
        let handle = self.handle.0;
        unregister(call, &self.communicator, end, |api, comm| {
            // SAFETY: the communicator's handle is live inside the gate, and the window belongs to
            // this communicator. This is the only deregistration, because the callers consume the
            // window. No stream of this rank uses the window, and no graph can use it.
            unsafe { api.ncclCommWindowDeregister(comm, handle) }
        })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.is_deferred {
            self.communicator.inner.defer_free(Arc::clone(&self.keep));
        }
    }
}

impl<T: Element> Window<T> {
    /// Registers memory as a window. Returns `None` if NCCL does not support windows on this
    /// machine or for this memory. NCCL requires devices with peer access. The memory must come
    /// from NCCL's allocator ([`NcclMem`](crate::NcclMem)), or must have been allocated in the same
    /// way. Requires NCCL 2.27.3.
    ///
    /// # Collective
    /// All ranks must make this call, and must register their windows in the same order. A thread
    /// with several ranks calls [`register_all`](Self::register_all) instead. Before NCCL 2.30.7
    /// all ranks must pass memory of the same length.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for memory that is empty, is not on the communicator's device, or is
    /// not aligned to 4096 bytes. [`NcclError::Misuse`] for a borrowed slice, which cannot be kept
    /// alive. [`NcclError::Misuse`] on every rank if the ranks pass different lengths and NCCL is
    /// older than 2.30.7. [`NcclError::Unsupported`]. [`NcclError::Timeout`]. [`NcclError::Dead`].
    /// Errors that NCCL returns.
    pub fn register(
        communicator: &Communicator,
        memory: &impl DeviceBuffer<T>,
        kind: WindowKind,
    ) -> Result<Option<Self>, NcclError> {
        Self::register_all(&[(communicator, memory)], kind).map(|mut made| made.pop().flatten())
    }

    /// Registers memory like [`register`](Self::register), but for several ranks of this thread.
    /// The results are in the order of `members`.
    ///
    /// # Collective
    /// As for [`register`](Self::register).
    ///
    /// # Errors
    /// As for [`register`](Self::register).
    pub fn register_all(
        members: &[(&Communicator, &dyn DeviceBuffer<T>)],
        kind: WindowKind,
    ) -> Result<Vec<Option<Self>>, NcclError> {
        const CALL: &str = "Window::register";
        let Some((first, _)) = members.first() else { return Ok(Vec::new()) };
        let nccl = first.nccl();
        nccl.needs("ncclCommWindowRegister", Version::new(2, 27, 3))?;
        if let Some((since, flag)) = kind.since {
            nccl.needs(flag, since)?;
        }
        let mut places = Vec::new();
        for (communicator, memory) in members {
            places.push(Place::of(CALL, communicator, *memory)?);
            let address = places.last().map_or(0, |place| place.address);
            if address % sys::NCCL_WIN_REQUIRED_ALIGNMENT as u64 != 0 {
                let (found, expected) = (address as i64, "a multiple of 4096");
                return Err(NcclError::misuse(CALL, MisuseKind::Value { what: "the address of the memory", found, expected }));
            }
        }
        let communicators: Vec<_> = members.iter().map(|(communicator, _)| *communicator).collect();
        let slots: Vec<Box<AtomicPtr<ncclWindow_vidmem>>> = members.iter().map(|_| Box::default()).collect();
        communicators.iter().for_each(|communicator| communicator.inner.registered.add());
        let registered = together(CALL, &communicators, |index, inner| {
            let place = &places[index];
            let (pointer, len) = (place.pointer(), place.len_bytes as usize);
            // SAFETY: the handle is live inside the gate. The memory has `len` bytes and is kept
            // alive [W1]. The slot lives as long as NCCL may write to it.
            inner.nccl.code(CALL, |api| unsafe {
                api.ncclCommWindowRegister(inner.handle.get(), pointer, len, slots[index].as_ptr(), kind.flags)
            })
        });
        if let Err(error) = registered {
            // NCCL may still be registering the memory, or may have registered a part of the
            // memory. So all memory stays allocated.
            std::mem::forget((slots, places));
            return Err(error);
        }
        let handles: Vec<_> = slots.iter().map(|slot| slot.load(Ordering::Acquire)).collect();
        // Each window owns its memory before the next step can fail. From here on, dropping a
        // window keeps the memory allocated [W2].
        let mut made: Vec<Option<Registered>> = Vec::new();
        for ((communicator, handle), place) in communicators.iter().zip(handles).zip(places) {
            if handle.is_null() {
                communicator.inner.registered.remove();
            }
            made.push((!handle.is_null()).then(|| Registered {
                communicator: (*communicator).clone(),
                handle: Raw(handle),
                lens_bytes: Vec::new(),
                device_address: place.address,
                keep: place.keep,
                is_deferred: true,
            }));
        }
        // Every rank joins the exchange, with or without a window. Puts are checked against the
        // length of the target's window.
        let mine: Vec<u64> = made
            .iter()
            .zip(members)
            .map(|(made, (_, memory))| if made.is_some() { (memory.len() * size_of::<T>()) as u64 } else { 0 })
            .collect();
        let lens = exchange(&communicators, &mine)?;
        let differ = |lens: &Vec<u64>| lens.windows(2).any(|pair| pair[0] != pair[1] && !pair.contains(&0));
        if !nccl.version().at_least(LENGTHS_DIFFER) && lens.iter().any(differ) {
            // Every rank returns this error. Registered memory stays registered until the
            // communicators end [W2].
            let why = "the ranks passed different lengths; pass the same length on every rank, or use NCCL 2.30.7 or newer";
            return Err(NcclError::misuse(CALL, MisuseKind::Combination { what: "the length of the memory", why }));
        }
        let finish = |(made, lens_bytes): (Option<Registered>, Vec<u64>)| {
            let mut made = made?;
            made.lens_bytes = lens_bytes;
            Some(Self { inner: Arc::new(made), _elements: PhantomData })
        };
        Ok(made.into_iter().zip(lens).map(finish).collect())
    }

    /// Unregisters the window before the communicator ends. Waits until every rank has called this
    /// function, and has completed its puts and its earlier work on `stream`.
    ///
    /// # Collective
    /// All ranks must make this call, each in a separate thread or process.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] if a clone or a recorded call still uses the window.
    /// [`NcclError::Misuse`] if captured graphs still use the communicator, because the graphs may
    /// contain addresses in the window. [`NcclError::Timeout`]. [`NcclError::Dead`]. Errors that
    /// NCCL returns. After an error the window stays registered until the communicator ends.
    pub fn deregister(self, stream: &Arc<CudaStream>, deadline: Duration) -> Result<(), NcclError> {
        const CALL: &str = "Window::deregister";
        let mut registered = self.only_handle(CALL)?;
        let communicator = registered.communicator.clone();
        let _span = spans::of(&communicator.inner, CALL);
        let end = deadline_after(deadline);
        meet(CALL, &communicator, stream, end)?;
        registered.give_back(CALL, end)?;
        registered.is_deferred = false;
        Ok(())
    }

    /// Unregisters only this rank's window. Waits until this rank's work on the communicator is
    /// complete. Other ranks need not call this function.
    ///
    /// This call frees NCCL's tables for the window, but not the memory. Peers may still write to
    /// the memory, so the memory stays allocated until the communicator ends. In contrast,
    /// [`deregister`](Self::deregister) allows the memory to be freed. A peer must not put into
    /// this window after this call, because NCCL does not define the result.
    ///
    /// # Errors
    /// As for [`deregister`](Self::deregister).
    pub fn deregister_local(self, deadline: Duration) -> Result<(), NcclError> {
        const CALL: &str = "Window::deregister_local";
        let registered = self.only_handle(CALL)?;
        let _span = spans::of(&registered.communicator.inner, CALL);
        registered.give_back(CALL, deadline_after(deadline))
    }

    /// Consumes the window, and returns its registration. Fails if a clone, a recorded call or a
    /// captured graph still uses the window.
    fn only_handle(self, call: &'static str) -> Result<Registered, NcclError> {
        let why = "a clone, a recorded call or a captured graph still uses the window; drop all users of the window first";
        Arc::into_inner(self.inner).ok_or_else(|| NcclError::misuse(call, MisuseKind::Context { why }))
    }

    /// Returns the number of elements in the window of `rank`, or 0 if `rank` has no window.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for a rank that does not exist.
    pub fn len_of(&self, rank: Rank) -> Result<usize, NcclError> {
        let wrong = || {
            let ranks = self.inner.lens_bytes.len();
            NcclError::misuse("Window::len_of", MisuseKind::Rank { what: "the rank", found: rank, ranks })
        };
        self.inner.lens_bytes.get(rank.index()).map(|bytes| *bytes as usize / size_of::<T>()).ok_or_else(wrong)
    }

    /// Returns the address of the memory that this rank has registered. NCCL reports the address.
    /// Requires NCCL 2.29.2.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`]; [`NcclError::Dead`]; errors that NCCL returns.
    pub fn user_address(&self) -> Result<u64, NcclError> {
        const CALL: &str = "ncclWinGetUserPtr";
        let window = self.raw_handle();
        let pointer =
            self.inner.communicator.inner.call_into(CALL, Allowed::LIVE, std::ptr::null_mut(), |api, comm, place| {
                // SAFETY: the communicator and the window are live inside the gate. `place` is
                // live.
                unsafe { api.ncclWinGetUserPtr(comm, window, place) }
            })?;
        Ok(pointer.expose_provenance() as u64)
    }

    /// Returns the communicator with which the window was registered.
    pub fn communicator(&self) -> &Communicator {
        &self.inner.communicator
    }

    /// Returns the length of this rank's window in bytes.
    pub(crate) fn len_bytes(&self) -> usize {
        self.inner.lens_bytes.get(self.communicator().rank().index()).map_or(0, |bytes| *bytes as usize)
    }

    /// Returns NCCL's handle for the window.
    pub(crate) fn raw_handle(&self) -> ncclWindow_t {
        self.inner.handle.0
    }

    /// Returns NCCL's handle for the window, for kernels that are linked with NCCL's device code.
    /// The handle is valid while the window is registered.
    pub fn device_handle(&self) -> u64 {
        self.raw_handle().expose_provenance() as u64
    }
}

impl<T> Clone for Window<T> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), _elements: PhantomData }
    }
}

impl<T> fmt::Debug for Window<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, inner) = (std::any::type_name::<T>(), &self.inner);
        let (address, lens_bytes, communicator) = (inner.device_address, &inner.lens_bytes, &inner.communicator.inner.name);
        write!(f, "Window of {name} at {address:#x}, {lens_bytes:?} bytes, of {communicator}")
    }
}

/// Calls `each` once for each communicator, within one group of NCCL. Waits until NCCL has finished
/// the group on the host.
fn together(
    call: &'static str,
    communicators: &[&Communicator],
    mut each: impl FnMut(usize, &Inner) -> Result<ncclResult_t, NcclError>,
) -> Result<(), NcclError> {
    let _span = spans::of_many(call, communicators.len());
    let inside = enter_all(call, Allowed::LIVE, communicators.iter().map(|communicator| &communicator.inner))?;
    let (nccl, deadline) = (communicators[0].nccl(), communicators[0].deadline());
    for (inner, _) in inside.iter() {
        inner.bind()?;
    }
    // SAFETY: the group is ended below on every path.
    nccl.call("ncclGroupStart", |api| unsafe { api.ncclGroupStart() })?;
    let (mut first_error, mut is_ours) = (None, false);
    for (index, communicator) in communicators.iter().enumerate() {
        let inner = &communicator.inner;
        let open = inner.bind().and_then(|()| inner.check_open(call));
        match open.and_then(|()| relaxed(|| each(index, inner))) {
            Ok(ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress) => continue,
            Ok(code) => first_error = Some(inner.failure(call, code)),
            Err(error) => (first_error, is_ours) = (Some(error), true),
        }
        break;
    }
    if is_ours {
        refuse_group(nccl);
    } else if first_error.is_none()
        && let Err(error) = enter_blocking_all(call, &inside)
    {
        refuse_group(nccl);
        (first_error, is_ours) = (Some(error), true);
    }
    // SAFETY: this thread started the group.
    let ended = relaxed(|| nccl.code("ncclGroupEnd", |api| unsafe { api.ncclGroupEnd() }));
    let ended = end_group(call, nccl, ended, inside, is_ours, deadline);
    first_error.map_or(ended, Err)
}

/// Sends one number from each rank to all ranks. `communicators` contains the ranks of this thread,
/// and `mine` contains the numbers of these ranks. For each of these ranks, returns the numbers of
/// all ranks in rank order. Waits for at most the deadline of the communicators.
fn exchange(communicators: &[&Communicator], mine: &[u64]) -> Result<Vec<Vec<u64>>, NcclError> {
    let start = Instant::now();
    let Some(first) = communicators.first() else { return Ok(Vec::new()) };
    let mut places = Vec::new();
    for (communicator, mine) in communicators.iter().zip(mine) {
        let stream = PrivateStream::new(communicator.context())?;
        let mut numbers = vec![0u64; communicator.n_ranks()];
        numbers[communicator.rank().index()] = *mine;
        places.push((DeviceMemory::from_slice(&stream, &numbers)?, stream));
    }
    first.nccl().group(|group| {
        for (communicator, (numbers, stream)) in communicators.iter().zip(&mut places) {
            group.all_gather_in_place(communicator, stream, numbers)?;
        }
        Ok(())
    })?;
    let mut all = Vec::new();
    for (communicator, (numbers, stream)) in communicators.iter().zip(&places) {
        communicator.wait(stream, communicator.deadline().saturating_sub(start.elapsed()))?;
        all.push(numbers.to_vec(stream)?);
    }
    Ok(all)
}
