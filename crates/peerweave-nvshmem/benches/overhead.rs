//! Measures the CPU time that a call of this crate adds to the bare call of NVSHMEM's C function.
//! Each call runs in a loop, with the fake library, whose calls do no work in this benchmark.
//!
//! Before each call of this crate, the driver is queried twice: for the current context, and for
//! whether the stream is being captured. The benchmark also measures these two queries separately.
//! They use the fake driver, which is about as fast as the real driver. The results do not apply to
//! GPUs.
//!
//! The benchmark fails if a call did not reach the library. If the environment variable `ONLY` is
//! set, only the rows whose names contain its value are measured.

use std::ffi::{CString, c_int, c_void};
use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use peerweave_driver::{DeviceMemory, Driver, is_capturing};
use peerweave_fakes::Fakes;
use peerweave_nvshmem::{Context, Nvshmem, NvshmemError, Settings, Signal};
use peerweave_types::{Pe, ReduceOp, SignalOp};

const CALLS: usize = 10_000;
const ROUNDS: usize = 61;

type Handle = *mut c_void;
type Put = unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int, Handle);
type PutSignal = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut u64, u64, c_int, c_int, Handle);
type SignalOn = unsafe extern "C" fn(*mut u64, u64, c_int, c_int, Handle);
type PutValue = unsafe extern "C" fn(*mut u64, u64, c_int, Handle);
type Quiet = unsafe extern "C" fn(Handle);
type Barrier = unsafe extern "C" fn(c_int, Handle) -> c_int;
type Reduce = unsafe extern "C" fn(c_int, *mut c_void, *const c_void, usize, Handle) -> c_int;
type Count = unsafe extern "C" fn(*const libc::c_char) -> i64;

/// The value of `NVSHMEM_SIGNAL_ADD`. [`WORLD`] is the value of `NVSHMEM_TEAM_WORLD`.
const ADD: c_int = 10;
const WORLD: c_int = 0;
const BYTES: usize = 8;

fn main() -> ExitCode {
    if peerweave_fakes::child().is_some() {
        measure();
        return ExitCode::SUCCESS;
    }
    let fakes = Fakes::new().cuda().nvshmem().env("PEERWEAVE_FAKE_CUDA_DEVICES", "1").env("PEERWEAVE_FAKE_NVSHMEM_NOOP", "1");
    // Disables the fake driver's log, because writing it takes longer than the calls.
    let fakes = fakes.env("PEERWEAVE_MULTICAST", "off").env_remove("PEERWEAVE_FAKE_CUDA_LOG");
    let output = fakes.run_child("main");
    print!("{}", output.stdout);
    if output.status.success() && !output.timed_out {
        return ExitCode::SUCCESS;
    }
    eprint!("{}", output.stderr);
    ExitCode::FAILURE
}

/// Returns the function `name` of the NVSHMEM library.
///
/// # Safety
/// `F` is a function pointer type with the function's signature.
unsafe fn function<F: Copy>(name: &str) -> F {
    let path = Nvshmem::load().expect("the fake library is loaded").path().to_str().expect("the path is UTF-8");
    let (path, name) =
        (CString::new(path).expect("the text has no zero byte"), CString::new(name).expect("the text has no zero byte"));
    // SAFETY: both strings end in a zero byte, and the library is loaded and stays loaded.
    let function = unsafe { libc::dlsym(libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD), name.as_ptr()) };
    assert!(!function.is_null(), "{name:?}");
    assert_eq!(size_of::<F>(), size_of::<Handle>());
    // SAFETY: the caller guarantees that `F` is the function's type; both types are pointers.
    unsafe { std::mem::transmute_copy(&function) }
}

