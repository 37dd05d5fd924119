//! Tests the measurements of `bench p2p` one by one, with the fake driver. Host functions replace
//! the probe's kernels.
#![cfg(target_os = "linux")]

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use peerweave_cli::p2p::probe::{Method, Moved, Probe};
use peerweave_driver::CudaContext;
use peerweave_fakes::Fakes;
use peerweave_fakes::driver::{Launch, block, register_kernel, unblock};
use peerweave_vmm::{Misuse, VmmError};

const SHAPE: (u32, u32) = (1, 32);

fn contexts(n: usize) -> Vec<Arc<CudaContext>> {
    (0..n).map(|ordinal| peerweave_driver::context(ordinal).expect("the fake has devices")).collect()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Replaces the kernel `peerweave_probe_copy` of `kernels.ptx`.
///
/// # Safety
/// `launch` points to a launch of this kernel in progress.
unsafe extern "C" fn copy(launch: *const Launch) {
    // SAFETY: the types are the ones of the kernel's parameters. The fake has mapped the memory of
    // all devices in this process, and only this copy uses both ranges.
    unsafe {
        let launch = &*launch;
        let (target, source, pieces): (u64, u64, u64) = (launch.argument(0), launch.argument(1), launch.argument(2));
        let source = with_exposed_provenance::<u8>(source as usize);
        std::ptr::copy_nonoverlapping(source, with_exposed_provenance_mut(target as usize), 16 * pieces as usize);
    }
}

/// Replaces the kernel `peerweave_probe_ping` of `kernels.ptx`.
///
/// # Safety
/// `launch` points to a launch of this kernel in progress.
unsafe extern "C" fn ping(launch: *const Launch) {
    // SAFETY: the types are the ones of the kernel's parameters. The addresses are words that the
    // fake has mapped in this process and that are accessed by atomics only.
    let (mine, theirs, failed, is_first, rounds, limit) = unsafe {
        let launch = &*launch;
        let word = |at| &*with_exposed_provenance::<AtomicU32>(launch.argument::<u64>(at) as usize);
        (word(0), word(1), word(5), launch.argument::<u32>(2) != 0, launch.argument::<u32>(3), launch.argument::<u32>(4))
    };
    for round in 1..=rounds {
        if is_first {
            theirs.store(round, Ordering::Relaxed);
        }
        let mut looks = 0;
        while mine.load(Ordering::Relaxed) != round {
            looks += 1;
            if looks >= limit {
                return failed.store(round, Ordering::Relaxed);
            }
            std::thread::yield_now();
        }
        if !is_first {
            theirs.store(round, Ordering::Relaxed);
        }
    }
}

/// Registers the host functions that the fake driver runs instead of the kernels.
fn register() {
    register_kernel("peerweave_probe_copy", copy);
    register_kernel("peerweave_probe_ping", ping);
}

#[test]
fn each_transfer_method_copies_every_word() {
    Fakes::new().cuda().run(|| {
        let contexts = contexts(3);
        register();
        let probe = Probe::new(&contexts, 2 << 20, soon()).expect("room");
        probe.kernels().expect("the kernels are registered");
        let ring = [(0, 1), (1, 2), (2, 0)];
        for method in Method::ALL {
            let moved = probe.bandwidth(method, &ring, 3, SHAPE, soon()).expect("copies work");
            let is_right = |moved: &Moved| moved.wrong == 0 && moved.bytes == 6 << 20 && moved.seconds > 0.0;
            assert!(moved.iter().all(is_right), "{method:?}: {moved:?}");
        }
        let seconds = probe.latency(0, 2, 50, soon()).expect("flags arrive");
        assert!(seconds > 0.0 && seconds < 1.0, "{seconds}");
    });
}

#[test]
fn probe_without_kernels_still_measures_with_copy_engines() {
    Fakes::new().cuda().run(|| {
        let contexts = contexts(3);
        let free = || contexts.iter().map(|context| context.mem_get_info().expect("the context is alive").0).collect::<Vec<_>>();
        let before = free();
        let probe = Probe::new(&contexts, 3 << 20, soon()).expect("room");
        assert_eq!(probe.bytes(), 4 << 20);
        let reason = probe.kernels().expect_err("no kernel is registered").to_string();
        assert!(reason.contains("cuModuleLoadData"), "{reason}");
        let ring = [(0, 1), (1, 2), (2, 0)];
        let moved = probe.bandwidth(Method::CopyEngine, &ring, 2, SHAPE, soon()).expect("copies work");
        assert!(moved.iter().all(|moved| moved.wrong == 0 && moved.bytes == 8 << 20 && moved.seconds > 0.0), "{moved:?}");
        assert!(probe.bandwidth(Method::Stores, &ring, 1, SHAPE, soon()).is_err());
        assert!(probe.latency(0, 1, 10, soon()).is_err());
        for wrong in [&[][..], &[(0, 3)], &[(0, 1), (0, 2)], &[(0, 2), (1, 2)]] {
            let result = probe.bandwidth(Method::CopyEngine, wrong, 1, SHAPE, soon());
            assert!(matches!(result, Err(VmmError::Misuse(Misuse::Value { what: "paths", .. }))), "{wrong:?}");
        }
        drop(probe);
        assert!(peerweave_driver::drain_retired(soon()), "dropped memory is freed");
        assert_eq!(free(), before);
    });
}

#[test]
fn lost_words_are_counted_as_wrong() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_BROKEN_PEER", "0-1").run(|| {
        let probe = Probe::new(&contexts(2), 2 << 20, soon()).expect("room");
        let moved = probe.bandwidth(Method::CopyEngine, &[(0, 1), (1, 0)], 1, SHAPE, soon()).expect("no call fails");
        assert!(moved[0].wrong > 0 && moved[1].wrong == 0, "{moved:?}");
    });
}

