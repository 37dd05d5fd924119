//! Tests of device communicators, teams and properties, on fake devices.
//!
//! The fake NCCL writes the bytes of a device communicator, but runs no kernels. So the use of
//! device communicators by kernels is not tested.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use common::DEADLINE;
use peerweave_fakes::Fakes;
use peerweave_nccl::{
    CftTeam, Communicator, Config, DeviceCommLayout, DeviceCommRequirements, DeviceCommunicator, DeviceTeam, Nccl, NcclError,
    Rank, ResourceBuffer, Switch, Version,
};

const RANKS: usize = 4;

fn fakes_of(version: &str) -> Fakes {
    common::fakes_of(RANKS, version)
}

/// Runs `body` on a communicator of four ranks, each on its own thread.
fn on_every_rank(body: impl Fn(Communicator) + Sync) {
    on_every_rank_of(&Config::new(), body);
}

fn on_every_rank_of(config: &Config, body: impl Fn(Communicator) + Sync) {
    common::ranks(RANKS, config, |communicator, _| body(communicator));
}

/// Returns the first four 32-bit integers of a device communicator: magic number, version, rank,
/// number of ranks.
fn head(device: &DeviceCommunicator) -> [u32; 4] {
    std::array::from_fn(|word| {
        u32::from_ne_bytes(device.as_bytes()[4 * word..][..4].try_into().expect("the slice has four bytes"))
    })
}

#[test]
fn device_communicator_has_the_size_reported_by_the_library() {
    fakes_of("2.32.3").run(|| {
        on_every_rank(|communicator| {
            let requirements = DeviceCommRequirements::new()
                .lsa_barriers(2)
                .buffer(ResourceBuffer { len_bytes: 1000, align_bytes: 256 })
                .buffer(ResourceBuffer { len_bytes: 64, align_bytes: 128 });
            let device = DeviceCommunicator::create(&communicator, &requirements).expect("all ranks have the same requirements");
            let properties = communicator.properties().expect("NCCL 2.32 has properties");
            assert_eq!(Some(device.as_bytes().len()), properties.device_comm_len_bytes());
            assert_eq!(head(&device), [0xcafe_beef, 23203, communicator.rank().get(), RANKS as u32]);
            let (one, two) = (
                device.buffer_offset_bytes(0).expect("the requirements have this entry"),
                device.buffer_offset_bytes(1).expect("the requirements have this entry"),
            );
            assert!(one.is_multiple_of(256) && two.is_multiple_of(128), "{one} {two}");
            assert!(one + 1000 <= two || two + 64 <= one, "the buffers overlap: {one} {two}");
            assert_eq!((device.buffer_offset_bytes(2), device.multimem_handle(0)), (None, None));
            // SAFETY: no kernel was started.
            unsafe { device.destroy() }.expect("the communicator is live");
        });
    });
}

#[test]
fn device_communicator_of_nccl_2_30_has_240_bytes() {
    fakes_of("2.30.7").run(|| {
        on_every_rank(|communicator| {
            let device = DeviceCommunicator::create(&communicator, &DeviceCommRequirements::new())
                .expect("all ranks have the same requirements");
            assert_eq!(device.as_bytes().len(), 240);
            assert_eq!(head(&device), [0xcafe_beef, 23007, communicator.rank().get(), RANKS as u32]);
        });
    });
}

#[test]
fn device_communicator_has_the_requested_older_layout() {
    fakes_of("2.32.3").run(|| {
        on_every_rank(|communicator| {
            let requirements = DeviceCommRequirements::new().layout(DeviceCommLayout::Version(Version::new(2, 30, 4)));
            let device = DeviceCommunicator::create(&communicator, &requirements).expect("all ranks have the same requirements");
            assert_eq!((device.as_bytes().len(), head(&device)[1]), (240, 23004));
        });
    });
}

#[test]
fn library_without_a_usable_device_api_is_unsupported() {
    fakes_of("2.29.7").run(|| {
        on_every_rank(|communicator| {
            let error = DeviceCommunicator::create(&communicator, &DeviceCommRequirements::new())
                .expect_err("NCCL 2.30.3 introduced device communicators");
            assert!(matches!(error, NcclError::Unsupported(error) if error.since == Some(Version::new(2, 30, 3))));
            let properties = communicator.properties().expect("NCCL 2.29.7 has properties");
            assert_eq!(
                (properties.rank(), properties.ranks(), properties.device_comm_len_bytes()),
                (communicator.rank(), RANKS, None)
            );
            assert!(matches!(communicator.cft_team(CftTeam::Flat), Err(NcclError::Unsupported(_))));
        });
    });
}

