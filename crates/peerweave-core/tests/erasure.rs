//! Checks the fields of the `Op` that each call passes to the backend.

use peerweave_core::backend::{
    Allocation, AtomicKind, Collective, CollectiveKind, Direction, Op, Place, Put, SplitCall, SplitPart, TeamId, Until, WaitMode,
};
use peerweave_core::noop::{Call, Noop};
use peerweave_core::{
    Buffer, Compare, DType, Parts, Pe, Rank, ReduceOp, Reduction, SignalOp, Stream, Strides, Symmetric, Team, TeamShape,
    VectorCounts, World, none,
};
use proptest::prelude::*;
use std::sync::Arc;

/// The handles of PE 1 of 4, and a team of PEs 3, 1 and 0, in which PE 1 has rank 1.
struct Scene {
    noop: Arc<Noop>,
    world: World,
    team: Team,
    stream: Stream,
    x: Symmetric<f32>,
    y: Symmetric<f32>,
}

const ME: Rank = Rank::new(1);
const ELSE: Rank = Rank::new(0);

impl Scene {
    fn new() -> Self {
        let noop = Noop::new(1, 4);
        let world = World::new(noop.clone()).unwrap();
        noop.next_split_gives([3, 1, 0]);
        let team = world.team().split(Some(7), 1).unwrap().unwrap();
        let (stream, x, y) = (world.stream().unwrap(), world.alloc(6).unwrap(), world.alloc(6).unwrap());
        noop.take_calls();
        Self { noop, world, team, stream, x, y }
    }

    /// Returns the only operation that the backend received: by `submit` if `submitted`, otherwise
    /// by `run`.
    fn op(&self, submitted: bool) -> Op {
        match (<[Call; 1]>::try_from(self.noop.take_calls()), submitted) {
            (Ok([Call::Run(op)]), false) | (Ok([Call::Submit(op)]), true) => op,
            (other, _) => panic!("the backend got {other:?}, expected one operation"),
        }
    }

    fn collective(&self, submitted: bool) -> Collective {
        match self.op(submitted) {
            Op::Collective(op) => op,
            other => panic!("expected a collective: {other:?}"),
        }
    }

    fn at(&self, buffer: &Symmetric<f32>, element: u64) -> Option<Place> {
        Some(Place::Symmetric(buffer.offset().plus(4 * element)))
    }
}

/// The fields that vary, in the order: kind, count, op, scalar, root, send, recv.
type Fields = (CollectiveKind, usize, ReduceOp, u64, Rank, Option<Place>, Option<Place>);

fn fields(op: Collective) -> Fields {
    assert_eq!((op.team, op.dtype, op.counts), (TeamId(1), DType::F32, None));
    (op.kind, op.count, op.op, op.scalar, op.root, op.send, op.recv)
}

