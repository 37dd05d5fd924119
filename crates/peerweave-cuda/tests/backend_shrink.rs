//! Tests of `World::shrink` on GPUs, by which PEs continue after other PEs have died.
#![cfg(target_os = "linux")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use peerweave_core::{Compare, Error, MisuseKind, Pe, PeerCause, Rank, ReduceOp, World};
use peerweave_cuda::{Cuda, CudaOptions, GpuOptions};
use peerweave_fakes::{Child, Fakes};

use common::pes;

/// Maximum time until the surviving PEs continue. This is less than the deadline.
const SOON: Duration = Duration::from_secs(30);

fn options() -> CudaOptions {
    let mut options = CudaOptions::default();
    (options.deadline, options.heap_bytes) = (Duration::from_secs(60), Some(1 << 20));
    options
}

/// Runs collectives on all PEs of a shrunk world, and checks the results. `first` has the numbers
/// that these PEs had in the first world.
fn check(world: &World, first: &[u32]) {
    let (me, n) = (world.my_pe().get(), world.n_pes() as u32);
    let (team, stream) = (world.team(), world.stream().unwrap());
    let x = world.alloc::<i32>(300).unwrap();
    for round in 0..3 {
        x.fill(first[me as usize] as i32 + round).unwrap();
        team.all_reduce_in_place(&stream, &x, ReduceOp::Sum).unwrap().wait().unwrap();
        assert_eq!(x.to_vec().unwrap(), [first.iter().map(|pe| *pe as i32 + round).sum::<i32>(); 300]);
        team.barrier_blocking().unwrap();
    }
    let words = world.alloc_zeroed::<u64>(1).unwrap();
    let right = Rank::new((me + 1) % n);
    team.signal_blocking(words.signal(0).unwrap().set(u64::from(me) + 1), right).unwrap();
    team.wait_until_blocking(&words.signal(0).unwrap(), Compare::Eq, u64::from((me + n - 1) % n) + 1).unwrap();
    team.barrier_blocking().unwrap();
    x.release().unwrap();
    words.release().unwrap();
}

/// Runs `body` on each of `n` PEs, which are threads. `body` must finalize or shrink the world.
fn on_threads(n: u32, deadline_s: u64, body: impl Fn(World) + Sync) {
    let options = GpuOptions::new(1 << 20).slots(4).deadline(Duration::from_secs(deadline_s));
    pes(n, options, |gpu| body(World::new(Cuda::new(gpu.clone()).unwrap()).unwrap()));
}

fn numbers(pes: &[Pe]) -> Vec<u32> {
    pes.iter().map(|pe| pe.get()).collect()
}

/// Runs one PE of a test. The PEs in `victims` die before they call shrink. But the PE in
/// `in_shrink` dies during its call of shrink, after the given number of milliseconds. The other
/// PEs shrink the world, and copy their data to the new world.
fn one_goes_on(child: &Child, victims: &[usize], in_shrink: Option<(usize, u64)>) {
    let world = World::new(Cuda::join(&common::job_of(child), &options()).unwrap()).unwrap();
    let me = world.my_pe().get();
    let kept = world.alloc_zeroed::<i64>(50).unwrap();
    kept.fill(i64::from(me) * 3).unwrap();
    // A victim may die so early that the kernels of other PEs have not yet seen its arrival.
    if let Err(error) = world.team().barrier_blocking() {
        assert!(error.blamed().iter().all(|pe| victims.contains(&pe.index())), "{error}");
    }
    match in_shrink {
        Some((pe, milliseconds)) if pe == child.rank => drop(std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(milliseconds));
            std::process::abort();
        })),
        _ if victims.contains(&child.rank) => std::process::abort(),
        _ => {}
    }
    let start = Instant::now();
    let error = world.team().barrier_blocking().unwrap_err();
    assert!(error.blamed().iter().all(|pe| victims.contains(&pe.index())), "{error}");
    let mut smaller = world.shrink().unwrap();
    // A victim that is still alive makes no more calls. If it made calls, the calls of the other
    // PEs would succeed.
    if victims.contains(&child.rank) {
        loop {
            std::thread::park();
        }
    }
    let mut first = numbers(smaller.former_pes());
    // A victim may have died after the other PEs had agreed on the members of the new world.
    while smaller.n_pes() > child.count - victims.len() {
        smaller.team().barrier_blocking().unwrap_err();
        smaller = smaller.shrink().unwrap();
        first = smaller.former_pes().iter().map(|pe| first[pe.index()]).collect();
    }
    assert!(start.elapsed() < SOON, "the call took {:?}", start.elapsed());
    let expected: Vec<u32> = (0..child.count).filter(|pe| !victims.contains(pe)).map(|pe| pe as u32).collect();
    assert_eq!(first, expected);
    check(&smaller, &first);
    // Memory of the old world is still readable, but cannot be an operand in the new world.
    assert!(matches!(world.team().barrier_blocking().unwrap_err().misuse(), Some(MisuseKind::Shrunk)));
    let foreign = smaller.team().all_reduce_in_place_blocking(&kept, ReduceOp::Sum).unwrap_err();
    assert!(matches!(foreign.misuse(), Some(MisuseKind::ForeignBuffer { .. })), "{foreign}");
    let carried = smaller.alloc::<i64>(50).unwrap();
    carried.copy_from(&kept.to_vec().unwrap()).unwrap();
    drop((world, kept));
    smaller.team().all_reduce_in_place_blocking(&carried, ReduceOp::Max).unwrap();
    assert_eq!(carried.load(49).unwrap(), i64::from(*expected.last().unwrap()) * 3);
    carried.release().unwrap();
    assert!(smaller.finalize().unwrap().is_clean());
}

