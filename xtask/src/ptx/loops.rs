//! Inner loops of the kernels that copy: vectors of 16 bytes, eight loads before eight stores.

use super::{Outcome, text};
use peerweave_build::Variant;

/// Vectors in flight in one loop.
const IN_FLIGHT: usize = 8;

/// A kernel that copies, and what its inner loop must hold.
struct Copies {
    kernel: &'static str,
    load: &'static str,
    store: &'static str,
    /// Whether it can copy in bulk where the architecture does.
    bulk: bool,
}

const PUT: (&str, &str) = ("ld.global.v2.b64", "st.global.v2.b64");
const GET: (&str, &str) = ("ld.relaxed.sys.global.v2.b64", "st.global.v2.b64");

const fn copies(kernel: &'static str, (load, store): (&'static str, &'static str), bulk: bool) -> Copies {
    Copies { kernel, load, store, bulk }
}

const COPIES: [Copies; 11] = [
    copies("bench_put_thread", PUT, true),
    copies("bench_put_warp", PUT, true),
    copies("bench_put_block", PUT, true),
    copies("bench_put_bandwidth", PUT, false),
    copies("bench_get_thread", GET, true),
    copies("bench_get_warp", GET, true),
    copies("bench_get_block", GET, true),
    copies("bench_get_bandwidth", GET, false),
    copies("bench_ping_pong_thread", PUT, false),
    copies("bench_ping_pong_warp", PUT, false),
    copies("bench_ping_pong_block", PUT, false),
];

/// First architecture with bulk copies.
const BULK: u32 = 90;

/// Looks at the loops of the kernels that copy.
pub(super) fn check(ptx: &str, variant: Variant) -> Outcome {
    let mut outcome = Outcome::default();
    for Copies { kernel, load, store, bulk } in COPIES {
        let Some(body) = text::body(ptx, kernel) else {
            outcome.faults.push(format!("{kernel} is not there"));
            continue;
        };
        let count =
            |block: &str, wanted: &str| text::instructions(block).filter(|found| text::operation(found) == wanted).count();
        let widest =
            text::own_loops(body).into_iter().map(|block| count(block, load).min(count(block, store))).max().unwrap_or(0);
        if widest < IN_FLIGHT {
            outcome.faults.push(format!("{kernel}: its loops hold {widest} `{load}` and `{store}`, expected {IN_FLIGHT}"));
        }
        let bulks = text::instructions(body).filter(|found| text::operation(found).starts_with("cp.async.bulk.")).count();
        if bulk && (variant.sm >= BULK) != (bulks > 0) {
            outcome.faults.push(format!("{kernel}: found {bulks} bulk copies for sm_{}", variant.sm));
        }
        outcome.checked += 1;
    }
    outcome
}
