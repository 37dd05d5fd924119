//! Tests of the attention kernel on CPU threads.

use peerweave_grid::Job;
use peerweave_kernels::attention::{Block, HEAD, QUERIES, THREADS, attend};

/// Returns element `i` of a matrix, in [-1, 1).
fn element(matrix: u64, i: usize) -> f32 {
    let mixed = ((matrix << 40) | (i as u64 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Returns the attention of one query to all keys of a head, computed in `f64` without blocks.
fn plain(query: &[f32], keys: &[&[f32]], values: &[&[f32]]) -> Vec<f64> {
    let dot = |key: &[f32]| query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() / 8.0;
    let scores: Vec<f64> = keys.iter().map(|key| dot(key)).collect();
    let largest = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    (0..HEAD).map(|i| weights.iter().zip(values).map(|(w, value)| w * f64::from(value[i])).sum::<f64>() / total).collect()
}

/// Returns the largest difference between the results of the kernel and of plain attention. The
/// kernel processes blocks with the numbers of keys in `blocks`. Scores grow with `steepness`.
fn difference(heads: usize, queries: usize, blocks: &[usize], steepness: f32) -> f64 {
    let rows = queries.max(blocks.iter().copied().max().unwrap());
    let mut job = Job::new(1);
    let len = heads * rows * HEAD;
    let (q, sums, stats) = (job.alloc::<f32>(len), job.alloc::<f32>(len), job.alloc::<f32>(2 * heads * rows));
    let q_content: Vec<f32> = (0..len).map(|i| steepness * element(0, i)).collect();
    job.write(0, q, &q_content);
    let contents: Vec<Vec<f32>> =
        (1..).zip(blocks).map(|(number, _)| (0..2 * len).map(|i| element(number, i)).collect()).collect();
    let block = job.alloc::<f32>(2 * len);
    for (index, content) in contents.iter().enumerate() {
        job.write(0, block, content);
        let shape = Block {
            queries: queries as u32,
            keys: blocks[index] as u32,
            rows: rows as u32,
            is_first: u32::from(index == 0),
            is_last: u32::from(index + 1 == blocks.len()),
        };
        let grid = (queries.div_ceil(QUERIES as usize) as u32, heads as u32);
        job.launch(&attend::KERNEL, grid, THREADS, (q, block, sums, stats, shape)).unwrap();
    }
    let found = job.read(0, sums);
    let mut largest = 0.0f64;
    for head in 0..heads {
        let row = |of: usize, start: usize, row: usize| &contents[of][start + (head * rows + row) * HEAD..][..HEAD];
        let all = |start| -> Vec<&[f32]> {
            blocks
                .iter()
                .enumerate()
                .flat_map(|(of, keys)| (0..*keys).map(move |key| (of, key)))
                .map(|(of, key)| row(of, start, key))
                .collect()
        };
        let (keys, values) = (all(0), all(len));
        for query in 0..queries {
            let at = (head * rows + query) * HEAD;
            for (found, expected) in found[at..][..HEAD].iter().zip(plain(&q_content[at..][..HEAD], &keys, &values)) {
                largest = largest.max((f64::from(*found) - expected).abs());
            }
        }
    }
    largest
}

#[test]
fn attention_over_blocks_matches_plain_attention() {
    for (heads, queries, blocks) in
        [(1, 1, &[1][..]), (2, 7, &[16]), (1, 64, &[17, 3]), (3, 65, &[30, 31, 1]), (1, 2, &[5, 0, 40])]
    {
        let found = difference(heads, queries, blocks, 1.0);
        assert!(found < 1e-5, "{heads} heads, {queries} queries, blocks of {blocks:?}: {found}");
    }
}

#[test]
fn attention_with_large_scores_does_not_overflow() {
    let found = difference(1, 20, &[16, 20, 9], 1000.0);
    assert!(found < 1e-3, "{found}");
}
