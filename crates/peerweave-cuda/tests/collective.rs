//! Tests of collectives over the fake driver. Kernels run on the CPU, from the same source as on
//! GPUs. The kernels of several PEs run at the same time.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use peerweave_collectives::transfer::{self, Transfers};
use peerweave_collectives::{Call, all_reduce, barrier, exchange, reduce_scatter};
use peerweave_cuda::{Algorithm, Collectives, CollectivesOptions, CudaError, Gpu, GpuOptions, Local, Message, Route, Stream};
use peerweave_driver::CudaStream;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use peerweave_types::{DType, FailureKind, KernelOp, Pe, Rank, ReduceOp};

use common::{fakes, on_cpu};
use peerweave_fakes::driver;

macro_rules! register {
    ($($room:ident: $($kernel:ident),*;)*) => {$($({
        /// # Safety
        /// `launch` is a live launch of this kernel.
        unsafe extern "C" fn run(launch: *const driver::Launch) {
            // SAFETY: the fake calls this for launches of this kernel, whose argument after the
            // context is a call.
            unsafe { on_cpu(&$room::$kernel::KERNEL, launch, ((*launch).argument::<Call>(1),)) }
        }
        driver::register_kernel(stringify!($kernel), run);
    })*)*};
}

macro_rules! register_transfers {
    ($($kernel:ident),*) => {$({
        /// # Safety
        /// `launch` is a live launch of this kernel.
        unsafe extern "C" fn run(launch: *const driver::Launch) {
            // SAFETY: the fake calls this for launches of this kernel, whose arguments after the
            // context are a call and its messages.
            unsafe {
                let arguments = ((*launch).argument::<Call>(1), (*launch).argument::<Transfers>(2));
                on_cpu(&transfer::$kernel::KERNEL, launch, arguments);
            }
        }
        driver::register_kernel(stringify!($kernel), run);
    })*};
}

fn register() {
    register_transfers!(
        transfer_4,
        transfer_plain_4,
        transfer_ring_2,
        transfer_ring_4,
        transfer_ring_plain_2,
        transfer_ring_plain_4
    );
    register!(
        all_reduce: all_reduce_plain_one_shot_f32_2,
        all_reduce_plain_one_shot_f32_4,
        all_reduce_plain_two_shot_f32_2,
        all_reduce_plain_two_shot_f32_4,
        all_reduce_plain_chunked_f32_2,
        all_reduce_plain_chunked_f32_4,
        all_reduce_one_shot_f32_2,
        all_reduce_one_shot_f32_4,
        all_reduce_two_shot_f32_2,
        all_reduce_two_shot_f32_4,
        all_reduce_chunked_f32_2,
        all_reduce_chunked_f32_4;
        barrier: barrier_8;
        exchange: all_gather_4, all_gather_plain_4, all_to_all_4, all_to_all_plain_4;
        reduce_scatter: reduce_scatter_f32_2, reduce_scatter_plain_f32_2, reduce_scatter_f32_4, reduce_scatter_plain_f32_4;
    );
}

fn small() -> CollectivesOptions {
    let mut options = CollectivesOptions::default();
    (options.bank_bytes, options.slot_bytes, options.max_blocks) = (64 << 10, 1 << 10, 4);
    options
}

fn options() -> GpuOptions {
    GpuOptions::new(4 << 20).deadline(Duration::from_secs(60)).slots(4)
}

fn pes<T: Send>(n: u32, options: GpuOptions, body: impl Fn(&Gpu) -> T + Sync) -> Vec<T> {
    common::pes(n, options, |gpu| {
        register();
        body(gpu)
    })
}

/// Enqueues an in-place all_reduce that adds up the first `count` elements of `values` of all PEs.
fn add_up(all: &Collectives, stream: &Arc<CudaStream>, values: &Local<f32>, count: usize) -> Result<(), CudaError> {
    let at = values.slice().address();
    // SAFETY: the elements are live until the test has waited for the stream.
    unsafe { all.all_reduce(stream, at, at, count as u64, DType::F32, ReduceOp::Sum) }
}

