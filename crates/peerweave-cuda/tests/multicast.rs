//! Tests of the multicast address in the context of kernels, over the fake driver, whose stores
//! replicate.
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use peerweave_cuda::{CudaError, Gpu, GpuOptions};
use peerweave_test_kernels::{barriers, multicast_base};
use peerweave_vmm::VmmError;

use common::{fakes, pes};

fn options() -> GpuOptions {
    GpuOptions::new(1 << 20).deadline(Duration::from_secs(20)).slots(4)
}

/// Returns the multicast address in the context.
fn base(gpu: &Gpu) -> u64 {
    let (found, stream) = (gpu.alloc::<u64>(1).expect("room"), gpu.stream().expect("a stream"));
    stream.launch(&multicast_base::KERNEL, 1, 1, (found.slice(),)).expect("it is launched");
    found.read(&stream).expect("it ends")[0]
}

#[test]
fn context_has_a_multicast_address_that_reaches_every_pe() {
    fakes().run(|| {
        pes(3, options().multicast(true), |gpu| {
            let base = base(gpu);
            assert_ne!(base, 0);
            let (memory, stream) = (gpu.alloc::<u64>(4).expect("room"), gpu.stream().expect("a stream"));
            if gpu.pe().get() == 1 {
                let place = memory.slice().at(2).offset();
                common::store_by_multicast(base + place.0, &(0x1234_u64).to_ne_bytes());
            }
            gpu.barrier("stored").expect("all are here");
            assert_eq!(memory.read(&stream).expect("it is read"), [0, 0, 0x1234, 0]);
            stream.launch(&barriers::KERNEL, 1, 32, (3,)).expect("it is launched");
            stream.wait().expect("all meet");
        });
    });
}

#[test]
fn context_has_no_multicast_address_by_default() {
    fakes().run(|| {
        pes(2, options(), |gpu| assert_eq!(base(gpu), 0));
    });
}

#[test]
fn disabled_multicast_is_an_error_of_the_setup() {
    fakes().env("PEERWEAVE_MULTICAST", "off").run(|| {
        common::pes_that_may_fail(2, options().multicast(true), |gpu| {
            let error = gpu.expect_err("it is forbidden");
            assert!(matches!(error, CudaError::Vmm(VmmError::MulticastDisabled(_))), "{error}");
        });
    });
}
