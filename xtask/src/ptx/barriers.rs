//! Counts barriers that return a value: as many as the source has.
//!
//! A compiler that copies one into the paths of a branch sends threads of one barrier to different
//! instructions, which NVIDIA's synccheck reports.

use super::text;

/// A kernel, and how many such barriers its source has.
const EXPECTED: [(&str, usize); 1] = [
    // A meeting by `exchange_one` and one by `exchange`: `Team::meet_as`.
    ("bench_barrier_block", 2),
];

/// The operation that is counted.
const BARRIER: &str = "bar.red.or.pred";

/// Checks the kernels of the list.
pub(super) fn check(ptx: &str) -> Vec<String> {
    EXPECTED.iter().filter_map(|(kernel, expected)| fault(ptx, kernel, *expected)).collect()
}

/// What is wrong with one kernel.
pub(super) fn fault(ptx: &str, kernel: &str, expected: usize) -> Option<String> {
    let Some(body) = text::body(ptx, kernel) else { return Some(format!("{kernel} is not there")) };
    let found = text::instructions(body).filter(|found| text::operation(found) == BARRIER).count();
    (found != expected)
        .then(|| format!("{kernel} has {found} `{BARRIER}`, expected {expected}: the compiler has copied or lost one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copied_barrier_is_a_fault() {
        let kernel = |barriers: usize| {
            let barrier = "\tbar.red.or.pred \t%p2, 0, %p1;\n".repeat(barriers);
            format!(".visible .entry bench_barrier_block(\n)\n{{\n{barrier}\tret;\n}}\n")
        };
        assert_eq!(check(&kernel(2)), Vec::<String>::new());
        assert_eq!(check(&kernel(3)).len(), 1);
        assert_eq!(check("").len(), 1);
    }
}