#[test]
fn collective_call_becomes_an_op_with_count_and_addresses() {
    use CollectiveKind::*;
    use ReduceOp::{Max, Sum};
    let s = Scene::new();
    let (x, y, t, q) = (&s.x, &s.y, &s.team, &s.stream);
    let (at_x, at_y) = (s.at(x, 0), s.at(y, 0));
    let two = y.slice(..2).unwrap();
    let none_root = Rank::new(0);
    // Checks the operations that both forms of a call pass to the backend.
    macro_rules! both {
        ($(($stream:expr, $blocking:expr) => $expected:expr;)*) => {$(
            $stream.unwrap();
            assert_eq!(fields(s.collective(true)), $expected, "{}", stringify!($stream));
            $blocking.unwrap();
            assert_eq!(fields(s.collective(false)), $expected, "{}", stringify!($blocking));
        )*};
    }
    both! {
        (t.all_reduce(q, x, y, Max), t.all_reduce_blocking(x, y, Max)) => (AllReduce, 6, Max, 0, none_root, at_x, at_y);
        (t.all_reduce_in_place(q, x, Sum), t.all_reduce_in_place_blocking(x, Sum)) => (AllReduce, 6, Sum, 0, none_root, at_x, at_x);
        (t.all_reduce(q, x, y, Reduction::pre_mul_sum(2.0)), t.all_reduce_blocking(x, y, Reduction::pre_mul_sum(2.0)))
            => (AllReduce, 6, ReduceOp::PreMulSum, 0x4000_0000, none_root, at_x, at_y);
        (t.reduce(q, x, y, Sum, ME), t.reduce_blocking(x, y, Sum, ME)) => (Reduce, 6, Sum, 0, ME, at_x, at_y);
        (t.reduce(q, x, y, Sum, ELSE), t.reduce_blocking(x, none(), Sum, ELSE)) => (Reduce, 6, Sum, 0, ELSE, at_x, None);
        (t.reduce_in_place(q, x, Sum, ME), t.reduce_in_place_blocking(x, Sum, ME)) => (Reduce, 6, Sum, 0, ME, at_x, at_x);
        (t.reduce_in_place(q, x, Sum, ELSE), t.reduce_in_place_blocking(x, Sum, ELSE)) => (Reduce, 6, Sum, 0, ELSE, at_x, None);
        (t.broadcast(q, x, y, ME), t.broadcast_blocking(Some(x), y, ME)) => (Broadcast, 6, Sum, 0, ME, at_x, at_y);
        (t.broadcast(q, none(), y, ELSE), t.broadcast_blocking(x, y, ELSE)) => (Broadcast, 6, Sum, 0, ELSE, None, at_y);
        (t.broadcast_in_place(q, x, ME), t.broadcast_in_place_blocking(x, ME)) => (Broadcast, 6, Sum, 0, ME, at_x, at_x);
        (t.broadcast_in_place(q, x, ELSE), t.broadcast_in_place_blocking(x, ELSE)) => (Broadcast, 6, Sum, 0, ELSE, None, at_x);
        (t.all_gather(q, &two, x), t.all_gather_blocking(&two, x)) => (AllGather, 2, Sum, 0, none_root, at_y, at_x);
        (t.all_gather_in_place(q, x), t.all_gather_in_place_blocking(x)) => (AllGather, 2, Sum, 0, none_root, s.at(x, 2), at_x);
        (t.reduce_scatter(q, x, &two, Max), t.reduce_scatter_blocking(x, &two, Max)) => (ReduceScatter, 2, Max, 0, none_root, at_x, at_y);
        (t.reduce_scatter_in_place(q, x, Max), t.reduce_scatter_in_place_blocking(x, Max))
            => (ReduceScatter, 2, Max, 0, none_root, at_x, s.at(x, 2));
        (t.all_to_all(q, x, y), t.all_to_all_blocking(x, y)) => (AllToAll, 2, Sum, 0, none_root, at_x, at_y);
        (t.all_to_all_in_place(q, x), t.all_to_all_in_place_blocking(x)) => (AllToAll, 2, Sum, 0, none_root, at_x, at_x);
        (t.gather(q, &two, x, ME), t.gather_blocking(&two, x, ME)) => (Gather, 2, Sum, 0, ME, at_y, at_x);
        (t.gather(q, &two, x, ELSE), t.gather_blocking(&two, none(), ELSE)) => (Gather, 2, Sum, 0, ELSE, at_y, None);
        (t.gather_in_place(q, x, ME), t.gather_in_place_blocking(x, ME)) => (Gather, 2, Sum, 0, ME, s.at(x, 2), at_x);
        (t.gather_in_place(q, &two, ELSE), t.gather_in_place_blocking(&two, ELSE)) => (Gather, 2, Sum, 0, ELSE, at_y, None);
        (t.scatter(q, x, &two, ME), t.scatter_blocking(x, &two, ME)) => (Scatter, 2, Sum, 0, ME, at_x, at_y);
        (t.scatter(q, none(), &two, ELSE), t.scatter_blocking(none(), &two, ELSE)) => (Scatter, 2, Sum, 0, ELSE, None, at_y);
        (t.scatter_in_place(q, x, ME), t.scatter_in_place_blocking(x, ME)) => (Scatter, 2, Sum, 0, ME, at_x, s.at(x, 2));
        (t.scatter_in_place(q, &two, ELSE), t.scatter_in_place_blocking(&two, ELSE)) => (Scatter, 2, Sum, 0, ELSE, None, at_y);
    }
}

