//! The configuration of a communicator.
//!
//! Module `api` reads the configuration from the program's struct. Invariant: every field has an
//! effect.

use core::ffi::c_int;

/// The configuration of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) blocking: bool,
    pub(crate) max_ctas: c_int,
    pub(crate) num_rma_sig: c_int,
    pub(crate) num_rma_ctx: c_int,
}

impl Config {
    /// The defaults.
    pub(crate) const DEFAULT: Self = Self { blocking: true, max_ctas: 64, num_rma_sig: 1, num_rma_ctx: 1 };
}
