//! Tests of loading NCCL: a library that is missing, too old, incomplete, or used in a forked
//! process.
//!
//! Other files test communicators. The tests need neither a GPU nor NCCL, because their child
//! processes load a fake library.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

use std::path::PathBuf;
use std::time::Duration;

use peerweave_fakes::Fakes;
use peerweave_nccl::{Communicator, EncryptionConfig, Nccl, NcclError, ResultCode, SymbolInfo, UniqueId, Version, version_code};

/// Returns a fake NCCL of this version, which lacks functions of later versions.
fn library_of(version: &str) -> Fakes {
    let version: Version = version.parse().expect("the version is valid");
    let later = Nccl::FUNCTIONS.iter().filter(|function| since(function) > version);
    later
        .fold(Fakes::new().nccl(), |fakes, function| fakes.without(function.name))
        .env("PEERWEAVE_FAKE_NCCL_VERSION", version_code(version).to_string())
}

/// Functions that the fake lacks, because no header for Linux declares them.
const NOT_IN_THE_FAKE: [&str; 2] = ["ncclGinOutboxCreateRequirement", "ncclGinInboxA2ACreateRequirement"];

fn since(function: &SymbolInfo) -> Version {
    function.since.parse().expect("the version of the function is valid")
}

#[test]
fn missing_library_error_lists_the_searched_paths() {
    Fakes::new().env("PEERWEAVE_NCCL_PATH", "/nowhere/libnccl.so.2").run(|| {
        let Err(NcclError::Load(error)) = Nccl::load() else { panic!("load did not return a load error") };
        assert_eq!(error.scope, peerweave_nccl::SearchScope::Variable);
        assert_eq!(error.tried.len(), 1);
        assert_eq!(error.tried[0].path, PathBuf::from("/nowhere/libnccl.so.2"));
        // SAFETY: there is no such file.
        let again = unsafe { Nccl::open("/nowhere/else") }.expect_err("there is no library");
        assert!(again.to_string().contains("/nowhere/else"), "{again}");
    });
}

#[test]
fn library_installed_after_a_failed_load_is_found() {
    Fakes::new().nccl().run(|| {
        let found = std::env::var_os("PEERWEAVE_NCCL_PATH").expect("the fake library is found");
        // SAFETY: the only other thread of this process waits for this thread.
        unsafe { std::env::set_var("PEERWEAVE_NCCL_PATH", "/nowhere") };
        assert!(matches!(Nccl::load(), Err(NcclError::Load(_))));
        // SAFETY: as above.
        unsafe { std::env::set_var("PEERWEAVE_NCCL_PATH", found) };
        assert_eq!(Nccl::load().expect("the library is found now"), Nccl::load().expect("the library is found again"));
    });
}

macro_rules! lacks {
    ($($name:ident $version:literal)*) => {$(
        #[test]
        fn $name() {
            library_of($version).run(|| {
                let nccl = Nccl::load().expect("the library is found");
                assert_eq!(nccl.version().to_string(), $version);
                let is_real = |name: &&str| !NOT_IN_THE_FAKE.contains(name);
                let later = Nccl::FUNCTIONS.iter().filter(|function| since(function) > nccl.version());
                let expected: Vec<_> = later.map(|function| function.name).filter(is_real).collect();
                let missing: Vec<_> = nccl.missing().iter().map(|function| function.name).filter(is_real).collect();
                assert_eq!(missing, expected);
                assert!(nccl.has("ncclAllReduce") && !nccl.has("ncclNothing"));
            });
        }
    )*};
}

lacks! {
    library_of_2_19_lacks_later_functions "2.19.3"
    library_of_2_27_lacks_later_functions "2.27.7"
    library_of_2_29_lacks_later_functions "2.29.7"
    library_of_2_32_lacks_no_function "2.32.3"
}

#[test]
fn nccl_before_2_19_is_refused() {
    // In this version an abort crashes inside NCCL.
    Fakes::new().nccl().env("PEERWEAVE_FAKE_NCCL_VERSION", "21806").run(|| {
        let Err(NcclError::Unsupported(error)) = Nccl::load() else {
            panic!("load accepted the library, expected NcclError::Unsupported")
        };
        assert_eq!((error.since, error.found), (Some(Version::new(2, 19, 1)), Version::new(2, 18, 6)));
    });
}

#[test]
fn missing_function_fails_only_calls_that_need_the_function() {
    Fakes::new().nccl().without("ncclGetUniqueId").run(|| {
        let nccl = Nccl::load().expect("the library is found");
        let Err(NcclError::Unsupported(error)) = nccl.unique_id() else { panic!("the call succeeded") };
        assert_eq!((error.what, error.found), ("ncclGetUniqueId", Version::new(2, 32, 3)));
        assert_eq!(*error.path, *nccl.path());
        assert!(!nccl.error_string(ResultCode::TIMEOUT).expect("the function is exported").is_empty());
    });
}