#[test]
fn back_to_back_all_reduce_calls_of_every_size_are_correct() {
    fakes().run(|| {
        pes(3, options(), |gpu| {
            let all = Collectives::world(gpu, small()).expect("the collectives are set up");
            let streams: [Stream; 2] =
                [gpu.stream().expect("the stream is created"), gpu.stream().expect("the stream is created")];
            let values = gpu.alloc_local::<f32>(9000).expect("the memory is allocated");
            values.write(&streams[0], &[1.0; 9000]).expect("the elements are written");
            let at = values.slice().address();
            for call in 0..12_usize {
                let (count, algorithm) = ([10, 3000, 9000][call % 3], Algorithm::ALL[call % 3]);
                let route = Route::new(algorithm, 1 + call as u32 % 4, 64);
                // SAFETY: the elements are live until the test has waited for the streams.
                unsafe { all.all_reduce_by(route, &streams[call / 5 % 2], at, at, count, DType::F32, ReduceOp::Sum) }
                    .expect("the call is enqueued");
            }
            streams.iter().for_each(|stream| stream.wait().expect("the work completes"));
            let found = values.read(&streams[0]).expect("the elements are read");
            let expected = |calls: i32| 3_f32.powi(calls);
            assert_eq!((found[0], found[9]), (expected(12), expected(12)));
            assert_eq!((found[10], found[2999]), (expected(8), expected(8)));
            assert_eq!((found[3000], found[8999]), (expected(4), expected(4)));
            all.end().expect("the memory is freed");
        });
    });
}

#[test]
fn all_reduce_is_correct_if_graph_launches_and_calls_alternate() {
    fakes().run(|| {
        pes(2, options(), |gpu| {
            let all = Collectives::world(gpu, small()).expect("the collectives are set up");
            let stream = gpu.stream().expect("the stream is created");
            let values = gpu.alloc_local::<f32>(2000).expect("the memory is allocated");
            values.write(&stream, &[1.0; 2000]).expect("the elements are written");
            all.load(DType::F32).expect("the kernels are loaded");
            stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
            add_up(&all, &stream, &values, 2000).expect("the call is captured");
            add_up(&all, &stream, &values, 5).expect("the call is captured");
            let graph = stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            let graph = graph.expect("the capture ends").expect("the capture returns a graph");
            for _ in 0..5 {
                graph.launch().expect("the graph is launched");
                add_up(&all, &stream, &values, 5).expect("the call is enqueued");
            }
            let found = values.read(&stream).expect("the elements are read");
            assert_eq!((found[4], found[5], found[1999]), (2_f32.powi(15), 2_f32.powi(5), 2_f32.powi(5)));
        });
    });
}

#[test]
fn all_reduce_of_a_team_sums_only_the_inputs_of_members() {
    fakes().run(|| {
        pes(3, options(), |gpu| {
            let members = if gpu.pe() == Pe::new(1) { vec![Pe::new(1)] } else { vec![Pe::new(2), Pe::new(0)] };
            let all = Collectives::new(gpu, &members, small()).expect("the collectives are set up");
            let stream = gpu.stream().expect("the stream is created");
            let values = gpu.alloc_local::<f32>(100).expect("the memory is allocated");
            values.write(&stream, &[gpu.pe().get() as f32 + 1.0; 100]).expect("the elements are written");
            add_up(&all, &stream, &values, 100).expect("the call is enqueued");
            let expected = if members.len() == 1 { 2.0 } else { 4.0 };
            assert_eq!(values.read(&stream).expect("the elements are read"), [expected; 100]);
        });
    });
}

