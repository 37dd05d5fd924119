//! Attention over a sequence of which each PE has a slice: the data of the ring attention example,
//! its computation on CPUs and by a kernel, and plain attention to compare with.

use crate::share;
use peerweave::{Error, Stream, Symmetric, World};
pub use peerweave_kernels::attention::HEAD;
use peerweave_kernels::attention::{Block, QUERIES, THREADS, attend};
use std::cell::RefCell;
use std::ops::Range;

/// One over the square root of [`HEAD`].
const SCALE: f32 = 0.125;

/// The size of a sequence, and the number of PEs that divide it.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    /// Number of tokens.
    pub tokens: usize,
    /// Number of heads.
    pub heads: usize,
    /// Number of PEs.
    pub n_pes: usize,
}

/// A matrix of the attention, with a row for each head and token.
#[derive(Clone, Copy, Debug)]
pub enum Matrix {
    /// Queries.
    Queries,
    /// Keys.
    Keys,
    /// Values.
    Values,
}

impl Sequence {
    /// Returns the tokens of a PE.
    pub fn tokens_of(&self, pe: usize) -> Range<usize> {
        share(self.tokens, pe, self.n_pes)
    }

    /// Returns the number of rows of a head that every PE stores: the number of tokens of the
    /// largest slice.
    pub fn rows(&self) -> usize {
        self.tokens.div_ceil(self.n_pes)
    }

    /// Returns the number of elements of a matrix of one slice.
    pub fn matrix_len(&self) -> usize {
        self.heads * self.rows() * HEAD
    }

    /// Returns the number of elements of the keys and values of one slice.
    pub fn block_len(&self) -> usize {
        2 * self.matrix_len()
    }

    /// Returns the content of a matrix for the slice of a PE, head by head.
    pub fn content(&self, matrix: Matrix, pe: usize) -> Vec<f32> {
        let tokens = self.tokens_of(pe);
        let mut content = vec![0.0; self.matrix_len()];
        for head in 0..self.heads {
            for (row, token) in tokens.clone().enumerate() {
                content[(head * self.rows() + row) * HEAD..][..HEAD].copy_from_slice(&vector(matrix, head, token));
            }
        }
        content
    }
}

/// Returns the row of a matrix for a token: numbers in [-1, 1) that look random.
fn vector(matrix: Matrix, head: usize, token: usize) -> [f32; HEAD] {
    let mut state = ((matrix as u64) << 60) ^ ((head as u64) << 40) ^ (token as u64 + 1);
    std::array::from_fn(|_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    })
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum()
}

/// Computes plain attention of one token to the whole sequence: all scores first, then the softmax,
/// then the sum. Scores are computed in `f32`, everything else in `f64`.
pub fn plain(sequence: &Sequence, head: usize, token: usize) -> Vec<f64> {
    let query = vector(Matrix::Queries, head, token);
    let score = |key: usize| f64::from(dot(&query, &vector(Matrix::Keys, head, key)) * SCALE);
    let scores: Vec<f64> = (0..sequence.tokens).map(score).collect();
    let largest = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut result = vec![0.0; HEAD];
    for (key, weight) in weights.iter().enumerate() {
        for (to, value) in result.iter_mut().zip(vector(Matrix::Values, head, key)) {
            *to += weight / total * f64::from(value);
        }
    }
    result
}

/// Position of a block in the order in which a PE attends to all blocks.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Number of blocks before this one.
    pub step: usize,
    /// The PE that owns the keys and values of the block.
    pub owner: usize,
}

/// The queries of a PE, and the state of their online softmax.
#[derive(Debug)]
pub struct Attention {
    sequence: Sequence,
    me: usize,
    queries: Symmetric<f32>,
    sums: Symmetric<f32>,
    stats: Symmetric<f32>,
    /// The state of the computation on the CPU. `None` if a kernel computes the attention.
    on_cpu: Option<RefCell<State>>,
}

#[derive(Debug)]
struct State {
    queries: Vec<f32>,
    sums: Vec<f32>,
    /// For each row: the largest score, and the sum of weights.
    stats: Vec<(f32, f32)>,
}

impl Attention {
    /// Allocates the queries and the state of this PE. If `by_kernel`, a kernel computes the
    /// attention. Otherwise this thread computes it. Collective.
    ///
    /// # Errors
    /// Errors of the heap.
    pub fn new(world: &World, sequence: Sequence, by_kernel: bool) -> Result<Self, Error> {
        let (me, len) = (world.my_pe().index(), sequence.matrix_len());
        let content = sequence.content(Matrix::Queries, me);
        let queries = world.alloc(len)?;
        queries.copy_from(&content)?;
        let (sums, stats) = (world.alloc(len)?, world.alloc(2 * len / HEAD)?);
        let state = State { queries: content, sums: vec![0.0; len], stats: vec![(f32::MIN, 0.0); len / HEAD] };
        let on_cpu = (!by_kernel).then_some(RefCell::new(state));
        Ok(Self { sequence, me, queries, sums, stats, on_cpu })
    }

