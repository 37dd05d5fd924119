//! Peer access between devices: what the driver reports, and tests that transfer data.
//!
//! Invariant: a pair of devices is reported as working only after data has been transferred in both
//! directions and compared.

use std::sync::Arc;
use std::time::Instant;

use peerweave_driver::cudarc::driver::sys::{CUdevice, CUdevice_P2PAttribute};
use peerweave_driver::{CudaCode, CudaContext, Driver, PrivateStream};

use crate::error::VmmError;
use crate::memory::access::Rights;
use crate::memory::mapping::{MappedMemory, Mapping};
use crate::memory::physical::{Exportable, Granularity, PhysicalMemory};
use crate::memory::reservation::Reservation;
use crate::raw::{self, Attribute};

/// The properties of a device that are relevant for shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Ordinal of the device in this process.
    pub ordinal: usize,
    /// Name of the device.
    pub name: String,
    /// PCI address of the device. The PCI address is the same in every process, even if the
    /// ordinals differ.
    pub pci_address: String,
    /// Whether the device supports virtual memory management.
    pub vmm: bool,
    /// The handle types by which memory of the device can be exported. Even if the device reports
    /// fabric handles, creating memory with fabric handles may fail.
    pub exportable: Exportable,
    /// Whether the device reports that it supports multicast objects.
    pub multicast: bool,
}

/// The driver's report on the access that a first device has to the memory of a second device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PairInfo {
    /// Whether the first device can access the memory of the second device.
    pub access: bool,
    /// Whether the first device supports all native atomic operations on the memory of the second
    /// device.
    pub native_atomics: bool,
    /// Performance rank that the driver reports for the link between the two devices. A lower rank
    /// means a faster link.
    pub performance_rank: i32,
}

/// The devices of this process, and the access between every two of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerMatrix {
    /// The devices, in ascending order of their ordinals.
    pub devices: Vec<DeviceInfo>,
    /// `pairs[from][to]` describes the access that device `from` has to the memory of device `to`.
    /// The entry is `None` if `from` equals `to`.
    pub pairs: Vec<Vec<Option<PairInfo>>>,
}

impl PeerMatrix {
    /// Queries the driver for the properties of all devices and of all pairs of devices. Creates no
    /// context, and allocates no memory.
    ///
    /// ```
    /// match peerweave_vmm::PeerMatrix::look() {
    ///     Ok(matrix) => println!("{} devices", matrix.devices.len()),
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// [`VmmError::Driver`] if a driver call fails, or if no driver is installed.
    pub fn look() -> Result<Self, VmmError> {
        let count = Driver::get()?.device_count()?;
        let device = |ordinal| -> Result<DeviceInfo, VmmError> {
            Ok(DeviceInfo {
                ordinal,
                name: raw::device_name(ordinal)?,
                pci_address: raw::pci_address(ordinal)?,
                vmm: raw::has(ordinal, Attribute::Vmm)?,
                exportable: Exportable::of_device(ordinal)?,
                multicast: raw::has(ordinal, Attribute::Multicast)?,
            })
        };
        let row = |from| (0..count).map(|to| if from == to { Ok(None) } else { pair(from, to).map(Some) }).collect();
        Ok(Self {
            devices: (0..count).map(device).collect::<Result<_, _>>()?,
            pairs: (0..count).map(row).collect::<Result<_, VmmError>>()?,
        })
    }
}

