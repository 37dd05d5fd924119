//! What a call costs on the CPU beyond the bare call of C: in a loop, against the fake library in its mode without work.
//!
//! The driver is asked two questions before each call (which context is current, is the stream being captured); they are measured too, and told apart.
//! What they cost is the fake driver's time here, which is about the real one's. Nothing here says anything about a GPU. Fails if a call did not reach the
//! library, or if the communicator's number of calls is not theirs. With `ONLY` in the environment, only the rows whose names contain that.

use std::ffi::{CString, c_int, c_void};
use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use peerweave_driver::{DeviceMemory, Driver, is_capturing};
use peerweave_fakes::Fakes;
use peerweave_nccl::{Communicator, Config, Nccl, NcclError, ReduceOp};

const CALLS: usize = 10_000;
const ROUNDS: usize = 61;

type Handle = *mut c_void;
type AllReduce = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
type Broadcast = AllReduce;
type Send = unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
type Recv = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
type InitAll = unsafe extern "C" fn(*mut Handle, c_int, *const c_int) -> c_int;
type Group = unsafe extern "C" fn() -> c_int;
type Count = unsafe extern "C" fn(*const libc::c_char) -> i64;

const LEN: usize = 256;
/// Calls in a group that has several.
const MANY: usize = 10;
/// `ncclFloat32` and `ncclSum`.
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

fn main() -> ExitCode {
    if peerweave_fakes::child().is_some() {
        measure();
        return ExitCode::SUCCESS;
    }
    let fakes = Fakes::new().cuda().nccl().env("PEERWEAVE_FAKE_CUDA_DEVICES", "1").env("PEERWEAVE_FAKE_NCCL_NOOP", "1");
    // The harness has the driver log its calls, which costs more than they do.
    let fakes = fakes.env_remove("PEERWEAVE_FAKE_CUDA_LOG");
    let output = fakes.limit(Duration::from_secs(300)).run_child("main");
    print!("{}", output.stdout);
    if output.status.success() && !output.timed_out {
        return ExitCode::SUCCESS;
    }
    eprint!("{}", output.stderr);
    ExitCode::FAILURE
}

/// A function of the library by its name.
///
/// # Safety
/// `F` is the type of a pointer to it.
unsafe fn function<F: Copy>(name: &str) -> F {
    let path = Nccl::load().expect("the fake is there").path().to_str().expect("UTF-8");
    let (path, name) = (CString::new(path).expect("no zero byte"), CString::new(name).expect("no zero byte"));
    // SAFETY: both names end with zero; the library is loaded already, and stays.
    let function = unsafe { libc::dlsym(libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD), name.as_ptr()) };
    assert!(!function.is_null(), "{name:?}");
    assert_eq!(size_of::<F>(), size_of::<Handle>());
    // SAFETY: the caller's promise; both are pointers.
    unsafe { std::mem::transmute_copy(&function) }
}

