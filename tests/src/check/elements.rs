//! Checks element types that consist of several values: every operation that moves them, reductions
//! of their values, and calls that must be refused.
//!
//! Public functions are `inline`, so that only the tests that call them compile them for all types.

use crate::data::sample::hash;
use num_complex::Complex;
use peerweave::{
    Bool, Buffer, Compare, Element, MisuseKind, Number, Parts, Rank, ReduceFn, ReduceOp, Stream, Strides, Symmetric, Team,
    VectorCounts, World,
};

/// A struct with fields of several types, of 32 bytes.
#[derive(Clone, Copy, PartialEq, Debug, Element)]
#[repr(C)]
struct Particle {
    position: [f64; 3],
    charge: f32,
    kind: u16,
    flags: [Bool; 2],
}

/// A struct that can be reduced.
#[derive(Clone, Copy, PartialEq, Debug, Element)]
#[element(reduce)]
#[repr(C)]
struct Moments {
    count: i32,
    sums: [i32; 2],
}

/// An element of three bytes, which is not the size of a machine word.
#[derive(Clone, Copy, PartialEq, Debug, Element)]
#[repr(transparent)]
struct Color([u8; 3]);

/// An element type whose values are made from numbers.
trait Make: Element {
    fn make(number: u64) -> Self;
}

macro_rules! make {
    ($($t:ty: $number:ident => $value:expr;)*) => {$(
        impl Make for $t {
            fn make($number: u64) -> Self {
                $value
            }
        }
    )*};
}

make! {
    u16: x => x as u16;
    usize: x => x as usize;
    isize: x => x as isize;
    Complex<f32>: x => Complex::new(x as f32, -0.5);
    Complex<f64>: x => Complex::new(0.25, x as f64);
    u128: x => u128::from(x) << 64 | u128::from(!x);
    i128: x => i128::from(x) * -3;
    Bool: x => (x & 1 == 1).into();
    [f32; 3]: x => [x as f32, 0.5, -(x as f32)];
    [[u16; 2]; 5]: x => [[x as u16, 7]; 5];
    [f32; 2]: x => [x as f32, 1.0];
    Color: x => Color([x as u8, (x >> 8) as u8, 9]);
    Moments: x => Moments { count: x as i32, sums: [-(x as i32), 3] };
    Particle: x => Particle { position: [x as f64; 3], charge: 0.25, kind: x as u16, flags: [Bool::TRUE, (x & 2 == 2).into()] };
}

/// Returns the element of `rank` at `index`.
fn value<T: Make>(seed: u64, rank: usize, index: usize) -> T {
    T::make(hash(&[seed, rank as u64, index as u64]) & 0xffff)
}

fn values<T: Make>(seed: u64, rank: usize, count: usize) -> Vec<T> {
    (0..count).map(|index| value(seed, rank, index)).collect()
}

/// Calls a check with each of the types.
macro_rules! of_every_type {
    ($check:ident($($argument:expr),*)) => {
        $check::<u16>($($argument),*);
        $check::<usize>($($argument),*);
        $check::<isize>($($argument),*);
        $check::<u128>($($argument),*);
        $check::<i128>($($argument),*);
        $check::<Bool>($($argument),*);
        $check::<Complex<f32>>($($argument),*);
        $check::<Complex<f64>>($($argument),*);
        $check::<[f32; 3]>($($argument),*);
        $check::<[[u16; 2]; 5]>($($argument),*);
        $check::<[f32; 2]>($($argument),*);
        $check::<Color>($($argument),*);
        $check::<Moments>($($argument),*);
        $check::<Particle>($($argument),*);
    };
}

/// Checks puts, gets, single elements and strides of every type, with buffers of these lengths.
/// `team` has all PEs.
///
/// # Panics
/// If a result is wrong.
#[inline]
pub fn move_one_sided(world: &World, team: &Team, counts: &[usize]) {
    for &count in counts {
        of_every_type!(one_sided(world, team, count));
    }
}

/// Checks the collectives that move data, with every type and these numbers of elements. `team` has
/// all PEs.
///
/// # Panics
/// If a result is wrong.
#[inline]
pub fn move_by_collectives(world: &World, team: &Team, counts: &[usize]) {
    for &count in counts {
        of_every_type!(collectives(world, team, count));
    }
}

