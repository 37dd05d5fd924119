//! Memory of this machine, shared by threads or processes: the atomics of the language.
//!
//! How the memory came to be shared is not told here.

use core::sync::atomic::{AtomicU64, Ordering, fence};

crate::arch::word_by_atomic!(AtomicU64, Ordering, fence);
