//! Checks the error of every wrong use of the API, and that no wrong call reaches the backend.

use peerweave_core::backend::Caps;
use peerweave_core::noop::{Call, Noop};
use peerweave_core::{
    Buffer, Compare, Error, Parts, Pe, PrivateBuffers, Rank, ReduceFn, ReduceOp, Reduction, Result, Stream, Strides, SymOffset,
    Symmetric, Team, TeamShape, VectorCounts, World, none,
};
use std::sync::Arc;

const SELF: Rank = Rank::new(1);
const PEER: Rank = Rank::new(0);
const ROOT: Rank = Rank::new(1);
const NO_RANK: Rank = Rank::new(3);

/// The handles of PE 1 of 4, and a team of PEs 3, 1 and 0, in which PE 1 has rank 1.
struct Scene {
    noop: Arc<Noop>,
    world: World,
    stream: Stream,
    team: Team,
    destroyed: Team,
    /// `x`, `y`, `released`, `words` and `private` have 6 elements each.
    x: Symmetric<f32>,
    y: Symmetric<f32>,
    released: Symmetric<f32>,
    gone: Symmetric<u64>,
    words: Symmetric<u64>,
    private: Buffer<f32>,
    other: Other,
}

/// Handles of another world.
struct Other {
    team: Team,
    stream: Stream,
    x: Symmetric<f32>,
    words: Symmetric<u64>,
}

impl Scene {
    fn new() -> Result<Self> {
        let noop = Noop::new(1, 4);
        let world = World::new(noop.clone())?;
        noop.next_split_gives([3, 1, 0]);
        let team = world.team().split(Some(0), 0)?.unwrap();
        let destroyed = world.team().split(Some(0), 0)?.unwrap();
        destroyed.clone().destroy()?;
        let released = world.alloc(6)?;
        released.clone().release()?;
        let gone = world.alloc::<u64>(1)?;
        gone.clone().release()?;
        let foreign = World::new(Noop::new(0, 4))?;
        let other = Other {
            team: foreign.team().clone(),
            stream: foreign.stream()?,
            x: foreign.alloc(6)?,
            words: foreign.alloc_zeroed(6)?,
        };
        let stream = world.stream()?;
        let (x, y, words) = (world.alloc_zeroed(6)?, world.alloc_zeroed(6)?, world.alloc_zeroed(6)?);
        Ok(Self { noop, world, stream, team, destroyed, x, y, released, gone, words, private: Buffer::zeroed(6), other })
    }
}

type Wrong = fn(&Scene) -> Result<()>;

