//! Fits a logistic regression to points that are divided among the PEs: one all-reduce per step.
#![forbid(unsafe_code)]

use peerweave::{Error, Rank, ReduceOp, World};
use peerweave_examples::{SplitMix64, share};

/// Number of points of all PEs.
const POINTS: usize = 4000;
/// Number of coordinates of a point.
const SIZE: usize = 6;
/// The weights by which the points were labelled.
const TRUTH: [f64; SIZE] = [2.0, -1.0, 0.5, 3.0, -2.0, 0.25];
/// Number of steps.
const STEPS: usize = 300;
/// Learning rate.
const RATE: f64 = 4.0;

fn dot(a: &[f64; SIZE], b: &[f64; SIZE]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Returns a point with coordinates from -1 to 1, and its label. Both are the same on every PE.
fn point(index: usize) -> ([f64; SIZE], bool) {
    let mut random = SplitMix64::new(index as u64);
    let x = std::array::from_fn(|_| (random.next_u64() >> 11) as f64 / (1u64 << 52) as f64 - 1.0);
    (x, dot(&TRUTH, &x) > 0.0)
}

fn main() -> Result<(), Error> {
    let world = World::from_env()?;
    let team = world.team();
    let (me, n) = (team.my_rank().index(), team.size());
    let points: Vec<_> = share(POINTS, me, n).map(point).collect();

    let mut weights = [0.0; SIZE];
    for step in 1..=STEPS {
        // The sums that every PE needs: the gradient, the loss, and the number of correct labels.
        let mut sums = [0.0; SIZE + 2];
        for (x, is_positive) in &points {
            let (score, label) = (dot(&weights, x), f64::from(*is_positive));
            let probability = 1.0 / (1.0 + (-score).exp());
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum += (probability - label) * x;
            }
            sums[SIZE] -= if *is_positive { probability.ln() } else { (-probability).ln_1p() };
            sums[SIZE + 1] += f64::from((score > 0.0) == *is_positive);
        }
        team.all_reduce_in_place_blocking(&mut sums, ReduceOp::Sum)?;
        for (weight, sum) in weights.iter_mut().zip(&sums) {
            *weight -= RATE * sum / POINTS as f64;
        }
        if me == 0 && step % 100 == 0 {
            println!("step {step}: loss {:.6}, {} of {POINTS} right", sums[SIZE] / POINTS as f64, sums[SIZE + 1]);
        }
    }

    // The all-reduce returns the same bits everywhere, so the weights are those of rank 0.
    let mut first = weights;
    team.broadcast_in_place_blocking(&mut first, Rank::new(0))?;
    assert_eq!(first, weights, "the weights of this PE differ from those of rank 0");
    let cosine = dot(&weights, &TRUTH) / (dot(&weights, &weights) * dot(&TRUTH, &TRUTH)).sqrt();
    assert!(cosine > 0.999, "weights and TRUTH differ in direction: cosine {cosine}, expected more than 0.999");

    assert!(world.finalize()?.is_clean());
    Ok(())
}
