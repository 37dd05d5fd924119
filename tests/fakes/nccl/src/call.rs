//! Wraps every exported function: injects faults, logs the call, sets the text of its error.
//!
//! Invariant: no panic leaves an exported function; a panic ends the process with its message.

use std::cell::Cell;
use std::fmt::Write as _;
use std::time::Duration;

use crate::abi::{Code, Fail, Result, UniqueId};
use crate::comm::{Comm, CommPtr};
use crate::{errors, faults, group, log, settings, version};

/// Exports functions whose body returns a [`Result`] and whose C result is its code.
macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> core::ffi::c_int {
            $crate::call::enter(stringify!($name), &[$((stringify!($arg), &$arg)),*], move || -> $crate::abi::Result { $body })
        }
    )*};
}

/// The form of an argument in the log and for rules that select a rank.
pub(crate) trait Argument {
    /// Adds the argument to a line of the log.
    fn show(&self, line: &mut String);
    /// The communicator, if the argument is one.
    fn comm(&self) -> Option<CommPtr> {
        None
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Argument for $type {
            fn show(&self, line: &mut String) {
                let _ = write!(line, "{self}");
            }
        }
    )*};
}
numbers!(i32, u32, u64, usize);

impl<T> Argument for *const T {
    fn show(&self, line: &mut String) {
        let _ = write!(line, "{:#x}", self.addr());
    }
}

impl<T> Argument for *mut T {
    fn show(&self, line: &mut String) {
        let _ = write!(line, "{:#x}", self.addr());
    }
}

impl Argument for UniqueId {
    fn show(&self, line: &mut String) {
        for byte in &self.bytes[8..24] {
            let _ = write!(line, "{byte:02x}");
        }
    }
}

impl Argument for CommPtr {
    fn show(&self, line: &mut String) {
        let _ = write!(line, "{:#x}", self.address());
    }

    fn comm(&self) -> Option<CommPtr> {
        Some(*self)
    }
}

impl Argument for crate::abi::Team {
    fn show(&self, line: &mut String) {
        let _ = write!(line, "{}/{}/{}", self.rank, self.ranks, self.stride);
    }
}

/// A function's arguments with their names.
pub(crate) type Arguments<'a> = &'a [(&'static str, &'a dyn Argument)];

thread_local! {
    static EFFECT: Cell<faults::Effect> = const { Cell::new(faults::Effect::NONE) };
}

/// Returns the injected effect on the operation that the running call enqueues.
pub(crate) fn take_effect() -> faults::Effect {
    EFFECT.replace(faults::Effect::NONE)
}

/// Functions whose failure inside a group also fails the group.
const GROUPED: &[&str] = &[
    "AllGather",
    "AllReduce",
    "AlltoAll",
    "Bcast",
    "Broadcast",
    "CommGrow",
    "CommInitRank",
    "CommInitRankConfig",
    "CommInitRankScalable",
    "CommShrink",
    "CommSplit",
    "Gather",
    "PutSignal",
    "Recv",
    "Reduce",
    "ReduceScatter",
    "Scatter",
    "Send",
    "Signal",
    "WaitSignal",
];

fn is_grouped(function: &str) -> bool {
    let name = function.trim_start_matches("nccl");
    GROUPED.contains(&name.trim_end_matches("Config")) || GROUPED.contains(&name)
}

/// Functions that enqueue work.
fn is_enqueued(function: &str) -> bool {
    is_grouped(function) && !function.starts_with("ncclComm")
}

/// Records the failure of such a function in a non-blocking communicator: every later call returns
/// it, as in NCCL.
fn keep(arguments: Arguments<'_>, code: Code) {
    let comms = arguments.iter().filter_map(|(_, argument)| argument.comm()?.peek());
    comms.filter(|comm| !comm.config.blocking).for_each(|comm| comm.set_async_error(code));
}

/// Functions that may run on a communicator at the same time as other functions.
const BESIDE_OTHERS: &[&str] = &["ncclCommAbort", "ncclCommRevoke", "ncclGetLastError"];

/// A running call that must be the only one on its communicators: NCCL does not allow two threads
/// to make such calls at the same time. Ends the process if two threads do.
struct Alone(Vec<(&'static Comm, bool)>);

impl Alone {
    fn new(function: &'static str, arguments: Arguments<'_>) -> Self {
        if BESIDE_OTHERS.contains(&function) || settings::get().noop != settings::Noop::Off {
            return Self(Vec::new());
        }
        // On a blocking communicator the query only reads; on a non-blocking one it frees the job
        // of the last group.
        let reads = |comm: &Comm| function == "ncclCommGetAsyncError" && comm.config.blocking;
        let comms = arguments.iter().filter_map(|(_, argument)| argument.comm()?.peek()).filter(|comm| !reads(comm));
        Self(comms.map(|comm| (comm, comm.come_alone(function))).collect())
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        for (comm, _) in self.0.iter().filter(|(_, is_first)| *is_first) {
            comm.leave();
        }
    }
}

/// Runs the body of an exported function.
pub(crate) fn enter(function: &'static str, arguments: Arguments<'_>, body: impl FnOnce() -> Result) -> i32 {
    version::check(function);
    let settings = settings::get();
    let _alone = Alone::new(function, arguments);
    let mut result = Ok(());
    if settings.any_rule {
        let (effect, injected) = faults::next(function, arguments);
        EFFECT.set(effect);
        if effect.slow_ms > 0 && !is_enqueued(function) {
            std::thread::sleep(Duration::from_millis(effect.slow_ms));
        }
        if let Some(code) = injected {
            result = Err(Fail { code, text: format!("{function}: an injected fault") });
            group::on_injected(function);
        }
    }
    let result = result.and_then(|()| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or_else(|_| {
            eprintln!("fake nccl: {function} panicked");
            std::process::abort()
        })
    });
    let code = match result {
        Ok(()) => Code::Success,
        Err(failure) => {
            if failure.code != Code::InProgress {
                errors::set(&failure.text);
                if is_grouped(function) {
                    group::note(failure.code);
                }
                if is_enqueued(function) {
                    keep(arguments, failure.code);
                }
            }
            failure.code
        }
    };
    if settings.any_rule {
        take_effect();
    }
    if settings.log.is_some() {
        log::call(function, arguments, code);
    }
    code as i32
}