/// Returns the driver's report on the access that device `from` has to the memory of device `to`.
///
/// # Errors
/// [`VmmError::Driver`] if a driver call fails.
pub fn pair(from: usize, to: usize) -> Result<PairInfo, VmmError> {
    let number = |ordinal: usize| CUdevice::try_from(ordinal).unwrap_or(CUdevice::MAX);
    let mut can = 0;
    // SAFETY: the pointer is to a live integer; the driver checks the devices.
    raw::done("cuDeviceCanAccessPeer", unsafe { raw::api()?.cuDeviceCanAccessPeer(&raw mut can, number(from), number(to)) })?;
    let ask = |attribute| {
        let mut value = 0;
        // SAFETY: the pointer is to a live integer; the driver checks the other arguments.
        let code = unsafe { raw::api()?.cuDeviceGetP2PAttribute(&raw mut value, attribute, number(from), number(to)) };
        raw::done("cuDeviceGetP2PAttribute", code).map(|()| value)
    };
    Ok(PairInfo {
        access: can != 0,
        native_atomics: ask(CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? != 0,
        performance_rank: ask(CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
    })
}

/// Enables the context `from` to access plain allocations of the context `to`. A [`Mapping`] does
/// not need this call, because [`Mapping::allow`] sets the access rights of each mapping. If access
/// is already enabled, this function succeeds.
///
/// # Errors
/// [`VmmError::Unsupported`] if the device of `from` cannot access the memory of the device of
/// `to`. [`VmmError::Driver`] if a driver call fails.
pub fn enable(from: &Arc<CudaContext>, to: &Arc<CudaContext>) -> Result<(), VmmError> {
    raw::bind(from)?;
    // SAFETY: both contexts are live.
    match raw::done("cuCtxEnablePeerAccess", unsafe { raw::api()?.cuCtxEnablePeerAccess(to.cu_ctx(), 0) }) {
        Err(error) if error.is_code(&[CudaCode::PEER_ACCESS_ALREADY_ENABLED]) => Ok(()),
        Err(error) if error.is_code(&[CudaCode::PEER_ACCESS_UNSUPPORTED, CudaCode::INVALID_DEVICE]) => {
            Err(VmmError::Unsupported {
                feature: "peer access",
                needs: format!("access of device {} to the memory of device {}", from.ordinal(), to.ordinal()),
                found: error.to_string(),
            })
        }
        enabled => enabled,
    }
}

/// Copies data from the device of `from` to the device of `to`, and copies other data back.
/// Compares every word with the data that was written.
///
/// This test detects machines on which the driver reports peer access, but transferred data is
/// wrong or does not arrive.
///
/// # Errors
/// [`VmmError::BrokenPeer`] if transferred data is wrong or does not arrive by the deadline.
/// [`VmmError::Timeout`] if a device cannot complete accesses to its own memory by the deadline.
/// [`VmmError::Unsupported`] if the device of `from` cannot access the memory of the device of
/// `to`. [`VmmError::Driver`] if a driver call fails.
pub fn check_pair(from: &Arc<CudaContext>, to: &Arc<CudaContext>, deadline: Instant) -> Result<(), VmmError> {
    let (near, far) = (from.ordinal(), to.ordinal());
    if near != far && !pair(near, far)?.access {
        return Err(VmmError::Unsupported {
            feature: "peer access",
            needs: format!("access of device {near} to the memory of device {far}"),
            found: "no access (cuDeviceCanAccessPeer returned 0)".into(),
        });
    }
    let broken = |what: String| VmmError::BrokenPeer { from: format!("device {near}"), to: format!("device {far}"), what };
    let judged = |result: Result<(), VmmError>| match result {
        Err(VmmError::Timeout { call, waited, .. }) => Err(broken(format!("{call} timed out after {waited:.1?}"))),
        result => result,
    };
    let own = scratch(from, &[near])?;
    let theirs = scratch(to, &[near, far])?;
    let (mut source, mut reached): (MappedMemory<u64>, MappedMemory<u64>) = (own.memory(near)?, theirs.memory(near)?);
    let mut there: MappedMemory<u64> = theirs.memory(far)?;
    // Private streams do not wait for other work of the devices.
    let (near_stream, far_stream) = (PrivateStream::new(from)?, PrivateStream::new(to)?);
    let compare = |found: Vec<u64>, expected: &[u64], direction: &str| match found
        .iter()
        .zip(expected)
        .position(|(found, expected)| found != expected)
    {
        None => Ok(()),
        Some(at) => Err(broken(format!(
            "word {at} of the data that was {direction} is {:#018x}, expected {:#018x}",
            found[at], expected[at]
        ))),
    };
    let put = pattern((1 + near as u64) << 32 | far as u64, source.len());
    // Only the copies below use the path between the devices. A failed access to a device's own
    // memory is therefore not reported as a broken path.
    crate::write(&near_stream, &mut source, &put, deadline)?;
    crate::copy(&near_stream, &mut reached, &source)?;
    judged(crate::memory::streams::wait_for(&near_stream, "a write to the peer", Instant::now(), deadline))?;
    let found = crate::read(&far_stream, &there, deadline)?;
    compare(found, &put, "written")?;

    let get = pattern(!put[0], source.len());
    crate::write(&far_stream, &mut there, &get, deadline)?;
    crate::copy(&near_stream, &mut source, &reached)?;
    judged(crate::memory::streams::wait_for(&near_stream, "a read from the peer", Instant::now(), deadline))?;
    let found = crate::read(&near_stream, &source, deadline)?;
    compare(found, &get, "read")
}

/// Allocates memory on the device of `context`, and maps the memory. The devices in `devices` get
/// read and write access to the mapping.
fn scratch(context: &Arc<CudaContext>, devices: &[usize]) -> Result<Mapping, VmmError> {
    let granularity = Granularity::of_device(context.ordinal(), Exportable::NOWHERE)?;
    let bytes = granularity.recommended;
    let memory = PhysicalMemory::create(context, bytes, Exportable::NOWHERE)?;
    let mapping = Reservation::new(context, bytes, bytes.next_power_of_two())?.map(0, &memory, bytes)?;
    mapping.allow(devices, Rights::ReadWrite)?;
    Ok(mapping)
}

/// Returns `len` pseudo-random words, which a splitmix64 generator computes from `seed`.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u64> {
    (0..len).map(|index| pattern_word(seed, index)).collect()
}

/// Returns the pseudo-random word at `index` of the pattern for `seed`.
pub(crate) fn pattern_word(seed: u64, index: usize) -> u64 {
    let mut z = seed.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