/// Error messages, and the wrong calls that fail with them. If many calls share a check, the table
/// lists one call of each form.
const TABLE: &[(&str, Wrong)] = &[
    // ---- views ----
    ("range: `self` has 6 elements, but the call uses elements 4..7", |s| s.x.range(4..7).map(drop)),
    ("cast: `self` is 20 bytes long (a new element has 8 bytes), expected a multiple of the size of a new element", |s| {
        s.x.slice(..5)?.cast::<u64>().map(drop)
    }),
    (
        "cast: `self` is at offset 4 (a new element has an alignment of 8 bytes), expected an offset that is a multiple of this alignment",
        |s| s.x.slice(1..5)?.cast::<u64>().map(drop),
    ),
    (
        "symmetric_at: `offset` is 7 elements of 4 bytes at offset 0, expected elements within one allocation that was not released",
        |s| s.world.symmetric_at::<f32>(SymOffset(0), 7).map(drop),
    ),
    ("symmetric_of: `address` is 0x8, expected an address in this PE's symmetric heap", |s| {
        s.world.symmetric_of::<f32>(std::ptr::without_provenance(8), 1).map(drop)
    }),
    ("peer_ptr: `rank` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.peer_ptr(&s.x, NO_RANK).map(drop)
    }),
    ("peer_ptr: `buffer` was released", |s| s.team.peer_ptr(&s.released, PEER).map(drop)),
    ("peer_device_address: `buffer` belongs to another world", |s| s.team.peer_device_address(&s.other.x, PEER).map(drop)),
    ("peer_ptr: the team was destroyed", |s| s.destroyed.peer_ptr(&s.x, PEER).map(drop)),
    // ---- lengths ----
    ("put_blocking: `source` has 5 elements, expected 6", |s| s.team.put_blocking(&[0.0; 5], &s.x, PEER)),
    ("put: `source` has 3 elements, expected 6", |s| s.team.put(&s.stream, &s.y.slice(..3)?, &s.x, PEER).map(drop)),
    ("get_blocking: `dest` has 7 elements, expected 6", |s| s.team.get_blocking(&s.x, &mut [0.0; 7], PEER)),
    ("get_nbi: `dest` has 6 elements, expected 2", |s| s.team.get_nbi(&s.stream, &s.x.slice(4..)?, &s.y, PEER).map(drop)),
    ("all_reduce_blocking: `recv` has 5 elements, expected 6", |s| {
        s.team.all_reduce_blocking(&s.x, &mut [0.0; 5], ReduceOp::Sum)
    }),
    ("all_reduce: `recv` has 5 elements, expected 6", |s| {
        s.team.all_reduce(&s.stream, &s.x, &s.private.slice(1..)?, ReduceOp::Sum).map(drop)
    }),
    ("reduce_blocking: `recv` has 1 elements, expected 6", |s| s.team.reduce_blocking(&s.x, &mut [0.0], ReduceOp::Sum, ROOT)),
    ("broadcast_blocking: `recv` has 6 elements, expected 2", |s| s.team.broadcast_blocking(&[0.0; 2], &s.x, ROOT)),
    ("all_gather_blocking: `recv` has 6 elements, expected 9", |s| s.team.all_gather_blocking(&[0.0; 3], &s.x)),
    ("reduce_scatter_blocking: `send` has 6 elements, expected 3", |s| {
        s.team.reduce_scatter_blocking(&s.x, &mut [0.0; 1], ReduceOp::Sum)
    }),
    ("all_to_all_blocking: `recv` has 3 elements, expected 6", |s| s.team.all_to_all_blocking(&s.x, &mut [0.0; 3])),
    ("gather_blocking: `recv` has 6 elements, expected 18", |s| s.team.gather_blocking(&s.x, &s.y, ROOT)),
    ("scatter_blocking: `send` has 6 elements, expected 18", |s| s.team.scatter_blocking(&s.x, &s.y, ROOT)),
    ("copy_from: `from` has 2 elements, expected 6", |s| s.x.copy_from(&[0.0; 2])),
    ("copy_to: `into` has 2 elements, expected 6", |s| s.x.copy_to(&mut [0.0; 2])),
    ("wait_until_any_blocking: `exclude` has 2 elements, expected 6", |s| {
        s.team.wait_until_any_blocking(&s.words, Some(&[true, false]), Compare::Eq, 0).map(drop)
    }),
    ("wait_until_all_vector: `values` has 5 elements, expected 6", |s| {
        s.team.wait_until_all_vector(&s.stream, &s.words, None, Compare::Eq, &[0; 5]).map(drop)
    }),
    ("wait_until_any_vector_blocking: `values` has 7 elements, expected 6", |s| {
        s.team.wait_until_any_vector_blocking(&s.words, None, Compare::Eq, &[0; 7]).map(drop)
    }),
    ("test_some_vector: `values` has 0 elements, expected 6", |s| {
        s.team.test_some_vector(&s.words, None, Compare::Eq, &[]).map(drop)
    }),
    ("test_all_vector: `exclude` has 1 elements, expected 6", |s| {
        s.team.test_all_vector(&s.words, Some(&[true]), Compare::Eq, &[0; 6]).map(drop)
    }),
    // ---- lengths that are no multiple of the number of ranks ----
    ("all_gather_in_place_blocking: `buffer` has 5 elements, expected a multiple of 3 (the number of ranks in the team)", |s| {
        s.team.all_gather_in_place_blocking(&s.x.slice(1..)?)
    }),
    ("reduce_scatter_in_place: `buffer` has 4 elements, expected a multiple of 3 (the number of ranks in the team)", |s| {
        s.team.reduce_scatter_in_place(&s.stream, &s.x.slice(2..)?, ReduceOp::Max).map(drop)
    }),
    ("all_to_all_blocking: `send` has 4 elements, expected a multiple of 3 (the number of ranks in the team)", |s| {
        s.team.all_to_all_blocking(&[0.0; 4], &mut [0.0; 4])
    }),
    ("all_to_all_in_place_blocking: `buffer` has 1 elements, expected a multiple of 3 (the number of ranks in the team)", |s| {
        s.team.all_to_all_in_place_blocking(&mut [0.0])
    }),
    ("gather_in_place_blocking: `buffer` has 2 elements, expected a multiple of 3 (the number of ranks in the team)", |s| {
        s.team.gather_in_place_blocking(&mut [0.0; 2], ROOT)
    }),
    ("scatter_in_place_blocking: `buffer` has 2 elements, expected a multiple of 3 (the number of ranks in the team)", |s| {
        s.team.scatter_in_place_blocking(&mut [0.0; 2], ROOT)
    }),
    // ---- ranks and roots ----
    ("put_blocking: `rank` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.put_blocking(&s.y, &s.x, NO_RANK)
    }),
    ("get_blocking: `rank` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.get_blocking(&s.y, &s.x, NO_RANK)
    }),
    ("g: `rank` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.g(&s.stream, &s.x, 0, NO_RANK).map(drop)
    }),
    ("signal_blocking: `rank` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.signal_blocking(s.words.signal(0)?.set(1), NO_RANK)
    }),
    ("atomic_inc_blocking: `rank` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.atomic_inc_blocking(&s.words, 0, NO_RANK)
    }),
    ("send_blocking: `peer` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.send_blocking(&s.x, NO_RANK)
    }),
    ("pe_of: `rank` is 3, expected a rank below 3 (the number of ranks in the team)", |s| s.team.pe_of(NO_RANK).map(drop)),
    ("reduce_blocking: `root` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.reduce_blocking(&s.x, &s.y, ReduceOp::Sum, NO_RANK)
    }),
    ("reduce_in_place_blocking: `root` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.reduce_in_place_blocking(&s.x, ReduceOp::Sum, NO_RANK)
    }),
    ("broadcast: `root` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.broadcast(&s.stream, &s.x, &s.y, NO_RANK).map(drop)
    }),
    ("broadcast_in_place_blocking: `root` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.broadcast_in_place_blocking(&s.x, NO_RANK)
    }),
    ("gather_blocking: `root` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.gather_blocking(&s.x, &s.y, NO_RANK)
    }),
    ("scatter_blocking: `root` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.scatter_blocking(&s.x, &s.y, NO_RANK)
    }),
    ("send_blocking: `peer` is rank 1, expected another rank: a rank can exchange data with itself only in a group", |s| {
        s.team.send_blocking(&s.x, SELF)
    }),
    ("recv: `peer` is rank 1, expected another rank: a rank can exchange data with itself only in a group", |s| {
        s.team.recv(&s.stream, &s.x, SELF).map(drop)
    }),
    // ---- missing at the root ----
    ("reduce_blocking: `recv` is missing: the root must pass this buffer", |s| {
        s.team.reduce_blocking(&s.x, none(), ReduceOp::Sum, ROOT)
    }),
    ("broadcast_blocking: `send` is missing: the root must pass this buffer", |s| s.team.broadcast_blocking(none(), &s.x, ROOT)),
    ("gather_blocking: `recv` is missing: the root must pass this buffer", |s| s.team.gather_blocking(&s.x, none(), ROOT)),
    ("scatter_blocking: `send` is missing: the root must pass this buffer", |s| s.team.scatter_blocking(none(), &s.x, ROOT)),
    // ---- buffers that overlap ----
    ("all_reduce_blocking: `send` and `recv` overlap: use the in-place form, or separate buffers", |s| {
        s.team.all_reduce_blocking(&s.x, &s.x, ReduceOp::Sum)
    }),
    ("all_reduce: `send` and `recv` overlap: use the in-place form, or separate buffers", |s| {
        s.team.all_reduce(&s.stream, &s.private, &s.private, ReduceOp::Sum).map(drop)
    }),
    ("all_gather_blocking: `send` and `recv` overlap: use the in-place form, or separate buffers", |s| {
        s.team.all_gather_blocking(&s.x.slice(2..4)?, &s.x)
    }),
    ("all_to_all_blocking: `send` and `recv` overlap: use the in-place form, or separate buffers", |s| {
        s.team.all_to_all_blocking(&s.x.slice(..3)?, &s.x.slice(2..5)?)
    }),
    ("reduce_blocking: `send` and `recv` overlap: use the in-place form, or separate buffers", |s| {
        s.team.reduce_blocking(&s.x, &s.x, ReduceOp::Sum, ROOT)
    }),
    ("scatter_blocking: `send` and `recv` overlap: use the in-place form, or separate buffers", |s| {
        s.team.scatter_blocking(&s.x, &s.x.slice(2..4)?, ROOT)
    }),
    ("put_blocking: `source` and `dest` overlap: pass separate buffers", |s| {
        s.team.put_blocking(&s.x.slice(1..4)?, &s.x.slice(3..6)?, SELF)
    }),
    ("get_blocking: `dest` and `source` overlap: pass separate buffers", |s| s.team.get_blocking(&s.x, &s.x, SELF)),
    ("put_signal_blocking: `dest` and `signal` overlap: use a signal word outside of `dest`", |s| {
        s.team.put_signal_blocking(&[0; 6], &s.words, s.words.signal(2)?.set(1), PEER)
    }),
    ("group: the buffer of a receive and the buffer of another operation in the group overlap", |s| {
        let members = |g: &mut peerweave_core::Group| {
            g.send(&s.x, PEER)?;
            g.recv(&s.x.slice(5..)?, PEER)
        };
        s.team.group(&s.stream, members).map(drop)
    }),
    ("group_blocking: the buffer of a receive and the buffer of another operation in the group overlap", |s| {
        s.team.group_blocking(|g| {
            g.recv(&s.private, PEER)?;
            g.recv(&s.private, SELF)
        })
    }),
    // ---- released memory, handles of another world, destroyed teams ----
    ("put_blocking: `dest` was released", |s| s.team.put_blocking(&s.x, &s.released, PEER)),
    ("put_blocking: `source` was released", |s| s.team.put_blocking(&s.released, &s.x, PEER)),
    ("all_reduce: `recv` was released", |s| s.team.all_reduce(&s.stream, &s.x, &s.released, ReduceOp::Sum).map(drop)),
    ("all_gather_in_place_blocking: `buffer` was released", |s| s.team.all_gather_in_place_blocking(&s.released)),
    ("load: `self` was released", |s| s.released.load(0).map(drop)),
    ("store: `self` was released", |s| s.released.store(0, 1.0)),
    ("to_vec: `self` was released", |s| s.released.to_vec().map(drop)),
    ("fill: `self` was released", |s| s.released.fill(1.0)),
    ("release: `self` was released", |s| s.released.clone().release()),
    ("release: `self` covers elements 1..6 of an allocation of 6, expected the whole allocation", |s| s.x.slice(1..)?.release()),
    ("wait_until_blocking: `signal` was released", |s| s.team.wait_until_blocking(&s.gone.signal(0)?, Compare::Eq, 0).map(drop)),
    ("wait_until: `index` is 6, expected an index below 6", |s| {
        s.team.wait_until(&s.stream, (&s.words, 6), Compare::Eq, 0).map(drop)
    }),
    ("wait_until_blocking: `word` belongs to another world", |s| {
        s.team.wait_until_blocking((&s.other.words, 0), Compare::Eq, 0).map(drop)
    }),
    ("test: `index` is 7, expected an index below 6", |s| s.team.test((&s.words, 7), Compare::Eq, 0).map(drop)),
    ("test_any_vector: the team was destroyed", |s| s.destroyed.test_any_vector(&s.words, None, Compare::Eq, &[0; 6]).map(drop)),
    ("put_blocking: `dest` belongs to another world", |s| s.team.put_blocking(&s.x, &s.other.x, PEER)),
    ("get: `dest` belongs to another world", |s| s.team.get(&s.stream, &s.x, &s.other.x, PEER).map(drop)),
    ("all_reduce_blocking: `send` belongs to another world", |s| s.team.all_reduce_blocking(&s.other.x, &s.x, ReduceOp::Sum)),
    ("put_signal_blocking: `signal` belongs to another world", |s| {
        s.team.put_signal_blocking(&s.x, &s.y, s.other.words.signal(0)?.add(1), PEER)
    }),
    ("wait_until_blocking: `signal` belongs to another world", |s| {
        s.team.wait_until_blocking(&s.other.words.signal(0)?, Compare::Eq, 0).map(drop)
    }),
    ("all_reduce_blocking: `send` belongs to another world", |s| s.other.team.all_reduce_blocking(&s.x, &s.y, ReduceOp::Sum)),
    ("barrier: the stream belongs to another world", |s| s.team.barrier(&s.other.stream).map(drop)),
    ("group: the stream belongs to another world", |s| s.team.group(&s.other.stream, |_| Ok(())).map(drop)),
    ("g: the stream belongs to another world", |s| s.team.g(&s.other.stream, &s.x, 0, PEER).map(drop)),
    ("quiet: the stream belongs to another world", |s| s.world.quiet(&s.other.stream).map(drop)),
    ("wait_event: the event belongs to another world", |s| s.stream.wait_event(&s.other.stream.record()?)),
    ("barrier_blocking: the team was destroyed", |s| s.destroyed.barrier_blocking()),
    ("put_blocking: the team was destroyed", |s| s.destroyed.put_blocking(&s.x, &s.y, PEER)),
    ("split: the team was destroyed", |s| s.destroyed.split(None, 0).map(drop)),
    ("group_blocking: the team was destroyed", |s| s.destroyed.group_blocking(|_| Ok(()))),
    ("destroy: the team was destroyed", |s| s.destroyed.clone().destroy()),
    ("destroy: the team of all PEs cannot be destroyed: the team ends with the world", |s| s.world.team().clone().destroy()),
    ("destroy: the team of the PEs of this machine cannot be destroyed: the team ends with the world", |s| {
        s.world.local_team()?.destroy()
    }),
    // ---- contexts ----
    ("context: the team was destroyed", |s| s.destroyed.context().map(drop)),
    ("put_nbi: `source` has 3 elements, expected 6", |s| s.team.context()?.put(&s.x.slice(..3)?, &s.y, PEER)),
    ("get_nbi: `source` was released", |s| s.team.context()?.get(&s.released, &s.x, PEER)),
    ("p: `index` is 6, expected an index below 6", |s| s.team.context()?.p(&s.x, 6, 0.0, PEER)),
    ("g: `rank` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.context()?.g(&s.x, 0, NO_RANK).map(drop)
    }),
    ("signal: `signal` belongs to another world", |s| s.team.context()?.signal(s.other.words.signal(0)?.set(1), PEER)),
    ("atomic_add: `index` is 6, expected an index below 6", |s| s.team.context()?.atomic_add(&s.words, 6, 1, PEER)),
    ("put_strided: `strides.source` is 0, expected a number above 0", |s| {
        s.team.context()?.put_strided(&s.y, &s.x, Strides { count: 2, source: 0, dest: 1 }, PEER)
    }),
    // ---- reductions ----
    ("all_reduce_blocking: the reduction and is not defined for elements of type f32", |s| {
        s.team.all_reduce_blocking(&s.x, &s.y, ReduceOp::And)
    }),
    ("reduce_scatter: the reduction xor is not defined for elements of type f32", |s| {
        s.team.reduce_scatter(&s.stream, &s.x, &s.y.slice(..2)?, ReduceOp::Xor).map(drop)
    }),
    ("reduce_blocking: the reduction or is not defined for elements of type f32", |s| {
        s.team.reduce_blocking(&s.x, none(), ReduceOp::Or, PEER)
    }),
    (
        "all_reduce_in_place_blocking: `op.scalar` is missing: a premultiplied sum needs a scalar: use `Reduction::pre_mul_sum`",
        |s| s.team.all_reduce_in_place_blocking(&s.x, ReduceOp::PreMulSum),
    ),
    // ---- indices, ranges, strides ----
    ("slice: `self` has 6 elements, but the call uses elements 2..7", |s| s.x.slice(2..7).map(drop)),
    ("slice: `range` is 3..2, which ends before it starts", |s| {
        let (start, end) = (3, 2);
        s.x.slice(start..end).map(drop)
    }),
    ("split_at: `self` has 6 elements, but the call uses elements 0..7", |s| s.x.split_at(7).map(drop)),
    ("chunks: `len` is 0, expected a number above 0", |s| s.x.chunks(0).map(drop)),
    ("load: `index` is 6, expected an index below 6", |s| s.x.load(6).map(drop)),
    ("store: `index` is 6, expected an index below 6", |s| s.x.store(6, 0.0)),
    ("signal: `index` is 6, expected an index below 6", |s| s.words.signal(6).map(drop)),
    ("p_blocking: `index` is 6, expected an index below 6", |s| s.team.p_blocking(&s.x, 6, 0.0, PEER)),
    ("g_blocking: `index` is 9, expected an index below 6", |s| s.team.g_blocking(&s.x, 9, PEER).map(drop)),
    ("atomic_set: `index` is 6, expected an index below 6", |s| s.team.atomic_set(&s.stream, &s.words, 6, 1, PEER).map(drop)),
    ("put_strided_blocking: `dest` has 6 elements, but the call uses elements 0..7", |s| {
        s.team.put_strided_blocking(&[0.0; 3], &s.x, Strides { count: 3, source: 1, dest: 3 }, PEER)
    }),
    ("get_strided_blocking: `source` has 6 elements, but the call uses elements 0..7", |s| {
        s.team.get_strided_blocking(&s.x, &mut [0.0; 3], Strides { count: 3, source: 3, dest: 1 }, PEER)
    }),
    ("put_strided_blocking: `source` has 3 elements, but the call uses elements 0..18446744073709551615", |s| {
        s.team.put_strided_blocking(&[0.0; 3], &s.x, Strides { count: 3, source: usize::MAX, dest: 1 }, PEER)
    }),
    ("put_strided: `strides.source` is 0, expected a number above 0", |s| {
        s.team.put_strided(&s.stream, &s.y, &s.x, Strides { count: 2, source: 0, dest: 1 }, PEER).map(drop)
    }),
    ("get_strided: `strides.dest` is 0, expected a number above 0", |s| {
        s.team.get_strided(&s.stream, &s.y, &s.x, Strides { count: 2, source: 1, dest: 0 }, PEER).map(drop)
    }),
    // ---- counts of an all-to-all-v ----
    ("all_to_all_v_blocking: `counts.send_counts` has 2 elements, expected 3", |s| {
        s.team.all_to_all_v_blocking(&s.x, &s.y, VectorCounts::packed([1, 1], [1, 1, 1]))
    }),
    ("all_to_all_v: `counts.recv_counts` has 4 elements, expected 3", |s| {
        s.team.all_to_all_v(&s.stream, &s.x, &s.y, VectorCounts::packed([1, 1, 1], [1; 4])).map(drop)
    }),
    ("all_to_all_v_blocking: `send` has 6 elements, but the call uses elements 4..7", |s| {
        s.team.all_to_all_v_blocking(&s.x, &s.y, VectorCounts::packed([2, 2, 3], [2, 2, 2]))
    }),
    ("all_to_all_v_blocking: `recv` has 6 elements, but the call uses elements 0..18446744073709551615", |s| {
        s.team.all_to_all_v_blocking(&s.x, &s.y, VectorCounts::packed([0, 1, 0], [usize::MAX, 1, usize::MAX]))
    }),
    ("all_to_all_v_blocking: the parts of `recv` for two ranks overlap", |s| {
        let counts = VectorCounts { recv_offsets: vec![4, 0, 1], ..VectorCounts::packed([2, 2, 2], [2, 2, 2]) };
        s.team.all_to_all_v_blocking(&s.x, &s.y, counts)
    }),
    (
        "all_to_all_v_blocking: `counts.recv_counts` is 1, expected the number of elements that this rank sends to itself (its entry in `send_counts`)",
        |s| s.team.all_to_all_v_blocking(&s.x, &s.y, VectorCounts::packed([2, 2, 2], [2, 1, 2])),
    ),
    (
        "all_to_all_v_in_place_blocking: `counts.recv_counts` is [1, 2, 1], expected the same list as `send_counts`, because the call is in place",
        |s| s.team.all_to_all_v_in_place_blocking(&s.x, VectorCounts::packed([2, 2, 2], [1, 2, 1])),
    ),
    ("exchange_counts: `send_counts` has 2 elements, expected 3", |s| s.team.exchange_counts(&[1, 2]).map(drop)),
    // ---- parts ----
    ("all_gather_v: `parts.counts` has 2 elements, expected 3", |s| {
        s.team.all_gather_v(&s.stream, &s.x, &s.y, Parts::packed([6, 0])).map(drop)
    }),
    ("all_gather_v_blocking: `parts.offsets` has 1 elements, expected 3", |s| {
        s.team.all_gather_v_blocking(&s.x, &s.y, Parts::new([0, 6, 0], [0]))
    }),
    ("all_gather_v_blocking: `recv` has 6 elements, but the call uses elements 4..7", |s| {
        s.team.all_gather_v_blocking(&s.x.slice(..2)?, &s.y, Parts::packed([2, 2, 3]))
    }),
    ("all_gather_v_blocking: the parts of `recv` for two ranks overlap", |s| {
        s.team.all_gather_v_blocking(&s.x.slice(..2)?, &s.y, Parts::new([2, 2, 2], [0, 3, 1]))
    }),
    ("all_gather_v_blocking: `send` has 6 elements, expected 2", |s| {
        s.team.all_gather_v_blocking(&s.x, &s.y, Parts::equal(3, 2))
    }),
    ("all_gather_v_blocking: `send` and `recv` overlap: use the in-place form, or separate buffers", |s| {
        s.team.all_gather_v_blocking(&s.x.slice(2..4)?, &s.x, Parts::equal(3, 2))
    }),
    ("all_gather_v_in_place: the parts of `buffer` for two ranks overlap", |s| {
        s.team.all_gather_v_in_place(&s.stream, &s.x, Parts::new([2, 2, 2], [0, 1, 4])).map(drop)
    }),
    (
        "all_gather_v_in_place_blocking: `buffer` has 6 elements, but the call uses elements 18446744073709551614..18446744073709551615",
        |s| s.team.all_gather_v_in_place_blocking(&s.x, Parts::new([0, 2, 0], [0, usize::MAX - 1, 0])),
    ),
    ("gather_v_blocking: `recv` is missing: the root must pass this buffer", |s| {
        s.team.gather_v_blocking(&s.x, none(), Parts::default(), ROOT)
    }),
    ("gather_v: `root` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.gather_v(&s.stream, &s.x, none(), Parts::default(), NO_RANK).map(drop)
    }),
    ("gather_v_blocking: `parts.counts` has 0 elements, expected 3", |s| {
        s.team.gather_v_blocking(&s.x, &s.y, Parts::default(), ROOT)
    }),
    ("gather_v_blocking: `send` has 6 elements, expected 1", |s| s.team.gather_v_blocking(&s.x, &s.y, Parts::equal(3, 1), ROOT)),
    ("gather_v_in_place_blocking: `buffer` belongs to another world", |s| {
        s.team.gather_v_in_place_blocking(&s.other.x, Parts::equal(3, 2), ROOT)
    }),
    ("scatter_v_blocking: `send` is missing: the root must pass this buffer", |s| {
        s.team.scatter_v_blocking(none(), &s.x, Parts::default(), ROOT)
    }),
    ("scatter_v: `recv` has 6 elements, expected 2", |s| {
        s.team.scatter_v(&s.stream, &s.x, &s.y, Parts::equal(3, 2), ROOT).map(drop)
    }),
    ("scatter_v_blocking: `send` and `recv` overlap: use the in-place form, or separate buffers", |s| {
        s.team.scatter_v_blocking(&s.x, &s.x.slice(..2)?, Parts::equal(3, 2), ROOT)
    }),
    ("scatter_v_in_place: `buffer` was released", |s| {
        s.team.scatter_v_in_place(&s.stream, &s.released, Parts::equal(3, 2), ROOT).map(drop)
    }),
    ("all_to_all_strided: `strides.dest` is 0, expected a number above 0", |s| {
        s.team.all_to_all_strided(&s.stream, &s.x, &s.y, Strides { count: 2, source: 1, dest: 0 }).map(drop)
    }),
    ("all_to_all_strided_blocking: `send` has 6 elements, but the call uses elements 0..11", |s| {
        s.team.all_to_all_strided_blocking(&s.x, &s.y, Strides { count: 2, source: 2, dest: 1 })
    }),
    // ---- scans, reductions by a function ----
    ("scan: `recv` has 5 elements, expected 6", |s| s.team.scan(&s.stream, &s.x, &s.y.slice(..5)?, ReduceOp::Sum).map(drop)),
    ("exclusive_scan_blocking: `send` and `recv` overlap: use the in-place form, or separate buffers", |s| {
        s.team.exclusive_scan_blocking(&s.x, &s.x, ReduceOp::Sum)
    }),
    (
        "scan_in_place_blocking: `op` is avg, expected a reduction other than avg: for averages, use `Sum` and divide the result",
        |s| s.team.scan_in_place_blocking(&s.x, ReduceOp::Avg),
    ),
    ("exclusive_scan_in_place: the reduction xor is not defined for elements of type f32", |s| {
        s.team.exclusive_scan_in_place(&s.stream, &s.x, ReduceOp::Xor).map(drop)
    }),
    ("all_reduce_with_blocking: `recv` has 5 elements, expected 6", |s| {
        s.team.all_reduce_with_blocking(&s.x, &s.y.slice(..5)?, &ReduceFn::new(|a, b| a + b))
    }),
    ("reduce_with: `recv` is missing: the root must pass this buffer", |s| {
        s.team.reduce_with(&s.stream, &s.x, none(), &ReduceFn::new(f32::max), ROOT).map(drop)
    }),
    ("scan_with_blocking: `send` was released", |s| s.team.scan_with_blocking(&s.released, &s.y, &ReduceFn::new(f32::max))),
    // ---- shapes, allocations ----
    ("team_of: `members` is empty, expected a list that contains this PE", |s| s.world.team_of(&[]).map(drop)),
    (
        "team_of: `members` is a list that contains PE 4, expected a list of PEs of this job, whose numbers are below World::n_pes",
        |s| s.world.team_of(&[0, 1, 4].map(Pe::new)).map(drop),
    ),
    ("team_of: `members` is a list that contains PE 2 twice, expected a list that contains each PE at most once", |s| {
        s.world.team_of(&[2, 0, 1, 2].map(Pe::new)).map(drop)
    }),
    ("team_of: `members` is a list without PE 1, expected a list that contains this PE (only members make the call)", |s| {
        s.world.team_of(&[0, 2].map(Pe::new)).map(drop)
    }),
    ("split_strided: the shape is 3 ranks from rank 1 at stride 1, expected distinct ranks of a team with 3 ranks", |s| {
        s.team.split_strided(TeamShape { start: 1, stride: 1, size: 3 }).map(drop)
    }),
    ("split_strided: the shape is 2 ranks from rank 0 at stride 0, expected distinct ranks of a team with 3 ranks", |s| {
        s.team.split_strided(TeamShape { start: 0, stride: 0, size: 2 }).map(drop)
    }),
    ("split_2d: `x_range` is 0, expected a number above 0", |s| s.team.split_2d(0).map(drop)),
    ("alloc_aligned: `align_bytes` is 48, expected an alignment that is a power of two", |s| {
        s.world.alloc_aligned::<u8>(1, 48).map(drop)
    }),
    ("alloc_aligned: `align_bytes` is 4294967296, expected at most 1048576 (`caps().max_align_bytes` of the world)", |s| {
        s.world.alloc_aligned::<u8>(1, 1 << 32).map(drop)
    }),
    ("alloc: `count` is 9223372036854775807, expected a number of elements that fits the address space", |s| {
        s.world.alloc::<f64>(usize::MAX / 2).map(drop)
    }),
    // ---- inside groups ----
    ("group.send: `peer` is 3, expected a rank below 3 (the number of ranks in the team)", |s| {
        s.team.group_blocking(|g| g.send(&s.x, NO_RANK))
    }),
    ("group.all_reduce: `recv` has 2 elements, expected 6", |s| {
        s.team.group(&s.stream, |g| g.all_reduce(&s.x, &s.y.slice(..2)?, ReduceOp::Sum)).map(drop)
    }),
    ("group_blocking: `send` is missing: the group receives from this rank itself, but has no matching send", |s| {
        s.team.group_blocking(|g| g.recv(&s.private, SELF))
    }),
    ("group: `recv` is missing: the group sends to this rank itself, but has no matching receive", |s| {
        s.team.group(&s.stream, |g| g.send(&s.x, SELF)).map(drop)
    }),
    ("group.recv: `dest` was released", |s| {
        s.team.group_blocking(|g| {
            g.send(&s.x, PEER)?;
            // The closure ignores both errors, but the group fails with the first error.
            g.recv(&s.released, PEER).ok();
            g.send(&s.x, Rank::new(99)).ok();
            Ok(())
        })
    }),
];

