//! Multiplies matrices stored in blocks on a grid of PEs, with broadcasts along rows and columns
//! (SUMMA).
#![forbid(unsafe_code)]

use peerweave::{Error, Rank, ReduceOp, World};
use peerweave_examples::share;

/// Number of rows, and of columns, of the matrices.
const SIDE: usize = 48;

/// Returns an element of the first factor. Elements are small integers, so that the product is
/// exact in any order.
fn a(row: usize, column: usize) -> f64 {
    ((row * 3 + column * 5) % 11) as f64
}

fn b(row: usize, column: usize) -> f64 {
    ((row * 7 + column * 2) % 13) as f64 - 6.0
}

/// Returns which of `ranks` ranks owns row or column `index` of a matrix.
fn owner(index: usize, ranks: usize) -> Rank {
    let rank = (0..ranks).find(|&rank| share(SIDE, rank, ranks).contains(&index));
    Rank::new(rank.expect("every index is in one share") as u32)
}

fn main() -> Result<(), Error> {
    let world = World::from_env()?;
    let n = world.n_pes();

    // The PEs form the grid closest to a square. Each row and each column of the grid is a team;
    // this PE is in one row and one column.
    let down = (1..=n).rfind(|down| n.is_multiple_of(*down) && down * down <= n).unwrap_or(1);
    let (row, column) = world.team().split_2d(n / down)?;
    let rows = share(SIDE, column.my_rank().index(), column.size());
    let columns = share(SIDE, row.my_rank().index(), row.size());

    // This PE holds `rows` x `columns` of each matrix, and computes that block of the product.
    let mut product = vec![vec![0.0; columns.len()]; rows.len()];
    for k in 0..SIDE {
        // Column k of A is broadcast along the rows of the grid, row k of B along its columns. Only
        // the owner fills the buffer.
        let (mut of_a, mut of_b) = (vec![0.0; rows.len()], vec![0.0; columns.len()]);
        let (a_owner, b_owner) = (owner(k, row.size()), owner(k, column.size()));
        if row.my_rank() == a_owner {
            of_a = rows.clone().map(|i| a(i, k)).collect();
        }
        if column.my_rank() == b_owner {
            of_b = columns.clone().map(|j| b(k, j)).collect();
        }
        row.broadcast_in_place_blocking(&mut of_a, a_owner)?;
        column.broadcast_in_place_blocking(&mut of_b, b_owner)?;
        for (line, x) in product.iter_mut().zip(&of_a) {
            for (sum, y) in line.iter_mut().zip(&of_b) {
                *sum += x * y;
            }
        }
    }

    for (i, line) in rows.clone().zip(&product) {
        for (j, &found) in columns.clone().zip(line) {
            assert_eq!(found, (0..SIDE).map(|k| a(i, k) * b(k, j)).sum::<f64>(), "element ({i}, {j}) of the product is wrong");
        }
    }

    // Computes the trace. Each PE adds up its part of the diagonal, then the row teams reduce, then
    // the column teams.
    let mut trace = [0.0];
    for (i, line) in rows.clone().zip(&product).filter(|(i, _)| columns.contains(i)) {
        trace[0] += line[i - columns.start];
    }
    row.all_reduce_in_place_blocking(&mut trace, ReduceOp::Sum)?;
    column.all_reduce_in_place_blocking(&mut trace, ReduceOp::Sum)?;
    if world.my_pe().get() == 0 {
        println!(
            "grid of {} x {} PEs; PE 0 has {} x {} of {SIDE} x {SIDE} elements",
            column.size(),
            row.size(),
            rows.len(),
            columns.len()
        );
        println!("trace of the product: {}", trace[0]);
    }

    row.destroy()?;
    column.destroy()?;
    assert!(world.finalize()?.is_clean());
    Ok(())
}
