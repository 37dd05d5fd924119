//! Tests of compiling and linking with NVIDIA's libraries. They run under the feature
//! `test-with-libraries`, and `.ci/link` installs the libraries.
#![cfg(target_os = "linux")]

use object::{Object as _, ObjectSymbol as _};
use peerweave_link::{Arch, Cache, Input, InputKind, LinkError, Linker, NvJitLink, Nvrtc, Source, Target, Version};

const HOPPER: Arch = Arch::new(9, 0);

const PTX: &str = "
.version 7.8
.target sm_90
.address_size 64
.extern .func (.param .b32 result) twice (.param .b32 x);
.visible .entry kernel(.param .u64 place, .param .u32 x) {
    .reg .u64 %p; .reg .b32 %v;
    ld.param.u64 %p, [place];
    ld.param.b32 %v, [x];
    { .param .b32 a; .param .b32 r; st.param.b32 [a], %v; call.uni (r), twice, (a); ld.param.b32 %v, [r]; }
    st.global.b32 [%p], %v;
    ret;
}
";

fn twice() -> Source {
    Source::new("twice.cu", "#include \"two.h\"\nextern \"C\" __device__ int twice(int x) { return TWO * x; }")
        .header("two.h", "#define TWO 2")
}

/// Returns the names of the global symbols of a cubin, which is an ELF file.
fn symbols(cubin: &[u8]) -> Vec<String> {
    let file = object::File::parse(cubin).expect("a cubin is an ELF file");
    file.symbols().filter(|symbol| symbol.is_global()).filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect()
}

#[test]
fn ptx_and_source_link_to_a_cubin_with_the_kernel() {
    let linked = Linker::new(HOPPER).cache(None).ptx("kernel", PTX).source(twice()).link().expect("the inputs can be linked");
    assert!(symbols(&linked.cubin).contains(&"kernel".to_owned()));
    let lto = Linker::new(HOPPER).cache(None).lto().ptx("kernel", PTX).source(twice()).link().expect("the inputs can be linked");
    assert!(symbols(&lto.cubin).contains(&"kernel".to_owned()));
}

#[test]
fn every_output_format_of_nvrtc_can_be_linked() {
    let nvrtc = Nvrtc::load().expect("NVRTC is installed");
    let source = twice().option("-rdc=true");
    for (target, kind, lto) in [
        (Target::Ptx(HOPPER), InputKind::Ptx, false),
        (Target::Cubin(HOPPER), InputKind::Cubin, false),
        (Target::LtoIr(HOPPER), InputKind::LtoIr, true),
    ] {
        let compiled = nvrtc.compile(&source, target).expect("the source compiles");
        let linker = Linker::new(HOPPER).cache(None).ptx("kernel", PTX).input(Input::new(kind, "twice", compiled.image));
        let linked = if lto { linker.lto() } else { linker }.link().expect("the inputs can be linked");
        assert!(symbols(&linked.cubin).contains(&"kernel".to_owned()), "{target:?}");
    }
}

#[test]
fn compile_error_contains_the_log_of_nvrtc() {
    let source = Source::new("wrong.cu", "__global__ void f() { undeclared = 1; }");
    let error = Linker::new(HOPPER).cache(None).source(source).link().expect_err("the link fails, because the source is invalid");
    let LinkError::Compile { name, log, .. } = &error else { panic!("{error}, expected a compiler error") };
    assert_eq!(name, "wrong.cu");
    assert!(log.contains("wrong.cu(1)") && log.contains("undeclared"), "{log}");
}

#[test]
fn undefined_function_error_contains_the_linker_log() {
    let error =
        Linker::new(HOPPER).cache(None).ptx("kernel", PTX).link().expect_err("the link fails, because no input defines `twice`");
    let LinkError::Link { inputs, log, .. } = &error else { panic!("{error}, expected a linker error") };
    assert_eq!(inputs, "kernel");
    // Before 12.9, nvJitLink writes the message to the standard output instead of the log.
    if NvJitLink::load().expect("nvJitLink is installed").version() >= Version::new(12, 9, 0) {
        assert!(log.contains("twice"), "{log}");
    }
}

#[test]
fn ptx_newer_than_the_linker_is_a_version_mismatch() {
    let newer = PTX.replace(".version 7.8", ".version 19.9");
    let error = Linker::new(HOPPER)
        .cache(None)
        .ptx("kernel", &newer)
        .link()
        .expect_err("the link fails, because no linker supports PTX 19.9");
    assert!(matches!(error, LinkError::VersionMismatch { .. }), "{error}");
}

