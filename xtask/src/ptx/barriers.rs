//! Counts barriers that return a value: as many as the source has.
//!
//! A compiler that copies one into the paths of a branch sends threads of one barrier to different
//! instructions, which NVIDIA's synccheck reports.

use super::text;

/// A kernel, and the number of barriers that return a value in its source.
const EXPECTED: [(&str, usize); 1] = [
    // `Team::meet_as` synchronises once by `exchange_one` and once by `exchange`.
    ("bench_barrier_block", 2),
];

/// The counted operation.
const BARRIER: &str = "bar.red.or.pred";

/// Checks the kernels of [`EXPECTED`].
pub(super) fn check(ptx: &str) -> Vec<String> {
    EXPECTED.iter().filter_map(|(kernel, expected)| fault(ptx, kernel, *expected)).collect()
}

/// Returns the fault of one kernel, if any.
pub(super) fn fault(ptx: &str, kernel: &str, expected: usize) -> Option<String> {
    let Some(body) = text::body(ptx, kernel) else { return Some(format!("the PTX lacks {kernel}")) };
    let found = text::instructions(body).filter(|found| text::operation(found) == BARRIER).count();
    (found != expected)
        .then(|| format!("{kernel} has {found} `{BARRIER}`, expected {expected}: the compiler has duplicated or removed one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicated_barrier_is_a_fault() {
        let kernel = |barriers: usize| {
            let barrier = "\tbar.red.or.pred \t%p2, 0, %p1;\n".repeat(barriers);
            format!(".visible .entry bench_barrier_block(\n)\n{{\n{barrier}\tret;\n}}\n")
        };
        assert_eq!(check(&kernel(2)), Vec::<String>::new());
        assert_eq!(check(&kernel(3)).len(), 1);
        assert_eq!(check("").len(), 1);
    }
}
