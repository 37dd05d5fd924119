//! A perceptron whose layers are divided among the PEs: the data of the tensor-parallel example,
//! its computation on CPUs and by a kernel, and the same perceptron on one PE to compare with.

use crate::share;
use peerweave::{Error, Stream, Symmetric, World};
use peerweave_kernels::mlp::{Product, THREADS, TILE, matmul};
use std::ops::Range;

/// The epsilon of the norm, which is added to the mean of the squares.
pub const EPSILON: f32 = 1e-5;

/// The sizes of the perceptron.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Number of tokens: rows of the input.
    pub tokens: usize,
    /// Number of elements of a token.
    pub hidden: usize,
    /// Number of elements of a token between the two matrices of a layer.
    pub inner: usize,
    /// Number of layers.
    pub layers: usize,
}

/// A matrix or vector of the perceptron.
#[derive(Clone, Copy, Debug)]
enum Of {
    Input,
    Up(usize),
    Down(usize),
    Norm(usize),
    Target,
}

/// Returns an element of a matrix: a number in [-1, 1) that looks random.
fn element(of: Of, row: usize, column: usize) -> f32 {
    let number = match of {
        Of::Input => 0,
        Of::Target => 1,
        Of::Up(layer) => 3 * layer + 2,
        Of::Down(layer) => 3 * layer + 3,
        Of::Norm(layer) => 3 * layer + 4,
    };
    let mixed =
        (((number as u64) << 56) ^ ((row as u64) << 28) ^ column as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
}

impl Sizes {
    /// Returns the range of columns of the first matrix, and of rows of the second one, that a PE
    /// has.
    pub fn shard(&self, pe: usize, n_pes: usize) -> Range<usize> {
        share(self.inner, pe, n_pes)
    }

    /// Returns an element of the first matrix of a layer: `hidden` rows, `inner` columns.
    fn up(&self, layer: usize, row: usize, column: usize) -> f32 {
        element(Of::Up(layer), row, column) / (self.hidden as f32).sqrt()
    }

    /// Returns an element of the second matrix of a layer: `inner` rows, `hidden` columns.
    fn down(&self, layer: usize, row: usize, column: usize) -> f32 {
        element(Of::Down(layer), row, column) / (self.inner as f32).sqrt()
    }

    /// Returns an element of the weight of a norm.
    fn norm(&self, layer: usize, column: usize) -> f32 {
        1.0 + element(Of::Norm(layer), 0, column) / 4.0
    }

    fn matrix(&self, columns: usize, of: impl Fn(usize, usize) -> f32, rows: usize) -> Vec<f32> {
        (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))).map(|(row, column)| of(row, column)).collect()
    }

    /// Returns the input of all tokens.
    pub fn input(&self) -> Vec<f32> {
        self.matrix(self.hidden, |row, column| element(Of::Input, row, column), self.tokens)
    }

    /// Returns the mean squared difference between the output and its target.
    pub fn loss(&self, output: &[f32]) -> f64 {
        let square = |(index, y): (usize, &f32)| {
            let target = element(Of::Target, index / self.hidden, index % self.hidden);
            (f64::from(*y) - f64::from(target)).powi(2)
        };
        output.iter().enumerate().map(square).sum::<f64>() / output.len() as f64
    }

    /// Returns the output of one token, computed with the whole matrices in `f64`.
    pub fn on_one_pe(&self, token: usize) -> Vec<f64> {
        let input: Vec<f64> = (0..self.hidden).map(|column| element(Of::Input, token, column).into()).collect();
        let (mut residual, mut x) = (input.clone(), input);
        for layer in 0..self.layers {
            let mut inner = vec![0.0; self.inner];
            for (row, x) in x.iter().enumerate() {
                for (column, sum) in inner.iter_mut().enumerate() {
                    *sum += x * f64::from(self.up(layer, row, column));
                }
            }
            for (row, h) in inner.iter().enumerate().filter(|(_, h)| **h > 0.0) {
                for (column, sum) in residual.iter_mut().enumerate() {
                    *sum += h * f64::from(self.down(layer, row, column));
                }
            }
            let mean = residual.iter().map(|x| x * x).sum::<f64>() / self.hidden as f64;
            let root = (mean + f64::from(EPSILON)).sqrt();
            let norm = |(column, x): (usize, &f64)| x / root * f64::from(self.norm(layer, column));
            x = residual.iter().enumerate().map(norm).collect();
        }
        x
    }
}

/// The matrices of one layer that this PE has.
#[derive(Debug)]
struct Layer {
    up: Symmetric<f32>,
    down: Symmetric<f32>,
    norm: Symmetric<f32>,
    /// The matrices for the computation on the CPU. `None` if kernels compute the products.
    on_cpu: Option<[Vec<f32>; 2]>,
}

