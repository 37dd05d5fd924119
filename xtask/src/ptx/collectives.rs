//! Checks the collective kernels. Each rank sends lines of 16 bytes. A kernel that waits reads a
//! line of each rank by one access of 16 bytes, before it examines the first line. Pushes and
//! copies move 16 bytes at a time. The check counts instructions in basic blocks.

use super::{Outcome, text};
use peerweave_build::Variant;

/// Reads a line of 16 bytes, which contains the flag of its arrival, by one atomic access.
const LOOK: &str = "ld.relaxed.sys.global.b128";
const PUSH: &str = "st.relaxed.sys.global.b128";
/// Reads 16 bytes of an operand, or of a chunk.
const READ: &str = "ld.global.v2.b64";
const WRITE: &str = "st.global.v2.b64";
/// Reads 16 bytes of a chunk that has arrived.
const ARRIVED: &str = "ld.relaxed.sys.global.v2.b64";

/// Sets the flag of a barrier. The release order makes fences unnecessary.
const RELEASE: &str = "st.release.sys.global.b64";
const ACQUIRE: &str = "ld.acquire.sys.global.b64";

/// Barriers that return a value. The source of a chunked kernel has two such barriers, and the
/// source of a ring kernel has three. The compiler must not copy a barrier into the paths of a
/// branch.
const BARRIER: &str = "bar.red.or.pred";

/// Reads thread-local memory: the compiler has not kept a vector in registers. Only reductions of
/// 8-bit elements, whose vectors have 16 elements, may have such reads.
const LOCAL: &str = "ld.local.";

/// Maximum number of ranks whose lines a thread awaits at the same time.
const GROUP: usize = 4;

/// Returns the instructions that at least one basic block of a kernel must contain, with their
/// minimum numbers, for up to `ranks` ranks.
fn expected(kernel: &str, ranks: usize) -> Vec<(&'static str, usize)> {
    if kernel.contains("_chunked_") {
        vec![(READ, 4), (WRITE, 4), (ARRIVED, ranks)]
    } else if awaits_two_lines(kernel, ranks) {
        vec![(LOOK, 2 * ranks), (PUSH, 1), (READ, 1), (WRITE, 1)]
    } else if kernel.contains("_ring_") {
        vec![(READ, 4), (WRITE, 4), (ARRIVED, 4)]
    } else if kernel.starts_with("transfer_") {
        // A message of each rank may be shorter, or missing.
        vec![(LOOK, 1), (PUSH, 1), (READ, 1), (WRITE, 1)]
    } else if kernel.starts_with("barrier_") {
        vec![(RELEASE, 1), (ACQUIRE, 1)]
    } else if kernel.starts_with("rms_norm_plain_") {
        vec![(READ, 2), (WRITE, 1)]
    } else {
        vec![(LOOK, ranks.min(GROUP)), (PUSH, 1), (READ, 1), (WRITE, 1)]
    }
}

/// Returns whether a thread of a kernel awaits the lines of two rows at the same time.
fn awaits_two_lines(kernel: &str, ranks: usize) -> bool {
    let names = ["two_shot_", "reduce_scatter_plain_", "all_gather_plain_", "all_to_all_plain_"];
    ranks <= GROUP && kernel.contains("_plain_") && !kernel.contains("rms_norm") && names.iter().any(|name| kernel.contains(name))
}

/// Checks every kernel of the PTX.
pub(super) fn check(ptx: &str, _: Variant) -> Outcome {
    let mut outcome = Outcome::default();
    // Kernels that combine operands of this device wait for nothing.
    for kernel in peerweave_build::entries(ptx).into_iter().filter(|kernel| !kernel.starts_with("combine_")) {
        let Some(ranks) = kernel.rsplit('_').next().and_then(|last| last.parse::<usize>().ok()) else {
            outcome.faults.push(format!("{kernel}: the name does not end with a number of ranks"));
            continue;
        };
        let body = text::body(ptx, kernel).unwrap_or_default();
        let count =
            |block: &str, wanted: &str| text::instructions(block).filter(|found| text::operation(found) == wanted).count();
        for (wanted, least) in expected(kernel, ranks) {
            let most = text::blocks(body).into_iter().map(|block| count(block, wanted)).max().unwrap_or(0);
            if most < least {
                outcome.faults.push(format!(
                    "{kernel}: no basic block has more than {most} `{wanted}`, expected one with at least {least}"
                ));
            }
        }
        let barriers = count(body, BARRIER);
        let wanted = match kernel {
            _ if kernel.contains("_chunked_") => 2,
            _ if kernel.contains("_ring_") => 3,
            _ => 0,
        };
        if barriers != wanted {
            outcome.faults.push(format!("{kernel} has {barriers} `{BARRIER}`, expected {wanted}"));
        }
        let locals = text::instructions(body).filter(|found| text::operation(found).starts_with(LOCAL)).count();
        let reduces = kernel.contains("reduce") || ["scan_", "rms_norm_"].iter().any(|name| kernel.starts_with(name));
        if locals > 0 && reduces && !["_i8_", "_u8_"].iter().any(|bytes| kernel.contains(bytes)) {
            outcome.faults.push(format!("{kernel} has {locals} `{LOCAL}`, expected none"));
        }
        outcome.checked += 1;
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(name: &str, instructions: &[(&str, usize)]) -> String {
        let body: String = instructions.iter().map(|(what, n)| format!("\t{what} \t%rd1, [%rd2];\n").repeat(*n)).collect();
        format!(".visible .entry {name}(\n)\n{{\n$L_1:\n{body}\t@%p1 bra \t$L_1;\n\tret;\n}}\n")
    }

    #[test]
    fn kernel_with_wrong_number_of_polls_or_barriers_is_reported() {
        let variant = Variant { sm: 90, network: false };
        let found =
            |looks| check(&kernel("all_reduce_one_shot_f32_4", &[(LOOK, looks), (PUSH, 1), (READ, 1), (WRITE, 1)]), variant);
        assert_eq!(found(4).faults, Vec::<String>::new());
        assert_eq!(found(3).faults.len(), 1);
        assert_eq!(check(&kernel("all_reduce", &[]), variant).faults.len(), 1);
        let locals =
            |name: &str| check(&kernel(name, &[(LOOK, 4), (PUSH, 1), (READ, 1), (WRITE, 1), ("ld.local.b64", 1)]), variant);
        assert_eq!(locals("all_reduce_one_shot_f32_4").faults, ["all_reduce_one_shot_f32_4 has 1 `ld.local.`, expected none"]);
        assert_eq!(locals("all_reduce_one_shot_u8_4").faults, Vec::<String>::new());
        let barriers =
            |n| check(&kernel("all_reduce_chunked_f32_2", &[(READ, 4), (WRITE, 4), (ARRIVED, 2), (BARRIER, n)]), variant);
        assert_eq!(barriers(2).faults, Vec::<String>::new());
        assert_eq!(barriers(3).faults.len(), 1);
    }
}
