//! Tests of every collective with a configuration: immediate and in a group, in place and out of
//! place. The tests check the result and the called function of NCCL.
//!
//! `options.rs` tests the options and the values that reach the library.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use common::*;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::{CudaStream, DeviceMemory};
use peerweave_nccl::{CollConfig, Communicator, Config, ConfiguredGroup, NcclError, Rank, ReduceOp, Switch};

/// Variable with the path of the fake's log.
const LOG: &str = "PEERWEAVE_FAKE_NCCL_LOG";

/// Returns the number of lines of the fake's log that contain a text.
fn logged(part: &str) -> usize {
    let path = PathBuf::from(std::env::var_os(LOG).expect("the parent has set the variable"));
    std::fs::read_to_string(path).expect("the fake's log can be read").lines().filter(|line| line.contains(part)).count()
}

type Buffer = DeviceMemory<f32>;

/// A step of the tests: NCCL's function, a configured call on one of two ranks, and the expected
/// buffer on each rank. The initial elements are rank + 1 and rank + 11.
type Step = (&'static str, fn(&Communicator, &CollConfig, &Arc<CudaStream>, Buffer) -> Result<Buffer, NcclError>, [[f32; 2]; 2]);

/// Returns a buffer of one or two zeros.
fn zeros(stream: &Arc<CudaStream>, len: usize) -> Buffer {
    floats(stream, &[0.0; 2][..len])
}

/// Returns the whole buffer on the root (rank 0), and its first element on the other rank.
fn part(comm: &Communicator, values: &Buffer) -> Result<Buffer, NcclError> {
    Ok(values.slice(0..2 - comm.rank().index())?)
}

const STEPS: [Step; 15] = [
    (
        "ncclAllReduceConfig",
        |comm, config, stream, values| {
            let mut out = zeros(stream, 2);
            comm.with(config).all_reduce(stream, &values, &mut out, ReduceOp::Sum).map(|()| out)
        },
        [[3.0, 23.0], [3.0, 23.0]],
    ),
    (
        "ncclBroadcastConfig",
        |comm, config, stream, values| {
            let mut out = zeros(stream, 2);
            comm.with(config).broadcast(stream, Some(&values), &mut out, Rank::new(1)).map(|()| out)
        },
        [[2.0, 12.0], [2.0, 12.0]],
    ),
    (
        "ncclReduceConfig",
        |comm, config, stream, values| {
            let mut out = zeros(stream, 2);
            comm.with(config).reduce(stream, &values, Some(&mut out), ReduceOp::Max, Rank::new(0)).map(|()| out)
        },
        [[2.0, 12.0], [0.0, 0.0]],
    ),
    (
        "ncclAllGatherConfig",
        |comm, config, stream, values| {
            let mut out = zeros(stream, 2);
            comm.with(config).all_gather(stream, &values.slice(0..1)?, &mut out).map(|()| out)
        },
        [[1.0, 2.0], [1.0, 2.0]],
    ),
    (
        "ncclReduceScatterConfig",
        |comm, config, stream, values| {
            let out = zeros(stream, 2);
            comm.with(config).reduce_scatter(stream, &values, &mut out.slice(0..1)?, ReduceOp::Sum).map(|()| out)
        },
        [[3.0, 0.0], [23.0, 0.0]],
    ),
    (
        "ncclAlltoAllConfig",
        |comm, config, stream, values| {
            let mut out = zeros(stream, 2);
            comm.with(config).all_to_all(stream, &values, &mut out).map(|()| out)
        },
        [[1.0, 2.0], [11.0, 12.0]],
    ),
    (
        "ncclGatherConfig",
        |comm, config, stream, values| {
            let mut out = zeros(stream, 2);
            comm.with(config).gather(stream, &values.slice(1..2)?, Some(&mut out), Rank::new(1)).map(|()| out)
        },
        [[0.0, 0.0], [11.0, 12.0]],
    ),
    (
        "ncclScatterConfig",
        |comm, config, stream, values| {
            let out = zeros(stream, 2);
            comm.with(config).scatter(stream, Some(&values), &mut out.slice(0..1)?, Rank::new(0)).map(|()| out)
        },
        [[1.0, 0.0], [11.0, 0.0]],
    ),
    (
        "ncclAllReduceConfig",
        |comm, config, stream, mut values| {
            comm.with(config).all_reduce_in_place(stream, &mut values, ReduceOp::Min).map(|()| values)
        },
        [[1.0, 11.0], [1.0, 11.0]],
    ),
    (
        "ncclBroadcastConfig",
        |comm, config, stream, mut values| {
            comm.with(config).broadcast_in_place(stream, &mut values, Rank::new(0)).map(|()| values)
        },
        [[1.0, 11.0], [1.0, 11.0]],
    ),
    (
        "ncclReduceConfig",
        |comm, config, stream, mut values| {
            comm.with(config).reduce_in_place(stream, &mut values, ReduceOp::Sum, Rank::new(1)).map(|()| values)
        },
        [[1.0, 11.0], [3.0, 23.0]],
    ),
    (
        "ncclAllGatherConfig",
        |comm, config, stream, mut values| comm.with(config).all_gather_in_place(stream, &mut values).map(|()| values),
        [[1.0, 12.0], [1.0, 12.0]],
    ),
    (
        "ncclReduceScatterConfig",
        |comm, config, stream, mut values| {
            comm.with(config).reduce_scatter_in_place(stream, &mut values, ReduceOp::Sum).map(|()| values)
        },
        [[3.0, 11.0], [2.0, 23.0]],
    ),
    (
        "ncclGatherConfig",
        |comm, config, stream, values| {
            comm.with(config).gather_in_place(stream, &mut part(comm, &values)?, Rank::new(0)).map(|()| values)
        },
        [[1.0, 2.0], [2.0, 12.0]],
    ),
    (
        "ncclScatterConfig",
        |comm, config, stream, values| {
            comm.with(config).scatter_in_place(stream, &mut part(comm, &values)?, Rank::new(0)).map(|()| values)
        },
        [[1.0, 11.0], [11.0, 12.0]],
    ),
];

#[test]
fn every_collective_accepts_a_call_configuration() {
    let directory = tempfile::tempdir().expect("a temporary directory is created");
    fakes(2).env(LOG, directory.path().join("log")).run(|| {
        ranks(2, &Config::new(), |comm, stream| {
            let config = CollConfig::new().max_ctas(4);
            for (index, (function, step, expected)) in STEPS.iter().enumerate() {
                let values = floats(&stream, &[comm.rank().get() as f32 + 1.0, comm.rank().get() as f32 + 11.0]);
                let out = step(&comm, &config, &stream, values).unwrap_or_else(|error| panic!("{function} ({index}): {error}"));
                comm.wait(&stream, DEADLINE).expect(function);
                assert_eq!(
                    out.to_vec(&stream).expect("the memory can be read"),
                    expected[comm.rank().index()],
                    "{function} ({index})"
                );
            }
        });
        for (function, ..) in &STEPS {
            let steps = STEPS.iter().filter(|(other, ..)| other == function).count();
            assert_eq!(
                logged(&format!(" {function}(")),
                2 * steps,
                "{function}: both ranks must call the function, in place and out of place"
            );
        }
        assert_eq!(logged("collective config "), 2 * STEPS.len());
    });
}

/// One of the two ranks of a thread, with handles of the rank's memory.
struct Member {
    comm: Communicator,
    stream: Arc<CudaStream>,
    values: Buffer,
    /// The elements of `values` as separate handles.
    elements: [Buffer; 2],
    /// The result of [`part`].
    part: Buffer,
    out: Buffer,
    first_out: Buffer,
}

impl Member {
    fn new(comm: &Communicator, stream: &Arc<CudaStream>) -> Self {
        let (comm, stream) = (comm.clone(), Arc::clone(stream));
        let values = floats(&stream, &[comm.rank().get() as f32 + 1.0, comm.rank().get() as f32 + 11.0]);
        let elements = [0..1, 1..2].map(|range| values.slice(range).expect("the range is inside the memory"));
        let (part, out) = (part(&comm, &values).expect("the range is inside the memory"), zeros(&stream, 2));
        Self { first_out: out.slice(0..1).expect("the range is inside the memory"), elements, part, out, values, stream, comm }
    }
}

type Recorded = for<'env> fn(&mut ConfiguredGroup<'_, 'env>, &'env mut Member) -> Result<(), NcclError>;

