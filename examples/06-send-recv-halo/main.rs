//! Computes the flow of heat in a rod that is divided among the PEs: before every step,
//! neighbouring PEs exchange the cells at their borders.
#![forbid(unsafe_code)]

use peerweave::{Error, Rank, World};
use peerweave_examples::share;

/// Number of cells of the rod.
const CELLS: usize = 100;
/// Number of time steps.
const STEPS: usize = 2000;

/// Returns the initial temperature of a cell: hot in the first quarter of the rod, cold elsewhere.
fn start(cell: usize) -> f64 {
    if cell < CELLS / 4 { 100.0 } else { 0.0 }
}

/// Computes one step of the heat equation. `cells` has one additional cell on each side: the
/// neighbour's border cell, or a copy of the last cell at an end of the rod.
fn step(cells: &[f64]) -> Vec<f64> {
    cells.windows(3).map(|near| near[1] + 0.25 * (near[0] - 2.0 * near[1] + near[2])).collect()
}

/// Computes the whole rod after all steps, on one PE.
fn serial() -> Vec<f64> {
    let mut rod: Vec<f64> = (0..CELLS).map(start).collect();
    for _ in 0..STEPS {
        let padded = [&rod[..1], &rod, &rod[CELLS - 1..]].concat();
        rod = step(&padded);
    }
    rod
}

fn main() -> Result<(), Error> {
    let world = World::from_env()?;
    let team = world.team();
    let (me, n) = (team.my_rank().index(), team.size());
    let mine = share(CELLS, me, n);
    assert!(!mine.is_empty(), "the job has {n} PEs, expected at most {CELLS} (one for each cell)");
    let left = (me > 0).then(|| Rank::new(me as u32 - 1));
    let right = (me + 1 < n).then(|| Rank::new(me as u32 + 1));

    let mut cells: Vec<f64> = mine.clone().map(start).collect();
    for _ in 0..STEPS {
        let (first, last) = ([cells[0]], [cells[cells.len() - 1]]);
        // An end of the rod has no neighbour and uses its own value instead, so no heat leaves.
        let (mut from_left, mut from_right) = (first, last);
        // The group runs all four transfers at the same time. If they ran one after the other, two
        // neighbours could wait for each other to receive.
        team.group_blocking(|group| {
            if let Some(left) = left {
                group.send(&first, left)?;
                group.recv(&mut from_left, left)?;
            }
            if let Some(right) = right {
                group.send(&last, right)?;
                group.recv(&mut from_right, right)?;
            }
            Ok(())
        })?;
        cells = step(&[&from_left[..], &cells, &from_right].concat());
    }

    // Every PE puts its cells into the symmetric memory of rank 0. The barrier completes the puts.
    let rod = world.alloc::<f64>(CELLS)?;
    team.put_blocking(&cells, &rod.slice(mine)?, Rank::new(0))?;
    team.barrier_blocking()?;
    if me == 0 {
        let rod = rod.to_vec()?;
        assert_eq!(rod, serial(), "the temperatures computed by {n} PEs differ from those of one PE");
        let heat: f64 = rod.iter().sum();
        println!("{STEPS} steps over {CELLS} cells: the same result as on one PE, to the last bit");
        println!("temperatures at the ends {:.3} and {:.3}, mean {:.3}", rod[0], rod[CELLS - 1], heat / CELLS as f64);
    }

    rod.release()?;
    assert!(world.finalize()?.is_clean());
    Ok(())
}
