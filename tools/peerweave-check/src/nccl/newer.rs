//! Checks functions that NCCL 2.27 or a later version introduced, on every GPU of a machine:
//! windows, one-sided calls, peer pointers, calls with a configuration, and device communicators.
//! Also checks growing, shrinking, revoking and suspending communicators, and misuse. Each rank is
//! a thread or a process.
//!
//! The check has several parts, which are in `newer/`. This module runs the parts and connects the
//! ranks. The check runs with any version of NCCL: parts whose functions the library lacks are
//! listed as not run.
//!
//! Invariant: each part has its own communicators, and all ranks leave a part before the next part
//! begins, so that a failed part does not affect other parts.

mod configured;
mod device;
mod family;
mod mistakes;
mod one_sided;
mod pointers;
mod rest;
mod windows;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use peerweave_bootstrap::Rendezvous;
use peerweave_driver::cudarc::driver::CudaGraph;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::{CudaContext, CudaStream, DeviceMemory, multicast_switch};
use peerweave_nccl::{Communicator, Config, Nccl, NcclError, Rank, ReduceOp, Version};

use crate::nccl::matrix::Sample;

/// Deadline of each wait.
const DEADLINE: Duration = Duration::from_secs(10);
/// Deadline for the creation of a communicator. Longer than [`DEADLINE`], because the first
/// communicator loads NCCL's kernels.
const FIRST: Duration = Duration::from_secs(30);
/// Time limit of a wait for the other ranks at the end of a part. Longer than [`DEADLINE`], because
/// several waits of another rank may have timed out in the same part.
const END_OF_PART: Duration = Duration::from_secs(40);
/// Time after which the process is ended, because some of NCCL's waits have no deadline.
const WHOLE_RUN: Duration = Duration::from_secs(200);

/// An error that ended a part of this check early. Contains the message of the error.
pub(crate) struct Failed(String);

impl<E: Display> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

type Outcome = Result<(), Failed>;

/// A part of the check: its name, the NCCL functions that the part requires, and the function that
/// runs the part.
type Entry = (&'static str, &'static [&'static str], fn(&Part<'_>) -> Outcome);

/// The parts of the check. Parts that may leave the device stuck come last.
const PARTS: &[Entry] = &[
    ("properties", &[], rest::properties),
    ("windows", &["ncclCommWindowRegister"], windows::all),
    ("pointers", &["ncclCommWindowRegister", "ncclGetPeerDevicePointer"], pointers::all),
    ("configured", &["ncclAllReduceConfig"], configured::all),
    ("put-signal", &["ncclPutSignal"], one_sided::eager),
    ("put-signal-graphs", &["ncclPutSignal"], one_sided::captured),
    ("shrink", &["ncclCommShrink"], family::shrink),
    ("grow", &["ncclCommGrow"], family::grow),
    ("revoke", &["ncclCommRevoke"], family::revoke),
    ("suspend", &["ncclCommSuspend"], rest::suspend),
    ("device-communicators", &[], device::all),
    ("options", &[], rest::options),
    ("mistakes", &["ncclCommWindowRegister"], mistakes::all),
    ("revoke-stuck", &["ncclCommRevoke"], family::revoke_stuck),
];

fn is_all(which: &str) -> bool {
    matches!(which, "yes" | "all")
}

/// Checks a list of names of parts, separated by commas. `yes` or `all` means all parts. Returns
/// the list unchanged.
pub(crate) fn parts(which: &str) -> Result<String, String> {
    let is_known = |name: &str| PARTS.iter().any(|(known, ..)| *known == name);
    match which.split(',').find(|name| !is_known(name)) {
        Some(unknown) if !is_all(which) => {
            let known: Vec<_> = PARTS.iter().map(|(name, ..)| *name).collect();
            Err(format!("{unknown:?} is not the name of a part, expected `all` or names from this list: {}", known.join(", ")))
        }
        _ => Ok(which.to_owned()),
    }
}

