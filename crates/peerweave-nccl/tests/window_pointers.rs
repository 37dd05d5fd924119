//! Tests of the addresses of windows for kernels, on fake devices.
//!
//! The tests only compare addresses, and do not access memory.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use peerweave_fakes::Fakes;
use peerweave_nccl::{
    Communicator, Config, DeviceCommRequirements, DeviceCommunicator, DeviceTeam, MisuseKind, NcclError, NcclMem, Rank, Switch,
    Version, Window, WindowKind,
};

const RANKS: usize = 3;
const LEN: usize = 1500;

fn fakes_of(version: &str) -> Fakes {
    common::fakes_of(RANKS, version)
}

/// Returns a fake machine like [`fakes_of`], with multicast enabled. Variables in the environment
/// of the tests cannot disable multicast.
fn with_multicast(version: &str) -> Fakes {
    let forbidding = ["PEERWEAVE_MULTICAST", "NCCL_NVLS_ENABLE", "NVSHMEM_DISABLE_NVLS"];
    forbidding.iter().fold(fakes_of(version), |fakes, name| fakes.env_remove(name)).env("PEERWEAVE_FAKE_NCCL_MULTIMEM", "1")
}

/// Runs `body` on every rank, each on its own thread, with a window of `LEN` elements.
fn with_windows(body: impl Fn(&Communicator, &NcclMem<u32>, &Window<u32>) + Sync) {
    common::ranks(RANKS, &Config::new(), |communicator, _| {
        let memory = NcclMem::<u32>::alloc(communicator.nccl(), communicator.context(), LEN).expect("memory is allocated");
        let window = Window::register(&communicator, &memory, WindowKind::SYMMETRIC)
            .expect("all ranks register")
            .expect("the fake has windows");
        body(&communicator, &memory, &window);
    });
}

#[test]
fn window_address_by_rank_equals_address_by_team_index() {
    fakes_of("2.32.3").run(|| {
        with_windows(|communicator, _, window| {
            // NCCL maps the memory of all ranks a second time, including the memory of this rank.
            // So the test does not know the address.
            window
                .peer_pointer(communicator.rank(), 0)
                .expect("the communicator is live")
                .expect("the rank's own window is accessible");
            let team = communicator.lsa_team().expect("the communicator is live").expect("all ranks of the fake are accessible");
            let mut addresses = Vec::new();
            for index in 0..team.ranks() {
                let rank = team.rank_of(index).expect("the index is in the team");
                let first = window
                    .peer_pointer(rank, 0)
                    .expect("the communicator is live")
                    .expect("all ranks of the fake are accessible");
                let last = window
                    .peer_pointer(rank, LEN - 1)
                    .expect("the communicator is live")
                    .expect("all ranks of the fake are accessible");
                assert_eq!(last - first, 4 * (LEN as u64 - 1), "offsets are in elements");
                assert_eq!(window.lsa_pointer(index, LEN - 1).expect("the communicator is live"), Some(last));
                addresses.push(first);
            }
            addresses.dedup();
            assert_eq!(addresses.len(), RANKS, "the windows of different ranks have different addresses");
        });
    });
}

#[test]
fn invalid_rank_or_offset_of_a_window_address_is_misuse() {
    fakes_of("2.32.3").run(|| {
        with_windows(|_, _, window| {
            for error in [
                window.peer_pointer(Rank::new(RANKS as u32), 0).expect_err("the rank does not exist"),
                window.peer_endpoint(Rank::new(u32::MAX), 0).expect_err("the rank does not exist"),
            ] {
                assert!(matches!(error.misuse_kind(), Some(MisuseKind::Rank { ranks: RANKS, .. })), "{error}");
            }
            for error in [
                window.peer_pointer(Rank::new(0), LEN).expect_err("the offset is beyond the window"),
                window.lsa_pointer(RANKS, 0).expect_err("the team has no such index"),
                window.lsa_pointer(0, usize::MAX).expect_err("the offset is beyond the window"),
                window.peer_endpoint(Rank::new(0), LEN).expect_err("the offset is beyond the window"),
            ] {
                assert!(matches!(error.misuse_kind(), Some(MisuseKind::Value { .. })), "{error}");
            }
        });
    });
}

#[test]
fn multicast_address_is_returned_if_supported() {
    with_multicast("2.32.3").run(|| {
        with_windows(|communicator, _, window| {
            let first = window.lsa_multimem_pointer(0).expect("multicast is enabled").expect("the fake has multicast");
            let other = window.lsa_multimem_pointer(10).expect("multicast is enabled").expect("the fake has multicast");
            assert_eq!(other - first, 40);
            assert!(window.lsa_multimem_pointer(LEN).is_err());
            let requirements = DeviceCommRequirements::new().lsa_multimem(Switch::On).multimem_team(communicator.world_team());
            let device = DeviceCommunicator::create(communicator, &requirements).expect("all ranks have the same requirements");
            let team = device.multimem_handle(0).expect("the requirements have this entry");
            assert!(window.multimem_pointer(team, 10).expect("multicast is enabled").is_some());
        });
    });
}

#[test]
fn hardware_without_multicast_has_no_multicast_address() {
    with_multicast("2.32.3").env("PEERWEAVE_FAKE_NCCL_MULTIMEM", "0").run(|| {
        with_windows(|_, _, window| assert_eq!(window.lsa_multimem_pointer(0).expect("multicast is enabled"), None));
    });
}

#[test]
fn multicast_address_is_not_queried_if_multicast_is_disabled() {
    let forbidden = fakes_of("2.32.3").env("NCCL_NVLS_ENABLE", "0").env("PEERWEAVE_FAKE_NCCL_MULTIMEM", "1");
    forbidden.run(|| {
        with_windows(|_, _, window| {
            for error in [window.lsa_multimem_pointer(0).map(drop), window.multimem_endpoint(0).map(drop)] {
                assert!(matches!(error, Err(NcclError::MulticastDisabled(_))), "{error:?}");
            }
        });
    });
}

#[test]
fn logical_endpoints_require_a_fabric_and_nccl_2_31() {
    fakes_of("2.32.3").run(|| {
        with_windows(|communicator, _, window| {
            assert!(matches!(window.peer_endpoint(Rank::new(0), 0), Err(NcclError::Nccl(_))), "the fake has no fabric");
            assert!(matches!(window.cft_endpoint(communicator.world_team(), 1, 0), Err(NcclError::Nccl(_))));
            for team in
                [DeviceTeam::world(RANKS + 1, communicator.rank()), DeviceTeam::world(usize::MAX, Rank::new(u32::MAX - 1))]
            {
                let error = window.cft_endpoint(team, 0, 0).expect_err("the team belongs to another communicator");
                assert!(error.misuse_kind().is_some(), "{error}");
            }
        });
    });
    fakes_of("2.30.7").run(|| {
        with_windows(|_, _, window| {
            assert!(
                matches!(window.peer_endpoint(Rank::new(0), 0), Err(NcclError::Unsupported(error)) if error.since == Some(Version::new(2, 31, 1)))
            );
        });
    });
}
