//! Tests that a repeated call allocates no heap memory on its calling thread. The calls are
//! collectives, collectives with parts of different lengths, sends, receives and groups.

#[path = "../../../tests/src/run/allocations.rs"]
mod allocations;

use std::sync::Arc;

use peerweave_core::{Buffer, Parts, Rank, ReduceOp, Stream, Strides, Symmetric, Team, VectorCounts, World};
use peerweave_host::{HostOptions, on_threads};

use allocations::allocations;

/// The operands of the calls of a PE.
struct Operands {
    stream: Stream,
    x: Symmetric<f32>,
    y: Symmetric<f32>,
    all: Symmetric<f32>,
    more: Symmetric<f32>,
    private: Vec<f32>,
    others: Vec<f32>,
    buffer: Buffer<f32>,
    buffers: Buffer<f32>,
    counts: Arc<VectorCounts>,
    parts: Arc<Parts>,
    pairs: Symmetric<[f32; 2]>,
    all_pairs: Symmetric<[f32; 2]>,
    pair_parts: Arc<Parts>,
}

/// A call of a PE. The last argument contains the ranks of the PE's right and left neighbours.
type Call = fn(&Team, &mut Operands, [Rank; 2]) -> peerweave_core::Result<()>;

const CALLS: &[(&str, Call)] = &[
    ("all_reduce", |team, on, _| team.all_reduce_blocking(&on.x, &on.y, ReduceOp::Sum)),
    ("all_reduce of slices", |team, on, _| team.all_reduce_in_place_blocking(&mut on.private, ReduceOp::Max)),
    ("scan", |team, on, _| team.scan_blocking(&on.x, &on.y, ReduceOp::Sum)),
    ("all_to_all_v", |team, on, _| team.all_to_all_v_blocking(&on.all, &on.more, Arc::clone(&on.counts))),
    ("all_gather_v", |team, on, _| team.all_gather_v_blocking(&on.x, &on.all, Arc::clone(&on.parts))),
    ("all_gather_v of slices", |team, on, _| team.all_gather_v_blocking(&on.private, &mut on.others, Arc::clone(&on.parts))),
    ("all_gather_v of pairs", |team, on, _| team.all_gather_v_blocking(&on.pairs, &on.all_pairs, Arc::clone(&on.pair_parts))),
    ("gather_v", |team, on, _| team.gather_v_blocking(&on.x, &on.all, Arc::clone(&on.parts), Rank::new(0))),
    ("scatter_v", |team, on, _| team.scatter_v_blocking(&on.all, &on.x, Arc::clone(&on.parts), Rank::new(0))),
    ("all_to_all with strides", |team, on, _| {
        let strides = Strides { count: on.x.len() / 2, source: 2, dest: 2 };
        team.all_to_all_strided_blocking(&on.all, &on.more, strides)
    }),
    ("send and receive", |team, on, _| match (team.size(), team.my_rank().get()) {
        (2.., 0) => team.send_blocking(&on.x, Rank::new(1)),
        (2.., 1) => team.recv_blocking(&on.y, Rank::new(0)),
        _ => Ok(()),
    }),
    ("group", |team, on, [right, left]| {
        team.group_blocking(|group| {
            group.send(&on.x, right)?;
            group.recv(&on.y, left)
        })
    }),
    ("group of slices", |team, on, [right, left]| {
        let (sent, received) = (&on.private, &mut on.others[..on.private.len()]);
        team.group_blocking(|group| {
            group.send(sent, right)?;
            group.recv(received, left)
        })
    }),
];

