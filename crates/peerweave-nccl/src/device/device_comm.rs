//! Device communicators: the state that a kernel needs to communicate by itself (NCCL 2.30.3).
//!
//! `requirements.rs` has their requirements. The device side, which is linked into kernels, is
//! NCCL's own.
//!
//! # Invariants
//! - **[D1]** The bytes are not moved from before NCCL gets their address until NCCL has finished
//!   with them.
//! - **[D2]** A device communicator keeps its communicator alive, so the resources to which its
//!   bytes point exist as long as it does.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::comm::communicator::Communicator;
use crate::config::of_communicator::Found;
use crate::device::requirements::{DeviceCommRequirements, RawRequirements};
use crate::library::error::NcclError;
use crate::member::membership::Inner;
use crate::member::spans;
use crate::member::state::Allowed;
use crate::sys::{Api, ncclCftTeamMode_t, ncclComm_t, ncclTeam_t};
use crate::{DeviceTeam, Version};

/// The state that a kernel needs to communicate by itself: bytes that only NCCL's device code
/// interprets.
///
/// Dropping it does not call NCCL: its resources are freed with the communicator.
/// [`destroy`](Self::destroy) frees them immediately.
pub struct DeviceCommunicator {
    communicator: Communicator,
    bytes: Storage,
    buffers: Vec<u32>,
    multimem: Vec<MultimemHandle>,
}

/// The multicast address of a team, for kernels and windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultimemHandle(u64);

impl MultimemHandle {
    /// Returns the address. Only multimem instructions of kernels may use it; 0 if the hardware has
    /// none.
    pub fn address(self) -> u64 {
        self.0
    }
}

/// Bytes that NCCL writes, allocated as `u64` for their alignment. Initially zero, so that reading
/// any of them is defined.
///
/// Allocated separately, because NCCL keeps a pointer to them during the call [D1].
struct Storage {
    words: NonNull<u64>,
    len_bytes: usize,
}

// SAFETY: the shared bytes are not written after the device communicator is created, so no
// synchronisation is needed. A failure would be caught by the test
// `threads_share_a_device_communicator`.
unsafe impl Send for Storage {}
// SAFETY: as above.
unsafe impl Sync for Storage {}

impl Storage {
    fn new(len_bytes: usize) -> Self {
        let words: &'static mut [u64] = Box::leak(vec![0; len_bytes.div_ceil(8).max(1)].into_boxed_slice());
        Self { words: NonNull::from(words).cast(), len_bytes }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: at least that many bytes were allocated, all of them are initialised, and they
        // are not written any more.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len_bytes) }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let words = std::ptr::slice_from_raw_parts_mut(self.words.as_ptr(), self.len_bytes.div_ceil(8).max(1));
        // SAFETY: this is what `new` leaked, and it is freed only here.
        drop(unsafe { Box::from_raw(words) });
    }
}

impl DeviceCommunicator {
    /// Creates a device communicator.
    ///
    /// # Collective
    /// Every rank, with the same requirements and at the same position among its calls. A thread
    /// with several ranks cannot call it for one after the other: use a thread for each rank.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] before NCCL 2.30.3, and for requirements that the library does
    /// not support. [`NcclError::Misuse`] for numbers that NCCL would refuse, or a team that does
    /// not belong to this rank of this communicator. [`NcclError::MulticastDisabled`] if the
    /// requirements need multicast objects. [`NcclError::Nccl`] if the hardware lacks support: see
    /// [`Communicator::properties`]. [`NcclError::Timeout`] at the communicator's deadline, after
    /// which it is aborted. [`NcclError::Dead`].
    pub fn create(communicator: &Communicator, requirements: &DeviceCommRequirements) -> Result<Self, NcclError> {
        const CALL: &str = "ncclDevCommCreate";
        let inner = &communicator.inner;
        let _span = spans::of(inner, CALL);
        let found = Found { call: "DeviceCommunicator::create", version: inner.nccl.version(), path: &inner.nccl.shared_path() };
        let (raw, len_bytes) = requirements.to_raw(&found, inner.rank, inner.n_ranks)?;
        let len_bytes = match len_bytes {
            Some(len_bytes) => len_bytes,
            None => communicator.properties()?.device_comm_len_bytes().unwrap_or(0),
        };
        // If the call fails or panics, NCCL may still use both: they then stay allocated forever.
        let bytes = ManuallyDrop::new(Storage::new(len_bytes));
        let raw = ManuallyDrop::new(raw);
        let destination = bytes.words;
        inner.call(CALL, Allowed::LIVE, |api, comm| {
            // SAFETY: the handle is live inside the gate. NCCL reads the requirements only during
            // this function. It may write their output fields and the bytes until the call is
            // complete. All of them stay in place until then [D1].
            unsafe { api.ncclDevCommCreate(comm, raw.as_ptr(), destination.as_ptr().cast()) }
        })?;
        let bytes = ManuallyDrop::into_inner(bytes);
        let (buffers, multimem) = RawRequirements::filled(ManuallyDrop::into_inner(raw));
        let multimem = multimem.into_iter().map(|handle| MultimemHandle(handle.mcBasePtr as u64)).collect();
        Ok(Self { communicator: communicator.clone(), bytes, buffers, multimem })
    }

