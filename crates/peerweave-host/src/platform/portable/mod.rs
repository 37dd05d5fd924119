//! Functions for any system, with PEs that are threads of one process. This module uses only the
//! standard library.

pub(crate) mod cross_memory;
mod region;

pub(crate) use region::Region;

/// `Ok` if PEs can be processes. Otherwise the reason why they cannot.
pub(crate) const PROCESSES: Result<(), &str> =
    Err("PEs that are processes need Linux: run PEs as threads of one process with `on_threads`");

/// Size in bytes of the heap of a PE if the options contain no size. The default is small because
/// some systems do not allow a program to reserve more memory than the machine has.
pub(crate) const DEFAULT_HEAP_BYTES: Option<usize> = Some(256 << 20);

/// ID of another process of the job. On this platform, a job has only one process, so this type has
/// no values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pid {}

/// Another process of the job, whose end is watched. On this platform, a job has only one process,
/// so this type has no values.
#[derive(Debug)]
pub(crate) enum Watch {}

impl Watch {
    pub(crate) fn of(_pe: usize, process: Pid) -> Self {
        match process {}
    }

    pub(crate) fn has_ended(&self) -> Option<bool> {
        match *self {}
    }
}

/// Returns `None`, because the standard library does not report the processor of a thread. So a
/// waiter cannot detect that another PE runs on the same processor.
pub(crate) fn processor() -> Option<u64> {
    None
}

/// Returns `None`: on this platform the job has no process other than this one.
pub(crate) fn process(_number: u64) -> Option<Pid> {
    None
}

/// Returns a word other than 0. All PEs are in this process, so any word identifies the process.
pub(crate) fn random_word() -> u64 {
    u64::from(std::process::id()) << 1 | 1
}

/// Returns 0, because this platform does not report PID namespaces.
pub(crate) fn namespace() -> u64 {
    0
}
