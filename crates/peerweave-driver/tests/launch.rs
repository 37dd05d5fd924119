//! Tests of modules and launches over the fake driver, whose kernels are functions of the host.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::launch::{Arguments, Image, LaunchConfig, LaunchError, LoadedKernel, MappedWords, Module};
use peerweave_driver::{CudaContext, DeviceMemory, DriverError, Keep};
use peerweave_fakes::Fakes;
use peerweave_fakes::driver::{Launch, register_kernel};

use common::{LONG, block, calls, comes, device, fail, unblock};

const PTX: &str = "
.version 7.8
.target sm_70
.address_size 64
.visible .entry count(.param .u64 place, .param .u32 add, .param .align 8 .b8 slice[16], .param .u8 last) { ret; }
";

/// A kernel that adds a sum to the word whose address is the first argument. The sum has the second
/// argument once for each thread, both words of the third argument, and the fourth argument.
///
/// # Safety
/// `launch` points to a launch of this kernel in progress.
unsafe extern "C" fn count(launch: *const Launch) {
    // SAFETY: the fake driver passes a live launch of this kernel, whose parameters are declared in
    // `PTX`.
    let (place, add, slice, last, threads) = unsafe {
        let launch = &*launch;
        assert_eq!(launch.n_parameters, 4);
        let threads = launch.grid.iter().chain(&launch.block).product::<u32>();
        (launch.argument::<u64>(0), launch.argument::<u32>(1), launch.argument::<[u64; 2]>(2), launch.argument::<u8>(3), threads)
    };
    let added = u64::from(add * threads) + slice[0] + slice[1] + u64::from(last);
    let word = std::ptr::with_exposed_provenance::<std::sync::atomic::AtomicU64>(place as usize);
    // SAFETY: the address is that of a live word of the device, which the fake driver has mapped in
    // this process.
    unsafe { &*word }.fetch_add(added, std::sync::atomic::Ordering::Relaxed);
}

fn register() {
    register_kernel("count", count);
}

fn loaded(context: &Arc<CudaContext>) -> LoadedKernel {
    register();
    Module::load(context, Image::Ptx(PTX)).expect("the module loads").kernel("count").expect("the kernel exists")
}

fn launch(
    kernel: &LoadedKernel,
    stream: &Arc<peerweave_driver::CudaStream>,
    config: LaunchConfig,
    memory: &DeviceMemory<u64>,
) -> Result<(), DriverError> {
    let (place, rest) = (memory.address(), (3_u32, [10_u64, 20], 7_u8));
    let keep: Vec<Keep> = peerweave_driver::DeviceBuffer::keep(memory).map(|(_, keep)| keep).into_iter().collect();
    drop(peerweave_driver::DeviceBuffer::read(memory, stream));
    // SAFETY: the kernel adds to one word of memory. The graph keeps the memory, or the memory has
    // recorded the stream.
    unsafe { kernel.launch(stream, &config, &Arguments::new().with(&place).with_all(&rest), keep) }
}

#[test]
fn launched_kernel_receives_the_shape_and_the_arguments() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let kernel = loaded(&context);
        let places: Vec<_> =
            kernel.parameters().expect("the fake driver reports the parameters").iter().map(|p| (p.offset, p.bytes)).collect();
        assert_eq!(places, [(0, 8), (8, 4), (16, 16), (32, 1)]);
        let memory = DeviceMemory::zeroed(&stream, 1).expect("the device has enough memory");
        launch(&kernel, &stream, LaunchConfig::new((2, 3), (4, 5, 6)), &memory).expect("the launch succeeds");
        launch(&kernel, &stream, LaunchConfig::new(1, 1).shared_bytes(100 << 10).programmatic(), &memory)
            .expect("the launch succeeds");
        assert_eq!(memory.to_vec(&stream).expect("the copy ends"), [3 * 720 + 37 + 3 + 37]);
    });
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_enqueued() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let kernel = loaded(&context);
        let refused = |arguments: Arguments<'_>| {
            // SAFETY: the arguments do not match the parameters, so no kernel runs.
            unsafe { kernel.launch(&stream, &LaunchConfig::new(1, 1), &arguments, Vec::new()) }
                .expect_err("the arguments do not match the parameters")
                .to_string()
        };
        let place = 0_u64;
        assert_eq!(refused(Arguments::new().with(&place)), "launch of count: 1 arguments, expected 4");
        assert_eq!(
            refused(Arguments::new().with(&place).with_all(&(3_u64, [0_u64; 2], 0_u8))),
            "launch of count: argument 1 has 8 bytes at offset 8, expected 4 bytes at offset 8"
        );
        assert_eq!(
            refused(Arguments::new().with(&place).with_all(&(3_u32, [0_u32; 4], 0_u8))),
            "launch of count: argument 2 has 16 bytes at offset 12, expected 16 bytes at offset 16"
        );
        assert_eq!(calls("cuLaunchKernelEx"), 0);
    });
}