/// The steps of [`STEPS`], recorded in a group.
const RECORDED: [Recorded; 15] = [
    |group, r| group.all_reduce(&r.comm, &r.stream, &r.values, &mut r.out, ReduceOp::Sum),
    |group, r| group.broadcast(&r.comm, &r.stream, Some(&r.values), &mut r.out, Rank::new(1)),
    |group, r| group.reduce(&r.comm, &r.stream, &r.values, Some(&mut r.out), ReduceOp::Max, Rank::new(0)),
    |group, r| group.all_gather(&r.comm, &r.stream, &r.elements[0], &mut r.out),
    |group, r| group.reduce_scatter(&r.comm, &r.stream, &r.values, &mut r.first_out, ReduceOp::Sum),
    |group, r| group.all_to_all(&r.comm, &r.stream, &r.values, &mut r.out),
    |group, r| group.gather(&r.comm, &r.stream, &r.elements[1], Some(&mut r.out), Rank::new(1)),
    |group, r| group.scatter(&r.comm, &r.stream, Some(&r.values), &mut r.first_out, Rank::new(0)),
    |group, r| group.all_reduce_in_place(&r.comm, &r.stream, &mut r.values, ReduceOp::Min),
    |group, r| group.broadcast_in_place(&r.comm, &r.stream, &mut r.values, Rank::new(0)),
    |group, r| group.reduce_in_place(&r.comm, &r.stream, &mut r.values, ReduceOp::Sum, Rank::new(1)),
    |group, r| group.all_gather_in_place(&r.comm, &r.stream, &mut r.values),
    |group, r| group.reduce_scatter_in_place(&r.comm, &r.stream, &mut r.values, ReduceOp::Sum),
    |group, r| group.gather_in_place(&r.comm, &r.stream, &mut r.part, Rank::new(0)),
    |group, r| group.scatter_in_place(&r.comm, &r.stream, &mut r.part, Rank::new(0)),
];

