//! Measures the host time of a call on the GPUs of a machine: a small all-reduce through this crate
//! and through NCCL's own function, on one communicator.
//!
//! One thread drives each device. There are two modes: blocking communicators, the default, and
//! non-blocking communicators. In each mode, blocks of 50 calls of each kind alternate, so that
//! other load on the machine affects all kinds equally. The streams are drained between the blocks,
//! outside of the timing. The overhead of this crate has three parts: driver queries before and
//! after each call, an uncontended lock, and the crate's checks. The program also times bare calls
//! with only these queries, and bare calls with only such a lock. The rest of the overhead is the
//! cost of the checks. On a non-blocking communicator, a bare call includes polling until NCCL has
//! finished, as every program must do. The program prints the median of every rank, and checks the
//! results at the end. Every wait has a deadline of 20 s, and the whole run has a deadline of 120
//! s.

use std::ffi::{CString, c_int, c_void};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use peerweave_driver::{CudaContext, CudaStream, DeviceMemory, Driver, is_capturing};
use peerweave_nccl::{Communicator, Config, Nccl, NcclError, Rank, ReduceOp, Switch, UniqueId};

/// Number of calls in a block. A block is timed as a whole. So many calls fit in the queue of a
/// stream.
const BLOCK: usize = 50;
/// Number of blocks at the start that are not timed. These blocks connect the ranks and warm up the
/// caches.
const WARM_UP: usize = 10;
const DEADLINE: Duration = Duration::from_secs(20);
/// Time limit of the whole run, including waits inside NCCL.
const WHOLE_RUN: Duration = Duration::from_secs(120);

/// NCCL's numbers for `ncclFloat32`, `ncclSum` and `ncclInProgress`.
const FLOAT32: c_int = 7;
const SUM: c_int = 0;
const IN_PROGRESS: c_int = 7;

type AllReduce = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
type State = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;

/// Measures the host time of a call: a small all-reduce through this crate and through NCCL's own
/// function.
#[derive(Clone, Copy, Parser)]
#[command(max_term_width = 110)]
struct Arguments {
    /// Number of GPUs; default: all
    #[arg(long, value_parser = at_least_one)]
    devices: Option<usize>,
    /// Number of elements (f32) of the all-reduce
    #[arg(long, default_value_t = 256, value_parser = at_least_one)]
    count: usize,
    /// Number of timed blocks for each kind of call; a block has 50 calls
    #[arg(long, default_value_t = 100, value_parser = at_least_one)]
    blocks: usize,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// The kind of call that is timed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A bare call of NCCL's C function.
    Bare,
    /// A bare call with two driver queries, one before and one after the call, as in this crate.
    /// The queries return whether the stream is being captured.
    Questions,
    /// A bare call between acquiring and releasing an uncontended lock.
    Turn,
    /// A call through this crate.
    Ours,
}

const KINDS: [Kind; 4] = [Kind::Bare, Kind::Questions, Kind::Turn, Kind::Ours];

