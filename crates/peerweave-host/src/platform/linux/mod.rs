//! Platform functions for Linux, where PEs can be processes or threads.

pub(crate) mod cross_memory;
mod region;

pub(crate) use peerweave_bootstrap::process::{Pid, Watch, pid_namespace as namespace};
pub(crate) use region::Region;

/// `Ok` if PEs can be processes. Otherwise the reason why they cannot.
pub(crate) const PROCESSES: Result<(), &str> = Ok(());

/// Size in bytes of the heap of a PE if the options contain no size. `None` means the size of the
/// machine's memory.
pub(crate) const DEFAULT_HEAP_BYTES: Option<usize> = None;

/// Returns the number of the processor on which this thread runs. Returns `None` if the system does
/// not report the processor.
#[inline]
pub(crate) fn processor() -> Option<u64> {
    // SAFETY: the function takes no arguments and returns a number, or -1 if the number is unknown.
    u64::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Converts a number to a process ID. Returns `None` if the number is not a valid process ID.
pub(crate) fn process(number: u64) -> Option<Pid> {
    i32::try_from(number).ok().and_then(Pid::from_raw)
}

/// Returns a random word other than 0. If the system provides no random numbers, returns a word
/// that differs among the processes that are alive at the same time.
pub(crate) fn random_word() -> u64 {
    let mut bytes = [0; 8];
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    let word = match drawn {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => u64::from(std::process::id()) << 32 | (&raw const bytes) as u64 >> 4,
    };
    word | 1
}
