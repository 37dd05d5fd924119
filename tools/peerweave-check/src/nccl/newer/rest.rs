//! Checks the properties and the options of communicators. Also checks suspension, which frees the
//! memory of a communicator until the communicator is resumed.

use std::time::Duration;

use peerweave_driver::{DeviceMemory, bind};
use peerweave_nccl::{
    Communicator, Config, CtaPolicy, DeadState, GraphUsage, HostCftMode, NcclError, NvlsHostMode, Rank, ReduceOp, ShrinkMode,
    Switch,
};

use super::{Outcome, Part};

/// After a suspend, the driver must report the freed memory as free within this time.
const COUNTED: Duration = Duration::from_secs(2);

pub(super) fn properties(part: &Part<'_>) -> Outcome {
    let comm = part.communicator(&Config::new())?;
    part.note(format!("{:?}", part.nccl()));
    if part.has("properties", "ncclCommQueryProperties") {
        let properties = comm.properties()?;
        part.note(format!("{properties:?}"));
        part.check(properties.rank() == comm.rank() && properties.ranks() == comm.n_ranks(), || format!("{properties:?}"));
        part.check(properties.cuda_device() == part.all.context.ordinal(), || format!("{properties:?}"));
        let hash = properties.comm_hash().map_or(0, |hash| hash);
        let all = part.exchange(&hash.to_le_bytes())?;
        part.check(all.iter().all(|other| *other == all[0]), || {
            format!("comm_hash is {hash:#x} on this rank, expected the same value on all ranks")
        });
    }
    if part.has("teams", "ncclTeamLsa") {
        part.note(format!("rank 0: LSA team {:?}, rail team {:?}", comm.lsa_team()?, comm.rail_team()?));
    }
    if part.has("parameters", "ncclParamGetAllParameterKeys") {
        let params = part.nccl().params()?;
        part.note(format!("{} parameters", params.len()));
        let wanted = ["NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_WIN_ENABLE", "NCCL_NUM_RMA_CTX", "NCCL_DEBUG"];
        for (name, value) in params.iter().filter(|(name, _)| wanted.contains(&name.as_str())) {
            part.note(format!("{name}={value}"));
        }
        part.check(!params.is_empty(), || "params returned no parameters, expected at least one".to_owned());
        if let Some((name, value)) = params.iter().next() {
            let again = part.nccl().param(name)?;
            part.check(again.as_ref() == Some(value), || {
                format!("param({name}) returned {again:?}, expected Some({value:?}), the value that params() returned")
            });
        }
        let unknown = part.nccl().param("NCCL_NO_SUCH_PARAMETER")?;
        part.check(unknown.is_none(), || {
            format!("param returned {unknown:?} for a parameter that does not exist, expected None")
        });
    }
    part.computes(&comm, "a communicator with default settings")?;
    Ok(comm.finalize(super::DEADLINE)?)
}

const NO_ONE_SIDED: &str = "one-sided calls disabled";

