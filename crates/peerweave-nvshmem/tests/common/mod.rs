//! Helpers of the tests: the fakes, PEs as processes with a rendezvous, and [`Hold`], which blocks
//! streams.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::{Options, Rendezvous};
use peerweave_driver::{CudaContext, CudaStream};
use peerweave_fakes::{Child, Fakes};
use peerweave_nvshmem::{Context, MisuseKind, NvshmemError, Settings, Signal, SymmetricBuffer, Team, TeamConfig};
use peerweave_types::{Compare, Pe, SignalOp};
use peerweave_vmm::{Exportable, Granularity, MappedMemory, PhysicalMemory, Reservation, Rights};

/// A time limit that no successful test reaches.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// Time limit of waits that must time out. The limit is long enough for the other steps of such a
/// test on a busy machine.
pub(crate) const SHORT: Duration = Duration::from_secs(5);

pub(crate) fn fakes() -> Fakes {
    Fakes::new().cuda().nvshmem().env("PEERWEAVE_MULTICAST", "off").env("PEERWEAVE_FAKE_NVSHMEM_WAIT_MS", "60000")
}

pub(crate) fn device(ordinal: usize) -> Arc<CudaContext> {
    peerweave_driver::context(ordinal).expect("the fake driver has this device")
}

pub(crate) fn settings(deadline: Duration) -> Settings {
    Settings::default().deadline(deadline).remote_transport("none").symmetric_size_bytes(64 << 20).heap_step_bytes(2 << 20)
}

/// Joins the rendezvous of a test's child processes. The rank of a child is its PE number.
pub(crate) fn rendezvous(child: &Child, deadline: Duration) -> Arc<Rendezvous> {
    Arc::new(Rendezvous::join(&child.job(), Options { deadline, ..Options::default() }).expect("all PEs join the rendezvous"))
}

/// A PE with a running NVSHMEM.
pub(crate) struct Here {
    pub(crate) context: Context,
    pub(crate) rendezvous: Arc<Rendezvous>,
    pub(crate) stream: Arc<CudaStream>,
}

/// Starts NVSHMEM among the child processes. Each PE has its own device.
pub(crate) fn start(child: &Child) -> Here {
    start_within(child, DEADLINE)
}

pub(crate) fn start_within(child: &Child, deadline: Duration) -> Here {
    start_with(child, settings(deadline))
}

pub(crate) fn start_with(child: &Child, settings: Settings) -> Here {
    start_at(rendezvous(child, DEADLINE), child, settings)
}

pub(crate) fn start_at(rendezvous: Arc<Rendezvous>, child: &Child, settings: Settings) -> Here {
    let context = Context::from_rendezvous(&rendezvous, &device(child.rank), settings).expect("NVSHMEM starts");
    let stream = context.device().new_stream().expect("the stream is created");
    Here { context, rendezvous, stream }
}

impl Here {
    pub(crate) fn new_stream(&self) -> Arc<CudaStream> {
        self.context.device().new_stream().expect("the stream is created")
    }

    pub(crate) fn next(&self) -> Pe {
        Pe::new((self.context.pe().get() + 1) % self.context.n_pes())
    }

    pub(crate) fn previous(&self) -> u32 {
        (self.context.pe().get() + self.context.n_pes() - 1) % self.context.n_pes()
    }

    /// Creates a team of the first `count` PEs. This PE must be one of these PEs. All PEs of the
    /// job must make this call.
    pub(crate) fn team_of_first(&self, count: u32) -> Team {
        self.context
            .world()
            .split_strided(0, 1, count, TeamConfig::default())
            .expect("the team is split")
            .expect("this PE is a member")
    }

    /// Finalises NVSHMEM. Asserts that all memory was freed and no other handle exists.
    pub(crate) fn end(self) {
        let report = self.context.finalize().expect("all PEs finalize NVSHMEM");
        assert!(report.leaked.is_empty() && report.other_handles == 0, "{report:?}");
        Arc::into_inner(self.rendezvous)
            .expect("no context keeps the rendezvous alive")
            .leave()
            .expect("all PEs leave the rendezvous");
    }
}

/// Blocks streams until `release` is called.
pub(crate) struct Hold {
    word: SymmetricBuffer<u64>,
    context: Context,
    other: Arc<CudaStream>,
}

impl Hold {
    /// Allocates the signal word of the hold. All PEs must make this call.
    pub(crate) fn new(here: &Here) -> Self {
        let word = here.context.alloc_zeroed::<u64>(1).expect("the memory is allocated");
        Self { word, context: here.context.clone(), other: here.new_stream() }
    }

    /// Blocks later work on the stream until [`release`](Self::release) is called.
    pub(crate) fn hold(&self, stream: &Arc<CudaStream>) {
        self.context.signal_wait(&self.word, Compare::Eq, 1, stream).expect("the work is enqueued");
    }

    pub(crate) fn release(&self) {
        let signal = Signal { word: &self.word, value: 1, op: SignalOp::Set };
        self.context.signal(&signal, self.context.pe(), &self.other).expect("the work is enqueued");
    }