#[test]
fn pair_without_access_is_refused_and_other_pairs_are_measured() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_PEER", "0-2").run(|| {
        let probe = Probe::new(&contexts(3), 2 << 20, soon()).expect("the other pairs can be measured");
        let error = probe.access(0, 2).expect_err("device 0 has no access to device 2");
        assert!(matches!(error, VmmError::Unsupported { feature: "peer access", .. }), "{error}");
        assert!(error.to_string().contains("device 0 can access the memory of device 2"), "{error}");
        for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 1), (2, 0)] {
            probe.access(from, to).expect("the device has access");
            let moved = probe.bandwidth(Method::CopyEngine, &[(from, to)], 1, SHAPE, soon()).expect("copies work");
            assert_eq!(moved[0].wrong, 0, "{from} to {to}");
        }
        let refused = probe
            .bandwidth(Method::CopyEngine, &[(1, 0), (0, 2)], 1, SHAPE, soon())
            .expect_err("device 0 has no access to device 2");
        assert_eq!(refused.to_string(), error.to_string());
        assert_eq!(
            probe.latency(2, 0, 1, soon()).expect_err("device 0 has no access to device 2").to_string(),
            error.to_string()
        );
    });
}

#[test]
fn probe_fills_large_buffers_with_few_copies_from_the_host() {
    Fakes::new().cuda().run(|| {
        let probe = Probe::new(&contexts(2), 33 << 20, soon()).expect("room");
        let log = std::fs::read_to_string(std::env::var("PEERWEAVE_FAKE_CUDA_LOG").expect("the harness sets it"));
        let from_host = log.expect("the log can be read").lines().filter(|line| line.contains("cuMemcpyHtoDAsync_v2")).count();
        assert!((1..=8).contains(&from_host), "{from_host} copies from the host");
        let moved = probe.bandwidth(Method::CopyEngine, &[(0, 1), (1, 0)], 1, SHAPE, soon()).expect("copies work");
        assert!(moved.iter().all(|moved| moved.wrong == 0), "{moved:?}");
    });
}

#[test]
fn probe_does_not_wait_for_the_blocked_default_stream() {
    Fakes::new().cuda().run(|| {
        let contexts = contexts(1);
        let stuck = contexts[0].default_stream();
        block(stuck.cu_stream());
        let made = Probe::new(&contexts, 1 << 20, Instant::now() + Duration::from_secs(10)).map(drop);
        unblock(stuck.cu_stream());
        made.expect("the probe's own streams are not blocked");
    });
}