#[test]
fn all_reduce_works_after_recovery_from_a_missing_pe_error() {
    fakes().run(|| {
        pes(2, options().deadline(Duration::from_secs(3)), |gpu| {
            let all = Collectives::world(gpu, small()).expect("the collectives are set up");
            let stream = gpu.stream().expect("the stream is created");
            let values = gpu.alloc_local::<f32>(3000).expect("the memory is allocated");
            values.write(&stream, &[1.0; 3000]).expect("the elements are written");
            if gpu.pe() == Pe::new(0) {
                add_up(&all, &stream, &values, 3000).expect("the call is enqueued");
                let error = stream.wait().expect_err("the wait fails, because PE 1 makes no call");
                let CudaError::Kernel { failure, .. } = &error else { panic!("{error}, expected the failure of a kernel") };
                assert_eq!((failure.kind, failure.pe), (Some(FailureKind::Deadline), Some(Pe::new(1))), "{error}");
                assert_eq!(failure.operation, Some(KernelOp::AllReduce), "{error}");
                let error = add_up(&all, &stream, &values, 1).expect_err("the call fails, because a kernel has failed");
                assert!(matches!(error, CudaError::Failed { .. }), "{error}");
            }
            gpu.recover().expect("both PEs arrive");
            all.recover().expect("both PEs arrive");
            values.write(&stream, &[1.0; 3000]).expect("the elements are written");
            add_up(&all, &stream, &values, 3000).expect("the call is enqueued");
            assert_eq!(values.read(&stream).expect("the elements are read"), [2.0; 3000]);
        });
    });
}

#[test]
fn all_gather_all_to_all_and_reduce_scatter_follow_rank_order() {
    fakes().run(|| {
        pes(3, options(), |gpu| {
            let all = Collectives::world(gpu, small()).expect("the collectives are set up");
            let stream = gpu.stream().expect("the stream is created");
            let me = gpu.pe().get();
            for part in [40_usize, 37, 1] {
                let bytes = 4 * part as u64;
                let [send, gathered, exchanged] =
                    [3 * part; 3].map(|len| gpu.alloc_local::<f32>(len).expect("the memory is allocated"));
                let reduced = gpu.alloc_local::<f32>(part).expect("the memory is allocated");
                let given = |rank: u32, index: usize| (100 * rank) as f32 + index as f32;
                let values: Vec<f32> = (0..3 * part).map(|index| given(me, index)).collect();
                send.write(&stream, &values).expect("the elements are written");
                let [from, to, other, sum] = [&send, &gathered, &exchanged, &reduced].map(|local| local.slice().address());
                for _ in 0..3 {
                    // SAFETY: the memory is live until the test has waited for the stream.
                    unsafe {
                        all.all_gather(&stream, from, to, bytes).expect("the call is enqueued");
                        all.all_to_all(&stream, from, other, bytes).expect("the call is enqueued");
                        all.reduce_scatter(&stream, from, sum, part as u64, DType::F32, ReduceOp::Sum)
                            .expect("the call is enqueued");
                    }
                }
                let each = |of: &dyn Fn(u32, usize) -> f32| -> Vec<f32> {
                    (0..3)
                        .flat_map(|rank| (0..part).map(move |index| (rank, index)))
                        .map(|(rank, index)| of(rank, index))
                        .collect()
                };
                let mine = me as usize * part;
                assert_eq!(gathered.read(&stream).expect("the elements are read"), each(&given));
                assert_eq!(
                    exchanged.read(&stream).expect("the elements are read"),
                    each(&|rank, index| given(rank, mine + index))
                );
                let sums: Vec<f32> = (mine..mine + part).map(|index| (0..3).map(|rank| given(rank, index)).sum()).collect();
                assert_eq!(reduced.read(&stream).expect("the elements are read"), sums);
                gpu.barrier("read").expect("all PEs arrive");
            }
            let at = gpu.alloc_local::<u8>(64).expect("the memory is allocated").slice().address();
            // SAFETY: the calls are refused.
            let errors = unsafe {
                [
                    all.all_to_all(&stream, at, at + 8, 4).expect_err("the call fails, because the operands overlap"),
                    all.all_gather(&stream, at, at + 3, 4).expect_err("the call fails, because the operands overlap"),
                    all.reduce_scatter(&stream, at + 2, at + 60, 1, DType::F32, ReduceOp::Sum)
                        .expect_err("the call fails, because an operand is not aligned"),
                ]
            };
            assert!(errors.iter().all(|error| matches!(error, CudaError::Misuse { .. })), "{errors:?}");
        });
    });
}

