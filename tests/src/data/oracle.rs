//! Computes every collective naively from the inputs of all ranks, independently of buffers and
//! backends.

use crate::data::calls::Form;
use crate::data::sample::{Exact, Sample};
use peerweave::{Parts, ReduceOp};

/// Expected content of a rank's receive buffer; `None` for an element whose value is unspecified.
pub type Expected<T> = Vec<Option<T>>;

/// The parts of an all-to-all-v: `counts[from][to]` elements.
pub type Matrix = Vec<Vec<usize>>;

/// Computes a collective that combines elements. `inputs[r]` is the input of rank `r`; for an
/// in-place form, that is the whole buffer. `before` is the former content of `rank`'s receive
/// buffer.
pub fn reduction<T: Exact>(
    form: Form,
    op: ReduceOp,
    inputs: &[Vec<T>],
    scalars: &[T],
    rank: usize,
    root: usize,
    before: &[T],
) -> Expected<T> {
    let n = inputs.len();
    let mut elements = Vec::with_capacity(n);
    let mut combined_first = |ranks: usize, index: usize| {
        elements.clear();
        elements.extend(inputs[..ranks].iter().map(|input| input[index]));
        T::combine(op, &elements, scalars)
    };
    let mut combined = |index: usize| combined_first(n, index);
    match form {
        Form::AllReduce | Form::AllReduceInPlace => (0..inputs[0].len()).map(|i| Some(combined(i))).collect(),
        Form::Reduce | Form::ReduceInPlace if rank == root => (0..inputs[0].len()).map(|i| Some(combined(i))).collect(),
        Form::Reduce | Form::ReduceInPlace => before.iter().copied().map(Some).collect(),
        Form::ReduceScatter => {
            let count = inputs[0].len() / n;
            (0..count).map(|i| Some(combined(rank * count + i))).collect()
        }
        Form::ReduceScatterInPlace => {
            let count = inputs[0].len() / n;
            let mine = rank * count..(rank + 1) * count;
            (0..count * n).map(|i| mine.contains(&i).then(|| combined(i))).collect()
        }
        Form::Scan | Form::ScanInPlace => (0..inputs[0].len()).map(|i| Some(combined_first(rank + 1, i))).collect(),
        Form::ExclusiveScan | Form::ExclusiveScanInPlace if rank > 0 => {
            (0..inputs[0].len()).map(|i| Some(combined_first(rank, i))).collect()
        }
        Form::ExclusiveScan | Form::ExclusiveScanInPlace => before.iter().copied().map(Some).collect(),
        other => panic!("{other:?} is not a form that combines elements"),
    }
}

/// Computes a collective that only moves elements, like [`reduction`]. The buffer of an in-place
/// gather or scatter has `n` parts at the root and one part on other ranks.
pub fn movement<T: Sample>(form: Form, inputs: &[Vec<T>], rank: usize, root: usize, before: &[T]) -> Expected<T> {
    let n = inputs.len();
    let is_root = rank == root;
    let part = |rank: usize, part: usize| {
        let count = inputs[rank].len() / n;
        inputs[rank][part * count..(part + 1) * count].to_vec()
    };
    let result: Vec<T> = match form {
        Form::Broadcast | Form::BroadcastInPlace => inputs[root].clone(),
        Form::AllGather => inputs.concat(),
        Form::AllGatherInPlace => (0..n).flat_map(|from| part(from, from)).collect(),
        Form::AllToAll | Form::AllToAllInPlace => (0..n).flat_map(|from| part(from, rank)).collect(),
        Form::Gather if is_root => inputs.concat(),
        Form::GatherInPlace if is_root => {
            (0..n).flat_map(|from| if from == root { part(root, root) } else { inputs[from].clone() }).collect()
        }
        Form::Scatter => part(root, rank),
        Form::ScatterInPlace if !is_root => part(root, rank),
        Form::Gather | Form::GatherInPlace | Form::ScatterInPlace => before.to_vec(),
        other => panic!("{other:?} is not a form that only moves elements"),
    };
    result.into_iter().map(Some).collect()
}

/// Computes an all-to-all-v. The part of `inputs[from]` for `to` is at `send_offsets[from][to]`.
/// `rank` stores the part of `from` at `recv_offsets[from]`.
pub fn vector<T: Sample>(
    inputs: &[Vec<T>],
    counts: &Matrix,
    send_offsets: &Matrix,
    recv_offsets: &[usize],
    rank: usize,
    before: &[T],
) -> Expected<T> {
    let mut result: Vec<T> = before.to_vec();
    for from in 0..inputs.len() {
        let (count, start) = (counts[from][rank], send_offsets[from][rank]);
        if count > 0 {
            result[recv_offsets[from]..recv_offsets[from] + count].copy_from_slice(&inputs[from][start..start + count]);
        }
    }
    result.into_iter().map(Some).collect()
}