/// Calls on streams. In a job of one PE, these calls wait for no other PE, so they run on the
/// calling thread.
const STREAMED: &[(&str, Call)] = &[
    ("all_gather_v", |team, on, _| team.all_gather_v(&on.stream, &on.x, &on.all, Arc::clone(&on.parts)).map(drop)),
    ("all_gather_v of buffers", |team, on, _| {
        team.all_gather_v(&on.stream, &on.buffer, &on.buffers, Arc::clone(&on.parts)).map(drop)
    }),
    ("all_reduce of a buffer", |team, on, _| team.all_reduce_in_place(&on.stream, &on.buffer, ReduceOp::Sum).map(drop)),
    ("group", |team, on, [right, left]| {
        let (x, y) = (&on.x, &on.y);
        team.group(&on.stream, |group| group.send(x, right).and_then(|()| group.recv(y, left))).map(drop)
    }),
    ("group of buffers", |team, on, [right, left]| {
        let (x, y) = (&on.buffer, &on.y);
        team.group(&on.stream, |group| group.send(x, right).and_then(|()| group.recv(y, left))).map(drop)
    }),
];

/// Makes each call repeatedly. Returns a message for each call that allocates heap memory.
fn costs(world: &World, len: usize, calls: &[(&'static str, Call)]) -> Vec<String> {
    const ROUNDS: usize = 20;
    let (team, n) = (world.team(), world.n_pes());
    let neighbours = [1, n as u32 - 1].map(|behind| Rank::new((team.my_rank().get() + behind) % n as u32));
    let [x, y] = [0; 2].map(|_| world.alloc_zeroed::<f32>(len).unwrap());
    let [all, more] = [0; 2].map(|_| world.alloc_zeroed::<f32>(n * len).unwrap());
    let (pairs, all_pairs) = (world.alloc_zeroed(len).unwrap(), world.alloc_zeroed(n * len).unwrap());
    let parts = Arc::new(Parts::equal(n, len));
    let mut on = Operands {
        stream: world.stream().unwrap(),
        private: vec![0.0; len],
        others: vec![0.0; n * len],
        buffer: Buffer::from(vec![0.0; len]),
        buffers: Buffer::from(vec![0.0; n * len]),
        counts: Arc::new(VectorCounts::equal(n, len)),
        pair_parts: Arc::clone(&parts),
        parts,
        x,
        y,
        all,
        more,
        pairs,
        all_pairs,
    };
    let mut faults = Vec::new();
    for (name, call) in calls {
        for _ in 0..ROUNDS {
            call(team, &mut on, neighbours).unwrap();
        }
        let before = allocations();
        for _ in 0..ROUNDS {
            call(team, &mut on, neighbours).unwrap();
        }
        let allocated = allocations() - before;
        if allocated > 0 {
            faults.push(format!("{name} of {len} elements: {allocated} allocations in {ROUNDS} calls"));
        }
    }
    let Operands { x, y, all, more, pairs, all_pairs, .. } = on;
    team.barrier_blocking().unwrap();
    for memory in [x, y, all, more] {
        memory.release().unwrap();
    }
    for memory in [pairs, all_pairs] {
        memory.release().unwrap();
    }
    faults
}

#[test]
fn repeated_blocking_call_allocates_no_heap_memory() {
    for n_pes in [1, 2, 3] {
        let faults = on_threads(n_pes, &HostOptions::default(), |world| {
            let faults: Vec<String> = [8, 700, 40_000].into_iter().flat_map(|len| costs(&world, len, CALLS)).collect();
            assert!(world.finalize().unwrap().is_clean());
            faults
        });
        let faults: Vec<Vec<String>> = faults.expect("the shared memory is mapped").into_iter().collect();
        assert!(faults.iter().all(Vec::is_empty), "with {n_pes} PEs, calls allocate heap memory: {faults:#?}");
    }
}

#[test]
fn repeated_call_on_an_idle_stream_allocates_no_heap_memory() {
    let faults = on_threads(1, &HostOptions::default(), |world| {
        let faults = costs(&world, 700, STREAMED);
        assert!(world.finalize().unwrap().is_clean());
        faults
    });
    let faults: Vec<Vec<String>> = faults.expect("the shared memory is mapped").into_iter().collect();
    assert_eq!(faults, [Vec::<String>::new()]);
}
