//! Declares the C functions of the two fake libraries.
//!
//! The helpers check only result codes. Invariant: every pointer passed to a call comes from the
//! same test.

#![allow(dead_code, non_snake_case, unreachable_pub, clippy::too_many_arguments)]

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::ffi::{CStr, CString};
use std::time::{Duration, Instant};

use peerweave_fakes::{Fakes, library};

/// A handle of either library.
pub type Handle = usize;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Config {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    /// The fields `blocking`, `cgaClusterSize`, `minCTAs` and `maxCTAs`.
    pub first: [c_int; 4],
    pub net_name: usize,
    pub split_share: c_int,
    pub traffic_class: c_int,
    pub comm_name: usize,
    /// The fields from `collnetEnable` to `nvlsHostMode`.
    pub rest: [c_int; 16],
}

impl Config {
    pub fn new() -> Self {
        const UNSET: c_int = c_int::MIN;
        Self {
            size: 120,
            magic: 0xcafe_beef,
            version: 23203,
            first: [UNSET; 4],
            net_name: 0,
            split_share: UNSET,
            traffic_class: UNSET,
            comm_name: 0,
            rest: [UNSET; 16],
        }
    }

    pub fn non_blocking() -> Self {
        let mut config = Self::new();
        config.first[0] = 0;
        config
    }
}

library! { CUDA = "libcuda.so.1":
    cuInit(flags: c_uint) -> c_int;
    cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) -> c_int;
    cuCtxSetCurrent(context: Handle) -> c_int;
    cuStreamCreate(stream: *mut Handle, flags: c_uint) -> c_int;
    cuStreamSynchronize(stream: Handle) -> c_int;
    cuStreamQuery(stream: Handle) -> c_int;
    cuStreamBeginCapture_v2(stream: Handle, mode: c_int) -> c_int;
    cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> c_int;
    cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64) -> c_int;
    cuGraphLaunch(exec: Handle, stream: Handle) -> c_int;
    cuGraphExecDestroy(exec: Handle) -> c_int;
    cuGraphDestroy(graph: Handle) -> c_int;
    cuMemAlloc_v2(pointer: *mut usize, bytes: usize) -> c_int;
    cuMemFree_v2(pointer: usize) -> c_int;
    cuMemcpyHtoD_v2(to: usize, from: *const c_void, bytes: usize) -> c_int;
    cuMemcpyDtoH_v2(to: *mut c_void, from: usize, bytes: usize) -> c_int;
    cuEventCreate(event: *mut Handle, flags: c_uint) -> c_int;
    cuEventSynchronize(event: Handle) -> c_int;
}