fn measure() {
    let device = peerweave_driver::context(0).expect("the device exists");
    let settings = Settings::default().remote_transport("none").symmetric_size_bytes(64 << 20).deadline(Duration::from_secs(20));
    let id = Context::unique_id(&settings).expect("the id is created");
    let pe = Pe::new(0);
    let context = Context::from_unique_id(id, pe, 1, &device, settings).expect("NVSHMEM starts");
    let (world, stream) = (context.world(), device.new_stream().expect("the stream is created"));
    let alloc = || context.alloc_zeroed::<u64>(1).expect("the memory is allocated");
    let (source, target, word) = (alloc(), alloc(), alloc());
    let private = DeviceMemory::from_slice(&stream, &[0u64]).expect("the memory is allocated");
    let slice = stream.clone_htod(&[0u64]).expect("the memory is allocated");

    // SAFETY: the types are the signatures of these functions.
    let (put, get, put_nbi, put_signal, signal, put_value, quiet, barrier, reduce, count) = unsafe {
        (
            function::<Put>("nvshmemx_putmem_on_stream"),
            function::<Put>("nvshmemx_getmem_on_stream"),
            function::<Put>("nvshmemx_putmem_nbi_on_stream"),
            function::<PutSignal>("nvshmemx_putmem_signal_on_stream"),
            function::<SignalOn>("nvshmemx_signal_op_on_stream"),
            function::<PutValue>("nvshmemx_uint64_p_on_stream"),
            function::<Quiet>("nvshmemx_quiet_on_stream"),
            function::<Barrier>("nvshmemx_barrier_on_stream"),
            function::<Reduce>("nvshmemx_uint64_sum_reduce_on_stream"),
            function::<Count>("peerweave_fake_nvshmem_count"),
        )
    };
    let (from, to, on) = (source.address() as *const c_void, target.address() as *mut c_void, stream.cu_stream().cast());
    let (at, own) = (word.address() as *mut u64, private.address() as *const c_void);
    let api = Driver::get().expect("the fake library is loaded").api();

    // SAFETY: the names end in a zero byte.
    let counted = || unsafe { count(c"transfers".as_ptr()) + count(c"collectives".as_ptr()) };
    let ask = || {
        let mut current = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        let _ = black_box(unsafe { api.cuCtxGetCurrent(&raw mut current) });
        let _ = black_box(is_capturing(&stream));
    };
    let added = Signal { word: &word, value: 1, op: SignalOp::Add };

    println!(
        "nanoseconds per call, medians of {ROUNDS} rounds of {CALLS} calls; `beyond`: ours minus bare, and ours minus queries"
    );
    println!("{:<36} {:>6} {:>10} {:>7} {:>8} {:>8}", "", "bare", "queries", "ours", "beyond", "beyond");
    let bench = Bench { counted: &counted, ask };
    // SAFETY: the fake library only checks and counts the call, and the arguments are live. The
    // same is true for the calls below.
    let bare = || unsafe { put(to, black_box(from), BYTES, 0, on) };
    bench.row("put", bare, || context.put(&target, black_box(&source), pe, &stream));
    // SAFETY: as above.
    let bare = || unsafe { get(to, black_box(from), BYTES, 0, on) };
    let mut into = target.clone();
    bench.row("get", bare, || context.get(&mut into, black_box(&source), pe, &stream));
    // SAFETY: as above.
    let bare = || unsafe { put_nbi(to, black_box(from), BYTES, 0, on) };
    bench.row("put_nbi", bare, || context.put_nbi(&target, black_box(&source), pe, &stream));
    context.quiet_blocking().expect("the quiet completes");
    // SAFETY: as above.
    let bare = || unsafe { put_signal(to, black_box(from), BYTES, at, 1, ADD, 0, on) };
    bench.row("put_signal", bare, || context.put_signal(&target, black_box(&source), &added, pe, &stream));
    // SAFETY: as above.
    let bare = || unsafe { signal(at, black_box(1), ADD, 0, on) };
    bench.row("signal", bare, || context.signal(black_box(&added), pe, &stream));
    // SAFETY: as above.
    let bare = || unsafe { put_value(to.cast(), black_box(1), 0, on) };
    bench.row("put_value", bare, || context.put_value(&target, black_box(1), pe, &stream));
    // SAFETY: as above.
    let bare = || assert_eq!(unsafe { barrier(black_box(WORLD), on) }, 0);
    bench.row("barrier", bare, || world.barrier(black_box(&stream)));
    // SAFETY: as above.
    let bare = || assert_eq!(unsafe { reduce(WORLD, to, black_box(from), 1, on) }, 0);
    bench.row("reduce", bare, || world.reduce(&target, black_box(&source), ReduceOp::Sum, &stream));
    println!("\nwith additional work");
    // SAFETY: as above.
    let bare = || unsafe { put(to, black_box(own), BYTES, 0, on) };
    bench.row("put of device memory", bare, || context.put(&target, black_box(&private), pe, &stream));
    bench.row("put of a cudarc slice", bare, || context.put(&target, black_box(&slice), pe, &stream));
    // SAFETY: as above.
    let bare = || unsafe {
        put_nbi(to, black_box(from), BYTES, 0, on);
        quiet(on);
    };
    bench.row("put_nbi and its quiet", bare, || {
        context.put_nbi(&target, black_box(&source), pe, &stream).and_then(|()| context.quiet(&stream))
    });
    drop((added, into));
    [source, target, word].into_iter().for_each(|buffer| context.free(buffer).expect("all PEs free the memory"));
    context.finalize().expect("all PEs finalize NVSHMEM");
}

struct Bench<'a, A> {
    counted: &'a dyn Fn() -> i64,
    ask: A,
}

impl<A: Fn()> Bench<'_, A> {
    /// Measures three variants: the C function of NVSHMEM, the C function after the two driver
    /// queries, and the call of this crate. The measurements alternate, so that other load on the
    /// machine affects all three equally.
    fn row(&self, name: &str, bare: impl Fn(), mut ours: impl FnMut() -> Result<(), NvshmemError>) {
        if std::env::var("ONLY").is_ok_and(|only| !name.contains(&only)) {
            return;
        }
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            times[0].push(self.round(name, &bare));
            times[1].push(self.round(name, || {
                (self.ask)();
                bare();
            }));
            times[2].push(self.round(name, || ours().expect("the call succeeds")));
        }
        let beyond = |base: usize| median(times[2].iter().zip(&times[base]).map(|(ours, base)| ours - base).collect());
        let (beyond, [bare, asked, ours]) = ([beyond(0), beyond(1)], times.clone().map(median));
        println!("{name:<36} {bare:>6.1} {asked:>10.1} {ours:>7.1} {:>8.1} {:>8.1}", beyond[0], beyond[1]);
    }

    /// Returns the mean time of one call in nanoseconds. Asserts that every call reached the
    /// library.
    fn round(&self, name: &str, mut call: impl FnMut()) -> f64 {
        let (before, start) = ((self.counted)(), Instant::now());
        for _ in 0..CALLS {
            call();
        }
        let nanoseconds = start.elapsed().as_nanos() as f64 / CALLS as f64;
        assert_eq!((self.counted)() - before, CALLS as i64, "{name}: a call did not reach the library");
        nanoseconds
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