fn one_sided<T: Make>(world: &World, team: &Team, count: usize) {
    let (n, me) = (team.size(), team.my_rank().index());
    let right = Rank::new(((me + 1) % n) as u32);
    let left = (me + n - 1) % n;
    let stream = world.stream().unwrap();
    let (x, words) = (world.alloc_zeroed::<T>(count).unwrap(), world.alloc_zeroed::<u64>(1).unwrap());
    assert!(x.to_vec().unwrap().iter().all(|&found| found == T::zeroed()));
    team.barrier_blocking().unwrap();
    let mine = values::<T>(1, me, count);
    team.put_signal_blocking(&mine, &x, words.signal(0).unwrap().set(1), right).unwrap();
    team.wait_until_blocking(&words.signal(0).unwrap(), Compare::Eq, 1).unwrap();
    assert_eq!(x.to_vec().unwrap(), values::<T>(1, left, count));
    team.barrier_blocking().unwrap();
    let mut back = vec![T::zeroed(); count];
    team.get_blocking(&x, &mut back, right).unwrap();
    assert_eq!(back, mine);
    team.barrier_blocking().unwrap();

    // Single elements, on the calling thread and in a stream.
    let last = count - 1;
    team.p_blocking(&x, last, value(2, me, last), right).unwrap();
    team.barrier_blocking().unwrap();
    assert_eq!((x.load(last).unwrap(), team.g_blocking(&x, last, right).unwrap()), (value(2, left, last), value(2, me, last)));
    team.barrier_blocking().unwrap();
    team.p(&stream, &x, 0, value(3, me, 0), right).unwrap();
    team.barrier(&stream).unwrap().wait().unwrap();
    assert_eq!(x.load(0).unwrap(), value(3, left, 0));
    assert_eq!(team.g(&stream, &x, 0, right).unwrap().wait().unwrap(), value(3, me, 0));
    team.barrier_blocking().unwrap();

    // Elements at strides.
    if count > 2 {
        let strides = Strides { count: count / 3, source: 2, dest: 3 };
        x.fill(value(4, me, 0)).unwrap();
        team.barrier_blocking().unwrap();
        team.put_strided_blocking(&mine, &x, strides, right).unwrap();
        team.barrier_blocking().unwrap();
        for (i, found) in x.to_vec().unwrap().into_iter().enumerate() {
            let is_put = i.is_multiple_of(3) && i / 3 < strides.count;
            assert_eq!(found, if is_put { value(1, left, i / 3 * 2) } else { value(4, me, 0) }, "element {i}");
        }
        let mut sparse = vec![T::zeroed(); count];
        team.get_strided_blocking(&x, &mut sparse, Strides { count: count / 3, source: 3, dest: 2 }, right).unwrap();
        assert!((0..count / 3).all(|i| sparse[2 * i] == mine[2 * i]));
        team.barrier_blocking().unwrap();
    }
    stream.fill(&x, value(5, me, 1)).unwrap().wait().unwrap();
    assert!(x.to_vec().unwrap().iter().all(|&found| found == value(5, me, 1)));
    fill_ranges(&stream, &x, [value(5, me, 1), value(7, me, 1)]);
    x.store(last, value(6, me, 0)).unwrap();
    assert_eq!(x.load(last).unwrap(), value(6, me, 0));
    x.release().unwrap();
    words.release().unwrap();
}

/// Fills ranges at many positions, and checks that only their elements change. All elements of `x`
/// have the first of the two values.
fn fill_ranges<T: Make>(stream: &Stream, x: &Symmetric<T>, [before, filled]: [T; 2]) {
    let count = x.len();
    for start in 0..count.min(9) {
        for end in [start + 1, start + 6, start + 35, count - start / 2].map(|end| end.clamp(start, count)) {
            let range = x.slice(start..end).unwrap();
            stream.fill(&range, filled).unwrap();
            stream.synchronize().unwrap();
            for (i, found) in x.to_vec().unwrap().into_iter().enumerate() {
                assert_eq!(found, if (start..end).contains(&i) { filled } else { before }, "element {i} of {count}");
            }
            stream.fill(&range, before).unwrap().wait().unwrap();
        }
    }
}