library! { NCCL = "libnccl.so.2":
    ncclGetVersion(version: *mut c_int) -> c_int;
    ncclGetUniqueId(id: *mut UniqueId) -> c_int;
    ncclCommInitAll(comms: *mut Handle, count: c_int, devices: *const c_int) -> c_int;
    ncclCommInitRank(comm: *mut Handle, ranks: c_int, id: UniqueId, rank: c_int) -> c_int;
    ncclCommInitRankConfig(comm: *mut Handle, ranks: c_int, id: UniqueId, rank: c_int, config: *const Config) -> c_int;
    ncclCommInitRankScalable(comm: *mut Handle, ranks: c_int, rank: c_int, ids: c_int, id: *const UniqueId, config: *const Config) -> c_int;
    ncclCommFinalize(comm: Handle) -> c_int;
    ncclCommDestroy(comm: Handle) -> c_int;
    ncclCommAbort(comm: Handle) -> c_int;
    ncclCommRevoke(comm: Handle, flags: c_int) -> c_int;
    ncclCommSuspend(comm: Handle, flags: c_int) -> c_int;
    ncclCommResume(comm: Handle) -> c_int;
    ncclCommMemStats(comm: Handle, stat: c_int, value: *mut u64) -> c_int;
    ncclCommSplit(comm: Handle, color: c_int, key: c_int, new: *mut Handle, config: *const Config) -> c_int;
    ncclCommShrink(comm: Handle, list: *const c_int, count: c_int, new: *mut Handle, config: *const Config, flags: c_int) -> c_int;
    ncclCommGetUniqueId(comm: Handle, id: *mut UniqueId) -> c_int;
    ncclCommGrow(comm: Handle, ranks: c_int, id: *const UniqueId, rank: c_int, new: *mut Handle, config: *const Config) -> c_int;
    ncclCommGetAsyncError(comm: Handle, error: *mut c_int) -> c_int;
    ncclCommCount(comm: Handle, count: *mut c_int) -> c_int;
    ncclCommUserRank(comm: Handle, rank: *mut c_int) -> c_int;
    ncclCommCuDevice(comm: Handle, device: *mut c_int) -> c_int;
    ncclGetLastError(comm: Handle) -> *const c_char;
    ncclGetErrorString(code: c_int) -> *const c_char;
    ncclGroupStart() -> c_int;
    ncclGroupEnd() -> c_int;
    ncclGroupSimulateEnd(info: *mut c_void) -> c_int;
    ncclAllReduce(send: usize, receive: usize, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: Handle) -> c_int;
    ncclReduce(send: usize, receive: usize, count: usize, dtype: c_int, op: c_int, root: c_int, comm: Handle, stream: Handle) -> c_int;
    ncclBroadcast(send: usize, receive: usize, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Handle) -> c_int;
    ncclBcast(buffer: usize, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Handle) -> c_int;
    ncclAllGather(send: usize, receive: usize, count: usize, dtype: c_int, comm: Handle, stream: Handle) -> c_int;
    ncclReduceScatter(send: usize, receive: usize, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: Handle) -> c_int;
    ncclAlltoAll(send: usize, receive: usize, count: usize, dtype: c_int, comm: Handle, stream: Handle) -> c_int;
    ncclGather(send: usize, receive: usize, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Handle) -> c_int;
    ncclScatter(send: usize, receive: usize, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Handle) -> c_int;
    ncclAllReduceConfig(send: usize, receive: usize, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: Handle, config: *const c_void) -> c_int;
    ncclSend(send: usize, count: usize, dtype: c_int, peer: c_int, comm: Handle, stream: Handle) -> c_int;
    ncclRecv(receive: usize, count: usize, dtype: c_int, peer: c_int, comm: Handle, stream: Handle) -> c_int;
    ncclRedOpCreatePreMulSum(op: *mut c_int, scalar: *const c_void, dtype: c_int, residence: c_int, comm: Handle) -> c_int;
    ncclRedOpDestroy(op: c_int, comm: Handle) -> c_int;
    ncclMemAlloc(pointer: *mut usize, bytes: usize) -> c_int;
    ncclMemFree(pointer: usize) -> c_int;
    ncclCommRegister(comm: Handle, buffer: usize, bytes: usize, handle: *mut Handle) -> c_int;
    ncclCommDeregister(comm: Handle, handle: Handle) -> c_int;
    ncclCommWindowRegister(comm: Handle, buffer: usize, bytes: usize, window: *mut Handle, flags: c_int) -> c_int;
    ncclCommWindowDeregister(comm: Handle, window: Handle) -> c_int;
    ncclWinGetUserPtr(comm: Handle, window: Handle, pointer: *mut usize) -> c_int;
    ncclGetLsaDevicePointer(window: Handle, offset: usize, rank: c_int, pointer: *mut usize) -> c_int;
    ncclGetPeerDevicePointer(window: Handle, offset: usize, rank: c_int, pointer: *mut usize) -> c_int;
    ncclGetLsaMultimemDevicePointer(window: Handle, offset: usize, pointer: *mut usize) -> c_int;
    ncclPutSignal(from: usize, count: usize, dtype: c_int, peer: c_int, window: Handle, offset: usize, signal: c_int, context: c_int, flags: c_uint, comm: Handle, stream: Handle) -> c_int;
    ncclSignal(peer: c_int, signal: c_int, context: c_int, flags: c_uint, comm: Handle, stream: Handle) -> c_int;
    ncclWaitSignal(count: c_int, descriptors: *const [c_int; 4], comm: Handle, stream: Handle) -> c_int;
    ncclCommQueryProperties(comm: Handle, properties: *mut c_void) -> c_int;
    ncclDevCommCreate(comm: Handle, requirements: *const c_void, device_comm: *mut c_void) -> c_int;
    ncclDevCommDestroy(comm: Handle, device_comm: *const c_void) -> c_int;
    ncclSetEncryption(config: *const c_void) -> c_int;
    ncclParamBind(handle: *mut Handle, key: *const c_char) -> c_int;
    ncclParamGetI64(handle: Handle, value: *mut i64) -> c_int;
    ncclParamGetI8(handle: Handle, value: *mut i8) -> c_int;
    ncclParamGetParameter(key: *const c_char, value: *mut *const c_char, length: *mut c_int) -> c_int;
    ncclParamGetAllParameterKeys(table: *mut *const *const c_char, length: *mut c_int) -> c_int;
    peerweave_fake_nccl_count(name: *const c_char) -> i64;
}

