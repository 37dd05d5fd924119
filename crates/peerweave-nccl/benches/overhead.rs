//! Measures the CPU time that this crate adds to a bare call of NCCL's C function. The calls run in
//! a loop, with a fake library that does no work.
//!
//! Both calls use the same communicator: first a blocking communicator, then a non-blocking
//! communicator. On a non-blocking communicator NCCL starts a thread for each call, and a caller in
//! C polls until that thread is done. So the bare calls poll too. Non-blocking calls are measured
//! with two kinds of library. One library starts a thread for each call. The other library starts
//! no thread, and is in progress for one query. Each wrapped call makes two driver queries, before
//! and after the call of NCCL, that return whether the stream is being captured. The two queries
//! are also measured separately. The queries use the fake driver, which is about as fast as the
//! real driver. The results do not apply to GPUs: see `examples/call_cost.rs`.
//!
//! The program fails if a call did not reach the library, or if the communicator counted a
//! different number of calls. The variable `ONLY` selects the rows whose names contain its value.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_driver::{CudaContext, CudaStream, DeviceMemory};
use peerweave_fakes::Fakes;
use peerweave_nccl::{Communicator, Config, Nccl, NcclError, Rank, ReduceOp, Switch};

const CALLS: usize = 10_000;
/// Number of calls in a round if each call takes microseconds.
const SLOW_CALLS: usize = 200;
const ROUNDS: usize = 61;

type Handle = *mut c_void;
type AllReduce = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
type Broadcast = AllReduce;
type Send = unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
type Recv = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
type State = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
type Group = unsafe extern "C" fn() -> c_int;
type Count = unsafe extern "C" fn(*const c_char) -> i64;
type IsCapturing = unsafe extern "C" fn(Handle, *mut c_uint) -> c_int;

/// Variable that selects how the fake library completes a call on a non-blocking communicator: with
/// `1` by a thread for each call, with `questions` after one query. The library does no work in
/// both cases.
const MODE: &str = "PEERWEAVE_FAKE_NCCL_NOOP";
const QUESTIONS: &str = "questions";

const LEN: usize = 256;
/// Number of calls in a group with several calls.
const MANY: usize = 10;
/// `ncclFloat32`, `ncclSum` and `ncclInProgress`.
const FLOAT32: c_int = 7;
const SUM: c_int = 0;
const IN_PROGRESS: c_int = 7;

