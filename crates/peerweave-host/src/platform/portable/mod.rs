//! Any system: PEs are threads of one process. Uses the standard library only.

pub(crate) mod cross_memory;
mod region;

pub(crate) use region::Region;

/// Whether PEs can be processes; otherwise the reason.
pub(crate) const PROCESSES: Result<(), &str> =
    Err("PEs that are processes need Linux: run PEs as threads of one process with `on_threads`");

/// The size of the heap of a PE if the options give none. Not every system allows a program to
/// reserve more memory than the machine has.
pub(crate) const DEFAULT_HEAP_BYTES: Option<usize> = Some(256 << 20);

/// A process other than this one: there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pid {}

/// A process that is watched: there is none.
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

/// Returns `None`: threads do not know their processors, and yield when they wait.
pub(crate) fn processor() -> Option<u64> {
    None
}

/// Returns `None`: other processes are not identified.
pub(crate) fn process(_number: u64) -> Option<Pid> {
    None
}

/// Returns a word other than 0. All PEs are in this process, so any word identifies it.
pub(crate) fn random_word() -> u64 {
    u64::from(std::process::id()) << 1 | 1
}

/// Returns 0: the system reports no namespace.
pub(crate) fn namespace() -> u64 {
    0
}
