//! The communicator: one rank, and its lifetime.
//!
//! Module `api` creates communicators, and module `groups` runs their operations. Invariant: the
//! memory of a communicator is never freed, so that every use after the end of the communicator is
//! detected. Such a use is undefined in NCCL, and ends the process here.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::config::Config;
use super::handle::CommPtr;
use super::state::{State, forget_registered};
use super::{counters, events, live, window};
use crate::abi::{Code, Result, invalid};
use crate::messages::{Bytes, Channel, Members, Slot, mailbox, post};
use crate::report::{log, undefined};

/// Marks the memory of a communicator.
const MARK: u64 = 0x6661_6b65_6e63_636c;

/// One rank of a communicator.
pub(crate) struct Comm {
    mark: u64,
    /// The device's ordinal in this process.
    pub(crate) device: i32,
    /// The context in which streams are used.
    pub(crate) context: usize,
    pub(crate) config: Config,
    /// Set when initialization is complete.
    pub(crate) members: OnceLock<Members>,
    /// Whether `ncclCommAbort`, or a shrink with abort, was called.
    pub(crate) aborted: AtomicBool,
    pub(crate) revoked: AtomicBool,
    /// Whether the handle is no longer valid.
    released: AtomicBool,
    async_error: AtomicI32,
    /// Number of background tasks of a non-blocking communicator.
    pub(crate) pending: AtomicU32,
    /// Number of queries that must still report a background task.
    pub(crate) questions: AtomicU32,
    /// Number of operations in captured graphs that exist.
    pub(crate) persistent: AtomicU64,
    /// The thread inside a function that must be the only one; 0 for none.
    visitor: AtomicU64,
    state: Mutex<State>,
}

/// Returns a number of this thread other than 0.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static MINE: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    MINE.with(|mine| *mine)
}

impl Comm {
    /// Creates a communicator that is not yet initialized.
    pub(crate) fn new(device: (i32, usize), config: Config) -> &'static Self {
        let comm: &'static Self = Box::leak(Box::new(Self {
            mark: MARK,
            device: device.0,
            context: device.1,
            config,
            members: OnceLock::new(),
            aborted: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            released: AtomicBool::new(false),
            async_error: AtomicI32::new(0),
            pending: AtomicU32::new(0),
            questions: AtomicU32::new(0),
            persistent: AtomicU64::new(0),
            visitor: AtomicU64::new(0),
            state: Mutex::default(),
        }));
        events::handle();
        live::add(comm);
        comm
    }

    /// Returns whether the memory is that of a communicator.
    pub(super) fn is_marked(&self) -> bool {
        self.mark == MARK
    }

    /// Returns the handle.
    pub(crate) fn handle(&'static self) -> CommPtr {
        CommPtr::new(self)
    }

    /// Records that a thread calls `function`, which must be the only call on the communicator.
    /// Returns whether no other thread is in a call.
    pub(crate) fn come_alone(&self, function: &str) -> bool {
        let me = thread_number();
        match self.visitor.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(other) if other == me => false,
            // A thread that was stuck returns only after other threads have continued.
            Err(_) if self.stopped() => false,
            Err(_) => undefined(&format!("{function} was called on a communicator while another thread is in a call on it")),
        }
    }

    pub(crate) fn leave(&self) {
        self.visitor.store(0, Ordering::Release);
    }

    /// Returns whether a thread is in a call on the communicator.
    pub(crate) fn is_busy(&self) -> bool {
        self.visitor.load(Ordering::Acquire) != 0
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the members. The communicator must be initialised.
    pub(crate) fn who(&self) -> &Members {
        self.members.get().expect("the communicator is initialised")
    }

    /// Returns an error if no rank has this number.
    pub(crate) fn check_peer(&self, peer: i32, what: &str) -> Result {
        let ranks = self.who().ranks();
        if peer < 0 || peer >= ranks {
            return invalid(format!("invalid {what} {peer} ({what} should be in the 0..{ranks} range)"));
        }
        Ok(())
    }

    /// Returns this rank; `None` before initialization.
    pub(crate) fn rank(&self) -> Option<i32> {
        self.members.get().map(|members| members.rank)
    }

    /// Returns whether running work must stop.
    pub(crate) fn stopped(&self) -> bool {
        self.aborted.load(Ordering::Acquire) || self.revoked.load(Ordering::Acquire)
    }

    /// Returns whether the handle is no longer valid.
    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// Returns the result of `ncclCommGetAsyncError`.
    pub(crate) fn async_state(&self) -> Code {
        // Read before the error: a job sets its error before it counts as done, so no error is
        // missed.
        let is_pending = self.pending.load(Ordering::Acquire) > 0;
        match Code::from_number(self.async_error.load(Ordering::Acquire)) {
            Code::Success if is_pending => Code::InProgress,
            code => code,
        }
    }

    /// Sets the asynchronous error, unless an earlier error is set.
    pub(crate) fn set_async_error(&self, code: Code) {
        let _ = self.async_error.compare_exchange(0, code as i32, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Aborts the communicator and wakes all its waiting threads.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        mailbox::interrupt();
    }

    /// Waits until all launches are complete, or until the communicator is aborted.
    pub(crate) fn drain(&self) {
        let idle = || {
            let state = self.state();
            !state.running && state.turn == state.launched
        };
        mailbox::wait_until(&|| self.stopped() || idle(), None);
    }

    /// Makes the handle invalid.
    pub(crate) fn release(&'static self) {
        if self.released.swap(true, Ordering::AcqRel) {
            undefined("use of a destroyed communicator");
        }
        live::remove(self);
        let mut state = self.state();
        let registered = std::mem::take(&mut state.registered);
        let left = registered.len() + state.redops.drain(..).flatten().count() + state.device_comms.drain(..).count();
        drop(state);
        counters::LEFT_BEHIND.fetch_add((left + window::forget_all(self.handle())) as u64, Ordering::Relaxed);
        forget_registered(registered);
        if let Some(members) = self.members.get() {
            mailbox::purge(members.id, members.rank);
        }
    }

    /// Sends a message to a rank.
    pub(crate) fn send(&self, to: i32, channel: Channel, tag: u64, bytes: Bytes) {
        let members = self.who();
        let slot = Slot { comm: members.id, to, from: members.rank, channel, tag };
        if post::send(&members.addresses[to as usize], slot, bytes).is_err() {
            // As in NCCL over shared memory after the death of a peer: no rank is notified.
            log::line(&format!("rank {} cannot reach rank {to}", members.rank));
        }
    }

    /// Receives a message from a rank; `None` if the communicator was stopped meanwhile.
    pub(crate) fn receive(&self, from: i32, channel: Channel, tag: u64) -> Option<Bytes> {
        self.receive_until(from, channel, tag, &|| self.stopped())
    }

    /// Like [`receive`](Self::receive), with another reason to stop.
    pub(crate) fn receive_until(&self, from: i32, channel: Channel, tag: u64, stop: &dyn Fn() -> bool) -> Option<Bytes> {
        let members = self.who();
        mailbox::take(Slot { comm: members.id, to: members.rank, from, channel, tag }, stop)
    }
}