/// Number of out-of-place steps, which precede the in-place steps.
const OUT_OF_PLACE: usize = 8;

#[test]
fn every_collective_in_a_group_accepts_a_call_configuration() {
    let directory = tempfile::tempdir().expect("a temporary directory is created");
    fakes(2).env(LOG, directory.path().join("log")).run(|| {
        let all = all(2);
        for (index, (record, (function, _, expected))) in RECORDED.iter().zip(&STEPS).enumerate() {
            let mut ranks: Vec<_> = all.iter().map(|(comm, stream)| Member::new(comm, stream)).collect();
            let (configured, called) = (logged("collective config "), logged(&format!(" {function}(")));
            let issued = all[0].0.nccl().group(|group| {
                // The configuration is copied when the call is recorded.
                let config = CollConfig::new().max_ctas(4).algorithms("ring");
                ranks.iter_mut().try_for_each(|rank| record(&mut group.with(&config), rank))
            });
            issued.unwrap_or_else(|error| panic!("{function} ({index}): {error}"));
            for (rank, expected) in ranks.iter().zip(expected) {
                rank.comm.wait(&rank.stream, DEADLINE).expect(function);
                let left = if index < OUT_OF_PLACE { &rank.out } else { &rank.values };
                assert_eq!(left.to_vec(&rank.stream).expect("the memory can be read"), *expected, "{function} ({index})");
            }
            assert_eq!(logged(&format!(" {function}(")), called + 2, "{function} ({index}): both ranks must call the function");
            assert_eq!(
                logged("maxCTAs=4 algSelection=ring"),
                configured + 2,
                "{function} ({index}): both calls must have the options"
            );
        }
    });
}

