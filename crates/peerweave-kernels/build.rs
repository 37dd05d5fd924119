//! Embeds the PTX that is committed in `ptx`: whoever uses this crate needs no compiler for GPUs.

fn main() {
    peerweave_build::committed("ptx");
}