#[test]
fn impossible_launch_shapes_are_refused_and_nothing_is_enqueued() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let kernel = loaded(&context);
        let memory = DeviceMemory::zeroed(&stream, 1).expect("the device has enough memory");
        for (config, part) in [
            (LaunchConfig::new(0, 1), "the grid is 0 x 1 x 1"),
            (LaunchConfig::new((1, 70_000), 1), "the grid is 1 x 70000 x 1"),
            (LaunchConfig::new(1, (1, 1, 65)), "the block is 1 x 1 x 65"),
            (LaunchConfig::new(1, (64, 32)), "the number of threads of a block is 2048"),
            (LaunchConfig::new(1, 1).shared_bytes(300 << 10), "dynamic shared memory is 307200 bytes"),
        ] {
            let error = launch(&kernel, &stream, config, &memory).expect_err(part);
            assert!(
                matches!(error, DriverError::Launch(LaunchError::Shape { .. })) && error.to_string().contains(part),
                "{error}"
            );
        }
        assert_eq!(calls("cuLaunchKernelEx"), 0);
    });
}

#[test]
fn cooperative_grid_that_cannot_be_resident_is_refused() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let kernel = loaded(&context);
        let memory = DeviceMemory::zeroed(&stream, 1).expect("the device has enough memory");
        let most = kernel.resident_blocks(1024, 0).expect("the fake driver reports the occupancy");
        assert_eq!(most, 2 * 132);
        let config = |blocks: u64| LaunchConfig::new(blocks as u32, 1024).cooperative();
        launch(&kernel, &stream, config(most), &memory).expect("the grid is resident");
        let error = launch(&kernel, &stream, config(most + 1), &memory).expect_err("the grid has too many blocks");
        let DriverError::Launch(LaunchError::NotResident { found, expected, .. }) = error else { panic!("{error}") };
        assert_eq!((found, expected), (most + 1, most));
        assert_eq!(calls("cuLaunchKernelEx"), 1);
    });
}

#[test]
fn module_is_unloaded_only_after_the_kernels_have_run() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let memory = DeviceMemory::zeroed(&stream, 1).expect("the device has enough memory");
        let kernel = loaded(&context);
        block(&stream);
        launch(&kernel, &stream, LaunchConfig::new(1, 1), &memory).expect("the launch succeeds");
        drop(kernel);
        std::thread::sleep(common::SHORT);
        assert_eq!(calls("cuModuleUnload"), 0, "the module was unloaded before its kernel ran");
        unblock(&stream);
        assert!(comes(LONG, || calls("cuModuleUnload") == 1));
        assert_eq!(memory.to_vec(&stream).expect("the copy ends"), [40]);
    });
}

#[test]
fn graph_keeps_the_module_and_memory_of_captured_kernels() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let memory = DeviceMemory::<u64>::zeroed(&stream, 1).expect("the device has enough memory");
        let kernel = loaded(&context);
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
        launch(&kernel, &stream, LaunchConfig::new(1, 2), &memory).expect("the launch is captured");
        let flags =
            peerweave_driver::cudarc::driver::sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).expect("the capture is valid").expect("the graph has nodes");
        drop(kernel);
        for _ in 0..3 {
            graph.launch().expect("the launch succeeds");
        }
        assert_eq!(memory.to_vec(&stream).expect("the copy ends"), [3 * 43]);
        assert_eq!(calls("cuModuleUnload"), 0);
        drop(graph);
        assert!(comes(LONG, || calls("cuModuleUnload") == 1));
    });
}

