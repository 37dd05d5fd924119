//! Generates wrappers in C++ for NVSHMEM's device functions. The wrappers are generated from the
//! table `peerweave_device::network::FUNCTIONS`. The declarations that kernels use are generated
//! from the same table.

use std::collections::BTreeSet;
use std::path::Path;

use peerweave_device::network::{FUNCTIONS, Function};

use crate::error::LinkError;
use crate::{CudaHeaders, Source};

/// Text that precedes NVSHMEM's headers. NVRTC has no standard library, but NVSHMEM's headers
/// before 3.8 need names of the standard library. This text therefore declares these names. The
/// text also redefines `uint64_t`: CCCL declares it as `unsigned long long`, but NVSHMEM's archive
/// was compiled with `unsigned long`. Without the redefinition, the linker would not find functions
/// with parameters of type `uint64_t`. All CUDA headers that declare `uint64_t` must precede the
/// redefinition.
const PRELUDE: &str = "
#include <cuda/std/type_traits>
#include <cuda/std/cstdint>
#include <cuda/std/cstddef>
#include <cuda/std/climits>
#include <cuda/std/cassert>
#include <cuda/std/cstdlib>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_awbarrier.h>
#include <cuda_awbarrier_primitives.h>
#include <cooperative_groups.h>
namespace std {
using cuda::std::is_integral;
using cuda::std::is_signed;
using cuda::std::is_unsigned;
using cuda::std::is_same;
using cuda::std::enable_if;
}
#define int64_t long
#define uint64_t unsigned long
";

/// Finds the wrapper functions that a PTX text calls. A wrapper calls one device function of
/// NVSHMEM. Returns the wrappers in alphabetical order.
///
/// # Errors
/// [`LinkError::Misuse`] if the PTX calls an unknown wrapper, because the PTX was built with a
/// different version of `peerweave-device`.
pub fn used_by(ptx: &str) -> Result<Vec<&'static Function>, LinkError> {
    const PREFIX: &str = "peerweave_nvshmem_";
    let names: BTreeSet<&str> = ptx
        .split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_' || letter == '$'))
        .filter(|word| word.starts_with(PREFIX) && !word.contains("_param_"))
        .collect();
    let find = |name: &&str| {
        FUNCTIONS.iter().find(|function| function.name == *name).ok_or_else(|| LinkError::Misuse {
            call: "nvshmem::used_by",
            what: "an NVSHMEM wrapper function that the PTX calls",
            value: (*name).to_owned(),
            expected: "a name in peerweave_device::network::FUNCTIONS; rebuild the PTX with this program's version of peerweave-device",
        })
    };
    names.iter().map(find).collect()
}

/// Returns the CUDA C++ source of the wrappers in `functions`. `include` is the directory that
/// contains NVSHMEM's headers, and `cuda` lists the directories that contain CUDA's headers.
pub fn wrappers(functions: &[&Function], include: &Path, cuda: &CudaHeaders) -> Source {
    let mut text = format!("{PRELUDE}#include <nvshmem.h>\n#include <nvshmemx.h>\n");
    for function in functions {
        let parameters = function.parameters.iter().map(|(kind, name)| format!("{kind} {name}"));
        let parameters = parameters.collect::<Vec<_>>().join(", ");
        let Function { name, result, body, .. } = function;
        text.push_str(&format!("extern \"C\" __device__ {result} {name}({parameters}) {{ {body} }}\n"));
    }
    // A kernel with blocks of 1024 threads has 64 registers per thread, and cannot call functions
    // that need more registers.
    let source = Source::new("peerweave_nvshmem.cu", text).option("-std=c++17").option("-default-device");
    let source = source.option("--maxrregcount=64").include(include);
    cuda.directories.iter().fold(source, |source, directory| source.include(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_wrappers_that_the_ptx_calls_are_generated() {
        let ptx = ".extern .func peerweave_nvshmem_quiet ();\n.extern .func (.param .b32 r) peerweave_nvshmem_g32 (.param .b64 peerweave_nvshmem_g32_param_0);\ncall.uni peerweave_nvshmem_quiet, ();";
        let used = used_by(ptx).expect("both wrappers are in the table");
        assert_eq!(
            used.iter().map(|function| function.name).collect::<Vec<_>>(),
            ["peerweave_nvshmem_g32", "peerweave_nvshmem_quiet"]
        );
        let cuda = CudaHeaders { directories: vec!["/cuda/include".into()] };
        let source = wrappers(&used, Path::new("/nvshmem/include"), &cuda);
        let line = "extern \"C\" __device__ unsigned int peerweave_nvshmem_g32(unsigned long long from, int pe) { return nvshmem_uint32_g((const uint32_t*)from, pe); }";
        assert!(source.text().contains(line), "{}", source.text());
        assert!(!source.text().contains("peerweave_nvshmem_fence"));
        assert_eq!(source.directories().collect::<Vec<_>>(), [Path::new("/nvshmem/include"), Path::new("/cuda/include")]);
    }

    #[test]
    fn ptx_that_calls_an_unknown_wrapper_is_refused() {
        let error = used_by(".extern .func peerweave_nvshmem_no_such ();")
            .expect_err("the call fails, because the wrapper is not in the table");
        assert!(error.to_string().contains("peerweave_nvshmem_no_such"), "{error}");
    }
}
