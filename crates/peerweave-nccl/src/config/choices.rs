//! Enums for options that have a few named values.
//!
//! `of_communicator.rs` has the options that use these enums.

use std::ffi::c_int;

use crate::{Version, sys};

/// Enables or disables a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// The feature is enabled.
    On,
    /// The feature is disabled.
    Off,
}

/// Policy by which NCCL selects the number of CTAs of a kernel. More CTAs occupy more SMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CtaPolicy {
    /// NCCL uses as many CTAs as the highest performance requires.
    Default,
    /// NCCL uses fewer CTAs than by default if the loss of performance is small.
    Efficiency,
    /// NCCL uses no CTAs if copy engines and the network can do the work. Requires NCCL 2.28.
    Zero,
}

/// States how the program uses a communicator's collectives in captured graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphUsage {
    /// The program captures no collectives into graphs.
    Never,
    /// The program captures collectives into only one graph at a time. While this graph runs, the
    /// program launches no other collectives.
    One,
    /// The program captures collectives into several graphs, or captures some collectives and
    /// launches others directly. This is NCCL's default.
    Mixed,
}

/// Selects whether host code can query fabric addresses of windows. With a fabric address, kernels
/// access a window by NCCL's Compute Fabric Transport (CFT). Requires NCCL 2.31.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostCftMode {
    /// Host code can query fabric addresses of windows. Creating the communicator fails if the
    /// hardware does not support these queries.
    Enable,
    /// Host code cannot query fabric addresses of windows.
    Disable,
    /// Like [`Enable`](HostCftMode::Enable) if the hardware supports queries of fabric addresses.
    /// Otherwise like [`Disable`](HostCftMode::Disable).
    Fallback,
}

/// Selects the operations of NVLink switches (NVLS) that NCCL's host API (such as `ncclAllReduce`)
/// uses. Requires NCCL 2.32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NvlsHostMode {
    /// NCCL's host API uses all operations of NVLink switches.
    Enable,
    /// NCCL's host API does not use the NVLS transport, and does not register buffers for this
    /// transport. All other NVLS operations stay enabled.
    DisableTransport,
    /// In calls of NCCL's host API, neither NCCL's symmetric kernels nor copies by copy engines use
    /// multimem instructions. All other NVLS operations stay enabled.
    DisableSymmetricMultimem,
    /// Combines [`DisableTransport`](NvlsHostMode::DisableTransport) and
    /// [`DisableSymmetricMultimem`](NvlsHostMode::DisableSymmetricMultimem). All other NVLS
    /// operations stay enabled.
    DisableBoth,
    /// NCCL's host API uses no NVLS operations. This mode also disables NVLS operations that later
    /// versions of NCCL add.
    Disable,
}

/// The type of an option with named values. NCCL represents each value as a number.
pub(crate) trait Choice: Copy {
    /// Returns NCCL's number for this value.
    fn number(self) -> c_int;

    /// Returns the version of NCCL that introduced this value of the option. Returns `None` if NCCL
    /// introduced the value together with the option.
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
