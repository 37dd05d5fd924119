//! Runs a test with the fake libraries of vendors: builds the libraries if necessary, and starts
//! the test again with the libraries in its search path.
//!
//! The crates `peerweave-fake-cuda`, `peerweave-fake-nccl` and `peerweave-fake-nvshmem` implement
//! the libraries; a test never links them. Invariant: a child that does not end within its limit is
//! killed, and the test that started it fails.
//!
//! A test is one function that runs in two processes. In the parent, [`Fakes::run`] starts the test
//! binary again for this one test, with the libraries in `LD_LIBRARY_PATH`. In that child, the same
//! call of [`Fakes::run`] runs the body:
//!
//! ```no_run
//! # use peerweave_fakes::Fakes;
//! #[test]
//! fn old_driver_version_is_reported() {
//!     Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_VERSION", "11040").run(|| {
//!         // Here libcuda.so.1 is the fake.
//!     });
//! }
//! ```
#![cfg(target_os = "linux")]

mod build;
mod child;
mod declare;
pub mod driver;
mod elf;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub use child::{Child, Output, child, entered, wait_until_entered};

/// Default time limit of a child; see [`Fakes::limit`]. The limit ends a child that hangs. It is
/// many times what the longest test takes, because a machine with other work slows each test down.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(300);

/// The libraries and settings of children.
#[derive(Clone, Debug)]
pub struct Fakes {
    cuda: bool,
    nccl: bool,
    nvshmem: bool,
    without: Vec<String>,
    variables: BTreeMap<String, Option<OsString>>,
    limit: Duration,
    missing: Option<String>,
}

impl Default for Fakes {
    fn default() -> Fakes {
        Fakes::new()
    }
}

impl Fakes {
    /// Creates settings without fake libraries: the first directory in the search path of a child
    /// is empty. A child still finds libraries in later directories of the search path.
    #[must_use]
    pub fn new() -> Fakes {
        Fakes {
            cuda: false,
            nccl: false,
            nvshmem: false,
            without: Vec::new(),
            variables: BTreeMap::new(),
            limit: DEFAULT_LIMIT,
            missing: None,
        }
    }

    /// Adds the fake driver, as `libcuda.so.1` and `libcuda.so`.
    #[must_use]
    pub fn cuda(mut self) -> Fakes {
        self.cuda = true;
        self
    }

    /// Adds the fake NCCL, as `libnccl.so.2` and `libnccl.so`, and in `PEERWEAVE_NCCL_PATH`.
    #[must_use]
    pub fn nccl(mut self) -> Fakes {
        self.nccl = true;
        self
    }

    /// Adds the fake NVSHMEM, as `libnvshmem_host.so.3` and `libnvshmem_host.so`, and in
    /// `PEERWEAVE_NVSHMEM_PATH`. `nvshmem_bootstrap_uid.so.3` in the same directory is a link to
    /// the same file, because the fake does the work of that plug-in itself.
    #[must_use]
    pub fn nvshmem(mut self) -> Fakes {
        self.nvshmem = true;
        self
    }

    /// Like [`Fakes::nvshmem`], with a library of this version, such as `3.4.5`. The library
    /// reports the version and lacks newer functions.
    ///
    /// # Panics
    /// If the version does not consist of three numbers.
    #[must_use]
    pub fn nvshmem_of(self, version: &str) -> Fakes {
        let wanted = numbers(version);
        let known = include_str!("../../nvshmem/since.txt").lines().filter(|line| line.starts_with("nvshmem"));
        let newer = known.filter_map(|line| line.split_once(' ')).filter(|(_, since)| numbers(since) > wanted);
        newer.fold(self.nvshmem(), |fakes, (name, _)| fakes.without(name)).env("PEERWEAVE_FAKE_NVSHMEM_VERSION", version)
    }

    /// Removes a function from all libraries: neither `dlsym` nor `cuGetProcAddress` finds the
    /// function.
    ///
    /// The child gets copies of the libraries in which the function's name is changed in the symbol
    /// table. Several calls remove several functions.
    #[must_use]
    pub fn without(mut self, function: &str) -> Fakes {
        self.without.push(function.to_owned());
        self
    }

