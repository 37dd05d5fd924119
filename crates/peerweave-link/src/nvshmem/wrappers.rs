//! Generates the C++ of the wrappers, from the same table as the declarations in kernels.

use std::collections::BTreeSet;
use std::path::Path;

use peerweave_device::network::{FUNCTIONS, Function};

use crate::error::LinkError;
use crate::{CudaHeaders, Source};

/// Text before NVSHMEM's headers. It declares names of the standard library that headers before 3.8
/// need, because NVRTC has no standard library. It also redefines `uint64_t`: CCCL declares it as
/// `unsigned long long`, but the archive was compiled with `unsigned long`, so functions with such
/// parameters would not be found. All CUDA headers that declare the name must precede it.
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

/// Returns the wrappers that PTX calls.
///
/// # Errors
/// [`LinkError::Misuse`] for an unknown wrapper, if the PTX was built with another version of
/// `peerweave-device`.
pub fn used_by(ptx: &str) -> Result<Vec<&'static Function>, LinkError> {
    const PREFIX: &str = "peerweave_nvshmem_";
    let names: BTreeSet<&str> = ptx
        .split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_' || letter == '$'))
        .filter(|word| word.starts_with(PREFIX) && !word.contains("_param_"))
        .collect();
    let find = |name: &&str| {
        FUNCTIONS.iter().find(|function| function.name == *name).ok_or_else(|| LinkError::Misuse {
            call: "nvshmem::used_by",
            what: "a function that the PTX calls",
            value: (*name).to_owned(),
            expected: "one of peerweave_device::network::FUNCTIONS",
        })
    };
    names.iter().map(find).collect()
}

/// Returns the translation units with these wrappers. A reduction contains all algorithms of
/// NVSHMEM and takes up to 20 s to compile; NVSHMEM's headers take 3 s. So each reduction is in its
/// own unit, and units are compiled in parallel.
pub fn units(functions: &[&Function], include: &Path, cuda: &CudaHeaders) -> Vec<Source> {
    let (slow, fast): (Vec<&Function>, Vec<&Function>) = functions.iter().partition(|function| function.name.contains("_reduce"));
    let all = std::iter::once(&fast[..]).filter(|fast| !fast.is_empty()).chain(slow.chunks(1));
    all.map(|functions| wrappers(functions, include, cuda)).collect()
}

/// Returns the translation unit with these wrappers, to be compiled against NVSHMEM's headers.
pub fn wrappers(functions: &[&Function], include: &Path, cuda: &CudaHeaders) -> Source {
    let mut text = format!("{PRELUDE}#include <nvshmem.h>\n#include <nvshmemx.h>\n");
    for function in functions {
        let parameters = function.parameters.iter().map(|(kind, name)| format!("{kind} {name}"));
        let parameters = parameters.collect::<Vec<_>>().join(", ");
        let Function { name, result, body, .. } = function;
        text.push_str(&format!("extern \"C\" __device__ {result} {name}({parameters}) {{ {body} }}\n"));
    }
    // A kernel for blocks of 1024 threads has 64 registers and cannot call functions that need
    // more.
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
        let used = used_by(ptx).expect("both are in the table");
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
    fn each_reduction_is_a_unit_of_its_own() {
        let calls = ["quiet", "fence", "reduce_sum_f32_block", "reduce_max_f32_block", "reducescatter_sum_i8_warp"];
        let ptx: String = calls.iter().map(|call| format!(".extern .func peerweave_nvshmem_{call} ();\n")).collect();
        let cuda = CudaHeaders { directories: vec!["/cuda/include".into()] };
        let units = units(&used_by(&ptx).expect("all are in the table"), Path::new("/nvshmem/include"), &cuda);
        let wrappers: Vec<usize> = units.iter().map(|unit| unit.text().matches("extern \"C\"").count()).collect();
        assert_eq!(wrappers, [2, 1, 1, 1]);
    }

    #[test]
    fn wrapper_that_is_not_in_the_table_is_refused() {
        let error = used_by(".extern .func peerweave_nvshmem_no_such ();").expect_err("it is not in the table");
        assert!(error.to_string().contains("peerweave_nvshmem_no_such"), "{error}");
    }
}
