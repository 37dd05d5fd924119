//! Reads `ncclConfig_t` in the layout of the emulated version, and the other versioned structs of
//! calls.
//!
//! Requirements of device communicators are in module `device_comm`. Invariant: only the fields
//! that both the caller and the emulated version know are read, and a field newer than the caller's
//! version counts as unset.

use core::ffi::c_int;
use core::mem::offset_of;

use crate::abi::{ConfigStruct, Header, MAGIC, Result, UNDEFINED, invalid, text};
use crate::comm::Config;
use crate::report::log;
use crate::settings;

enum Kind {
    Int,
    Pointer,
}

/// The fields with their offsets and the versions that introduced them.
const FIELDS: &[(&str, usize, Kind, i32)] = &[
    ("blocking", offset_of!(ConfigStruct, blocking), Kind::Int, 21403),
    ("cgaClusterSize", offset_of!(ConfigStruct, cga_cluster_size), Kind::Int, 21701),
    ("minCTAs", offset_of!(ConfigStruct, min_ctas), Kind::Int, 21701),
    ("maxCTAs", offset_of!(ConfigStruct, max_ctas), Kind::Int, 21701),
    ("netName", offset_of!(ConfigStruct, net_name), Kind::Pointer, 21701),
    ("splitShare", offset_of!(ConfigStruct, split_share), Kind::Int, 21801),
    ("trafficClass", offset_of!(ConfigStruct, traffic_class), Kind::Int, 22602),
    ("commName", offset_of!(ConfigStruct, comm_name), Kind::Pointer, 22703),
    ("collnetEnable", offset_of!(ConfigStruct, collnet_enable), Kind::Int, 22703),
    ("CTAPolicy", offset_of!(ConfigStruct, cta_policy), Kind::Int, 22703),
    ("shrinkShare", offset_of!(ConfigStruct, shrink_share), Kind::Int, 22703),
    ("nvlsCTAs", offset_of!(ConfigStruct, nvls_ctas), Kind::Int, 22703),
    ("nChannelsPerNetPeer", offset_of!(ConfigStruct, channels_per_net_peer), Kind::Int, 22803),
    ("nvlinkCentricSched", offset_of!(ConfigStruct, nvlink_centric_sched), Kind::Int, 22803),
    ("graphUsageMode", offset_of!(ConfigStruct, graph_usage_mode), Kind::Int, 22902),
    ("numRmaCtx", offset_of!(ConfigStruct, num_rma_ctx), Kind::Int, 22902),
    ("maxP2pPeers", offset_of!(ConfigStruct, max_p2p_peers), Kind::Int, 23003),
    ("graphStreamOrdering", offset_of!(ConfigStruct, graph_stream_ordering), Kind::Int, 23005),
    ("launchOrderImplicit", offset_of!(ConfigStruct, launch_order_implicit), Kind::Int, 23100),
    ("numRmaSig", offset_of!(ConfigStruct, num_rma_sig), Kind::Int, 23100),
    ("rmaEagerInit", offset_of!(ConfigStruct, rma_eager_init), Kind::Int, 23100),
    ("hostCftMode", offset_of!(ConfigStruct, host_cft_mode), Kind::Int, 23101),
    ("nvlsHostMode", offset_of!(ConfigStruct, nvls_host_mode), Kind::Int, 23200),
];

/// The effective configuration: fields that the caller or the emulated version lacks are unset.
struct Values {
    bytes: [u8; size_of::<ConfigStruct>()],
}

impl Values {
    fn unset() -> Self {
        let mut values = Self { bytes: [0; size_of::<ConfigStruct>()] };
        for field in FIELDS {
            values.reset(field);
        }
        values
    }

    fn reset(&mut self, field: &(&str, usize, Kind, i32)) {
        match field.2 {
            Kind::Int => self.bytes[field.1..field.1 + 4].copy_from_slice(&UNDEFINED.to_le_bytes()),
            Kind::Pointer => self.bytes[field.1..field.1 + 8].fill(0),
        }
    }

    fn int(&self, name: &str) -> c_int {
        let field = FIELDS.iter().find(|field| field.0 == name).expect("the configuration has a field of this name");
        c_int::from_le_bytes(self.bytes[field.1..field.1 + 4].try_into().expect("an integer field has four bytes"))
    }

