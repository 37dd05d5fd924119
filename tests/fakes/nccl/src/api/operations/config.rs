//! Reads the configuration of a call.
//!
//! Invariant: only the fields that the caller's version of the struct has are read.

use core::ffi::c_int;
use core::mem::offset_of;

use crate::abi::{CollConfig, Header, MAGIC, Result, UNDEFINED, invalid, misuse, text};
use crate::report::log;
use crate::settings;

/// Reads the configuration of a call; returns an event to record when the call is launched.
pub(super) fn read_call(config: *const CollConfig, max_ctas: c_int) -> Result<Option<usize>> {
    if config.is_null() {
        return Ok(None);
    }
    // SAFETY: every version's struct begins with this header.
    let header = unsafe { config.cast::<Header>().read() };
    header.check(MAGIC, "ncclCollConfig_t")?;
    let own = settings::get().version;
    let whole = header.size >= size_of::<CollConfig>();
    if !whole && header.size < offset_of!(CollConfig, launch_completion_event) {
        return invalid(format!("ncclCollConfig_t has {} bytes, fewer than in any version of NCCL", header.size));
    }
    let mut fields = CollConfig {
        header,
        ext: std::ptr::null(),
        min_ctas: UNDEFINED,
        max_ctas: UNDEFINED,
        nvls_ctas: UNDEFINED,
        cga_cluster_size: UNDEFINED,
        alg_selection: std::ptr::null(),
        force_alg_selection: 1,
        cta_policy: UNDEFINED,
        user_profiler_tag: 0,
        launch_completion_event: std::ptr::null_mut(),
    };
    let length = header.size.min(size_of::<CollConfig>());
    // SAFETY: both are at least so long, and do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(config.cast::<u8>(), (&raw mut fields).cast::<u8>(), length) };
    log_call(&fields);
    for (name, value) in [("minCTAs", fields.min_ctas), ("maxCTAs", fields.max_ctas), ("nvlsCTAs", fields.nvls_ctas)] {
        if value != UNDEFINED && value <= 0 {
            return invalid(format!("Invalid collective config {name} value {value}"));
        }
    }
    if fields.max_ctas != UNDEFINED && fields.max_ctas > max_ctas {
        return invalid(format!("collective config maxCTAs {} exceeds the communicator's {max_ctas}", fields.max_ctas));
    }
    if fields.min_ctas != UNDEFINED && fields.max_ctas != UNDEFINED && fields.min_ctas > fields.max_ctas {
        return invalid(format!("collective config minCTAs {} exceeds maxCTAs {}", fields.min_ctas, fields.max_ctas));
    }
    if !fields.alg_selection.is_null() {
        check_algorithms(&text(fields.alg_selection), fields.force_alg_selection != 0)?;
    }
    let knows_event = own >= 23200 && header.version >= 23200;
    let event = fields.launch_completion_event.addr();
    Ok((knows_event && event != 0).then_some(event))
}

/// Logs the configuration of a call.
fn log_call(fields: &CollConfig) {
    let counts = [
        ("minCTAs", fields.min_ctas),
        ("maxCTAs", fields.max_ctas),
        ("nvlsCTAs", fields.nvls_ctas),
        ("cgaClusterSize", fields.cga_cluster_size),
        ("CTAPolicy", fields.cta_policy),
    ];
    let set = counts.iter().filter(|(_, value)| *value != UNDEFINED);
    let mut shown: Vec<String> = set.map(|(name, value)| format!("{name}={value}")).collect();
    if !fields.alg_selection.is_null() {
        shown.push(format!("algSelection={} forceAlgSelection={}", text(fields.alg_selection), fields.force_alg_selection));
    }
    shown.push(format!("userProfilerTag={}", fields.user_profiler_tag));
    shown.push(format!("event={}", !fields.launch_completion_event.is_null()));
    shown.push(format!("ext={}", !fields.ext.is_null()));
    log::line(&format!("collective config {}", shown.join(" ")));
}

/// Returns an error for an algorithm that NCCL lacks, if the selection is forced.
fn check_algorithms(selection: &str, forced: bool) -> Result {
    const KNOWN: &[&str] =
        &["ring", "tree", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat", "ll", "ll128", "simple", "symk", "ce"];
    let lower = selection.to_ascii_lowercase();
    let unknown =
        lower.split([',', ';', ':', '+', '|', '^', '=', '/', ' ']).find(|word| !word.is_empty() && !KNOWN.contains(word));
    match unknown {
        Some(word) if forced => misuse(format!("NCCL has no algorithm {word} for this collective")),
        _ => Ok(()),
    }
}
