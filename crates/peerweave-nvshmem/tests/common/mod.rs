//! Shared by the tests: fakes, PEs as processes with a rendezvous, and a stream that can be
//! blocked.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::{Options, Rendezvous};
use peerweave_driver::{CudaContext, CudaStream};
use peerweave_fakes::{Child, Fakes};
use peerweave_nvshmem::{Context, MisuseKind, NvshmemError, Settings, Signal, SymmetricBuffer};
use peerweave_types::{Compare, Pe, SignalOp};
use peerweave_vmm::{Exportable, Granularity, MappedMemory, PhysicalMemory, Reservation, Rights};

/// A time limit that no successful test reaches.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
/// Time limit of waits that must time out: long enough for the other steps of such a test on a busy
/// machine.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

pub(crate) fn fakes() -> Fakes {
    Fakes::new().cuda().nvshmem().env("PEERWEAVE_MULTICAST", "off").env("PEERWEAVE_FAKE_NVSHMEM_WAIT_MS", "15000")
}

pub(crate) fn device(ordinal: usize) -> Arc<CudaContext> {
    peerweave_driver::context(ordinal).expect("the fake has that device")
}

pub(crate) fn settings(deadline: Duration) -> Settings {
    Settings::default().deadline(deadline).remote_transport("none").symmetric_size_bytes(64 << 20).heap_step_bytes(2 << 20)
}

/// Returns the rendezvous of the child processes of a test. Each is the PE with its rank.
pub(crate) fn rendezvous(child: &Child, deadline: Duration) -> Arc<Rendezvous> {
    Arc::new(Rendezvous::join(&child.job(), Options { deadline, ..Options::default() }).expect("all join"))
}

/// A PE with a running NVSHMEM.
pub(crate) struct Here {
    pub(crate) context: Context,
    pub(crate) rendezvous: Arc<Rendezvous>,
    pub(crate) stream: Arc<CudaStream>,
}

/// Starts NVSHMEM among the child processes, each on its own device.
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
    let context = Context::from_rendezvous(&rendezvous, &device(child.rank), settings).expect("it starts");
    let stream = context.device().new_stream().expect("a stream");
    Here { context, rendezvous, stream }
}

impl Here {
    pub(crate) fn new_stream(&self) -> Arc<CudaStream> {
        self.context.device().new_stream().expect("a stream")
    }

    pub(crate) fn next(&self) -> Pe {
        Pe::new((self.context.pe().get() + 1) % self.context.n_pes())
    }

    pub(crate) fn previous(&self) -> u32 {
        (self.context.pe().get() + self.context.n_pes() - 1) % self.context.n_pes()
    }

    /// Finalises NVSHMEM, and asserts that all memory was freed.
    pub(crate) fn end(self) {
        let report = self.context.finalize().expect("it ends");
        assert!(report.leaked.is_empty() && report.other_handles == 0, "{report:?}");
        Arc::into_inner(self.rendezvous).expect("the context gave it up").leave().expect("all leave");
    }
}

/// Blocks streams until it is released.
pub(crate) struct Hold {
    word: SymmetricBuffer<u64>,
    context: Context,
    other: Arc<CudaStream>,
}

impl Hold {
    /// Creates the value. Collective.
    pub(crate) fn new(here: &Here) -> Self {
        let word = here.context.alloc_zeroed::<u64>(1).expect("memory");
        Self { word, context: here.context.clone(), other: here.new_stream() }
    }

    /// Blocks the stream until [`release`](Self::release).
    pub(crate) fn hold(&self, stream: &Arc<CudaStream>) {
        self.context.signal_wait(&self.word, Compare::Eq, 1, stream).expect("it is enqueued");
    }

    pub(crate) fn release(&self) {
        let signal = Signal { word: &self.word, value: 1, op: SignalOp::Set };
        self.context.signal(&signal, self.context.pe(), &self.other).expect("it is enqueued");
    }

    /// Blocks again the streams passed to [`hold`](Self::hold) from now on.
    pub(crate) fn reset(&self) {
        let signal = Signal { word: &self.word, value: 0, op: SignalOp::Set };
        self.context.signal(&signal, self.context.pe(), &self.other).expect("it is enqueued");
        self.other.synchronize().expect("it passes");
    }

