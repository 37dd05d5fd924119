//! The configuration of one collective, which requires NCCL 2.31. `of_communicator.rs` has the
//! configuration of a communicator.
//!
//! This module does not call NCCL. NCCL checks the configuration on each rank separately, so the
//! caller must pass the same configuration on all ranks.
//!
//! Invariant: each option that is set is either passed to NCCL or causes an error, as in
//! `of_communicator.rs`.

use std::ffi::c_int;
use std::sync::Arc;

use peerweave_driver::cudarc::driver::CudaEvent;

use crate::config::of_communicator::{Found, in_range, interned};
use crate::library::error::{MisuseKind, NcclError};
use crate::member::membership::Inner;
use crate::sys::{self, Versioned, ncclCollConfig_t, ncclConfigExt_t};
use crate::{CtaPolicy, Switch, Version, version_code};

/// Configuration of one collective. NCCL selects a value for each option that is not set. Every
/// rank must pass the same configuration. Requires NCCL 2.31.
///
/// ```
/// use peerweave_nccl::{CollConfig, Switch};
///
/// let config = CollConfig::new().max_ctas(8).profiler_tag(42).force_algorithms(Switch::Off);
/// # let _ = config;
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct CollConfig {
    min_ctas: Option<u32>,
    max_ctas: Option<u32>,
    nvls_ctas: Option<u32>,
    cga_cluster_size: Option<u32>,
    algorithms: Option<String>,
    force_algorithms: Option<Switch>,
    cta_policy: Option<CtaPolicy>,
    profiler_tag: u64,
    launch_completion_event: Option<Arc<CudaEvent>>,
    vendor_options: Vec<VendorOption>,
}

/// An option for a library of another vendor that implements NCCL's interface. NVIDIA's NCCL
/// ignores such options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VendorOption {
    /// Number of the vendor, from 1 to 2^24 - 1.
    pub vendor: u32,
    /// Number of the option, defined by the vendor.
    pub option: i32,
    /// Value of the option.
    pub value: VendorValue,
}

/// Value of a [`VendorOption`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VendorValue {
    /// An integer, which NCCL stores as a C `int`.
    Number(i32),
    /// A string. Each distinct string stays in memory until the process ends.
    Text(String),
}

/// First version of NCCL with a configuration for single collectives.
const SINCE: Version = Version::new(2, 31, 0);
/// Maximum value of a numeric option. NCCL stores the value as a C `int`.
const MOST: u32 = i32::MAX as u32;

impl CollConfig {
    /// Creates a configuration in which no option is set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the minimum number of CTAs.
    pub fn min_ctas(mut self, ctas: u32) -> Self {
        self.min_ctas = Some(ctas);
        self
    }

    /// Sets the maximum number of CTAs. The communicator's own maximum still applies.
    pub fn max_ctas(mut self, ctas: u32) -> Self {
        self.max_ctas = Some(ctas);
        self
    }

    /// Sets the maximum number of CTAs of a collective that uses NVLink switches.
    pub fn nvls_ctas(mut self, ctas: u32) -> Self {
        self.nvls_ctas = Some(ctas);
        self
    }

    /// Sets the number of thread blocks in each cluster of the kernel, from 0 to 8. All collectives
    /// in a group must have the same cluster size.
    pub fn cga_cluster_size(mut self, blocks: u32) -> Self {
        self.cga_cluster_size = Some(blocks);
        self
    }

    /// Sets the algorithms that NCCL may use, in NCCL's own syntax. Each distinct string stays in
    /// memory until the process ends.
    pub fn algorithms(mut self, selection: impl Into<String>) -> Self {
        self.algorithms = Some(selection.into());
        self
    }

    /// Sets whether the collective fails if none of the selected [`algorithms`](Self::algorithms)
    /// is available. The default is on.
    pub fn force_algorithms(mut self, force: Switch) -> Self {
        self.force_algorithms = Some(force);
        self
    }

