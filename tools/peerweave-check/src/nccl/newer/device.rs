//! Checks device communicators. Every rank creates and destroys device communicators, in the struct
//! layout of each NCCL version that the library accepts.
//!
//! No kernel runs. NCCL must accept the requirements in the layouts that `peerweave-nccl` defines,
//! and the device communicator must have the expected version, rank and size. The checks create no
//! multicast object.

use peerweave_nccl::{
    CftTeam, Communicator, Config, DeviceCommLayout, DeviceCommRequirements, DeviceCommunicator, DeviceTeam, NcclError,
    ResourceBuffer, Switch, Version, version_code,
};

use super::{Outcome, Part};

const LAYOUTS: [Version; 4] = [Version::new(2, 30, 3), Version::new(2, 30, 7), Version::new(2, 31, 2), Version::new(2, 32, 3)];

pub(super) fn all(part: &Part<'_>) -> Outcome {
    if !part.is_since("device communicators", Version::new(2, 30, 3)) {
        return Ok(());
    }
    let comm = part.communicator(&Config::new())?;
    let properties = comm.properties()?;
    if !properties.device_api() {
        part.note("not run: NCCL does not create device communicators on this machine");
        return Ok(comm.finalize(super::DEADLINE)?);
    }
    teams(part, &comm)?;
    let own = part.nccl().version();
    let mut layouts: Vec<_> = LAYOUTS
        .into_iter()
        .filter(|version| *version <= own)
        .map(|version| (DeviceCommLayout::Version(version), version))
        .collect();
    if part.is_since("the struct layout of the loaded library", Version::new(2, 31, 0)) {
        layouts.push((DeviceCommLayout::Library, own));
    }
    for (layout, version) in layouts {
        part.step(&format!("{layout:?}"));
        let first = make(part, &comm, layout, version, 4)?;
        // Creates a second device communicator while the first one exists, and a third one after
        // the first one was destroyed.
        let second = make(part, &comm, layout, version, 1)?;
        // SAFETY: no kernel was started.
        unsafe { first.destroy() }?;
        let third = make(part, &comm, layout, version, 16)?;
        // SAFETY: no kernel was started.
        unsafe { second.destroy() }?;
        // SAFETY: no kernel was started.
        unsafe { third.destroy() }?;
    }
    part.step("refused requirements");
    let multimem = DeviceCommRequirements::new().lsa_multimem(Switch::On);
    let disabled = |error: &NcclError| matches!(error, NcclError::MulticastDisabled(_));
    part.refused("lsa_multimem", DeviceCommunicator::create(&comm, &multimem), disabled);
    let later = DeviceCommRequirements::new().layout(DeviceCommLayout::Version(Version::new(2, 99, 0)));
    part.refused("the struct layout of a later version of NCCL", DeviceCommunicator::create(&comm, &later), |error| {
        !matches!(error, NcclError::Nccl(_))
    });
    part.computes(&comm, "a communicator from which device communicators were created")?;
    part.step("device communicators freed by finalize");
    let kept = make(part, &comm, DeviceCommLayout::Version(LAYOUTS[0]), LAYOUTS[0], 2)?;
    comm.finalize(super::DEADLINE)?;
    // SAFETY: no kernel was started.
    part.refused("destroy after finalize", unsafe { kept.destroy() }, |error| matches!(error, NcclError::Dead { .. }));
    Ok(())
}

fn teams(part: &Part<'_>, comm: &Communicator) -> Outcome {
    let (lsa, rail) = (comm.lsa_team()?, comm.rail_team()?);
    part.note(format!("rank 0: LSA team {lsa:?}, rail team {rail:?}"));
    for team in [Some(comm.world_team()), lsa, rail].into_iter().flatten() {
        let own = DeviceTeam::rank_of(&team, team.index());
        part.check(own == Some(comm.rank()), || {
            format!("{team:?}: rank_of returned {own:?} for this rank, expected {:?}", comm.rank())
        });
    }
    part.check(lsa.is_some() && rail.is_some(), || {
        format!("the LSA team is {lsa:?} and the rail team is {rail:?}, expected both teams to exist")
    });
    if part.has("fabric teams", "ncclTeamCft") {
        for which in [CftTeam::Flat, CftTeam::Multimem, CftTeam::Lsa] {
            part.note(format!("rank 0: CFT team of kind {which:?}: {:?}", comm.cft_team(which)));
        }
    }
    Ok(())
}

fn make(
    part: &Part<'_>,
    comm: &Communicator,
    layout: DeviceCommLayout,
    version: Version,
    barriers: u32,
) -> Result<DeviceCommunicator, super::Failed> {
    let requirements = DeviceCommRequirements::new()
        .layout(layout)
        .lsa_barriers(barriers)
        .buffer(ResourceBuffer { len_bytes: 5000, align_bytes: 512 })
        .buffer(ResourceBuffer { len_bytes: 64, align_bytes: 128 });
    let device = DeviceCommunicator::create(comm, &requirements)?;
    let word = |index: usize| u32::from_ne_bytes(std::array::from_fn(|byte| device.as_bytes()[4 * index + byte]));
    let head: [u32; 4] = std::array::from_fn(word);
    let expected = [0xcafe_beef, version_code(version).unsigned_abs(), comm.rank().get(), comm.n_ranks() as u32];
    part.check(head == expected, || {
        format!("{layout:?}: the first words of the device communicator are {head:x?}, expected {expected:x?}")
    });
    let offsets = [device.buffer_offset_bytes(0), device.buffer_offset_bytes(1)];
    let aligned = |offset: Option<usize>, to: usize| offset.is_some_and(|offset| offset.is_multiple_of(to));
    let apart = offsets[0].zip(offsets[1]).is_some_and(|(first, second)| second >= first + 5000 || first >= second + 64);
    part.check(aligned(offsets[0], 512) && aligned(offsets[1], 128) && apart, || {
        format!("{layout:?}: the buffers have the offsets {offsets:?}, expected aligned buffers that do not overlap")
    });
    Ok(device)
}
