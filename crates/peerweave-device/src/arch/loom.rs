//! Implements [`Word`](crate::Word) for the atomics of the model checker loom. Loom explores all
//! interleavings, and all stale reads that the memory orders allow.
//!
//! Compiled only under `--cfg loom`.

use loom::sync::atomic::{AtomicU64, Ordering, fence};

super::word_by_atomic!(AtomicU64, Ordering, fence);
