//! Code shared by the tests: PEs that are threads or processes, each with a device of the fake
//! driver, and kernels that the fake driver runs on the CPU.
#![allow(dead_code, reason = "each test binary uses only a part of this module")]

use std::ffi::c_uint;
use std::sync::Arc;
use std::time::Duration;

use peerweave_bootstrap::{Host, Job, Options, Rendezvous, Server};
use peerweave_collectives::combine::{self, Combine};
use peerweave_collectives::rms_norm::{self, Norm};
use peerweave_collectives::transfer::{self, Transfers};
use peerweave_collectives::{Call, all_reduce, barrier, exchange, reduce_scatter, scan};
use peerweave_core::World;
use peerweave_cuda::{Cuda, CudaError, Gpu, GpuOptions};
use peerweave_device::launch::Kernel;
use peerweave_fakes::{Fakes, driver};
use peerweave_types::{DeviceSlice, Dim3, KernelArgs, KernelContext, KernelTeam, SymSlice};

/// A time limit that no test reaches by accident.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Returns the fake driver for tests that launch kernels. Such tests are skipped if no compiler for
/// PTX was found when they were built.
pub(crate) fn fakes() -> Fakes {
    let ptx = peerweave_test_kernels::ring::KERNEL.ptx();
    let found = if ptx.variants.is_empty() { Err(ptx.problem.to_owned()) } else { Ok(()) };
    let required = std::env::var("PEERWEAVE_REQUIRE").is_ok_and(|required| required.contains("ptx"));
    assert!(found.is_ok() || !required, "PEERWEAVE_REQUIRE contains ptx, but the tests have no PTX: {found:?}");
    Fakes::new().cuda().needs(found)
}

/// Runs `body` on each of `n` PEs, which are threads. Returns the results of `body`.
pub(crate) fn pes<T: Send>(n: u32, options: GpuOptions, body: impl Fn(&Gpu) -> T + Sync) -> Vec<T> {
    pes_that_may_fail(n, options, |gpu| body(&gpu.expect("the GPU is set up")))
}

/// Like [`pes`], but passes `body` the result of setting up the GPU.
pub(crate) fn pes_that_may_fail<T: Send>(
    n: u32,
    options: GpuOptions,
    body: impl Fn(Result<Gpu, CudaError>) -> T + Sync,
) -> Vec<T> {
    pes_on(&vec!["one"; n as usize], options, body)
}