#[test]
fn every_misuse_fails_before_the_backend_is_called() {
    for &(expected, wrong) in TABLE {
        let scene = Scene::new().unwrap();
        scene.world.local_team().unwrap();
        scene.noop.take_calls();
        let error = wrong(&scene).expect_err(expected);
        assert_eq!(error.to_string(), expected);
        assert!(error.misuse().is_some(), "{expected}: {error:?}");
        let calls = scene.noop.take_calls();
        assert!(calls.is_empty(), "{expected}: {calls:?}");
    }
}

#[test]
fn nested_group_calls_fail_if_the_closure_swaps_their_groups() {
    let s = Scene::new().unwrap();
    s.noop.take_calls();
    let mut inner = Ok(());
    let outer = s.team.group_blocking(|g| {
        g.send(&s.x, PEER)?;
        inner = s.other.team.group_blocking(|other| {
            std::mem::swap(g, other);
            Ok(())
        });
        Ok(())
    });
    assert_eq!(
        outer.unwrap_err().to_string(),
        "group_blocking: the closure exchanged its group for another team's group: add operations only to the group passed to the closure"
    );
    assert_eq!(
        inner.unwrap_err().to_string(),
        "group_blocking: the closure exchanged its group for another team's group: add operations only to the group passed to the closure"
    );
    assert!(s.noop.take_calls().is_empty());
}