    /// Sets a variable of the child.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Fakes {
        self.variables.insert(name.to_owned(), Some(value.into()));
        self
    }

    /// Removes a variable from the child's environment.
    #[must_use]
    pub fn env_remove(mut self, name: &str) -> Fakes {
        self.variables.insert(name.to_owned(), None);
        self
    }

    /// Sets the time limit of a child, from its start to its end.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Fakes {
        self.limit = limit;
        self
    }

    /// Sets a requirement besides the libraries, and replaces an earlier one. If `found` is an
    /// error, the scenarios do not run: [`Fakes::can_run`] reports the error, and the tests pass.
    #[must_use]
    pub fn needs(mut self, found: Result<(), String>) -> Fakes {
        self.missing = found.err();
        self
    }

    /// Returns whether the requirement is met. If the requirement is not met, writes `not run: `,
    /// the name of the scenario and the reason to standard error, which the test harness does not
    /// capture.
    #[must_use]
    pub fn can_run(&self, scenario: &str) -> bool {
        use std::io::Write as _;
        let Some(missing) = &self.missing else { return true };
        // A closed standard error is not a failure.
        let _ = writeln!(std::io::stderr(), "not run: {scenario}: {missing}");
        false
    }

    /// Runs the body in a child with these libraries, and returns if the child passes.
    ///
    /// Call `run` directly in a test function, because the type of the body identifies the test. A
    /// test can call `run` several times; each body runs in its own child. The parent and the
    /// children must make these calls in the same order.
    ///
    /// # Panics
    /// If the child fails, does not reach the body, exceeds its time limit, or cannot be started.
    /// The message contains the output of the child.
    pub fn run<F: FnOnce()>(&self, body: F) {
        let _ = self.run_scenario(1, &[], &scenario_of::<F>(), |_| body());
    }

    /// Like [`Fakes::run`], in `count` children at the same time, each of which gets its index.
    ///
    /// The children start together. They share the directory [`Child::directory`] and nothing else.
    ///
    /// # Panics
    /// If any child fails, does not reach the body, exceeds its time limit, or cannot be started.
    pub fn run_many<F: FnOnce(Child)>(&self, count: usize, body: F) {
        let _ = self.run_scenario(count, &[], &scenario_of::<F>(), body);
    }

    /// Like [`Fakes::run_many`], but the children with the ranks in `victims` may fail. Returns the
    /// outputs in the order of ranks. The result is empty in a child, and if the requirement of
    /// [`Fakes::needs`] is not met.
    ///
    /// # Panics
    /// If another child fails, or if any child does not reach the body, exceeds its time limit, or
    /// cannot be started.
    pub fn run_with_victims<F: FnOnce(Child)>(&self, count: usize, victims: &[usize], body: F) -> Vec<Output> {
        self.run_scenario(count, victims, &scenario_of::<F>(), body)
    }

    fn run_scenario(&self, count: usize, victims: &[usize], scenario: &str, body: impl FnOnce(Child)) -> Vec<Output> {
        if !self.can_run(scenario) {
            return Vec::new();
        }
        let call = next_call(scenario);
        if let Some(me) = child().filter(|me| me.scenario == scenario) {
            // A test may run several bodies with different libraries or settings. This child was
            // started for one of these bodies.
            if child::call() == Some(call) {
                me.tell_of_its_body();
                body(me);
            }
            return Vec::new();
        }
        let outputs = self.spawn(count, scenario, Some(call));
        for (rank, output) in outputs.iter().enumerate() {
            let may_fail = victims.contains(&rank) && !output.timed_out;
            assert!(output.passed() || may_fail, "{scenario}: child {rank} of {count} failed: {output}");
            assert!(
                output.came_to_its_body,
                "{scenario}: child {rank} of {count} did not reach body {call}, so nothing was tested"
            );
        }
        outputs
    }

    /// Starts this test binary again for one test, and returns its result.
    ///
    /// `scenario` is the test's full name, as the test harness prints it. In the child, [`child`]
    /// returns `Some`.
    ///
    /// # Panics
    /// If the child cannot be started or a library cannot be built.
    #[must_use]
    pub fn run_child(&self, scenario: &str) -> Output {
        self.spawn_children(1, scenario).pop().expect("one child was requested")
    }

    /// Like [`Fakes::run_child`], with `count` children at the same time; the outputs are in the
    /// order of their ranks.
    ///
    /// # Panics
    /// If a child cannot be started or a library cannot be built.
    #[must_use]
    pub fn spawn_children(&self, count: usize, scenario: &str) -> Vec<Output> {
        self.spawn(count, scenario, None)
    }

    fn spawn(&self, count: usize, scenario: &str, call: Option<usize>) -> Vec<Output> {
        let place = tempfile::Builder::new().prefix("peerweave-fakes-").tempdir().expect("a temporary directory can be created");
        let libraries = place.path().join("lib");
        let shared = place.path().join("shared");
        std::fs::create_dir(&libraries).expect("a directory for the libraries can be created");
        std::fs::create_dir(&shared).expect("a directory for the children can be created");
        self.put_libraries(&libraries);
        let mut variables = self.variables.clone();
        variables.entry("LD_LIBRARY_PATH".to_owned()).or_insert_with(|| {
            let mut path = OsString::from(&libraries);
            if let Some(before) = std::env::var_os("LD_LIBRARY_PATH").filter(|before| !before.is_empty()) {
                path.push(":");
                path.push(before);
            }
            Some(path)
        });
        if self.nccl {
            variables.entry("PEERWEAVE_NCCL_PATH".to_owned()).or_insert_with(|| Some(libraries.clone().into()));
        }
        if self.nvshmem {
            variables.entry("PEERWEAVE_NVSHMEM_PATH".to_owned()).or_insert_with(|| Some(libraries.clone().into()));
        }
        if !self.without.is_empty() {
            variables.entry("PEERWEAVE_FAKE_CUDA_MISSING".to_owned()).or_insert_with(|| Some(self.without.join(",").into()));
        }
        if let Some(call) = call {
            variables.insert(child::CALL.to_owned(), Some(call.to_string().into()));
        }
        child::run_all(count, scenario, &shared, &variables, self.limit)
    }

    fn put_libraries(&self, directory: &Path) {
        let wanted = [
            (self.cuda, "peerweave-fake-cuda", &["libcuda.so.1", "libcuda.so"]),
            (self.nccl, "peerweave-fake-nccl", &["libnccl.so.2", "libnccl.so"]),
            (self.nvshmem, "peerweave-fake-nvshmem", &["libnvshmem_host.so.3", "libnvshmem_host.so"]),
        ];
        for (_, package, names) in wanted.iter().filter(|(wanted, ..)| *wanted) {
            let library = build::library(package);
            let first = directory.join(names[0]);
            if self.without.is_empty() {
                link(&library, &first);
            } else {
                let bytes = std::fs::read(&library).expect("the fake library can be read");
                std::fs::write(&first, elf::without(bytes, &self.without)).expect("a copy of the fake library can be written");
            }
            link(Path::new(names[0]), &directory.join(names[1]));
        }
        if self.nvshmem {
            // A program that looks for the plug-in finds this link and can load it.
            link(Path::new("libnvshmem_host.so.3"), &directory.join("nvshmem_bootstrap_uid.so.3"));
        }
    }
}