/// The store through which the ranks exchange messages. Each message has its own key.
enum Board {
    Threads(Arc<Mutex<HashMap<String, Vec<u8>>>>),
    Processes(Arc<Rendezvous>),
}

impl Board {
    fn put(&self, key: &str, value: &[u8]) -> Outcome {
        match self {
            Self::Threads(board) => {
                drop(board.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), value.to_vec()));
                Ok(())
            }
            Self::Processes(rendezvous) => Ok(rendezvous.put(key, value)?),
        }
    }

    fn get(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, Failed> {
        let until = Instant::now() + deadline;
        loop {
            let found = match self {
                Self::Threads(board) => board.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned(),
                Self::Processes(rendezvous) => rendezvous.try_get(key)?,
            };
            if let Some(value) = found {
                return Ok(value);
            }
            if Instant::now() > until {
                return Err(Failed(format!("the message {key:?} of another rank did not arrive within {deadline:?}")));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// One rank of the check, which is a thread or a process.
struct Member {
    nccl: Nccl,
    rank: usize,
    ranks: usize,
    context: Arc<CudaContext>,
    board: Board,
    /// Description of the current step. [`watch`] prints it if the run reaches its deadline.
    step: Arc<Mutex<String>>,
}

/// The state of one rank while it runs one part of this check, such as the part about windows: the
/// stream, the results and the notes of the rank.
pub(crate) struct Part<'a> {
    name: &'static str,
    all: &'a Member,
    stream: Arc<CudaStream>,
    meetings: Cell<usize>,
    passed: Cell<usize>,
    failures: RefCell<Vec<String>>,
    notes: RefCell<Vec<String>>,
}

/// Runs the parts of the check that `which` names. Each GPU has its own thread. Returns the number
/// of passed checks.
pub(crate) fn in_threads(nccl: Nccl, contexts: &[Arc<CudaContext>], which: &str) -> Result<usize, String> {
    let board = Arc::default();
    let ranks = contexts.iter().enumerate().map(|(rank, context)| Member {
        nccl,
        rank,
        ranks: contexts.len(),
        context: Arc::clone(context),
        board: Board::Threads(Arc::clone(&board)),
        step: Arc::default(),
    });
    let ranks: Vec<_> = ranks.collect();
    watch(&ranks);
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| rank.run(which))).collect();
        let mut outcome = Ok(0);
        for thread in threads {
            let one = thread.join().unwrap_or_else(|_| Err("the thread of a rank panicked".to_owned()));
            if outcome.is_ok() {
                outcome = one;
            }
        }
        outcome
    })
}

/// Runs the parts of the check that `which` names. This process is one rank of the check. Returns
/// the number of passed checks.
pub(crate) fn in_process(
    nccl: Nccl,
    context: &Arc<CudaContext>,
    rendezvous: &Arc<Rendezvous>,
    which: &str,
) -> Result<usize, String> {
    let rank = Member {
        nccl,
        rank: rendezvous.pe().index(),
        ranks: rendezvous.n_pes() as usize,
        context: Arc::clone(context),
        board: Board::Processes(Arc::clone(rendezvous)),
        step: Arc::default(),
    };
    watch(std::slice::from_ref(&rank));
    rank.run(which)
}

/// Starts a thread that waits for [`WHOLE_RUN`], then prints the current step of each rank and ends
/// the process.
fn watch(ranks: &[Member]) {
    let steps: Vec<_> = ranks.iter().map(|rank| (rank.rank, Arc::clone(&rank.step))).collect();
    std::thread::spawn(move || {
        std::thread::sleep(WHOLE_RUN);
        for (rank, step) in &steps {
            println!("rank {rank} was still running this step: {}", step.lock().unwrap_or_else(PoisonError::into_inner));
        }
        println!("FAILED timed out after {WHOLE_RUN:?}");
        let _ = std::io::stdout().flush();
        // SAFETY: the call accesses no memory. It ends the process without running destructors,
        // which would wait for the devices.
        unsafe { libc::_exit(1) };
    });
}