#[test]
fn calls_with_unusual_but_valid_arguments_are_accepted() {
    let s = Scene::new().unwrap();
    // On ranks other than the root, the arguments for the root are ignored, even if they are
    // invalid.
    s.team.reduce_blocking(&s.x, &s.other.x, ReduceOp::Sum, PEER).unwrap();
    s.team.broadcast_blocking(&s.released, &s.x, PEER).unwrap();
    s.team.gather_blocking(&s.x, &s.x, PEER).unwrap();
    s.team.scatter_blocking(Some(&s.x), &s.x, PEER).unwrap();
    // An empty range overlaps nothing.
    let nothing = s.x.slice(3..3).unwrap();
    s.team.all_reduce_blocking(&nothing, &nothing, ReduceOp::Sum).unwrap();
    s.team.put_blocking(&nothing, &nothing, SELF).unwrap();
    s.team.all_to_all_blocking::<u8>(&[], &mut []).unwrap();
    // Adjacent ranges do not overlap. The source and the destination of a put to another PE do not
    // overlap either.
    let (left, right) = s.x.split_at(3).unwrap();
    s.team.all_reduce_blocking(&left, &right, Reduction::pre_mul_sum(0.5)).unwrap();
    s.team.put_blocking(&s.x, &s.x, PEER).unwrap();
    // Inside a group, a rank may send to itself, and may send the same buffer twice.
    s.team
        .group_blocking(|g| {
            g.send(&s.x, SELF)?;
            g.send(&s.x, PEER)?;
            g.recv(&s.y, SELF)
        })
        .unwrap();
    // A strided put may have no elements.
    s.team.put_strided_blocking(&[0.0; 0], &s.x, Strides { count: 0, source: 9, dest: 9 }, PEER).unwrap();
    // Empty parts may lie anywhere.
    let counts = VectorCounts { recv_offsets: vec![99, 0, 99], ..VectorCounts::packed([0, 6, 0], [0, 6, 0]) };
    s.team.all_to_all_v_blocking(&s.x, &s.y, counts).unwrap();
    s.team.all_gather_v_blocking(&s.x, &s.y, Parts::new([0, 6, 0], [usize::MAX, 0, 99])).unwrap();
    s.team.all_gather_v_in_place_blocking(&s.x, Parts::new([6, 0, 0], [0, usize::MAX, 99])).unwrap();
    // Only the root uses parts. The parts of a scatter may overlap.
    s.team.gather_v_blocking(&s.x, &s.released, Parts::equal(7, 1), PEER).unwrap();
    s.team.scatter_v_in_place_blocking(&s.x, Parts::default(), PEER).unwrap();
    s.team.scatter_v_blocking(&s.x, &s.y.slice(..2).unwrap(), Parts::new([2, 2, 2], [0, 0, 1]), ROOT).unwrap();
}

