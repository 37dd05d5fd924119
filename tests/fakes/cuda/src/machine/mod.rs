//! The simulated machine: its features, devices and pools, and the contexts on its devices.

pub(crate) mod attributes;
pub(crate) mod context;
pub(crate) mod current;
pub(crate) mod device;
pub(crate) mod driver;
pub(crate) mod features;
pub(crate) mod pool;
