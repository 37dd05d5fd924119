//! Tests of all_reduce with a residual and RMSNorm, over the fake driver. The result of each
//! algorithm has the same bits as the result of separate steps. The tests also cover rows that do
//! not fit in the staging memory, graphs, a missing PE, and calls whose arguments differ among the
//! PEs.
#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use peerweave_core::backend::CollectiveKind;
use peerweave_core::{Buffer, Error, OnDevice, RmsNorm};
use peerweave_cuda::{
    Collectives, CollectivesOptions, Cuda, CudaError, Gpu, GpuOptions, Local, RmsNormCall, RmsNormOutput, Stream,
};
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use peerweave_driver::{DeviceMemory, PrivateStream};
use peerweave_types::{DType, FailureKind, KernelOp, Pe, ReduceOp};

use common::{fakes, pes, worlds};

fn small() -> CollectivesOptions {
    let mut options = CollectivesOptions::default();
    (options.bank_bytes, options.slot_bytes, options.max_blocks) = (32 << 10, 1 << 10, 4);
    options
}

fn options() -> GpuOptions {
    GpuOptions::new(4 << 20).deadline(Duration::from_secs(60)).slots(4)
}

/// Operands of one call with elements of type `f32`.
struct Operands {
    input: Local<f32>,
    residual: Local<f32>,
    output: Local<f32>,
    /// Keeps the weight alive.
    _weight: Local<f32>,
    scales: Local<f32>,
    call: RmsNormCall,
}

impl Operands {
    /// Allocates and writes the operands of this PE.
    fn new(gpu: &Gpu, stream: &Stream, rows: usize, hidden: usize) -> Self {
        let len = rows * hidden;
        let [input, residual, output] = [len; 3].map(|len| gpu.alloc_local::<f32>(len).expect("the memory is allocated"));
        let [weight, scales] = [hidden, rows].map(|len| gpu.alloc_local::<f32>(len).expect("the memory is allocated"));
        let me = gpu.pe().get() as usize;
        let values =
            |of: &dyn Fn(usize) -> usize, len: usize| -> Vec<f32> { (0..len).map(|i| of(i) as f32 / 8.0 - 3.0).collect() };
        input.write(stream, &values(&|i| (i * 7 + me * 3) % 41, len)).expect("the elements are written");
        residual.write(stream, &values(&|i| (i * 5) % 57, len)).expect("the elements are written");
        weight.write(stream, &values(&|i| 30 + i % 9, hidden)).expect("the elements are written");
        scales.write(stream, &vec![-1.0; rows]).expect("the elements are written");
        let at = |of: &Local<f32>| of.slice().address();
        let call = RmsNormCall {
            input: at(&input),
            residual: at(&residual),
            output: at(&output),
            weight: at(&weight),
            rows: rows as u64,
            hidden: hidden as u64,
            dtype: DType::F32,
            epsilon: 1e-5,
            quantization: RmsNormOutput::Same,
        };
        Self { input, residual, output, _weight: weight, scales, call }
    }

    /// Returns the bits of the new residual and of the output.
    fn bits(&self, stream: &Stream) -> [Vec<u32>; 2] {
        [&self.residual, &self.output]
            .map(|of| of.read(stream).expect("the elements are read").into_iter().map(f32::to_bits).collect())
    }
}