fn collectives<T: Make>(world: &World, team: &Team, count: usize) {
    let (n, me) = (team.size(), team.my_rank().index());
    let root = Rank::new(n as u32 - 1);
    let mine = values::<T>(10, me, count);
    let everything: Vec<T> = (0..n).flat_map(|rank| values(10, rank, count)).collect();
    let stream = world.stream().unwrap();

    let mut all = vec![T::zeroed(); n * count];
    team.all_gather_blocking(&mine, &mut all).unwrap();
    assert_eq!(all, everything);
    let symmetric: Symmetric<T> = world.alloc(n * count).unwrap();
    symmetric.slice(me * count..(me + 1) * count).unwrap().copy_from(&mine).unwrap();
    team.all_gather_in_place(&stream, &symmetric).unwrap().wait().unwrap();
    assert_eq!(symmetric.to_vec().unwrap(), everything);

    let mut part = mine.clone();
    team.broadcast_in_place_blocking(&mut part, root).unwrap();
    assert_eq!(part, values::<T>(10, n - 1, count));

    // Each rank sends part `to` to rank `to`, and gets one part from every rank.
    let sent: Vec<T> = (0..n).flat_map(|to| values(20 + to as u64, me, count)).collect();
    let due: Vec<T> = (0..n).flat_map(|from| values(20 + me as u64, from, count)).collect();
    team.all_to_all_blocking(&sent, &mut all).unwrap();
    assert_eq!(all, due);
    let counts = VectorCounts::packed(vec![count; n], vec![count; n]);
    let (from, to) = (Buffer::from(sent.clone()), Buffer::zeroed(n * count));
    team.all_to_all_v(&stream, &from, &to, counts).unwrap().wait().unwrap();
    assert_eq!(to.to_vec(), due);
    // Rank r sends r + 1 elements to each rank; an empty part may have any offset.
    let mut counts = VectorCounts::packed(vec![(me + 1).min(count); n], (0..n).map(|r| (r + 1).min(count)).collect::<Vec<_>>());
    if n > 1 {
        // This rank sends nothing to itself.
        (counts.send_counts[me], counts.recv_counts[me]) = (0, 0);
        (counts.send_offsets[me], counts.recv_offsets[me]) = (usize::MAX, usize::MAX);
    }
    let mut ragged = vec![T::zeroed(); n * count];
    team.all_to_all_v_blocking(&sent, &mut ragged, counts.clone()).unwrap();
    for from in (0..n).filter(|&from| n == 1 || from != me) {
        let at = counts.recv_offsets[from];
        let length = counts.recv_counts[from];
        // The parts of the sender lie one after the other, each as long as `length`.
        let theirs: Vec<T> = (0..n).flat_map(|to| values(20 + to as u64, from, count)).collect();
        assert_eq!(ragged[at..at + length], theirs[me * length..(me + 1) * length], "part from rank {from}");
    }

    let is_root = team.my_rank() == root;
    let mut gathered = vec![T::zeroed(); n * count];
    team.gather_blocking(&mine, is_root.then_some(&mut gathered), root).unwrap();
    assert!(!is_root || gathered == everything);
    let mut scattered = vec![T::zeroed(); count];
    team.scatter_blocking(is_root.then_some(&everything), &mut scattered, root).unwrap();
    assert_eq!(scattered, mine);

    let (right, left) = ((me + 1) % n, (me + n - 1) % n);
    let mut received = vec![T::zeroed(); count];
    team.group_blocking(|group| {
        group.send(&mine, Rank::new(right as u32))?;
        group.recv(&mut received, Rank::new(left as u32))
    })
    .unwrap();
    assert_eq!(received, values::<T>(10, left, count));
    symmetric.release().unwrap();
}

