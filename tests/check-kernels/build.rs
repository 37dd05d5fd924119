//! Compiles the kernels to PTX where `PEERWEAVE_PTX=require` asks for it: it takes minutes.

fn main() {
    peerweave_build::Kernels::new().architectures(&[90]).network().on_request().build();
}
