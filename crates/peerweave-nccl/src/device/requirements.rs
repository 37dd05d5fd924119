//! Requirements of a device communicator, such as the number of barriers, and their conversion to
//! NCCL's structs.
//!
//! `device_comm.rs` creates device communicators. NCCL 2.28 and 2.29 have a device API with
//! different struct layouts, which this crate does not support. NCCL 2.30.3 is the first supported
//! version.
//!
//! Invariant: each requirement is either passed to NCCL or causes an error. No requirement is
//! silently ignored.

use std::ffi::c_int;

use peerweave_driver::multicast_switch;

use crate::config::of_communicator::{Found, in_range};
use crate::library::error::{MisuseKind, NcclError};
use crate::sys::{
    self, Versioned, ncclDevCommRequirements_t, ncclDevResourceRequirements_t, ncclGinConnectionType_t, ncclMultimemHandle_t,
    ncclTeam_t, ncclTeamRequirements_t,
};
use crate::{DeviceTeam, GinConnection, GinType, Rank, Switch, Version, version_code};

/// First version of NCCL whose device communicators contain their version.
pub(crate) const SINCE: Version = Version::new(2, 30, 3);
/// First version of NCCL that reports the size of a device communicator.
pub(crate) const RUNTIME_SINCE: Version = Version::new(2, 31, 0);

/// Selects the version of NCCL that determines the layout of a device communicator. The kernels
/// must have been compiled for the same version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceCommLayout {
    /// The version of the loaded NCCL. Select this version if the kernels are linked at run time
    /// with the device code of the loaded NCCL.
    #[default]
    Library,
    /// A fixed version: the version of the NCCL headers with which the kernels were compiled. The
    /// version must not be later than the version of the loaded NCCL.
    Version(Version),
}

/// Requirements of a device communicator. Every rank must pass the same requirements. Requires NCCL
/// 2.30.3.
///
/// ```
/// use peerweave_nccl::{DeviceCommRequirements, ResourceBuffer};
///
/// let requirements = DeviceCommRequirements::new()
///     .lsa_barriers(16)
///     .buffer(ResourceBuffer { len_bytes: 1 << 16, align_bytes: 128 });
/// # let _ = requirements;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct DeviceCommRequirements {
    layout: DeviceCommLayout,
    lsa_multimem: Switch,
    barriers: u32,
    lsa_barriers: u32,
    rail_gin_barriers: u32,
    world_gin_barriers: u32,
    lla2a_blocks: u32,
    lla2a_slots: u32,
    gin_contexts: u32,
    gin_signals: u32,
    gin_counters: u32,
    gin_connection: GinConnection,
    gin_exclusive_contexts: Switch,
    gin_queue_depth: u32,
    gin_traffic_class: Option<u32>,
    gin_strong_signals: Switch,
    gin_va_signals: Switch,
    gin_type: GinType,
    cft: Switch,
    cft_multimem: Switch,
    cft_barriers: u32,
    buffers: Vec<ResourceBuffer>,
    multimem_teams: Vec<DeviceTeam>,
}

/// A buffer that NCCL allocates for a device communicator on every rank's device. The buffer lies
/// in a window that belongs to the device communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceBuffer {
    /// Length of the buffer in bytes.
    pub len_bytes: usize,
    /// Alignment in bytes. Must be a power of two.
    pub align_bytes: usize,
}