#[test]
fn barrier_and_sync_operations_contain_no_buffers() {
    let s = Scene::new();
    for (call, kind) in [
        (Team::barrier_blocking as fn(&Team) -> peerweave_core::Result<()>, CollectiveKind::Barrier),
        (Team::sync_blocking, CollectiveKind::Sync),
    ] {
        call(&s.team).unwrap();
        let op = s.collective(false);
        assert_eq!((op.kind, op.team, op.dtype, op.count, op.send, op.recv), (kind, TeamId(1), DType::U8, 0, None, None));
    }
}

#[test]
fn all_to_all_v_counts_reach_the_backend_without_a_copy() {
    let s = Scene::new();
    let counts = Arc::new(VectorCounts::packed([1, 2, 3], [0, 2, 4]));
    s.team.all_to_all_v_blocking(&s.x, &s.y, counts.clone()).unwrap();
    let op = s.collective(false);
    assert!(Arc::ptr_eq(op.counts.as_ref().unwrap(), &counts));
    assert_eq!((op.kind, op.count, op.send, op.recv), (CollectiveKind::AllToAllV, 0, s.at(&s.x, 0), s.at(&s.y, 0)));
    s.team.all_to_all_v_in_place(&s.stream, &s.x, VectorCounts::packed([1, 2, 3], [1, 2, 3])).unwrap();
    let op = s.collective(true);
    assert_eq!((op.send, op.recv), (s.at(&s.x, 0), s.at(&s.x, 0)));
}

#[test]
fn v_collectives_reach_the_backend_with_counts_and_offsets() {
    let s = Scene::new();
    let two = s.y.slice(..2).unwrap();
    let parts = Arc::new(Parts::new([1, 2, 3], [5, 3, 0]));
    let counts = |send: [usize; 3], send_at: [usize; 3], recv: [usize; 3], recv_at: [usize; 3]| {
        let [send_counts, send_offsets, recv_counts, recv_offsets] = [send, send_at, recv, recv_at].map(Vec::from);
        VectorCounts { send_counts, send_offsets, recv_counts, recv_offsets }
    };
    let is = |submitted, kind, count, send, recv, counts: VectorCounts| {
        let op = s.collective(submitted);
        assert_eq!((op.kind, op.count, op.dtype, op.send, op.recv), (kind, count, DType::F32, send, recv));
        assert_eq!(**op.counts.as_ref().unwrap(), counts);
    };
    let (all, at) = ([1, 2, 3], [5, 3, 0]);
    let (at_x, at_y) = (s.at(&s.x, 0), s.at(&s.y, 0));
    s.team.all_gather_v(&s.stream, &two, &s.x, parts.clone()).unwrap();
    is(true, CollectiveKind::AllGatherV, 6, at_y, at_x, counts([2; 3], [0; 3], all, at));
    s.team.all_gather_v_in_place_blocking(&s.x, parts.clone()).unwrap();
    is(false, CollectiveKind::AllGatherV, 6, s.at(&s.x, 3), at_x, counts([2; 3], [0; 3], all, at));
    s.team.gather_v_blocking(&two, &s.x, parts.clone(), ME).unwrap();
    is(false, CollectiveKind::GatherV, 0, at_y, at_x, counts([0, 2, 0], [0; 3], all, at));
    s.team.gather_v_in_place(&s.stream, &s.x, parts.clone(), ME).unwrap();
    is(true, CollectiveKind::GatherV, 0, s.at(&s.x, 3), at_x, counts([0, 2, 0], [0; 3], all, at));
    s.team.gather_v_blocking(&two, none(), Parts::default(), ELSE).unwrap();
    is(false, CollectiveKind::GatherV, 0, at_y, None, counts([2, 0, 0], [0; 3], [0; 3], [0; 3]));
    s.team.scatter_v_blocking(&s.x, &two, parts.clone(), ME).unwrap();
    is(false, CollectiveKind::ScatterV, 0, at_x, at_y, counts(all, at, [0, 2, 0], [0; 3]));
    s.team.scatter_v_in_place_blocking(&s.x, parts, ME).unwrap();
    is(false, CollectiveKind::ScatterV, 0, at_x, s.at(&s.x, 3), counts(all, at, [0, 2, 0], [0; 3]));
    s.team.scatter_v(&s.stream, none(), &two, Parts::default(), ELSE).unwrap();
    is(true, CollectiveKind::ScatterV, 0, None, at_y, counts([0; 3], [0; 3], [2, 0, 0], [0; 3]));
}

