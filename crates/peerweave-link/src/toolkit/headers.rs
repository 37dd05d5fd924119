//! Finds the headers of CUDA.

use std::path::{Path, PathBuf};

use super::Nvrtc;
use crate::environment::{names, variable};
use crate::error::LinkError;

/// The directories that contain CUDA's headers: the headers of the runtime, of the compiler (`crt`)
/// and of CCCL (`cuda/std`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaHeaders {
    /// The directories, in the order in which a compiler must search them.
    pub directories: Vec<PathBuf>,
}

impl CudaHeaders {
    /// Searches for the headers. If `PEERWEAVE_CUDA_INCLUDE` is set, searches only the directories
    /// in that variable, which are separated as in `PATH`. If the variable is not set, first
    /// searches near NVRTC's library file, which is in a toolkit or in Python wheels. Then searches
    /// in `CUDA_HOME`, in `CUDA_PATH`, and in `/usr/local/cuda`, in this order.
    ///
    /// # Errors
    /// [`LinkError::NotFound`] if a header is not found. The error lists the directories that were
    /// searched, and names the packages to install.
    pub fn find(nvrtc: &Nvrtc) -> Result<Self, LinkError> {
        Self::find_with(nvrtc.path(), &|name| variable(name).map(PathBuf::from))
    }

    fn find_with(library: &Path, variable: &dyn Fn(&str) -> Option<PathBuf>) -> Result<Self, LinkError> {
        let mut roots: Vec<PathBuf> = Vec::new();
        if let Some(list) = variable(names::CUDA_INCLUDE) {
            roots.extend(std::env::split_paths(&list));
        } else {
            let beside = library.canonicalize().unwrap_or_else(|_| library.to_path_buf());
            // The library lies in `lib/` of a wheel of CUDA 13, or in `lib64/` or
            // `targets/x86_64-linux/lib/` of a toolkit.
            roots.extend(beside.ancestors().skip(2).take(1).map(|root| root.join("include")));
            // Each wheel of CUDA 12 has a separate directory.
            if let Some(vendor) = beside.ancestors().nth(3) {
                roots.extend(["cuda_runtime", "cuda_cccl", "cuda_nvcc"].map(|wheel| vendor.join(wheel).join("include")));
            }
            roots.extend(["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| variable(name)).map(|home| home.join("include")));
            roots.push("/usr/local/cuda/include".into());
        }
        let with_cccl: Vec<PathBuf> = roots.iter().flat_map(|root| [root.clone(), root.join("cccl")]).collect();
        let mut directories = Vec::new();
        for needed in ["cuda_runtime.h", "cuda/std/type_traits", "crt/host_defines.h"] {
            match with_cccl.iter().find(|directory| directory.join(needed).is_file()) {
                Some(directory) if directories.contains(directory) => {}
                Some(directory) => directories.push(directory.clone()),
                None => {
                    return Err(LinkError::NotFound {
                        what: "CUDA's headers",
                        remedy: "install a CUDA toolkit, or the wheels nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl beside the wheel of NVRTC, \
                                 or set PEERWEAVE_CUDA_INCLUDE to the directories of the headers",
                        tried: with_cccl,
                    });
                }
            }
        }
        Ok(Self { directories })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(root: &Path, path: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("the path has a parent")).expect("the temporary directory is writable");
        std::fs::write(path, "").expect("the temporary directory is writable");
    }

    #[test]
    fn cuda_headers_beside_nvrtc_are_found() {
        let root = tempfile::tempdir().expect("a temporary directory can be created");
        let root = root.path().canonicalize().expect("the directory exists");
        for path in
            ["lib/libnvrtc.so.13", "include/cuda_runtime.h", "include/crt/host_defines.h", "include/cccl/cuda/std/type_traits"]
        {
            file(&root, path);
        }
        let found =
            CudaHeaders::find_with(&root.join("lib/libnvrtc.so.13"), &|_| None).expect("the headers were installed above");
        assert_eq!(found.directories, [root.join("include"), root.join("include/cccl")]);
    }

    #[test]
    fn cuda_headers_in_separate_wheels_are_found() {
        let root = tempfile::tempdir().expect("a temporary directory can be created");
        let root = root.path().canonicalize().expect("the directory exists");
        for path in [
            "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
            "nvidia/cuda_runtime/include/cuda_runtime.h",
            "nvidia/cuda_nvcc/include/crt/host_defines.h",
            "nvidia/cuda_cccl/include/cuda/std/type_traits",
        ] {
            file(&root, path);
        }
        let found = CudaHeaders::find_with(&root.join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12"), &|_| None)
            .expect("the headers were installed above");
        let wheel = |name: &str| root.join("nvidia").join(name).join("include");
        assert_eq!(found.directories, [wheel("cuda_runtime"), wheel("cuda_cccl"), wheel("cuda_nvcc")]);
    }

    #[test]
    fn only_directories_in_the_cuda_include_variable_are_searched() {
        let root = tempfile::tempdir().expect("a temporary directory can be created");
        let empty = root.path().join("empty");
        let error = CudaHeaders::find_with(Path::new("/nowhere/lib/libnvrtc.so"), &|name| {
            (name == "PEERWEAVE_CUDA_INCLUDE").then(|| empty.clone())
        })
        .expect_err("the search fails, because the directory does not exist");
        let LinkError::NotFound { tried, .. } = &error else { panic!("{error}, expected NotFound") };
        assert_eq!(tried[..], [empty.clone(), empty.join("cccl")]);
        assert!(error.to_string().contains("nvidia-cuda-cccl"), "{error}");
    }
}