/// Like [`pes_that_may_fail`], but PE `i` is on the simulated host `hosts[i]`. Several PEs may be
/// on the same host.
pub(crate) fn pes_on<T: Send>(hosts: &[&str], options: GpuOptions, body: impl Fn(Result<Gpu, CudaError>) -> T + Sync) -> Vec<T> {
    register();
    let (_server, jobs) = Server::on_this_machine(hosts.len() as u32).expect("the server starts");
    std::thread::scope(|scope| {
        let threads: Vec<_> = jobs
            .iter()
            .map(|job| {
                let (body, options) = (&body, options.clone());
                scope.spawn(move || {
                    let host = Some(Host::named(hosts[job.pe.index()]));
                    let rendezvous = Rendezvous::join(job, Options { deadline: LONG, host, ..Options::default() });
                    let rendezvous = Arc::new(rendezvous.expect("all PEs join"));
                    let context = peerweave_driver::context(job.pe.index()).expect("the fake has devices");
                    let result = body(Gpu::new(&rendezvous, &context, options));
                    // Leaves the job, unless other handles of the rendezvous still exist.
                    if let Some(rendezvous) = Arc::into_inner(rendezvous) {
                        let _ = rendezvous.leave();
                    }
                    result
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("the PE does not panic")).collect()
    })
}

/// A GPU of a PE that is a process. Dropping this value ends the GPU and leaves the job.
pub(crate) struct ProcessGpu {
    gpu: Option<Gpu>,
    rendezvous: Option<Arc<Rendezvous>>,
}

impl ProcessGpu {
    /// Ends the GPU, and then leaves the job. Returns the result and the duration of [`Gpu::end`].
    pub(crate) fn end(mut self) -> (Result<(), CudaError>, Duration) {
        let start = std::time::Instant::now();
        let ended = self.gpu.take().expect("the GPU was not ended").end();
        let took = start.elapsed();
        if let Some(rendezvous) = self.rendezvous.take().and_then(Arc::into_inner) {
            let _ = rendezvous.leave();
        }
        (ended, took)
    }
}

impl std::ops::Deref for ProcessGpu {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        self.gpu.as_ref().expect("the GPU lives as long as this value")
    }
}

impl Drop for ProcessGpu {
    fn drop(&mut self) {
        let (gpu, rendezvous) = (self.gpu.take(), self.rendezvous.take());
        // A PE that panics has failed, and the other PEs must detect its failure.
        if std::thread::panicking() {
            return;
        }
        // NVSHMEM holds the rendezvous until it ends.
        let Some(gpu) = gpu else { return };
        let ended = gpu.end();
        if let Some(rendezvous) = rendezvous.and_then(Arc::into_inner) {
            let _ = rendezvous.leave();
        } else {
            panic!("the rendezvous still has another owner after the end of the GPU: {ended:?}");
        }
    }
}

/// Returns the job whose PEs are the child processes of the test. PE 0 runs the server.
pub(crate) fn job_of(child: &peerweave_fakes::Child) -> Job {
    register();
    child.job()
}

/// Joins the job of the child processes, and sets up the GPU of this process. PE 0 runs the server.
pub(crate) fn process(child: &peerweave_fakes::Child, options: GpuOptions) -> ProcessGpu {
    process_on(child, None, child.rank, options)
}

/// Like [`process`], but on a simulated host and with the given device.
pub(crate) fn process_on(child: &peerweave_fakes::Child, host: Option<Host>, device: usize, options: GpuOptions) -> ProcessGpu {
    let job = job_of(child);
    let rendezvous = Rendezvous::join(&job, Options { deadline: LONG, host, ..Options::default() }).expect("all PEs join");
    let context = peerweave_driver::context(device).expect("the fake has devices");
    let rendezvous = Arc::new(rendezvous);
    let gpu = Gpu::new(&rendezvous, &context, options).expect("the GPU is set up");
    ProcessGpu { gpu: Some(gpu), rendezvous: Some(rendezvous) }
}

/// Runs the host version of a kernel. Each thread of the grid is a coroutine.
///
/// # Safety
/// `launch` is a launch of that kernel.
pub(crate) unsafe fn on_cpu<A: KernelArgs>(kernel: &Kernel<A>, launch: *const driver::Launch, args: A) {
    // SAFETY: the fake driver passes a live launch. Its first argument is the address of the
    // context.
    let (launch, context) = unsafe { (&*launch, (*launch).argument::<u64>(0)) };
    let context = std::ptr::with_exposed_provenance::<KernelContext>(context as usize);
    let host = kernel.host();
    // SAFETY: the context, and all memory to which it points, is memory of the fake's device, which
    // is mapped in this process.
    let body = || unsafe { host(context, args) };
    let shape = |[x, y, z]: [c_uint; 3]| Dim3 { x, y, z };
    let shape = peerweave_grid::Shape::new(shape(launch.grid), shape(launch.block)).shared_bytes(launch.shared_bytes as usize);
    let grid = peerweave_grid::Launch::shaped(kernel.name(), shape, &body);
    let options = peerweave_grid::Options::default().deadline(LONG);
    if let Err(error) = peerweave_grid::run(&grid, &options) {
        eprintln!("{}: {error}", kernel.name());
        std::process::abort();
    }
}

/// Registers kernels of a crate with the fake driver by their names.
macro_rules! kernels {
    ($register:ident of $kernels:ident: $($kernel:ident($($index:literal: $argument:ty),*);)*) => {
        fn $register() {
            $({
                /// # Safety
                /// `launch` is a launch of this kernel in progress.
                unsafe extern "C" fn run(launch: *const driver::Launch) {
                    // SAFETY: the fake calls this for launches of this kernel, whose arguments
                    // after the context are these.
                    unsafe { on_cpu(&$kernels::$kernel::KERNEL, launch, ($((*launch).argument::<$argument>($index),)*)) }
                }
                driver::register_kernel(stringify!($kernel), run);
            })*
        }
    };
}

kernels! { register_tests of peerweave_test_kernels:
    ring(1: SymSlice<u64>, 2: SymSlice<u64>, 3: u64);
    wait_for_ever(1: SymSlice<u64>, 2: u32);
    wait_for_ever_block(1: SymSlice<u64>, 2: u32);
    count_up(1: SymSlice<u64>, 2: u64);
    barriers(1: u32);
    multicast_base(1: SymSlice<u64>);
    meet_in_team(1: KernelTeam, 2: SymSlice<u64>, 3: u32);
    sum_in_team(1: KernelTeam, 2: SymSlice<u32>, 3: SymSlice<u32>);
}

kernels! { register_stream_kernels of peerweave_stream_kernels:
    stream_signal(1: SymSlice<u64>, 2: u64, 3: u32, 4: u32);
    stream_wait(
        1: SymSlice<u8>, 2: u32, 3: u64, 4: DeviceSlice<u64>, 5: u32, 6: u64, 7: DeviceSlice<u64>, 8: u32, 9: u64, 10: u32,
        11: DeviceSlice<u64>
    );
    stream_atomic(1: SymSlice<u64>, 2: u32, 3: u32, 4: u64, 5: u64, 6: u32, 7: DeviceSlice<u64>);
    stream_barrier(1: KernelTeam, 2: DeviceSlice<u64>);
    stream_put_element(1: SymSlice<u8>, 2: u64, 3: u32, 4: u32);
    stream_fill(1: DeviceSlice<u8>, 2: u64, 3: u32, 4: u64);
}

kernels! { register_combiners of combine:
    combine_i8(1: Combine);
    combine_u8(1: Combine);
    combine_i16(1: Combine);
    combine_u16(1: Combine);
    combine_i32(1: Combine);
    combine_u32(1: Combine);
    combine_i64(1: Combine);
    combine_u64(1: Combine);
    combine_f16(1: Combine);
    combine_bf16(1: Combine);
    combine_f32(1: Combine);
    combine_f64(1: Combine);
}

/// Defines a function that registers kernels of collectives. The only argument of these kernels
/// after the context is a call.
macro_rules! collectives {
    ($($room:ident: $($kernel:ident),*;)*) => {
        fn register_collectives() {
            $($({
                /// # Safety
                /// `launch` is a launch of this kernel in progress.
                unsafe extern "C" fn run(launch: *const driver::Launch) {
                    // SAFETY: the fake calls this for launches of this kernel, whose argument after
                    // the context is a call.
                    unsafe { on_cpu(&$room::$kernel::KERNEL, launch, ((*launch).argument::<Call>(1),)) }
                }
                driver::register_kernel(stringify!($kernel), run);
            })*)*
        }
    };
}

/// Defines a function that registers kernels of messages. The arguments of these kernels after the
/// context are a call and the messages of the call.
macro_rules! messages {
    ($($kernel:ident),* $(,)?) => {
        fn register_messages() {
            $({
                /// # Safety
                /// `launch` is a launch of this kernel in progress.
                unsafe extern "C" fn run(launch: *const driver::Launch) {
                    // SAFETY: the fake calls this for launches of this kernel, whose arguments
                    // after the context are these.
                    let arguments = unsafe { ((*launch).argument::<Call>(1), (*launch).argument::<Transfers>(2)) };
                    // SAFETY: the fake calls this for launches of this kernel.
                    unsafe { on_cpu(&transfer::$kernel::KERNEL, launch, arguments) }
                }
                driver::register_kernel(stringify!($kernel), run);
            })*
        }
    };
}

/// Defines a function that registers RMSNorm kernels. The arguments of these kernels after the
/// context are a call and the norm.
macro_rules! norms {
    ($($kernel:ident),* $(,)?) => {
        fn register_norms() {
            $({
                /// # Safety
                /// `launch` is a launch of this kernel in progress.
                unsafe extern "C" fn run(launch: *const driver::Launch) {
                    // SAFETY: the fake calls this for launches of this kernel, whose arguments
                    // after the context are these.
                    let arguments = unsafe { ((*launch).argument::<Call>(1), (*launch).argument::<Norm>(2)) };
                    // SAFETY: the fake calls this for launches of this kernel.
                    unsafe { on_cpu(&rms_norm::$kernel::KERNEL, launch, arguments) }
                }
                driver::register_kernel(stringify!($kernel), run);
            })*
        }
    };
}

norms! {
    rms_norm_one_shot_f16_2,
    rms_norm_one_shot_f16_4,
    rms_norm_one_shot_f16_8,
    rms_norm_one_shot_bf16_2,
    rms_norm_one_shot_bf16_4,
    rms_norm_one_shot_bf16_8,
    rms_norm_one_shot_f32_2,
    rms_norm_one_shot_f32_4,
    rms_norm_one_shot_f32_8,
    rms_norm_two_shot_f16_2,
    rms_norm_two_shot_f16_4,
    rms_norm_two_shot_f16_8,
    rms_norm_two_shot_bf16_2,
    rms_norm_two_shot_bf16_4,
    rms_norm_two_shot_bf16_8,
    rms_norm_two_shot_f32_2,
    rms_norm_two_shot_f32_4,
    rms_norm_two_shot_f32_8,
    rms_norm_plain_f16_1,
    rms_norm_plain_bf16_1,
    rms_norm_plain_f32_1,
}

messages! {
    transfer_4,
    transfer_8,
    transfer_plain_4,
    transfer_plain_8,
    transfer_ring_2,
    transfer_ring_4,
    transfer_ring_8,
    transfer_ring_plain_2,
    transfer_ring_plain_4,
    transfer_ring_plain_8,
}

collectives! {
    barrier:
        barrier_8;
    all_reduce:
        all_reduce_chunked_bf16_2,
        all_reduce_chunked_bf16_4,
        all_reduce_chunked_bf16_8,
        all_reduce_chunked_f16_2,
        all_reduce_chunked_f16_4,
        all_reduce_chunked_f16_8,
        all_reduce_chunked_f32_2,
        all_reduce_chunked_f32_4,
        all_reduce_chunked_f32_8,
        all_reduce_chunked_f64_2,
        all_reduce_chunked_f64_4,
        all_reduce_chunked_f64_8,
        all_reduce_chunked_i16_2,
        all_reduce_chunked_i16_4,
        all_reduce_chunked_i16_8,
        all_reduce_chunked_u16_2,
        all_reduce_chunked_u16_4,
        all_reduce_chunked_u16_8,
        all_reduce_chunked_i32_2,
        all_reduce_chunked_i32_4,
        all_reduce_chunked_i32_8,
        all_reduce_chunked_i64_2,
        all_reduce_chunked_i64_4,
        all_reduce_chunked_i64_8,
        all_reduce_chunked_i8_2,
        all_reduce_chunked_i8_4,
        all_reduce_chunked_i8_8,
        all_reduce_chunked_u32_2,
        all_reduce_chunked_u32_4,
        all_reduce_chunked_u32_8,
        all_reduce_chunked_u64_2,
        all_reduce_chunked_u64_4,
        all_reduce_chunked_u64_8,
        all_reduce_chunked_u8_2,
        all_reduce_chunked_u8_4,
        all_reduce_chunked_u8_8,
        all_reduce_one_shot_bf16_2,
        all_reduce_one_shot_bf16_4,
        all_reduce_one_shot_bf16_8,
        all_reduce_one_shot_f16_2,
        all_reduce_one_shot_f16_4,
        all_reduce_one_shot_f16_8,
        all_reduce_one_shot_f32_2,
        all_reduce_one_shot_f32_4,
        all_reduce_one_shot_f32_8,
        all_reduce_one_shot_f64_2,
        all_reduce_one_shot_f64_8,
        all_reduce_one_shot_i16_2,
        all_reduce_one_shot_i16_8,
        all_reduce_one_shot_u16_2,
        all_reduce_one_shot_u16_8,
        all_reduce_one_shot_i32_2,
        all_reduce_one_shot_i32_8,
        all_reduce_one_shot_i64_2,
        all_reduce_one_shot_i64_8,
        all_reduce_one_shot_i8_2,
        all_reduce_one_shot_i8_8,
        all_reduce_one_shot_u32_2,
        all_reduce_one_shot_u32_8,
        all_reduce_one_shot_u64_2,
        all_reduce_one_shot_u64_8,
        all_reduce_one_shot_u8_2,
        all_reduce_one_shot_u8_8,
        all_reduce_plain_chunked_bf16_2,
        all_reduce_plain_chunked_bf16_4,
        all_reduce_plain_chunked_bf16_8,
        all_reduce_plain_chunked_f16_2,
        all_reduce_plain_chunked_f16_4,
        all_reduce_plain_chunked_f16_8,
        all_reduce_plain_chunked_f32_2,
        all_reduce_plain_chunked_f32_4,
        all_reduce_plain_chunked_f32_8,
        all_reduce_plain_one_shot_bf16_2,
        all_reduce_plain_one_shot_bf16_4,
        all_reduce_plain_one_shot_bf16_8,
        all_reduce_plain_one_shot_f16_2,
        all_reduce_plain_one_shot_f16_4,
        all_reduce_plain_one_shot_f16_8,
        all_reduce_plain_one_shot_f32_2,
        all_reduce_plain_one_shot_f32_4,
        all_reduce_plain_one_shot_f32_8,
        all_reduce_plain_two_shot_bf16_2,
        all_reduce_plain_two_shot_bf16_4,
        all_reduce_plain_two_shot_bf16_8,
        all_reduce_plain_two_shot_f16_2,
        all_reduce_plain_two_shot_f16_4,
        all_reduce_plain_two_shot_f16_8,
        all_reduce_plain_two_shot_f32_2,
        all_reduce_plain_two_shot_f32_4,
        all_reduce_plain_two_shot_f32_8,
        all_reduce_two_shot_bf16_2,
        all_reduce_two_shot_bf16_4,
        all_reduce_two_shot_bf16_8,
        all_reduce_two_shot_f16_2,
        all_reduce_two_shot_f16_4,
        all_reduce_two_shot_f16_8,
        all_reduce_two_shot_f32_2,
        all_reduce_two_shot_f32_4,
        all_reduce_two_shot_f32_8,
        all_reduce_two_shot_f64_8,
        all_reduce_two_shot_i16_8,
        all_reduce_two_shot_u16_8,
        all_reduce_two_shot_i32_8,
        all_reduce_two_shot_i64_8,
        all_reduce_two_shot_i8_8,
        all_reduce_two_shot_u32_8,
        all_reduce_two_shot_u64_8,
        all_reduce_two_shot_u8_8;
    exchange:
        all_gather_plain_2,
        all_gather_2,
        all_gather_plain_4,
        all_gather_4,
        all_gather_plain_8,
        all_gather_8,
        all_to_all_plain_2,
        all_to_all_2,
        all_to_all_plain_4,
        all_to_all_4,
        all_to_all_plain_8,
        all_to_all_8;
    reduce_scatter:
        reduce_scatter_f16_2,
        reduce_scatter_f16_4,
        reduce_scatter_f16_8,
        reduce_scatter_bf16_2,
        reduce_scatter_bf16_4,
        reduce_scatter_bf16_8,
        reduce_scatter_f32_2,
        reduce_scatter_f32_4,
        reduce_scatter_f32_8,
        reduce_scatter_i8_8,
        reduce_scatter_u8_8,
        reduce_scatter_i16_8,
        reduce_scatter_u16_8,
        reduce_scatter_i32_8,
        reduce_scatter_u32_8,
        reduce_scatter_i64_8,
        reduce_scatter_u64_8,
        reduce_scatter_f64_8,
        reduce_scatter_plain_f16_2,
        reduce_scatter_plain_f16_4,
        reduce_scatter_plain_f16_8,
        reduce_scatter_plain_bf16_2,
        reduce_scatter_plain_bf16_4,
        reduce_scatter_plain_bf16_8,
        reduce_scatter_plain_f32_2,
        reduce_scatter_plain_f32_4,
        reduce_scatter_plain_f32_8;
    scan:
        scan_i8_8,
        scan_u8_8,
        scan_i16_8,
        scan_u16_8,
        scan_i32_8,
        scan_u32_8,
        scan_i64_8,
        scan_u64_8,
        scan_f16_8,
        scan_bf16_8,
        scan_f32_8,
        scan_f64_8;
}

pub(crate) fn register() {
    register_tests();
    register_stream_kernels();
    register_collectives();
    register_combiners();
    register_messages();
    register_norms();
}

/// Runs `body` on each of `n` PEs of a world on GPUs, and then finalizes the world. Returns the
/// results of `body`.
pub(crate) fn worlds<T: Send>(n: u32, options: GpuOptions, body: impl Fn(&World) -> T + Sync) -> Vec<T> {
    pes_that_may_fail(n, options, |gpu| {
        let world = World::new(Cuda::new(gpu.expect("the GPU is set up")).expect("the backend is created"))
            .expect("the world is created");
        let result = body(&world);
        let report = world.finalize().expect("every PE ends the job");
        assert!(report.is_clean(), "{report}");
        result
    })
}

/// Emulates a kernel's store to a multicast address.
pub(crate) fn store_by_multicast(address: u64, bytes: &[u8]) {
    driver::multicast_store(address, bytes).expect("memory is mapped at the address");
}
