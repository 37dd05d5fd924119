//! Tests that the header for kernels in CUDA C++ compiles, with the layouts of the host, for every
//! supported architecture.
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
fn header_compiles_with_the_layouts_of_the_host() {
    let nvrtc = Nvrtc::load().expect("it is installed");
    let source = Source::new("ring.cu", RING).header("peerweave.cuh", peerweave_cuh()).option("-std=c++17");
    // CUDA 13 has no sm_70 any more, and sm_100 came with CUDA 12.8.
    let known = nvrtc.archs().expect("it says which");
    let archs = [Arch::new(7, 0), Arch::new(7, 5), Arch::new(8, 0), Arch::new(9, 0), Arch::new(10, 0)];
    let archs: Vec<Arch> = archs.into_iter().filter(|arch| known.contains(arch)).collect();
    assert!(archs.len() >= 4, "NVRTC {} knows {known:?}", nvrtc.version());
    for arch in archs {
        let compiled = nvrtc.compile(&source, Target::Ptx(arch)).expect("it compiles");
        let text = String::from_utf8_lossy(&compiled.image);
        for instruction in ["st.release.sys.global.u64", "ld.acquire.sys.global.u64", "%globaltimer"] {
            assert!(text.contains(instruction), "{arch}: no {instruction}");
        }
    }
    // A failing assertion is an error, which shows that the assertions above were evaluated.
    let wrong = peerweave_cuh().replace("alignas(16) TeamEntry {", "alignas(16) TeamEntry { u32 more;");
    let source = Source::new("ring.cu", RING).header("peerweave.cuh", wrong).option("-std=c++17");
    let error = nvrtc.compile(&source, Target::Ptx(Arch::new(9, 0))).expect_err("a field is in another place");
    assert!(error.to_string().contains("TeamEntry"), "{error}");
}