#[test]
fn invalid_collective_calls_return_misuse() {
    fakes().run(|| {
        pes(1, options(), |gpu| {
            let all = Collectives::world(gpu, small()).expect("the collectives are set up");
            let stream = gpu.stream().expect("the stream is created");
            let values = gpu.alloc_local::<f32>(64).expect("the memory is allocated");
            let at = values.slice().address();
            let refused = |send, recv, count, dtype, op| {
                // SAFETY: the call is refused.
                let error = unsafe { all.all_reduce(&stream, send, recv, count, dtype, op) }
                    .expect_err("the call fails, because an argument is invalid");
                assert!(matches!(error, CudaError::Misuse { .. }), "{error}");
                error.to_string()
            };
            assert!(refused(at + 2, at, 1, DType::F32, ReduceOp::Sum).contains("send is"));
            assert!(refused(at, at + 4, 2, DType::F32, ReduceOp::Sum).contains("overlaps"));
            assert!(refused(at, at, 1, DType::F32, ReduceOp::Xor).contains("a reduction that is defined for f32"));
            assert!(refused(at, at, 1, DType::F8E4M3, ReduceOp::Sum).contains("F8E4M3"));
            assert!(refused(at, at, 1, DType::F32, ReduceOp::PreMulSum).contains("_scaled"));
            assert!(refused(at, at, u64::MAX / 2, DType::F32, ReduceOp::Sum).contains("count"));
            let scan = |send, recv, op| {
                // SAFETY: the call is refused.
                let errors = unsafe {
                    [
                        all.scan(&stream, send, recv, 4, DType::F32, op, 0)
                            .expect_err("the call fails, because an argument is invalid"),
                        all.exclusive_scan(&stream, send, recv, 4, DType::F32, op, 0)
                            .expect_err("the call fails, because an argument is invalid"),
                    ]
                };
                errors.map(|error| error.to_string())
            };
            assert!(scan(at, at, ReduceOp::Avg).iter().all(|error| error.contains("expected a reduction other than avg")));
            assert!(scan(at, at + 8, ReduceOp::Sum).iter().all(|error| error.contains("overlaps")));
            assert!(scan(at, at, ReduceOp::And).iter().all(|error| error.contains("a reduction that is defined for f32")));
            // SAFETY: the call is refused.
            let error = unsafe { all.reduce_scatter(&stream, at, at, 1, DType::F32, ReduceOp::PreMulSum) };
            assert!(error.expect_err("the call fails, because it has no scalar").to_string().contains("ends in _scaled"));
            let route = Route::new(Algorithm::OneShot, 5, 32);
            // SAFETY: the call is refused.
            let error = unsafe { all.all_reduce_by(route, &stream, at, at, 8, DType::F32, ReduceOp::Sum) };
            assert!(error.expect_err("the call fails, because at most 4 blocks are allowed").to_string().contains("route"));
            let error =
                Collectives::new(gpu, &[Pe::new(0), Pe::new(0)], small()).expect_err("the call fails, because a PE occurs twice");
            assert!(error.to_string().contains("twice"), "{error}");
            let error = Collectives::new(gpu, &[], small()).expect_err("the call fails, because the list has no PE");
            assert!(error.to_string().contains("1 to 8 PEs"), "{error}");
        });
    });
}

/// Returns the byte at `index` in the input of rank `rank`.
fn byte(rank: u32, index: usize) -> u8 {
    (index * 13 + rank as usize * 71 + (index >> 8)) as u8
}

fn bytes_of(rank: u32, len: usize) -> Vec<u8> {
    (0..len).map(|index| byte(rank, index)).collect()
}