    fn set(&self, name: &str) -> Option<c_int> {
        Some(self.int(name)).filter(|value| *value != UNDEFINED)
    }
}

/// Returns the size of the struct in the emulated version.
fn own_size(version: i32) -> usize {
    let end = |field: &(&str, usize, Kind, i32)| field.1 + if matches!(field.2, Kind::Int) { 4 } else { 8 };
    let last = FIELDS.iter().filter(|field| field.3 <= version).map(end).max().unwrap_or(16);
    last.next_multiple_of(8)
}

fn one_of(values: &Values, name: &str, allowed: impl Fn(c_int) -> bool) -> Result {
    match values.set(name) {
        Some(value) if !allowed(value) => invalid(format!("Invalid config {name} attribute value {value}")),
        _ => Ok(()),
    }
}

/// Reads the caller's configuration. Returns `inherited` if the pointer is null.
pub(super) fn read(config: *const ConfigStruct, inherited: Config) -> Result<Config> {
    if config.is_null() {
        return Ok(inherited);
    }
    // SAFETY: every version's struct begins with this header.
    let header = unsafe { config.cast::<Header>().read() };
    header.check(MAGIC, "ncclConfig_t")?;
    let version = settings::get().version;
    let mut values = Values::unset();
    let length = header.size.min(own_size(version));
    if length > 16 {
        // SAFETY: the caller's struct is as long as it says, and the prefix is no longer.
        let given = unsafe { std::slice::from_raw_parts(config.cast::<u8>(), length) };
        values.bytes[..length].copy_from_slice(given);
    }
    for field in FIELDS.iter().filter(|field| i64::from(field.3) > i64::from(header.version) || field.3 > version) {
        values.reset(field);
    }
    let boolean = |value| value == 0 || value == 1;
    for name in
        ["blocking", "splitShare", "collnetEnable", "shrinkShare", "nvlinkCentricSched", "launchOrderImplicit", "rmaEagerInit"]
    {
        one_of(&values, name, boolean)?;
    }
    one_of(&values, "cgaClusterSize", |value| value >= 0)?;
    for name in ["minCTAs", "maxCTAs", "nvlsCTAs", "nChannelsPerNetPeer", "maxP2pPeers"] {
        one_of(&values, name, |value| value > 0)?;
    }
    // 0 is allowed since 2.30.7.
    let fewest = c_int::from(version < 23007);
    for name in ["numRmaCtx", "numRmaSig"] {
        one_of(&values, name, |value| value >= fewest)?;
    }
    one_of(&values, "trafficClass", |value| value >= 0)?;
    one_of(&values, "CTAPolicy", |value| (0..=3).contains(&value))?;
    one_of(&values, "graphUsageMode", |value| (0..=2).contains(&value))?;
    one_of(&values, "hostCftMode", |value| (1..=3).contains(&value))?;
    one_of(&values, "nvlsHostMode", |value| (0..=3).contains(&value) || value == c_int::MAX)?;
    if let (Some(min), Some(max)) = (values.set("minCTAs"), values.set("maxCTAs"))
        && min > max
    {
        return invalid(format!("Invalid config min/max channels attribute value {min}/{max}"));
    }
    log_values(&values);
    Ok(Config {
        blocking: values.set("blocking").map_or(Config::DEFAULT.blocking, |value| value == 1),
        max_ctas: values.set("maxCTAs").unwrap_or(Config::DEFAULT.max_ctas),
        num_rma_sig: values.set("numRmaSig").unwrap_or(Config::DEFAULT.num_rma_sig),
        num_rma_ctx: values.set("numRmaCtx").unwrap_or(Config::DEFAULT.num_rma_ctx),
    })
}

/// Logs the effective values, so that a test can see which fields the emulated version reads.
fn log_values(values: &Values) {
    let mut shown = Vec::new();
    for field in FIELDS {
        match field.2 {
            Kind::Int => shown.extend(values.set(field.0).map(|value| format!("{}={value}", field.0))),
            Kind::Pointer => {
                let address =
                    usize::from_le_bytes(values.bytes[field.1..field.1 + 8].try_into().expect("a pointer field has eight bytes"));
                if address != 0 {
                    shown.push(format!("{}={}", field.0, text(std::ptr::with_exposed_provenance(address))));
                }
            }
        }
    }
    log::line(&format!("config {}", shown.join(" ")));
}
