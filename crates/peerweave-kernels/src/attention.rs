//! Attention of queries to blocks of keys and values. The blocks are processed one after the other,
//! with an online softmax.
//!
//! [`attend()`] adds one block to the state of all queries of this PE. Blocks may be added in any
//! order, so a program can pass the blocks around a ring of PEs.
#![allow(
    clippy::needless_range_loop,
    reason = "loops over indices are unrolled; an iterator would place a thread's elements in local memory"
)]

use peerweave_device::prelude::*;

/// Number of elements in a head.
pub const HEAD: usize = 64;

/// Number of threads in each thread block of [`attend()`].
pub const THREADS: u32 = 128;

/// Number of queries that each thread block of [`attend()`] handles. Four threads share each query.
pub const QUERIES: u32 = THREADS / LANES as u32;

/// Number of threads that share a query. Each of these threads has a part of the query's elements.
const LANES: usize = 4;

/// Number of keys that a thread block keeps in shared memory at a time. The block also keeps the
/// same number of values there.
const TILE: usize = 16;

/// Number of elements that one access to shared memory reads.
const GROUP: usize = 4;

/// Number of groups of [`GROUP`] elements in a head.
const GROUPS: usize = HEAD / GROUP;

/// Number of groups, of [`GROUP`] elements each, that one thread handles. The [`LANES`] threads
/// that share a query divide the groups of the query among themselves.
const OWN: usize = GROUPS / LANES;

/// The sizes of the operands of [`attend()`], and the position of the current block of keys and
/// values.
#[repr(C)]
#[derive(Clone, Copy, Debug, KernelArg)]
pub struct Block {
    /// Number of queries on this PE.
    pub queries: u32,
    /// Number of keys in the block. The block has the same number of values.
    pub keys: u32,
    /// Number of rows in memory for each head. The queries, the state, the keys and the values all
    /// have this number of rows.
    pub rows: u32,
    /// 1 if this is the first block of keys and values. In this case the kernel ignores the
    /// previous state. Otherwise 0.
    pub is_first: u32,
    /// 1 if this is the last block of keys and values; otherwise 0. After the last block, the
    /// kernel divides each weighted sum of values by the sum of its weights.
    pub is_last: u32,
}

/// Returns e to the power of `x`, with an error of a few units in the last place. `x` must be at
/// most 0.
#[inline(always)]
fn exp(x: f32) -> f32 {
    let twos = (x * core::f32::consts::LOG2_E).max(-126.0);
    let whole = (twos - 0.5) as i32; // rounds to the nearest, because `twos` is not positive
    let y = (twos - whole as f32) * core::f32::consts::LN_2;
    let series = 1.0 + y * (1.0 + y * (0.5 + y * (1.0 / 6.0 + y * (1.0 / 24.0 + y * (1.0 / 120.0 + y * (1.0 / 720.0))))));
    series * f32::from_bits(((whole + 127) as u32) << 23)
}

/// Returns the [`GROUP`] elements whose bits are packed in `group`.
#[inline(always)]
fn unpack(group: u128) -> [f32; GROUP] {
    [0, 1, 2, 3].map(|index| f32::from_bits((group >> (32 * index)) as u32))
}

/// Reads [`GROUP`] consecutive elements, of which element `first` is the first. Returns their bits
/// in one integer.
#[inline(always)]
fn pack(from: DeviceSlice<f32>, first: usize) -> u128 {
    let bits = |index: usize| u128::from(from.read(first + index).to_bits()) << (32 * index);
    bits(0) | bits(1) | bits(2) | bits(3)
}

