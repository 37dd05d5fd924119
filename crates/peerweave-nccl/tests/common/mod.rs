//! Functions shared by the tests: fake libraries of a version, ranks as threads, and counters of
//! the fake library.

#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use peerweave_bootstrap::{Options, Rendezvous};
use peerweave_driver::cudarc::driver::CudaGraph;
use peerweave_driver::cudarc::driver::sys::{CUcontext, CUdevice, CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::{CudaContext, CudaStream, DeviceMemory};
pub(crate) use peerweave_fakes::driver::fail as fail_driver;
use peerweave_fakes::{Child, Fakes};
use peerweave_nccl::{Communicator, Config, DeadState, Nccl, NcclError, Rank, ReduceOp, Switch, UniqueId, Version, version_code};

pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Returns a fake machine with `devices` devices and the newest library.
pub(crate) fn fakes(devices: usize) -> Fakes {
    Fakes::new().cuda().nccl().env("PEERWEAVE_FAKE_CUDA_DEVICES", devices.to_string())
}

/// Returns a fake machine like [`fakes`], with a library of this version, which lacks functions of
/// later versions.
pub(crate) fn fakes_of(devices: usize, version: &str) -> Fakes {
    let version: Version = version.parse().expect("the version is valid");
    let later =
        Nccl::FUNCTIONS.iter().filter(|function| function.since.parse::<Version>().expect("the version is valid") > version);
    later
        .fold(fakes(devices), |fakes, function| fakes.without(function.name))
        .env("PEERWEAVE_FAKE_NCCL_VERSION", version_code(version).to_string())
}

pub(crate) fn contexts(count: usize) -> Vec<Arc<CudaContext>> {
    (0..count).map(|ordinal| peerweave_driver::context(ordinal).expect("the fake has this device")).collect()
}

/// Returns the context of a device.
pub(crate) fn device(ordinal: usize) -> Arc<CudaContext> {
    peerweave_driver::context(ordinal).expect("the fake has this device")
}

/// Returns the rendezvous of the child processes of a test. Each process is the PE with the number
/// of its rank.
pub(crate) fn rendezvous(child: &Child) -> Arc<Rendezvous> {
    let options = Options { deadline: DEADLINE, ..Options::default() };
    Arc::new(Rendezvous::join(&child.job(), options).expect("all processes join"))
}

/// Creates a communicator whose ranks are all on this thread. Returns each rank with a stream.
pub(crate) fn all(count: usize) -> Vec<(Communicator, Arc<CudaStream>)> {
    all_with(count, &Config::new())
}

/// Creates a communicator like [`all`], with options.
pub(crate) fn all_with(count: usize, config: &Config) -> Vec<(Communicator, Arc<CudaStream>)> {
    all_in(&contexts(count), config)
}

/// Creates a communicator like [`all_with`], with a rank for each context.
pub(crate) fn all_in(contexts: &[Arc<CudaContext>], config: &Config) -> Vec<(Communicator, Arc<CudaStream>)> {
    let made = Communicator::builder()
        .nccl(Nccl::load().expect("the fake library is found"))
        .config(config.clone())
        .deadline(DEADLINE)
        .init_all(contexts)
        .expect("all communicators are created");
    made.into_iter().zip(contexts).map(|(comm, context)| (comm, context.new_stream().expect("a stream is created"))).collect()
}

/// Creates a communicator of `count` ranks, and runs `body` for each rank on a separate thread.
pub(crate) fn ranks(count: usize, config: &Config, body: impl Fn(Communicator, Arc<CudaStream>) + Sync) {
    let nccl = Nccl::load().expect("the fake library is found");
    let id: UniqueId = nccl.unique_id().expect("an id is created");
    std::thread::scope(|scope| {
        for (rank, context) in contexts(count).into_iter().enumerate() {
            let body = &body;
            scope.spawn(move || {
                let comm = Communicator::builder()
                    .nccl(nccl)
                    .config(config.clone())
                    .deadline(DEADLINE)
                    .init_rank(&context, count, &id, Rank::new(rank as u32))
                    .expect("all ranks join");
                body(comm, context.new_stream().expect("a stream is created"));
            });
        }
    });
}

/// Creates a communicator of one rank, on device 0.
pub(crate) fn alone() -> (Communicator, Arc<CudaStream>) {
    all(1).pop().expect("one communicator was created")
}

/// Creates a non-blocking communicator like [`all`].
pub(crate) fn all_non_blocking(count: usize) -> Vec<(Communicator, Arc<CudaStream>)> {
    all_with(count, &Config::new().blocking(Switch::Off))
}

/// Creates a non-blocking communicator of one rank.
pub(crate) fn alone_non_blocking() -> (Communicator, Arc<CudaStream>) {
    all_non_blocking(1).remove(0)
}

/// Creates a blocking communicator, which is the default, like [`all`].
pub(crate) fn all_blocking(count: usize) -> Vec<(Communicator, Arc<CudaStream>)> {
    all_with(count, &Config::new().blocking(Switch::On))
}

pub(crate) fn floats(stream: &Arc<CudaStream>, values: &[f32]) -> DeviceMemory<f32> {
    DeviceMemory::from_slice(stream, values).expect("memory is allocated")
}

/// Sums the buffers of all ranks of this thread in place, in one group.
pub(crate) fn sum_together(members: &[(Communicator, Arc<CudaStream>)], buffers: &mut [DeviceMemory<f32>]) {
    let together = members[0].0.nccl().group(|group| {
        for ((comm, stream), buffer) in members.iter().zip(buffers) {
            group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
        }
        Ok(())
    });
    together.expect("the calls are enqueued");
    members.iter().for_each(|(comm, stream)| comm.wait(stream, DEADLINE).expect("the work completes"));
}

/// Returns the sum of rank + 1 over all ranks.
pub(crate) fn sum(comm: &Communicator, stream: &Arc<CudaStream>) -> Result<f32, NcclError> {
    let mut values = floats(stream, &[comm.rank().get() as f32 + 1.0]);
    comm.all_reduce_in_place(stream, &mut values, ReduceOp::Sum)?;
    comm.wait(stream, DEADLINE)?;
    Ok(values.to_vec(stream)?[0])
}

/// Returns a function of a loaded fake library.
pub(crate) fn function_of(library: &std::path::Path, name: &CStr) -> *mut c_void {
    let path = CString::new(library.to_str().expect("the path is UTF-8")).expect("the text has no zero byte");
    // SAFETY: both names end with zero. The library is already loaded, and is never unloaded.
    let function = unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        assert!(!library.is_null(), "the fake library is not loaded");
        libc::dlsym(library, name.as_ptr())
    };
    assert!(!function.is_null(), "the fake library lacks the function");
    function
}

