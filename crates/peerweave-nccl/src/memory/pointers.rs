//! Addresses at which kernels access a window: the memory of peers, multicast addresses, and
//! logical endpoints of a fabric. Requires NCCL 2.29.2.
//!
//! `window.rs` registers windows. Host code must not access these addresses, because they are
//! device addresses to which other ranks write.
//!
//! Invariant: an offset passed to NCCL lies inside the window. If multicast is disabled in this
//! process, no multicast address is queried.

use std::ffi::{c_int, c_void};

use peerweave_driver::multicast_switch;
use peerweave_dylib::MissingSymbol;
use peerweave_types::Element;

use crate::library::error::{MisuseKind, NcclError};
use crate::member::state::Allowed;
use crate::memory::window::Window;
use crate::sys::{Api, ncclMultimemHandle_t, ncclResult_t, ncclWindow_t};
use crate::{DeviceTeam, MultimemHandle, Rank};

/// Address of a memory location in a fabric (CFT). The address consists of a logical endpoint and
/// an offset. Requires NCCL 2.31.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogicalEndpoint {
    /// Number by which NCCL identifies the logical endpoint in the fabric.
    pub id: u32,
    /// Offset of the memory location, in bytes, counted from the start of the logical endpoint.
    pub offset_bytes: usize,
}

impl<T: Element> Window<T> {
    /// Returns an address of element `offset` in the window of `rank`. Kernels on this rank's
    /// device load and store at this address. Returns `None` if these kernels cannot access the
    /// window of `rank` by loads and stores. For this rank's own window, the result differs from
    /// the memory's address, because NCCL maps the memory a second time. Requires NCCL 2.29.2.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for a rank that does not exist. [`NcclError::Misuse`] for an offset
    /// that is outside the window of `rank` or outside this rank's window.
    /// [`NcclError::Unsupported`] with an older NCCL. [`NcclError::Dead`]. Errors that NCCL
    /// returns.
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

    /// Returns an address like [`peer_pointer`](Self::peer_pointer), for the window of the rank
    /// that has the index `index` in [`lsa_team`](crate::Communicator::lsa_team). Kernels can
    /// access the windows of all ranks in this team.
    ///
    /// # Errors
    /// As for [`peer_pointer`](Self::peer_pointer). [`NcclError::Misuse`] also for an index that
    /// the team does not have.
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

    /// Returns the multicast address at which multimem instructions in kernels access element
    /// `offset` on all ranks of the LSA team. Returns `None` if the hardware has no multicast.
    /// Requires NCCL 2.29.2.
    ///
    /// # Errors
    /// [`NcclError::MulticastDisabled`] if multicast is disabled in this process.
    /// [`NcclError::Misuse`] for an offset that is outside this rank's window.
    /// [`NcclError::Unsupported`] with an older NCCL. [`NcclError::Dead`]. Errors that NCCL
    /// returns.
    pub fn lsa_multimem_pointer(&self, offset: usize) -> Result<Option<u64>, NcclError> {
        const CALL: &str = "ncclGetLsaMultimemDevicePointer";
        multicast_switch()?;
        let offset = inside::<T>(CALL, self.len_bytes() / size_of::<T>(), offset)?;
        self.pointer(CALL, |api, window, out| {
            // SAFETY: as above.
            unsafe { api.ncclGetLsaMultimemDevicePointer(window, offset, out) }
        })
    }

    /// Returns the multicast address of element `offset` like
    /// [`lsa_multimem_pointer`](Self::lsa_multimem_pointer), but for the team to which the handle
    /// `team` belongs.
    /// [`DeviceCommunicator::multimem_handle`](crate::DeviceCommunicator::multimem_handle) returns
    /// the handle.
    ///
    /// # Errors
    /// As for [`lsa_multimem_pointer`](Self::lsa_multimem_pointer). [`NcclError::Misuse`] also if
    /// the address in `team` is 0, which means that the hardware has no multicast.
    pub fn multimem_pointer(&self, team: MultimemHandle, offset: usize) -> Result<Option<u64>, NcclError> {
        const CALL: &str = "ncclGetMultimemDevicePointer";
        multicast_switch()?;
        if team.address() == 0 {
            return Err(NcclError::misuse(
                CALL,
                MisuseKind::Context { why: "the handle is null, because the hardware has no multicast" },
            ));
        }
        let handle = ncclMultimemHandle_t { mcBasePtr: std::ptr::with_exposed_provenance_mut(team.address() as usize) };
        let offset = inside::<T>(CALL, self.len_bytes() / size_of::<T>(), offset)?;
        self.pointer(CALL, |api, window, out| {
            // SAFETY: as above; NCCL only computes with the handle.
            unsafe { api.ncclGetMultimemDevicePointer(window, offset, handle, out) }
        })
    }

