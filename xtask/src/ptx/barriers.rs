//! Checks that the PTX of a kernel has as many barriers that return a value as the kernel's source.
//!
//! If a compiler copies a barrier into the paths of a branch, threads of the same barrier wait at
//! different instructions, which NVIDIA's synccheck reports.

use super::text;

/// For each kernel, the number of barriers in its source that return a value, and the number of
/// additional such barriers if bulk copies are available.
const EXPECTED: [(&str, usize, usize); 2] = [
    // One barrier passes the outcome of a synchronisation from one warp to all
    // (`Context::meet_as`).
    ("bench_barrier_block", 1, 0),
    // One barrier passes the outcome of the wait. With bulk copies, two puts each need a barrier to
    // decide whether the copy unit copies.
    ("bench_ping_pong_block", 1, 2),
];

/// The target without bulk copies.
const WITHOUT_BULK: &str = "\n.target sm_70";

/// The PTX operation that this check counts: a barrier that returns a value.
const BARRIER: &str = "bar.red.or.pred";

/// Checks the kernels of [`EXPECTED`].
pub(super) fn check(ptx: &str) -> Vec<String> {
    let more = |bulk: usize| if ptx.contains(WITHOUT_BULK) { 0 } else { bulk };
    EXPECTED.iter().filter_map(|(kernel, expected, bulk)| fault(ptx, kernel, expected + more(*bulk))).collect()
}

/// Returns the fault of one kernel, if any.
pub(super) fn fault(ptx: &str, kernel: &str, expected: usize) -> Option<String> {
    let Some(body) = text::body(ptx, kernel) else { return Some(format!("the PTX lacks {kernel}")) };
    let found = text::instructions(body).filter(|found| text::operation(found) == BARRIER).count();
    (found != expected).then(|| {
        format!("{kernel} has {found} `{BARRIER}`, expected {expected}: the compiler has duplicated or removed a barrier")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_with_a_duplicated_barrier_is_reported() {
        let kernel = |name: &str, barriers: usize| {
            let barrier = "\tbar.red.or.pred \t%p2, 0, %p1;\n".repeat(barriers);
            format!(".visible .entry {name}(\n)\n{{\n{barrier}\tret;\n}}\n")
        };
        let ping_pong = kernel("bench_ping_pong_block", 3);
        assert_eq!(check(&(kernel("bench_barrier_block", 1) + &ping_pong)), Vec::<String>::new());
        assert_eq!(check(&(kernel("bench_barrier_block", 2) + &ping_pong)).len(), 1);
        assert_eq!(check("").len(), 2);
        let older = kernel("bench_barrier_block", 1) + &kernel("bench_ping_pong_block", 1);
        assert_eq!(check(&format!(".version 8.4\n.target sm_70\n{older}")), Vec::<String>::new());
    }
}
