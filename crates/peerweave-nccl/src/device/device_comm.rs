//! Device communicators: the state that a kernel needs to communicate without the host (requires
//! NCCL 2.30.3).
//!
//! `requirements.rs` has the requirements of device communicators. Kernels are linked with NCCL's
//! own device code.
//!
//! # Invariants
//! - **[D1]** The bytes of a device communicator do not move while NCCL may write to them.
//! - **[D2]** A device communicator keeps its communicator alive. So the resources to which the
//!   bytes point exist as long as the device communicator.

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

/// The state that a kernel needs to communicate without the host. The state consists of bytes that
/// only NCCL's device code interprets.
///
/// Dropping a device communicator does not call NCCL. NCCL frees the resources of a dropped device
/// communicator together with its [`Communicator`]. [`destroy`](Self::destroy) frees the resources
/// immediately.
pub struct DeviceCommunicator {
    communicator: Communicator,
    bytes: Storage,
    buffers: Vec<u32>,
    multimem: Vec<MultimemHandle>,
}

/// Multicast address of a team, for kernels and for
/// [`Window::multimem_pointer`](crate::Window::multimem_pointer). The address is 0 if the hardware
/// has no multicast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultimemHandle(u64);

impl MultimemHandle {
    /// Returns the multicast address, or 0 if the hardware has no multicast. Only multimem
    /// instructions in kernels may use the address.
    pub fn address(self) -> u64 {
        self.0
    }
}

/// Memory into which NCCL writes the bytes of a device communicator. The memory is allocated as
/// `u64` for the alignment. All bytes are initially zero, so reading any byte is defined.
///
/// The memory is a separate allocation, because NCCL writes through a pointer to the bytes until
/// the device communicator has been created. So the bytes do not move when this value is moved
/// [D1].
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
        // SAFETY: at least `len_bytes` bytes were allocated. All of these bytes are initialised,
        // and no thread writes them any more.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len_bytes) }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let words = std::ptr::slice_from_raw_parts_mut(self.words.as_ptr(), self.len_bytes.div_ceil(8).max(1));
        // SAFETY: `new` leaked this allocation, and it is freed only here.
        drop(unsafe { Box::from_raw(words) });
    }
}

