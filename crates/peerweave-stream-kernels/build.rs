//! Embeds the PTX that is committed in `ptx`, so users of this crate need no compiler for GPUs.

fn main() {
    peerweave_build::committed("ptx");
}