    /// Returns the bytes of the `ncclDevComm`. Pass them to a kernel by value, or copy them to the
    /// device and pass a pointer. The bytes are opaque.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.bytes()
    }

    /// Returns the communicator from which this device communicator was created.
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// Returns the handle of the buffer with this index in the requirements: a number that NCCL's
    /// device functions take.
    pub fn buffer_handle(&self, index: usize) -> Option<u32> {
        self.buffers.get(index).copied()
    }

    /// Returns the offset, in bytes, of the buffer with this index in the requirements, from the
    /// start of the device communicator's own window.
    pub fn buffer_offset_bytes(&self, index: usize) -> Option<usize> {
        // A handle is an offset in units of 128 bytes, as in NCCL's headers.
        self.buffers.get(index).map(|handle| *handle as usize * 128)
    }

    /// Returns the multicast address of the team with this index in the requirements.
    pub fn multimem_handle(&self, index: usize) -> Option<MultimemHandle> {
        self.multimem.get(index).copied()
    }

    /// Frees the device communicator's resources: buffers, barriers, network contexts. Local.
    ///
    /// ```compile_fail,E0133
    /// # fn f(device: peerweave_nccl::DeviceCommunicator) -> Result<(), peerweave_nccl::NcclError> {
    /// device.destroy() // only the caller knows that no kernel uses it
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`NcclError::Dead`] if the communicator has freed them already; [`NcclError::Nccl`].
    ///
    /// # Safety
    /// No kernel that uses it is running, on this rank or on another rank that accesses it by
    /// loads, stores or the network.
    pub unsafe fn destroy(self) -> Result<(), NcclError> {
        let inner = &self.communicator.inner;
        let _span = spans::of(inner, "ncclDevCommDestroy");
        let bytes = self.bytes.words.as_ptr();
        // SAFETY: the bytes are those of a device communicator of this live handle; that nothing
        // uses it is the caller's promise.
        inner.call("ncclDevCommDestroy", Allowed::OPEN, |api, comm| unsafe {
            api.ncclDevCommDestroy(comm, bytes.cast_const().cast())
        })
    }
}

impl fmt::Debug for DeviceCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceCommunicator({} bytes, of {})", self.bytes.len_bytes, self.communicator.inner.name)
    }
}

/// The ranks of a team of the fabric. Requires NCCL 2.31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CftTeam {
    /// All ranks of the fabric.
    Flat,
    /// Ranks that a multicast reaches.
    Multimem,
    /// Ranks accessible by loads and stores.
    Lsa,
}

impl Communicator {
    /// Returns the team of all ranks.
    pub fn world_team(&self) -> DeviceTeam {
        DeviceTeam::world(self.n_ranks(), self.rank())
    }

    /// Returns the ranks accessible by loads and stores, including this one; `None` if NCCL does
    /// not know them because device communicators are not supported. Requires NCCL 2.28.3.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] with an older NCCL; [`NcclError::Dead`].
    pub fn lsa_team(&self) -> Result<Option<DeviceTeam>, NcclError> {
        // SAFETY: the handle is live.
        self.team("ncclTeamLsa", |api, comm| unsafe { api.ncclTeamLsa(comm) })
    }

    /// Returns the ranks that have the same index as this one in each LSA team. Requires NCCL
    /// 2.28.3.
    ///
    /// # Errors
    /// As for [`lsa_team`](Self::lsa_team).
    pub fn rail_team(&self) -> Result<Option<DeviceTeam>, NcclError> {
        // SAFETY: the handle is live.
        self.team("ncclTeamRail", |api, comm| unsafe { api.ncclTeamRail(comm) })
    }

    /// Returns the ranks of the fabric; `None` if there is no fabric. Requires NCCL 2.31.
    ///
    /// # Errors
    /// As for [`lsa_team`](Self::lsa_team).
    pub fn cft_team(&self, which: CftTeam) -> Result<Option<DeviceTeam>, NcclError> {
        self.inner.nccl.needs("ncclTeamCft", Version::new(2, 31, 0))?;
        let mode = match which {
            CftTeam::Flat => ncclCftTeamMode_t::NCCL_CFT_TEAM_FLAT,
            CftTeam::Multimem => ncclCftTeamMode_t::NCCL_CFT_TEAM_HIER_MULTIMEM,
            CftTeam::Lsa => ncclCftTeamMode_t::NCCL_CFT_TEAM_HIER_LSA,
        };
        // SAFETY: the handle is live.
        self.team("ncclTeamCft", |api, comm| unsafe { api.ncclTeamCft(comm, mode) })
    }

    fn team(
        &self,
        call: &'static str,
        ask: impl FnOnce(&'static Api, ncclComm_t) -> Result<ncclTeam_t, peerweave_dylib::MissingSymbol>,
    ) -> Result<Option<DeviceTeam>, NcclError> {
        let inner: &Inner = &self.inner;
        let _inside = inner.enter(call, Allowed::LIVE)?;
        inner.bind()?;
        let raw = inner.nccl.code(call, |api| ask(api, inner.handle.get()))?;
        Ok(DeviceTeam::from_raw(raw, inner.rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_comm_bytes_are_zeroed_and_aligned() {
        for len_bytes in [0, 1, 240, 248] {
            let storage = Storage::new(len_bytes);
            assert_eq!(storage.bytes(), vec![0; len_bytes]);
            assert_eq!(storage.words.as_ptr() as usize % 8, 0);
        }
    }
}