#[test]
fn ordinary_memory_is_passed_to_the_backend_by_address() {
    let s = Scene::new();
    let (send, mut recv) = (vec![0i8; 5], [0i8; 5]);
    s.team.all_reduce_blocking(&send, &mut recv, ReduceOp::Min).unwrap();
    let op = s.collective(false);
    assert_eq!(op.dtype, DType::I8);
    assert_eq!(op.send, Some(Place::Private(send.as_ptr().cast_mut().cast())));
    assert_eq!(op.recv, Some(Place::Private(recv.as_mut_ptr().cast())));
    let buffer = Buffer::from(vec![0.0f32; 8]);
    s.team.send(&s.stream, &buffer.slice(2..5).unwrap(), ELSE).unwrap();
    let Op::PointToPoint(op) = s.op(true) else { panic!("expected a send") };
    assert_eq!(op.at, Place::Private(buffer.as_ptr().wrapping_add(2).cast()));
    assert_eq!((op.direction, op.team, op.peer, op.dtype, op.count), (Direction::Send, TeamId(1), ELSE, DType::F32, 3));
}

#[test]
fn one_sided_operations_reach_the_backend_with_pe_and_offset() {
    let s = Scene::new();
    let word = s.world.alloc_zeroed::<u64>(3).unwrap();
    let signal = word.signal(2).unwrap();
    s.noop.take_calls();
    let peer = Rank::new(2); // PE 0
    s.team.put_signal_nbi_blocking(&s.x, &s.y, signal.add(5), peer).unwrap();
    let Op::Put(put) = s.op(false) else { panic!("expected a put") };
    assert_eq!((put.pe, put.target, Some(put.source)), (Pe::new(0), s.y.offset(), s.at(&s.x, 0)));
    assert_eq!((put.bytes, put.element_bytes, put.nbi), (24, 4, true));
    assert_eq!(put.signal, Some((word.offset().plus(16), 5, SignalOp::Add)));

    s.team.get(&s.stream, &s.x.slice(1..3).unwrap(), &s.y.slice(4..).unwrap(), peer).unwrap();
    let Op::Get(get) = s.op(true) else { panic!("expected a get") };
    assert_eq!((get.pe, get.source, Some(get.target)), (Pe::new(0), s.x.offset().plus(4), s.at(&s.y, 4)));
    assert_eq!((get.bytes, get.element_bytes, get.nbi), (8, 4, false));

    s.team.get_strided_blocking(&s.x, &s.y, Strides { count: 2, source: 5, dest: 3 }, peer).unwrap();
    let Op::Strided(op) = s.op(false) else { panic!("expected a strided transfer") };
    assert_eq!((op.direction, op.remote_stride, op.local_stride, op.count), (Direction::Receive, 5, 3, 2));
    s.team.put_strided_blocking(&s.x, &s.y, Strides { count: 2, source: 5, dest: 3 }, peer).unwrap();
    let Op::Strided(op) = s.op(false) else { panic!("expected a strided transfer") };
    assert_eq!((op.direction, op.remote_stride, op.local_stride), (Direction::Send, 3, 5));
    assert_eq!((op.remote, Some(op.local), op.element_bytes), (s.y.offset(), s.at(&s.x, 0), 4));

    s.team.p_blocking(&s.y, 5, 1.5, peer).unwrap();
    let Op::PutElement(put) = s.op(false) else { panic!("expected a put of one element") };
    assert_eq!((put.pe, put.target, put.element_bytes), (Pe::new(0), s.y.offset().plus(20), 4));
    assert_eq!(put.bits.to_ne_bytes()[..4], 1.5f32.to_ne_bytes());
    s.team.signal_blocking(signal.set(9), peer).unwrap();
    let Op::Signal(op) = s.op(false) else { panic!("expected a signal") };
    assert_eq!((op.pe, op.at, op.value, op.op), (Pe::new(0), word.offset().plus(16), 9, SignalOp::Set));
    s.world.fence(&s.stream).unwrap();
    assert!(matches!(s.op(true), Op::Fence));
    s.world.quiet_blocking().unwrap();
    assert!(matches!(s.op(false), Op::Quiet));
}