/// Checks that reductions of elements equal reductions of their values. Also checks atomics on
/// words of the size of an address. `team` has all PEs.
///
/// # Panics
/// If a result is wrong.
#[inline]
pub fn reduce(world: &World, team: &Team, counts: &[usize]) {
    let (n, me) = (team.size(), team.my_rank().index());
    for &count in counts {
        // The result has the same bits as a reduction of the values.
        let nested: Vec<[i16; 3]> = (0..count).map(|i| [0, 1, 2].map(|j| hash(&[me as u64, i as u64, j]) as i16)).collect();
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg, ReduceOp::And, ReduceOp::Xor] {
            let mut expected: Vec<i16> = nested.iter().flatten().copied().collect();
            team.all_reduce_in_place_blocking(&mut expected, op).unwrap();
            let mut found = vec![[0; 3]; count];
            team.all_reduce_blocking(&nested, &mut found, op).unwrap();
            assert_eq!(found.iter().flatten().copied().collect::<Vec<_>>(), expected, "{op} of {count}");
        }
        let moments: Vec<Moments> = (0..n * count).map(|i| Moments { count: 1, sums: [i as i32, -(me as i32)] }).collect();
        let mut part = vec![Moments::zeroed(); count];
        team.reduce_scatter_blocking(&moments, &mut part, ReduceOp::Sum).unwrap();
        for (i, found) in part.iter().enumerate() {
            let (ranks, index) = (n as i32, (me * count + i) as i32);
            assert_eq!(*found, Moments { count: ranks, sums: [ranks * index, -(ranks * (ranks - 1) / 2)] });
        }
        let mut largest = vec![Moments::zeroed(); count];
        let root = Rank::new(0);
        team.reduce_blocking(&moments[..count], Some(&mut largest), ReduceOp::Max, root).unwrap();
        assert!(me > 0 || largest[count - 1] == Moments { count: 1, sums: [count as i32 - 1, 0] });
        let mut wide = vec![1u128 << (64 + me) | 1; count];
        team.all_reduce_in_place_blocking(&mut wide, ReduceOp::Or).unwrap();
        assert!(wide.iter().all(|&found| found == ((1u128 << n) - 1) << 64 | 1));
        let mut sizes = vec![me; count];
        team.all_reduce_in_place_blocking(&mut sizes, ReduceOp::Sum).unwrap();
        assert!(sizes.iter().all(|&found| found == n * (n - 1) / 2));
    }
    for (op, expected) in [(ReduceOp::And, n == 1), (ReduceOp::Min, n == 1), (ReduceOp::Or, true), (ReduceOp::Max, true)] {
        let mut one = Bool::from(me == 0);
        team.all_reduce_in_place_blocking(&mut one, op).unwrap();
        assert_eq!(one, expected, "{op}");
    }
    // Atomics on words of the size of an address.
    let counter = world.alloc_zeroed::<usize>(1).unwrap();
    team.atomic_add_blocking(&counter, 0, me + 1, Rank::new(0)).unwrap();
    team.barrier_blocking().unwrap();
    assert_eq!(team.atomic_fetch_blocking(&counter, 0, Rank::new(0)).unwrap(), n * (n + 1) / 2);
    team.barrier_blocking().unwrap();
    counter.release().unwrap();
}

/// The largest value so far, with its rank and index.
#[derive(Clone, Copy, PartialEq, Debug, Element)]
#[repr(C)]
struct Largest {
    value: u32,
    rank: u32,
    index: u32,
}

/// Checks reductions by a function of whole elements, strided all-to-alls, and gathered parts of
/// different lengths. `team` has all PEs.
///
/// # Panics
/// If a result is wrong.
#[inline]
pub fn combine_and_stride(world: &World, team: &Team, counts: &[usize]) {
    let (n, me) = (team.size(), team.my_rank().index());
    let larger = ReduceFn::new(|a: Largest, b: Largest| if b.value > a.value { b } else { a });
    let of = |rank: usize, index: usize| Largest {
        value: hash(&[3, rank as u64, index as u64]) as u32,
        rank: rank as u32,
        index: index as u32,
    };
    let best = |ranks: usize, index| (0..ranks).map(|rank| of(rank, index)).max_by_key(|found| found.value).unwrap();
    for &count in counts {
        let mine: Vec<Largest> = (0..count).map(|index| of(me, index)).collect();
        let expected: Vec<Largest> = (0..count).map(|index| best(n, index)).collect();
        let mut found = vec![Largest::zeroed(); count];
        team.all_reduce_with_blocking(&mine, &mut found, &larger).unwrap();
        assert_eq!(found, expected, "all_reduce_with of {count} elements");
        let (x, y) = (world.alloc::<Largest>(count).unwrap(), world.alloc::<Largest>(count).unwrap());
        x.copy_from(&mine).unwrap();
        team.all_reduce_with_blocking(&x, &y, &larger).unwrap();
        assert_eq!(y.to_vec().unwrap(), expected, "all_reduce_with of {count} elements of symmetric memory");
        team.scan_with_blocking(&mine, &mut found, &larger).unwrap();
        assert!((0..count).all(|index| found[index] == best(me + 1, index)), "scan_with of {count} elements has a wrong result");
        let root = Rank::new(n as u32 - 1);
        let is_root = team.my_rank() == root;
        team.reduce_with_blocking(&mine, is_root.then_some(&mut found), &larger, root).unwrap();
        assert!(!is_root || found == expected, "reduce_with of {count} elements has a wrong result");
        team.barrier_blocking().unwrap();
        x.release().unwrap();
        y.release().unwrap();

        // Every second element is stored at every third place.
        let sent: Vec<Color> = (0..2 * n * count).map(|i| Color([me as u8, i as u8, (i >> 8) as u8])).collect();
        let mut received = vec![Color::zeroed(); 3 * n * count];
        team.all_to_all_strided_blocking(&sent, &mut received, Strides { count, source: 2, dest: 3 }).unwrap();
        for (place, found) in received.iter().enumerate() {
            let (element, at) = (place / 3, 2 * (me * count + place / 3 % count));
            let expected = Color([(element / count) as u8, at as u8, (at >> 8) as u8]);
            assert_eq!(*found, if place % 3 == 0 { expected } else { Color::zeroed() }, "place {place}");
        }

        // Rank r has r + 1 elements.
        let parts = Parts::packed((1..=n).collect::<Vec<_>>());
        let mut all = vec![Largest::zeroed(); parts.end()];
        let own: Vec<Largest> = (0..=me).map(|index| of(me, index)).collect();
        team.all_gather_v_blocking(&own, &mut all, parts.clone()).unwrap();
        for rank in 0..n {
            let theirs: Vec<Largest> = (0..=rank).map(|index| of(rank, index)).collect();
            assert_eq!(all[parts.range(Rank::new(rank as u32))], theirs);
        }
    }
    let wide = ReduceFn::new(|a: [u64; 65], _| a);
    let error = team.all_reduce_with_blocking(&[[0; 65]; 2], &mut [[0; 65]; 2], &wide).unwrap_err();
    assert!(error.to_string().contains("a type of 520 bytes, expected a type of at most 512 bytes"), "{error}");
}

