//! Turns signals into bytes on a socket, so that one `poll` can wait for signals and pipes.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};

/// Signals that the launcher forwards to the PEs.
pub(super) const PASSED_ON: [i32; 7] = [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT];

/// Receives the signals that are sent to the launcher.
#[derive(Debug)]
pub(super) struct Signals {
    wake: UnixStream,
    arrived: Vec<(i32, Arc<AtomicBool>)>,
    registered: Vec<signal_hook::SigId>,
}

impl Signals {
    /// Installs handlers for the launcher's signals. Dropping the returned value removes the
    /// handlers.
    pub(super) fn take_over() -> io::Result<Self> {
        let (wake, writer) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let mut signals = Self { wake, arrived: Vec::new(), registered: Vec::new() };
        for signal in PASSED_ON.into_iter().chain([SIGCHLD]) {
            let flag = Arc::new(AtomicBool::new(false));
            // Registers the handler that sets the flag first. Handlers run in the order of
            // registration, and the second handler wakes a thread that checks the flag.
            signals.registered.push(signal_hook::flag::register(signal, Arc::clone(&flag))?);
            signals.registered.push(signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?);
            signals.arrived.push((signal, flag));
        }
        Ok(signals)
    }

    /// Returns the descriptor that becomes readable when a signal has arrived.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Returns the signals that arrived since the last call, each once.
    pub(super) fn drain(&mut self) -> Vec<i32> {
        let mut buffer = [0; 64];
        while matches!((&self.wake).read(&mut buffer), Ok(count) if count == buffer.len()) {}
        let arrived = self.arrived.iter().filter(|(_, flag)| flag.swap(false, Ordering::SeqCst));
        arrived.map(|(signal, _)| *signal).collect()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}
