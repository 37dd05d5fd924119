//! Tests of the cost that a call of the portable API on GPUs has on the host, after earlier calls
//! of the same shape. The cost is the number of allocations on the calling thread, and the number
//! of driver calls.
#![cfg(target_os = "linux")]

#[path = "../../../tests/src/run/allocations.rs"]
mod allocations;
mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use peerweave_core::{
    Buffer, Compare, Group, OnDevice, Parts, Rank, ReduceOp, Stream, Strides, Symmetric, Team, VectorCounts, World,
};
use peerweave_cuda::GpuOptions;
use peerweave_driver::DeviceMemory;
use peerweave_fakes::Fakes;

use allocations::allocations;

/// Opens the log of the fake driver.
fn driver_log() -> File {
    let path = std::env::var_os("PEERWEAVE_FAKE_CUDA_LOG").expect("the harness started this process");
    File::open(path).expect("the fake driver has created its log")
}

/// Returns the current length of the log of the fake driver, in bytes.
fn driver_log_len() -> u64 {
    driver_log().metadata().expect("the log is a file").len()
}

/// Returns the number of calls of each function of the fake driver that this process has made since
/// the log had `start` bytes.
fn driver_calls_since(start: u64) -> BTreeMap<String, usize> {
    let (mut file, mut log) = (driver_log(), String::new());
    file.seek(SeekFrom::Start(start)).expect("the log is a file");
    file.read_to_string(&mut log).expect("the log is text");
    let prefix = format!("{} ", std::process::id());
    let mut calls = BTreeMap::new();
    for line in log.lines().filter(|line| !line.contains(" = ")).filter_map(|line| line.strip_prefix(&prefix)) {
        let function = line.split(['(', ' ']).next().unwrap_or(line);
        *calls.entry(function.to_owned()).or_insert(0) += 1;
    }
    calls
}

/// The memory of one PE that the measured calls use.
struct Operands {
    x: Symmetric<f32>,
    y: Symmetric<f32>,
    all: Symmetric<f32>,
    more: Symmetric<f32>,
    words: Symmetric<u64>,
    device: OnDevice<f32>,
    host: Buffer<f32>,
    other_host: Buffer<f32>,
    more_host: Buffer<f32>,
    counts: Arc<VectorCounts>,
    parts: Arc<Parts>,
}

type Call = fn(&Team, &Stream, &Operands, Rank);