#[test]
fn broadcast_gather_and_scatter_support_any_length() {
    fakes().run(|| {
        pes(3, options(), |gpu| {
            let all = Collectives::world(gpu, small()).expect("the collectives are set up");
            let stream = gpu.stream().expect("the stream is created");
            let me = gpu.pe().get();
            // The lengths include messages sent as 16-byte lines, and messages sent through rings
            // with slots of 1 KiB.
            for (call, part) in [16_usize, 37, 1024, 20_003, 0].into_iter().enumerate() {
                let root = Rank::new(call as u32 % 3);
                let is_root = root.get() == me;
                let [send, copied, gathered, scattered] = [3 * part, part, 3 * part, part]
                    .map(|len| gpu.alloc_local::<u8>(len.max(1)).expect("the memory is allocated"));
                send.write(&stream, &bytes_of(me, send.len())).expect("the elements are written");
                let [from, to, all_parts, own] = [&send, &copied, &gathered, &scattered].map(|local| local.slice().address());
                for _ in 0..3 {
                    // SAFETY: the memory is live until the test has waited for the stream.
                    unsafe {
                        all.broadcast(&stream, from, to, part as u64, root).expect("the call is enqueued");
                        all.gather(&stream, from, all_parts, part as u64, root).expect("the call is enqueued");
                        all.scatter(&stream, from, own, part as u64, root).expect("the call is enqueued");
                    }
                    all.barrier(&stream).expect("the call is enqueued");
                }
                assert_eq!(copied.read(&stream).expect("the elements are read")[..part], bytes_of(root.get(), part));
                let mine = me as usize * part;
                let wanted: Vec<u8> = (mine..mine + part).map(|index| byte(root.get(), index)).collect();
                assert_eq!(scattered.read(&stream).expect("the elements are read")[..part], wanted);
                let found = gathered.read(&stream).expect("the elements are read");
                let wanted: Vec<u8> = (0..3).flat_map(|rank| bytes_of(rank, part)).collect();
                assert!(!is_root || found[..3 * part] == wanted, "{part} bytes");
                gpu.barrier("read").expect("all PEs arrive");
            }
        });
    });
}

#[test]
fn messages_among_all_or_two_of_three_ranks_arrive_in_order() {
    fakes().run(|| {
        pes(3, options(), |gpu| {
            let all = Collectives::world(gpu, small()).expect("the collectives are set up");
            let stream = gpu.stream().expect("the stream is created");
            let me = gpu.pe().get();
            let [send, recv] = [90_000; 2].map(|len| gpu.alloc_local::<u8>(len).expect("the memory is allocated"));
            send.write(&stream, &bytes_of(me, send.len())).expect("the elements are written");
            let (from, to) = (send.slice().address(), recv.slice().address());
            let next = Rank::new((me + 1) % 3);
            let previous = Rank::new((me + 2) % 3);
            for _ in 0..4 {
                // There are a short and a long message to the next rank, and a message to this rank
                // itself.
                let messages = [
                    Message::Send { to: next, at: from, bytes: 100 },
                    Message::Receive { from: previous, at: to, bytes: 100 },
                    Message::Send { to: next, at: from + 100, bytes: 30_000 },
                    Message::Receive { from: previous, at: to + 100, bytes: 30_000 },
                    Message::Send { to: Rank::new(me), at: from + 7, bytes: 50 },
                    Message::Receive { from: Rank::new(me), at: to + 40_000, bytes: 50 },
                ];
                // SAFETY: the memory is live until the test has waited for the stream.
                unsafe { all.messages(&stream, &messages).expect("the call is enqueued") };
            }
            // Rank 0 sends only to rank 2.
            for bytes in [1, 64, 5_000] {
                // SAFETY: the memory is live until the test has waited for the stream.
                unsafe {
                    match me {
                        0 => all.send(&stream, from, bytes, Rank::new(2)).expect("the call is enqueued"),
                        2 => all.receive(&stream, to + 50_000, bytes, Rank::new(0)).expect("the call is enqueued"),
                        _ => {}
                    }
                }
            }
            let found = recv.read(&stream).expect("the elements are read");
            assert_eq!(found[..30_100], bytes_of(previous.get(), 30_100));
            assert_eq!(found[40_000..40_050], bytes_of(me, 57)[7..]);
            assert!(me != 2 || found[50_000..55_000] == bytes_of(0, 5_000));
            // SAFETY: the calls are refused.
            let errors = unsafe {
                [
                    all.send(&stream, from, 1, Rank::new(3)).expect_err("the call fails, because the rank does not exist"),
                    all.send(&stream, from, 1, Rank::new(me)).expect_err("the call fails, because no rank receives the message"),
                    all.receive(&stream, 0, 1, next).expect_err("the call fails, because the address is 0"),
                    all.broadcast(&stream, from, from + 1, 2, Rank::new(me))
                        .expect_err("the call fails, because the operands overlap"),
                ]
            };
            assert!(errors.iter().all(|error| matches!(error, CudaError::Misuse { .. })), "{errors:?}");
        });
    });
}