#[test]
fn multicast_requirements_are_refused_if_multicast_is_disabled() {
    fakes_of("2.32.3")
        .env("PEERWEAVE_MULTICAST", "off")
        .env("NCCL_NVLS_ENABLE", "0")
        .env("PEERWEAVE_FAKE_NCCL_MULTIMEM", "1")
        .run(|| {
            on_every_rank(|communicator| {
                let world = communicator.world_team();
                for requirements in
                    [DeviceCommRequirements::new().lsa_multimem(Switch::On), DeviceCommRequirements::new().multimem_team(world)]
                {
                    let error = DeviceCommunicator::create(&communicator, &requirements).expect_err("multicast is disabled");
                    assert!(matches!(error, NcclError::MulticastDisabled(_)), "{error}");
                }
            });
        });
}

#[test]
fn team_of_another_rank_or_communicator_is_refused() {
    fakes_of("2.32.3").run(|| {
        on_every_rank(|communicator| {
            let rank = communicator.rank();
            for team in [
                DeviceTeam::world(RANKS, Rank::new((rank.get() + 1) % RANKS as u32)),
                DeviceTeam::world(2 * RANKS, rank),
                DeviceTeam::world(2 * RANKS, Rank::new(rank.get() + RANKS as u32))
                    .outer(RANKS)
                    .expect("the size divides the number of ranks"),
                DeviceTeam::world(usize::MAX, rank),
            ] {
                let requirements = DeviceCommRequirements::new().multimem_team(team);
                let error = DeviceCommunicator::create(&communicator, &requirements)
                    .expect_err("the team belongs to another rank or communicator");
                assert!(error.misuse_kind().is_some(), "{error}");
            }
            // The refused calls have not reached NCCL, so the next call succeeds on all ranks.
            DeviceCommunicator::create(&communicator, &DeviceCommRequirements::new())
                .expect("all ranks have the same requirements");
        });
    });
}

#[test]
fn communicator_init_fails_if_multicast_is_off_but_nvls_is_on() {
    fakes_of("2.32.3").env("PEERWEAVE_MULTICAST", "off").env_remove("NCCL_NVLS_ENABLE").run(|| {
        let nccl = Nccl::load().expect("the fake library is found");
        let contexts = common::contexts(1);
        let error = Communicator::builder()
            .nccl(nccl)
            .deadline(DEADLINE)
            .init_all(&contexts)
            .expect_err("NCCL would create a multicast object");
        assert!(error.misuse_kind().is_some() && error.to_string().contains("NCCL_NVLS_ENABLE=0"), "{error}");
    });
}

#[test]
fn create_fails_on_every_rank_if_the_requirements_differ() {
    fakes_of("2.32.3").run(|| {
        on_every_rank_of(&Config::new().blocking(Switch::On), |communicator| {
            let requirements = DeviceCommRequirements::new().lsa_barriers(1 + communicator.rank().get() * 64);
            let error = DeviceCommunicator::create(&communicator, &requirements).expect_err("the requirements differ");
            assert!(error.to_string().contains("ncclDevCommCreate"), "{error}");
        });
    });
}

#[test]
fn lsa_team_has_all_ranks_and_rail_team_has_one_rank() {
    fakes_of("2.32.3").run(|| {
        on_every_rank(|communicator| {
            let rank = communicator.rank();
            let lsa = communicator.lsa_team().expect("the communicator is live").expect("all ranks of the fake are accessible");
            assert_eq!(lsa, communicator.world_team());
            let rail = communicator.rail_team().expect("the communicator is live").expect("all ranks of the fake are accessible");
            assert_eq!((rail.ranks(), rail.rank_of(0)), (1, Some(rank)));
            assert_eq!(DeviceTeam::world(RANKS, rank).outer(RANKS), Some(rail));
        });
    });
}

#[test]
fn threads_share_a_device_communicator() {
    fakes_of("2.32.3").run(|| {
        on_every_rank(|communicator| {
            let device = DeviceCommunicator::create(&communicator, &DeviceCommRequirements::new())
                .expect("all ranks have the same requirements");
            let here = device.as_bytes().to_vec();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| assert_eq!(device.as_bytes(), here));
                }
            });
            std::thread::spawn(move || drop(device)).join().expect("another thread can drop the device communicator");
        });
    });
}

#[test]
fn device_communicator_is_unusable_after_an_abort() {
    fakes_of("2.32.3").run(|| {
        on_every_rank(|communicator| {
            let device = DeviceCommunicator::create(&communicator, &DeviceCommRequirements::new())
                .expect("all ranks have the same requirements");
            communicator.abort(DEADLINE).expect("no work is running");
            let again = DeviceCommunicator::create(device.communicator(), &DeviceCommRequirements::new())
                .expect_err("the communicator was aborted");
            assert!(matches!(again, NcclError::Dead { .. }), "{again}");
            // SAFETY: no kernel was started.
            let error = unsafe { device.destroy() }.expect_err("the abort has freed the device communicator");
            assert!(matches!(error, NcclError::Dead { .. }), "{error}");
        });
    });
}
