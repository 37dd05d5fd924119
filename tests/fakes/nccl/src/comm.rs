//! The communicator: the state of one rank, its lifetime, and the handle that programs use.
//!
//! `lifecycle` and `derive` create communicators, `execute` runs their operations. Invariant: the
//! memory of a communicator is never freed, so that every use after its end is detected; such a use
//! ends the process, because in NCCL its behaviour is undefined.

use core::ffi::c_void;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::abi::{Code, Fail, Result, invalid, misuse};
use crate::bootstrap::Members;
use crate::config::Config;
use crate::mailbox::{self, Channel, Slot};
use crate::redop::RedOp;
use crate::{counters, memory, post, window};

/// The handle that programs use.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct CommPtr(*const Comm);

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

/// State under a lock that is never held during a wait or a send.
#[derive(Default)]
pub(crate) struct State {
    /// Number of launches that have a ticket.
    pub(crate) launched: u64,
    /// The ticket of the running launch.
    pub(crate) turn: u64,
    pub(crate) running: bool,
    /// Number of the next collective.
    pub(crate) collective: u64,
    /// Number of the next exchange of the library itself.
    pub(crate) control: u64,
    /// Number of shrinks.
    pub(crate) shrinks: u64,
    pub(crate) finalized: bool,
    /// Whether the first collective has run, if that matters.
    pub(crate) connected: bool,
    pub(crate) suspended: bool,
    /// Whether an id for grow is unused.
    pub(crate) grow_id: bool,
    pub(crate) redops: Vec<Option<RedOp>>,
    /// Registered buffers by handle.
    pub(crate) registered: HashMap<usize, usize>,
    /// The buffers of device communicators.
    pub(crate) device_comms: Vec<Vec<u64>>,
    /// Signals that have arrived, by sender, signal and context.
    pub(crate) signals: HashMap<(i32, i32, i32), u64>,
}

/// Returns a number of this thread other than 0.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static MINE: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    MINE.with(|mine| *mine)
}

static LIVE: Mutex<Vec<&'static Comm>> = Mutex::new(Vec::new());

fn live_list() -> MutexGuard<'static, Vec<&'static Comm>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns every communicator whose handle is valid.
pub(crate) fn live() -> Vec<&'static Comm> {
    live_list().clone()
}

/// Ends the process because the call has undefined behaviour in the real library.
pub(crate) fn undefined(what: &str) -> ! {
    eprintln!("fake nccl: {what}");
    crate::log::line(&format!("undefined behaviour: {what}"));
    std::process::abort();
}

impl CommPtr {
    pub(crate) const NULL: Self = Self(std::ptr::null());

    pub(crate) fn address(self) -> usize {
        self.0.addr()
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns the communicator in any state; `None` if the handle is not one.
    pub(crate) fn peek(self) -> Option<&'static Comm> {
        if self.0.is_null() || !self.0.is_aligned() {
            return None;
        }
        // SAFETY: a program passes what it got from this library, and that memory is never given
        // back.
        let comm = unsafe { &*self.0 };
        (comm.mark == MARK).then_some(comm)
    }

    /// Returns the communicator of a valid handle; it need not be ready.
    pub(crate) fn get(self) -> Result<&'static Comm> {
        if self.0.is_null() {
            return invalid("comm argument is NULL");
        }
        let Some(comm) = self.peek() else {
            return invalid("comm argument is not a communicator");
        };
        if comm.released.load(Ordering::Acquire) {
            undefined("use of a destroyed communicator");
        }
        Ok(comm)
    }

    /// Returns the communicator, initialised and without background work.
    pub(crate) fn ready(self) -> Result<&'static Comm> {
        let comm = self.get()?;
        match comm.async_state() {
            Code::Success => Ok(comm),
            Code::InProgress => invalid("Attempt to use communicator before the previous operation returned ncclSuccess"),
            code => Err(Fail { code, text: "the communicator has an asynchronous error".into() }),
        }
    }

    /// Returns the communicator, ready for communication.
    pub(crate) fn usable(self) -> Result<&'static Comm> {
        let comm = self.ready()?;
        if comm.revoked.load(Ordering::Acquire) {
            return misuse("the communicator was revoked");
        }
        let state = comm.state();
        if state.finalized {
            return misuse("the communicator was finalized");
        }
        if state.suspended {
            return misuse("the communicator is suspended");
        }
        drop(state);
        Ok(comm)
    }
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
        live_list().push(comm);
        comm
    }

    /// Returns the handle.
    pub(crate) fn handle(&'static self) -> CommPtr {
        CommPtr(self)
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

    /// Returns its members. Only for an initialised communicator.
    pub(crate) fn who(&self) -> &Members {
        self.members.get().expect("the communicator is initialised")
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

    /// Sets an asynchronous error; the first one stays.
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
        live_list().retain(|comm| !std::ptr::eq(*comm, self));
        let mut state = self.state();
        let registered = std::mem::take(&mut state.registered);
        let left = registered.len() + state.redops.drain(..).flatten().count() + state.device_comms.drain(..).count();
        drop(state);
        counters::LEFT_BEHIND.fetch_add((left + window::forget_all(self.handle())) as u64, Ordering::Relaxed);
        memory::forget_all(registered);
        if let Some(members) = self.members.get() {
            mailbox::purge(members.id, members.rank);
        }
    }

    /// Sends a message to a rank.
    pub(crate) fn send(&self, to: i32, channel: Channel, tag: u64, bytes: mailbox::Bytes) {
        let members = self.who();
        let slot = Slot { comm: members.id, to, from: members.rank, channel, tag };
        if post::send(&members.addresses[to as usize], slot, bytes).is_err() {
            // As in NCCL over shared memory after the death of a peer: no rank is notified.
            crate::log::line(&format!("rank {} cannot reach rank {to}", members.rank));
        }
    }

    /// Receives a message from a rank; `None` if the communicator was stopped meanwhile.
    pub(crate) fn receive(&self, from: i32, channel: Channel, tag: u64) -> Option<mailbox::Bytes> {
        self.receive_until(from, channel, tag, &|| self.stopped())
    }

    /// Like [`receive`](Self::receive), with another reason to stop.
    pub(crate) fn receive_until(&self, from: i32, channel: Channel, tag: u64, stop: &dyn Fn() -> bool) -> Option<mailbox::Bytes> {
        let members = self.who();
        mailbox::take(Slot { comm: members.id, to: members.rank, from, channel, tag }, stop)
    }
}

/// An output pointer that the library writes later, possibly from another thread.
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(pub(crate) *mut T);

// SAFETY: shared is an address of the program's, which promises that it stays valid until the
// call's work is complete, on whichever thread it is done; synchronised by that promise: nobody
// else touches it until then. Would be caught by the tests of non-blocking calls in
// tests/lifecycle.rs.
unsafe impl<T> Send for Out<T> {}

impl<T> Out<T> {
    /// Writes the value to the program's output.
    pub(crate) fn set(&self, value: T) {
        // SAFETY: the callers have checked that the pointer is not null; the program promises that
        // it is writable.
        unsafe { self.0.write(value) }
    }
}

/// Returns an error if a pointer is null.
pub(crate) fn not_null<T>(pointer: *const T, name: &str) -> Result {
    if pointer.cast::<c_void>().is_null() { invalid(format!("{name} argument is NULL")) } else { Ok(()) }
}
