//! Addresses at which kernels access a window: the memory of peers, multicast addresses, and
//! logical endpoints of a fabric (NCCL 2.29.2).
//!
//! `window.rs` registers windows. The host must not use these addresses: they are device addresses,
//! and other ranks write there.
//!
//! Invariant: an offset passed to NCCL lies inside the window, and no multicast address is queried
//! if multicast is disabled.

use std::ffi::{c_int, c_void};

use peerweave_driver::multicast_switch;
use peerweave_dylib::MissingSymbol;
use peerweave_types::Element;

use crate::library::error::{MisuseKind, NcclError};
use crate::member::state::Allowed;
use crate::memory::window::Window;
use crate::sys::{Api, ncclMultimemHandle_t, ncclResult_t, ncclWindow_t};
use crate::{DeviceTeam, MultimemHandle, Rank};

/// The address of a memory location in a fabric (CFT): a logical endpoint and an offset. Requires
/// NCCL 2.31.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogicalEndpoint {
    /// Number of the endpoint.
    pub id: u32,
    /// Offset of the location from the endpoint, in bytes.
    pub offset_bytes: usize,
}

impl<T: Element> Window<T> {
    /// Returns the address of element `offset` of a rank's window, for loads and stores of kernels
    /// on this rank's device. Returns `None` if kernels cannot access that rank. For this rank's
    /// own window the result differs from the memory's address, because NCCL maps the memory a
    /// second time. Requires NCCL 2.29.2.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for a rank that does not exist, or an offset outside of that rank's
    /// window or of this rank's window; [`NcclError::Unsupported`] with an older NCCL;
    /// [`NcclError::Dead`].
    pub fn peer_pointer(&self, rank: Rank, offset: usize) -> Result<Option<u64>, NcclError> {
        const CALL: &str = "ncclGetPeerDevicePointer";
        let peer = self.peer(CALL, rank)?;
        let offset = self.place(CALL, rank, offset)?;
        self.pointer(CALL, |api, window, out| {
            // SAFETY: the window is live inside the gate, the offset inside of it; the pointer is
            // to a live pointer.
            unsafe { api.ncclGetPeerDevicePointer(window, offset, peer, out) }
        })
    }

    /// Returns the same address as [`peer_pointer`](Self::peer_pointer), for a rank given by its
    /// index in [`lsa_team`](crate::Communicator::lsa_team). All ranks of that team are accessible.
    ///
    /// # Errors
    /// As for [`peer_pointer`](Self::peer_pointer), for an index that the team does not have.
    pub fn lsa_pointer(&self, index: usize, offset: usize) -> Result<Option<u64>, NcclError> {
        const CALL: &str = "ncclGetLsaDevicePointer";
        let team = self.communicator().lsa_team()?;
        let (lsa, rank) = member(CALL, "the index in the LSA team", team, index)?;
        let offset = self.place(CALL, rank, offset)?;
        self.pointer(CALL, |api, window, out| {
            // SAFETY: as above.
            unsafe { api.ncclGetLsaDevicePointer(window, offset, lsa, out) }
        })
    }

    /// Returns the address of element `offset` in the multicast of the LSA team, for multimem
    /// instructions of kernels; `None` if the hardware has none. Requires NCCL 2.29.2.
    ///
    /// # Errors
    /// [`NcclError::MulticastDisabled`] before NCCL is called; otherwise as for
    /// [`peer_pointer`](Self::peer_pointer), with the offset in this rank's window.
    pub fn lsa_multimem_pointer(&self, offset: usize) -> Result<Option<u64>, NcclError> {
        const CALL: &str = "ncclGetLsaMultimemDevicePointer";
        multicast_switch()?;
        let offset = inside::<T>(CALL, self.len_bytes() / size_of::<T>(), offset)?;
        self.pointer(CALL, |api, window, out| {
            // SAFETY: as above.
            unsafe { api.ncclGetLsaMultimemDevicePointer(window, offset, out) }
        })
    }

    /// Returns the same address as [`lsa_multimem_pointer`](Self::lsa_multimem_pointer), for a team
    /// for which a device communicator was created.
    ///
    /// # Errors
    /// As for [`lsa_multimem_pointer`](Self::lsa_multimem_pointer); [`NcclError::Misuse`] for the
    /// handle of a team without a multicast.
    pub fn multimem_pointer(&self, team: MultimemHandle, offset: usize) -> Result<Option<u64>, NcclError> {
        const CALL: &str = "ncclGetMultimemDevicePointer";
        multicast_switch()?;
        if team.address() == 0 {
            return Err(NcclError::misuse(CALL, MisuseKind::Context { why: "the handle belongs to a team without a multicast" }));
        }
        let handle = ncclMultimemHandle_t { mcBasePtr: std::ptr::with_exposed_provenance_mut(team.address() as usize) };
        let offset = inside::<T>(CALL, self.len_bytes() / size_of::<T>(), offset)?;
        self.pointer(CALL, |api, window, out| {
            // SAFETY: as above; NCCL only computes with the handle.
            unsafe { api.ncclGetMultimemDevicePointer(window, offset, handle, out) }
        })
    }