fn main() -> ExitCode {
    if peerweave_fakes::child().is_some() {
        measure();
        return ExitCode::SUCCESS;
    }
    println!(
        "nanoseconds per call, medians of {ROUNDS} rounds; beyond: time added to the bare call, and to the bare call with both queries"
    );
    for mode in ["1", QUESTIONS] {
        let fakes = Fakes::new().cuda().nccl().env("PEERWEAVE_FAKE_CUDA_DEVICES", "1").env(MODE, mode);
        // Disables the fake driver's log, which takes longer than the calls.
        let fakes = fakes.env_remove("PEERWEAVE_FAKE_CUDA_LOG");
        let output = fakes.run_child("main");
        print!("{}", output.stdout);
        if !output.status.success() || output.timed_out {
            eprint!("{}", output.stderr);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Returns a function of a loaded library by its name.
///
/// # Safety
/// `F` is the type of a pointer to the function.
unsafe fn function<F: Copy>(library: &str, name: &CStr) -> F {
    let library = std::ffi::CString::new(library).expect("the path has no zero byte");
    // SAFETY: both names end with zero; the library is already loaded, and stays loaded.
    let function = unsafe { libc::dlsym(libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD), name.as_ptr()) };
    assert!(!function.is_null(), "the library lacks {name:?}");
    assert_eq!(size_of::<F>(), size_of::<Handle>());
    // SAFETY: the caller promised that `F` is the type of this function. Both types are pointers.
    unsafe { std::mem::transmute_copy(&function) }
}

/// The C functions that the bare calls use.
struct Bare {
    all_reduce: AllReduce,
    broadcast: Broadcast,
    send: Send,
    recv: Recv,
    start: Group,
    end: Group,
    state: State,
    count: Count,
    is_capturing: IsCapturing,
}

impl Bare {
    fn new(nccl: Nccl) -> Self {
        let (path, cuda) = (nccl.path().to_str().expect("the path is UTF-8"), "libcuda.so.1");
        // SAFETY: the types are the signatures of these functions.
        unsafe {
            Self {
                all_reduce: function(path, c"ncclAllReduce"),
                broadcast: function(path, c"ncclBroadcast"),
                send: function(path, c"ncclSend"),
                recv: function(path, c"ncclRecv"),
                start: function(path, c"ncclGroupStart"),
                end: function(path, c"ncclGroupEnd"),
                state: function(path, c"ncclCommGetAsyncError"),
                count: function(path, c"peerweave_fake_nccl_count"),
                is_capturing: function(cuda, c"cuStreamIsCapturing"),
            }
        }
    }

    /// Makes the two driver queries of a wrapped call.
    #[inline]
    fn ask(&self, stream: Handle) {
        for _ in 0..2 {
            let mut status = 0;
            // SAFETY: the stream is live, and the pointer is to a live number.
            assert_eq!(unsafe { (self.is_capturing)(stream, &raw mut status) }, 0);
            black_box(status);
        }
    }

    /// Completes a bare call: polls while NCCL is in progress.
    #[inline]
    fn complete(&self, comm: Handle, answer: c_int, yields: bool) {
        let mut state = answer;
        while state == IN_PROGRESS {
            if yields {
                std::thread::yield_now();
            }
            // SAFETY: the communicator is live, and so is the number.
            assert_eq!(unsafe { (self.state)(comm, &raw mut state) }, 0);
        }
        assert_eq!(state, 0);
    }
}

/// Device memory for all rows.
struct Memory {
    send: DeviceMemory<f32>,
    recv: DeviceMemory<f32>,
    many: Vec<DeviceMemory<f32>>,
}

fn measure() {
    let nccl = Nccl::load().expect("the fake library is found");
    let context = peerweave_driver::context(0).expect("the fake has this device");
    let bare = Bare::new(nccl);
    let stream = context.new_stream().expect("a stream is created");
    let values = |value: f32| DeviceMemory::from_slice(&stream, &[value; LEN]).expect("memory is allocated");
    let mut memory = Memory { send: values(1.0), recv: values(0.0), many: (0..MANY).map(|_| values(0.0)).collect() };
    if std::env::var(MODE).is_ok_and(|mode| mode == QUESTIONS) {
        println!("\nnon-blocking communicator, without NCCL's thread for each call");
        let default = Bench::new(nccl, &context, &bare, &stream, Switch::Off, CALLS);
        alone(&default, &mut memory);
        return groups(&default, &mut memory);
    }
    println!("\nblocking communicator");
    let blocking = Bench::new(nccl, &context, &bare, &stream, Switch::On, CALLS);
    alone(&blocking, &mut memory);
    special(&blocking, &context);
    groups(&blocking, &mut memory);
    println!("\nnon-blocking communicator, with NCCL's thread for each call or group");
    let default = Bench::new(nccl, &context, &bare, &stream, Switch::Off, SLOW_CALLS);
    bench_thread(&default, &mut memory);
    println!("\nnon-blocking communicator, all threads on one processor; bare calls yield between queries");
    on_one_processor();
    let bound = Bench { yields: true, ..default };
    bench_thread(&bound, &mut memory);
}

/// Measures the overhead of calls for which the library starts a thread.
fn bench_thread(bench: &Bench<'_>, memory: &mut Memory) {
    let (comm, stream) = (&bench.comm, bench.stream);
    let to = memory.recv.address() as *mut c_void;
    bench.row(
        "all_reduce_in_place",
        || bench.all_reduce(black_box(to), to),
        || comm.all_reduce_in_place(stream, black_box(&mut memory.recv), ReduceOp::Sum),
    );
    groups(bench, memory);
}

/// Binds this thread to its current processor.
fn on_one_processor() {
    // SAFETY: the pointer is to a live set, whose size is passed.
    unsafe {
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu().unsigned_abs() as usize, &mut one);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &raw const one), 0);
    }
}