/// Checks options of communicators, each option on its own communicator. Options that the library
/// lacks are listed as not run.
pub(super) fn options(part: &Part<'_>) -> Outcome {
    let options = [
        ("a name", Config::new().name("newer")),
        ("a traffic class", Config::new().traffic_class(0)),
        ("blocking", Config::new().blocking(Switch::On)),
        // SAFETY: no communicator is created from a communicator with this option.
        ("resources shared with split communicators", unsafe { Config::new().split_share(Switch::On) }),
        // SAFETY: no communicator is created from a communicator with this option.
        ("resources shared with shrunk communicators", unsafe { Config::new().shrink_share(Switch::On) }),
        ("CollNet (reductions in the network) disabled", Config::new().collnet_enable(Switch::Off)),
        ("CTA policy efficiency", Config::new().cta_policy(CtaPolicy::Efficiency)),
        ("CTA policy zero", Config::new().cta_policy(CtaPolicy::Zero)),
        ("few CTAs", Config::new().min_ctas(1).max_ctas(2)),
        ("number of CTAs for NVLink switches (NVLS)", Config::new().nvls_ctas(4)),
        ("number of channels for each network peer", Config::new().channels_per_net_peer(2)),
        ("scheduling that prefers NVLink", Config::new().nvlink_centric_sched(Switch::On)),
        ("support for CUDA graphs disabled", Config::new().graph_usage(GraphUsage::Never)),
        ("support for a single CUDA graph", Config::new().graph_usage(GraphUsage::One)),
        (
            "support for a single CUDA graph, stream ordering disabled",
            Config::new().graph_usage(GraphUsage::One).graph_stream_ordering(Switch::Off),
        ),
        (NO_ONE_SIDED, Config::new().num_rma_ctx(0)),
        ("few peers", Config::new().max_p2p_peers(4)),
        ("implicit launch order", Config::new().launch_order_implicit(Switch::On)),
        ("signals", Config::new().num_rma_sig(7)),
        ("eager initialization of one-sided calls", Config::new().rma_eager_init(Switch::On)),
        ("host CFT mode with fallback", Config::new().host_cft_mode(HostCftMode::Fallback)),
        ("host calls without NVLink switches (NVLS)", Config::new().nvls_host_mode(NvlsHostMode::Disable)),
    ];
    for (what, config) in options {
        part.step(what);
        match part.communicator(&config) {
            Ok(comm) => {
                part.computes(&comm, what)?;
                comm.finalize(super::DEADLINE)?;
            }
            // Every rank gets the same error. NCCL allows zero one-sided contexts only from version
            // 2.30.7 on.
            Err(super::Failed(error)) if error.contains("needs NCCL") || what == NO_ONE_SIDED => {
                part.note(format!("not run: {error}"))
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the free bytes of the device's memory.
fn free(part: &Part<'_>) -> Result<usize, super::Failed> {
    bind(&part.all.context)?;
    Ok(part.all.context.mem_get_info()?.0)
}

pub(super) fn suspend(part: &Part<'_>) -> Outcome {
    let comm = part.communicator(&Config::new())?;
    part.computes(&comm, "before suspend")?;
    part.refused("resume of a communicator that is not suspended", comm.resume(), |error| error.misuse_kind().is_some());
    for round in 0..2 {
        let statistics = part.nccl().has("ncclCommMemStats");
        let before = statistics.then(|| comm.mem_stats()).transpose()?;
        part.meet()?;
        let free_before = free(part)?;
        part.meet()?;
        part.step(&format!("suspend {round}"));
        comm.suspend()?;
        part.meet()?;
        rests(part, &comm);
        if let Some(before) = before {
            let resting = comm.mem_stats()?;
            part.check(!before.is_suspended && resting.is_suspended, || {
                format!("is_suspended is wrong: before suspend {before:?}, after suspend {resting:?}")
            });
            // NCCL 2.30 does not update its statistics, so the check also compares the free memory
            // of the device.
            let gained = || free(part).map(|now| now.saturating_sub(free_before) as u64).unwrap_or(0);
            let until = std::time::Instant::now() + COUNTED;
            while gained() == 0 && resting.total_bytes >= before.total_bytes && std::time::Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            let (gained, fewer) = (gained(), before.total_bytes.saturating_sub(resting.total_bytes));
            part.note(format!("rank 0: suspend freed {gained} bytes of device memory; before {before:?}, after {resting:?}"));
            let nothing_to_give = before.suspendable_bytes == 0;
            part.check(gained > 0 || fewer > 0 || nothing_to_give, || {
                format!("suspend freed no memory: before {before:?}, after {resting:?}")
            });
        }
        part.meet()?;
        part.step(&format!("resume {round}"));
        comm.resume()?;
        if let Some(before) = before {
            let after = comm.mem_stats()?;
            part.check(after == before, || {
                format!("the memory statistics are {after:?} after resume, expected {before:?} as before suspend")
            });
        }
        part.computes(&comm, "resumed")?;
    }
    part.step("windows after resume");
    if part.nccl().has("ncclCommWindowRegister") {
        let memory = super::windows::alloc::<f32>(part, 1000)?;
        if let Some(window) = peerweave_nccl::Window::register(&comm, &memory, peerweave_nccl::WindowKind::SYMMETRIC)? {
            window.deregister(&part.stream, super::DEADLINE)?;
        }
    }
    part.computes(&comm, "a resumed communicator on which a window was registered")?;
    part.step("finalize");
    Ok(comm.finalize(super::DEADLINE)?)
}

/// Checks that the suspended communicator `comm` refuses operations, and that its `async_error`
/// returns no error.
fn rests(part: &Part<'_>, comm: &Communicator) {
    let suspended = |error: &NcclError| matches!(error, NcclError::Dead { state: DeadState::Suspended, .. });
    let Ok(mut values) = DeviceMemory::from_slice(&part.stream, &[1.0f32; 4]) else {
        return part.check(false, || "cannot allocate 4 elements of device memory".to_owned());
    };
    let call = comm.all_reduce_in_place(&part.stream, &mut values, ReduceOp::Sum);
    part.refused("all_reduce while suspended", call, suspended);
    let group = part.nccl().group(|group| group.all_reduce_in_place(comm, &part.stream, &mut values, ReduceOp::Sum));
    part.refused("a group of calls while suspended", group, suspended);
    part.refused("split while suspended", comm.split(Some(0), 0), suspended);
    if comm.n_ranks() > 1 && comm.rank() == Rank::new(0) {
        part.refused("shrink while suspended", comm.shrink(&[Rank::new(1)], ShrinkMode::Default), suspended);
    }
    part.refused("suspend while suspended", comm.suspend(), suspended);
    part.check(comm.async_error().is_ok(), || {
        "async_error returned an error while the communicator was suspended, expected no error".to_owned()
    });
}
