//! Helpers of the tests: PEs as threads and as processes, and controls of the fake driver.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::{Job, Options, Rendezvous, Server};
use peerweave_driver::{CudaContext, CudaStream, Driver};
pub(crate) use peerweave_fakes::driver::fail;
use peerweave_fakes::{Child, driver};
use peerweave_vmm::VmmError;

/// A time limit that no passing test reaches.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A PE with its device.
pub(crate) struct Me {
    pub(crate) rendezvous: Arc<Rendezvous>,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) pe: u32,
    pub(crate) n: u32,
}

impl Me {
    fn join(job: &Job, deadline: Duration) -> Self {
        let rendezvous =
            Arc::new(Rendezvous::join(job, Options { deadline, ..Options::default() }).expect("all PEs join the rendezvous"));
        let context = context(job.pe.index() % devices());
        let stream = context.new_stream().expect("the stream is created");
        Self { rendezvous, context, stream, pe: job.pe.get(), n: job.n_pes }
    }

    pub(crate) fn barrier(&self, label: &str) {
        self.rendezvous.barrier(label).expect("all PEs reach the barrier");
    }

    /// Leaves the rendezvous, so that the PE is not reported as lost.
    pub(crate) fn leave(self) {
        Arc::into_inner(self.rendezvous)
            .expect("no heap keeps the rendezvous alive")
            .leave()
            .expect("all PEs leave the rendezvous");
    }
}

pub(crate) fn devices() -> usize {
    Driver::get().expect("the fake driver is loaded").device_count().expect("the fake driver has devices")
}

pub(crate) fn context(ordinal: usize) -> Arc<CudaContext> {
    peerweave_driver::context(ordinal).expect("the fake driver has this device")
}

pub(crate) fn soon() -> Instant {
    Instant::now() + LONG
}

/// Runs `body` as each of `n` PEs. Each PE is a thread with its own device. Returns the results.
pub(crate) fn threads<T: Send>(n: u32, body: impl Fn(Me) -> T + Sync) -> Vec<T> {
    threads_within(n, LONG, body)
}

/// Runs PEs like [`threads`], with a deadline for every wait.
pub(crate) fn threads_within<T: Send>(n: u32, deadline: Duration, body: impl Fn(Me) -> T + Sync) -> Vec<T> {
    let (_server, jobs) = Server::on_this_machine(n).expect("the rendezvous server starts");
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = jobs.iter().map(|job| scope.spawn(move || body(Me::join(job, deadline)))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).collect()
    })
}

/// Joins the job as the PE of this child process. The process of PE 0 also runs the server.
pub(crate) fn process(child: &Child) -> Me {
    process_within(child, LONG)
}

/// Joins the job like [`process`], with a deadline for every wait.
pub(crate) fn process_within(child: &Child, deadline: Duration) -> Me {
    Me::join(&child.job(), deadline)
}

/// Blocks a stream of the fake driver, or unblocks it.
pub(crate) fn hold(stream: &CudaStream, hold: bool) {
    if hold { driver::block(stream.cu_stream()) } else { driver::unblock(stream.cu_stream()) }
}

/// Emulates a kernel's store to a multicast address.
pub(crate) fn multicast_store(context: &CudaContext, address: u64, bytes: &[u8]) -> Result<(), c_int> {
    context.bind_to_thread().expect("the context is live");
    driver::multicast_store(address, bytes)
}

/// The calls of driver functions in this process and whether each succeeded, from the log of the
/// fake driver.
pub(crate) struct Calls(Vec<(String, bool)>);

impl Calls {
    /// Reads all calls up to now.
    pub(crate) fn now() -> Self {
        let path = std::env::var("PEERWEAVE_FAKE_CUDA_LOG").expect("the test harness sets the variable");
        let pid = std::process::id().to_string();
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            (words.next() == Some(pid.as_str())).then(|| (words.next().unwrap_or_default().to_owned(), words.next().is_some()))
        };
        Self(text.lines().filter_map(line).collect())
    }

    /// Returns the number of calls of a function that succeeded.
    pub(crate) fn good(&self, function: &str) -> usize {
        let count = |failed| self.0.iter().filter(|(name, bad)| name == function && *bad == failed).count();
        count(false) - count(true)
    }

    /// Returns the names of all calls, in order.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.0.iter().filter(|(_, bad)| !bad).map(|(name, _)| name.as_str()).collect()
    }

    /// Asserts that every acquired resource was released. `what` says at which point of the test.
    pub(crate) fn assert_balanced(&self, what: &str) {
        let taken = ["cuMemCreate", "cuMemImportFromShareableHandle", "cuMulticastCreate"];
        let taken: usize = taken.iter().map(|function| self.good(function)).sum();
        assert_eq!(self.good("cuMemRelease"), taken, "{what}: every handle must be released");
        assert_eq!(self.good("cuMemUnmap"), self.good("cuMemMap"), "{what}: every mapping must be unmapped");
        assert_eq!(self.good("cuMemAddressFree"), self.good("cuMemAddressReserve"), "{what}: every reservation must be freed");
        let bound = self.good("cuMulticastBindMem") + self.good("cuMulticastBindAddr");
        assert_eq!(self.good("cuMulticastUnbind"), bound, "{what}: every binding must be unbound");
        assert_eq!(
            self.good("cuIpcCloseMemHandle"),
            self.good("cuIpcOpenMemHandle_v2"),
            "{what}: every opened IPC handle must be closed"
        );
    }
}

/// Waits until all dropped memory is freed.
pub(crate) fn drain_retired() {
    assert!(peerweave_driver::drain_retired(soon()), "dropped memory was not freed in time");
}

/// Returns the free bytes of a device.
pub(crate) fn free_bytes(context: &CudaContext) -> usize {
    context.mem_get_info().expect("the context is live").0
}

/// Returns the call and the code of a driver error.
pub(crate) fn cuda(error: &VmmError) -> Option<(&'static str, u32)> {
    match error {
        VmmError::Driver(peerweave_driver::DriverError::Cuda(error)) => Some((error.call, error.code)),
        _ => None,
    }
}
