//! What a call costs on the CPU beyond the bare call of C: in a loop, against the fake library in its mode without work.
//!
//! The fake driver answers two questions of each call (which context is current, is the stream being captured), as the real one would; what they cost
//! is told apart. Nothing here says anything about a GPU. Fails if a call did not reach the library.

use std::ffi::{CString, c_int, c_void};
use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use peerweave_driver::{DeviceMemory, Driver, is_capturing};
use peerweave_fakes::Fakes;
use peerweave_nccl::{Communicator, Config, Nccl, ReduceOp};

const CALLS: usize = 20_000;
const ROUNDS: usize = 60;

type AllReduce = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;

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
fn function(name: &str) -> *mut c_void {
    let path = Nccl::load().expect("the fake is there").path().to_str().expect("UTF-8");
    let (path, name) = (CString::new(path).expect("no zero byte"), CString::new(name).expect("no zero byte"));
    // SAFETY: both names end with zero; the library is loaded already, and stays.
    let function = unsafe { libc::dlsym(libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD), name.as_ptr()) };
    assert!(!function.is_null(), "{name:?}");
    function
}

fn measure() {
    let nccl = Nccl::load().expect("the fake is there");
    let context = peerweave_driver::context(0).expect("a device");
    let deadline = Duration::from_secs(20);
    let comm =
        Communicator::init_all(nccl, std::slice::from_ref(&context), &Config::new(), deadline).expect("it is made").remove(0);
    let stream = context.new_stream().expect("a stream");
    let send = DeviceMemory::from_slice(&stream, &[1.0f32; 256]).expect("memory");
    let mut recv = DeviceMemory::from_slice(&stream, &[0.0f32; 256]).expect("memory");
    let slice = stream.clone_htod(&[1.0f32; 256]).expect("memory");
    let mut slice_out = stream.alloc_zeros::<f32>(256).expect("memory");

    // SAFETY: that is the function's signature.
    let all_reduce = unsafe { std::mem::transmute::<*mut c_void, AllReduce>(function("ncclAllReduce")) };
    // SAFETY: as above.
    let count = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const libc::c_char) -> i64>(function(
            "peerweave_fake_nccl_count",
        ))
    };
    // SAFETY: as above.
    let init_all = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut *mut c_void, c_int, *const c_int) -> c_int>(function(
            "ncclCommInitAll",
        ))
    };
    let mut raw = std::ptr::null_mut();
    // SAFETY: the pointer is to a live handle; a null list is the first devices.
    assert_eq!(unsafe { init_all(&raw mut raw, 1, std::ptr::null()) }, 0);
    let (from, to) = (send.address() as *const c_void, recv.address() as *mut c_void);
    let api = Driver::get().expect("the fake is there").api();

    // SAFETY: the name ends with zero.
    let counted = || unsafe { count(c"collectives".as_ptr()) };
    let bare = best("bare ncclAllReduce", &counted, 1, || {
        // SAFETY: the library only counts; the arguments are live all the same.
        assert_eq!(unsafe { all_reduce(black_box(from), to, 256, 7, 0, raw, std::ptr::null_mut()) }, 0);
    });
    let with_questions = best("the same and the two questions", &counted, 1, || {
        let mut current = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        let _ = black_box(unsafe { api.cuCtxGetCurrent(&raw mut current) });
        let _ = black_box(is_capturing(&stream));
        // SAFETY: as above.
        assert_eq!(unsafe { all_reduce(black_box(from), to, 256, 7, 0, raw, std::ptr::null_mut()) }, 0);
    });
    let ours = [
        best("all_reduce", &counted, 1, || {
            comm.all_reduce(&stream, black_box(&send), &mut recv, ReduceOp::Sum).expect("it works")
        }),
        best("all_reduce_in_place", &counted, 1, || {
            comm.all_reduce_in_place(&stream, black_box(&mut recv), ReduceOp::Sum).expect("it works");
        }),
        best("all_reduce of cudarc's slices", &counted, 1, || {
            comm.all_reduce(&stream, black_box(&slice), &mut slice_out, ReduceOp::Sum).expect("it works");
        }),
        best("all_reduce_in_place in a group", &counted, 1, || {
            nccl.group(|group| group.all_reduce_in_place(&comm, &stream, black_box(&mut recv), ReduceOp::Sum)).expect("it works");
        }),
    ];
    let names = ["all_reduce", "all_reduce_in_place", "cudarc's slices", "in a group"];
    println!("\nnanoseconds beyond the bare call, and beyond that and the two questions to the driver");
    for (name, ours) in names.iter().zip(ours) {
        println!("{name:<32} {:>7.1} {:>7.1}", ours - bare, ours - with_questions);
    }
}

/// Nanoseconds of one call: the best round. Every call has to be counted by the library.
fn best(name: &str, counted: &dyn Fn() -> i64, each: i64, mut call: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let (before, start) = (counted(), Instant::now());
        for _ in 0..CALLS {
            call();
        }
        best = best.min(start.elapsed().as_nanos() as f64 / CALLS as f64);
        assert_eq!(counted() - before, each * CALLS as i64, "{name}: every call reaches the library");
    }
    println!("{name:<32} {best:>7.1} ns");
    best
}