/// nvJitLink does not report undefined functions after it has refused PTX of a newer version.
#[test]
fn link_after_a_failed_link_still_reports_undefined_functions() {
    let link = |ptx: &str| Linker::new(HOPPER).cache(None).ptx("kernel", ptx).link();
    link(&PTX.replace(".version 7.8", ".version 19.9")).expect_err("the link fails, because no linker supports PTX 19.9");
    let error = link(PTX).expect_err("the link fails, because no input defines `twice`");
    let LinkError::Link { log, .. } = &error else { panic!("{error}, expected a linker error") };
    // Before 12.9, nvJitLink writes the message to the standard output instead of the log.
    if NvJitLink::load().expect("nvJitLink is installed").version() >= Version::new(12, 9, 0) {
        assert!(log.contains("twice"), "{log}");
    }
    let print = "extern \"C\" __device__ int vprintf(const char*, void*);
        extern \"C\" __device__ int twice(int x) { return vprintf(\"x\", 0) + 2 * x; }";
    let driver = Linker::new(HOPPER).cache(None).ptx("kernel", PTX).source(Source::new("print.cu", print)).link();
    driver.expect("the inputs can be linked, because the driver defines `vprintf`");
}

#[test]
fn unknown_architecture_is_refused() {
    let error = Nvrtc::load()
        .expect("NVRTC is installed")
        .compile(&twice(), Target::Ptx(Arch::new(9, 9)))
        .expect_err("the call fails, because sm_99 does not exist");
    assert!(matches!(error, LinkError::UnknownArch { .. }), "{error}");
    let error = Linker::new(Arch::new(9, 9))
        .cache(None)
        .ptx("kernel", PTX)
        .link()
        .expect_err("the call fails, because sm_99 does not exist");
    assert!(matches!(error, LinkError::UnknownArch { .. }), "{error}");
}

#[test]
fn code_of_a_different_architecture_is_a_version_mismatch() {
    let other = Nvrtc::load().expect("NVRTC is installed").compile(&twice().option("-rdc=true"), Target::Cubin(Arch::new(8, 0)));
    let input = Input::new(InputKind::Cubin, "twice", other.expect("the source compiles").image);
    let error = Linker::new(HOPPER)
        .cache(None)
        .ptx("kernel", PTX)
        .input(input)
        .link()
        .expect_err("the link fails, because the cubin is for sm_80, not for sm_90");
    assert!(matches!(error, LinkError::VersionMismatch { .. }), "{error}");
}

/// nvJitLink 13.5 keeps a lock after it has refused code for a variant of the architecture, such as
/// sm_90a. A link on another thread would then wait forever. nvJitLink 13.0 and older accept such
/// code.
#[test]
fn link_succeeds_after_a_failed_link_on_another_thread() {
    let hopper_alone = HOPPER.with_suffix('a');
    let other = Nvrtc::load().expect("NVRTC is installed").compile(&twice().option("-rdc=true"), Target::Cubin(hopper_alone));
    let cubin = other.expect("the source compiles").image;
    let link = || {
        let input = Input::new(InputKind::Cubin, "twice", cubin.clone());
        Linker::new(HOPPER).cache(None).ptx("kernel", PTX).input(input).link()
    };
    let outcome = std::thread::scope(|scope| scope.spawn(link).join().expect("the link does not panic"));
    if NvJitLink::load().expect("nvJitLink is installed").version() >= Version::new(13, 5, 0) {
        outcome.expect_err("the link fails, because the cubin is for sm_90a, not for sm_90");
    }
    Linker::new(HOPPER).cache(None).ptx("kernel", PTX).source(twice()).link().expect("the inputs can be linked");
}

#[test]
fn second_link_uses_the_cache_until_an_input_changes() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let headers = tempfile::tempdir().expect("a temporary directory can be created");
    std::fs::write(headers.path().join("three.h"), "#define THREE 3").expect("the header is writable");
    let cache = Cache::in_directory(directory.path()).expect("the directory exists");
    let link = |ptx: &str| {
        let linker = Linker::new(HOPPER).cache(Some(cache.clone())).ptx("kernel", ptx).source(twice().include(headers.path()));
        linker.link().expect("the inputs can be linked")
    };
    let first = link(PTX);
    let second = link(PTX);
    assert_eq!((first.cached, second.cached), (false, true));
    assert_eq!(first.cubin, second.cubin);
    assert!(!link(&PTX.replace("kernel", "other")).cached, "the PTX has changed");
    std::fs::write(headers.path().join("three.h"), "#define THREE 33").expect("the header is writable");
    assert!(!link(PTX).cached, "the header has changed");
}
