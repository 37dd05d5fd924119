//! Declares the C functions of the fake libraries.
//!
//! The helpers check only result codes. Invariant: every pointer passed to a call comes from the
//! same test.

#![allow(dead_code, non_snake_case, unreachable_pub, clippy::too_many_arguments)]

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::ffi::{CStr, CString};

use peerweave_fakes::{Child, Fakes, library};

/// A handle of a stream, a context or a graph.
pub type Handle = usize;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId {
    pub version: c_int,
    pub internal: [u8; 124],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Attr {
    pub version: c_int,
    pub mpi_comm: usize,
    pub args_version: c_int,
    pub args_padding: c_int,
    pub uid_version: c_int,
    pub uid_padding: c_int,
    pub id: *const UniqueId,
    pub rank: c_int,
    pub ranks: c_int,
    pub device: c_int,
    pub content: [u8; 92],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct TeamConfig {
    pub version: c_int,
    pub contexts: c_int,
    pub id: u64,
    pub padding: [u8; 48],
}

impl TeamConfig {
    pub fn new() -> Self {
        Self { version: (2 << 16) + 64, contexts: -1, id: u64::MAX, padding: [0; 48] }
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
    cuPointerGetAttribute(data: *mut c_void, attribute: c_int, pointer: usize) -> c_int;
    cuMemCreate(handle: *mut u64, bytes: usize, prop: *const c_void, flags: u64) -> c_int;
    cuMemAddressReserve(pointer: *mut usize, bytes: usize, alignment: usize, wish: usize, flags: u64) -> c_int;
    cuMemMap(pointer: usize, bytes: usize, offset: usize, handle: u64, flags: u64) -> c_int;
    cuMemSetAccess(pointer: usize, bytes: usize, access: *const c_void, count: usize) -> c_int;
}

library! { NVSHMEM = "libnvshmem_host.so.3":
    nvshmemx_get_uniqueid(id: *mut UniqueId) -> c_int;
    nvshmemx_set_attr_uniqueid_args(rank: c_int, ranks: c_int, id: *const UniqueId, attr: *mut Attr) -> c_int;
    nvshmemx_set_attr_mpi_comm_args(communicator: usize, attr: *mut Attr) -> c_int;
    nvshmemx_hostlib_init_attr(flags: c_uint, attr: *mut Attr) -> c_int;
    nvshmemx_hostlib_finalize();
    nvshmemx_init_status() -> c_int;
    nvshmem_global_exit(status: c_int);
    nvshmem_my_pe() -> c_int;
    nvshmem_n_pes() -> c_int;
    nvshmemx_vendor_get_version_info(major: *mut c_int, minor: *mut c_int, patch: *mut c_int);
    nvshmem_info_get_name(name: *mut c_char);
    nvshmem_malloc(bytes: usize) -> usize;
    nvshmem_calloc(count: usize, bytes: usize) -> usize;
    nvshmem_align(alignment: usize, bytes: usize) -> usize;
    nvshmem_free(pointer: usize);
    nvshmem_ptr(pointer: usize, pe: c_int) -> usize;
    nvshmemx_mc_ptr(team: c_int, pointer: usize) -> usize;
    nvshmemx_buffer_register(pointer: usize, bytes: usize) -> c_int;
    nvshmemx_buffer_unregister(pointer: usize) -> c_int;
    nvshmemx_buffer_register_symmetric(pointer: usize, bytes: usize, flags: c_int) -> usize;
    nvshmemx_buffer_unregister_symmetric(pointer: usize, bytes: usize) -> c_int;
    nvshmem_team_my_pe(team: c_int) -> c_int;
    nvshmem_team_n_pes(team: c_int) -> c_int;
    nvshmem_team_get_config(team: c_int, config: *mut TeamConfig);
    nvshmem_team_translate_pe(source: c_int, rank: c_int, target: c_int) -> c_int;
    nvshmem_team_split_strided(parent: c_int, start: c_int, stride: c_int, count: c_int, config: *const TeamConfig, mask: c_long, team: *mut c_int) -> c_int;
    nvshmem_team_split_2d(parent: c_int, width: c_int, x_config: *const TeamConfig, x_mask: c_long, x: *mut c_int, y_config: *const TeamConfig, y_mask: c_long, y: *mut c_int) -> c_int;
    nvshmemx_team_get_uniqueid(id: *mut u64) -> c_int;
    nvshmemx_team_init(team: *mut c_int, config: *mut TeamConfig, mask: c_long, ranks: c_int, rank: c_int) -> c_int;
    nvshmem_team_destroy(team: c_int);
    nvshmem_team_sync(team: c_int) -> c_int;
    nvshmem_barrier(team: c_int) -> c_int;
    nvshmem_barrier_all();
    nvshmem_sync_all();
    nvshmemx_barrier_on_stream(team: c_int, stream: Handle) -> c_int;
    nvshmemx_barrier_all_on_stream(stream: Handle);
    nvshmem_quiet();
    nvshmemx_quiet_on_stream(stream: Handle);
    nvshmem_signal_fetch(word: usize) -> u64;
    nvshmemx_signal_op_on_stream(word: usize, value: u64, operation: c_int, pe: c_int, stream: Handle);
    nvshmemx_signal_wait_until_on_stream(word: usize, comparison: c_int, value: u64, stream: Handle);
    nvshmem_putmem(target: usize, source: usize, bytes: usize, pe: c_int);
    nvshmem_put128(target: usize, source: usize, count: usize, pe: c_int);
    nvshmem_int32_put(target: usize, source: usize, count: usize, pe: c_int);
    nvshmem_int32_put_nbi(target: usize, source: usize, count: usize, pe: c_int);
    nvshmem_int32_get(target: usize, source: usize, count: usize, pe: c_int);
    nvshmem_int32_iput(target: usize, source: usize, target_stride: isize, source_stride: isize, count: usize, pe: c_int);
    nvshmem_int32_iget(target: usize, source: usize, target_stride: isize, source_stride: isize, count: usize, pe: c_int);
    nvshmem_float_p(target: usize, value: f32, pe: c_int);
    nvshmem_float_g(source: usize, pe: c_int) -> f32;
    nvshmemx_double_p_on_stream(target: usize, value: f64, pe: c_int, stream: Handle);
    nvshmemx_double_g_on_stream(source: usize, pe: c_int, stream: Handle) -> f64;
    nvshmemx_int32_put_on_stream(target: usize, source: usize, count: usize, pe: c_int, stream: Handle);
    nvshmemx_int32_get_on_stream(target: usize, source: usize, count: usize, pe: c_int, stream: Handle);
    nvshmemx_int32_put_nbi_on_stream(target: usize, source: usize, count: usize, pe: c_int, stream: Handle);
    nvshmemx_int32_put_signal_nbi_on_stream(target: usize, source: usize, count: usize, word: usize, value: u64, operation: c_int, pe: c_int, stream: Handle);
    nvshmemx_int32_wait_until_on_stream(word: usize, comparison: c_int, value: i32, stream: Handle);
    nvshmemx_int32_wait_until_all_on_stream(words: usize, count: usize, mask: *const c_int, comparison: c_int, value: i32, stream: Handle);
    nvshmemx_int32_wait_until_all_vector_on_stream(words: usize, count: usize, mask: *const c_int, comparison: c_int, values: *const i32, stream: Handle);
    nvshmem_int32_atomic_fetch_add(target: usize, value: i32, pe: c_int) -> i32;
    nvshmem_int64_atomic_compare_swap(target: usize, old: i64, new: i64, pe: c_int) -> i64;
    nvshmem_double_atomic_swap(target: usize, value: f64, pe: c_int) -> f64;
    nvshmemx_float_atomic_fetch_add(target: usize, value: f32, pe: c_int) -> f32;
    nvshmem_int32_sum_reduce(team: c_int, target: usize, source: usize, count: usize) -> c_int;
    nvshmemx_int32_sum_reduce_on_stream(team: c_int, target: usize, source: usize, count: usize, stream: Handle) -> c_int;
    nvshmemx_bfloat16_sum_reduce_on_stream(team: c_int, target: usize, source: usize, count: usize, stream: Handle) -> c_int;
    nvshmemx_uint32_xor_reduce_on_stream(team: c_int, target: usize, source: usize, count: usize, stream: Handle) -> c_int;
    nvshmemx_int32_max_reducescatter_on_stream(team: c_int, target: usize, source: usize, count: usize, stream: Handle) -> c_int;
    nvshmemx_int32_fcollect_on_stream(team: c_int, target: usize, source: usize, count: usize, stream: Handle) -> c_int;
    nvshmemx_int32_alltoall_on_stream(team: c_int, target: usize, source: usize, count: usize, stream: Handle) -> c_int;
    nvshmemx_int32_broadcast_on_stream(team: c_int, target: usize, source: usize, count: usize, root: c_int, stream: Handle) -> c_int;
    nvshmem_fcollectmem(team: c_int, target: usize, source: usize, bytes: usize) -> c_int;
    nvshmemx_cumodule_init(module: usize) -> c_int;
    nvshmemx_cumodule_finalize(module: usize) -> c_int;
    nvshmemx_region_start(region: *mut u64, attributes: *const c_void) -> c_int;
    nvshmemx_region_stop(region: u64) -> c_int;
    nvshmemx_region_is_active(hints: u32, active: *mut c_int) -> c_int;
    nvshmemx_qp_create(count: c_int, handles: *mut *mut c_int) -> c_int;
    peerweave_fake_nvshmem_count(name: *const c_char) -> i64;
}

/// Returns settings with the fake driver, and the fake NVSHMEM with a small heap.
pub fn fakes() -> Fakes {
    let fakes = Fakes::new().cuda().nvshmem();
    fakes.env("NVSHMEM_SYMMETRIC_SIZE", "8M").env("PEERWEAVE_FAKE_NVSHMEM_WAIT_MS", "10000")
}

/// Returns settings with the fake driver, and the fake NVSHMEM of this version.
pub fn fakes_of(version: &str) -> Fakes {
    fakes().nvshmem_of(version)
}

/// Returns whether the library has a function of this name.
pub fn has(name: &str) -> bool {
    // SAFETY: the function is only looked up, and not called.
    unsafe { NVSHMEM.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok()
}

/// Returns attributes for an initialization, in a layout of the structs.
pub fn attr(layout: c_int) -> Attr {
    Attr {
        version: (layout << 16) + 144,
        mpi_comm: 0,
        args_version: (layout << 16) + 128,
        args_padding: 0,
        uid_version: (1 << 16) + 24,
        uid_padding: 0,
        id: std::ptr::null(),
        rank: -1,
        ranks: -1,
        device: if layout == 1 { 0 } else { -1 },
        content: [0; 92],
    }
}

/// Makes a device current in this thread.
pub fn use_device(device: i32) {
    let mut context = 0;
    assert_eq!(cuInit(0), 0);
    assert_eq!(cuDevicePrimaryCtxRetain(&mut context, device), 0);
    assert_eq!(cuCtxSetCurrent(context), 0);
}

/// Returns the id that child 0 creates and passes to the other children in a file of this name.
pub fn shared_id(me: &Child, name: &str) -> UniqueId {
    let mut id = UniqueId { version: (1 << 16) + 128, internal: [0; 124] };
    if me.rank == 0 {
        assert_eq!(nvshmemx_get_uniqueid(&mut id), 0);
        me.put_file(name, &id.internal);
    } else {
        id.internal.copy_from_slice(&std::fs::read(me.file(name)).expect("the file with the id can be read"));
    }
    id
}

/// Initializes this child by an id, as the PE of its rank. Returns the code.
pub fn init_with(me: &Child, id: &UniqueId, layout: c_int) -> c_int {
    let mut attr = attr(layout);
    assert_eq!(nvshmemx_set_attr_uniqueid_args(me.rank as c_int, me.count as c_int, id, &mut attr), 0);
    nvshmemx_hostlib_init_attr(8, &mut attr)
}

/// Initializes this child as the PE of its rank, on the device with the same number. Returns a
/// stream.
pub fn init(me: &Child) -> Handle {
    use_device(me.rank as i32);
    let id = shared_id(me, "id");
    assert_eq!(init_with(me, &id, 2), 0);
    stream()
}

pub fn stream() -> Handle {
    let mut stream = 0;
    assert_eq!(cuStreamCreate(&mut stream, 1), 0);
    stream
}

#[track_caller]
pub fn finish(stream: Handle) {
    assert_eq!(cuStreamSynchronize(stream), 0);
}

/// Writes elements to memory of the device.
#[track_caller]
pub fn write<T: Copy>(pointer: usize, elements: &[T]) {
    assert_eq!(cuMemcpyHtoD_v2(pointer, elements.as_ptr().cast(), size_of_val(elements)), 0);
}

#[track_caller]
pub fn read<T: Copy + Default>(pointer: usize, count: usize) -> Vec<T> {
    let mut elements = vec![T::default(); count];
    assert_eq!(cuMemcpyDtoH_v2(elements.as_mut_ptr().cast(), pointer, size_of_val(&elements[..])), 0);
    elements
}

/// Allocates symmetric memory with these elements. Collective.
#[track_caller]
pub fn symmetric<T: Copy>(elements: &[T]) -> usize {
    let pointer = nvshmem_malloc(size_of_val(elements));
    assert_ne!(pointer, 0);
    write(pointer, elements);
    nvshmem_barrier_all();
    pointer
}

/// Allocates device memory that is not symmetric, with these elements.
pub fn plain<T: Copy>(elements: &[T]) -> usize {
    let mut pointer = 0;
    assert_eq!(cuMemAlloc_v2(&mut pointer, size_of_val(elements)), 0);
    write(pointer, elements);
    pointer
}

pub fn count(name: &str) -> i64 {
    let name = CString::new(name).expect("the name has no zero byte");
    peerweave_fake_nvshmem_count(name.as_ptr())
}

pub fn name() -> String {
    let mut name = [0; 257];
    nvshmem_info_get_name(name.as_mut_ptr());
    // SAFETY: the library ends the name with a zero.
    unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned()
}
