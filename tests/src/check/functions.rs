//! Reductions by a function of the caller, and strided all-to-alls, compared with elements that are
//! computed one by one.

use crate::data::sample::{Exact, hash, movable};
use peerweave::{Error, Parts, Rank, ReduceFn, ReduceOp, Strides, Team, World, f16};

/// The composition of two functions `x -> a * x + b`, each as `a << 32 | b`: associative, but not
/// commutative.
fn compose(f: u64, g: u64) -> u64 {
    let ([a, b], [c, d]) = ([(f >> 32) as u32, f as u32], [(g >> 32) as u32, g as u32]);
    u64::from(a.wrapping_mul(c)) << 32 | u64::from(c.wrapping_mul(b).wrapping_add(d))
}

/// Compares reductions by a function with results computed by applying the function in rank order.
///
/// # Panics
/// If a result differs.
pub fn in_rank_order(world: &World, team: &Team, counts: &[usize]) {
    let stream = world.stream().unwrap();
    let (n, me) = (team.size(), team.my_rank().index());
    let function = ReduceFn::new(compose);
    let value = |rank: usize, i: usize| hash(&[rank as u64, i as u64]);
    let first = |ranks: usize, i: usize| (1..ranks).fold(value(0, i), |all, rank| compose(all, value(rank, i)));
    for &count in counts {
        let expected = |ranks: usize| (0..count).map(|i| first(ranks, i)).collect::<Vec<u64>>();
        let mine: Vec<u64> = (0..count).map(|i| value(me, i)).collect();
        let [a, b] = [0; 2].map(|_| world.alloc_zeroed::<u64>(count).unwrap());
        a.copy_from(&mine).unwrap();
        let mut private = vec![0; count];
        team.all_reduce_with_blocking(&mine, &mut private, &function).unwrap();
        team.all_reduce_with(&stream, &a, &b, &function).unwrap().wait().unwrap();
        assert!(
            private == expected(n) && b.to_vec().unwrap() == expected(n),
            "all_reduce_with of {count} elements has a wrong result"
        );
        team.barrier_blocking().unwrap();
        team.scan_with_blocking(&mine, &mut private, &function).unwrap();
        team.scan_with(&stream, &a, &b, &function).unwrap().wait().unwrap();
        assert!(
            private == expected(me + 1) && b.to_vec().unwrap() == expected(me + 1),
            "scan_with of {count} elements has a wrong result"
        );
        private.fill(7);
        b.fill(7).unwrap();
        let before = if me == 0 { vec![7; count] } else { expected(me) };
        team.exclusive_scan_with_blocking(&mine, &mut private, &function).unwrap();
        team.exclusive_scan_with(&stream, &a, &b, &function).unwrap().wait().unwrap();
        assert!(private == before && b.to_vec().unwrap() == before, "exclusive_scan_with of {count} elements has a wrong result");
        let root = Rank::new(n as u32 - 1);
        private.fill(7);
        team.reduce_with_blocking(&a, &mut private, &function, root).unwrap();
        let reduced = if team.my_rank() == root { expected(n) } else { vec![7; count] };
        assert!(private == reduced, "reduce_with of {count} elements has a wrong result");
        a.release().unwrap();
        b.release().unwrap();
    }
    elements_of_several_values(team);
}

