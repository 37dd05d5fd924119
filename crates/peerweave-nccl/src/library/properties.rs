//! Properties of a communicator that NCCL reports.
//!
//! `sys/layout.rs` has the layout of NCCL's struct in each version.

use std::fmt;
use std::sync::Arc;

use crate::library::error::{CommunicatorName, NcclError};
use crate::sys::{
    self, Versioned, ncclComm_t, ncclCommProperties_t, ncclCommProperties_v22902, ncclGinConnectionType_t, ncclGinType_t,
    ncclResult_t,
};
use crate::{Nccl, Rank, Version, version_code};

/// Capabilities of a communicator. Requires NCCL 2.29.2. A method returns `None` if the loaded
/// version of NCCL does not report the property.
#[derive(Clone, Copy)]
pub struct CommProperties {
    raw: ncclCommProperties_t,
    version: Version,
}

/// Transport through which kernels communicate over the network (GIN).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GinType {
    /// As a property of a communicator: kernels have no network transport. As a value of
    /// [`DeviceCommRequirements::gin_type`](crate::DeviceCommRequirements::gin_type): NCCL may use
    /// any transport.
    None,
    /// A proxy thread on the host passes the transfers of kernels to the network.
    Proxy,
    /// The GPU itself passes the transfers of kernels to the network adapter, without a proxy
    /// thread (GDAKI).
    Gdaki,
    /// NCCL's GPU-Push Interface (GPI). Requires a Spectrum-X network and NCCL 2.31.
    Gpi,
    /// GPUDirect Async (GDA) with Amazon's Elastic Fabric Adapter (EFA). Requires Amazon's plug-in
    /// for NCCL (aws-ofi-nccl), and NCCL 2.31.
    EfaGda,
    /// A transport that this crate does not know. The value is NCCL's number for the transport.
    Other(i32),
}

impl GinType {
    pub(crate) const fn of(raw: ncclGinType_t) -> Self {
        match raw {
            ncclGinType_t::NCCL_GIN_TYPE_NONE => Self::None,
            ncclGinType_t::NCCL_GIN_TYPE_PROXY => Self::Proxy,
            ncclGinType_t::NCCL_GIN_TYPE_GDAKI => Self::Gdaki,
            ncclGinType_t::NCCL_GIN_TYPE_GPI => Self::Gpi,
            ncclGinType_t::NCCL_GIN_TYPE_EFA_GDA => Self::EfaGda,
            ncclGinType_t(other) => Self::Other(other),
        }
    }

    pub(crate) const fn raw(self) -> ncclGinType_t {
        match self {
            Self::None => ncclGinType_t::NCCL_GIN_TYPE_NONE,
            Self::Proxy => ncclGinType_t::NCCL_GIN_TYPE_PROXY,
            Self::Gdaki => ncclGinType_t::NCCL_GIN_TYPE_GDAKI,
            Self::Gpi => ncclGinType_t::NCCL_GIN_TYPE_GPI,
            Self::EfaGda => ncclGinType_t::NCCL_GIN_TYPE_EFA_GDA,
            Self::Other(number) => ncclGinType_t(number),
        }
    }
}

/// Selects the ranks that kernels reach over the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GinConnection {
    /// Kernels reach no ranks over the network.
    None,
    /// Kernels reach all ranks over the network.
    Full,
    /// Kernels reach the ranks of their rail team over the network (see
    /// [`Communicator::rail_team`](crate::Communicator::rail_team)).
    Rail,
    /// Kernels reach the ranks whose distance from this rank is a multiple of this stride. Requires
    /// NCCL 2.31. In a result of [`CommProperties::gin_connection`], the stride is always 0,
    /// because that function does not know the stride. [`CommProperties::gin_min_stride`] returns
    /// the stride.
    Stride(u32),
}

/// The struct that NCCL fills, followed by spare bytes. A library may write more bytes than the
/// struct of this crate has.
#[repr(C)]
struct Filled {
    raw: ncclCommProperties_t,
    spare: [u64; 64],
}

impl CommProperties {
    /// Queries NCCL for the properties of a communicator.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] before 2.29.2; [`NcclError::Nccl`].
    ///
    /// # Safety
    /// The communicator is live and belongs to this library.
    pub(crate) unsafe fn query(nccl: Nccl, comm: ncclComm_t, name: &Arc<CommunicatorName>) -> Result<Self, NcclError> {
        const CALL: &str = "ncclCommQueryProperties";
        let version = nccl.version().min(sys::HEADER);
        let mut filled = empty(version).ok_or_else(|| nccl.unsupported(CALL, Version::new(2, 29, 2)))?;
        // SAFETY: the caller guarantees that the communicator is live. The struct has at least the
        // length of the version that its header states.
        let code = nccl.code(CALL, |api| unsafe { api.ncclCommQueryProperties(comm, (&raw mut filled).cast()) })?;
        match code {
            ncclResult_t::ncclSuccess => Ok(Self { raw: parsed(&filled, version), version }),
            code => Err(nccl.failure(CALL, code, Some(Arc::clone(name)))),
        }
    }

