//! The configuration of a communicator. `of_call.rs` has the configuration of one collective.
//!
//! NCCL selects the values of options that are not set.
//!
//! Invariant: each option that is set is either passed to NCCL or causes an error. NCCL itself
//! silently ignores options that it does not support.

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::choices::{Choice, CtaPolicy, GraphUsage, HostCftMode, NvlsHostMode, Switch};
use crate::config::nvls;
use crate::library::error::{Misuse, MisuseKind, NcclError};
use crate::library::loading::PRODUCT;
use crate::sys::{self, Versioned, ncclConfig_t};
use crate::{Nccl, Unsupported, Version, version_code};

/// Maximum value of a numeric option. NCCL stores the value as a C `int`.
const MOST: u32 = i32::MAX as u32;

/// Generates `Config` and its methods from three lists of options: options with named values, with
/// numbers, and with texts.
macro_rules! options {
    (
        choices { $($(#[$choice_doc:meta])* $choice:ident: $Choice:ty => $choice_field:ident $(, $unsafe:tt)?;)* }
        counts { $($(#[$count_doc:meta])* $count:ident in $range:expr, $expected:literal => $count_field:ident;)* }
        texts { $($(#[$text_doc:meta])* $text:ident => $text_field:ident;)* }
    ) => {
        /// Configuration of a communicator. NCCL selects a value for each option that is not set.
        ///
        /// The documentation of each option names the version of NCCL that introduced the option.
        /// With an older library, creating the communicator fails with [`NcclError::Unsupported`].
        ///
        /// ```
        /// use peerweave_nccl::{Config, CtaPolicy, Switch};
        ///
        /// let config = Config::new().name("tensor parallel").blocking(Switch::Off).cta_policy(CtaPolicy::Efficiency);
        /// assert_eq!(config, config.clone());
        /// ```
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[must_use]
        pub struct Config {
            $($choice: Option<$Choice>,)*
            $($count: Option<u32>,)*
            $($text: Option<String>,)*
        }

        impl Config {
            $(
                $(#[$choice_doc])*
                pub $($unsafe)? fn $choice(mut self, $choice: $Choice) -> Self {
                    self.$choice = Some($choice);
                    self
                }
            )*
            $(
                $(#[$count_doc])*
                pub fn $count(mut self, $count: u32) -> Self {
                    self.$count = Some($count);
                    self
                }
            )*
            $(
                $(#[$text_doc])*
                pub fn $text(mut self, $text: impl Into<String>) -> Self {
                    self.$text = Some($text.into());
                    self
                }
            )*

            /// Stores every set option in `raw`. Fails if a value is out of range, or if the
            /// library `found` does not support an option.
            fn fill(&self, raw: &mut ncclConfig_t, found: &Found<'_>) -> Result<(), NcclError> {
                $(if let Some(choice) = self.$choice {
                    const WHAT: &str = option_name!($choice, $choice_field);
                    found.needs(WHAT, field_since(stringify!($choice_field)))?;
                    if let Some(since) = choice.since() {
                        found.needs(WHAT, since)?;
                    }
                    raw.$choice_field = choice.number();
                })*
                $(if let Some(count) = self.$count {
                    const WHAT: &str = option_name!($count, $count_field);
                    found.needs(WHAT, field_since(stringify!($count_field)))?;
                    raw.$count_field = in_range(found.call, WHAT, count, $range, $expected)?;
                })*
                $(if let Some(text) = &self.$text {
                    const WHAT: &str = option_name!($text, $text_field);
                    found.needs(WHAT, field_since(stringify!($text_field)))?;
                    raw.$text_field = interned(found.call, WHAT, text)?;
                })*
                Ok(())
            }
        }

        /// Returns, for each option, the name of its field in `ncclConfig_t`, and a configuration
        /// in which only this option is set. For tests.
        #[cfg(test)]
        fn one_by_one() -> Vec<(&'static str, Config)> {
            fn some<C: Choice + Sample>() -> C { C::SAMPLE }
            vec![
                $((stringify!($choice_field), Config { $choice: Some(some::<$Choice>()), ..Config::new() }),)*
                $((stringify!($count_field), Config::new().$count(*$range.start()))),*,
                $((stringify!($text_field), Config::new().$text("text"))),*
            ]
        }
    };
}

macro_rules! option_name {
    ($method:ident, $field:ident) => {
        concat!("Config::", stringify!($method), " (ncclConfig_t.", stringify!($field), ")")
    };
}

options! {
    choices {
        /// Sets whether calls wait inside NCCL until NCCL's work on the host is complete. The
        /// default is on, and a watchdog enforces the deadlines. If off, NCCL's functions return
        /// immediately, and this crate waits with the same deadlines.
        /// [`Communicator`](crate::Communicator) documents the costs of non-blocking communicators.
        ///
        /// If on, a separate thread calls NCCL to create the communicator. After a timeout this
        /// separate thread stays in NCCL until the other ranks arrive, and may keep a processor
        /// busy. Requires NCCL 2.14.
        blocking: Switch => blocking;
        /// Sets whether children created by split share resources with this communicator. If not
        /// set, NCCL reads the environment variable `NCCL_COMM_SPLIT_SHARE_RESOURCES`. The safety
        /// requirements below also apply if the variable switches the sharing on. Requires NCCL
        /// 2.18.
        ///
        /// # Safety
        /// If the option is on, two threads must not make host calls on the communicator or its
        /// children at the same time. NCCL changes the shared state without a lock, and this
        /// crate's locks protect only one communicator each. Aborting one of these communicators
        /// also ends work of the other communicators, without an error.
        split_share: Switch => splitShare, unsafe;
        /// Sets whether children created by shrink share resources with this communicator. If not
        /// set, NCCL reads the environment variable `NCCL_COMM_SHRINK_SHARE_RESOURCES`. Requires
        /// NCCL 2.27.
        ///
        /// # Safety
        /// As for [`split_share`](Self::split_share).
        shrink_share: Switch => shrinkShare, unsafe;
        /// Sets whether reductions run inside InfiniBand switches (SHARP). Requires NCCL 2.27.
        collnet_enable: Switch => collnetEnable;
        /// Sets the policy by which NCCL selects the number of CTAs. Requires NCCL 2.27.
        /// [`CtaPolicy::Zero`] requires NCCL 2.28.
        cta_policy: CtaPolicy => CTAPolicy;
        /// Sets whether NCCL's kernel launches give the CUDA driver a hint to use NVLink as fully
        /// as possible. The default is off. Requires NCCL 2.28.
        nvlink_centric_sched: Switch => nvlinkCentricSched;
        /// Sets how the program uses this communicator's collectives in captured graphs. Requires
        /// NCCL 2.29.
        graph_usage: GraphUsage => graphUsageMode;
        /// Sets whether NCCL orders kernels that are captured into graphs. If off, the caller must
        /// order these kernels, and [`graph_usage`](Self::graph_usage) must be
        /// [`GraphUsage::Never`] or [`GraphUsage::One`]. Requires NCCL 2.30.5.
        graph_stream_ordering: Switch => graphStreamOrdering;
        /// Sets whether NCCL launches the work of several communicators on one device in the same
        /// order on every rank. If the option is on, work on different communicators cannot
        /// deadlock. Requires NCCL 2.31.
        launch_order_implicit: Switch => launchOrderImplicit;
        /// Sets whether NCCL sets up one-sided signals when the communicator is created. If off,
        /// NCCL sets up the signals when the first window is registered. A program that uses
        /// signals without windows must switch this option on. Requires NCCL 2.31.
        rma_eager_init: Switch => rmaEagerInit;
        /// Sets whether host code can query fabric addresses of windows. With a fabric address,
        /// kernels access a window by NCCL's Compute Fabric Transport (CFT). Requires NCCL 2.31.1.
        host_cft_mode: HostCftMode => hostCftMode;
        /// Sets the operations of NVLink switches (NVLS) that NCCL's host API uses. Requires NCCL
        /// 2.32.
        nvls_host_mode: NvlsHostMode => nvlsHostMode;
    }
    counts {
        /// Sets the number of thread blocks in each cluster of NCCL's kernels, from 0 to 8.
        /// Requires NCCL 2.17.
        cga_cluster_size in 0..=8, "a number from 0 to 8" => cgaClusterSize;
        /// Sets the minimum number of CTAs of a kernel. [`max_ctas`](Self::max_ctas) must be set
        /// too. Requires NCCL 2.17.
        min_ctas in 1..=MOST, "a number of at least 1" => minCTAs;
        /// Sets the maximum number of CTAs of a kernel. Requires NCCL 2.17.
        max_ctas in 1..=MOST, "a number of at least 1" => maxCTAs;
        /// Sets the traffic class of network operations. The network defines the meaning of the
        /// value, such as a service level or a type of service. Requires NCCL 2.26.
        traffic_class in 0..=MOST, "a number of at most 2147483647" => trafficClass;
        /// Sets the number of CTAs of kernels that use NVLink switches. Requires NCCL 2.27.
        nvls_ctas in 1..=MOST, "a number of at least 1" => nvlsCTAs;
        /// Sets the number of network channels to one peer. NCCL rounds the number up to a power of
        /// two. Requires NCCL 2.28.
        channels_per_net_peer in 1..=64, "a number from 1 to 64" => nChannelsPerNetPeer;
        /// Sets the number of contexts for one-sided operations. With 0 there are no contexts.
        /// Requires NCCL 2.29.
        num_rma_ctx in 0..=MOST, "a number of at most 2147483647" => numRmaCtx;
        /// Sets the maximum number of peers to which a rank sends, or from which a rank receives,
        /// at the same time. Requires NCCL 2.30.
        max_p2p_peers in 1..=MOST, "a number of at least 1" => maxP2pPeers;
        /// Sets the number of signals for one-sided operations in each context. Requires NCCL 2.31.
        num_rma_sig in 0..=MOST, "a number of at most 2147483647" => numRmaSig;
    }
    texts {
        /// Sets the network to use: `IB`, `Socket`, or the name of a plug-in. Requires NCCL 2.17.
        net_name => netName;
        /// Sets the communicator's name in logs, profilers and errors. NCCL stores a pointer to the
        /// name, so each distinct name stays in memory until the process ends. Requires NCCL 2.27.
        name => commName;
    }
}

impl Config {
    /// Creates a configuration in which no option is set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the name that was set with [`name`](Self::name), if any.
    pub fn name_set(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the value that was set with [`blocking`](Self::blocking), if any.
    pub(crate) fn blocking_set(&self) -> Option<Switch> {
        self.blocking
    }

    /// Converts the configuration to NCCL's struct, in the layout of the loaded library.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] for an option that the library does not support.
    /// [`NcclError::Misuse`] for a value that NCCL would refuse. [`NcclError::Misuse`] also if
    /// multicast objects are disabled in this process, but the environment variable
    /// `NCCL_NVLS_ENABLE` is not 0.
    pub(crate) fn to_raw(&self, call: &'static str, nccl: Nccl) -> Result<RawConfig, NcclError> {
        nvls::obeys_the_switch(call)?;
        self.for_version(&Found { call, version: nccl.version(), path: &nccl.shared_path() })
    }

    fn for_version(&self, found: &Found<'_>) -> Result<RawConfig, NcclError> {
        self.check(found.call)?;
        let mut raw = unset();
        self.fill(&mut raw, found)?;
        // A library newer than the header of this crate reads the version in the struct, and uses
        // defaults for the fields that later versions added.
        let version = found.version.min(sys::HEADER);
        raw.version = version_code(version).unsigned_abs();
        raw.size = ncclConfig_t::len_bytes(version).ok_or_else(|| found.unsupported("ncclConfig_t", Version::new(2, 14, 0)))?;
        Ok(RawConfig(raw))
    }

    /// Fails for combinations of options that NCCL would refuse, or that NCCL would log and then
    /// ignore.
    fn check(&self, call: &'static str) -> Result<(), NcclError> {
        let combination = |what, why| Err(NcclError::misuse(call, MisuseKind::Combination { what, why }));
        match (self.min_ctas, self.max_ctas) {
            (Some(_), None) => return combination("Config::min_ctas", "min_ctas is set without max_ctas; set both"),
            (Some(min), Some(max)) if min > max => return combination("Config::min_ctas", "min_ctas is greater than max_ctas"),
            _ => {}
        }
        if self.graph_stream_ordering == Some(Switch::Off)
            && !matches!(self.graph_usage, Some(GraphUsage::Never | GraphUsage::One))
        {
            return combination(
                "Config::graph_stream_ordering",
                "the value is Switch::Off, which NCCL ignores unless Config::graph_usage is GraphUsage::Never or GraphUsage::One; set graph_usage to one of these values",
            );
        }
        Ok(())
    }
}

/// Returns a struct in which every option is marked as not set. Size and version are 0.
fn unset() -> ncclConfig_t {
    const UNDEF: c_int = sys::NCCL_CONFIG_UNDEF_INT;
    ncclConfig_t {
        size: 0,
        magic: sys::NCCL_API_MAGIC,
        version: 0,
        blocking: UNDEF,
        cgaClusterSize: UNDEF,
        minCTAs: UNDEF,
        maxCTAs: UNDEF,
        netName: std::ptr::null(),
        splitShare: UNDEF,
        trafficClass: UNDEF,
        commName: std::ptr::null(),
        collnetEnable: UNDEF,
        CTAPolicy: UNDEF,
        shrinkShare: UNDEF,
        nvlsCTAs: UNDEF,
        nChannelsPerNetPeer: UNDEF,
        nvlinkCentricSched: UNDEF,
        graphUsageMode: UNDEF,
        numRmaCtx: UNDEF,
        maxP2pPeers: UNDEF,
        graphStreamOrdering: UNDEF,
        launchOrderImplicit: UNDEF,
        numRmaSig: UNDEF,
        rmaEagerInit: UNDEF,
        hostCftMode: UNDEF,
        nvlsHostMode: UNDEF,
    }
}

/// The configuration of a communicator as NCCL's C struct, in the layout of one version of NCCL.
#[derive(Clone, Debug)]
pub(crate) struct RawConfig(ncclConfig_t);

// SAFETY: the pointers in the struct point to shared text. No thread writes the text, and it lives
// until the process ends (`interned`), so no synchronisation is needed. A failure would be caught
// by the test `communicator_names_are_interned_and_valid_on_every_thread`.
unsafe impl Send for RawConfig {}
// SAFETY: as above, and nothing in the struct changes through a shared reference.
unsafe impl Sync for RawConfig {}

impl RawConfig {
    /// Returns the pointer to pass to NCCL. NCCL reads the struct only during the call. NCCL also
    /// stores pointers to the texts in the struct. These texts live until the process ends.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut ncclConfig_t {
        &raw mut self.0
    }
}

/// The call for which a configuration struct is created, and the version and the path of the loaded
/// NCCL library. The version determines the layout of the struct. Errors name the call, the version
/// and the path.
pub(crate) struct Found<'a> {
    pub(crate) call: &'static str,
    pub(crate) version: Version,
    pub(crate) path: &'a Arc<Path>,
}

impl Found<'_> {
    pub(crate) fn needs(&self, what: &'static str, since: Version) -> Result<(), NcclError> {
        if self.version.at_least(since) { Ok(()) } else { Err(self.unsupported(what, since)) }
    }

    #[cold]
    pub(crate) fn unsupported(&self, what: &'static str, since: Version) -> NcclError {
        Unsupported { product: PRODUCT, what, since: Some(since), found: self.version, path: Arc::clone(self.path) }.into()
    }
}

/// Returns the version that introduced a field of `ncclConfig_t`.
fn field_since(name: &str) -> Version {
    let field = ncclConfig_t::FIELDS.iter().find(|field| field.name == name);
    field.expect("`ncclConfig_t::FIELDS` has every field of the struct").since
}

/// Converts a numeric option to NCCL's type. Fails unless `range` contains the number. `expected`
/// describes the range in the error.
pub(crate) fn in_range(
    call: &'static str,
    what: &'static str,
    found: u32,
    range: std::ops::RangeInclusive<u32>,
    expected: &'static str,
) -> Result<c_int, NcclError> {
    match c_int::try_from(found) {
        Ok(number) if range.contains(&found) => Ok(number),
        _ => Err(Misuse { call, kind: MisuseKind::Value { what, found: i64::from(found), expected } }.into()),
    }
}

/// Returns a copy of `text` that lives until the process ends, for names to which NCCL stores
/// pointers. Equal texts share one copy.
pub(crate) fn interned(call: &'static str, what: &'static str, text: &str) -> Result<*const c_char, NcclError> {
    static TEXTS: Mutex<Option<HashSet<&'static CStr>>> = Mutex::new(None);
    let Ok(text) = CString::new(text) else {
        return Err(NcclError::misuse(call, MisuseKind::Text { what, why: "the text contains a zero byte" }));
    };
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let texts = texts.get_or_insert_default();
    if let Some(known) = texts.get(text.as_c_str()) {
        return Ok(known.as_ptr());
    }
    let new: &'static CStr = Box::leak(text.into_boxed_c_str());
    texts.insert(new);
    Ok(new.as_ptr())
}

#[cfg(test)]
trait Sample {
    const SAMPLE: Self;
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Sample for Switch {
        const SAMPLE: Self = Self::On;
    }
    impl Sample for CtaPolicy {
        const SAMPLE: Self = Self::Efficiency;
    }
    impl Sample for GraphUsage {
        const SAMPLE: Self = Self::One;
    }
    impl Sample for HostCftMode {
        const SAMPLE: Self = Self::Fallback;
    }
    impl Sample for NvlsHostMode {
        const SAMPLE: Self = Self::DisableBoth;
    }

    const VERSIONS: [&str; 24] = [
        "2.18.1", "2.18.3", "2.19.3", "2.20.5", "2.21.5", "2.22.3", "2.23.4", "2.24.3", "2.25.1", "2.26.2", "2.27.3", "2.27.7",
        "2.28.3", "2.28.7", "2.28.9", "2.29.2", "2.29.7", "2.30.3", "2.30.4", "2.30.7", "2.31.0", "2.31.2", "2.32.3", "2.40.0",
    ];

    fn build(config: &Config, version: Version) -> Result<ncclConfig_t, NcclError> {
        let path: Arc<Path> = Path::new("/opt/libnccl.so.2").into();
        config.for_version(&Found { call: "init_rank", version, path: &path }).map(|raw| raw.0)
    }

    /// Returns the names of the fields that lie within the first `raw.size` bytes. NCCL ignores all
    /// other fields.
    fn known_prefix(raw: &ncclConfig_t) -> Vec<&'static str> {
        let known = ncclConfig_t::FIELDS.iter().filter(|field| field.offset_bytes + field.len_bytes <= raw.size);
        known.map(|field| field.name).collect()
    }

    #[test]
    fn each_option_is_written_or_refused_in_every_nccl_version() {
        for text in VERSIONS {
            let version: Version = text.parse().expect("the version is valid");
            for (field, mut config) in one_by_one() {
                if field == "minCTAs" {
                    config = config.max_ctas(4);
                }
                let since = field_since(field);
                match build(&config, version) {
                    Ok(raw) => {
                        assert!(version >= since, "{field}: NCCL {version} accepted the option, expected {since} or later");
                        assert!(
                            known_prefix(&raw).contains(&field),
                            "{field}: the {} bytes for NCCL {version} do not contain the field",
                            raw.size
                        );
                        assert_eq!(raw.version, version_code(version.min(sys::HEADER)).unsigned_abs());
                    }
                    Err(NcclError::Unsupported(error)) => {
                        assert!(version < since, "{field}: NCCL {version} refused the option, expected support since {since}");
                        assert_eq!((error.since, error.found), (Some(since), version));
                        assert!(error.what.contains(field), "{}", error.what);
                    }
                    Err(other) => panic!("{field} on NCCL {version}: the error is {other}, expected NcclError::Unsupported"),
                }
            }
        }
    }

    #[test]
    fn every_field_of_the_config_struct_has_an_option() {
        let mut options: Vec<_> = one_by_one().into_iter().map(|(field, _)| field).collect();
        let mut fields: Vec<_> = ncclConfig_t::FIELDS[3..].iter().map(|field| field.name).collect();
        options.sort_unstable();
        fields.sort_unstable();
        assert_eq!(options, fields);
    }

    #[test]
    fn unset_options_are_marked_undefined() {
        for text in VERSIONS {
            let raw = build(&Config::new(), text.parse().expect("the version is valid")).expect("no option is set");
            assert_eq!(raw.magic, 0xcafe_beef);
            assert_eq!([raw.blocking, raw.splitShare, raw.nvlsHostMode], [c_int::MIN; 3]);
            assert!(raw.netName.is_null() && raw.commName.is_null());
        }
    }

    #[test]
    fn config_values_are_written_to_the_struct() {
        let config = Config::new()
            .blocking(Switch::Off)
            .cta_policy(CtaPolicy::Zero)
            .nvls_host_mode(NvlsHostMode::Disable)
            .host_cft_mode(HostCftMode::Disable)
            .graph_usage(GraphUsage::Never)
            .graph_stream_ordering(Switch::Off)
            .min_ctas(2)
            .max_ctas(8)
            .traffic_class(0)
            .name("pipeline");
        let raw = build(&config, sys::HEADER).expect("all options are supported");
        assert_eq!((raw.blocking, raw.CTAPolicy, raw.nvlsHostMode, raw.hostCftMode), (0, 2, c_int::MAX, 2));
        assert_eq!((raw.graphUsageMode, raw.graphStreamOrdering, raw.minCTAs, raw.maxCTAs, raw.trafficClass), (0, 0, 2, 8, 0));
        // SAFETY: the pointer was made by `interned` just now.
        assert_eq!(unsafe { CStr::from_ptr(raw.commName) }, c"pipeline");
        assert_eq!(config.name_set(), Some("pipeline"));
        assert_eq!(config.blocking_set(), Some(Switch::Off));
    }

    #[test]
    fn option_value_newer_than_the_library_is_unsupported() {
        let error = build(&Config::new().cta_policy(CtaPolicy::Zero), Version::new(2, 27, 7))
            .expect_err("NCCL 2.27 has the option, but not this value");
        assert_eq!(
            error.to_string(),
            "Config::cta_policy (ncclConfig_t.CTAPolicy) needs NCCL 2.28.0, found 2.27.7 (/opt/libnccl.so.2)"
        );
    }

    #[test]
    fn config_that_nccl_would_refuse_or_ignore_is_misuse() {
        for (config, expected) in [
            (
                Config::new().cga_cluster_size(9),
                "init_rank: Config::cga_cluster_size (ncclConfig_t.cgaClusterSize) is 9, expected a number from 0 to 8",
            ),
            (Config::new().min_ctas(2), "init_rank: Config::min_ctas: min_ctas is set without max_ctas; set both"),
            (Config::new().min_ctas(9).max_ctas(8), "init_rank: Config::min_ctas: min_ctas is greater than max_ctas"),
            (
                Config::new().graph_stream_ordering(Switch::Off),
                "init_rank: Config::graph_stream_ordering: the value is Switch::Off, which NCCL ignores unless Config::graph_usage is GraphUsage::Never or GraphUsage::One; set graph_usage to one of these values",
            ),
            (Config::new().name("a\0b"), "init_rank: Config::name (ncclConfig_t.commName): the text contains a zero byte"),
            (
                Config::new().traffic_class(u32::MAX),
                "init_rank: Config::traffic_class (ncclConfig_t.trafficClass) is 4294967295, expected a number of at most 2147483647",
            ),
        ] {
            assert_eq!(build(&config, sys::HEADER).expect_err("the configuration is invalid").to_string(), expected);
        }
    }

    #[test]
    fn communicator_names_are_interned_and_valid_on_every_thread() {
        let path: Arc<Path> = Path::new("/opt/libnccl.so.2").into();
        let found = Found { call: "init_rank", version: sys::HEADER, path: &path };
        let raw = Config::new().name("shared").for_version(&found).expect("all options are supported");
        let again = Config::new().name("shared").for_version(&found).expect("all options are supported");
        assert_eq!(raw.0.commName, again.0.commName, "equal names share one copy");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let raw = &raw;
                // SAFETY: the pointer was made by `interned`.
                scope.spawn(move || assert_eq!(unsafe { CStr::from_ptr(raw.0.commName) }, c"shared"));
            }
        });
    }
}