    /// Sets the policy by which NCCL selects the number of CTAs.
    ///
    /// [`CtaPolicy::Zero`] is for buffers in symmetric windows. Copy engines then copy the data of
    /// these buffers. With this policy an in-place scatter failed on 4 H200 with NCCL 2.32.3. NCCL
    /// refused the call on the root, and the other ranks waited for the root until the deadline.
    pub fn cta_policy(mut self, policy: CtaPolicy) -> Self {
        self.cta_policy = Some(policy);
        self
    }

    /// Sets the tag that identifies this collective in profilers. The tag must be less than 2^63.
    /// The value 0 means that the collective has no tag.
    pub fn profiler_tag(mut self, tag: u64) -> Self {
        self.profiler_tag = tag;
        self
    }

    /// Sets an event that NCCL records when the launch of the kernel is complete. The event must
    /// belong to the communicator's context, and must have been created without timing (cudarc's
    /// default). Either every rank must set an event, or no rank may set an event. A group can have
    /// one event for each communicator. Requires NCCL 2.32.
    pub fn launch_completion_event(mut self, event: Arc<CudaEvent>) -> Self {
        self.launch_completion_event = Some(event);
        self
    }

    /// Adds an option for another vendor's implementation of the NCCL interface. NVIDIA's NCCL
    /// ignores the option.
    pub fn vendor_option(mut self, option: VendorOption) -> Self {
        self.vendor_options.push(option);
        self
    }

    /// Converts the configuration to NCCL's struct, for a call on the communicator `inner`.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] for an option that the library does not support;
    /// [`NcclError::Misuse`] for a value that NCCL would refuse.
    pub(crate) fn to_raw(&self, call: &'static str, inner: &Inner) -> Result<RawCollConfig, NcclError> {
        let raw = self.for_version(&Found { call, version: inner.nccl.version(), path: &inner.nccl.shared_path() })?;
        let checked = |event: &Arc<CudaEvent>| inner.check_context(call, "the launch completion event", event.context());
        self.launch_completion_event.as_ref().map_or(Ok(()), checked)?;
        Ok(raw)
    }

    fn for_version(&self, found: &Found<'_>) -> Result<RawCollConfig, NcclError> {
        found.needs("CollConfig (ncclCollConfig_t)", SINCE)?;
        let misuse = |kind| Err(NcclError::misuse(found.call, kind));
        if let (Some(min), Some(max)) = (self.min_ctas, self.max_ctas)
            && min > max
        {
            return misuse(MisuseKind::Combination { what: "CollConfig::min_ctas", why: "min_ctas is greater than max_ctas" });
        }
        if self.profiler_tag >> 63 != 0 {
            let why = "the tag's highest bit is reserved by NCCL, expected a tag below 2^63";
            return misuse(MisuseKind::Combination { what: "CollConfig::profiler_tag", why });
        }
        if self.launch_completion_event.is_some() {
            found
                .needs("CollConfig::launch_completion_event (ncclCollConfig_t.launchCompletionEvent)", Version::new(2, 32, 0))?;
        }
        let count = |what, count: Option<u32>, range, expected| match count {
            None => Ok(sys::NCCL_CONFIG_UNDEF_INT),
            Some(count) => in_range(found.call, what, count, range, expected),
        };
        let version = found.version.min(sys::HEADER);
        let mut extensions = self.extensions(found.call)?;
        let mut raw = ncclCollConfig_t {
            size: ncclCollConfig_t::len_bytes(version)
                .expect("the version is at least 2.31, in which NCCL introduced `ncclCollConfig_t`"),
            magic: sys::NCCL_API_MAGIC,
            version: version_code(version).unsigned_abs(),
            ext: if extensions.is_empty() { std::ptr::null_mut() } else { extensions.as_mut_ptr() },
            minCTAs: count("CollConfig::min_ctas", self.min_ctas, 1..=MOST, "a number of at least 1")?,
            maxCTAs: count("CollConfig::max_ctas", self.max_ctas, 1..=MOST, "a number of at least 1")?,
            nvlsCTAs: count("CollConfig::nvls_ctas", self.nvls_ctas, 1..=MOST, "a number of at least 1")?,
            cgaClusterSize: count("CollConfig::cga_cluster_size", self.cga_cluster_size, 0..=8, "a number from 0 to 8")?,
            algSelection: std::ptr::null(),
            forceAlgSelection: c_int::from(self.force_algorithms != Some(Switch::Off)),
            CTAPolicy: self.cta_policy.map_or(sys::NCCL_CONFIG_UNDEF_INT, CtaPolicy::raw),
            userProfilerTag: self.profiler_tag,
            launchCompletionEvent: self.launch_completion_event.as_ref().map_or(std::ptr::null_mut(), |event| event.cu_event()),
        };
        if let Some(selection) = &self.algorithms {
            raw.algSelection = interned(found.call, "CollConfig::algorithms", selection)?;
        }
        Ok(RawCollConfig { raw, _extensions: extensions, event: self.launch_completion_event.clone() })
    }