impl Member {
    fn run(&self, which: &str) -> Result<usize, String> {
        if multicast_switch().is_ok() {
            return Err(
                "multicast objects are enabled, expected NCCL_NVLS_ENABLE=0, because this check must not create them".to_owned()
            );
        }
        let names: Vec<_> = if is_all(which) { Vec::new() } else { which.split(',').collect() };
        let (mut checks, mut failed) = (0, Vec::new());
        for (name, needed, body) in PARTS.iter().filter(|(name, ..)| names.is_empty() || names.contains(name)) {
            if let Some(lacking) = needed.iter().find(|function| !self.nccl.has(function)) {
                self.say(&not_run(name, lacking));
                continue;
            }
            let (passed, wrong) = self.part(name, *body).map_err(|Failed(error)| format!("{name}: {error}"))?;
            checks += passed;
            if wrong > 0 {
                failed.push(*name);
            }
        }
        let ended = Communicator::wait_for_dropped(DEADLINE);
        match (failed.is_empty(), ended) {
            (true, true) => Ok(checks),
            (true, false) => Err("dropped communicators were not destroyed before the deadline".to_owned()),
            (false, _) => Err(format!("failed parts: {}; passed checks: {checks}", failed.join(", "))),
        }
    }

    fn say(&self, line: &str) {
        if self.rank == 0 {
            println!("{line}");
        }
    }

    /// Runs a part and waits for the other ranks. Returns the number of passed checks and the
    /// number of failed checks, summed over all ranks.
    fn part(&self, name: &'static str, body: fn(&Part<'_>) -> Outcome) -> Result<(usize, usize), Failed> {
        let (began, stream) = (Instant::now(), self.context.new_stream()?);
        let part = Part {
            name,
            all: self,
            stream,
            meetings: Cell::new(0),
            passed: Cell::new(0),
            failures: RefCell::default(),
            notes: RefCell::default(),
        };
        part.step("start of this part of the check");
        match std::panic::catch_unwind(AssertUnwindSafe(|| body(&part))) {
            Ok(Ok(())) => {}
            Ok(Err(Failed(error))) => {
                let step = self.step.lock().unwrap_or_else(PoisonError::into_inner).clone();
                part.failures.borrow_mut().push(format!("{step}: {error}"));
            }
            Err(_) => part.failures.borrow_mut().push("this part of the check panicked".to_owned()),
        }
        part.step("exchanging the results of all ranks");
        let mut report = vec![part.passed.get().to_string(), part.failures.borrow().len().to_string()];
        report.extend(part.failures.borrow().iter().take(8).map(|failure| format!("  rank {}: {failure}", self.rank)));
        if self.rank == 0 {
            report.extend(part.notes.borrow().iter().map(|note| format!("  {note}")));
        }
        let report = report.join("\n");
        self.board.put(&format!("report on part {name} from rank {}", self.rank), report.as_bytes())?;
        let (mut passed, mut wrong, mut lines) = (0, 0, Vec::new());
        for rank in 0..self.ranks {
            let report = self.board.get(&format!("report on part {name} from rank {rank}"), END_OF_PART)?;
            let report = String::from_utf8_lossy(&report).into_owned();
            let mut words = report.split('\n');
            let mut number = || words.next().and_then(|word| word.parse::<usize>().ok()).unwrap_or(0);
            passed += number();
            wrong += number();
            lines.extend(words.map(str::to_owned));
        }
        let verdict = if wrong == 0 { "passed".to_owned() } else { format!("passed; {wrong} checks FAILED") };
        self.say(&format!("{name}: {passed} checks {verdict} ({:.1} s)", began.elapsed().as_secs_f64()));
        lines.iter().for_each(|line| self.say(line));
        Ok((passed, wrong))
    }
}