impl Default for DeviceCommRequirements {
    /// Returns the defaults of NCCL's headers. The defaults request four network contexts, for
    /// kernels that use a network. Strong signals and VA signals are switched on. The defaults
    /// request no other resources.
    fn default() -> Self {
        Self {
            layout: DeviceCommLayout::Library,
            lsa_multimem: Switch::Off,
            barriers: 0,
            lsa_barriers: 0,
            rail_gin_barriers: 0,
            world_gin_barriers: 0,
            lla2a_blocks: 0,
            lla2a_slots: 0,
            gin_contexts: 4,
            gin_signals: 0,
            gin_counters: 0,
            gin_connection: GinConnection::None,
            gin_exclusive_contexts: Switch::Off,
            gin_queue_depth: 0,
            gin_traffic_class: None,
            gin_strong_signals: Switch::On,
            gin_va_signals: Switch::On,
            gin_type: GinType::None,
            cft: Switch::Off,
            cft_multimem: Switch::Off,
            cft_barriers: 0,
            buffers: Vec::new(),
            multimem_teams: Vec::new(),
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $Type:ty;)*) => {$(
        $(#[$doc])*
        pub fn $name(mut self, $name: $Type) -> Self {
            self.$name = $name;
            self
        }
    )*};
}

impl DeviceCommRequirements {
    /// Creates requirements with the default values.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Sets the version of NCCL that determines the layout of the device communicator.
        layout: DeviceCommLayout;
        /// Sets whether kernels use multimem instructions on the ranks of the LSA team. If on, NCCL
        /// creates a multicast object. Creating the device communicator then fails if multicast
        /// objects are disabled.
        lsa_multimem: Switch;
        /// Sets the number of barriers among all ranks. These barriers use loads and stores between
        /// the ranks of an LSA team, and the network between other ranks.
        barriers: u32;
        /// Sets the number of barriers among the ranks of the LSA team, which access each other by
        /// loads and stores.
        lsa_barriers: u32;
        /// Sets the number of barriers among the ranks of the rail team. These barriers use the
        /// network.
        rail_gin_barriers: u32;
        /// Sets the number of barriers among all ranks. These barriers use only the network.
        world_gin_barriers: u32;
        /// Sets the number of thread blocks that run an all-to-all of short messages.
        lla2a_blocks: u32;
        /// Sets the number of message slots of each thread block in an all-to-all of short
        /// messages. [`lla2a_blocks`](Self::lla2a_blocks) must be set too.
        lla2a_slots: u32;
        /// Sets the number of network contexts. NCCL treats the number as a hint.
        gin_contexts: u32;
        /// Sets the number of network signals. The indices of the signals start at 0.
        gin_signals: u32;
        /// Sets the number of network counters. The indices of the counters start at 0.
        gin_counters: u32;
        /// Sets the ranks that kernels reach over the network. Network signals, counters and
        /// barriers require a connection other than [`GinConnection::None`].
        gin_connection: GinConnection;
        /// Sets whether the network contexts are reserved for this device communicator.
        gin_exclusive_contexts: Switch;
        /// Sets the number of operations in the queue of a network context. With 0, NCCL selects
        /// the number.
        gin_queue_depth: u32;
        /// Sets whether kernels may use NCCL's strong signals. A rank that observes a strong signal
        /// also observes the earlier puts of the signal's sender to this rank. The guarantee
        /// requires that the puts and the signal use the same network context. Before NCCL 2.30.7,
        /// this option cannot be switched off.
        gin_strong_signals: Switch;
        /// Sets whether kernels may use signals at virtual addresses (VA signals). Before NCCL
        /// 2.30.7, this option cannot be switched off.
        gin_va_signals: Switch;
        /// Restricts kernels to one network transport. The default, [`GinType::None`], sets no
        /// restriction. All other values require NCCL 2.31.
        gin_type: GinType;
        /// Sets whether kernels address memory in the fabric by logical endpoints (CFT). Requires
        /// NCCL 2.31.
        cft: Switch;
        /// Sets whether kernels use the fabric's multicast. If this option is on and multicast
        /// objects are disabled, creating the device communicator fails. Requires NCCL 2.31.
        cft_multimem: Switch;
        /// Sets the number of barriers over the fabric. Requires NCCL 2.31.
        cft_barriers: u32;
    }

    /// Sets the traffic class of the network operations that kernels start.
    pub fn gin_traffic_class(mut self, class: u32) -> Self {
        self.gin_traffic_class = Some(class);
        self
    }

    /// Adds a buffer to the device communicator. The first added buffer has index 0, the second has
    /// index 1, and so on.
    /// [`DeviceCommunicator::buffer_offset_bytes`](crate::DeviceCommunicator::buffer_offset_bytes)
    /// returns the offset of the buffer with a given index.
    pub fn buffer(mut self, buffer: ResourceBuffer) -> Self {
        self.buffers.push(buffer);
        self
    }

    /// Adds a team whose ranks multicast to each other. If multicast objects are disabled, creating
    /// the device communicator fails. The first added team has index 0, the second has index 1, and
    /// so on. [`DeviceCommunicator::multimem_handle`](crate::DeviceCommunicator::multimem_handle)
    /// returns the handle of the team with a given index.
    pub fn multimem_team(mut self, team: DeviceTeam) -> Self {
        self.multimem_teams.push(team);
        self
    }