    /// Sets the signal word to 0 again. Streams that are passed to [`hold`](Self::hold) after this
    /// call are blocked again.
    pub(crate) fn reset(&self) {
        let signal = Signal { word: &self.word, value: 0, op: SignalOp::Set };
        self.context.signal(&signal, self.context.pe(), &self.other).expect("the work is enqueued");
        self.other.synchronize().expect("the stream completes");
    }

    /// Runs `body`, and releases the streams from another thread after `while_held`. Returns the
    /// result and the duration of `body`.
    pub(crate) fn release_after<R>(&self, while_held: Duration, body: impl FnOnce() -> R) -> (R, Duration) {
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(while_held);
                self.release();
            });
            (body(), start.elapsed())
        })
    }

    /// Frees the signal word. All PEs must make this call.
    pub(crate) fn free(self) {
        self.other.synchronize().expect("the stream completes");
        self.context.free(self.word).expect("all PEs free the memory");
    }
}

/// Returns the kind of misuse of a result, which must be an error.
#[track_caller]
pub(crate) fn misuse<R>(result: Result<R, NvshmemError>) -> MisuseKind {
    let error = result.err().expect("the call is refused");
    error.misuse_kind().unwrap_or_else(|| panic!("the error is {error}, expected a misuse")).clone()
}

/// Returns the error of a result. Asserts that the error's text contains all `parts`.
#[track_caller]
pub(crate) fn says<R>(result: Result<R, NvshmemError>, parts: &[&str]) -> NvshmemError {
    let error = result.err().expect("the call is refused");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "the error does not contain `{part}`: {text}");
    }
    error
}

/// Returns virtual memory with a shareable handle, of `steps` times the granularity.
pub(crate) fn mapped(here: &Here, steps: usize) -> MappedMemory<u32> {
    let (device, ordinal) = (here.context.device(), here.context.device().ordinal());
    let granularity =
        Granularity::of_device(ordinal, Exportable::FILE_DESCRIPTOR).expect("the device has virtual memory management");
    let bytes = steps * granularity.recommended;
    let physical = PhysicalMemory::create(device, bytes, Exportable::FILE_DESCRIPTOR).expect("the memory is allocated");
    let reservation = Reservation::new(device, bytes, bytes).expect("the addresses are reserved");
    let mapping = reservation.map(0, &physical, bytes).expect("the memory is mapped");
    mapping.allow(&[ordinal], Rights::ReadWrite).expect("the device gets access rights");
    mapping.memory(ordinal).expect("the device has access rights")
}

/// Starts NVSHMEM without peer access: all transfers between PEs use the network.
pub(crate) fn by_network(child: &Child) -> Here {
    start_with(child, settings(DEADLINE).disable_p2p(true).remote_transport("ibrc"))
}

/// Waits for destructors that run on background threads.
pub(crate) fn drain_retired() {
    assert!(peerweave_driver::drain_retired(Instant::now() + DEADLINE), "destructors did not complete in time");
}

/// Returns the value of a counter of the fake library.
pub(crate) fn count(what: &str) -> i64 {
    let name = std::ffi::CString::new(what).expect("the text has no zero byte");
    // SAFETY: the library was loaded with global symbols, and the name ends in a zero byte.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"peerweave_fake_nvshmem_count".as_ptr()) };
    assert!(!address.is_null(), "the fake library is not loaded");
    // SAFETY: the function of the fake takes a C string and returns a number.
    let function =
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn(*const std::ffi::c_char) -> i64>(address) };
    // SAFETY: the name ends in a zero byte.
    unsafe { function(name.as_ptr()) }
}

/// Returns the address of a function that only the fake driver has.
fn fake_driver(name: &std::ffi::CStr) -> std::ptr::NonNull<std::ffi::c_void> {
    peerweave_driver::Driver::get()
        .expect("the fake library is loaded")
        .api()
        .library()
        .symbol(name)
        .expect("the fake driver has the function")
}

fn fake_of_stream(name: &std::ffi::CStr, stream: &CudaStream) {
    type Function = extern "C" fn(peerweave_driver::cudarc::driver::sys::CUstream) -> std::ffi::c_int;
    // SAFETY: the fake driver declares both functions with this signature.
    let function = unsafe { std::mem::transmute::<std::ptr::NonNull<std::ffi::c_void>, Function>(fake_driver(name)) };
    assert_eq!(function(stream.cu_stream()), 0, "{name:?}");
}

/// Blocks the stream before its next work. Unlike [`Hold::hold`], this call does not record the
/// stream as a user of memory.
pub(crate) fn block(stream: &CudaStream) {
    fake_of_stream(c"peerweave_fake_stream_block", stream);
}

pub(crate) fn unblock(stream: &CudaStream) {
    fake_of_stream(c"peerweave_fake_stream_unblock", stream);
}

/// Makes calls of the fake driver fail, as `orders` specifies. An empty text ends the failures.
pub(crate) fn fail_driver(orders: &str) {
    type Function = extern "C" fn(*const std::ffi::c_char) -> std::ffi::c_int;
    let orders = std::ffi::CString::new(orders).expect("the text has no zero byte");
    // SAFETY: the fake driver declares the function with this signature.
    let function =
        unsafe { std::mem::transmute::<std::ptr::NonNull<std::ffi::c_void>, Function>(fake_driver(c"peerweave_fake_cuda_fail")) };
    assert_eq!(function(orders.as_ptr()), 0, "{orders:?}");
}
