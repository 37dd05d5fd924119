//! Tests complex numbers as elements: all kinds of operations move complex numbers, and functions
//! multiply complex numbers. Sums and averages are computed separately for the real and the
//! imaginary part. Undefined reductions are refused.

use num_complex::Complex;
use peerweave::{
    MisuseKind, Number, Parts, Rank, ReduceFn, ReduceOp, Result, SingleElement, Strides, VectorCounts, World, on_threads,
};
use std::fmt::Debug;
use std::ops::Mul;
use std::sync::Arc;

/// A float type that represents the values of this test exactly.
trait Float: Copy + Send + Sync + PartialEq + Debug + 'static {
    fn of(value: i32) -> Self;
}

impl Float for f32 {
    fn of(value: i32) -> Self {
        value as f32
    }
}

impl Float for f64 {
    fn of(value: i32) -> Self {
        f64::from(value)
    }
}

/// Returns the input element of the rank `rank` at the index `index`.
fn given<F: Float>(rank: usize, index: usize) -> Complex<F> {
    Complex::new(F::of((7 * rank + index) as i32 % 50), F::of(-((rank * index) as i32 % 31)))
}

/// Returns the sum of the elements of the ranks below `ranks`, computed separately for the real and
/// the imaginary part.
fn sum<F: Float>(ranks: usize, index: usize) -> Complex<F> {
    let all = || (0..ranks).map(|rank| (((7 * rank + index) as i32) % 50, -((rank * index) as i32 % 31)));
    Complex::new(F::of(all().map(|(re, _)| re).sum()), F::of(all().map(|(_, im)| im).sum()))
}

fn moves<F: Float>(world: &World, count: usize) -> Result<()>
where
    Complex<F>: Number + SingleElement + Default + Mul<Output = Complex<F>>,
{
    let (team, n, stream) = (world.team(), world.n_pes(), world.stream()?);
    let me = team.my_rank().index();
    let (right, left) = (Rank::new(((me + 1) % n) as u32), (me + n - 1) % n);
    let mine: Vec<Complex<F>> = (0..count).map(|index| given(me, index)).collect();
    let everything: Vec<Complex<F>> = (0..n * count).map(|i| given(i / count, i % count)).collect();

    let mut all = vec![Complex::default(); n * count];
    team.all_gather_blocking(&mine, &mut all)?;
    assert_eq!(all, everything);
    all.fill(Complex::default());
    team.all_gather_v_blocking(&mine, &mut all, Arc::new(Parts::equal(n, count)))?;
    assert_eq!(all, everything);
    let mut exchanged = vec![Complex::default(); n * count];
    team.all_to_all_v_blocking(&all, &mut exchanged, VectorCounts::equal(n, count))?;
    assert!((0..n * count).all(|i| exchanged[i] == given(me, i % count)));
    let mut sparse = vec![Complex::default(); 2 * n * count];
    team.all_to_all_strided_blocking(&all, &mut sparse, Strides { count, source: 1, dest: 2 })?;
    assert!((0..n * count).all(|i| sparse[2 * i] == given(me, i % count) && sparse[2 * i + 1] == Complex::default()));

    let x = world.alloc_zeroed::<Complex<F>>(count)?;
    team.put_blocking(&mine, &x, right)?;
    team.barrier_blocking()?;
    assert_eq!(x.to_vec()?, (0..count).map(|index| given(left, index)).collect::<Vec<_>>());
    team.barrier_blocking()?;
    team.p_blocking(&x, 0, given(me, 99), right)?;
    team.barrier_blocking()?;
    assert_eq!((x.load(0)?, team.g_blocking(&x, 0, right)?), (given(left, 99), given(me, 99)));
    team.barrier_blocking()?;
    stream.fill(&x, given(3, 3))?.wait()?;
    assert!(x.to_vec()?.iter().all(|found| *found == given(3, 3)));
    x.release()
}

fn reduces<F: Float>(world: &World, count: usize) -> Result<()>
where
    Complex<F>: Number + SingleElement + Default + Mul<Output = Complex<F>>,
{
    let (team, n) = (world.team(), world.n_pes());
    let me = team.my_rank().index();
    let mine: Vec<Complex<F>> = (0..count).map(|index| given(me, index)).collect();
    let mut found = vec![Complex::default(); count];
    team.all_reduce_blocking(&mine, &mut found, ReduceOp::Sum)?;
    assert_eq!(found, (0..count).map(|index| sum(n, index)).collect::<Vec<_>>());
    team.scan_blocking(&mine, &mut found, ReduceOp::Sum)?;
    assert_eq!(found, (0..count).map(|index| sum(me + 1, index)).collect::<Vec<_>>());
    // The average of equal elements is exact.
    team.all_reduce_blocking(&vec![given::<F>(5, 2); count], &mut found, ReduceOp::Avg)?;
    assert!(found.iter().all(|found| *found == given(5, 2)));
    let mut part = [Complex::default()];
    team.reduce_scatter_blocking(&(0..n).map(|index| given::<F>(me, index)).collect::<Vec<_>>(), &mut part, ReduceOp::Sum)?;
    assert_eq!(part, [sum(n, me)]);
    // A product needs whole elements: i to the power of the number of ranks.
    let product = ReduceFn::new(|a: Complex<F>, b: Complex<F>| a * b);
    let (zero, one, mut power) = (F::of(0), F::of(1), [Complex::default()]);
    team.all_reduce_with_blocking(&[Complex::new(zero, one)], &mut power, &product)?;
    assert_eq!(power, [(1..n).fold(Complex::new(zero, one), |power, _| power * Complex::new(zero, one))]);
    for op in [ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Xor] {
        let error = team.all_reduce_blocking(&mine, &mut found, op).unwrap_err();
        let kind = error.misuse();
        assert!(matches!(kind, Some(MisuseKind::ElementReduction { .. } | MisuseKind::Reduction { .. })), "{op}: {error}");
    }
    Ok(())
}

fn of_type<F: Float>(world: &World) -> Result<()>
where
    Complex<F>: Number + SingleElement + Default + Mul<Output = Complex<F>>,
{
    for count in [1, 3, 40, 5000] {
        moves::<F>(world, count)?;
        reduces::<F>(world, count)?;
    }
    Ok(())
}

#[test]
fn complex_numbers_can_be_transferred_and_reduced() {
    for n_pes in [1, 2, 3] {
        let done = on_threads(n_pes, |world| {
            of_type::<f32>(&world)?;
            of_type::<f64>(&world)?;
            assert!(world.finalize()?.is_clean());
            Ok::<_, peerweave::Error>(())
        });
        done.expect("the shared memory is created").into_iter().collect::<Result<()>>().unwrap();
    }
}