#[test]
fn wait_and_test_calls_read_the_words_of_this_pe() {
    let s = Scene::new();
    let words = s.world.alloc_zeroed::<u64>(4).unwrap();
    s.noop.take_calls();
    let wait = || match s.op(false) {
        Op::Wait(op) => (op.at, op.count, op.exclude.as_ref().map(|e| e.to_vec()), op.compare, op.value(0), op.until, op.mode),
        other => panic!("expected a wait: {other:?}"),
    };
    let (all, signal) = (words.offset(), words.signal(1).unwrap());
    s.team.wait_until_blocking(&signal, Compare::Le, 3).unwrap();
    assert_eq!(wait(), (all.plus(8), 1, None, Compare::Le, 3, Until::All, WaitMode::Wait));
    assert!(!s.team.test(&signal, Compare::Ne, 0).unwrap());
    assert_eq!(wait(), (all.plus(8), 1, None, Compare::Ne, 0, Until::All, WaitMode::Test));
    let exclude = [true, false, false, true];
    s.team.wait_until_all_blocking(&words, Some(&exclude), Compare::Eq, 0).unwrap();
    assert_eq!(wait(), (all, 4, Some(exclude.to_vec()), Compare::Eq, 0, Until::All, WaitMode::Wait));
    let any = s.team.wait_until_any_blocking(&words, Some(&exclude), Compare::Eq, 0).unwrap();
    assert!(matches!(any, Some(1 | 2)), "{any:?}");
    assert_eq!(wait().5, Until::Any);
    assert_eq!(s.team.wait_until_some_blocking(&words, Some(&exclude), Compare::Eq, 0).unwrap(), [1, 2]);
    assert_eq!(wait().5, Until::Some);
    assert_eq!(s.team.test_some(&words, None, Compare::Gt, 0).unwrap(), []);
    assert_eq!((wait().5, s.team.test_any(&words, None, Compare::Gt, 0).unwrap()), (Until::Some, None));
    s.noop.take_calls();
    // If every word is excluded, there is nothing to wait for.
    assert_eq!(s.team.wait_until_any_blocking(&words, Some(&[true; 4]), Compare::Gt, 0).unwrap(), None);
    assert!(s.team.test_all(&words, Some(&[true; 4]), Compare::Gt, 0).unwrap());
}