#[test]
fn shrunk_world_excludes_a_killed_pe() {
    let _ = common::fakes().run_with_victims(3, &[2], |child| one_goes_on(&child, &[2], None));
}

#[test]
fn shrunk_world_excludes_killed_pe_0_that_ran_the_server() {
    let _ = common::fakes().run_with_victims(3, &[0], |child| one_goes_on(&child, &[0], None));
}

#[test]
fn shrunk_world_excludes_two_killed_pes() {
    let _ = common::fakes().run_with_victims(4, &[0, 2], |child| one_goes_on(&child, &[0, 2], None));
}

#[test]
fn shrunk_world_excludes_a_pe_killed_while_survivors_agree() {
    let _ = common::fakes().run_with_victims(3, &[0, 1], |child| one_goes_on(&child, &[0, 1], Some((1, 15))));
}

#[test]
fn shrunk_world_excludes_a_pe_killed_during_gpu_setup() {
    let _ = common::fakes().run_with_victims(4, &[3, 0], |child| one_goes_on(&child, &[3, 0], Some((0, 250))));
}

#[test]
fn shrink_to_the_last_surviving_pe_succeeds() {
    let _ = common::fakes().run_with_victims(2, &[0], |child| one_goes_on(&child, &[0], None));
}

#[test]
fn shrink_without_a_failure_keeps_all_pes() {
    common::fakes().run(|| {
        on_threads(3, 60, |world| {
            let smaller = world.shrink().unwrap();
            assert_eq!(numbers(smaller.former_pes()), [0, 1, 2]);
            assert_eq!(smaller.my_pe(), world.my_pe());
            check(&smaller, &[0, 1, 2]);
            let again = smaller.shrink().unwrap();
            check(&again, &[0, 1, 2]);
            assert!(again.finalize().unwrap().is_clean());
        });
    });
}

#[test]
fn shrink_error_names_the_missing_pe_at_the_deadline() {
    Fakes::new().cuda().run(|| {
        let has_failed = AtomicBool::new(false);
        on_threads(2, 5, |world| {
            if world.my_pe() == Pe::new(1) {
                let start = Instant::now();
                while !has_failed.load(Ordering::Acquire) {
                    assert!(start.elapsed() < common::LONG, "PE 0 got no error");
                    std::thread::sleep(Duration::from_millis(1));
                }
            } else {
                let error = world.shrink().unwrap_err();
                assert!(matches!(&error, Error::Timeout(late) if late.call == "shrink"), "{error}");
                assert_eq!(error.blamed(), [Pe::new(1)]);
                has_failed.store(true, Ordering::Release);
            }
            let smaller = world.shrink().unwrap();
            assert_eq!(smaller.n_pes(), 2);
            smaller.team().barrier_blocking().unwrap();
            smaller.finalize().map(drop).unwrap();
        });
    });
}

#[test]
fn wait_fails_early_if_another_pe_has_called_shrink() {
    common::fakes().run(|| {
        on_threads(2, 60, |world| {
            let words = world.alloc_zeroed::<u64>(1).unwrap();
            if world.my_pe() == Pe::new(1) {
                let start = Instant::now();
                let error = world.team().wait_until_blocking(&words.signal(0).unwrap(), Compare::Ne, 0).map(drop).unwrap_err();
                assert!(matches!(error, Error::Peer { cause: PeerCause::Shrinks, .. }), "{error}");
                assert_eq!(error.blamed(), [Pe::new(0)]);
                assert!(start.elapsed() < SOON, "the call took {:?}", start.elapsed());
            } else {
                std::thread::sleep(Duration::from_millis(100));
            }
            world.shrink().unwrap().finalize().map(drop).unwrap();
        });
    });
}