/// Checks that wrong use of composed elements is refused.
///
/// # Panics
/// If a call is not refused.
#[inline]
pub fn refuse(world: &World) {
    fn refused<T: Number>(team: &Team, op: ReduceOp) -> MisuseKind {
        let error = team.all_reduce_in_place_blocking(&mut [T::zeroed(); 2][..], op).unwrap_err();
        error.misuse().unwrap_or_else(|| panic!("{error}")).clone()
    }
    let team = world.team();
    let of_values = refused::<[f32; 3]>(team, ReduceOp::Or);
    assert!(matches!(of_values, MisuseKind::Reduction { op: ReduceOp::Or, .. }), "{of_values:?}");
    for (found, op, name) in [
        (refused::<Bool>(team, ReduceOp::Sum), ReduceOp::Sum, "Bool"),
        (refused::<u128>(team, ReduceOp::Max), ReduceOp::Max, "u128"),
        (refused::<Moments>(team, ReduceOp::PreMulSum), ReduceOp::PreMulSum, "Moments"),
    ] {
        let MisuseKind::ElementReduction { op: of, element } = found else { panic!("{found:?}") };
        assert!(of == op && element.ends_with(name), "the error is about {of} of {element}, expected {op} of {name}");
    }
    let too_many = world.alloc::<[u64; 1000]>(usize::MAX / 1000).unwrap_err();
    assert!(matches!(too_many.misuse(), Some(MisuseKind::Value { argument: "count", .. })), "{too_many}");
    let x = world.alloc_zeroed::<[f32; 3]>(4).unwrap();
    let error = team.put_blocking(&[[0.0; 3]; 5], &x, team.my_rank()).unwrap_err();
    assert!(matches!(error.misuse(), Some(MisuseKind::Length { found: 5, expected: 4, .. })), "{error}");
    let error = team.p_blocking(&x, 4, [0.0; 3], team.my_rank()).unwrap_err();
    assert!(matches!(error.misuse(), Some(MisuseKind::Index { found: 4, len: 4, .. })), "{error}");
    let error = team.g_blocking(&x, 4, team.my_rank()).unwrap_err();
    assert!(matches!(error.misuse(), Some(MisuseKind::Index { found: 4, len: 4, .. })), "{error}");
    let error = team.all_gather_blocking(&[[0.0; 3]; 4], &mut vec![[0.0; 3]; 4 * team.size() + 1]).unwrap_err();
    assert!(matches!(error.misuse(), Some(MisuseKind::Length { .. })), "{error}");
    // The strides of a copy of one element are ignored.
    let one = Strides { count: 1, source: usize::MAX, dest: usize::MAX };
    team.put_strided_blocking(&[[1.0; 3]], &x, one, team.my_rank()).unwrap();
    assert_eq!(x.load(0).unwrap(), [1.0; 3]);
    team.barrier_blocking().unwrap();
    x.release().unwrap();
}
