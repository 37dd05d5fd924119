//! Compiles the kernels to PTX where there is a toolchain for it.

fn main() {
    peerweave_build::Kernels::new().network().build();
}