#[test]
fn atomic_operands_are_passed_to_the_backend_as_bits() {
    let s = Scene::new();
    let x = s.world.alloc_zeroed::<i32>(4).unwrap();
    let f = s.world.alloc_zeroed::<f64>(1).unwrap();
    s.noop.take_calls();
    let atomic = || match s.op(false) {
        Op::Atomic(op) => (op.at, op.dtype, op.kind, op.operand, op.compare),
        other => panic!("expected an atomic operation: {other:?}"),
    };
    let (at, t) = (x.offset().plus(12), &s.team);
    assert_eq!(t.atomic_compare_swap_blocking(&x, 3, 0, -1, ELSE).unwrap(), 0);
    assert_eq!(atomic(), (at, DType::I32, AtomicKind::CompareSwap, 0xffff_ffff, 0));
    assert_eq!(t.atomic_fetch_add_blocking(&x, 3, -2, ELSE).unwrap(), -1);
    assert_eq!(atomic(), (at, DType::I32, AtomicKind::FetchAdd, 0xffff_fffe, 0));
    t.atomic_inc_blocking(&x, 3, ELSE).unwrap();
    assert_eq!(atomic(), (at, DType::I32, AtomicKind::Inc, 0, 0));
    assert_eq!(t.atomic_fetch_and_blocking(&x, 3, 6, ELSE).unwrap(), -2);
    assert_eq!(atomic().2, AtomicKind::FetchAnd);
    assert_eq!(t.atomic_fetch_or_blocking(&x, 3, 1, ELSE).unwrap(), 6);
    assert_eq!(atomic().2, AtomicKind::FetchOr);
    assert_eq!(t.atomic_fetch_xor_blocking(&x, 3, 3, ELSE).unwrap(), 7);
    assert_eq!(atomic().2, AtomicKind::FetchXor);
    t.atomic_xor_blocking(&x, 3, 4, ELSE).unwrap();
    assert_eq!(atomic().2, AtomicKind::Xor);
    t.atomic_or_blocking(&x, 3, 8, ELSE).unwrap();
    assert_eq!(atomic().2, AtomicKind::Or);
    t.atomic_and_blocking(&x, 3, 8, ELSE).unwrap();
    assert_eq!(atomic().2, AtomicKind::And);
    t.atomic_add_blocking(&x, 3, 1, ELSE).unwrap();
    assert_eq!(atomic().2, AtomicKind::Add);
    assert_eq!(t.atomic_fetch_inc_blocking(&x, 3, ELSE).unwrap(), 9);
    assert_eq!(atomic().2, AtomicKind::FetchInc);
    assert_eq!(t.atomic_swap_blocking(&f, 0, 1.5, ELSE).unwrap(), 0.0);
    assert_eq!(atomic(), (f.offset(), DType::F64, AtomicKind::Swap, 1.5f64.to_bits(), 0));
    t.atomic_set_blocking(&f, 0, -2.5, ELSE).unwrap();
    assert_eq!(atomic().2, AtomicKind::Set);
    assert_eq!(t.atomic_fetch(&s.stream, &f, 0, ELSE).unwrap().wait().unwrap(), -2.5);
}

#[test]
fn group_reaches_the_backend_as_one_op_with_calls_in_order() {
    let s = Scene::new();
    let mut into = [0.0f32; 2];
    s.team
        .group_blocking(|g| {
            g.send(&s.x, ELSE)?;
            g.recv(&mut into, ELSE)?;
            g.all_reduce_in_place(&s.y, ReduceOp::Sum)?;
            g.barrier()
        })
        .unwrap();
    let Op::Group(ops) = s.op(false) else { panic!("expected a group") };
    let [Op::PointToPoint(send), Op::PointToPoint(receive), Op::Collective(all_reduce), Op::Collective(barrier)] = &ops[..]
    else {
        panic!("the group has other members: {ops:?}")
    };
    assert_eq!((send.direction, send.peer, send.count), (Direction::Send, ELSE, 6));
    assert_eq!((receive.direction, receive.peer, receive.count), (Direction::Receive, ELSE, 2));
    assert_eq!((all_reduce.kind, barrier.kind), (CollectiveKind::AllReduce, CollectiveKind::Barrier));
}

#[test]
fn group_enqueues_no_call_if_the_closure_returns_an_error() {
    let s = Scene::new();
    let wrong = s.team.group(&s.stream, |g| {
        g.send(&s.x, ME)?;
        g.send(&s.x, Rank::new(9))
    });
    assert!(wrong.is_err());
    assert!(s.noop.take_calls().is_empty());
}