/// Updates the state of all queries with a block of keys and values.
///
/// The first half of `block` holds the keys, and the second half holds the values. In `queries`,
/// the keys, the values and `sums`, row `r` of head `h` starts at `(h * rows + r) * HEAD`. `stats`
/// has two elements for each row, at `2 * (h * rows + r)`: the largest score, and the sum of
/// weights. In dimension `x` the grid has one block for every [`QUERIES`] queries, and in dimension
/// `y` one block for every head. Each block has [`THREADS`] threads.
#[kernel(max_threads = 128)]
pub fn attend(
    ctx: &Context,
    queries: SymSlice<f32>,
    block: SymSlice<f32>,
    sums: SymSlice<f32>,
    stats: SymSlice<f32>,
    shape: Block,
) {
    let keys_shared = peerweave_device::shared_array!(KEYS: [u128; TILE * GROUPS]);
    let values_shared = peerweave_device::shared_array!(VALUES: [u128; TILE * GROUPS]);
    let (queries, block, sums, stats) = (ctx.local(queries), ctx.local(block), ctx.local(sums), ctx.local(stats));
    let (thread, head) = (gpu::thread_idx().x as usize, gpu::block_idx().y as usize);
    let (rows, keys) = (shape.rows as usize, shape.keys as usize);
    let (query, lane) = (gpu::block_idx().x as usize * QUERIES as usize + thread / LANES, thread % LANES);
    let has_query = query < shape.queries as usize;
    let row = head * rows + if has_query { query } else { 0 };
    let values_start = gpu::grid_dim().y as usize * rows * HEAD;
    // Thread `lane` has groups `lane`, `lane + LANES`, …, so that the threads of a query read
    // neighbouring groups of shared memory.
    let element = |own: usize, index: usize| row * HEAD + (own * LANES + lane) * GROUP + index;

    let (mut mine, mut sum) = ([[0.0; GROUP]; OWN], [[0.0; GROUP]; OWN]);
    let (mut largest, mut weights) = (f32::MIN, 0.0);
    for own in 0..OWN {
        for index in 0..GROUP {
            mine[own][index] = queries.read(element(own, index));
            if shape.is_first == 0 {
                sum[own][index] = sums.read(element(own, index));
            }
        }
    }
    if shape.is_first == 0 {
        (largest, weights) = (stats.read(2 * row), stats.read(2 * row + 1));
    }
    let scale = 0.125; // one over the square root of `HEAD`
    let mut first = 0;
    while first < keys {
        let count = (keys - first).min(TILE);
        gpu::sync_threads(); // all threads have read the previous tile
        let mut group = thread;
        while group < count * GROUPS {
            let from = (head * rows + first) * HEAD + group * GROUP;
            keys_shared.write(group, pack(block, from));
            values_shared.write(group, pack(block, values_start + from));
            group += THREADS as usize;
        }
        gpu::sync_threads();
        for key in 0..count {
            let mut score = 0.0;
            for own in 0..OWN {
                let key = unpack(keys_shared.read(key * GROUPS + own * LANES + lane));
                for index in 0..GROUP {
                    score += mine[own][index] * key[index];
                }
            }
            for by in [1, 2] {
                score += f32::from_bits(gpu::shuffle_xor(gpu::warp_members(), score.to_bits(), by));
            }
            score *= scale;
            if score > largest {
                // The weights of earlier keys are relative to a smaller largest score.
                let shrink = exp(largest - score);
                weights *= shrink;
                for own in 0..OWN {
                    for index in 0..GROUP {
                        sum[own][index] *= shrink;
                    }
                }
                largest = score;
            }
            let weight = exp(score - largest);
            weights += weight;
            for own in 0..OWN {
                let value = unpack(values_shared.read(key * GROUPS + own * LANES + lane));
                for index in 0..GROUP {
                    sum[own][index] += weight * value[index];
                }
            }
        }
        first += TILE;
    }
    if has_query {
        let by = if shape.is_last == 0 { 1.0 } else { 1.0 / weights };
        for own in 0..OWN {
            for index in 0..GROUP {
                sums.write(element(own, index), sum[own][index] * by);
            }
        }
        if lane == 0 {
            stats.write(2 * row, largest);
            stats.write(2 * row + 1, weights);
        }
    }
}