#[test]
fn unique_ids_differ_and_round_trip_through_text() {
    Fakes::new().nccl().run(|| {
        let nccl = Nccl::load().expect("the library is found");
        let (one, two) = (nccl.unique_id().expect("an id is created"), nccl.unique_id().expect("an id is created"));
        assert_ne!(one, two);
        assert_eq!(one.to_hex().parse::<UniqueId>().expect("the text is a valid id"), one);
    });
}

#[test]
fn nccl_error_contains_code_version_and_message_of_nccl() {
    Fakes::new().nccl().env("PEERWEAVE_FAKE_NCCL_FAIL", "ncclGetUniqueId=2").run(|| {
        let nccl = Nccl::load().expect("the library is found");
        let Err(NcclError::Nccl(failure)) = nccl.unique_id() else { panic!("the call succeeded") };
        assert_eq!((failure.call, failure.code, failure.version), ("ncclGetUniqueId", ResultCode::SYSTEM_ERROR, nccl.version()));
        assert_eq!(failure.meaning, nccl.error_string(failure.code).expect("NCCL returns a text"));
        assert!(!failure.last_error.is_empty());
        assert_eq!(nccl.last_error().expect("NCCL returns a text").as_deref(), Some(failure.last_error.as_str()));
    });
}

#[test]
fn parameter_list_agrees_with_single_parameter_queries() {
    Fakes::new().nccl().env("NCCL_DEBUG_LEVELS", "WARN").run(|| {
        let nccl = Nccl::load().expect("the library is found");
        let params = nccl.params().expect("NCCL 2.32 has parameters");
        assert!(params.contains_key("NCCL_DEBUG_SUBSYS"), "{params:?}");
        for (name, value) in &params {
            assert_eq!(nccl.param(name).expect("the parameter is listed").as_ref(), Some(value));
        }
        assert_eq!(params["NCCL_DEBUG_LEVELS"], "WARN");
        assert_eq!(nccl.param("NCCL_NO_SUCH_THING").expect("an unknown name is not an error"), None);
        assert!(nccl.param("a\0b").expect_err("the name has a zero byte").misuse_kind().is_some());
    });
}

#[test]
fn reading_a_parameter_as_the_wrong_type_is_an_error() {
    Fakes::new().nccl().env("NCCL_FAKE_I16", "-300").env("NCCL_FAKE_U64", "18446744073709551615").run(|| {
        let nccl = Nccl::load().expect("the library is found");
        assert_eq!(nccl.param_as::<i16>("NCCL_FAKE_I16").expect("the parameter has this type"), Some(-300));
        assert_eq!(nccl.param_as::<u64>("NCCL_FAKE_U64").expect("the parameter has this type"), Some(u64::MAX));
        assert_eq!(nccl.param_as::<i8>("NCCL_FAKE_I8").expect("the parameter has this type"), Some(0));
        assert_eq!(nccl.param_as::<i32>("NCCL_FAKE_I32").expect("the parameter has this type"), Some(0));
        assert_eq!(nccl.param_as::<bool>("NCCL_SET_THREAD_NAME").expect("the parameter has this type"), Some(false));
        assert_eq!(nccl.param_as::<String>("NCCL_DEBUG_LEVELS").expect("the parameter is a text").as_deref(), Some("NONE"));
        assert_eq!(nccl.param_as::<String>("NCCL_FAKE_I16").expect("any parameter can be read as text").as_deref(), Some("-300"));
        assert_eq!(nccl.param_as::<u8>("NCCL_NO_SUCH_THING").expect("an unknown name is not an error"), None);
        // The value is neither narrowed nor widened.
        let error = nccl.param_as::<i32>("NCCL_FAKE_I16").expect_err("the parameter has another type");
        assert_eq!(error.code(), Some(ResultCode::INVALID_ARGUMENT), "{error}");
        assert_eq!(
            nccl.param_as::<bool>("NCCL_DEBUG_LEVELS").expect_err("the parameter is a text").to_string(),
            "Nccl::param_as: the parameter: the value is neither true nor false; read the parameter as a String"
        );
        assert!(nccl.param_as::<u8>("a\0b").expect_err("the name has a zero byte").misuse_kind().is_some());
    });
    library_of("2.29.7").run(|| {
        let nccl = Nccl::load().expect("the library is found");
        assert!(matches!(nccl.param_as::<u8>("NCCL_FAKE_U8"), Err(NcclError::Unsupported(_))));
    });
}

#[test]
fn error_from_an_integer_code_contains_the_nccl_error_string() {
    Fakes::new().nccl().run(|| {
        let nccl = Nccl::load().expect("the library is found");
        nccl.check("ncclFoo", 0).expect("code 0 is success");
        let Err(NcclError::Nccl(failure)) = nccl.check("ncclFoo", 5) else {
            panic!("check accepted code 5, expected NcclError::Nccl")
        };
        assert_eq!((failure.call, failure.code), ("ncclFoo", ResultCode::INVALID_USAGE));
        assert_eq!(failure.meaning, nccl.error_string(ResultCode::INVALID_USAGE).expect("NCCL returns a text"));
        assert_eq!(NcclError::from_code(nccl, "ncclFoo", 7).code(), Some(ResultCode::IN_PROGRESS));
        assert_eq!(NcclError::from_code(nccl, "ncclFoo", 1234).code().map(ResultCode::get), Some(1234));
    });
}