    /// Converts the requirements to NCCL's structs. Also returns the size of the device
    /// communicator in bytes, or `None` if NCCL must report the size.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] for requirements that the library does not support;
    /// [`NcclError::Misuse`] for a value that NCCL would refuse; [`NcclError::MulticastDisabled`].
    pub(crate) fn to_raw(
        &self,
        found: &Found<'_>,
        rank: Rank,
        n_ranks: usize,
    ) -> Result<(RawRequirements, Option<usize>), NcclError> {
        found.needs("DeviceCommunicator (ncclDevComm)", SINCE)?;
        let teams: Vec<_> =
            self.multimem_teams.iter().map(|team| team.to_raw(found.call, rank, n_ranks)).collect::<Result<_, _>>()?;
        self.check(found)?;
        let (version, len_bytes, runtime) = self.version_of(found)?;
        let count = |what, value| in_range(found.call, what, value, 0..=i32::MAX as u32, "a number of at most 2147483647");
        let (connection, stride) = match self.gin_connection {
            GinConnection::None => (ncclGinConnectionType_t::NCCL_GIN_CONNECTION_NONE, 1),
            GinConnection::Full => (ncclGinConnectionType_t::NCCL_GIN_CONNECTION_FULL, 1),
            GinConnection::Rail => (ncclGinConnectionType_t::NCCL_GIN_CONNECTION_RAIL, 1),
            GinConnection::Stride(stride) => (ncclGinConnectionType_t::NCCL_GIN_CONNECTION_CUSTOM_STRIDE, stride),
        };
        let is_on = |switch| switch == Switch::On;
        let raw = ncclDevCommRequirements_t {
            size: ncclDevCommRequirements_t::len_bytes(version)
                .ok_or_else(|| found.unsupported("ncclDevCommRequirements_t", SINCE))?,
            magic: sys::NCCL_API_MAGIC,
            version: version_code(version).unsigned_abs(),
            resourceRequirementsList: std::ptr::null_mut(),
            teamRequirementsList: std::ptr::null_mut(),
            lsaMultimem: is_on(self.lsa_multimem),
            barrierCount: count("barriers", self.barriers)?,
            lsaBarrierCount: count("lsa_barriers", self.lsa_barriers)?,
            railGinBarrierCount: count("rail_gin_barriers", self.rail_gin_barriers)?,
            lsaLLA2ABlockCount: count("lla2a_blocks", self.lla2a_blocks)?,
            lsaLLA2ASlotCount: count("lla2a_slots", self.lla2a_slots)?,
            // NVIDIA has deprecated `ginForceEnable` in favour of `ginConnectionType`.
            ginForceEnable: false,
            ginContextCount: count("gin_contexts", self.gin_contexts)?,
            ginSignalCount: count("gin_signals", self.gin_signals)?,
            ginCounterCount: count("gin_counters", self.gin_counters)?,
            ginConnectionType: connection,
            ginExclusiveContexts: is_on(self.gin_exclusive_contexts),
            ginQueueDepth: count("gin_queue_depth", self.gin_queue_depth)?,
            ginTrafficClass: match self.gin_traffic_class {
                None => sys::NCCL_CONFIG_UNDEF_INT,
                Some(class) => count("gin_traffic_class", class)?,
            },
            worldGinBarrierCount: count("world_gin_barriers", self.world_gin_barriers)?,
            ginStrongSignalsRequired: is_on(self.gin_strong_signals),
            ginVaSignalsRequired: is_on(self.gin_va_signals),
            ginCustomStride: in_range(
                found.call,
                "the stride in GinConnection::Stride",
                stride,
                1..=i32::MAX as u32,
                "a number of at least 1",
            )?,
            ginType: self.gin_type.raw(),
            useRuntimeVersion: runtime,
            cftCaps: (c_int::from(is_on(self.cft)) * sys::NCCL_CFT)
                | (c_int::from(is_on(self.cft_multimem)) * sys::NCCL_CFT_MULTIMEM),
            cftBarrierCount: count("cft_barriers", self.cft_barriers)?,
        };
        Ok((RawRequirements::new(raw, &self.buffers, &teams), len_bytes))
    }

