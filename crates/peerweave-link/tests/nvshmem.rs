//! Tests of compiling and linking the wrappers with several releases of NVSHMEM.
//! `PEERWEAVE_TEST_NVSHMEM` lists the directories of the releases, which `.ci/link` installs.
#![cfg(target_os = "linux")]

use std::path::PathBuf;

use object::{Object as _, ObjectSymbol as _};
use peerweave_device::network::FUNCTIONS;
use peerweave_link::nvshmem::{DeviceLibrary, used_by};
use peerweave_link::{Arch, Cache, LinkError};

fn installed() -> Vec<DeviceLibrary> {
    let list =
        std::env::var_os("PEERWEAVE_TEST_NVSHMEM").expect("PEERWEAVE_TEST_NVSHMEM lists the directories of NVSHMEM releases");
    let beside = |root: PathBuf| {
        DeviceLibrary::beside(&root.join("lib/libnvshmem_host.so.3"))
            .expect("the directory contains NVSHMEM's headers and device library")
    };
    std::env::split_paths(&list).map(beside).collect()
}

/// Returns the PTX of a kernel that calls the wrappers in `names`, with zeros as arguments.
fn caller(names: &[&str]) -> String {
    let kind = |name: &str| match name {
        "unsigned long long" => "b64",
        _ => "b32",
    };
    let mut declarations = String::new();
    let mut calls = String::new();
    for function in FUNCTIONS.iter().filter(|function| names.contains(&function.name)) {
        let parameters: Vec<_> =
            (0..function.parameters.len()).map(|at| format!(".param .{} p{at}", kind(function.parameters[at].0))).collect();
        let result = match function.result {
            "void" => None,
            result => Some(kind(result)),
        };
        let returned = result.map(|kind| format!("(.param .{kind} r) ")).unwrap_or_default();
        declarations += &format!(".extern .func {returned}{} ({});\n", function.name, parameters.join(", "));
        calls += "{";
        for (at, (name, _)) in function.parameters.iter().enumerate() {
            calls += &format!(" .param .{0} a{at}; st.param.{0} [a{at}], 0;", kind(name));
        }
        let arguments: Vec<_> = (0..function.parameters.len()).map(|at| format!("a{at}")).collect();
        let (declared, taken) = match result {
            Some(kind) => (format!(" .param .{kind} q;"), "(q), ".to_owned()),
            None => Default::default(),
        };
        calls += &format!("{declared} call.uni {taken}{}, ({}); }}\n", function.name, arguments.join(", "));
    }
    format!(".version 7.8\n.target sm_90\n.address_size 64\n{declarations}.visible .entry caller() {{\n{calls}ret; }}\n")
}

fn symbols(cubin: &[u8]) -> Vec<String> {
    let file = object::File::parse(cubin).expect("a cubin is an ELF file");
    file.symbols().filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect()
}

#[test]
fn every_wrapper_links_with_every_nvshmem_release() {
    let names: Vec<&str> = FUNCTIONS.iter().map(|function| function.name).collect();
    let ptx = caller(&names);
    for library in installed() {
        let linked = library.linker(Arch::new(9, 0), &ptx).expect("CUDA's headers are installed").cache(None).link();
        let linked = linked.unwrap_or_else(|error| panic!("NVSHMEM {}: {error}", library.version));
        let names = symbols(&linked.cubin);
        // NVSHMEM's host library looks up these symbols when it initialises the module.
        for name in ["caller", "nvshmemi_device_state_d", "nvshmemi_device_lib_version_d"] {
            assert!(names.iter().any(|found| found == name), "NVSHMEM {}: the cubin has no symbol {name}", library.version);
        }
    }
}

#[test]
fn second_link_returns_the_cached_module() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let cache = Cache::in_directory(directory.path()).expect("the directory exists");
    let ptx = caller(&["peerweave_nvshmem_p32", "peerweave_nvshmem_quiet"]);
    for library in installed() {
        let link = || {
            let linker = library.linker(Arch::new(9, 0), &ptx).expect("CUDA's headers are installed");
            linker.cache(Some(cache.clone())).link().expect("the inputs can be linked")
        };
        let (first, second) = (link(), link());
        assert_eq!((first.cached, second.cached), (false, true), "NVSHMEM {}", library.version);
        assert_eq!(first.cubin, second.cubin);
    }
}

#[test]
fn ptx_parts_share_one_compilation_of_the_nvshmem_wrappers() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let cache = Cache::in_directory(directory.path()).expect("the directory exists");
    let used = used_by(&caller(&["peerweave_nvshmem_p32", "peerweave_nvshmem_quiet"])).expect("both wrappers are in the table");
    let silent = ".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry caller() { ret; }\n";
    for library in installed() {
        let results = || {
            std::fs::read_dir(directory.path()).expect("the directory exists").filter(|file| {
                file.as_ref().is_ok_and(|file| file.path().extension().is_some_and(|extension| extension == "cubin"))
            })
        };
        let before = results().count();
        for part in [&*caller(&["peerweave_nvshmem_p32"]), silent] {
            let linker = library.part_linker(Arch::new(9, 0), part, &used).expect("CUDA's headers are installed");
            let linked = linker.cache(Some(cache.clone())).link().expect("the inputs can be linked");
            assert!(!linked.cached);
            // NVSHMEM also registers a part that calls no wrapper, so every part needs this symbol.
            let names = symbols(&linked.cubin);
            assert!(names.iter().any(|name| name == "nvshmemi_device_state_d"), "NVSHMEM {}", library.version);
        }
        assert_eq!(results().count() - before, 3, "the cache has three new results: two linked parts, and the wrappers once");
    }
}

#[test]
fn host_library_older_than_device_library_is_a_mismatch() {
    for library in installed() {
        library.check_host(library.version).expect("equal versions are compatible");
        let older = peerweave_link::Version { minor: library.version.minor - 1, ..library.version };
        assert!(matches!(library.check_host(older), Err(LinkError::VersionMismatch { .. })));
    }
}