#[test]
fn fused_and_separate_rms_norm_results_have_the_same_bits() {
    fakes().run(|| {
        pes(3, options(), |gpu| {
            let all = Collectives::world(gpu, small()).expect("the collectives are set up");
            let stream = gpu.stream().expect("the stream is created");
            // The rows of the last case do not fit in the staging memory, so the call takes several
            // launches.
            for (rows, hidden) in [(1, 64), (5, 260), (40, 64)] {
                let separate = Operands::new(gpu, &stream, rows, hidden);
                let at = separate.call.input;
                let len = (rows * hidden) as u64;
                // SAFETY: the memory is live until the test has waited for the stream.
                unsafe {
                    all.all_reduce(&stream, at, at, len, DType::F32, ReduceOp::Sum).expect("the call is enqueued");
                    all.add_rms_norm(&stream, &separate.call).expect("the call is enqueued");
                }
                let wanted = separate.bits(&stream);
                let mut fused = vec![Operands::new(gpu, &stream, rows, hidden)];
                // SAFETY: the memory is live until the test has waited for the stream.
                unsafe { all.all_reduce_rms_norm(&stream, &fused[0].call) }.expect("the call is enqueued");
                for two_shot in [false, true] {
                    if !two_shot || hidden >= 4 * 9 {
                        let operands = Operands::new(gpu, &stream, rows, hidden);
                        // SAFETY: the memory is live until the test has waited for the stream.
                        unsafe { all.all_reduce_rms_norm_by(two_shot, &stream, &operands.call) }.expect("the call is enqueued");
                        fused.push(operands);
                    }
                }
                for (index, operands) in fused.iter().enumerate() {
                    assert!(operands.bits(&stream) == wanted, "{rows} rows of {hidden}, form {index}");
                }
                // The output replaces the input.
                let mut operands = Operands::new(gpu, &stream, rows, hidden);
                operands.call.output = operands.call.input;
                // SAFETY: the memory is live until the test has waited for the stream.
                unsafe { all.all_reduce_rms_norm(&stream, &operands.call) }.expect("the call is enqueued");
                let found: Vec<u32> =
                    operands.input.read(&stream).expect("the elements are read").into_iter().map(f32::to_bits).collect();
                assert!(found == wanted[1], "{rows} rows of {hidden} in place");
                gpu.barrier("read").expect("all PEs arrive");
            }
            all.end().expect("the memory is freed");
        });
    });
}

#[test]
fn rms_norm_row_scales_are_correct_over_several_launches() {
    fakes().run(|| {
        pes(2, options(), |gpu| {
            let all = Collectives::world(gpu, small()).expect("the collectives are set up");
            let stream = gpu.stream().expect("the stream is created");
            let (rows, hidden) = (70, 64);
            let plain = Operands::new(gpu, &stream, rows, hidden);
            let mut scaled = Operands::new(gpu, &stream, rows, hidden);
            let scales = scaled.scales.slice().address();
            scaled.call.quantization = RmsNormOutput::RowScaled { dtype: DType::I8, scales };
            // SAFETY: the memory is live until the test has waited for the stream.
            unsafe {
                all.all_reduce_rms_norm(&stream, &plain.call).expect("the call is enqueued");
                all.all_reduce_rms_norm(&stream, &scaled.call).expect("the call is enqueued");
            }
            let (y, scales) = (
                plain.output.read(&stream).expect("the elements are read"),
                scaled.scales.read(&stream).expect("the elements are read"),
            );
            let words = scaled.output.read(&stream).expect("the elements are read");
            let bytes: Vec<i8> = words.iter().flat_map(|word| word.to_bits().to_le_bytes()).map(|byte| byte as i8).collect();
            for (index, y) in y.iter().enumerate() {
                let wanted = y / scales[index / hidden];
                assert!(
                    (f32::from(bytes[index]) - wanted).abs() <= 0.501,
                    "element {index}: {}, expected {wanted}",
                    bytes[index]
                );
            }
            all.end().expect("the memory is freed");
        });
    });
}

