//! Functions of NVSHMEM's device library that kernels call to access PEs whose memory is not
//! mapped.
//!
//! The file `table.rs` lists a wrapper for each function. In kernels built with the feature
//! `nvshmem` the list expands to declarations of the wrappers. On the host the list is data
//! ([`FUNCTIONS`]), from which `peerweave-link` generates the wrappers in C++. The functions
//! transfer data, change single words, and order these operations. NVSHMEM's own barriers and
//! collectives are not used. The barriers and collectives of this crate use the listed functions,
//! and have a deadline for every wait.
//!
//! Kernels on the host pass the same calls to an executor that emulates a network: see `call`.

#[cfg(not(target_arch = "nvptx64"))]
pub mod call;
mod table;

#[cfg(not(target_arch = "nvptx64"))]
pub use table::FUNCTIONS;
#[cfg(all(target_arch = "nvptx64", feature = "nvshmem"))]
pub(crate) use table::functions;

/// A wrapper: an `extern "C"` device function that calls one function of NVSHMEM.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Linker symbol of this wrapper of an NVSHMEM function, such as
    /// `peerweave_nvshmem_put_thread`.
    pub name: &'static str,
    /// C++ type of the result.
    pub result: &'static str,
    /// C++ type and name of each parameter.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Body of the wrapper: one C++ statement.
    pub body: &'static str,
}

/// A Rust type that occurs in the table of wrappers. The trait gives the name of the corresponding
/// type in C++.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) trait InCpp {
    const NAME: &'static str;
}

#[cfg(not(target_arch = "nvptx64"))]
macro_rules! in_cpp {
    ($($t:ty = $name:literal),*) => {$(
        impl InCpp for $t {
            const NAME: &'static str = $name;
        }
    )*};
}

#[cfg(not(target_arch = "nvptx64"))]
in_cpp!(() = "void", u8 = "unsigned char", u16 = "unsigned short", u32 = "unsigned int", u64 = "unsigned long long", i32 = "int");

#[cfg(test)]
mod tests {
    use super::FUNCTIONS;
    use std::collections::BTreeSet;
    use std::string::String;
    use std::vec::Vec;

    #[test]
    fn nvshmem_wrapper_names_are_distinct_and_share_a_prefix() {
        let names: BTreeSet<_> = FUNCTIONS.iter().map(|function| function.name).collect();
        assert_eq!(names.len(), FUNCTIONS.len());
        assert!(names.iter().all(|name| name.starts_with("peerweave_nvshmem_")));
    }

    #[test]
    fn nvshmem_wrapper_functions_use_all_their_parameters() {
        for function in FUNCTIONS {
            let words: Vec<String> = function.body.split(|c: char| !c.is_alphanumeric() && c != '_').map(String::from).collect();
            for (_, parameter) in function.parameters {
                assert!(words.iter().any(|word| word == parameter), "{}: {parameter} is not used", function.name);
            }
            assert!(function.body.ends_with(';'));
        }
    }
}