/// For each measured call: its name, the maximum number of allocations in [`ROUNDS`] calls, the
/// maximum number of driver calls in one call, and the call itself. Driver queries that are made
/// once in many calls are not counted.
const CALLS: &[(&str, usize, usize, Call)] = &[
    ("put", 0, 5, |team, stream, on, other| drop(team.put(stream, &on.x, &on.y, other).unwrap())),
    ("put from a device", 0, 5, |team, stream, on, other| drop(team.put(stream, &on.device, &on.y, other).unwrap())),
    ("get", 0, 5, |team, stream, on, other| drop(team.get(stream, &on.x, &on.device, other).unwrap())),
    ("p", 0, 6, |team, stream, on, other| drop(team.p(stream, &on.x, 1, 2.5, other).unwrap())),
    ("atomic_add", 0, 6, |team, stream, on, other| drop(team.atomic_add(stream, &on.words, 1, 1, other).unwrap())),
    ("signal", 0, 6, |team, stream, on, other| drop(team.signal(stream, on.words.signal(0).unwrap().add(1), other).unwrap())),
    ("wait_until", 0, 6, |team, stream, on, _| {
        drop(team.wait_until(stream, &on.words.signal(0).unwrap(), Compare::Ge, 0).unwrap());
    }),
    ("barrier", 0, 7, |team, stream, _, _| drop(team.barrier(stream).unwrap())),
    ("all_reduce", 0, 8, |team, stream, on, _| drop(team.all_reduce(stream, &on.x, &on.y, ReduceOp::Sum).unwrap())),
    ("broadcast", 0, 7, |team, stream, on, _| drop(team.broadcast(stream, &on.x, &on.y, Rank::new(0)).unwrap())),
    ("put_blocking from the host", 0, usize::MAX, |team, _, on, other| team.put_blocking(&[1.0f32; 8], &on.x, other).unwrap()),
    ("g_blocking", 0, usize::MAX, |team, _, on, other| assert!(team.g_blocking(&on.x, 1, other).unwrap().is_finite())),
    ("all_reduce_blocking on the host", 0, usize::MAX, |team, _, _, _| {
        team.all_reduce_in_place_blocking(&mut [1.0f32; 8], ReduceOp::Sum).unwrap();
    }),
    ("reduce_scatter", 0, 8, |team, stream, on, _| drop(team.reduce_scatter(stream, &on.all, &on.x, ReduceOp::Max).unwrap())),
    ("scan", 0, 8, |team, stream, on, _| drop(team.scan(stream, &on.x, &on.y, ReduceOp::Sum).unwrap())),
    ("all_to_all_strided", 0, 12, |team, stream, on, _| {
        drop(team.all_to_all_strided(stream, &on.all, &on.more, Strides { count: 4, source: 2, dest: 2 }).unwrap());
    }),
    ("send and receive in a group", 0, 8, |team, stream, on, other| {
        drop(team.group(stream, |group| group.send(&on.x, other).and_then(|()| group.recv(&on.y, other))).unwrap());
    }),
    ("several operations in a group", 0, 16, |team, stream, on, other| {
        let members = |group: &mut Group| {
            group.send(&on.x.slice(..2).unwrap(), other)?;
            group.recv(&on.y.slice(..2).unwrap(), other)?;
            group.put(&on.x, &on.all.slice(..8).unwrap(), other)?;
            group.all_reduce(&on.x, &on.more.slice(..8).unwrap(), ReduceOp::Sum)
        };
        drop(team.group(stream, members).unwrap());
    }),
    ("all_to_all_v", 0, 9, |team, stream, on, _| {
        drop(team.all_to_all_v(stream, &on.all, &on.more, Arc::clone(&on.counts)).unwrap());
    }),
    ("all_gather_v", 0, 9, |team, stream, on, _| {
        drop(team.all_gather_v(stream, &on.x, &on.all, Arc::clone(&on.parts)).unwrap());
    }),
    ("gather_v", 0, 9, |team, stream, on, _| {
        drop(team.gather_v(stream, &on.x, &on.all, Arc::clone(&on.parts), Rank::new(0)).unwrap());
    }),
    ("scatter_v", 0, 9, |team, stream, on, _| {
        drop(team.scatter_v(stream, &on.all, &on.x, Arc::clone(&on.parts), Rank::new(1)).unwrap());
    }),
    ("put from the host", 0, usize::MAX, |team, stream, on, other| drop(team.put(stream, &on.host, &on.x, other).unwrap())),
    ("get to the host", 0, usize::MAX, |team, stream, on, other| drop(team.get(stream, &on.x, &on.host, other).unwrap())),
    ("all_reduce on the host", 0, usize::MAX, |team, stream, on, _| {
        drop(team.all_reduce_in_place(stream, &on.host, ReduceOp::Max).unwrap());
    }),
    ("all_gather_v to the host", 0, usize::MAX, |team, stream, on, _| {
        drop(team.all_gather_v(stream, &on.host, &on.more_host, Arc::clone(&on.parts)).unwrap());
    }),
    ("group on the host", 0, usize::MAX, |team, stream, on, other| {
        let members = |group: &mut Group| group.send(&on.host, other).and_then(|()| group.recv(&on.other_host, other));
        drop(team.group(stream, members).unwrap());
    }),
    ("all_gather_v_blocking on the host", 0, usize::MAX, |team, _, on, _| {
        team.all_gather_v_blocking(&[2.5f32; 8], &mut [0.0; 16], Arc::clone(&on.parts)).unwrap();
    }),
    ("group_blocking on the host", 0, usize::MAX, |team, _, _, other| {
        let (sent, mut received) = ([1.5f32; 8], [0.0f32; 8]);
        team.group_blocking(|group| group.send(&sent, other).and_then(|()| group.recv(&mut received, other))).unwrap();
        assert_eq!(received, sent);
    }),
    ("all_gather", 0, 8, |team, stream, on, _| drop(team.all_gather(stream, &on.x, &on.all).unwrap())),
];

