//! Helpers for tests whose PEs are threads: a rendezvous, and time limits.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

#[cfg(target_os = "linux")]
pub mod process;

use std::thread;
use std::time::{Duration, Instant};

use peerweave_bootstrap::{BootstrapError, Endpoint, Job, Options, Rendezvous, Server, ServerOptions, Token};

/// A deadline that no test reaches by accident, even on a loaded machine.
pub const LONG: Duration = Duration::from_secs(60);
/// Time within which a loss must be reported on a loaded machine; much shorter than [`LONG`].
pub const SOON: Duration = Duration::from_secs(20);
/// A deadline that passes in a test. All other PEs make their calls before this deadline passes,
/// even on a loaded machine.
pub const PASSES: Duration = Duration::from_secs(5);

/// A server, and the values that PEs need to join the job of the server.
pub struct Party {
    pub server: Server,
    pub token: Token,
    pub n_pes: u32,
}

impl Party {
    pub fn new(n_pes: u32) -> Self {
        Self::with(n_pes, Endpoint::random_unix().unwrap(), ServerOptions::default())
    }

    pub fn with(n_pes: u32, endpoint: Endpoint, options: ServerOptions) -> Self {
        let token = Token::random().unwrap();
        Self { server: Server::bind(&endpoint, token, n_pes, options).unwrap(), token, n_pes }
    }

    pub fn job(&self, pe: u32) -> Job {
        Job::on_one_machine(pe, self.n_pes, self.server.endpoint().clone(), self.token)
    }

    pub fn join(&self, pe: u32, deadline: Duration) -> Result<Rendezvous, BootstrapError> {
        Rendezvous::join(&self.job(pe), Options { deadline, ..Options::default() })
    }

    /// Runs `body` on a thread for each PE in `pes`. Returns the results in the same order.
    pub fn run<T: Send>(&self, pes: impl IntoIterator<Item = u32>, body: impl Fn(Rendezvous) -> T + Sync) -> Vec<T> {
        self.try_run(pes, LONG, |joined| body(joined.unwrap()))
    }

    pub fn try_run<T: Send>(
        &self,
        pes: impl IntoIterator<Item = u32>,
        deadline: Duration,
        body: impl Fn(Result<Rendezvous, BootstrapError>) -> T + Sync,
    ) -> Vec<T> {
        let body = &body;
        thread::scope(|scope| {
            let threads: Vec<_> = pes.into_iter().map(|pe| scope.spawn(move || body(self.join(pe, deadline)))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// Waits until `seen` returns `true` for the server's state.
    pub fn until(&self, seen: impl Fn(&peerweave_bootstrap::ServerState) -> bool) {
        eventually("the server's state", || seen(&self.server.state()));
    }
}

pub fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "timed out waiting for {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns whether a Unix socket whose name contains `part` exists on this machine.
#[cfg(target_os = "linux")]
pub fn socket_exists(part: &str) -> bool {
    std::fs::read_to_string("/proc/net/unix").unwrap().lines().any(|line| line.contains(part))
}