#[test]
fn split_reaches_the_backend_with_color_and_key() {
    let s = Scene::new();
    let split = || match s.noop.take_calls()[..] {
        [Call::Split { parent, call, part }] => (parent, call, part.map(|SplitPart { color, key }| (color, key))),
        ref other => panic!("expected one split: {other:?}"),
    };
    assert!(s.team.split(None, 3).unwrap().is_none());
    assert_eq!(split(), (TeamId(1), SplitCall::Colors, None));
    // The shape `back` consists of ranks 2 and 1, so rank 1 has index 1.
    let [back, ends] = [(2, -1), (0, 2)].map(|(start, stride)| TeamShape { start, stride, size: 2 });
    s.team.split_strided(back).unwrap();
    assert_eq!(split(), (TeamId(1), SplitCall::Strided(back), Some((0, 1))));
    assert!(s.team.split_strided(ends).unwrap().is_none());
    assert_eq!(split(), (TeamId(1), SplitCall::Strided(ends), None));
    s.world.team().split_2d(3).unwrap();
    let parts: Vec<_> = s
        .noop
        .take_calls()
        .into_iter()
        .map(|call| match call {
            Call::Split { call: SplitCall::TwoD { x_range: 3, columns }, part: Some(part), .. } => {
                (columns, part.color, part.key)
            }
            other => panic!("expected a split in rows of three: {other:?}"),
        })
        .collect();
    // In rows of three, PE 1 is in row 0 and column 1.
    assert_eq!(parts, [(false, 0, 1), (true, 1, 0)]);
}

#[test]
fn rank_is_translated_between_teams() {
    let s = Scene::new();
    let (world, team) = (s.world.team(), &s.team);
    assert_eq!((team.size(), team.my_rank()), (3, ME));
    assert_eq!(team.members(), [Pe::new(3), Pe::new(1), Pe::new(0)]);
    assert_eq!(team.pe_of(Rank::new(2)).unwrap(), Pe::new(0));
    assert_eq!((team.rank_of(Pe::new(3)), team.rank_of(Pe::new(2)), team.rank_of(Pe::new(9))), (Some(ELSE), None, None));
    assert_eq!(team.translate(ELSE, world), Some(Rank::new(3)));
    assert_eq!(world.translate(Rank::new(2), team), None);
    assert_eq!(world.translate(Rank::new(4), team), None);
    assert_eq!(team.translate(ELSE, World::new(Noop::new(0, 4)).unwrap().team()), None);
}

#[test]
fn local_team_is_created_once_and_then_reused() {
    let s = Scene::new();
    assert_eq!(s.world.local_team().unwrap().size(), 4);
    assert_eq!(s.world.local_index(), 1);
    s.world.local_team().unwrap();
    assert!(matches!(
        s.noop.take_calls()[..],
        [Call::Split { parent: TeamId::WORLD, call: SplitCall::Local, part: Some(SplitPart { color: 0, key: 0 }) }]
    ));
}

#[test]
fn allocation_request_reaches_the_backend_in_bytes() {
    let s = Scene::new();
    s.world.alloc::<f64>(3).unwrap();
    s.world.alloc_zeroed::<u8>(0).unwrap();
    s.world.alloc_aligned::<i32>(2, 4096).unwrap();
    let asked: Vec<_> = s
        .noop
        .take_calls()
        .into_iter()
        .map(|call| match call {
            Call::Allocate(Allocation { bytes, dtype, align, zeroed }) => (bytes, dtype, align, zeroed),
            other => panic!("expected an allocation: {other:?}"),
        })
        .collect();
    assert_eq!(asked, [(24, DType::F64, 64, false), (0, DType::U8, 64, true), (8, DType::I32, 4096, false)]);
}

#[test]
fn world_returns_its_concrete_backend_and_the_backend_name() {
    let s = Scene::new();
    assert!(std::ptr::eq(s.world.backend::<Noop>().unwrap(), &*s.noop));
    assert_eq!(s.world.backend_name(), "noop");
}