/// Measures each call alone.
fn alone(bench: &Bench<'_>, Memory { send, recv, .. }: &mut Memory) {
    let (comm, stream, bare) = (&bench.comm, bench.stream, bench.bare);
    let (from, to, on, raw) = (send.address() as *const c_void, recv.address() as *mut c_void, bench.on, bench.raw);
    let all_reduce = || bench.all_reduce(black_box(from), to);
    // SAFETY: the library only counts; the arguments are live all the same.
    let broadcast = || bench.complete(unsafe { (bare.broadcast)(black_box(from), to, LEN, FLOAT32, 0, raw, on) });
    // SAFETY: as above.
    let raw_send = || bench.complete(unsafe { (bare.send)(black_box(from), LEN, FLOAT32, 0, raw, on) });
    // SAFETY: as above.
    let raw_recv = || bench.complete(unsafe { (bare.recv)(black_box(to), LEN, FLOAT32, 0, raw, on) });
    bench.row("all_reduce", all_reduce, || comm.all_reduce(stream, black_box(send), recv, ReduceOp::Sum));
    bench.row("all_reduce_in_place", all_reduce, || comm.all_reduce_in_place(stream, black_box(recv), ReduceOp::Sum));
    bench.row("broadcast", broadcast, || comm.broadcast(stream, black_box(Some(&*send)), recv, Rank::new(0)));
    bench.row("broadcast_in_place", broadcast, || comm.broadcast_in_place(stream, black_box(recv), Rank::new(0)));
    bench.row("send", raw_send, || comm.send(stream, black_box(send), Rank::new(0)));
    bench.row("recv", raw_recv, || comm.recv(stream, black_box(recv), Rank::new(0)));
}

/// Measures calls that need additional work: calls on the default stream, and calls on cudarc's
/// slices, which have their own events.
fn special(bench: &Bench<'_>, context: &Arc<CudaContext>) {
    let (comm, stream, default) = (&bench.comm, bench.stream, context.default_stream());
    let mut other = DeviceMemory::from_slice(&default, &[0.0f32; LEN]).expect("memory is allocated");
    let slice = stream.clone_htod(&[1.0f32; LEN]).expect("memory is allocated");
    let mut slice_out = stream.alloc_zeros::<f32>(LEN).expect("memory is allocated");
    let to = other.address() as *mut c_void;
    let all_reduce = || bench.all_reduce(black_box(to), to);
    bench.row("all_reduce_in_place, default stream", all_reduce, || {
        comm.all_reduce_in_place(&default, black_box(&mut other), ReduceOp::Sum)
    });
    bench.row("all_reduce of cudarc slices", all_reduce, || {
        comm.all_reduce(stream, black_box(&slice), &mut slice_out, ReduceOp::Sum)
    });
}

/// Measures calls in groups; the bare calls use `ncclGroupStart` and `ncclGroupEnd`.
fn groups(bench: &Bench<'_>, Memory { recv, many, .. }: &mut Memory) {
    let (comm, stream, bare, nccl) = (&bench.comm, bench.stream, bench.bare, bench.comm.nccl());
    let to = recv.address() as *mut c_void;
    let grouped = |calls: usize| {
        // SAFETY: this thread starts the group, and ends it.
        assert_eq!(unsafe { (bare.start)() }, 0);
        (0..calls).for_each(|_| bench.all_reduce(black_box(to), to));
        // SAFETY: as above.
        bench.complete(unsafe { (bare.end)() });
    };
    bench.row(
        "group of one",
        || grouped(1),
        || nccl.group(|group| group.all_reduce_in_place(comm, stream, black_box(recv), ReduceOp::Sum)),
    );
    bench.rows(
        "group of ten, per call",
        MANY,
        || grouped(MANY),
        || {
            nccl.group(|group| {
                many.iter_mut().try_for_each(|recv| group.all_reduce_in_place(comm, stream, black_box(recv), ReduceOp::Sum))
            })
        },
    );
}