/// The shards of all layers of this PE, and the operands of a layer.
#[derive(Debug)]
pub struct Mlp {
    sizes: Sizes,
    /// Number of columns of the first matrices, and of rows of the second ones.
    own: usize,
    layers: Vec<Layer>,
    inner: Symmetric<f32>,
    /// The product of this PE's shards. An all-reduce adds up the products of all PEs.
    pub partial: Symmetric<f32>,
    /// The sum of the input and of the results of all layers so far.
    pub residual: Symmetric<f32>,
    /// The normalised input of the next layer.
    pub x: Symmetric<f32>,
    input: Vec<f32>,
}

impl Mlp {
    /// Allocates and fills the shards of this PE. If `by_kernel`, kernels compute the products.
    /// Otherwise this thread computes them. Collective.
    ///
    /// # Errors
    /// Errors of the heap.
    pub fn new(world: &World, sizes: Sizes, by_kernel: bool) -> Result<Self, Error> {
        let (me, n) = (world.my_pe().index(), world.n_pes());
        let (shard, longest) = (sizes.shard(me, n), sizes.inner.div_ceil(n));
        let (own, len) = (shard.len(), sizes.tokens * sizes.hidden);
        let mut layers = Vec::new();
        for layer in 0..sizes.layers {
            let up = sizes.matrix(own, |row, column| sizes.up(layer, row, shard.start + column), sizes.hidden);
            let down = sizes.matrix(sizes.hidden, |row, column| sizes.down(layer, shard.start + row, column), own);
            let [up_memory, down_memory] = [(); 2].map(|()| world.alloc::<f32>(sizes.hidden * longest));
            let (up_memory, down_memory) = (up_memory?, down_memory?);
            up_memory.slice(..up.len())?.copy_from(&up)?;
            down_memory.slice(..down.len())?.copy_from(&down)?;
            let norm = world.alloc::<f32>(sizes.hidden)?;
            norm.copy_from(&(0..sizes.hidden).map(|column| sizes.norm(layer, column)).collect::<Vec<_>>())?;
            layers.push(Layer { up: up_memory, down: down_memory, norm, on_cpu: (!by_kernel).then_some([up, down]) });
        }
        Ok(Self {
            own,
            layers,
            inner: world.alloc(sizes.tokens * longest)?,
            partial: world.alloc(len)?,
            residual: world.alloc(len)?,
            x: world.alloc(len)?,
            input: sizes.input(),
            sizes,
        })
    }

    /// Sets the input of the first layer.
    ///
    /// # Errors
    /// Errors of the copies.
    pub fn start(&self) -> Result<(), Error> {
        self.residual.copy_from(&self.input)?;
        self.x.copy_from(&self.input)
    }

    /// Returns the weight of the norm of a layer.
    pub fn norm(&self, layer: usize) -> &Symmetric<f32> {
        &self.layers[layer].norm
    }

    /// Computes `partial` of a layer from `x`: on the stream by kernels, or on this thread.
    ///
    /// # Errors
    /// Errors of the launches, or of the copies.
    pub fn compute(&self, stream: &Stream, layer: usize) -> Result<(), Error> {
        let Sizes { tokens, hidden, .. } = self.sizes;
        let layer = &self.layers[layer];
        if let Some([up, down]) = &layer.on_cpu {
            stream.synchronize()?;
            let mut inner = product(&self.x.to_vec()?, up, tokens, hidden, self.own);
            inner.iter_mut().for_each(|h| *h = h.max(0.0));
            return self.partial.copy_from(&product(&inner, down, tokens, self.own, hidden));
        }
        let grid = |columns: usize| (columns.div_ceil(TILE).max(1) as u32, tokens.div_ceil(TILE) as u32);
        let shape = |inner: usize, columns: usize, is_relu| Product {
            rows: tokens as u32,
            inner: inner as u32,
            columns: columns as u32,
            is_relu,
        };
        let (first, second) = (shape(hidden, self.own, 1), shape(self.own, hidden, 0));
        stream.launch(&matmul::KERNEL, grid(self.own), THREADS, (&self.x, &layer.up, &self.inner, first))?;
        stream.launch(&matmul::KERNEL, grid(hidden), THREADS, (&self.inner, &layer.down, &self.partial, second))?;
        Ok(())
    }

    /// Releases the memory. Collective.
    ///
    /// # Errors
    /// Errors of the heap.
    pub fn release(self) -> Result<(), Error> {
        for Layer { up, down, norm, .. } in self.layers {
            up.release()?;
            down.release()?;
            norm.release()?;
        }
        for buffer in [self.inner, self.partial, self.residual, self.x] {
            buffer.release()?;
        }
        Ok(())
    }
}

/// Returns the product of two matrices, which are stored row by row.
fn product(a: &[f32], b: &[f32], rows: usize, inner: usize, columns: usize) -> Vec<f32> {
    let mut product = vec![0.0; rows * columns];
    for row in 0..rows {
        let to = &mut product[row * columns..][..columns];
        for index in 0..inner {
            let factor = a[row * inner + index];
            for (sum, element) in to.iter_mut().zip(&b[index * columns..]) {
                *sum += factor * element;
            }
        }
    }
    product
}