#[test]
fn collectives_larger_than_a_staging_bank_are_correct() {
    fakes().run(|| {
        pes(3, options(), |gpu| {
            let all = Collectives::world(gpu, small()).expect("the collectives are set up");
            let stream = gpu.stream().expect("the stream is created");
            let me = gpu.pe().get();
            // Each bank has 64 KiB, and the parts of all ranks together are longer than a bank. The
            // first length is a multiple of the length of a line, and the second length is not.
            for part in [6_004_usize, 6_001] {
                let bytes = 4 * part as u64;
                let [send, gathered, exchanged] =
                    [3 * part; 3].map(|len| gpu.alloc_local::<f32>(len).expect("the memory is allocated"));
                let reduced = gpu.alloc_local::<f32>(part).expect("the memory is allocated");
                let given = |rank: u32, index: usize| (100 * rank) as f32 + (index % 1000) as f32;
                let values: Vec<f32> = (0..3 * part).map(|index| given(me, index)).collect();
                send.write(&stream, &values).expect("the elements are written");
                let [from, to, other, sum] = [&send, &gathered, &exchanged, &reduced].map(|local| local.slice().address());
                for _ in 0..2 {
                    // SAFETY: the memory is live until the test has waited for the stream.
                    unsafe {
                        all.all_gather(&stream, from, to, bytes).expect("the call is enqueued");
                        all.all_to_all(&stream, from, other, bytes).expect("the call is enqueued");
                        all.reduce_scatter(&stream, from, sum, part as u64, DType::F32, ReduceOp::Sum)
                            .expect("the call is enqueued");
                    }
                }
                let mine = me as usize * part;
                let all_of = |of: &dyn Fn(u32, usize) -> f32| -> Vec<f32> {
                    (0..3 * part).map(|index| of((index / part) as u32, index % part)).collect()
                };
                assert!(gathered.read(&stream).expect("the elements are read") == all_of(&given), "all_gather");
                assert!(
                    exchanged.read(&stream).expect("the elements are read") == all_of(&|rank, index| given(rank, mine + index)),
                    "all_to_all"
                );
                let sums: Vec<f32> = (mine..mine + part).map(|index| (0..3).map(|rank| given(rank, index)).sum()).collect();
                assert!(reduced.read(&stream).expect("the elements are read") == sums, "reduce_scatter");
                // The result replaces the input.
                // SAFETY: the memory is live until the test has waited for the stream.
                unsafe { all.all_to_all(&stream, from, from, bytes).expect("the call is enqueued") };
                assert!(
                    send.read(&stream).expect("the elements are read") == all_of(&|rank, index| given(rank, mine + index)),
                    "in place"
                );
                gpu.barrier("read").expect("all PEs arrive");
            }
        });
    });
}