    /// Returns this rank's number in the communicator.
    pub fn rank(&self) -> Rank {
        Rank::new(self.raw.rank.unsigned_abs())
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.raw.nRanks.unsigned_abs() as usize
    }

    /// Returns the CUDA ordinal of this rank's device.
    pub fn cuda_device(&self) -> usize {
        self.raw.cudaDev.unsigned_abs() as usize
    }

    /// Returns NVML's index of this rank's device. The index does not depend on
    /// `CUDA_VISIBLE_DEVICES`.
    pub fn nvml_device(&self) -> usize {
        self.raw.nvmlDev.unsigned_abs() as usize
    }

    /// Returns whether device communicators can be created.
    pub fn device_api(&self) -> bool {
        self.raw.deviceApiSupport != 0
    }

    /// Returns whether the hardware supports multimem instructions among the ranks of an LSA team.
    /// These ranks access each other by loads and stores.
    /// [`multicast_switch`](peerweave_driver::multicast_switch) returns whether this process allows
    /// multicast.
    pub fn multimem(&self) -> bool {
        self.raw.multimemSupport != 0
    }

    /// Returns the transport through which kernels communicate over the network.
    pub fn gin_type(&self) -> GinType {
        GinType::of(self.raw.ginType)
    }

    /// Returns the number of LSA teams. The ranks of an LSA team access each other by loads and
    /// stores. Requires NCCL 2.29.7.
    pub fn lsa_teams(&self) -> Option<usize> {
        self.since(29, 7).then_some(self.raw.nLsaTeams.unsigned_abs() as usize)
    }

    /// Returns whether one-sided calls from the host are supported. Requires NCCL 2.29.7.
    pub fn host_rma(&self) -> Option<bool> {
        self.since(29, 7).then_some(self.raw.hostRmaSupport != 0)
    }

    /// Returns the transport through which kernels communicate with the ranks of the rail team: see
    /// [`Communicator::rail_team`](crate::Communicator::rail_team). Requires NCCL 2.29.7.
    pub fn railed_gin_type(&self) -> Option<GinType> {
        self.since(29, 7).then_some(GinType::of(self.raw.railedGinType))
    }

    /// Returns a hash that is the same on all ranks of this communicator. Different communicators
    /// have different hashes with high probability. Requires NCCL 2.31.
    pub fn comm_hash(&self) -> Option<u64> {
        self.since(31, 0).then_some(self.raw.commHash)
    }

    /// Returns the smallest stride that kernels can use over the network. With a stride, a kernel
    /// reaches the ranks whose distance from this rank is a multiple of the stride. Requires NCCL
    /// 2.31.
    pub fn gin_min_stride(&self) -> Option<usize> {
        self.since(31, 0).then_some(self.raw.ginMinStride.unsigned_abs() as usize)
    }

    /// Returns the ranks that kernels can reach over the network. Returns `None` if NCCL reports no
    /// value, or a value that this crate does not know. Requires NCCL 2.31.
    pub fn gin_connection(&self) -> Option<GinConnection> {
        let known = match self.raw.ginConnectionType {
            ncclGinConnectionType_t::NCCL_GIN_CONNECTION_NONE => GinConnection::None,
            ncclGinConnectionType_t::NCCL_GIN_CONNECTION_FULL => GinConnection::Full,
            ncclGinConnectionType_t::NCCL_GIN_CONNECTION_RAIL => GinConnection::Rail,
            ncclGinConnectionType_t::NCCL_GIN_CONNECTION_CUSTOM_STRIDE => GinConnection::Stride(0),
            _ => return None,
        };
        self.since(31, 0).then_some(known)
    }

    /// Returns whether kernels can use the transport `gin`. Requires NCCL 2.31.
    pub fn supports_gin(&self, gin: GinType) -> Option<bool> {
        let supported = usize::try_from(gin.raw().0).ok().and_then(|index| self.raw.ginSupport.get(index));
        self.since(31, 0).then_some(supported.is_some_and(|supported| *supported != 0))
    }

    /// Returns the size, in bytes, of a device communicator in the layout of the loaded NCCL.
    /// Requires NCCL 2.31.
    pub fn device_comm_len_bytes(&self) -> Option<usize> {
        self.since(31, 0).then_some(self.raw.devCommRuntimeVersionSize)
    }

    /// Returns whether kernels can use NCCL's Compute Fabric Transport (CFT), which addresses the
    /// memory of other GPUs in the fabric by logical endpoints.
    /// Requires NCCL 2.32.
    pub fn cft(&self) -> Option<bool> {
        self.since(32, 0).then_some(self.raw.cftSupport != 0)
    }

    /// Returns whether kernels can use the fabric's multicast. Requires NCCL 2.32.
    pub fn cft_multicast(&self) -> Option<bool> {
        self.since(32, 0).then_some(self.raw.cftMulticastSupport != 0)
    }

