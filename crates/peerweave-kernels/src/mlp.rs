//! A product of two matrices, for the layers of a perceptron.

#![allow(
    clippy::needless_range_loop,
    reason = "loops over indices are unrolled; an iterator would place a thread's elements in local memory"
)]

use peerweave_device::prelude::*;

/// Number of threads in each block of [`matmul()`].
pub const THREADS: u32 = 256;

/// Number of rows, and also number of columns, in a tile. Each block of [`matmul()`] computes one
/// tile.
pub const TILE: usize = 32;

/// Number of elements that each thread handles in a tile. A thread loads this number of elements
/// from each tile of `a`, and the same number from each tile of `b`. It computes this number of
/// elements of the product.
const OWN: usize = TILE * TILE / THREADS as usize;

/// Number of tile rows that a block handles at the same time. Together these rows have [`THREADS`]
/// elements, one for each thread.
const STEP: usize = TILE / OWN;

/// The sizes of the matrices that [`matmul()`] multiplies, and the operation on the product.
#[repr(C)]
#[derive(Clone, Copy, Debug, KernelArg)]
pub struct Product {
    /// Number of rows in `a`, and in the product.
    pub rows: u32,
    /// Number of columns in `a`. The matrix `b` has the same number of rows.
    pub inner: u32,
    /// Number of columns in `b`, and in the product.
    pub columns: u32,
    /// 1 if the kernel must replace negative elements of the product by 0; otherwise 0.
    pub is_relu: u32,
}

/// Computes `to = a · b`. Matrices are stored row by row. In dimension `x` the grid has one block
/// for every [`TILE`] columns, and in dimension `y` one block for every [`TILE`] rows. Each block
/// has [`THREADS`] threads.
#[kernel(max_threads = 256)]
pub fn matmul(ctx: &Context, a: SymSlice<f32>, b: SymSlice<f32>, to: SymSlice<f32>, shape: Product) {
    let a_tile = peerweave_device::shared_array!(A: [f32; TILE * TILE]);
    let b_tile = peerweave_device::shared_array!(B: [f32; TILE * TILE]);
    let (a, b, to) = (ctx.local(a), ctx.local(b), ctx.local(to));
    let (rows, inner, columns) = (shape.rows as usize, shape.inner as usize, shape.columns as usize);
    let thread = gpu::thread_idx().x as usize;
    let (x, y) = (thread % TILE, thread / TILE);
    let (first_row, first_column) = (gpu::block_idx().y as usize * TILE, gpu::block_idx().x as usize * TILE);
    let column = first_column + x;
    let mut sums = [0.0; OWN];
    let mut first = 0;
    while first < inner {
        gpu::sync_threads(); // all threads have read the previous tiles
        for own in 0..OWN {
            let at = own * STEP + y;
            let (row, index) = (first_row + at, first + at);
            let is_in_a = row < rows && first + x < inner;
            let is_in_b = index < inner && column < columns;
            a_tile.write(at * TILE + x, if is_in_a { a.read(row * inner + first + x) } else { 0.0 });
            b_tile.write(at * TILE + x, if is_in_b { b.read(index * columns + column) } else { 0.0 });
        }
        gpu::sync_threads();
        for index in 0..TILE {
            let factor = b_tile.read(index * TILE + x);
            for own in 0..OWN {
                sums[own] += a_tile.read((own * STEP + y) * TILE + index) * factor;
            }
        }
        first += TILE;
    }
    for own in 0..OWN {
        let row = first_row + own * STEP + y;
        if row < rows && column < columns {
            to.write(row * columns + column, if shape.is_relu != 0 { sums[own].max(0.0) } else { sums[own] });
        }
    }
}