#[test]
fn calls_in_a_group_may_have_different_configurations() {
    let directory = tempfile::tempdir().expect("a temporary directory is created");
    fakes(1).env(LOG, directory.path().join("log")).run(|| {
        let (comm, stream) = alone();
        let (mut few, mut many, mut plain) = (floats(&stream, &[1.0]), floats(&stream, &[2.0]), floats(&stream, &[3.0]));
        let recorded = comm.nccl().group(|group| {
            group.with(&CollConfig::new().max_ctas(2)).all_reduce_in_place(&comm, &stream, &mut few, ReduceOp::Sum)?;
            group.with(&CollConfig::new().max_ctas(3)).all_reduce_in_place(&comm, &stream, &mut many, ReduceOp::Sum)?;
            group.all_reduce_in_place(&comm, &stream, &mut plain, ReduceOp::Sum)
        });
        recorded.expect("the group succeeds");
        comm.wait(&stream, DEADLINE).expect("the work completes");
        let found = ["maxCTAs=2", "maxCTAs=3", " ncclAllReduceConfig(", " ncclAllReduce("].map(logged);
        assert_eq!((found, comm.sequence()), ([1, 1, 2, 1], 3));
    });
}

#[test]
fn group_does_not_record_a_call_with_an_invalid_config() {
    fakes_of(1, "2.30.7").run(|| {
        let (comm, stream) = alone();
        let mut values = floats(&stream, &[1.0]);
        let recorded = comm.nccl().group(|group| {
            let config = CollConfig::new();
            let error = group.with(&config).all_reduce_in_place(&comm, &stream, &mut values, ReduceOp::Sum);
            assert!(group.is_empty(), "nothing was recorded");
            error
        });
        assert!(matches!(recorded, Err(NcclError::Unsupported(error)) if error.what == "CollConfig (ncclCollConfig_t)"));
        assert_eq!((counted("collectives"), comm.sequence()), (0, 0));
    });
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut values = floats(&stream, &[1.0]);
        let config = CollConfig::new().force_algorithms(Switch::On).min_ctas(3).max_ctas(2);
        let recorded =
            comm.nccl().group(|group| group.with(&config).all_reduce_in_place(&comm, &stream, &mut values, ReduceOp::Sum));
        let error = recorded.expect_err("the call is invalid").to_string();
        assert_eq!(error, "all_reduce_in_place: CollConfig::min_ctas: min_ctas is greater than max_ctas");
        assert_eq!((counted("collectives"), comm.sequence()), (0, 0));
    });
}

#[test]
fn launch_event_of_another_context_is_refused() {
    fakes(2).run(|| {
        let (comm, stream) = alone();
        let mut values = floats(&stream, &[1.0]);
        let event =
            |context: &Arc<peerweave_driver::CudaContext>| Arc::new(context.new_event(None).expect("an event is created"));
        let beside = context_beside(comm.context());
        let what = "all_reduce_in_place: the launch completion event";
        for (event, why) in [
            (
                event(&beside),
                ": the CUDA context differs from the communicator's context; use the primary context of the device for all CUDA objects and communicators",
            ),
            (event(&device(1)), " is on device 1, expected device 0"),
        ] {
            let config = CollConfig::new().launch_completion_event(event);
            let error = comm.with(&config).all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect_err(why);
            assert_eq!(error.to_string(), format!("{what}{why}"));
            let recorded =
                comm.nccl().group(|group| group.with(&config).all_reduce_in_place(&comm, &stream, &mut values, ReduceOp::Sum));
            assert_eq!(recorded.expect_err(why).to_string(), format!("{what}{why}"));
        }
        assert_eq!((counted("collectives"), comm.sequence()), (0, 0), "NCCL was not called");
    });
}

#[test]
fn graph_keeps_the_launch_event_of_a_captured_group_alive() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut values = floats(&stream, &[1.0]);
        let event = Arc::new(comm.context().new_event(None).expect("an event is created"));
        let held = Arc::downgrade(&event);
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
        let recorded = comm.nccl().group(|group| {
            let config = CollConfig::new().launch_completion_event(event);
            group.with(&config).all_reduce_in_place(&comm, &stream, &mut values, ReduceOp::Sum)
        });
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).expect("the capture ends").expect("the capture yields a graph");
        recorded.expect("the call is captured");
        assert!(held.upgrade().is_some(), "the graph keeps the event alive");
        graph.launch().expect("the graph is launched");
        comm.wait(&stream, DEADLINE).expect("the work completes");
        drop(graph);
        let end = std::time::Instant::now() + DEADLINE;
        while held.upgrade().is_some() {
            assert!(std::time::Instant::now() < end, "the event is freed with the graph");
            peerweave_driver::drain_retired(end);
        }
    });
}
