//! Contexts, and their sticky errors. Invariant: once a context has an error, every call that uses
//! the context returns that error.

use core::ffi::c_int;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use crate::abi::{Code, Result};
use crate::table::{Table, changed};

/// All contexts that are not destroyed.
pub(crate) static CONTEXTS: Table<Context> = Table::new(0x51, Code::INVALID_CONTEXT);

/// One context.
pub(crate) struct Context {
    pub(crate) handle: usize,
    pub(crate) device: usize,
    pub(crate) primary: bool,
    pub(crate) id: u64,
    pub(crate) flags: AtomicI32,
    error: AtomicI32,
    destroyed: AtomicBool,
    /// Devices whose memory this context may access.
    pub(crate) peers: Mutex<HashSet<usize>>,
    pub(crate) limits: Mutex<HashMap<c_int, usize>>,
    pub(crate) cache: AtomicI32,
}

impl Context {
    pub(crate) fn new(handle: usize, device: usize, primary: bool, flags: u32) -> Context {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Context {
            handle,
            device,
            primary,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            flags: AtomicI32::new(flags as i32),
            error: AtomicI32::new(0),
            destroyed: AtomicBool::new(false),
            peers: Mutex::default(),
            limits: Mutex::new(HashMap::from([(0, 1024), (1, 7_995_392), (2, 8 << 20), (3, 2), (4, 2048), (5, 64), (6, 0)])),
            cache: AtomicI32::new(0),
        }
    }

    /// Returns the sticky error as a code of the interface; 0 means none.
    pub(crate) fn error(&self) -> c_int {
        self.error.load(Ordering::Acquire)
    }

    /// Returns an error if the context has failed or was destroyed.
    pub(crate) fn check(&self) -> Result {
        if self.destroyed.load(Ordering::Acquire) {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        match self.error() {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// Records the error of work that failed after it was enqueued; the first error is sticky.
    pub(crate) fn fail(&self, code: Code) {
        let _ = self.error.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
        changed();
    }

    /// Makes every later call that uses the context fail, and removes the context's handle.
    pub(crate) fn mark_destroyed(&self) {
        self.destroyed.store(true, Ordering::Release);
        changed();
        CONTEXTS.remove(self.handle);
    }
}