    /// Converts the vendors' options to NCCL's linked list. Fails if two options have the same
    /// vendor and number, or if the number of a vendor is out of range.
    fn extensions(&self, call: &'static str) -> Result<Vec<ncclConfigExt_t>, NcclError> {
        const WHAT: &str = "CollConfig::vendor_option";
        let mut list = Vec::with_capacity(self.vendor_options.len());
        for (index, option) in self.vendor_options.iter().enumerate() {
            let key = (option.vendor, option.option);
            if self.vendor_options[..index].iter().any(|earlier| (earlier.vendor, earlier.option) == key) {
                return Err(NcclError::misuse(
                    call,
                    MisuseKind::Combination { what: WHAT, why: "two options have the same vendor and number" },
                ));
            }
            let vendor = in_range(call, WHAT, option.vendor, 1..=(1 << 24) - 1, "a vendor number from 1 to 16777215")?;
            let val = match &option.value {
                VendorValue::Number(number) => sys::ncclConfigExtValue { i: *number },
                VendorValue::Text(text) => sys::ncclConfigExtValue { s: interned(call, WHAT, text)? },
            };
            let key = sys::ncclConfigExtKey { vendorId: vendor, optionId: option.option };
            list.push(ncclConfigExt_t { next: std::ptr::null_mut(), key, val });
        }
        // All links derive from one pointer to the whole list. So writing one element does not
        // invalidate the pointer to another element.
        let first = list.as_mut_ptr();
        for index in 1..list.len() {
            // SAFETY: both indices are inside the list. The list's memory does not move when the
            // vector is moved.
            unsafe { (*first.add(index - 1)).next = first.add(index) };
        }
        Ok(list)
    }
}

/// The configuration of one collective as NCCL's C struct, in the layout of one version of NCCL.
/// The struct must outlive every call to which it is passed. If the call is in a group, the struct
/// must also outlive the end of the group.
///
/// The type is not `Clone`, because `raw` points into `_extensions`.
pub(crate) struct RawCollConfig {
    raw: ncclCollConfig_t,
    _extensions: Vec<ncclConfigExt_t>,
    event: Option<Arc<CudaEvent>>,
}

impl RawCollConfig {
    /// Returns the pointer to pass to NCCL. NCCL only reads the struct.
    pub(crate) fn as_ptr(&self) -> *const ncclCollConfig_t {
        &raw const self.raw
    }