/// Checks elements of 6 bytes (3 values of 2 bytes), of which no part is a whole number of words.
/// Also checks sums, scans and gathered parts of pairs of floats.
fn elements_of_several_values(team: &Team) {
    let (n, me) = (team.size(), team.my_rank().index());
    let longest = ReduceFn::new(|a: [i16; 3], b: [i16; 3]| if b[0] > a[0] { b } else { a });
    let value = |rank: usize, i: usize| [hash(&[rank as u64, i as u64]) as i16, rank as i16, i as i16];
    let mine: Vec<[i16; 3]> = (0..333).map(|i| value(me, i)).collect();
    let mut found = vec![[0i16; 3]; mine.len()];
    team.all_reduce_with_blocking(&mine, &mut found, &longest).unwrap();
    for (i, found) in found.into_iter().enumerate() {
        let expected = (1..n).fold(value(0, i), |best, rank| if value(rank, i)[0] > best[0] { value(rank, i) } else { best });
        assert_eq!(found, expected, "element {i}");
    }
    let pair = |rank: usize, i: usize| [(rank + i % 50) as f32, -((rank * 3) as f32)];
    let sum = |ranks: usize, i: usize| (0..ranks).fold([0.0; 2], |[a, b], rank| [a + pair(rank, i)[0], b + pair(rank, i)[1]]);
    let pairs: Vec<[f32; 2]> = (0..77).map(|i| pair(me, i)).collect();
    let mut sums = vec![[0.0; 2]; 77];
    team.all_reduce_blocking(&pairs, &mut sums, ReduceOp::Sum).unwrap();
    assert_eq!(sums, (0..77).map(|i| sum(n, i)).collect::<Vec<_>>());
    team.scan_blocking(&pairs, &mut sums, ReduceOp::Sum).unwrap();
    assert_eq!(sums, (0..77).map(|i| sum(me + 1, i)).collect::<Vec<_>>());
    let mut all = vec![[0.0; 2]; n * 77];
    team.all_gather_v_blocking(&pairs, &mut all, Parts::equal(n, 77)).unwrap();
    assert_eq!(all, (0..n * 77).map(|i| pair(i / 77, i % 77)).collect::<Vec<_>>());
}

/// Checks that calls fail if one rank reduces by an operator and the others by a function.
///
/// # Panics
/// If the call of a rank does not return a mismatch.
pub fn another_call_is_noticed(team: &Team) {
    let (mine, mut sum) = ([3u64; 9], [0u64; 9]);
    let odd = if team.my_rank().index() == 0 {
        team.all_reduce_blocking(&mine, &mut sum, ReduceOp::Sum)
    } else {
        team.all_reduce_with_blocking(&mine, &mut sum, &ReduceFn::new(compose))
    };
    assert!(team.size() == 1 || matches!(odd, Err(Error::Mismatch(_))), "{odd:?}");
}

/// Compares strided all-to-alls with the expected elements.
///
/// # Panics
/// If an element is not in its place, or an element between the strided ones has changed.
pub fn strided(world: &World, team: &Team, counts: &[usize]) {
    strided_of::<u8>(world, team, counts);
    strided_of::<f16>(world, team, counts);
    strided_of::<f64>(world, team, counts);
}

fn strided_of<T: Exact>(world: &World, team: &Team, counts: &[usize]) {
    let stream = world.stream().unwrap();
    let (n, me) = (team.size(), team.my_rank().index());
    for &count in counts {
        // Strides may differ among ranks.
        for (source, dest) in [(1, 1), (2, 3), (1 + me, 4 - me.min(3))] {
            let strides = Strides { count, source, dest };
            let reach = |stride: usize| (n * count).checked_sub(1).map_or(0, |last| last * stride + 1);
            let mine: Vec<T> =
                (0..reach(source)).map(|i| movable(9, me, if i % source == 0 { i / source } else { 1 << 40 })).collect();
            let mut expected = vec![T::small(1); reach(dest) + 1];
            for i in 0..n * count {
                expected[i * dest] = movable(9, i / count, me * count + i % count);
            }
            let mut private = vec![T::small(1); expected.len()];
            team.all_to_all_strided_blocking(&mine, &mut private, strides).unwrap();
            let longest = n * count * n.max(4) + 1;
            let [a, b] = [0; 2].map(|_| world.alloc::<T>(longest).unwrap());
            a.slice(..mine.len()).unwrap().copy_from(&mine).unwrap();
            b.fill(T::small(1)).unwrap();
            team.all_to_all_strided(&stream, &a, &b, strides).unwrap().wait().unwrap();
            let symmetric = b.slice(..expected.len()).unwrap().to_vec().unwrap();
            let bits = |list: &[T]| list.iter().map(|x| x.bits()).collect::<Vec<_>>();
            assert!(bits(&private) == bits(&expected), "{} in private memory, {strides:?}: the result is wrong", T::DTYPE);
            assert!(bits(&symmetric) == bits(&expected), "{} in symmetric memory, {strides:?}: the result is wrong", T::DTYPE);
            a.release().unwrap();
            b.release().unwrap();
        }
    }
}