    /// Returns whether [`Self::attend`] enqueues a kernel instead of computing on this thread.
    pub fn is_queued(&self) -> bool {
        self.on_cpu.is_none()
    }

    /// Adds the block of keys and values of one PE to the state of all queries. The first block
    /// begins a new state.
    ///
    /// # Errors
    /// Errors of the launch, or of reading the block.
    pub fn attend(&self, stream: &Stream, block: &Symmetric<f32>, Position { step, owner }: Position) -> Result<(), Error> {
        let (queries, keys) = (self.sequence.tokens_of(self.me).len(), self.sequence.tokens_of(owner).len());
        let is_last = step + 1 == self.sequence.n_pes;
        if let Some(state) = &self.on_cpu {
            state.borrow_mut().attend(&self.sequence, &block.to_vec()?, [queries, keys], step == 0, is_last);
            return Ok(());
        }
        let shape = Block {
            queries: queries as u32,
            keys: keys as u32,
            rows: self.sequence.rows() as u32,
            is_first: u32::from(step == 0),
            is_last: u32::from(is_last),
        };
        let grid = (self.sequence.rows().div_ceil(QUERIES as usize) as u32, self.sequence.heads as u32);
        stream.launch(&attend::KERNEL, grid, THREADS, (&self.queries, block, &self.sums, &self.stats, shape))?;
        Ok(())
    }

    /// Compares the result with [`plain`] attention, for at most 64 tokens of this PE. Returns the
    /// largest difference.
    ///
    /// # Errors
    /// Errors of reading the result.
    pub fn difference(&self) -> Result<f64, Error> {
        let found = match &self.on_cpu {
            Some(state) => state.borrow().sums.clone(),
            None => self.sums.to_vec()?,
        };
        let tokens = self.sequence.tokens_of(self.me);
        let step = tokens.len().div_ceil(64).max(1);
        let mut largest = 0.0f64;
        for head in 0..self.sequence.heads {
            for (row, token) in tokens.clone().enumerate().step_by(step) {
                let found = &found[(head * self.sequence.rows() + row) * HEAD..][..HEAD];
                for (found, expected) in found.iter().zip(plain(&self.sequence, head, token)) {
                    // A NaN counts as the largest difference.
                    let difference = (f64::from(*found) - expected).abs();
                    largest = if difference.is_nan() { f64::INFINITY } else { largest.max(difference) };
                }
            }
        }
        Ok(largest)
    }

    /// Releases the memory. Collective.
    ///
    /// # Errors
    /// Errors of the heap.
    pub fn release(self) -> Result<(), Error> {
        self.queries.release()?;
        self.sums.release()?;
        self.stats.release()
    }
}

impl State {
    fn attend(&mut self, sequence: &Sequence, block: &[f32], [queries, keys]: [usize; 2], is_first: bool, is_last: bool) {
        let (rows, values) = (sequence.rows(), sequence.matrix_len());
        if is_first {
            self.sums.fill(0.0);
            self.stats.fill((f32::MIN, 0.0));
        }
        let mut scores = vec![0.0; keys];
        for head in 0..sequence.heads {
            let row_of = |start: usize, row: usize| &block[start + (head * rows + row) * HEAD..][..HEAD];
            for row in head * rows..head * rows + queries {
                let query = &self.queries[row * HEAD..][..HEAD];
                let (before, weights) = &mut self.stats[row];
                let sums = &mut self.sums[row * HEAD..][..HEAD];
                let mut largest = *before;
                for (key, score) in scores.iter_mut().enumerate() {
                    *score = dot(query, row_of(0, key)) * SCALE;
                    largest = largest.max(*score);
                }
                // The sums are relative to the largest score so far, so a larger score scales them
                // down.
                let shrink = (*before - largest).exp();
                *weights *= shrink;
                sums.iter_mut().for_each(|sum| *sum *= shrink);
                for (key, score) in scores.iter().enumerate() {
                    let weight = (score - largest).exp();
                    *weights += weight;
                    for (sum, value) in sums.iter_mut().zip(row_of(values, key)) {
                        *sum += weight * value;
                    }
                }
                *before = largest;
                if is_last {
                    let by = 1.0 / *weights;
                    sums.iter_mut().for_each(|sum| *sum *= by);
                }
            }
        }
    }
}
