//! Binding of PEs to processors.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Binding of PEs to processors.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Bind {
    /// Bind each PE to its own processor, if there are enough processors.
    Processor,
    /// Do not bind PEs.
    None,
}

/// Binds this thread to one of the processors that it may use, chosen by `index`. Does nothing if
/// there are fewer processors than PEs. Without a binding, two PEs that wait for each other may run
/// on the same processor; other launchers bind PEs for the same reason.
pub(crate) fn bind(index: usize, n_pes: usize) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let mut processors = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
    if (allowed.count() as usize) < n_pes {
        return;
    }
    if let Some(processor) = processors.nth(index) {
        let mut own = rustix::thread::CpuSet::new();
        own.set(processor);
        if let Err(error) = rustix::thread::sched_setaffinity(None, &own) {
            tracing::debug!(%error, processor, "the thread was not bound to the processor");
        }
    }
}