#[test]
fn only_the_root_gets_the_result_of_a_reduce() {
    fakes().run(|| {
        pes(3, options(), |gpu| {
            let all = Collectives::world(gpu, small()).expect("the collectives are set up");
            let stream = gpu.stream().expect("the stream is created");
            let me = gpu.pe().get();
            for (call, count) in [5_usize, 3000, 40_000].into_iter().enumerate() {
                let [send, recv] = [count; 2].map(|len| gpu.alloc_local::<f32>(len).expect("the memory is allocated"));
                send.write(&stream, &vec![me as f32 + 1.0; count]).expect("the elements are written");
                recv.write(&stream, &vec![-1.0; count]).expect("the elements are written");
                let (from, to) = (send.slice().address(), recv.slice().address());
                let root = Rank::new(call as u32 % 3);
                let to = if root.get() == me { to } else { 0 };
                // SAFETY: the memory is live until the test has waited for the stream.
                unsafe {
                    all.reduce(&stream, from, to, count as u64, DType::F32, ReduceOp::Sum, root).expect("the call is enqueued")
                };
                let expected = if root.get() == me { 6.0 } else { -1.0 };
                assert!(
                    recv.read(&stream).expect("the elements are read").iter().all(|value| *value == expected),
                    "{count} elements"
                );
                assert!(
                    send.read(&stream).expect("the elements are read").iter().all(|value| *value == me as f32 + 1.0),
                    "{count} elements"
                );
            }
        });
    });
}

#[test]
fn collective_results_in_heap_and_private_memory_are_correct() {
    fakes().run(|| {
        pes(3, options(), |gpu| {
            let all = Collectives::world(gpu, small()).expect("the collectives are set up");
            let stream = gpu.stream().expect("the stream is created");
            let me = gpu.pe().get();
            let part = 12_004;
            let recv = gpu.alloc::<f32>(3 * part).expect("the memory is allocated");
            let private = gpu.alloc_local::<f32>(3 * part).expect("the memory is allocated");
            let send = gpu.alloc_local::<f32>(3 * part).expect("the memory is allocated");
            let values: Vec<f32> = (0..3 * part).map(|index| (me * 1000) as f32 + (index % 997) as f32).collect();
            send.write(&stream, &values).expect("the elements are written");
            let from = send.slice().address();
            let given = |rank: u32, index: usize| (rank * 1000) as f32 + (index % 997) as f32;
            // Bit masks of the ranks whose results are on the heap: all ranks, some, none, and
            // other ranks.
            for on_heap in [0b111, 0b101, 0b000, 0b010] {
                let is_on_heap = on_heap >> me & 1 != 0;
                let to = if is_on_heap { recv.address().expect("the heap is mapped") } else { private.slice().address() };
                let check = |what: &str, of: &dyn Fn(usize) -> f32, len: usize| {
                    let found =
                        if is_on_heap { recv.read(&stream) } else { private.read(&stream) }.expect("the elements are read");
                    let wrong = (0..len).find(|index| found[*index] != of(*index));
                    assert_eq!(wrong, None, "{what}, results on the heap: {on_heap:03b}");
                    gpu.barrier(what).expect("all PEs arrive");
                };
                let (bytes, count) = (4 * part as u64, 3 * part as u64);
                // SAFETY: the memory is live until the test has waited for the stream.
                unsafe { all.all_reduce(&stream, from, to, count, DType::F32, ReduceOp::Sum).expect("the call is enqueued") };
                check("all_reduce", &|index| (0..3).map(|rank| given(rank, index)).sum(), 3 * part);
                // SAFETY: the memory is live until the test has waited for the stream.
                unsafe { all.all_gather(&stream, from, to, bytes).expect("the call is enqueued") };
                check("all_gather", &|index| given((index / part) as u32, index % part), 3 * part);
                // SAFETY: the memory is live until the test has waited for the stream.
                unsafe { all.all_to_all(&stream, from, to, bytes).expect("the call is enqueued") };
                check("all_to_all", &|index| given((index / part) as u32, me as usize * part + index % part), 3 * part);
                // SAFETY: the memory is live until the test has waited for the stream.
                unsafe { all.broadcast(&stream, from, to, bytes, Rank::new(1)).expect("the call is enqueued") };
                check("broadcast", &|index| given(1, index), part);
            }
        });
    });
}
