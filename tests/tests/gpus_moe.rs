//! Checks dispatch and combine for mixture of experts on GPUs of the fake driver.
#![cfg(target_os = "linux")]

#[path = "../../crates/peerweave-cuda/tests/common/mod.rs"]
mod common;

use peerweave::{bf16, f16};
use peerweave_cuda::{Cuda, GpuOptions};
use peerweave_driver::PrivateStream;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use peerweave_fakes::{Fakes, driver};
use peerweave_moe::{Exchange, Moe, Received, Shape, Tokens, combine, dispatch};
use peerweave_tests::check::moe::{Case, Routing, calls_without_waits, exchange, two_exchanges};
use peerweave_types::{KernelTeam, SymSlice};
use std::time::Duration;

/// Runs a program on this number of simulated GPUs.
fn on_gpus(n_pes: u32, program: impl Fn(peerweave::World) + Sync) {
    let options = GpuOptions::new(64 << 20).deadline(Duration::from_secs(60)).slots(4);
    common::pes_that_may_fail(n_pes, options, |gpu| {
        let backend = Cuda::new(gpu.expect("the GPU is set up")).expect("the backend starts");
        program(peerweave::World::from(peerweave_core::World::new(backend).expect("the world starts")));
    });
}

/// Registers the kernels of mixture of experts with the fake driver.
macro_rules! moe_kernels {
    ($($room:ident::$kernel:ident($($index:literal: $argument:ty),*);)*) => {
        fn register_moe() {
            $({
                /// # Safety
                /// `launch` is a launch of this kernel in progress.
                unsafe extern "C" fn run(launch: *const driver::Launch) {
                    // SAFETY: the fake calls this for launches of this kernel, whose arguments
                    // after the context are these.
                    unsafe {
                        let arguments =
                            ((*launch).argument::<Exchange>(1), (*launch).argument::<KernelTeam>(2), $((*launch).argument::<$argument>($index),)*);
                        common::on_cpu(&$room::$kernel::KERNEL, launch, arguments);
                    }
                }
                driver::register_kernel(stringify!($kernel), run);
            })*
        }
    };
}

moe_kernels! {
    dispatch::moe_dispatch_send(3: SymSlice<u128>, 4: SymSlice<u128>, 5: SymSlice<i32>, 6: SymSlice<f32>, 7: u32);
    dispatch::moe_dispatch_plan(3: SymSlice<u128>, 4: SymSlice<u128>, 5: SymSlice<u32>);
    dispatch::moe_dispatch_receive(3: SymSlice<u128>, 4: SymSlice<u128>);
    combine::moe_combine_send_bf16(3: SymSlice<u128>);
    combine::moe_combine_receive_bf16(3: SymSlice<u128>);
    combine::moe_combine_send_f16(3: SymSlice<u128>);
    combine::moe_combine_receive_f16(3: SymSlice<u128>);
    combine::moe_combine_send_f32(3: SymSlice<u128>);
    combine::moe_combine_receive_f32(3: SymSlice<u128>);
}

#[test]
fn moe_dispatch_and_combine_match_the_reference() {
    Fakes::new().cuda().run(|| {
        register_moe();
        for n in [1, 2, 3] {
            on_gpus(n, |world| {
                for routing in [Routing::Random, Routing::OneRank] {
                    let mut case = Case::new(4 * n as usize, 3, 24, 7, 4, routing);
                    case.shape = case.shape.launch(2, 48);
                    exchange::<bf16, bf16>(&world, &case, 3).expect("dispatch and combine succeed");
                    exchange::<f16, f16>(&world, &case, 2).expect("dispatch and combine succeed");
                }
                calls_without_waits(&world, Some([2, 33])).expect("dispatch and combine succeed");
                assert!(world.finalize().expect("all PEs finalize").is_clean());
            });
        }
    });
}

#[test]
fn moe_exchanges_of_two_teams_are_independent() {
    Fakes::new().cuda().run(|| {
        register_moe();
        on_gpus(4, |world| {
            two_exchanges(&world, Some([2, 32])).expect("dispatch and combine succeed");
            assert!(world.finalize().expect("all PEs finalize").is_clean());
        });
    });
}

#[test]
fn moe_is_correct_when_graph_launches_and_calls_alternate() {
    /// Number of elements of a token.
    const HIDDEN: usize = 16;
    Fakes::new().cuda().run(|| {
        register_moe();
        on_gpus(2, |world| {
            let (cuda, me) = (world.backend::<Cuda>().expect("the backend of the world is Cuda"), world.my_pe().get());
            let own = PrivateStream::new(cuda.context()).unwrap();
            let stream = world.adopt_stream(cuda.wrap_stream(own.clone()).unwrap()).unwrap();
            let shape = Shape::new(4, 2, HIDDEN, 3).launch(2, 32);
            let mut moe = Moe::<f32, f32>::new(&world, world.team(), &stream, shape).unwrap();
            let (rows, outputs) = (world.alloc::<f32>(3 * HIDDEN).unwrap(), world.alloc::<f32>(3 * HIDDEN).unwrap());
            let (experts, weights) = (world.alloc::<i32>(6).unwrap(), world.alloc::<f32>(6).unwrap());
            let (received, offsets) = (world.alloc::<f32>(moe.max_rows() * HIDDEN).unwrap(), world.alloc::<u32>(3).unwrap());
            experts.copy_from(&[0, 1, 1, 2, 3, 0]).unwrap();
            weights.fill(0.5).unwrap();
            // Experts return their input, so each token gets its own content.
            let mut call = || {
                let tokens = Tokens { rows: &rows, scales: None, experts: &experts, weights: &weights };
                moe.dispatch(&tokens, &Received { rows: &received, scales: None, offsets: &offsets })?;
                moe.combine(&received, &outputs).map(drop)
            };
            // Loads the kernels before the capture.
            call().unwrap();
            stream.synchronize().unwrap();
            own.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
            let captured = call();
            let graph = own.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            captured.unwrap();
            let graph = graph.unwrap().expect("the capture returns a graph");
            for round in 0..7 {
                let content: Vec<f32> = (0..3 * HIDDEN).map(|index| (1000 * round + 100 * me as usize + index) as f32).collect();
                rows.copy_from(&content).unwrap();
                outputs.fill(f32::NAN).unwrap();
                if round % 3 == 2 {
                    call().unwrap();
                } else {
                    graph.launch().unwrap();
                }
                stream.record().unwrap().wait().unwrap();
                assert_eq!(outputs.to_vec().unwrap(), content, "round {round}");
                assert_eq!(offsets.to_vec().unwrap(), if me == 0 { [0, 4, 8] } else { [0, 2, 4] });
            }
            drop(graph);
            moe.release().unwrap();
            for memory in [rows, outputs, weights, received] {
                memory.release().unwrap();
            }
            experts.release().unwrap();
            offsets.release().unwrap();
            drop((stream, own));
            assert!(world.finalize().expect("all PEs finalize").is_clean());
        });
    });
}