#[test]
fn params_and_encryption_are_unsupported_before_2_30() {
    library_of("2.29.7").run(|| {
        let nccl = Nccl::load().expect("the library is found");
        assert!(matches!(nccl.params(), Err(NcclError::Unsupported(error)) if error.since == Some(Version::new(2, 30, 3))));
        assert!(matches!(nccl.dump_params(), Err(NcclError::Unsupported(_))));
        assert!(matches!(nccl.set_encryption(&EncryptionConfig::Plain), Err(NcclError::Unsupported(_))));
        assert!(nccl.reset_debug().is_ok(), "NCCL 2.24.3 introduced this function");
    });
    library_of("2.23.4").run(|| {
        let nccl = Nccl::load().expect("the library is found");
        assert!(matches!(nccl.reset_debug(), Err(NcclError::Unsupported(error)) if error.since == Some(Version::new(2, 24, 3))));
    });
}

#[test]
fn loading_a_second_library_reports_the_path_of_the_first() {
    Fakes::new().nccl().run(|| {
        let first = Nccl::load().expect("the library is found");
        assert!(first.others().is_empty());
        let directory = tempfile::tempdir().expect("a temporary directory is created");
        let copy = directory.path().join("libnccl.so.2");
        std::fs::copy(first.path(), &copy).expect("the file can be copied");
        // SAFETY: the file is a copy of the fake library.
        let second = unsafe { Nccl::open(directory.path()) }.expect("the copy is a library");
        assert_ne!(first, second);
        assert_eq!(second.others(), [first.path().canonicalize().expect("the file exists")]);
        // SAFETY: as above.
        assert_eq!(unsafe { Nccl::open(first.path()) }.expect("the library is loaded"), first);
        let link = directory.path().join("libnccl.so");
        std::os::unix::fs::symlink(&copy, &link).expect("the system creates links");
        // SAFETY: as above.
        assert_eq!(unsafe { Nccl::open(&link) }.expect("the library is loaded"), second, "a link is the same file");
        assert_eq!(Nccl::load().expect("the library is loaded"), first, "`open` does not change the result of `load`");
    });
}

#[test]
fn load_reports_a_library_that_was_already_mapped() {
    Fakes::new().nccl().run(|| {
        let own = PathBuf::from(std::env::var_os("PEERWEAVE_NCCL_PATH").expect("the fake library is found")).join("libnccl.so.2");
        let directory = tempfile::tempdir().expect("a temporary directory is created");
        let copy = directory.path().join("libnccl.so.2");
        std::fs::copy(&own, &copy).expect("the file can be copied");
        let name = std::ffi::CString::new(copy.to_str().expect("the path is UTF-8")).expect("the text has no zero byte");
        // SAFETY: the name ends with zero, and the library's initialisers may run here.
        assert!(!unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }.is_null());
        let nccl = Nccl::load().expect("the library is found");
        assert_eq!(nccl.others(), [copy.canonicalize().expect("the file exists")]);
        assert_ne!(nccl.path().canonicalize().expect("the file exists"), nccl.others()[0]);
    });
}

#[test]
fn library_loads_without_a_working_driver() {
    Fakes::new().cuda().nccl().without("cuInit").run(|| {
        let nccl = Nccl::load().expect("the library is found");
        assert!(nccl.unique_id().is_ok());
        let error = NcclError::from(peerweave_driver::context(0).expect_err("the driver cannot be started"));
        assert!(matches!(error, NcclError::Cuda(_)) && error.to_string().contains("cuInit"), "{error}");
        assert!(matches!(Communicator::abort_all(Duration::ZERO), Ok(0)));
    });
}

#[test]
fn library_calls_in_a_forked_process_are_errors() {
    Fakes::new().nccl().run(|| {
        let nccl = Nccl::load().expect("the library is found");
        let parent = std::process::id();
        // SAFETY: a forked child must not use locks that other threads may hold. The child only
        // calls functions that return before they reach NCCL, and ends with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let forked =
                |result: Result<(), NcclError>| matches!(result, Err(NcclError::Forked { loaded_by, .. }) if loaded_by == parent);
            let all = forked(nccl.unique_id().map(drop))
                && forked(nccl.last_error().map(drop))
                && forked(nccl.params().map(drop))
                && forked(Nccl::load().map(drop));
            // SAFETY: the call only ends the process.
            unsafe { libc::_exit(if all { 17 } else { 18 }) };
        }
        let mut status = 0;
        // SAFETY: the child is ours, and the pointer is to a live integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 17, "status {status:#x}");
        assert!(nccl.unique_id().is_ok(), "the parent still works");
    });
}