    /// Returns the event that NCCL records after the launch of the collective, if an event was set.
    /// The caller keeps the event alive until NCCL has recorded the event. If the collective was
    /// captured, the caller keeps the event alive as long as the graph.
    pub(crate) fn event(&self) -> Option<&Arc<CudaEvent>> {
        self.event.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::path::Path;

    use super::*;

    fn build(config: &CollConfig, version: &str) -> Result<RawCollConfig, NcclError> {
        let path: Arc<Path> = Path::new("/opt/libnccl.so.2").into();
        config.for_version(&Found { call: "all_reduce", version: version.parse().expect("the version is valid"), path: &path })
    }

    #[test]
    fn call_config_struct_size_depends_on_the_nccl_version() {
        for (version, len_bytes, code) in
            [("2.31.0", 64, 23100), ("2.31.2", 64, 23102), ("2.32.3", 72, 23203), ("2.40.1", 72, 23203)]
        {
            let config = build(&CollConfig::new(), version).expect("NCCL 2.31 supports call configurations");
            assert_eq!((config.raw.size, config.raw.version, config.raw.magic), (len_bytes, code, 0xcafe_beef), "{version}");
            assert_eq!((config.raw.forceAlgSelection, config.raw.userProfilerTag, config.raw.maxCTAs), (1, 0, c_int::MIN));
            assert!(config.raw.ext.is_null() && config.raw.algSelection.is_null() && config.raw.launchCompletionEvent.is_null());
        }
    }

    #[test]
    fn nccl_before_2_31_supports_no_call_config() {
        let error = build(&CollConfig::new(), "2.30.7").err().expect("NCCL 2.30 supports no call configurations");
        assert_eq!(error.to_string(), "CollConfig (ncclCollConfig_t) needs NCCL 2.31.0, found 2.30.7 (/opt/libnccl.so.2)");
    }

    #[test]
    fn call_config_values_are_written_to_the_struct() {
        let config = CollConfig::new()
            .min_ctas(1)
            .max_ctas(4)
            .nvls_ctas(2)
            .cga_cluster_size(0)
            .algorithms("ring")
            .force_algorithms(Switch::Off)
            .cta_policy(CtaPolicy::Zero)
            .profiler_tag(u64::MAX >> 1);
        let raw = build(&config, "2.32.3").expect("all options are supported").raw;
        assert_eq!((raw.minCTAs, raw.maxCTAs, raw.nvlsCTAs, raw.cgaClusterSize, raw.CTAPolicy), (1, 4, 2, 0, 2));
        assert_eq!((raw.forceAlgSelection, raw.userProfilerTag), (0, u64::MAX >> 1));
        // SAFETY: the pointer was made by `interned` just now.
        assert_eq!(unsafe { CStr::from_ptr(raw.algSelection) }, c"ring");
    }

    #[test]
    fn vendor_options_form_a_null_terminated_list() {
        let option = |option, value| VendorOption { vendor: 77, option, value };
        let config = CollConfig::new()
            .vendor_option(option(1, VendorValue::Number(-5)))
            .vendor_option(option(2, VendorValue::Text("fast".into())))
            .vendor_option(option(3, VendorValue::Number(9)));
        let built = build(&config, "2.31.2").expect("all options are supported");
        let mut keys = Vec::new();
        let mut next = built.raw.ext.cast_const();
        while !next.is_null() {
            // SAFETY: the list belongs to `built`, which is alive.
            let extension = unsafe { *next };
            keys.push((extension.key.vendorId, extension.key.optionId));
            next = extension.next;
        }
        assert_eq!(keys, [(77, 1), (77, 2), (77, 3)]);
        let twice = config.vendor_option(option(2, VendorValue::Number(0)));
        assert!(build(&twice, "2.31.2").is_err());
        let nobody = CollConfig::new().vendor_option(VendorOption { vendor: 0, option: 1, value: VendorValue::Number(0) });
        assert!(build(&nobody, "2.31.2").is_err());
    }

    #[test]
    fn call_config_that_nccl_would_refuse_is_misuse() {
        for (config, expected) in [
            (CollConfig::new().min_ctas(5).max_ctas(4), "all_reduce: CollConfig::min_ctas: min_ctas is greater than max_ctas"),
            (
                CollConfig::new().profiler_tag(1 << 63),
                "all_reduce: CollConfig::profiler_tag: the tag's highest bit is reserved by NCCL, expected a tag below 2^63",
            ),
            (CollConfig::new().max_ctas(0), "all_reduce: CollConfig::max_ctas is 0, expected a number of at least 1"),
        ] {
            assert_eq!(build(&config, "2.32.3").err().expect("the configuration is invalid").to_string(), expected);
        }
    }
}
