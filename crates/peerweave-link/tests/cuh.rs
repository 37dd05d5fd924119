//! Tests that the header for kernels in CUDA C++ compiles for several architectures, and that the
//! structs of the header have the same layouts as the structs in Rust.
#![cfg(target_os = "linux")]

use peerweave_link::{Arch, Nvrtc, Source, Target, peerweave_cuh};

const RING: &str = r#"
#include "peerweave.cuh"
using namespace peerweave;
extern "C" __global__ void ring(const Context* ctx, SymSlice<u64> word, SymSlice<u64> signal, u64 round) {
    const u32 next = (ctx->my_pe + 1) % ctx->n_pes;
    if (threadIdx.x == 0) {
        p(ctx, word, u64(10 * ctx->my_pe + 7), next);
        signal_set(ctx, signal, round, next);
        signal_wait_at_least(ctx, signal, round);
    }
    barrier_all_block(ctx);
}
"#;

#[test]
fn peerweave_cuh_compiles_only_if_its_structs_match_rust() {
    let nvrtc = Nvrtc::load().expect("NVRTC is installed");
    let source = Source::new("ring.cu", RING).header("peerweave.cuh", peerweave_cuh()).option("-std=c++17");
    // CUDA 13 no longer supports sm_70, and only CUDA 12.8 and newer support sm_100.
    let known = nvrtc.archs().expect("NVRTC reports its architectures");
    let archs = [Arch::new(7, 0), Arch::new(7, 5), Arch::new(8, 0), Arch::new(9, 0), Arch::new(10, 0)];
    let archs: Vec<Arch> = archs.into_iter().filter(|arch| known.contains(arch)).collect();
    assert!(archs.len() >= 4, "NVRTC {} supports only {known:?}", nvrtc.version());
    for arch in archs {
        let compiled = nvrtc.compile(&source, Target::Ptx(arch)).expect("the source compiles");
        let text = String::from_utf8_lossy(&compiled.image);
        for instruction in ["st.release.sys.global.u64", "ld.acquire.sys.global.u64", "%globaltimer"] {
            assert!(text.contains(instruction), "{arch}: the PTX does not contain {instruction}");
        }
    }
    // With a changed layout the compilation must fail, which shows that the assertions are
    // evaluated.
    let wrong = peerweave_cuh().replace("alignas(16) TeamEntry {", "alignas(16) TeamEntry { u32 more;");
    let source = Source::new("ring.cu", RING).header("peerweave.cuh", wrong).option("-std=c++17");
    let error = nvrtc
        .compile(&source, Target::Ptx(Arch::new(9, 0)))
        .expect_err("the compilation fails, because the fields have other offsets");
    assert!(error.to_string().contains("TeamEntry"), "{error}");
}
