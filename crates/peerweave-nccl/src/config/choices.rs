//! Enums for options that have a few named values.
//!
//! `of_communicator.rs` has the options that use these enums.

use std::ffi::c_int;

use crate::{Version, sys};

/// Whether a feature is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// Enabled.
    On,
    /// Disabled.
    Off,
}

/// Policy for the number of CTAs, and so the number of SMs, that NCCL uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CtaPolicy {
    /// As many CTAs as the highest performance requires.
    Default,
    /// Fewer CTAs, if the loss of performance is small.
    Efficiency,
    /// No CTAs if copy engines and the network can do the work. Requires NCCL 2.28.
    Zero,
}

/// Use of a communicator's collectives in captured graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphUsage {
    /// No collective is captured.
    Never,
    /// Collectives are captured into only one graph at a time. No other launch of collectives runs
    /// concurrently.
    One,
    /// Collectives are captured into several graphs, or are both captured and launched directly.
    /// This is NCCL's default.
    Mixed,
}

/// Whether host code can query the addresses of windows in a fabric (CFT). Requires NCCL 2.31.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostCftMode {
    /// Enabled. Creating the communicator fails if the hardware does not support these queries.
    Enable,
    /// Disabled.
    Disable,
    /// Enabled if the hardware supports these queries.
    Fallback,
}

/// Operations of NVLink switches (NVLS) that NCCL's host functions use. Requires NCCL 2.32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NvlsHostMode {
    /// All operations.
    Enable,
    /// All operations except the NVLS transport and the registration of buffers for this transport.
    DisableTransport,
    /// All operations except multimem instructions in NCCL's symmetric kernels and copies.
    DisableSymmetricMultimem,
    /// All operations except those that [`DisableTransport`](NvlsHostMode::DisableTransport) and
    /// [`DisableSymmetricMultimem`](NvlsHostMode::DisableSymmetricMultimem) disable.
    DisableBoth,
    /// No operations. Also disables operations that later versions of NCCL add.
    Disable,
}

/// An option that NCCL represents as a number.
pub(crate) trait Choice: Copy {
    /// Returns NCCL's number of this value.
    fn number(self) -> c_int;

    /// Returns the version that introduced this value, or `None` if the version that introduced the
    /// option also introduced this value.
    fn since(self) -> Option<Version> {
        None
    }
}

impl Choice for Switch {
    fn number(self) -> c_int {
        c_int::from(self == Self::On)
    }
}

impl Choice for CtaPolicy {
    fn number(self) -> c_int {
        match self {
            Self::Default => sys::NCCL_CTA_POLICY_DEFAULT,
            Self::Efficiency => sys::NCCL_CTA_POLICY_EFFICIENCY,
            Self::Zero => sys::NCCL_CTA_POLICY_ZERO,
        }
    }

    fn since(self) -> Option<Version> {
        (self == Self::Zero).then_some(Version::new(2, 28, 0))
    }
}

impl CtaPolicy {
    pub(crate) fn raw(self) -> c_int {
        self.number()
    }
}

impl Choice for GraphUsage {
    fn number(self) -> c_int {
        match self {
            Self::Never => 0,
            Self::One => 1,
            Self::Mixed => 2,
        }
    }
}

impl Choice for HostCftMode {
    fn number(self) -> c_int {
        match self {
            Self::Enable => sys::NCCL_HOST_CFT_ENABLE,
            Self::Disable => sys::NCCL_HOST_CFT_DISABLE,
            Self::Fallback => sys::NCCL_HOST_CFT_FALLBACK,
        }
    }
}

impl Choice for NvlsHostMode {
    fn number(self) -> c_int {
        match self {
            Self::Enable => sys::NCCL_NVLS_HOST_ENABLE,
            Self::DisableTransport => sys::NCCL_NVLS_HOST_DISABLE_TRANSPORT,
            Self::DisableSymmetricMultimem => sys::NCCL_NVLS_HOST_DISABLE_SYMMETRIC_MULTIMEM,
            Self::DisableBoth => sys::NCCL_NVLS_HOST_DISABLE_TRANSPORT | sys::NCCL_NVLS_HOST_DISABLE_SYMMETRIC_MULTIMEM,
            Self::Disable => sys::NCCL_NVLS_HOST_DISABLE,
        }
    }
}
