//! Tests of peer access over the fake driver: what the driver reports, and transferred data.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Calls, context, drain_retired, fail, soon};
use peerweave_driver::CudaContext;
use peerweave_fakes::Fakes;
use peerweave_vmm::{IpcMemory, PeerMatrix, VmmError, peer};

fn contexts(n: usize) -> Vec<Arc<CudaContext>> {
    (0..n).map(context).collect()
}

#[test]
fn peer_matrix_contains_the_peer_access_that_cuda_reports() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_DEVICES", "3").env("PEERWEAVE_FAKE_CUDA_NO_PEER", "0-2").run(|| {
        let matrix = PeerMatrix::look().expect("the fake driver is loaded");
        assert_eq!((matrix.devices.len(), matrix.pairs.len()), (3, 3));
        let access = |from: usize, to: usize| matrix.pairs[from][to].map(|pair| pair.access);
        assert_eq!([access(0, 0), access(0, 1), access(0, 2), access(2, 1)], [None, Some(true), Some(false), Some(true)]);
        assert!(matrix.pairs[0][1].expect("the devices are a pair").native_atomics);
        assert!(!matrix.devices[1].name.is_empty() && matrix.devices[1].pci_address.contains(':'));
        assert_ne!(matrix.devices[0].pci_address, matrix.devices[1].pci_address);
        assert!(matrix.devices[2].vmm && matrix.devices[2].exportable.file_descriptor);
        assert!(!Calls::now().names().iter().any(|name| name.contains("Ctx") || name.contains("MemCreate")));
    });
}

#[test]
fn error_names_both_devices_if_they_lack_peer_access() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_PEER", "1-2").run(|| {
        let contexts = contexts(3);
        peer::check_pair(&contexts[0], &contexts[1], soon()).expect("peer access works");
        peer::check_pair(&contexts[1], &contexts[0], soon()).expect("peer access works in the other direction");
        let error = peer::check_pair(&contexts[1], &contexts[2], soon()).expect_err("the devices cannot access each other");
        assert!(matches!(error, VmmError::Unsupported { feature: "peer access", .. }), "{error}");
        assert!(error.to_string().contains("access of device 1 to the memory of device 2"), "{error}");
        drain_retired();
        Calls::now().assert_balanced("after the checks");
    });
}

#[test]
fn peer_access_error_names_both_devices_if_data_is_lost() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_BROKEN_PEER", "0-1").run(|| {
        let contexts = contexts(2);
        assert!(peer::pair(0, 1).expect("the fake driver is loaded").access, "the driver must report peer access");
        let error = peer::check_pair(&contexts[0], &contexts[1], soon()).expect_err("the written data is lost");
        let VmmError::BrokenPeer { from, to, what } = &error else { panic!("the error is {error}, expected BrokenPeer") };
        assert_eq!((from.as_str(), to.as_str()), ("device 0", "device 1"));
        assert!(what.contains("word 0 of the data that was written is"), "{what}");
    });
}

#[test]
fn unresponsive_peer_device_is_reported_at_the_deadline() {
    Fakes::new().cuda().run(|| {
        let contexts = contexts(2);
        let start = Instant::now();
        // The copy to the peer is enqueued. From then on, no stream reports completion.
        fail("cuMemcpyAsync:1=3000ms");
        let order = std::thread::spawn(|| {
            while !common::Calls::now().names().contains(&"cuMemcpyAsync") {
                std::thread::sleep(Duration::from_millis(1));
            }
            fail("cuStreamQuery:*=600");
        });
        let error = peer::check_pair(&contexts[0], &contexts[1], start + Duration::from_secs(6))
            .expect_err("the device does not respond");
        order.join().expect("the thread does not panic");
        fail("");
        assert!(matches!(&error, VmmError::BrokenPeer { what, .. } if what.contains("timed out after")), "{error}");
        assert!(start.elapsed() < Duration::from_secs(20));
        drain_retired();
    });
}

#[test]
fn stuck_device_is_not_reported_as_a_broken_peer() {
    Fakes::new().cuda().run(|| {
        let contexts = contexts(2);
        fail("cuStreamQuery:*=600");
        let soon = Instant::now() + Duration::from_millis(300);
        let error = peer::check_pair(&contexts[0], &contexts[1], soon).expect_err("the device does not respond");
        fail("");
        assert!(matches!(&error, VmmError::Timeout { call, .. } if call.contains("a stream of device 0")), "{error}");
        drain_retired();
    });
}

#[test]
fn peer_access_can_be_enabled_repeatedly() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_PEER", "0-2").run(|| {
        let contexts = contexts(3);
        peer::enable(&contexts[0], &contexts[1]).expect("peer access works");
        peer::enable(&contexts[0], &contexts[1]).expect("a repeated call succeeds");
        let error = peer::enable(&contexts[0], &contexts[2]).expect_err("the devices cannot access each other");
        assert!(matches!(error, VmmError::Unsupported { feature: "peer access", .. }), "{error}");
        assert!(IpcMemory::alloc(&contexts[0], 5).is_err(), "a length that is not a multiple of the step was accepted");
    });
}
