//! Solves Laplace's equation on a square by Jacobi's method. Each PE has one block of the grid, and
//! puts the cells at its borders into the halos of its neighbors, by rows and by columns.
#![forbid(unsafe_code)]

use peerweave::{Compare, Error, Rank, ReduceOp, Strides, Symmetric, Team, World};
use peerweave_examples::share;
use std::ops::Range;

/// Number of rows, and of columns, of the grid.
const SIDE: usize = 64;
/// Number of steps.
const STEPS: usize = 300;

/// A block of the grid with a border of one cell around it, row by row.
struct Block {
    rows: usize,
    columns: usize,
    cells: Vec<f64>,
}

impl Block {
    /// Returns a block of zeros. The edge above the first row of the grid is hot.
    fn new(rows: &Range<usize>, columns: &Range<usize>) -> Self {
        let mut cells = vec![0.0; (rows.len() + 2) * (columns.len() + 2)];
        if rows.start == 0 {
            cells[..columns.len() + 2].fill(1.0);
        }
        Self { rows: rows.len(), columns: columns.len(), cells }
    }

    /// Returns the index of the first cell, the distance between cells, and the number of cells of
    /// one side of the block. With `is_border`, the side of the border around the block.
    fn side(&self, side: Side, is_border: bool) -> (usize, usize, usize) {
        let (width, inner) = (self.columns + 2, usize::from(!is_border));
        match side {
            Side::Up => (inner * width + 1, 1, self.columns),
            Side::Down => ((self.rows + 1 - inner) * width + 1, 1, self.columns),
            Side::Left => (width + inner, width, self.rows),
            Side::Right => (width + self.columns + 1 - inner, width, self.rows),
        }
    }

    /// Computes one step. Returns the largest change of a cell.
    fn step(&mut self) -> f64 {
        let (old, width) = (self.cells.clone(), self.columns + 2);
        let mut change = 0.0f64;
        for row in 1..=self.rows {
            for at in row * width + 1..row * width + 1 + self.columns {
                self.cells[at] = 0.25 * (old[at - width] + old[at - 1] + old[at + 1] + old[at + width]);
                change = change.max((self.cells[at] - old[at]).abs());
            }
        }
        change
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Up,
    Down,
    Left,
    Right,
}

impl Side {
    const ALL: [Self; 4] = [Self::Up, Self::Down, Self::Left, Self::Right];

    fn opposite(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

/// Returns `team`, which is a row or column of the grid, and the rank before or (`is_next`) after
/// this PE in the team. Returns `None` at the edge of the grid.
fn beside(team: &Team, is_next: bool) -> Option<(&Team, Rank)> {
    let me = team.my_rank().get();
    let rank = if is_next { me + 1 } else { me.checked_sub(1)? };
    ((rank as usize) < team.size()).then(|| (team, Rank::new(rank)))
}

fn main() -> Result<(), Error> {
    let world = World::from_env()?;
    let n = world.n_pes();
    // The PEs form the grid closest to a square. Its rows and columns are teams.
    let down = (1..=n).rfind(|down| n.is_multiple_of(*down) && down * down <= n).unwrap_or(1);
    let (row, column) = world.team().split_2d(n / down)?;
    let rows = share(SIDE, column.my_rank().index(), column.size());
    let columns = share(SIDE, row.my_rank().index(), row.size());
    let neighbor = |side| match side {
        Side::Up | Side::Down => beside(&column, side == Side::Down),
        Side::Left | Side::Right => beside(&row, side == Side::Right),
    };

    // Two halos for each side, which steps use alternately. A neighbor may be one step ahead, but
    // not two, since it waits for this PE's cells.
    let halos = world.alloc::<f64>(2 * 4 * SIDE)?;
    let halo = |step: usize, side: Side| {
        halos.slice((step % 2 * 4 + side as usize) * SIDE..).expect("the memory has two halos for each side")
    };
    let arrived: Symmetric<u64> = world.alloc_zeroed(4)?;

    let mut block = Block::new(&rows, &columns);
    let mut change = 0.0;
    for step in 0..STEPS {
        for (side, (team, rank)) in Side::ALL.into_iter().filter_map(|side| Some((side, neighbor(side)?))) {
            let (first, distance, count) = block.side(side, false);
            let strides = Strides { count, source: distance, dest: 1 };
            team.put_strided_blocking(&block.cells[first..], &halo(step, side.opposite()), strides, rank)?;
        }
        world.fence_blocking()?; // a neighbor that sees a signal sees the cells
        for (side, (team, rank)) in Side::ALL.into_iter().filter_map(|side| Some((side, neighbor(side)?))) {
            team.signal_blocking(arrived.signal(side.opposite() as usize)?.add(1), rank)?;
        }
        for (side, (team, _)) in Side::ALL.into_iter().filter_map(|side| Some((side, neighbor(side)?))) {
            team.wait_until_blocking(&arrived.signal(side as usize)?, Compare::Ge, step as u64 + 1)?;
            let (first, distance, count) = block.side(side, true);
            for (index, cell) in halo(step, side).slice(..count)?.to_vec()?.into_iter().enumerate() {
                block.cells[first + index * distance] = cell;
            }
        }
        change = block.step();
    }

    // Every PE compares its block with that of a grid that it computes alone.
    let mut alone = Block::new(&(0..SIDE), &(0..SIDE));
    let last = (0..STEPS).map(|_| alone.step()).last();
    for (index, line) in rows.enumerate() {
        let (mine, all) = ((index + 1) * (block.columns + 2) + 1, (line + 1) * (SIDE + 2) + 1);
        let expected = &alone.cells[all..][columns.clone()];
        assert_eq!(
            &block.cells[mine..][..block.columns],
            expected,
            "row {line}: the cells computed by {n} PEs differ from those computed by one PE"
        );
    }
    world.team().all_reduce_in_place_blocking(&mut change, ReduceOp::Max)?;
    assert_eq!(Some(change), last, "the largest change of the last step differs from that on one PE");
    if world.my_pe().get() == 0 {
        println!("{STEPS} steps on {SIDE} x {SIDE} cells: the same result as on one PE, to the last bit");
        println!("the last step changed each cell by at most {change:.9}");
    }

    halos.release()?;
    arrived.release()?;
    row.destroy()?;
    column.destroy()?;
    assert!(world.finalize()?.is_clean());
    Ok(())
}