    /// Determines the layout of the device communicator. Returns three values:
    ///
    /// - the version for the version fields of NCCL's structs,
    /// - the size of the device communicator in bytes, or `None` if NCCL reports the size itself,
    /// - the value of the field `useRuntimeVersion`; if the value is true, NCCL uses the layout of
    ///   the loaded library.
    fn version_of(&self, found: &Found<'_>) -> Result<(Version, Option<usize>, bool), NcclError> {
        const WHAT: &str = "the query for the size of a device communicator";
        let newest = found.version.min(sys::HEADER);
        match self.layout {
            DeviceCommLayout::Library if found.version.at_least(RUNTIME_SINCE) => Ok((newest, None, true)),
            DeviceCommLayout::Library => match sys::device_comm_len_bytes(found.version) {
                Some(len_bytes) => Ok((found.version, Some(len_bytes), false)),
                None => Err(found.unsupported(WHAT, RUNTIME_SINCE)),
            },
            DeviceCommLayout::Version(version) => {
                found.needs("DeviceCommRequirements::layout (ncclDevCommRequirements_t.version)", version)?;
                match sys::device_comm_len_bytes(version) {
                    Some(len_bytes) => Ok((version, Some(len_bytes), false)),
                    None => Err(NcclError::misuse(
                        found.call,
                        MisuseKind::Context {
                            why: "the device communicator layout of the requested version is unknown; the known versions are 2.30.3, 2.30.4, 2.30.7, 2.31.2 and 2.32.3",
                        },
                    )),
                }
            }
        }
    }

    fn check(&self, found: &Found<'_>) -> Result<(), NcclError> {
        let combination = |what, why| Err(NcclError::misuse(found.call, MisuseKind::Combination { what, why }));
        let gin = [self.rail_gin_barriers, self.world_gin_barriers, self.gin_signals, self.gin_counters];
        if self.gin_connection == GinConnection::None && gin.iter().any(|count| *count > 0) {
            return combination(
                "DeviceCommRequirements",
                "network signals, counters and barriers require a gin_connection other than None",
            );
        }
        if (self.lla2a_blocks == 0) != (self.lla2a_slots == 0) {
            return combination("DeviceCommRequirements", "only one of lla2a_blocks and lla2a_slots is set; set both or neither");
        }
        if self.buffers.iter().any(|buffer| !buffer.align_bytes.is_power_of_two()) {
            return combination("ResourceBuffer::align_bytes", "the alignment is not a power of two");
        }
        if self.lsa_multimem == Switch::On || self.cft_multimem == Switch::On || !self.multimem_teams.is_empty() {
            multicast_switch()?;
        }
        // Kernels with an older layout cannot use features that the layout lacks.
        let version = match self.layout {
            DeviceCommLayout::Library => found.version,
            DeviceCommLayout::Version(version) => version.min(found.version),
        };
        let needs = |asked: bool, what, since: Version| {
            if !asked || version.at_least(since) { Ok(()) } else { Err(found.unsupported(what, since)) }
        };
        let signals = Version::new(2, 30, 7);
        needs(self.gin_strong_signals == Switch::Off, "DeviceCommRequirements::gin_strong_signals", signals)?;
        needs(self.gin_va_signals == Switch::Off, "DeviceCommRequirements::gin_va_signals", signals)?;
        needs(matches!(self.gin_connection, GinConnection::Stride(_)), "GinConnection::Stride", RUNTIME_SINCE)?;
        needs(self.gin_type != GinType::None, "DeviceCommRequirements::gin_type", RUNTIME_SINCE)?;
        needs(self.cft == Switch::On, "DeviceCommRequirements::cft", RUNTIME_SINCE)?;
        needs(self.cft_multimem == Switch::On, "DeviceCommRequirements::cft_multimem", RUNTIME_SINCE)?;
        needs(self.cft_barriers > 0, "DeviceCommRequirements::cft_barriers", RUNTIME_SINCE)
    }
}

/// The requirements as NCCL's C structs. This value owns the lists to which the structs point. It
/// also owns memory in which NCCL stores handles when NCCL creates the device communicator.
///
/// `raw` points into the vectors. The memory of the vectors does not move when this value is moved.
pub(crate) struct RawRequirements {
    raw: ncclDevCommRequirements_t,
    _resources: Vec<ncclDevResourceRequirements_t>,
    _teams: Vec<ncclTeamRequirements_t>,
    handles: Vec<u32>,
    multimem: Vec<ncclMultimemHandle_t>,
}