/// The measurements of one rank in one mode, blocking or non-blocking, in nanoseconds per call.
struct Measured {
    bare: f64,
    ours: f64,
    /// Median of the additional time of a call through this crate, compared with a bare call.
    /// `question` and `turn` are the medians of the additional time for the driver queries and for
    /// the lock.
    beyond: f64,
    question: f64,
    turn: f64,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "expected an integer of at least 1".to_owned())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // The bare calls have no deadline: the watchdog sees only the calls of this crate.
    std::thread::spawn(|| {
        std::thread::sleep(WHOLE_RUN);
        println!("FAILED the run did not end within {WHOLE_RUN:?}");
        std::process::exit(1);
    });
    match all(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAILED {error}");
            ExitCode::FAILURE
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn all(arguments: &Arguments) -> Result<(), String> {
    let nccl = Nccl::load().map_err(text)?;
    let there = Driver::get().and_then(Driver::device_count).map_err(text)?;
    let devices = arguments.devices.unwrap_or(there);
    if devices > there {
        return Err(format!("--devices is {devices}, expected at most {there} (the number of GPUs)"));
    }
    if !arguments.json {
        println!(
            "NCCL {}, {devices} devices, all_reduce of {} f32; ns per call on the host, medians of {} blocks of {BLOCK} calls",
            nccl.version(),
            arguments.count,
            arguments.blocks
        );
        println!(
            "{:<14} {:>5} {:>10} {:>10} {:>10} {:>7} {:>10} {:>8} {:>8}",
            "", "rank", "bare", "ours", "beyond", "ratio", "question", "turn", "rest"
        );
    }
    let mut rows = Vec::new();
    for (mode, blocking) in [("blocking", Switch::On), ("non-blocking", Switch::Off)] {
        for (rank, measured) in of_mode(nccl, devices, blocking, arguments)?.into_iter().enumerate() {
            let Measured { bare, ours, beyond, question, turn } = measured;
            let (ratio, rest) = (ours / bare, beyond - question - turn);
            if !arguments.json {
                println!(
                    "{mode:<14} {rank:>5} {bare:>10.1} {ours:>10.1} {beyond:>10.1} {ratio:>7.4} {question:>10.1} {turn:>8.1} {rest:>8.1}"
                );
            }
            rows.push(format!(
                "{{\"mode\":\"{mode}\",\"rank\":{rank},\"bare_ns\":{bare:.1},\"ours_ns\":{ours:.1},\"beyond_ns\":{beyond:.1},\"ratio\":{ratio:.4},\"question_ns\":{question:.1},\"turn_ns\":{turn:.1},\"rest_ns\":{rest:.1}}}"
            ));
        }
    }
    if arguments.json {
        println!(
            "{{\"nccl\":\"{}\",\"devices\":{devices},\"count\":{},\"calls_per_block\":{BLOCK},\"blocks\":{},\"checked\":true,\"rows\":[{}]}}",
            nccl.version(),
            arguments.count,
            arguments.blocks,
            rows.join(",")
        );
    } else {
        println!("OK the results are correct");
    }
    Ok(())
}

/// Measures the cost of calls on blocking or non-blocking communicators. Every rank runs on its own
/// thread, with its own device. Returns the measurements in the order of the ranks.
fn of_mode(nccl: Nccl, devices: usize, blocking: Switch, arguments: &Arguments) -> Result<Vec<Measured>, String> {
    let id = nccl.unique_id().map_err(text)?;
    let contexts = (0..devices).map(peerweave_driver::context).collect::<Result<Vec<_>, _>>().map_err(text)?;
    std::thread::scope(|scope| {
        let start = |(rank, context): (usize, Arc<CudaContext>)| {
            scope.spawn(move || one_rank(nccl, &context, &id, rank, devices, blocking, arguments))
        };
        let threads: Vec<_> = contexts.into_iter().enumerate().map(start).collect();
        let join = |(rank, thread): (usize, std::thread::ScopedJoinHandle<'_, Result<Measured, String>>)| {
            thread
                .join()
                .unwrap_or_else(|_| Err("the thread of the rank panicked".to_owned()))
                .map_err(|error| format!("rank {rank}: {error}"))
        };
        // All threads are joined before the first error is returned.
        threads.into_iter().enumerate().map(join).collect::<Vec<_>>().into_iter().collect()
    })
}

fn one_rank(
    nccl: Nccl,
    context: &Arc<CudaContext>,
    id: &UniqueId,
    rank: usize,
    ranks: usize,
    blocking: Switch,
    arguments: &Arguments,
) -> Result<Measured, String> {
    let config = Config::new().blocking(blocking);
    let comm = Communicator::builder()
        .nccl(nccl)
        .config(config.clone())
        .deadline(DEADLINE)
        .init_rank(context, ranks, id, Rank::new(rank as u32))
        .map_err(text)?;
    let stream = context.new_stream().map_err(text)?;
    let one = One::new(nccl, comm, stream, arguments.count).map_err(text)?;
    let mut times = [const { Vec::new() }; KINDS.len()];
    for block in 0..WARM_UP + arguments.blocks {
        // Every rank makes the same calls in the same order. The order of the kinds changes, and
        // with it the contents of the caches.
        for turn in 0..KINDS.len() {
            let which = (block + turn) % KINDS.len();
            let nanoseconds = one.time(KINDS[which])?;
            if block >= WARM_UP {
                times[which].push(nanoseconds);
            }
        }
    }
    one.check(rank, ranks)?;
    let One { comm, .. } = one;
    comm.finalize(DEADLINE).map_err(text)?;
    let beyond = |which: usize| median(times[which].iter().zip(&times[0]).map(|(one, bare)| one - bare).collect());
    let [question, turn, beyond] = [1, 2, 3].map(beyond);
    let [bare, .., ours] = times.map(median);
    Ok(Measured { bare, ours, beyond, question, turn })
}

/// One rank, with its communicator, stream and buffers. No call is in place, so repeated calls do
/// not change the values.
struct One {
    comm: Communicator,
    stream: Arc<CudaStream>,
    send: DeviceMemory<f32>,
    by_us: std::cell::RefCell<DeviceMemory<f32>>,
    by_c: DeviceMemory<f32>,
    all_reduce: AllReduce,
    state: State,
    raw: *mut c_void,
    turn: AtomicU64,
}

impl One {
    fn new(nccl: Nccl, comm: Communicator, stream: Arc<CudaStream>, count: usize) -> Result<Self, NcclError> {
        let values = |value: f32| DeviceMemory::from_slice(&stream, &vec![value; count]);
        let (send, by_us, by_c) = (values(comm.rank().get() as f32 + 1.0)?, values(0.0)?.into(), values(0.0)?);
        // SAFETY: the types are the signatures of these functions.
        let (all_reduce, state) = unsafe { (function(nccl, "ncclAllReduce"), function(nccl, "ncclCommGetAsyncError")) };
        let raw = comm.as_raw()?;
        Ok(Self { comm, stream, send, by_us, by_c, all_reduce, state, raw, turn: AtomicU64::new(0) })
    }

    /// Times one block of calls of this kind. Returns the time per call, in nanoseconds.
    fn time(&self, kind: Kind) -> Result<f64, String> {
        match kind {
            Kind::Bare => self.timed(|| self.bare()),
            Kind::Questions => {
                let ask = || is_capturing(&self.stream).map_err(text);
                self.timed(|| ask().and_then(|_| self.bare()).and_then(|()| ask().map(drop)))
            }
            Kind::Turn => self.timed(|| {
                let turn = self.turn.load(Ordering::Relaxed);
                self.turn.compare_exchange(turn, turn | 1, Ordering::SeqCst, Ordering::Relaxed).map_err(text)?;
                let called = self.bare();
                self.turn.store(turn + 2, Ordering::Release);
                called
            }),
            Kind::Ours => {
                let mut to = self.by_us.borrow_mut();
                self.timed(|| self.comm.all_reduce(&self.stream, &self.send, &mut *to, ReduceOp::Sum).map_err(text))
            }
        }
    }

    /// Makes a bare call of NCCL's C function.
    #[inline]
    fn bare(&self) -> Result<(), String> {
        let (from, to) = (self.send.address() as *const c_void, self.by_c.address() as *mut c_void);
        let (count, stream) = (self.send.len(), self.stream.cu_stream().cast());
        // SAFETY: the communicator lives, this thread alone calls on it, and each buffer has
        // `count` elements.
        let mut state = unsafe { (self.all_reduce)(from, to, count, FLOAT32, SUM, self.raw, stream) };
        while state == IN_PROGRESS {
            // SAFETY: as above; the pointer is to a live number.
            let asked = unsafe { (self.state)(self.raw, &raw mut state) };
            if asked != 0 {
                return Err(format!("ncclCommGetAsyncError returned {asked}"));
            }
        }
        if state == 0 { Ok(()) } else { Err(format!("ncclAllReduce returned {state}")) }
    }

    /// Times a block of calls, then waits until the device has completed the block.
    fn timed(&self, mut call: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
        let start = Instant::now();
        for _ in 0..BLOCK {
            call()?;
        }
        let nanoseconds = start.elapsed().as_nanos() as f64 / BLOCK as f64;
        self.comm.wait(&self.stream, DEADLINE).map_err(text)?;
        Ok(nanoseconds)
    }

    fn check(&self, rank: usize, ranks: usize) -> Result<(), String> {
        let expected = vec![(ranks * (ranks + 1) / 2) as f32; self.send.len()];
        for (what, memory) in [("ours", &*self.by_us.borrow()), ("bare", &self.by_c)] {
            let found = memory.to_vec(&self.stream).map_err(text)?;
            if found != expected {
                return Err(format!(
                    "{what}: the result on rank {rank} starts with {:?}, expected {:?}",
                    found.first(),
                    expected.first()
                ));
            }
        }
        Ok(())
    }
}

/// Returns a function of NCCL by its name.
///
/// # Safety
/// `F` is the type of a pointer to the function with this name.
unsafe fn function<F: Copy>(nccl: Nccl, name: &str) -> F {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    let path = CString::new(nccl.path().as_os_str().as_encoded_bytes()).expect("a path has no zero byte");
    let name = CString::new(name).expect("the name of the function has no zero byte");
    // SAFETY: both names end with zero; the library is already loaded, and is never unloaded.
    let function = unsafe { libc::dlsym(libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD), name.as_ptr()) };
    assert!(!function.is_null(), "NCCL lacks the function {name:?}");
    // SAFETY: the caller promised that `F` is the type of this function. Both types are pointers.
    unsafe { std::mem::transmute_copy(&function) }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