/// Returns the three numbers of a version.
fn numbers(version: &str) -> [u32; 3] {
    let numbers: Vec<u32> = version.split('.').filter_map(|number| number.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{version} is not a version of three numbers"))
}

fn link(target: &Path, name: &Path) {
    std::os::unix::fs::symlink(target, name).unwrap_or_else(|error| panic!("cannot create the link {}: {error}", name.display()));
}

/// Counts a body that the test has reached in this process, and returns the number of bodies so
/// far.
fn next_call(scenario: &str) -> usize {
    static CALLS: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let count = calls.entry(scenario.to_owned()).or_default();
    *count += 1;
    *count
}

/// Returns the full name of the test that contains the closure: the path of its type without the
/// crate and the closure.
fn scenario_of<F>() -> String {
    let path = std::any::type_name::<F>();
    let path = path.split("::{{closure}}").next().unwrap_or(path);
    path.split_once("::").map_or(path, |(_, inside)| inside).to_owned()
}

/// Returns the path of a package's fake library, built if necessary, for tests that copy it
/// themselves.
///
/// # Panics
/// If the library cannot be built.
#[must_use]
pub fn library(package: &str) -> PathBuf {
    build::library(package)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name<F: FnOnce()>(_body: F) -> String {
        scenario_of::<F>()
    }

    #[test]
    fn name_of_a_closure_is_the_path_of_the_test_function() {
        assert_eq!(name(|| ()), "tests::name_of_a_closure_is_the_path_of_the_test_function");
    }

    #[test]
    fn test_body_runs_in_the_child_and_not_in_the_parent() {
        let parent = std::process::id().to_string();
        Fakes::new().env("FAKES_PARENT", parent.clone()).run(|| {
            assert_ne!(std::env::var("FAKES_PARENT").as_deref(), Ok(std::process::id().to_string().as_str()));
        });
    }

    #[test]
    fn test_fails_if_no_child_process_runs_the_test_body() {
        let run = || {
            if child().is_none() {
                Fakes::new().run(|| ());
            }
        };
        let error = std::panic::catch_unwind(run).err();
        if child().is_none() {
            let error =
                error.expect("a test whose body no child reaches fails").downcast::<String>().expect("the panic has a message");
            assert!(error.contains("did not reach body 1"), "{error}");
        }
    }

    #[test]
    fn each_call_of_run_starts_a_separate_child_process() {
        let place = tempfile::tempdir().expect("a temporary directory can be created");
        for body in ["one", "two", "three"] {
            let path = place.path().join(body);
            Fakes::new().env("FAKES_PATH", &path).env("FAKES_BODY", body).run(|| {
                assert_eq!(std::env::var("FAKES_BODY").as_deref(), Ok(body));
                std::fs::write(std::env::var_os("FAKES_PATH").expect("the parent sets FAKES_PATH"), body)
                    .expect("a file can be created");
            });
            if child().is_none() {
                assert_eq!(std::fs::read(&path).expect("the child has written the file"), body.as_bytes());
            }
        }
    }

    #[test]
    fn removed_function_is_missing_in_the_copied_library() {
        let path = library("peerweave-fake-cuda");
        let whole = std::fs::read(&path).expect("the library can be read");
        let cut = elf::without(whole.clone(), &["cuMemCreate".to_owned(), "cuNothing".to_owned()]);
        let changed: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] != cut[*at]).collect();
        assert_eq!(changed.len(), 1);
        assert_eq!(&cut[changed[0]..changed[0] + 12], b"~uMemCreate\0");
    }

    #[test]
    fn failing_child_is_reported_as_failed() {
        if child().is_some() {
            panic!("this test fails on purpose");
        }
        let output = Fakes::new().run_child("tests::failing_child_is_reported_as_failed");
        assert!(!output.passed());
        assert!(output.to_string().contains("on purpose"), "{output}");
    }

    #[test]
    fn hanging_child_is_killed_at_the_time_limit() {
        if child().is_some() {
            loop {
                std::thread::park();
            }
        }
        let output = Fakes::new().limit(Duration::from_millis(300)).run_child("tests::hanging_child_is_killed_at_the_time_limit");
        assert!(output.timed_out && !output.passed());
    }

    #[test]
    fn child_process_fails_if_its_test_does_not_exist() {
        let output = Fakes::new().run_child("tests::nothing_of_that_name");
        assert!(!output.passed(), "{output}");
    }

    #[test]
    fn children_get_ranks_and_a_shared_directory() {
        Fakes::new().run_many(3, |me| {
            assert_eq!(me.count, 3);
            std::fs::write(me.directory.join(me.rank.to_string()), b"here").expect("the shared directory is writable");
            me.wait_for_file("0");
            me.wait_for_file("1");
            me.wait_for_file("2");
        });
    }
}