/// Returns settings with the fake driver and the fake NCCL.
pub fn fakes() -> Fakes {
    Fakes::new().cuda().nccl()
}

/// Returns settings with the fake driver, and the fake NCCL of this version.
pub fn fakes_of(version: i32) -> Fakes {
    let newer = include_str!("../../since.txt").lines().filter_map(|line| line.split_once(' '));
    let newer = newer.filter(|(_, since)| since.parse::<i32>().is_ok_and(|since| since > version));
    newer.fold(fakes(), |fakes, (name, _)| fakes.without(name)).env("PEERWEAVE_FAKE_NCCL_VERSION", version.to_string())
}

/// Returns whether the library has a function of this name.
pub fn has(name: &str) -> bool {
    // SAFETY: the symbol is only looked up.
    unsafe { NCCL.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok()
}

/// Panics with the text of the last error if a call of NCCL failed.
#[track_caller]
pub fn ok(code: c_int) {
    assert_eq!(code, 0, "{}", last_error());
}

pub fn last_error() -> String {
    // SAFETY: the library gives a C string.
    unsafe { CStr::from_ptr(ncclGetLastError(0)) }.to_string_lossy().into_owned()
}

pub fn count(name: &str) -> i64 {
    let name = CString::new(name).expect("the name has no zero byte");
    peerweave_fake_nccl_count(name.as_ptr())
}

/// Makes a device current in this thread.
pub fn use_device(device: i32) {
    let mut context = 0;
    assert_eq!(cuInit(0), 0);
    assert_eq!(cuDevicePrimaryCtxRetain(&mut context, device), 0);
    assert_eq!(cuCtxSetCurrent(context), 0);
}

pub fn stream() -> Handle {
    let mut stream = 0;
    assert_eq!(cuStreamCreate(&mut stream, 1), 0);
    stream
}

/// Creates a buffer on the current device with these elements.
pub fn buffer<T: Copy>(elements: &[T]) -> usize {
    let mut pointer = 0;
    let bytes = size_of_val(elements);
    assert_eq!(cuMemAlloc_v2(&mut pointer, bytes.max(1)), 0);
    assert_eq!(cuMemcpyHtoD_v2(pointer, elements.as_ptr().cast(), bytes), 0);
    pointer
}

/// Writes a number to memory of the library or a test.
pub fn write(at: usize, number: i32) {
    // SAFETY: the callers give memory of their own.
    unsafe { std::ptr::with_exposed_provenance_mut::<i32>(at).write(number) };
}

pub fn read<T: Copy + Default>(pointer: usize, count: usize) -> Vec<T> {
    let mut elements = vec![T::default(); count];
    assert_eq!(cuMemcpyDtoH_v2(elements.as_mut_ptr().cast(), pointer, size_of_val(&elements[..])), 0);
    elements
}

/// Runs ranks as threads of this process, each on its device, with its communicator.
pub fn ranks(ranks: i32, body: impl Fn(i32, Handle, Handle) + Sync) {
    let mut id = UniqueId([0; 128]);
    ok(ncclGetUniqueId(&mut id));
    let body = &body;
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            scope.spawn(move || {
                use_device(rank);
                let mut comm = 0;
                ok(ncclCommInitRank(&mut comm, ranks, id, rank));
                body(rank, comm, stream());
            });
        }
    });
}

/// Returns the asynchronous state of a communicator.
pub fn async_state(comm: Handle) -> c_int {
    let mut state = -1;
    ok(ncclCommGetAsyncError(comm, &mut state));
    state
}

/// Waits until a communicator has no pending operation, and returns its state.
#[track_caller]
pub fn settled(comm: Handle) -> c_int {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let state = async_state(comm);
        if state != 7 {
            return state;
        }
        assert!(Instant::now() < end, "timed out: the communicator is still in progress");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until a condition holds.
#[track_caller]
pub fn eventually(what: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !what() {
        assert!(Instant::now() < end, "timed out: the condition does not hold");
        std::thread::sleep(Duration::from_millis(1));
    }
}