#[test]
fn rms_norm_is_correct_if_graph_launches_and_calls_alternate() {
    fakes().run(|| {
        pes(2, options(), |gpu| {
            let all = Collectives::world(gpu, small()).expect("the collectives are set up");
            let stream = gpu.stream().expect("the stream is created");
            all.load_rms_norm(DType::F32).expect("the kernels are loaded");
            // Each call adds the same sum to the residual.
            let (captured, called) = (Operands::new(gpu, &stream, 2, 128), Operands::new(gpu, &stream, 2, 128));
            stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
            // SAFETY: the memory is live until the test has waited for the stream.
            unsafe { all.all_reduce_rms_norm(&stream, &captured.call) }.expect("the call is captured");
            let graph = stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            let graph = graph.expect("the capture ends").expect("the capture returns a graph");
            for _ in 0..3 {
                graph.launch().expect("the graph is launched");
                // SAFETY: the memory is live until the test has waited for the stream.
                unsafe { all.all_reduce_rms_norm(&stream, &called.call) }.expect("the call is enqueued");
            }
            assert!(captured.bits(&stream) == called.bits(&stream));
            drop(graph);
            gpu.barrier("read").expect("all PEs arrive");
        });
    });
}

#[test]
fn rms_norm_error_names_the_missing_pe() {
    fakes().run(|| {
        pes(2, options().deadline(Duration::from_secs(3)), |gpu| {
            let all = Collectives::world(gpu, small()).expect("the collectives are set up");
            let stream = gpu.stream().expect("the stream is created");
            if gpu.pe() == Pe::new(0) {
                let operands = Operands::new(gpu, &stream, 3, 256);
                // SAFETY: the memory is live until the test has waited for the stream.
                unsafe { all.all_reduce_rms_norm(&stream, &operands.call) }.expect("the call is enqueued");
                let error = stream.wait().expect_err("the wait fails, because PE 1 makes no call");
                let CudaError::Kernel { failure, .. } = &error else { panic!("{error}, expected the failure of a kernel") };
                assert_eq!((failure.kind, failure.pe), (Some(FailureKind::Deadline), Some(Pe::new(1))), "{error}");
                assert_eq!(failure.operation, Some(KernelOp::AllReduce), "{error}");
            }
            gpu.barrier("seen").expect("all PEs arrive");
        });
    });
}

#[test]
fn invalid_rms_norm_call_returns_misuse() {
    fakes().run(|| {
        pes(1, options(), |gpu| {
            let all = Collectives::world(gpu, small()).expect("the collectives are set up");
            let stream = gpu.stream().expect("the stream is created");
            let operands = Operands::new(gpu, &stream, 2, 64);
            let right = operands.call;
            let wrong = [
                ("dtype", RmsNormCall { dtype: DType::F64, ..right }),
                ("hidden", RmsNormCall { hidden: 0, ..right }),
                ("hidden", RmsNormCall { hidden: 63, ..right }),
                ("hidden", RmsNormCall { hidden: 1 << 24, ..right }),
                ("input", RmsNormCall { input: right.input + 4, ..right }),
                ("residual", RmsNormCall { residual: 0, ..right }),
                ("weight", RmsNormCall { weight: right.weight + 8, ..right }),
                ("rows", RmsNormCall { rows: u64::MAX, ..right }),
                ("epsilon", RmsNormCall { epsilon: 0.0, ..right }),
                ("quantization", RmsNormCall { quantization: RmsNormOutput::Scaled { dtype: DType::U8, scale: 1.0 }, ..right }),
                ("scale", RmsNormCall { quantization: RmsNormOutput::Scaled { dtype: DType::I8, scale: 0.0 }, ..right }),
                ("scales", RmsNormCall { quantization: RmsNormOutput::RowScaled { dtype: DType::I8, scales: 2 }, ..right }),
            ];
            for (what, call) in wrong {
                // SAFETY: the call is refused.
                let error = unsafe { all.all_reduce_rms_norm(&stream, &call) }.expect_err(what);
                assert!(matches!(error, CudaError::Misuse { .. }) && error.to_string().contains(what), "{what}: {error}");
            }
            all.end().expect("the memory is freed");
        });
    });
}

