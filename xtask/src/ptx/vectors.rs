//! Checks that kernels move vectors of 16 bytes: the kernels that exchange tokens, and the kernel
//! that fills memory. A thread that exchanges tokens starts the accesses to all lines of a batch
//! before it waits for any of them.

use super::{Outcome, text};
use peerweave_build::Variant;

/// Number of 16-byte lines in a batch of the kernels that exchange tokens.
const BATCH: usize = 4;

/// Reads a line that another rank has sent, by one atomic access.
const LOOK: &str = "ld.relaxed.sys.global.b128";
/// Writes a line to another rank, or the sentinel to a line of this rank.
const PUSH: &str = "st.relaxed.sys.global.b128";
/// Reads 16 bytes of an operand.
const READ: &str = "ld.global.v2.b64";
const WRITE: &str = "st.global.v2.b64";

/// Accesses thread-local memory: the compiler has not kept a vector in registers.
const LOCAL: [&str; 2] = ["ld.local.", "st.local."];

/// A kernel, and the instructions that it must contain, with their minimum numbers.
type Kernel = (&'static str, &'static [(&'static str, usize)]);

/// The kernels that exchange tokens. An instruction is needed for every line of a batch. The
/// accesses to tokens and to scales are separate instructions.
const TOKENS: [Kernel; 9] = [
    ("moe_combine_receive_bf16", &[(LOOK, BATCH), (PUSH, BATCH), (WRITE, BATCH)]),
    ("moe_combine_receive_f16", &[(LOOK, BATCH), (PUSH, BATCH), (WRITE, BATCH)]),
    ("moe_combine_receive_f32", &[(LOOK, BATCH), (PUSH, BATCH), (WRITE, BATCH)]),
    ("moe_combine_send_bf16", &[(READ, BATCH), (PUSH, BATCH)]),
    ("moe_combine_send_f16", &[(READ, BATCH), (PUSH, BATCH)]),
    ("moe_combine_send_f32", &[(READ, BATCH), (PUSH, BATCH)]),
    // Reads and writes single entries of the routing table.
    ("moe_dispatch_plan", &[(LOOK, 1), (PUSH, 1)]),
    ("moe_dispatch_receive", &[(LOOK, BATCH), (PUSH, BATCH), (WRITE, 2 * BATCH)]),
    ("moe_dispatch_send", &[(READ, 2 * BATCH), (PUSH, BATCH)]),
];

/// The kernels that streams launch. All but one access single elements.
const STREAMS: [Kernel; 6] = [
    ("stream_atomic", &[]),
    ("stream_barrier", &[]),
    ("stream_fill", &[(WRITE, 1)]),
    ("stream_put_element", &[]),
    ("stream_signal", &[]),
    ("stream_wait", &[]),
];

/// Checks every kernel that exchanges tokens.
pub(super) fn tokens(ptx: &str, _: Variant) -> Outcome {
    check(ptx, &TOKENS)
}

/// Checks every kernel that streams launch.
pub(super) fn streams(ptx: &str, _: Variant) -> Outcome {
    check(ptx, &STREAMS)
}

fn check(ptx: &str, kernels: &[Kernel]) -> Outcome {
    let mut outcome = Outcome::default();
    for kernel in peerweave_build::entries(ptx) {
        let Some((_, expected)) = kernels.iter().find(|(name, _)| *name == kernel) else {
            outcome.faults.push(format!("{kernel} is not in the list of kernels in {}", file!()));
            continue;
        };
        let body = text::body(ptx, kernel).unwrap_or_default();
        let operations: Vec<&str> = text::instructions(body).map(text::operation).collect();
        for (wanted, least) in *expected {
            let found = operations.iter().filter(|operation| *operation == wanted).count();
            if found < *least {
                outcome.faults.push(format!("{kernel} has {found} `{wanted}`, expected at least {least}"));
            }
        }
        let locals = operations.iter().filter(|found| LOCAL.iter().any(|local| found.starts_with(local))).count();
        if locals > 0 && !expected.is_empty() {
            outcome.faults.push(format!("{kernel} accesses local memory {locals} times, expected never"));
        }
        outcome.checked += 1;
    }
    for (kernel, _) in kernels {
        if text::body(ptx, kernel).is_none() {
            outcome.faults.push(format!("the PTX lacks {kernel}"));
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the PTX of all kernels, with `lines` times the instructions of one line in each.
    fn kernels(lines: usize) -> String {
        let entry = |(name, expected): &Kernel| {
            let body: String = expected
                .iter()
                .map(|(what, least)| format!("\t{what} \t%rd1, [%rd2];\n").repeat(least * lines / BATCH))
                .collect();
            format!(".visible .entry {name}(\n)\n{{\n{body}\tret;\n}}\n")
        };
        TOKENS.iter().map(entry).collect()
    }

    #[test]
    fn kernels_that_move_fewer_than_4_vectors_a_batch_are_reported() {
        let whole = check(&kernels(4), &TOKENS);
        assert_eq!((whole.checked, whole.faults), (TOKENS.len(), Vec::new()));
        let expected: usize = TOKENS.iter().map(|(_, expected)| expected.len()).sum();
        assert_eq!(check(&kernels(3), &TOKENS).faults.len(), expected);
    }

    #[test]
    fn kernel_that_uses_local_memory_or_is_missing_is_reported() {
        let spilled = kernels(4).replace("\tret;", "\tst.local.b64 [%rd1], %rd2;\n\tret;");
        assert_eq!(check(&spilled, &TOKENS).faults.len(), TOKENS.len());
        let renamed = kernels(4).replace(".entry moe_dispatch_plan(", ".entry moe_plan(");
        assert_eq!(check(&renamed, &TOKENS).faults.len(), 2);
    }
}