#[test]
fn private_buffer_is_refused_if_the_backend_lacks_support() {
    let mut caps = Caps::new(1 << 16, 4, "nothing");
    caps.private_buffers = PrivateBuffers::Refused;
    let world = World::new(Noop::with_caps(0, 2, caps)).unwrap();
    let (team, x) = (world.team(), world.alloc_zeroed::<f32>(2).unwrap());
    let error = team.all_reduce_blocking(&x, &mut [0.0; 2], ReduceOp::Sum).unwrap_err();
    assert!(matches!(error, Error::Unsupported { call: "all_reduce_blocking", backend: "noop", .. }), "{error}");
    let (stream, buffer) = (world.stream().unwrap(), Buffer::zeroed(2));
    assert!(matches!(team.put(&stream, &buffer, &x, PEER), Err(Error::Unsupported { .. })));
    let y = world.alloc::<f32>(2).unwrap();
    team.all_reduce_blocking(&x, &y, ReduceOp::Sum).unwrap();
}

#[test]
fn out_of_memory_error_contains_the_available_bytes() {
    let noop = Noop::with_heap(0, 1, 8192);
    let world = World::new(noop.clone()).unwrap();
    let _x = world.alloc::<u8>(8000).unwrap();
    let error = world.alloc::<f64>(100).unwrap_err();
    assert_eq!(error.to_string(), "alloc: out of memory: 800 bytes requested, 192 available (the symmetric heap)");
    assert!(matches!(noop.take_calls()[..], [Call::Allocate(_), Call::Allocate(_)]));
}
