//! Tests of the product of matrices on CPU threads.

use peerweave_grid::Job;
use peerweave_kernels::mlp::{Product, THREADS, TILE, matmul};

/// Returns element `i` of a matrix: a small integer, so that sums are exact.
fn element(matrix: usize, i: usize) -> f32 {
    ((i * 7 + matrix * 5) % 9) as f32 - 4.0
}

#[test]
fn matrix_product_of_any_shape_is_exact() {
    for (rows, inner, columns) in [(1, 1, 1), (3, 40, 33), (32, 32, 32), (33, 65, 5), (2, 7, 100), (4, 0, 4)] {
        for is_relu in [0, 1] {
            let mut job = Job::new(1);
            // An empty matrix is an empty slice of an allocation of one element.
            let [a, b, to] = [rows * inner, inner * columns, rows * columns].map(|len| (job.alloc::<f32>(len.max(1)), len));
            let [a_content, b_content] =
                [(0, a.1), (1, b.1)].map(|(of, len)| (0..len).map(|i| element(of, i)).collect::<Vec<_>>());
            job.write(0, a.0.slice(..a.1), &a_content);
            job.write(0, b.0.slice(..b.1), &b_content);
            let shape = Product { rows: rows as u32, inner: inner as u32, columns: columns as u32, is_relu };
            let grid = (columns.div_ceil(TILE) as u32, rows.div_ceil(TILE) as u32);
            let arguments = (a.0.slice(..a.1), b.0.slice(..b.1), to.0.slice(..to.1), shape);
            job.launch(&matmul::KERNEL, grid, THREADS, arguments).unwrap();
            for (i, found) in job.read(0, to.0).into_iter().enumerate() {
                let (row, column) = (i / columns, i % columns);
                let sum: f32 = (0..inner).map(|k| a_content[row * inner + k] * b_content[k * columns + column]).sum();
                let expected = if is_relu == 1 { sum.max(0.0) } else { sum };
                assert_eq!(found, expected, "{rows} × {inner} × {columns}, element {i}");
            }
        }
    }
}
