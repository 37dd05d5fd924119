//! Compiles the kernels to PTX only if `PEERWEAVE_PTX=require` is set, because the compilation
//! takes minutes.

fn main() {
    peerweave_build::Kernels::new().architectures(&[90]).network().on_request().build();
}