    /// Returns whether kernels can use counted operations of NCCL's Compute Fabric Transport (CFT).
    /// [`WindowKind::CFT_COUNTED`](crate::WindowKind::CFT_COUNTED) registers windows for these
    /// operations. Requires NCCL 2.32.
    pub fn cft_counted(&self) -> Option<bool> {
        self.since(32, 0).then_some(self.raw.cftCountedSupport != 0)
    }

    fn since(&self, minor: u8, patch: u8) -> bool {
        self.version.at_least(Version::new(2, minor, patch))
    }
}

impl fmt::Debug for CommProperties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommProperties")
            .field("rank", &self.rank())
            .field("ranks", &self.ranks())
            .field("cuda_device", &self.cuda_device())
            .field("nvml_device", &self.nvml_device())
            .field("device_api", &self.device_api())
            .field("multimem", &self.multimem())
            .field("gin_type", &self.gin_type())
            .field("lsa_teams", &self.lsa_teams())
            .field("host_rma", &self.host_rma())
            .field("comm_hash", &self.comm_hash())
            .field("gin_connection", &self.gin_connection())
            .field("device_comm_len_bytes", &self.device_comm_len_bytes())
            .field("cft", &self.cft())
            .finish_non_exhaustive()
    }
}

/// Returns an initialized struct for NCCL to fill, or `None` if this version of NCCL has no struct
/// for properties.
fn empty(version: Version) -> Option<Filled> {
    let size = ncclCommProperties_t::len_bytes(version).or_else(|| ncclCommProperties_v22902::len_bytes(version))?;
    // SAFETY: all fields are numbers, for which all zeros is a value.
    let mut filled: Filled = unsafe { std::mem::zeroed() };
    filled.raw.size = size;
    filled.raw.magic = sys::NCCL_API_MAGIC;
    filled.raw.version = version_code(version).unsigned_abs();
    Some(filled)
}

/// Converts the struct that NCCL has filled to the newest layout. Fields that NCCL's version
/// `version` lacks are 0.
fn parsed(filled: &Filled, version: Version) -> ncclCommProperties_t {
    let mut raw = filled.raw;
    if ncclCommProperties_t::len_bytes(version).is_none() {
        // SAFETY: the oldest struct is shorter than the newest struct. All bytes of the newest
        // struct are initialised. All fields are numbers, for which any bytes are valid.
        let first = unsafe { (&raw const filled.raw).cast::<ncclCommProperties_v22902>().read() };
        raw.ginType = ncclGinType_t(first.ginType.into());
    }
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled_by(version: &str, fill: impl FnOnce(&mut Filled)) -> CommProperties {
        let version = version.parse().expect("the version is valid");
        let mut filled = empty(version).expect("the version has properties");
        fill(&mut filled);
        CommProperties { raw: parsed(&filled, version), version }
    }

    #[test]
    fn gin_type_of_nccl_2_29_2_is_read_as_one_byte() {
        let properties = filled_by("2.29.2", |filled| {
            assert_eq!(filled.raw.size, 40);
            // NCCL 2.29.2 writes one byte for the type. Unrelated bytes follow.
            let bytes = (&raw mut filled.raw).cast::<u8>();
            // SAFETY: inside of the struct.
            unsafe {
                bytes.add(std::mem::offset_of!(ncclCommProperties_v22902, ginType)).write(3);
                bytes.add(36).write(0xee);
            }
        });
        assert_eq!(properties.gin_type(), GinType::Gdaki);
        assert_eq!(
            (properties.lsa_teams(), properties.host_rma(), properties.comm_hash(), properties.cft()),
            (None, None, None, None)
        );
    }

    #[test]
    fn property_newer_than_the_library_is_none() {
        let fill = |filled: &mut Filled| {
            filled.raw.rank = 3;
            filled.raw.nRanks = 8;
            filled.raw.nLsaTeams = 2;
            filled.raw.ginType = ncclGinType_t(42);
            filled.raw.ginConnectionType = ncclGinConnectionType_t(1);
            filled.raw.ginSupport[2] = 1;
            filled.raw.devCommRuntimeVersionSize = 248;
            filled.raw.cftSupport = 2;
        };
        let old = filled_by("2.30.7", fill);
        assert_eq!((old.rank(), old.ranks(), old.lsa_teams(), old.gin_type()), (Rank::new(3), 8, Some(2), GinType::Other(42)));
        assert_eq!((old.device_comm_len_bytes(), old.gin_connection(), old.supports_gin(GinType::Proxy)), (None, None, None));
        let new = filled_by("2.32.3", fill);
        assert_eq!((new.device_comm_len_bytes(), new.gin_connection()), (Some(248), Some(GinConnection::Full)));
        assert_eq!((new.supports_gin(GinType::Proxy), new.supports_gin(GinType::Gdaki)), (Some(true), Some(false)));
        assert_eq!((new.supports_gin(GinType::Other(-1)), new.supports_gin(GinType::Other(64))), (Some(false), Some(false)));
        assert_eq!(new.cft(), Some(true), "any number but 0 is true");
    }

    #[test]
    fn nccl_2_28_has_no_communicator_properties() {
        assert!(empty(Version::new(2, 28, 9)).is_none());
    }
}