impl RawRequirements {
    fn new(mut raw: ncclDevCommRequirements_t, buffers: &[ResourceBuffer], teams: &[ncclTeam_t]) -> Self {
        let mut handles = vec![0; buffers.len()];
        let mut multimem = vec![ncclMultimemHandle_t { mcBasePtr: std::ptr::null_mut() }; teams.len()];
        let (to_handles, to_multimem) = (handles.as_mut_ptr(), multimem.as_mut_ptr());
        let mut resources: Vec<_> = buffers
            .iter()
            .enumerate()
            .map(|(index, buffer)| ncclDevResourceRequirements_t {
                next: std::ptr::null_mut(),
                bufferSize: buffer.len_bytes,
                bufferAlign: buffer.align_bytes,
                // NCCL stores one handle for each buffer.
                outBufferHandle: to_handles.wrapping_add(index),
                ginSignalCount: 0,
                ginCounterCount: 0,
                outGinSignalStart: std::ptr::null_mut(),
                outGinCounterStart: std::ptr::null_mut(),
            })
            .collect();
        let mut team_requirements: Vec<_> = teams
            .iter()
            .enumerate()
            .map(|(index, team)| ncclTeamRequirements_t {
                next: std::ptr::null_mut(),
                team: *team,
                multimem: true,
                outMultimemHandle: to_multimem.wrapping_add(index),
            })
            .collect();
        // All links derive from one pointer to the whole list. So writing one element does not
        // invalidate the pointer to another element.
        let first = resources.as_mut_ptr();
        for index in 1..resources.len() {
            // SAFETY: both indices are inside the list.
            unsafe { (*first.add(index - 1)).next = first.add(index) };
        }
        let first_team = team_requirements.as_mut_ptr();
        for index in 1..team_requirements.len() {
            // SAFETY: as above.
            unsafe { (*first_team.add(index - 1)).next = first_team.add(index) };
        }
        raw.resourceRequirementsList = if resources.is_empty() { std::ptr::null_mut() } else { first };
        raw.teamRequirementsList = if team_requirements.is_empty() { std::ptr::null_mut() } else { first_team };
        Self { raw, _resources: resources, _teams: team_requirements, handles, multimem }
    }

    pub(crate) fn as_ptr(&self) -> *const ncclDevCommRequirements_t {
        &raw const self.raw
    }