/// Returns a counter of the fake library.
pub(crate) fn counted(what: &str) -> i64 {
    let function = function_of(Nccl::load().expect("the fake library is found").path(), c"peerweave_fake_nccl_count");
    let name = CString::new(what).expect("the text has no zero byte");
    // SAFETY: the function has this signature.
    let count = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> i64>(function) };
    // SAFETY: the name ends with zero.
    unsafe { count(name.as_ptr()) }
}

/// Returns a context of the same device that is not the primary context.
pub(crate) fn context_beside(primary: &Arc<CudaContext>) -> Arc<CudaContext> {
    let function = peerweave_fakes::driver::function(c"cuCtxCreate_v2");
    // SAFETY: the function has this signature.
    let create =
        unsafe { std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(*mut CUcontext, u32, CUdevice) -> c_int>(function) };
    let mut context: CUcontext = std::ptr::null_mut();
    // SAFETY: the pointer is to a live handle; the context is valid, of that device, and used only
    // here.
    unsafe {
        assert_eq!(create(&raw mut context, 0, primary.cu_device()), 0, "the fake cannot create a context");
        CudaContext::from_raw_context(primary.ordinal(), primary.cu_device(), context).expect("the context can be made current")
    }
}

/// Waits until all dropped communicators have been ended in the background, and asserts that no
/// resource of NCCL exists.
pub(crate) fn nothing_is_left() {
    let end = std::time::Instant::now() + DEADLINE;
    assert!(Communicator::wait_for_dropped(DEADLINE), "dropped communicators are not ended");
    for what in ["communicators", "windows", "redops", "registrations", "allocations"] {
        while counted(what) != 0 {
            assert!(std::time::Instant::now() < end, "{what}: {} were not freed", counted(what));
            std::thread::sleep(Duration::from_millis(2));
            peerweave_driver::drain_retired(end);
        }
    }
}

/// Returns the first value of memory.
pub(crate) fn value(memory: &DeviceMemory<f32>, stream: &Arc<CudaStream>) -> f32 {
    memory.to_vec(stream).expect("the memory can be read")[0]
}

/// Captures the calls of `body` into a graph.
pub(crate) fn captured(stream: &Arc<CudaStream>, body: impl FnOnce() -> Result<(), NcclError>) -> CudaGraph {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
    let result = body();
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).expect("the capture ends").expect("the capture yields a graph");
    result.expect("the call is captured");
    graph
}

/// Returns the state in the error of a call on an unusable communicator.
pub(crate) fn state_of<T: std::fmt::Debug>(result: Result<T, NcclError>) -> DeadState {
    match result {
        Err(NcclError::Dead { state, .. }) => state,
        other => panic!("the result is {other:?}, expected NcclError::Dead"),
    }
}