fn measure() {
    let nccl = Nccl::load().expect("the fake is there");
    let context = peerweave_driver::context(0).expect("a device");
    let deadline = Duration::from_secs(20);
    let comm =
        Communicator::init_all(nccl, std::slice::from_ref(&context), &Config::new(), deadline).expect("it is made").remove(0);
    let stream = context.new_stream().expect("a stream");
    let default = context.default_stream();
    let send = DeviceMemory::from_slice(&stream, &[1.0f32; LEN]).expect("memory");
    let mut recv = DeviceMemory::from_slice(&stream, &[0.0f32; LEN]).expect("memory");
    let mut other = DeviceMemory::from_slice(&default, &[0.0f32; LEN]).expect("memory");
    let slice = stream.clone_htod(&[1.0f32; LEN]).expect("memory");
    let mut slice_out = stream.alloc_zeros::<f32>(LEN).expect("memory");
    let mut many: Vec<_> = (0..MANY).map(|_| DeviceMemory::from_slice(&stream, &[0.0f32; LEN]).expect("memory")).collect();

    // SAFETY: those are the functions' signatures.
    let (all_reduce, broadcast, raw_send, raw_recv, start, end, count, init_all) = unsafe {
        (
            function::<AllReduce>("ncclAllReduce"),
            function::<Broadcast>("ncclBroadcast"),
            function::<Send>("ncclSend"),
            function::<Recv>("ncclRecv"),
            function::<Group>("ncclGroupStart"),
            function::<Group>("ncclGroupEnd"),
            function::<Count>("peerweave_fake_nccl_count"),
            function::<InitAll>("ncclCommInitAll"),
        )
    };
    let mut raw = std::ptr::null_mut();
    // SAFETY: the pointer is to a live handle; a null list is the first devices.
    assert_eq!(unsafe { init_all(&raw mut raw, 1, std::ptr::null()) }, 0);
    let (from, to, on) = (send.address() as *const c_void, recv.address() as *mut c_void, stream.cu_stream().cast());
    let api = Driver::get().expect("the fake is there").api();

    // SAFETY: the name ends with zero.
    let counted = || unsafe { count(c"collectives".as_ptr()) };
    let ask = || {
        let mut current = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        let _ = black_box(unsafe { api.cuCtxGetCurrent(&raw mut current) });
        let _ = black_box(is_capturing(&stream));
    };
    // SAFETY: the library only counts; the arguments are live all the same.
    let all_reduce = || assert_eq!(unsafe { all_reduce(black_box(from), to, LEN, FLOAT32, SUM, raw, on) }, 0);
    // SAFETY: as above.
    let broadcast = || assert_eq!(unsafe { broadcast(black_box(from), to, LEN, FLOAT32, 0, raw, on) }, 0);
    // SAFETY: as above.
    let raw_send = || assert_eq!(unsafe { raw_send(black_box(from), LEN, FLOAT32, 0, raw, on) }, 0);
    // SAFETY: as above.
    let raw_recv = || assert_eq!(unsafe { raw_recv(black_box(to), LEN, FLOAT32, 0, raw, on) }, 0);

    let grouped = |calls: usize| {
        // SAFETY: this thread starts the group, and ends it.
        assert_eq!(unsafe { start() }, 0);
        (0..calls).for_each(|_| all_reduce());
        // SAFETY: as above.
        assert_eq!(unsafe { end() }, 0);
    };

    println!(
        "nanoseconds of a call, medians of {ROUNDS} rounds of {CALLS} calls; beyond: the bare call, that and the two questions"
    );
    println!("{:<36} {:>6} {:>10} {:>7} {:>8} {:>8}", "", "bare", "questions", "ours", "beyond", "beyond");
    let bench = Bench { counted: &counted, comm: &comm, ask };
    bench.row("all_reduce", all_reduce, || comm.all_reduce(&stream, black_box(&send), &mut recv, ReduceOp::Sum));
    bench.row("all_reduce_in_place", all_reduce, || comm.all_reduce_in_place(&stream, black_box(&mut recv), ReduceOp::Sum));
    bench.row("broadcast", broadcast, || comm.broadcast(&stream, black_box(Some(&send)), &mut recv, 0));
    bench.row("broadcast_in_place", broadcast, || comm.broadcast_in_place(&stream, black_box(&mut recv), 0));
    bench.row("send", raw_send, || comm.send(&stream, black_box(&send), 0));
    bench.row("recv", raw_recv, || comm.recv(&stream, black_box(&mut recv), 0));
    println!("\nwith what else they do");
    bench.row("all_reduce_in_place, default stream", all_reduce, || {
        comm.all_reduce_in_place(&default, black_box(&mut other), ReduceOp::Sum)
    });
    bench.row("all_reduce of cudarc's slices", all_reduce, || {
        comm.all_reduce(&stream, black_box(&slice), &mut slice_out, ReduceOp::Sum)
    });
    println!("\nin groups, bare with ncclGroupStart and ncclGroupEnd; of one call, and each of {MANY}");
    bench.row(
        "all_reduce_in_place, one",
        || grouped(1),
        || nccl.group(|group| group.all_reduce_in_place(&comm, &stream, black_box(&mut recv), ReduceOp::Sum)),
    );
    bench.rows(
        "all_reduce_in_place, each",
        MANY,
        || grouped(MANY),
        || {
            nccl.group(|group| {
                many.iter_mut().try_for_each(|recv| group.all_reduce_in_place(&comm, &stream, black_box(recv), ReduceOp::Sum))
            })
        },
    );
}

struct Bench<'a, A> {
    counted: &'a dyn Fn() -> i64,
    comm: &'a Communicator,
    ask: A,
}

impl<A: Fn()> Bench<'_, A> {
    /// Measures the bare call, that after the two questions, and ours; in turn, so that what else the machine does meets all three.
    fn row(&self, name: &str, bare: impl Fn(), ours: impl FnMut() -> Result<(), NcclError>) {
        self.rows(name, 1, bare, ours);
    }

    /// As [`row`](Self::row), for what makes several calls at once.
    fn rows(&self, name: &str, calls: usize, bare: impl Fn(), mut ours: impl FnMut() -> Result<(), NcclError>) {
        if std::env::var("ONLY").is_ok_and(|only| !name.contains(&only)) {
            return;
        }
        let (mut times, sequence) = ([const { Vec::new() }; 3], self.comm.sequence());
        for _ in 0..ROUNDS {
            times[0].push(self.round(name, calls, &bare));
            times[1].push(self.round(name, calls, || {
                (0..calls).for_each(|_| (self.ask)());
                bare();
            }));
            times[2].push(self.round(name, calls, || ours().expect("it works")));
        }
        assert_eq!(self.comm.sequence() - sequence, (ROUNDS * CALLS) as u64, "{name}: every call is counted");
        let beyond = |base: usize| median(times[2].iter().zip(&times[base]).map(|(ours, base)| ours - base).collect());
        let (beyond, [bare, asked, ours]) = ([beyond(0), beyond(1)], times.clone().map(median));
        println!("{name:<36} {bare:>6.1} {asked:>10.1} {ours:>7.1} {:>8.1} {:>8.1}", beyond[0], beyond[1]);
    }

    /// Nanoseconds of one call. Every call has to reach the library.
    fn round(&self, name: &str, calls: usize, mut call: impl FnMut()) -> f64 {
        let (before, start) = ((self.counted)(), Instant::now());
        for _ in 0..CALLS / calls {
            call();
        }
        let nanoseconds = start.elapsed().as_nanos() as f64 / CALLS as f64;
        assert_eq!((self.counted)() - before, CALLS as i64, "{name}: every call reaches the library");
        nanoseconds
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