/// Returns the message that `name` was not run because the library lacks `function`. `name` is a
/// part or a check.
fn not_run(name: &str, function: &str) -> String {
    let since =
        Nccl::FUNCTIONS.iter().find(|known| known.name == function).map_or("newer than the loaded library", |known| known.since);
    format!("not run: {name} needs NCCL {since}")
}

impl Part<'_> {
    fn nccl(&self) -> Nccl {
        self.all.nccl
    }

    fn rank(&self) -> usize {
        self.all.rank
    }

    fn ranks(&self) -> usize {
        self.all.ranks
    }

    /// Sets the description of the current step. [`watch`] prints it if the run reaches its
    /// deadline.
    fn step(&self, what: &str) {
        *self.all.step.lock().unwrap_or_else(PoisonError::into_inner) = format!("{}, {what}", self.name);
    }

    /// Adds a line to the notes of this part of the check. Rank 0 prints its own notes below the
    /// name of the part. The notes of other ranks are ignored.
    fn note(&self, what: impl Into<String>) {
        self.notes.borrow_mut().push(what.into());
    }

    /// Returns whether the library has the function. If the function is missing, adds a note that
    /// the check `name` was not run.
    fn has(&self, name: &str, function: &str) -> bool {
        let has = self.nccl().has(function);
        if !has {
            self.note(not_run(name, function));
        }
        has
    }

    /// Returns whether the library has at least this version. If the library is older, adds a note
    /// that the check `name` was not run.
    fn is_since(&self, name: &str, version: Version) -> bool {
        let is = self.nccl().version().at_least(version);
        if !is {
            self.note(format!("not run: {name} needs NCCL {version}"));
        }
        is
    }

    /// Counts the check as passed if `is_right` is true. Otherwise records the check as failed,
    /// with the description that `what` returns.
    fn check(&self, is_right: bool, what: impl FnOnce() -> String) {
        match is_right {
            true => self.passed.set(self.passed.get() + 1),
            false => self.failures.borrow_mut().push(what()),
        }
    }

    /// Checks that `found` equals `expected`. Counts the check as passed, or records the first
    /// difference. `what` describes the check.
    fn same<T: PartialEq + Debug>(&self, found: &[T], expected: &[T], what: impl FnOnce() -> String) {
        if found == expected {
            return self.check(true, String::new);
        }
        let at = found.iter().zip(expected).position(|(found, expected)| found != expected).unwrap_or(0);
        let (value, wanted) = (found.get(at), expected.get(at));
        self.check(false, || format!("{}: element {at} of {} is {value:?}, expected {wanted:?}", what(), found.len()));
    }

    /// Checks that `outcome` is an error that the predicate `is` accepts. Counts the check as
    /// passed, or records the mistake. `what` describes the check.
    fn refused<T: Debug>(&self, what: &str, outcome: Result<T, NcclError>, is: impl FnOnce(&NcclError) -> bool) {
        match outcome {
            Ok(value) => self.check(false, || format!("{what} succeeded and returned {value:?}, expected an error")),
            Err(error) => self.check(is(&error), || format!("{what}: unexpected error: {error}")),
        }
    }

    /// Sends `mine` to all ranks, and returns the bytes that each rank has sent. Collective: all
    /// ranks must make these calls in the same order.
    fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Failed> {
        let number = self.meetings.replace(self.meetings.get() + 1);
        let key = |rank: usize| format!("{} {number} {rank}", self.name);
        self.all.board.put(&key(self.rank()), mine)?;
        (0..self.ranks()).map(|rank| self.all.board.get(&key(rank), FIRST)).collect()
    }

    /// Waits until every rank has called this method. Collective: all ranks must make the calls of
    /// this method and of [`Self::exchange`] in the same order.
    fn meet(&self) -> Outcome {
        self.exchange(&[]).map(drop)
    }

    /// Creates a communicator of all ranks.
    fn communicator(&self, config: &Config) -> Result<Communicator, Failed> {
        self.communicator_of(self.ranks(), config)?
            .ok_or_else(|| Failed("this rank got no communicator, although all ranks are members".to_owned()))
    }

    /// Creates a communicator of the first `ranks` ranks, and returns `None` on the other ranks.
    /// Collective: the other ranks must call this method too.
    fn communicator_of(&self, ranks: usize, config: &Config) -> Result<Option<Communicator>, Failed> {
        let mine = if self.rank() == 0 { self.nccl().unique_id()?.to_hex() } else { String::new() };
        let id = String::from_utf8_lossy(&self.exchange(mine.as_bytes())?[0]).parse()?;
        if self.rank() >= ranks {
            return Ok(None);
        }
        let comm = Communicator::builder().nccl(self.nccl()).config(config.clone()).deadline(FIRST).init_rank(
            &self.all.context,
            ranks,
            &id,
            Rank::new(self.rank() as u32),
        )?;
        comm.set_deadline(DEADLINE);
        Ok(Some(comm))
    }

    fn wait(&self, comm: &Communicator) -> Outcome {
        Ok(comm.wait(&self.stream, DEADLINE)?)
    }

    /// Checks an all-reduce of 3 elements, and an all-reduce of 2^20 elements, which is long enough
    /// to use all channels of NCCL. `what` describes the communicator for failure messages.
    fn computes(&self, comm: &Communicator, what: &str) -> Outcome {
        let n = comm.n_ranks();
        for len in [3, 1 << 20] {
            let mut values = DeviceMemory::from_slice(&self.stream, &pattern::<f32>(comm.rank().index(), len))?;
            comm.all_reduce_in_place(&self.stream, &mut values, ReduceOp::Sum)?;
            self.wait(comm)?;
            self.same(&values.to_vec(&self.stream)?, &sums(n, 0..len), || format!("{what}: all_reduce of {len} elements"));
        }
        Ok(())
    }

    /// Captures the calls of `body` into a graph.
    fn capture(&self, body: impl FnOnce() -> Result<(), NcclError>) -> Result<CudaGraph, Failed> {
        self.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let recorded = body();
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.stream.end_capture(flags);
        recorded?;
        graph?.ok_or_else(|| Failed("the capture returned no graph".to_owned()))
    }
}