const ROUNDS: usize = 64;
/// Number of calls that the test enqueues before it waits. The number is small, so that a slow
/// stream does not need more tickets than the stream keeps for later operations.
const FEW: usize = 16;

#[test]
fn repeated_call_makes_few_allocations_and_few_driver_calls() {
    let fakes = Fakes::new().cuda();
    fakes.run(|| {
        let threads = Barrier::new(2);
        let options = GpuOptions::new(4 << 20).deadline(Duration::from_secs(60)).slots(4);
        let faults = common::worlds(2, options, |world| costs(world, &threads));
        assert!(faults.iter().all(Vec::is_empty), "{faults:#?}");
    });
}

/// Measures every call in [`CALLS`], and returns a message for each call that exceeds its limits.
fn costs(world: &World, threads: &Barrier) -> Vec<String> {
    const LEN: usize = 8;
    let (team, stream, other) = (world.team(), world.stream().unwrap(), Rank::new(1 - world.my_pe().get()));
    let context = peerweave_driver::context(world.my_pe().index()).expect("the fake has devices");
    let memory = DeviceMemory::<f32>::alloc(&context, LEN).expect("the memory is allocated");
    let on = Operands {
        x: world.alloc_zeroed(LEN).unwrap(),
        y: world.alloc_zeroed(LEN).unwrap(),
        all: world.alloc_zeroed(2 * LEN).unwrap(),
        more: world.alloc_zeroed(2 * LEN).unwrap(),
        host: Buffer::from(vec![1.0; LEN]),
        other_host: Buffer::from(vec![1.0; LEN]),
        more_host: Buffer::from(vec![1.0; 2 * LEN]),
        counts: Arc::new(VectorCounts::packed([1, 3], if world.my_pe().get() == 0 { [1, 1] } else { [3, 3] })),
        parts: Arc::new(Parts::equal(2, LEN)),
        words: world.alloc_zeroed(2).unwrap(),
        device: peerweave_cuda::on_device(&memory).unwrap(),
    };
    let mut faults = Vec::new();
    for (name, most_allocations, most_calls, call) in CALLS {
        // These are more calls than a queue holds before it drops completed operations.
        for _ in 0..4 * ROUNDS {
            call(team, &stream, &on, other);
        }
        let mut allocated = 0;
        for _ in 0..ROUNDS / FEW {
            stream.synchronize().unwrap();
            let before = allocations();
            (0..FEW).for_each(|_| call(team, &stream, &on, other));
            allocated += allocations() - before;
        }
        stream.synchronize().unwrap();
        threads.wait();
        let before = driver_log_len();
        threads.wait();
        (0..ROUNDS).for_each(|_| call(team, &stream, &on, other));
        threads.wait();
        // The log counts the driver calls of both PEs together.
        let mut calls = driver_calls_since(before);
        // A PE that waits for its stream makes further calls.
        threads.wait();
        calls.retain(|_, count| *count >= ROUNDS);
        // The thread that frees memory makes a few of these calls, so the quotient is rounded.
        let total: usize = calls.values().sum();
        let each = (total + ROUNDS) / (2 * ROUNDS);
        if world.my_pe().get() == 0 {
            eprintln!("{name}: {allocated} allocations in {ROUNDS} calls, {each} driver calls for each call: {calls:?}");
        }
        if allocated > *most_allocations || each > *most_calls {
            faults.push(format!("{name}: {allocated} allocations in {ROUNDS} calls, expected at most {most_allocations}; {each} driver calls, expected at most {most_calls} ({calls:?})"));
        }
        stream.synchronize().unwrap();
        threads.wait();
    }
    let Operands { x, y, all, more, words, .. } = on;
    for memory in [x, y, all, more] {
        memory.release().unwrap();
    }
    words.release().unwrap();
    faults
}
