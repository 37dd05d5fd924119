//! Compiles the kernels to PTX if a suitable toolchain is installed.

fn main() {
    peerweave_build::Kernels::new().network().build();
}
