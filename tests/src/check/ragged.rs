//! Cases of collectives whose parts differ in length among ranks.

use crate::check::conformance::{Arenas, Bench, Case, GAP};
use crate::data::calls::{self, Form, Root};
use crate::data::oracle;
use crate::data::sample::{Sample, hash, movable};
use peerweave::{Parts, Rank};

/// Returns the parts of a case as `rank` passes them. The lengths depend only on the case. The
/// order and the gaps depend on the rank too.
fn parts(case: &Case, n: usize, rank: usize) -> Parts {
    let counts: Vec<usize> = (0..n)
        .map(|owner| match hash(&[case.seed, 4, owner as u64]) {
            random if random % 4 == 0 => 0,
            random if random % 4 == 1 => case.count,
            random => ((random >> 8) % (case.count as u64 + 1)) as usize,
        })
        .collect();
    let mut order: Vec<usize> = (0..n).collect();
    if case.seed & 2 == 0 {
        order.sort_by_key(|&owner| hash(&[case.seed, 5, rank as u64, owner as u64]));
    }
    let mut offsets = vec![0; n];
    let mut next = 0;
    for owner in order {
        next += (hash(&[case.seed, 6, rank as u64, owner as u64]) % (GAP as u64 + 1)) as usize;
        offsets[owner] = next;
        next += counts[owner];
    }
    Parts { counts, offsets }
}

/// Runs a case whose parts differ in length among ranks.
///
/// # Panics
/// If the result differs from the oracle's, or a byte outside the result changed.
pub fn run<T: Sample>(bench: &Bench<'_>, case: &Case, arenas: &Arenas<T>) {
    let (rank, n) = bench.me();
    let root = case.root(n);
    let of_rank: Vec<Parts> = (0..n).map(|rank| parts(case, n, rank)).collect();
    // Returns whether the buffer of a rank contains all parts, not only the rank's own part.
    let is_whole = |rank: usize, form: Form| match form {
        Form::AllGatherVInPlace => true,
        Form::GatherVInPlace | Form::ScatterV | Form::ScatterVInPlace => rank == root,
        _ => false,
    };
    let len = |rank: usize| match case.form {
        Form::ScatterV if rank != root => 0,
        form if is_whole(rank, form) => of_rank[rank].end(),
        _ => of_rank[rank].counts[rank],
    };
    let inputs: Vec<Vec<T>> = (0..n).map(|r| (0..len(r)).map(|i| movable(case.seed, r, i)).collect()).collect();
    let recv_len = match case.form {
        Form::AllGatherV => of_rank[rank].end(),
        Form::GatherV if rank == root => of_rank[rank].end(),
        Form::GatherV => 0,
        _ => of_rank[rank].counts[rank],
    };
    let (send, mut recv, before) = bench.buffers(case, arenas, &inputs[rank], recv_len);
    let passed = Root { rank: Rank::new(root as u32), others_pass_none: case.seed & 1 == 0 };
    let mine = of_rank[rank].clone();
    let done = calls::ragged(case.form, bench.team, bench.on(case), &send, &mut recv, mine, passed);
    let expected = oracle::ragged(case.form, &inputs, &of_rank, rank, root, &before);
    bench.check(case, done, &inputs[rank], &send, &recv, &expected);
}
