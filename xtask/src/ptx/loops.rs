//! Checks inner loops of kernels that copy: vectors of 16 bytes, eight loads before eight stores.
//!
//! Every shipped kernel is in one of two lists: kernels that copy arrays, and other kernels.

use super::{Outcome, text};
use peerweave_build::Variant;

/// Number of vectors that a loop must load before the first store.
const IN_FLIGHT: usize = 8;

/// A kernel that copies, and the instructions expected in its inner loop.
struct Copies {
    kernel: &'static str,
    load: &'static str,
    store: &'static str,
    /// Whether the kernel uses bulk copies on architectures that have them.
    bulk: bool,
}

const PUT: (&str, &str) = ("ld.global.v2.b64", "st.global.v2.b64");
const GET: (&str, &str) = ("ld.relaxed.sys.global.v2.b64", "st.global.v2.b64");

const fn copies(kernel: &'static str, (load, store): (&'static str, &'static str), bulk: bool) -> Copies {
    Copies { kernel, load, store, bulk }
}

/// Kernels that move single elements, or nothing.
const WITHOUT_COPIES: [&str; 10] = [
    "attend",
    "bench_atomic",
    "bench_atomic_relaxed",
    "bench_barrier_block",
    "bench_barrier_thread",
    "bench_barrier_warp",
    "bench_g",
    "bench_p",
    "matmul",
    "ring",
];

const COPIES: [Copies; 21] = [
    copies("all_gather", PUT, false),
    copies("pipeline", PUT, false),
    copies("bench_put_thread", PUT, false),
    copies("bench_put_thread_lent", PUT, true),
    copies("bench_put_warp", PUT, false),
    copies("bench_put_warp_lent", PUT, true),
    copies("bench_put_block", PUT, false),
    copies("bench_put_block_lent", PUT, true),
    copies("bench_put_bandwidth", PUT, false),
    copies("bench_put_bandwidth_bulk", PUT, true),
    copies("bench_get_thread", GET, false),
    copies("bench_get_thread_lent", GET, true),
    copies("bench_get_warp", GET, false),
    copies("bench_get_warp_lent", GET, true),
    copies("bench_get_block", GET, false),
    copies("bench_get_block_lent", GET, true),
    copies("bench_get_bandwidth", GET, false),
    copies("bench_get_bandwidth_bulk", GET, true),
    copies("bench_ping_pong_thread", PUT, false),
    copies("bench_ping_pong_warp", PUT, false),
    copies("bench_ping_pong_block", PUT, false),
];

/// First architecture with bulk copies.
const BULK: u32 = 90;

/// Checks the loops of kernels that copy.
pub(super) fn check(ptx: &str, variant: Variant) -> Outcome {
    let mut outcome = Outcome::default();
    for Copies { kernel, load, store, bulk } in COPIES {
        let Some(body) = text::body(ptx, kernel) else {
            outcome.faults.push(format!("the PTX lacks {kernel}"));
            continue;
        };
        let count =
            |block: &str, wanted: &str| text::instructions(block).filter(|found| text::operation(found) == wanted).count();
        let widest =
            text::own_loops(body).into_iter().map(|block| count(block, load).min(count(block, store))).max().unwrap_or(0);
        if widest < IN_FLIGHT {
            outcome
                .faults
                .push(format!("{kernel}: no loop has more than {widest} pairs of `{load}` and `{store}`, expected {IN_FLIGHT}"));
        }
        let bulks = text::instructions(body).filter(|found| text::operation(found).starts_with("cp.async.bulk.")).count();
        if bulk && (variant.sm >= BULK) != (bulks > 0) {
            outcome.faults.push(format!(
                "{kernel}: found {bulks} bulk copies for sm_{}, expected {}",
                variant.sm,
                if variant.sm >= BULK { "at least 1" } else { "none" }
            ));
        }
        outcome.checked += 1;
    }
    for kernel in peerweave_build::entries(ptx) {
        if !WITHOUT_COPIES.contains(&kernel) && !COPIES.iter().any(|copies| copies.kernel == kernel) {
            let fault = format!(
                "{kernel} is in neither list: add it in {} to the kernels that copy arrays or to the other kernels",
                file!()
            );
            outcome.faults.push(fault);
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Variant = Variant { sm: 70, network: false };

    /// Returns the PTX of all kernels that copy, with `vectors` vectors in each loop.
    fn kernels(vectors: usize) -> String {
        let entry = |copies: &Copies| {
            let Copies { kernel, load, store, .. } = copies;
            let batch = format!("\t{load} {{%rd1, %rd2}}, [%rd3];\n").repeat(vectors)
                + &format!("\t{store} [%rd3], {{%rd1, %rd2}};\n").repeat(vectors);
            format!(".visible .entry {kernel}(\n)\n{{\n$L_1:\n{batch}\t@%p1 bra \t$L_1;\n\tret;\n}}\n")
        };
        COPIES.iter().map(entry).collect()
    }

    #[test]
    fn copy_loop_with_fewer_than_8_loads_and_stores_is_reported() {
        let whole = check(&kernels(8), OLD);
        assert_eq!((whole.checked, whole.faults), (COPIES.len(), Vec::new()));
        assert_eq!(check(&kernels(7), OLD).faults.len(), COPIES.len());
    }

    #[test]
    fn missing_kernel_and_unlisted_kernel_are_reported() {
        let renamed = kernels(8).replace(".entry pipeline(", ".entry conveyor(");
        let faults = check(&renamed, OLD).faults;
        assert_eq!(faults.len(), 2);
        assert!(faults[0].contains("the PTX lacks pipeline"), "{faults:?}");
        assert!(faults[1].contains("conveyor is in neither list"), "{faults:?}");
    }
}