    /// Releases the streams after a while, from another thread, while `body` runs. Returns the
    /// duration of `body`.
    pub(crate) fn release_after<R>(&self, while_held: Duration, body: impl FnOnce() -> R) -> (R, Duration) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(while_held);
                self.release();
            });
            let start = Instant::now();
            (body(), start.elapsed())
        })
    }

    /// Frees the memory. Collective.
    pub(crate) fn free(self) {
        self.other.synchronize().expect("it passes");
        self.context.free(self.word).expect("it is freed");
    }
}

/// Returns the kind of misuse of a result.
#[track_caller]
pub(crate) fn misuse<R>(result: Result<R, NvshmemError>) -> MisuseKind {
    let error = result.err().expect("it is refused");
    error.misuse_kind().unwrap_or_else(|| panic!("a misuse was expected, not: {error}")).clone()
}

/// Returns the text of an error, and asserts that it contains all of these parts.
#[track_caller]
pub(crate) fn says<R>(result: Result<R, NvshmemError>, parts: &[&str]) -> NvshmemError {
    let error = result.err().expect("it is refused");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    error
}

/// Returns virtual memory of that many steps, with a shareable handle.
pub(crate) fn mapped(here: &Here, steps: usize) -> MappedMemory<u32> {
    let (device, ordinal) = (here.context.device(), here.context.device().ordinal());
    let granularity = Granularity::of_device(ordinal, Exportable::FILE_DESCRIPTOR).expect("virtual memory");
    let bytes = steps * granularity.recommended;
    let physical = PhysicalMemory::create(device, bytes, Exportable::FILE_DESCRIPTOR).expect("memory");
    let reservation = Reservation::new(device, bytes, bytes).expect("addresses");
    let mapping = reservation.map(0, &physical, bytes).expect("it is mapped");
    mapping.allow(&[ordinal], Rights::ReadWrite).expect("it is allowed");
    mapping.memory(ordinal).expect("memory")
}

/// Starts NVSHMEM such that no PE's memory is mapped in another: all transfers use the network.
pub(crate) fn by_network(child: &Child) -> Here {
    start_with(child, settings(DEADLINE).disable_p2p(true).remote_transport("ibrc"))
}

/// Waits for destructors that run on another thread.
pub(crate) fn settle() {
    assert!(peerweave_driver::settle(Instant::now() + DEADLINE), "destructors do not come to an end");
}

/// Returns a counter of the fake library.
pub(crate) fn count(what: &str) -> i64 {
    let name = std::ffi::CString::new(what).expect("no zero byte");
    // SAFETY: the library is loaded with global symbols.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"peerweave_fake_nvshmem_count".as_ptr()) };
    assert!(!address.is_null(), "the fake is not loaded");
    // SAFETY: this function of the fake takes a C string and returns a number.
    let function =
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn(*const std::ffi::c_char) -> i64>(address) };
    // SAFETY: it is a C string.
    unsafe { function(name.as_ptr()) }
}

/// Returns the address of a function that only the fake driver has.
fn fake_driver(name: &std::ffi::CStr) -> std::ptr::NonNull<std::ffi::c_void> {
    peerweave_driver::Driver::get().expect("the fake").api().library().symbol(name).expect("the fake has it")
}

fn fake_of_stream(name: &std::ffi::CStr, stream: &CudaStream) {
    type Function = extern "C" fn(peerweave_driver::cudarc::driver::sys::CUstream) -> std::ffi::c_int;
    // SAFETY: the fake declares both functions with this signature.
    let function = unsafe { std::mem::transmute::<std::ptr::NonNull<std::ffi::c_void>, Function>(fake_driver(name)) };
    assert_eq!(function(stream.cu_stream()), 0, "{name:?}");
}

/// Blocks the stream before the work that is enqueued next. No memory records this.
pub(crate) fn block(stream: &CudaStream) {
    fake_of_stream(c"peerweave_fake_stream_block", stream);
}

pub(crate) fn unblock(stream: &CudaStream) {
    fake_of_stream(c"peerweave_fake_stream_unblock", stream);
}

/// Makes calls of the fake driver fail from now on. An empty text ends that.
pub(crate) fn fail_driver(orders: &str) {
    type Function = extern "C" fn(*const std::ffi::c_char) -> std::ffi::c_int;
    let orders = std::ffi::CString::new(orders).expect("no zero");
    // SAFETY: the fake declares the function with this signature.
    let function =
        unsafe { std::mem::transmute::<std::ptr::NonNull<std::ffi::c_void>, Function>(fake_driver(c"peerweave_fake_cuda_fail")) };
    assert_eq!(function(orders.as_ptr()), 0, "{orders:?}");
}