/// A communicator, and the measurements on it.
struct Bench<'a> {
    bare: &'a Bare,
    comm: Communicator,
    raw: Handle,
    stream: &'a Arc<CudaStream>,
    on: Handle,
    /// Number of calls that are timed together.
    calls: usize,
    /// Whether bare calls yield the processor between queries.
    yields: bool,
}

impl<'a> Bench<'a> {
    fn new(
        nccl: Nccl,
        context: &Arc<CudaContext>,
        bare: &'a Bare,
        stream: &'a Arc<CudaStream>,
        blocking: Switch,
        calls: usize,
    ) -> Self {
        let config = Config::new().blocking(blocking);
        let made = Communicator::builder()
            .nccl(nccl)
            .config(config.clone())
            .deadline(Duration::from_secs(20))
            .init_all(std::slice::from_ref(context));
        let comm = made.expect("the communicator is created").remove(0);
        let raw = comm.as_raw().expect("the communicator is live");
        println!("{:<36} {:>8} {:>10} {:>8} {:>8} {:>8}", "", "bare", "questions", "ours", "beyond", "beyond");
        Self { bare, comm, raw, stream, on: stream.cu_stream().cast(), calls, yields: false }
    }

    /// Makes the bare call.
    #[inline]
    fn all_reduce(&self, from: *const c_void, to: *mut c_void) {
        // SAFETY: the library only counts; the arguments are live all the same.
        self.complete(unsafe { (self.bare.all_reduce)(from, to, LEN, FLOAT32, SUM, self.raw, self.on) });
    }

    #[inline]
    fn complete(&self, answer: c_int) {
        self.bare.complete(self.raw, answer, self.yields);
    }

    /// Measures the bare call, the bare call after the two queries, and the wrapped call. The three
    /// measurements alternate, so that other load on the machine affects them equally.
    fn row(&self, name: &str, bare: impl Fn(), ours: impl FnMut() -> Result<(), NcclError>) {
        self.rows(name, 1, bare, ours);
    }

    /// Measures like [`row`](Self::row), for functions that make `calls` calls each.
    fn rows(&self, name: &str, calls: usize, bare: impl Fn(), mut ours: impl FnMut() -> Result<(), NcclError>) {
        if std::env::var("ONLY").is_ok_and(|only| !name.contains(&only)) {
            return;
        }
        let (mut times, sequence) = ([const { Vec::new() }; 3], self.comm.sequence());
        for _ in 0..ROUNDS {
            times[0].push(self.round(name, calls, &bare));
            times[1].push(self.round(name, calls, || {
                (0..calls).for_each(|_| self.bare.ask(self.on));
                bare();
            }));
            times[2].push(self.round(name, calls, || ours().expect("the call succeeds")));
        }
        assert_eq!(
            self.comm.sequence() - sequence,
            (ROUNDS * self.calls) as u64,
            "{name}: the communicator must count every call"
        );
        let beyond = |base: usize| median(times[2].iter().zip(&times[base]).map(|(ours, base)| ours - base).collect());
        let (beyond, [bare, asked, ours]) = ([beyond(0), beyond(1)], times.clone().map(median));
        println!("{name:<36} {bare:>8.1} {asked:>10.1} {ours:>8.1} {:>8.1} {:>8.1}", beyond[0], beyond[1]);
    }

    /// Returns the time per call in nanoseconds. Panics if a call does not reach the library.
    fn round(&self, name: &str, calls: usize, mut call: impl FnMut()) -> f64 {
        // SAFETY: the name ends with zero.
        let counted = || unsafe { (self.bare.count)(c"collectives".as_ptr()) };
        let (before, start) = (counted(), Instant::now());
        for _ in 0..self.calls / calls {
            call();
        }
        let nanoseconds = start.elapsed().as_nanos() as f64 / self.calls as f64;
        assert_eq!(counted() - before, self.calls as i64, "{name}: every call must reach the library");
        nanoseconds
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