/// Computes a collective whose parts differ in length among ranks. `inputs` and `before` are as for
/// [`movement`]. `parts[r]` has the places of all parts in the buffer of rank `r`, if that rank has
/// a buffer with all parts.
pub fn ragged<T: Sample>(form: Form, inputs: &[Vec<T>], parts: &[Parts], rank: usize, root: usize, before: &[T]) -> Expected<T> {
    let in_buffer = |of: usize, owner: usize| {
        let (start, count) = (parts[of].offsets[owner], parts[of].counts[owner]);
        // The offset of an empty part may be any number.
        if count == 0 { Vec::new() } else { inputs[of][start..start + count].to_vec() }
    };
    let gathered = |part: &dyn Fn(usize) -> Vec<T>| {
        let mut result = before.to_vec();
        for owner in 0..inputs.len() {
            let (start, part) = (parts[rank].offsets[owner], part(owner));
            if !part.is_empty() {
                result[start..start + part.len()].copy_from_slice(&part);
            }
        }
        result
    };
    let is_root = rank == root;
    let result = match form {
        Form::AllGatherV => gathered(&|owner| inputs[owner].clone()),
        Form::AllGatherVInPlace => gathered(&|owner| in_buffer(owner, owner)),
        Form::GatherV if is_root => gathered(&|owner| inputs[owner].clone()),
        Form::GatherVInPlace if is_root => {
            gathered(&|owner| if owner == root { in_buffer(root, root) } else { inputs[owner].clone() })
        }
        Form::ScatterV => in_buffer(root, rank),
        Form::ScatterVInPlace if !is_root => in_buffer(root, rank),
        Form::GatherV | Form::GatherVInPlace | Form::ScatterVInPlace => before.to_vec(),
        other => panic!("{other:?} is not a form with parts"),
    };
    result.into_iter().map(Some).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all<T>(expected: Expected<T>) -> Vec<T> {
        expected.into_iter().map(|element| element.expect("the element is specified")).collect()
    }

    #[test]
    fn oracle_of_three_ranks_matches_results_computed_by_hand() {
        let inputs = vec![vec![1, 2, 3], vec![10, 20, 30], vec![100, 200, 300]];
        assert_eq!(all(reduction(Form::AllReduce, ReduceOp::Sum, &inputs, &[], 1, 0, &[])), [111, 222, 333]);
        assert_eq!(all(reduction(Form::Scan, ReduceOp::Sum, &inputs, &[], 1, 0, &[])), [11, 22, 33]);
        assert_eq!(all(reduction(Form::ExclusiveScan, ReduceOp::Sum, &inputs, &[], 2, 0, &[])), [11, 22, 33]);
        assert_eq!(all(reduction(Form::ExclusiveScan, ReduceOp::Sum, &inputs, &[], 0, 0, &[7])), [7]);
        assert_eq!(all(reduction(Form::ReduceScatter, ReduceOp::Max, &inputs, &[], 1, 0, &[])), [200]);
        assert_eq!(reduction(Form::ReduceScatterInPlace, ReduceOp::Min, &inputs, &[], 2, 0, &[]), [None, None, Some(3)]);
        assert_eq!(all(movement(Form::AllToAll, &inputs, 1, 0, &[])), [2, 20, 200]);
        assert_eq!(all(movement(Form::AllGatherInPlace, &inputs, 1, 0, &[])), [1, 20, 300]);
        assert_eq!(all(movement(Form::Scatter, &inputs, 2, 1, &[])), [30]);
        assert_eq!(all(movement(Form::Gather, &inputs[..2], 0, 0, &[])), [1, 2, 3, 10, 20, 30]);
        assert_eq!(all(movement(Form::Gather, &inputs, 1, 0, &[7])), [7]);
        let ragged_inputs = [vec![1], vec![], vec![2, 3]];
        let parts = [(); 3].map(|()| Parts::new([1, 0, 2], [3, 0, 0]));
        assert_eq!(all(ragged(Form::AllGatherV, &ragged_inputs, &parts, 1, 0, &[9; 4])), [2, 3, 9, 1]);
        assert_eq!(all(ragged(Form::ScatterV, &[vec![4, 5, 6, 7], vec![], vec![]], &parts, 2, 0, &[9; 2])), [4, 5]);
    }
}