    /// Returns the handles that NCCL stored when it created the device communicator: the handle of
    /// each buffer, and the multicast handle of each team.
    pub(crate) fn filled(mut self) -> (Vec<u32>, Vec<ncclMultimemHandle_t>) {
        (std::mem::take(&mut self.handles), std::mem::take(&mut self.multimem))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;

    fn build(requirements: &DeviceCommRequirements, version: &str) -> Result<(RawRequirements, Option<usize>), NcclError> {
        let path: Arc<Path> = Path::new("/opt/libnccl.so.2").into();
        requirements.to_raw(
            &Found { call: "create", version: version.parse().expect("the version is valid"), path: &path },
            Rank::new(1),
            4,
        )
    }

    fn refused(requirements: &DeviceCommRequirements, version: &str) -> NcclError {
        build(requirements, version).err().expect("the requirements are refused")
    }

    #[test]
    fn default_device_comm_layout_matches_the_library_version() {
        for (version, size, code, len_bytes, runtime) in [
            ("2.30.3", 96, 23003, Some(240), false),
            ("2.30.7", 96, 23007, Some(240), false),
            ("2.31.2", 120, 23102, None, true),
            ("2.40.0", 120, 23203, None, true),
        ] {
            let (built, len) = build(&DeviceCommRequirements::new(), version).expect("NCCL 2.30.3 supports device communicators");
            assert_eq!(
                (built.raw.size, built.raw.version, len, built.raw.useRuntimeVersion),
                (size, code, len_bytes, runtime),
                "{version}"
            );
            assert_eq!((built.raw.ginContextCount, built.raw.ginTrafficClass, built.raw.ginCustomStride), (4, c_int::MIN, 1));
            assert!(built.raw.ginStrongSignalsRequired && built.raw.ginVaSignalsRequired && !built.raw.lsaMultimem);
        }
    }

    #[test]
    fn device_comm_layout_unknown_or_newer_than_nccl_is_refused() {
        assert!(
            matches!(refused(&DeviceCommRequirements::new(), "2.29.7"), NcclError::Unsupported(error) if error.since == Some(SINCE))
        );
        assert!(
            matches!(refused(&DeviceCommRequirements::new(), "2.30.5"), NcclError::Unsupported(error) if error.since == Some(RUNTIME_SINCE))
        );
        let later = DeviceCommRequirements::new().layout(DeviceCommLayout::Version(Version::new(2, 31, 2)));
        assert!(matches!(refused(&later, "2.30.7"), NcclError::Unsupported(_)));
        let unknown = DeviceCommRequirements::new().layout(DeviceCommLayout::Version(Version::new(2, 30, 5)));
        assert!(refused(&unknown, "2.32.3").misuse_kind().is_some());
    }

    #[test]
    fn device_comm_can_use_the_layout_of_an_older_nccl_version() {
        let requirements =
            DeviceCommRequirements::new().lsa_barriers(3).layout(DeviceCommLayout::Version(Version::new(2, 30, 4)));
        let (built, len_bytes) = build(&requirements, "2.32.3").expect("the layout is known");
        assert_eq!((built.raw.version, built.raw.size, len_bytes, built.raw.useRuntimeVersion), (23004, 96, Some(240), false));
        assert_eq!(built.raw.lsaBarrierCount, 3);
        let cft = requirements.cft(Switch::On);
        assert!(matches!(refused(&cft, "2.32.3"), NcclError::Unsupported(_)), "kernels of 2.30.4 cannot use CFT");
    }

    #[test]
    fn requirement_newer_than_the_library_is_unsupported() {
        let new = DeviceCommRequirements::new;
        for (requirements, before) in [
            (new().gin_strong_signals(Switch::Off), "2.30.4"),
            (new().gin_va_signals(Switch::Off), "2.30.4"),
            (new().gin_connection(GinConnection::Stride(2)), "2.30.7"),
            (new().gin_type(GinType::Proxy), "2.30.7"),
            (new().cft(Switch::On), "2.30.7"),
            (new().cft_barriers(1), "2.30.7"),
        ] {
            assert!(matches!(refused(&requirements, before), NcclError::Unsupported(_)), "{requirements:?}");
            assert!(build(&requirements, "2.32.3").is_ok(), "{requirements:?}");
        }
    }

    #[test]
    fn requirement_that_nccl_would_refuse_is_misuse() {
        let new = DeviceCommRequirements::new;
        for requirements in [
            new().gin_signals(1),
            new().gin_counters(1),
            new().rail_gin_barriers(1),
            new().world_gin_barriers(1),
            new().lla2a_blocks(2),
            new().gin_connection(GinConnection::Stride(0)),
            new().lsa_barriers(u32::MAX),
            new().buffer(ResourceBuffer { len_bytes: 64, align_bytes: 3 }),
            new().multimem_team(DeviceTeam::world(4, Rank::new(0))),
            new().multimem_team(DeviceTeam::world(5, Rank::new(1))),
        ] {
            assert!(refused(&requirements, "2.32.3").misuse_kind().is_some(), "{requirements:?}");
        }
    }

    #[test]
    fn resource_buffers_are_passed_to_nccl_in_the_order_of_addition() {
        let mut requirements = DeviceCommRequirements::new();
        for len_bytes in [128, 256, 512] {
            requirements = requirements.buffer(ResourceBuffer { len_bytes, align_bytes: 128 });
        }
        let (built, _) = build(&requirements, "2.32.3").expect("all requirements are supported");
        let moved = Box::new(built);
        let mut sizes = Vec::new();
        let mut next = moved.raw.resourceRequirementsList;
        while !next.is_null() {
            // SAFETY: the lists belong to `moved`, which is alive. NCCL writes to the lists in the
            // same manner.
            unsafe {
                sizes.push((*next).bufferSize);
                *(*next).outBufferHandle = sizes.len() as u32 * 10;
                next = (*next).next;
            }
        }
        assert_eq!(sizes, [128, 256, 512]);
        assert_eq!(moved.filled(), (vec![10, 20, 30], vec![]));
    }
}
