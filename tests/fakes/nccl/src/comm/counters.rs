//! Counts of events, for tests.
//!
//! Counts of live objects are taken from the objects. Invariant: a count only grows.

use std::sync::atomic::AtomicU64;

/// Number of collectives and point-to-point calls, including calls with the setting `NOOP`.
pub(crate) static COLLECTIVES: AtomicU64 = AtomicU64::new(0);

/// Number of windows, operators, registrations and device communicators that existed when their
/// communicator ended.
pub(crate) static LEFT_BEHIND: AtomicU64 = AtomicU64::new(0);