    /// Returns the logical endpoint of element `offset` of a rank's window. Requires NCCL 2.31.1.
    ///
    /// # Errors
    /// [`NcclError::Nccl`] if there is no fabric: see
    /// [`CommProperties::cft`](crate::CommProperties::cft); [`NcclError::Unsupported`] with an
    /// older NCCL; otherwise as for [`peer_pointer`](Self::peer_pointer).
    pub fn peer_endpoint(&self, rank: Rank, offset: usize) -> Result<LogicalEndpoint, NcclError> {
        const CALL: &str = "ncclGetPeerDeviceLeInfo";
        let peer = self.peer(CALL, rank)?;
        let offset = self.place(CALL, rank, offset)?;
        self.endpoint(CALL, |api, window, found| {
            // SAFETY: as above; the pointers are to live numbers.
            unsafe { api.ncclGetPeerDeviceLeInfo(window, offset, peer, &raw mut found.id, &raw mut found.offset_bytes) }
        })
    }

    /// Returns the logical endpoint of element `offset` in the window of a member of a fabric team,
    /// given its index in the team. Requires NCCL 2.31.1.
    ///
    /// # Errors
    /// As for [`peer_endpoint`](Self::peer_endpoint); also for an index that the team does not
    /// have, and for a team of another rank or communicator.
    pub fn cft_endpoint(&self, team: DeviceTeam, index: usize, offset: usize) -> Result<LogicalEndpoint, NcclError> {
        const CALL: &str = "ncclGetCftDeviceLeInfo";
        let raw = team.to_raw(CALL, self.communicator().rank(), self.communicator().n_ranks())?;
        let (peer, rank) = member(CALL, "the index in the fabric team", Some(team), index)?;
        let offset = self.place(CALL, rank, offset)?;
        self.endpoint(CALL, |api, window, found| {
            // SAFETY: as above.
            unsafe { api.ncclGetCftDeviceLeInfo(window, offset, peer, raw, &raw mut found.id, &raw mut found.offset_bytes) }
        })
    }

    /// Returns the logical endpoint of element `offset` of all windows that the fabric's multicast
    /// reaches. Requires NCCL 2.31.1.
    ///
    /// # Errors
    /// [`NcclError::MulticastDisabled`] before NCCL is called; otherwise as for
    /// [`peer_endpoint`](Self::peer_endpoint).
    pub fn multimem_endpoint(&self, offset: usize) -> Result<LogicalEndpoint, NcclError> {
        const CALL: &str = "ncclGetMultimemDeviceLeInfo";
        multicast_switch()?;
        let offset = inside::<T>(CALL, self.len_bytes() / size_of::<T>(), offset)?;
        self.endpoint(CALL, |api, window, found| {
            // SAFETY: as above.
            unsafe { api.ncclGetMultimemDeviceLeInfo(window, offset, &raw mut found.id, &raw mut found.offset_bytes) }
        })
    }

    fn pointer(
        &self,
        call: &'static str,
        ask: impl FnOnce(&'static Api, ncclWindow_t, *mut *mut c_void) -> Result<ncclResult_t, MissingSymbol>,
    ) -> Result<Option<u64>, NcclError> {
        let mut address: *mut c_void = std::ptr::null_mut();
        self.ask(call, |api, window| ask(api, window, &raw mut address))?;
        Ok(Some(address.expose_provenance() as u64).filter(|address| *address != 0))
    }

    fn endpoint(
        &self,
        call: &'static str,
        ask: impl FnOnce(&'static Api, ncclWindow_t, &mut LogicalEndpoint) -> Result<ncclResult_t, MissingSymbol>,
    ) -> Result<LogicalEndpoint, NcclError> {
        let mut found = LogicalEndpoint { id: 0, offset_bytes: 0 };
        self.ask(call, |api, window| ask(api, window, &mut found))?;
        Ok(found)
    }

    fn ask(
        &self,
        call: &'static str,
        function: impl FnOnce(&'static Api, ncclWindow_t) -> Result<ncclResult_t, MissingSymbol>,
    ) -> Result<(), NcclError> {
        let window = self.raw_handle();
        self.communicator().inner.call(call, Allowed::LIVE, |api, _| function(api, window))
    }

    /// Returns a rank of the communicator as a number for NCCL.
    fn peer(&self, call: &'static str, rank: Rank) -> Result<c_int, NcclError> {
        let ranks = self.communicator().n_ranks();
        match c_int::try_from(rank.get()) {
            Ok(peer) if rank.index() < ranks => Ok(peer),
            _ => Err(NcclError::misuse(call, MisuseKind::Rank { what: "the rank", found: rank, ranks })),
        }
    }

    /// Returns the offset of an element in a rank's window, in bytes.
    fn place(&self, call: &'static str, rank: Rank, offset: usize) -> Result<usize, NcclError> {
        // NCCL compares with the length of this rank's window, for every peer.
        inside::<T>(call, self.len_of(rank)?.min(self.len_bytes() / size_of::<T>()), offset)
    }
}

/// Returns the offset of an element in bytes, if it is one of `len`.
fn inside<T>(call: &'static str, len: usize, offset: usize) -> Result<usize, NcclError> {
    if offset < len {
        return Ok(offset * size_of::<T>());
    }
    let (found, expected) = (i64::try_from(offset).unwrap_or(i64::MAX), "less than the length of the window");
    Err(NcclError::misuse(call, MisuseKind::Value { what: "the offset", found, expected }))
}

/// Returns an index of a team as a number for NCCL, and the rank at that index.
fn member(call: &'static str, what: &'static str, team: Option<DeviceTeam>, index: usize) -> Result<(c_int, Rank), NcclError> {
    let found = c_int::try_from(index).ok().zip(team.and_then(|team| team.rank_of(index)));
    found.ok_or_else(|| {
        let (found, expected) = (i64::try_from(index).unwrap_or(i64::MAX), "less than the number of ranks of the team");
        NcclError::misuse(call, MisuseKind::Value { what, found, expected })
    })
}
