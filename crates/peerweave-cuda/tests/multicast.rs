//! Tests of the multicast address in the context of kernels, over the fake driver. The fake driver
//! replicates stores to multicast addresses.
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use peerweave_cuda::{CudaError, Gpu, GpuOptions};
use peerweave_test_kernels::{barriers, multicast_base};
use peerweave_vmm::VmmError;

use common::{fakes, pes};

fn options() -> GpuOptions {
    GpuOptions::new(1 << 20).deadline(Duration::from_secs(60)).slots(4)
}

/// Returns the multicast address that a kernel finds in its context.
fn base(gpu: &Gpu) -> u64 {
    let (found, stream) = (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.stream().expect("the stream is created"));
    stream.launch(&multicast_base::KERNEL, 1, 1, (found.slice(),)).expect("the kernel is launched");
    found.read(&stream).expect("the work completes")[0]
}

#[test]
fn kernel_context_has_a_multicast_address_of_all_pes() {
    fakes().run(|| {
        pes(3, options().multicast(true), |gpu| {
            let base = base(gpu);
            assert_ne!(base, 0);
            let (memory, stream) =
                (gpu.alloc::<u64>(4).expect("the memory is allocated"), gpu.stream().expect("the stream is created"));
            if gpu.pe().get() == 1 {
                let place = memory.slice().at(2).offset();
                common::store_by_multicast(base + place.0, &(0x1234_u64).to_ne_bytes());
            }
            gpu.barrier("stored").expect("all PEs arrive");
            assert_eq!(memory.read(&stream).expect("the memory is read"), [0, 0, 0x1234, 0]);
            stream.launch(&barriers::KERNEL, 1, 32, (3,)).expect("the kernel is launched");
            stream.wait().expect("all PEs reach the barrier");
        });
    });
}

#[test]
fn kernel_context_has_no_multicast_address_by_default() {
    fakes().run(|| {
        pes(2, options(), |gpu| assert_eq!(base(gpu), 0));
    });
}

#[test]
fn requested_multicast_fails_if_multicast_is_disabled() {
    fakes().env("PEERWEAVE_MULTICAST", "off").run(|| {
        common::pes_that_may_fail(2, options().multicast(true), |gpu| {
            let error = gpu.expect_err("the set-up fails, because multicast is disabled");
            assert!(matches!(error, CudaError::Vmm(VmmError::MulticastDisabled(_))), "{error}");
        });
    });
}