impl DeviceCommunicator {
    /// Creates a device communicator.
    ///
    /// # Collective
    /// All ranks must make this call with the same requirements. Every rank must create its device
    /// communicators in the same order. A thread cannot make the calls of several ranks one after
    /// the other. Use one thread for each rank.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] before NCCL 2.30.3, and for requirements that the library does
    /// not support. [`NcclError::Misuse`] for numbers that NCCL would refuse, or for a team that
    /// was created for a different rank or communicator. [`NcclError::MulticastDisabled`] if the
    /// requirements need multicast objects, and multicast objects are disabled in this process.
    /// [`NcclError::Nccl`] if the hardware does not support device communicators.
    /// [`CommProperties::device_api`](crate::CommProperties::device_api) returns whether the
    /// hardware supports device communicators. [`NcclError::Timeout`] at the communicator's
    /// deadline, after which the communicator is aborted. [`NcclError::Dead`].
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
        // If the call fails or panics, NCCL may still use both values, so they are leaked.
        let bytes = ManuallyDrop::new(Storage::new(len_bytes));
        let raw = ManuallyDrop::new(raw);
        let destination = bytes.words;
        inner.call(CALL, Allowed::LIVE, |api, comm| {
            // SAFETY: the handle is live inside the gate. NCCL reads the requirements only during
            // this function. NCCL may write the output fields of the requirements, and the bytes,
            // until the call is complete. Neither moves before that [D1].
            unsafe { api.ncclDevCommCreate(comm, raw.as_ptr(), destination.as_ptr().cast()) }
        })?;
        let bytes = ManuallyDrop::into_inner(bytes);
        let (buffers, multimem) = RawRequirements::filled(ManuallyDrop::into_inner(raw));
        let multimem = multimem.into_iter().map(|handle| MultimemHandle(handle.mcBasePtr as u64)).collect();
        Ok(Self { communicator: communicator.clone(), bytes, buffers, multimem })
    }

    /// Returns the bytes of NCCL's `ncclDevComm` struct. Pass the bytes to a kernel by value, or
    /// copy them to the device and pass a pointer. The bytes are opaque.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.bytes()
    }

    /// Returns the communicator from which this device communicator was created.
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// Returns the handle of the buffer that has this index in the requirements. NCCL's device
    /// functions take the handle as a parameter. Returns `None` if there is no such buffer.
    pub fn buffer_handle(&self, index: usize) -> Option<u32> {
        self.buffers.get(index).copied()
    }

    /// Returns the offset, in bytes, of a buffer in the device communicator's window. `index` is
    /// the buffer's index among the buffers of the [`DeviceCommRequirements`]. Returns `None` if
    /// there is no such buffer.
    pub fn buffer_offset_bytes(&self, index: usize) -> Option<usize> {
        // A handle is an offset in units of 128 bytes, as in NCCL's headers.
        self.buffers.get(index).map(|handle| *handle as usize * 128)
    }

    /// Returns the handle of the team that has this index in the requirements, or `None` if there
    /// is no such team. The address in the handle is 0 if the hardware has no multicast.
    pub fn multimem_handle(&self, index: usize) -> Option<MultimemHandle> {
        self.multimem.get(index).copied()
    }

    /// Frees the resources of the device communicator: buffers, barriers and network contexts. Does
    /// not wait for other ranks.
    ///
    /// ```compile_fail,E0133
    /// # fn f(device: peerweave_nccl::DeviceCommunicator) -> Result<(), peerweave_nccl::NcclError> {
    /// device.destroy() // only the caller knows whether a kernel still uses it
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`NcclError::Dead`] if the communicator has been aborted or finalized. In this case the
    /// resources have already been freed. [`NcclError::Nccl`] if NCCL returns an error.
    ///
    /// # Safety
    /// No kernel that uses the device communicator is running. This includes kernels of other ranks
    /// that access this rank's resources by loads, stores or the network.
    pub unsafe fn destroy(self) -> Result<(), NcclError> {
        let inner = &self.communicator.inner;
        let _span = spans::of(inner, "ncclDevCommDestroy");
        let bytes = self.bytes.words.as_ptr();
        // SAFETY: the bytes belong to a device communicator of this live handle. The caller
        // guarantees that no kernel uses the device communicator.
        inner.call("ncclDevCommDestroy", Allowed::OPEN, |api, comm| unsafe {
            api.ncclDevCommDestroy(comm, bytes.cast_const().cast())
        })
    }
}

impl fmt::Debug for DeviceCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len_bytes, name) = (self.bytes.len_bytes, &self.communicator.inner.name);
        write!(f, "DeviceCommunicator({len_bytes} bytes, of {name})")
    }
}

/// Selects the ranks of a fabric team. Requires NCCL 2.31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CftTeam {
    /// All ranks that belong to the fabric of NCCL's Compute Fabric Transport (CFT).
    Flat,
    /// The ranks that the fabric's multicast reaches.
    Multimem,
    /// The ranks that access each other by loads and stores.
    Lsa,
}

impl Communicator {
    /// Returns the team that consists of all ranks.
    pub fn world_team(&self) -> DeviceTeam {
        DeviceTeam::world(self.n_ranks(), self.rank())
    }

    /// Returns the LSA team: this rank and the ranks whose memory this rank's kernels access by
    /// loads and stores. Returns `None` if the communicator does not support device communicators,
    /// because NCCL does not know the LSA team in this case. Requires NCCL 2.28.3.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] with an older NCCL; [`NcclError::Dead`].
    pub fn lsa_team(&self) -> Result<Option<DeviceTeam>, NcclError> {
        // SAFETY: the handle is live.
        self.team("ncclTeamLsa", |api, comm| unsafe { api.ncclTeamLsa(comm) })
    }

    /// Returns the rail team: the ranks that have the same index in their LSA teams as this rank
    /// has in its own LSA team. Requires NCCL 2.28.3.
    ///
    /// # Errors
    /// As for [`lsa_team`](Self::lsa_team).
    pub fn rail_team(&self) -> Result<Option<DeviceTeam>, NcclError> {
        // SAFETY: the handle is live.
        self.team("ncclTeamRail", |api, comm| unsafe { api.ncclTeamRail(comm) })
    }

    /// Returns the team of NCCL's Compute Fabric Transport (CFT) that `which` selects. Returns
    /// `None` if there is no such fabric. Requires NCCL 2.31.
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