    /// Returns the fabric address of element `offset` in the window of `rank`. Requires NCCL
    /// 2.31.1.
    ///
    /// # Errors
    /// [`NcclError::Nccl`] if there is no fabric.
    /// [`CommProperties::cft`](crate::CommProperties::cft) returns whether there is a fabric.
    /// [`NcclError::Unsupported`] with an older NCCL. All other errors that
    /// [`peer_pointer`](Self::peer_pointer) returns.
    pub fn peer_endpoint(&self, rank: Rank, offset: usize) -> Result<LogicalEndpoint, NcclError> {
        const CALL: &str = "ncclGetPeerDeviceLeInfo";
        let peer = self.peer(CALL, rank)?;
        let offset = self.place(CALL, rank, offset)?;
        self.endpoint(CALL, |api, window, found| {
            // SAFETY: as above; the pointers are to live numbers.
            unsafe { api.ncclGetPeerDeviceLeInfo(window, offset, peer, &raw mut found.id, &raw mut found.offset_bytes) }
        })
    }

    /// Returns the fabric address of element `offset` in the window of one member of the fabric
    /// team `team`. `index` is the member's index in the team. Requires NCCL 2.31.1.
    ///
    /// # Errors
    /// As for [`peer_endpoint`](Self::peer_endpoint). [`NcclError::Misuse`] also for an index that
    /// the team does not have, and for a team that was created for a different rank or
    /// communicator.
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

    /// Returns the fabric's multicast address for element `offset`. An access through this address
    /// refers to element `offset` of every window that the fabric's multicast reaches. Requires
    /// NCCL 2.31.1.
    ///
    /// # Errors
    /// [`NcclError::MulticastDisabled`] if multicast is disabled in this process.
    /// [`NcclError::Misuse`] for an offset that is outside this rank's window. All other errors
    /// that [`peer_endpoint`](Self::peer_endpoint) returns.
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

    /// Converts a rank to NCCL's type. Fails if the communicator has no such rank.
    fn peer(&self, call: &'static str, rank: Rank) -> Result<c_int, NcclError> {
        let ranks = self.communicator().n_ranks();
        match c_int::try_from(rank.get()) {
            Ok(peer) if rank.index() < ranks => Ok(peer),
            _ => Err(NcclError::misuse(call, MisuseKind::Rank { what: "the rank", found: rank, ranks })),
        }
    }

    /// Converts an offset from elements to bytes. Fails unless the offset is less than both the
    /// length of the window of `rank` and the length of this rank's own window.
    fn place(&self, call: &'static str, rank: Rank, offset: usize) -> Result<usize, NcclError> {
        // NCCL compares the offset with the length of this rank's window, whatever the peer.
        inside::<T>(call, self.len_of(rank)?.min(self.len_bytes() / size_of::<T>()), offset)
    }
}

/// Converts an offset in elements to bytes. Fails if the offset is not less than `len`, the number
/// of elements in the window.
fn inside<T>(call: &'static str, len: usize, offset: usize) -> Result<usize, NcclError> {
    if offset < len {
        return Ok(offset * size_of::<T>());
    }
    let (found, expected) = (i64::try_from(offset).unwrap_or(i64::MAX), "less than the length of the window");
    Err(NcclError::misuse(call, MisuseKind::Value { what: "the offset", found, expected }))
}

/// Converts `index`, an index in `team`, to NCCL's type. Also returns the communicator rank of the
/// team member with this index. Fails if there is no team, or if the team has no such member.
fn member(call: &'static str, what: &'static str, team: Option<DeviceTeam>, index: usize) -> Result<(c_int, Rank), NcclError> {
    let found = c_int::try_from(index).ok().zip(team.and_then(|team| team.rank_of(index)));
    found.ok_or_else(|| {
        let (found, expected) = (i64::try_from(index).unwrap_or(i64::MAX), "less than the number of ranks of the team");
        NcclError::misuse(call, MisuseKind::Value { what, found, expected })
    })
}