#[test]
fn kernel_is_launched_from_several_threads() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let kernel = loaded(&context);
        let memory = DeviceMemory::zeroed(&stream, 1).expect("the device has enough memory");
        memory.to_vec(&stream).expect("the copy ends");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let stream = context.new_stream().expect("the stream is created");
                    for _ in 0..10 {
                        launch(&kernel, &stream, LaunchConfig::new(1, 1).shared_bytes(64 << 10), &memory)
                            .expect("the launch succeeds");
                    }
                    stream.synchronize().expect("the wait succeeds");
                });
            }
        });
        assert_eq!(memory.to_vec(&stream).expect("the copy ends"), [40 * 40]);
    });
}

#[test]
fn invalid_images_and_kernel_names_return_typed_errors() {
    Fakes::new().cuda().run(|| {
        let (context, _) = device();
        register();
        for image in
            [Image::Binary(b"\x7fELF and no more"), Image::Ptx("no text of this kind"), Image::Ptx(""), Image::Binary(b"")]
        {
            let error = Module::load(&context, image).expect_err("the image is invalid");
            assert!(matches!(error, DriverError::Launch(LaunchError::Image { .. })), "{error}");
        }
        let module = Module::load(&context, Image::Ptx(PTX)).expect("the module loads");
        let error = module.kernel("other").expect_err("the module has no other kernel");
        assert_eq!(error.to_string(), "the module has no kernel named other");
        assert_eq!(module.global("nothing").expect("the query succeeds"), None);
    });
}

#[test]
fn launch_succeeds_if_driver_lacks_the_parameter_query() {
    Fakes::new().cuda().without("cuFuncGetParamInfo").without("cuFuncLoad").run(|| {
        let (context, stream) = device();
        let kernel = loaded(&context);
        assert_eq!(kernel.parameters(), None);
        let memory = DeviceMemory::zeroed(&stream, 1).expect("the device has enough memory");
        launch(&kernel, &stream, LaunchConfig::new(1, 1), &memory).expect("the launch succeeds");
        assert_eq!(memory.to_vec(&stream).expect("the copy ends"), [40]);
    });
}

#[test]
fn capture_begun_during_a_launch_is_invalidated() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let kernel = loaded(&context);
        let memory = DeviceMemory::zeroed(&stream, 1).expect("the device has enough memory");
        let before = peerweave_fakes::entered("cuLaunchKernelEx");
        fail("cuLaunchKernelEx:1=400ms");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                peerweave_fakes::wait_until_entered("cuLaunchKernelEx", before + 1);
                stream
                    .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
                    .expect("the stream is not being captured yet");
            });
            let error =
                launch(&kernel, &stream, LaunchConfig::new(1, 1), &memory).expect_err("the capture began during the launch");
            assert!(matches!(error, DriverError::CaptureBegun { .. }), "{error}");
        });
        fail("");
        assert!(stream.end_capture(CUgraphInstantiate_flags(0)).is_err(), "the capture is valid and contains the launch");
    });
}

#[test]
fn mapped_words_are_visible_to_kernels_and_threads() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let kernel = loaded(&context);
        let words = MappedWords::new(&context, 64).expect("the device has enough memory");
        assert!((0..64).all(|index| words.word(index).load(Ordering::Relaxed) == 0));
        words.note(&stream);
        let (place, rest) = (words.device_address(2), (3_u32, [10_u64, 20], 7_u8));
        // SAFETY: the kernel adds to two words that are freed after the stream's work.
        unsafe { kernel.launch(&stream, &LaunchConfig::new(1, 1), &Arguments::new().with(&place).with_all(&rest), Vec::new()) }
            .expect("the launch succeeds");
        let seen = std::thread::scope(|scope| scope.spawn(|| comes(LONG, || words.word(2).load(Ordering::Acquire) == 40)).join());
        assert!(seen.expect("the thread does not panic"));
        drop(words);
        stream.synchronize().expect("the wait succeeds");
        assert!(comes(LONG, || calls("cuMemFreeHost") == 1));
    });
}