/// Number of elements after which test values repeat. The number is prime. So a check detects that
/// two ranges were swapped, even if their lengths are powers of two.
const PERIOD: usize = 101;

/// Returns one element of the input of `rank` for reductions, as an integer. Sums over sixteen
/// ranks are exact in every type that the checks reduce.
fn given(rank: usize, index: usize) -> i64 {
    let index = index % PERIOD;
    ((index * (2 * rank + 3) + index / 7 + rank) % 4) as i64
}

fn repeated<T: Sample>(places: std::ops::Range<usize>, value: impl Fn(usize) -> T) -> Vec<T> {
    let first = places.start;
    let period: Vec<T> = (first..first + PERIOD).map(value).collect();
    let mut values = Vec::with_capacity(places.len() + PERIOD);
    while values.len() < places.len() {
        values.extend_from_slice(&period);
    }
    values.truncate(places.len());
    values
}

/// Returns the first `len` elements of the input of `rank` for reductions.
fn pattern<T: Sample>(rank: usize, len: usize) -> Vec<T> {
    repeated(0..len, |index| T::number(given(rank, index)))
}

/// Returns the expected result of a sum over all ranks, for the elements with the indices `places`.
fn sums<T: Sample>(ranks: usize, places: std::ops::Range<usize>) -> Vec<T> {
    repeated(places, |index| T::number((0..ranks).map(|rank| given(rank, index)).sum()))
}

/// Returns `len` elements with arbitrary bits. They are the input of operations that only move
/// data. Different seeds give different elements.
fn moved<T: Sample>(seed: usize, len: usize) -> Vec<T> {
    repeated(0..len, |index| T::pattern(seed * 31 + index % PERIOD * 7 + 1))
}