proptest! {
    /// A put of any range to any rank covers exactly the bytes of the range, and copies these
    /// bytes.
    #[test]
    fn put_to_a_slice_writes_exactly_the_bytes_of_the_slice(start in 0usize..40, len in 0usize..40, from in 0usize..24, rank in 0u32..3) {
        let s = Scene::new();
        let all = s.world.alloc_zeroed::<i32>(80).unwrap();
        let source: Vec<i32> = (0..64).collect();
        let source = &source[from..from + len];
        let dest = all.slice(start..start + len).unwrap();
        s.noop.take_calls();
        s.team.put_blocking(source, &dest, Rank::new(rank)).unwrap();
        let Op::Put(Put { pe, target, source: Place::Private(at), bytes, .. }) = s.op(false) else { panic!("expected a put") };
        prop_assert_eq!(pe, [Pe::new(3), Pe::new(1), Pe::new(0)][rank as usize]);
        prop_assert_eq!(target, all.offset().plus(4 * start as u64));
        prop_assert_eq!((at.cast_const(), bytes), (source.as_ptr().cast(), 4 * len));
        let mut back = vec![-1; 80];
        s.team.get_blocking(&all, &mut back, Rank::new(rank)).unwrap();
        prop_assert_eq!(&back[start..start + len], source);
        prop_assert!(back[..start].iter().chain(&back[start + len..]).all(|&x| x == 0));
    }

    /// A range of a range names the same elements as a slice of a slice. If the slice is out of
    /// bounds, the range is an error.
    #[test]
    fn nested_slices_contain_the_same_elements_as_rust_slices(a in 0usize..20, b in 0usize..20, c in 0usize..20, d in 0usize..20) {
        let world = World::new(Noop::new(0, 1)).unwrap();
        let x = world.alloc_zeroed::<u8>(16).unwrap();
        x.copy_from(&std::array::from_fn::<u8, 16, _>(|i| i as u8)).unwrap();
        let naive: Vec<u8> = (0..16).collect();
        let expected = naive.get(a..b).and_then(|outer| outer.get(c..d));
        let found = x.slice(a..b).and_then(|outer| outer.slice(c..d));
        match expected {
            Some(expected) => prop_assert_eq!(found.unwrap().to_vec().unwrap(), expected),
            None => prop_assert!(found.is_err()),
        }
    }

    /// `chunks` divides a buffer as `slice::chunks` divides a slice.
    #[test]
    fn symmetric_memory_is_divided_into_the_same_chunks_as_a_slice(len in 0usize..50, chunk in 1usize..60) {
        let world = World::new(Noop::new(0, 1)).unwrap();
        let x = world.alloc_zeroed::<u8>(len).unwrap();
        let naive: Vec<u8> = (0..len as u8).collect();
        x.copy_from(&naive).unwrap();
        let found: Vec<Vec<u8>> = x.chunks(chunk).unwrap().map(|part| part.to_vec().unwrap()).collect();
        prop_assert_eq!(found, naive.chunks(chunk).map(<[u8]>::to_vec).collect::<Vec<_>>());
    }

    /// The overlap check of groups agrees with a comparison of every pair.
    #[test]
    fn overlapping_buffers_in_a_group_are_refused(parts in proptest::collection::vec((0usize..30, 0usize..5, any::<bool>()), 0..7)) {
        let s = Scene::new();
        let x = s.world.alloc_zeroed::<u8>(40).unwrap();
        let overlap = |a: &(usize, usize, bool), b: &(usize, usize, bool)| (a.2 || b.2) && a.0.max(b.0) < (a.0 + a.1).min(b.0 + b.1);
        let naive = (0..parts.len()).any(|i| (0..i).any(|j| overlap(&parts[i], &parts[j])));
        let found = s.team.group(&s.stream, |g| {
            parts.iter().try_for_each(|&(start, len, written)| {
                let part = x.slice(start..start + len)?;
                if written { g.recv(&part, ELSE) } else { g.send(&part, ELSE) }
            })
        });
        prop_assert_eq!(found.is_err(), naive);
    }
}