#[test]
fn rms_norm_with_different_epsilons_is_a_mismatch() {
    fakes().run(|| {
        common::pes_that_may_fail(2, options().deadline(Duration::from_secs(4)), |gpu| {
            let world = peerweave_core::World::new(
                peerweave_cuda::Cuda::new(gpu.expect("the GPU is set up")).expect("the backend is created"),
            );
            let world = world.expect("the world is created");
            let [x, residual, y] = [(); 3].map(|()| world.alloc_zeroed::<f32>(64).expect("the memory is allocated"));
            let weight = world.alloc_zeroed::<f32>(16).expect("the memory is allocated");
            let epsilon = if world.my_pe().get() == 0 { 1e-5 } else { 1e-6 };
            let norm = RmsNorm::new(&weight).epsilon(epsilon);
            let first = world.team().all_reduce_rms_norm_blocking(&x, &residual, &y, norm);
            // The kernels of both calls exchange the same number of lines. So the call itself may
            // succeed, and a later call detects the mismatch.
            let error = first.and_then(|()| world.team().barrier_blocking()).and_then(|()| world.team().barrier_blocking());
            let error = error.expect_err("a call fails, because the epsilons differ");
            assert!(matches!(error, Error::Mismatch(_)), "{error}");
            let text = error.to_string();
            let call = CollectiveKind::AllReduceRmsNorm.name();
            assert!(text.contains(call) && text.contains("epsilon 1e-5") && text.contains("epsilon 1e-6"), "{text}");
        });
    });
}

#[test]
fn graph_keeps_the_memory_of_a_captured_rms_norm_allocated() {
    const CALLS: i32 = 2;
    fakes().run(|| {
        worlds(2, options(), |world| {
            let cuda = world.backend::<Cuda>().expect("the world runs on GPUs");
            let own = PrivateStream::new(cuda.context()).expect("the stream is created");
            let stream =
                world.adopt_stream(cuda.wrap_stream(own.clone()).expect("the stream is wrapped")).expect("the stream is adopted");
            let [x, residual, y] = [(); 3].map(|()| world.alloc_zeroed::<f32>(32).expect("the memory is allocated"));
            let weight = DeviceMemory::<f32>::from_slice(&own, &[0.5; 16]).expect("the memory is allocated");
            x.fill(1.0).expect("the elements are set");
            let call = |weight: &OnDevice<f32>| {
                world.team().all_reduce_rms_norm(&stream, &x, &residual, &y, RmsNorm::new(weight)).map(drop)
            };
            let operand = peerweave_cuda::on_device(&weight).expect("the memory can be an operand");
            // Kernels cannot be loaded during a capture, so this call loads them.
            call(&operand).expect("the call is enqueued");
            stream.synchronize().expect("the work completes");
            own.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
            let captured = [(); CALLS as usize].map(|()| call(&operand));
            // Memory of the host cannot be captured.
            let refused =
                world.team().all_reduce_rms_norm(&stream, &x, &residual, &y, RmsNorm::new(&Buffer::from(vec![0.5; 16])));
            assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
            let graph = own.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            captured.into_iter().for_each(|captured| captured.expect("the call is captured"));
            let graph = graph.expect("the capture ends").expect("the capture returns a graph");
            // The graph keeps the memory of the weight alive.
            drop((operand, weight));
            for runs in 1..=3 {
                world.team().barrier_blocking().expect("all PEs arrive");
                graph.launch().expect("the graph is launched");
                let soon = Instant::now() + Duration::from_secs(60);
                assert!(peerweave_driver::wait(&own, soon).expect("the wait does not fail"), "the graph has not ended");
                assert_eq!(residual.to_vec().expect("the elements are read"), [2.0 * (1 + CALLS * runs) as f32; 32]);
                assert!(y.to_vec().expect("the elements are read").iter().all(|y| (y - 0.5).abs() < 1e-6));
            }
            world.team().barrier_blocking().expect("all PEs arrive");
            drop((graph, stream, own));
            [x, residual, y].into_iter().for_each(|buffer| buffer.release().expect("all PEs release the buffer"));
        });
    });
}
