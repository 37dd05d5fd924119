//! Begins a job after its PEs are connected, and ends the job.
//!
//! Invariant: either all PEs map the heap, or no PE begins the job.

use core::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use peerweave_fake_common::driver;

use super::connect::join;
use super::options::{bytes_of, is_on, option};
use crate::abi::structs::{InitArgs, InitAttr, word};
use crate::abi::{Code, Fail, Result, fail, invalid};
use crate::job::memory::Memory;
use crate::job::pending::Pending;
use crate::job::region::Region;
use crate::job::teams::Teams;
use crate::job::world::Growth;
use crate::job::{World, counters};
use crate::peers::mapping::reserve;
use crate::peers::{Control, Team, record};
use crate::settings;

fn heap_bytes() -> Result<usize> {
    let wanted = match settings::get().heap_bytes {
        Some(bytes) => bytes,
        None => bytes_of("NVSHMEM_SYMMETRIC_SIZE")?.unwrap_or(1 << 30),
    };
    match usize::try_from(wanted.max(1)).ok().and_then(|bytes| bytes.checked_next_multiple_of(driver::GRANULARITY)) {
        Some(bytes) => Ok(bytes),
        None => invalid(format!("the symmetric heap of {wanted} bytes is too large")),
    }
}

/// Returns the device to initialize, and the context to use.
fn device(attr: &InitAttr) -> Result<(c_int, usize)> {
    let wanted = if attr.args.version == word(2, size_of::<InitArgs>()) { attr.args.device } else { -1 };
    if wanted >= 0 {
        return Ok(driver::device_of_ordinal(wanted)?);
    }
    driver::current_device()?.map_or_else(|| fail(Code::GPU_NOT_SELECTED, "no context is current, and no device was passed"), Ok)
}

/// Begins the job on this PE after the PEs are connected.
pub(super) fn begin(attr: &InitAttr, (control, pe, ranks): (&'static Control, c_int, c_int)) -> Result<World> {
    let (device, context) = device(attr)?;
    let bytes = heap_bytes()?;
    let max_teams = match option("NVSHMEM_MAX_TEAMS") {
        None => 128,
        Some(text) => text.parse().or_else(|_| invalid(format!("NVSHMEM_MAX_TEAMS={text}: expected a number")))?,
    };
    let (processes, shares_gpu) = join(control, pe, ranks, device, bytes)?;
    let remote = option("NVSHMEM_REMOTE_TRANSPORT").unwrap_or_default();
    if ranks > 1 && is_on("NVSHMEM_DISABLE_P2P") && remote == "none" {
        return fail(
            Code::INTERNAL,
            "no transport to other PEs: NVSHMEM_DISABLE_P2P is set and NVSHMEM_REMOTE_TRANSPORT is none",
        );
    }
    let growth = match is_on("NVSHMEM_DISABLE_CUDA_VMM") {
        true => Growth::Fixed,
        false => Growth::By(bytes_of("NVSHMEM_CUMEM_GRANULARITY")?.map_or(512 << 20, |step| step as usize)),
    };
    let team = Arc::new(Team::new(control, 0, 0, (0..ranks).collect(), pe));
    let map = || {
        let mut turn = team.begin_setup();
        let made = driver::create(device, bytes);
        let failed = turn.find_failed(&[bytes as u64], made.is_ok());
        let handle = made.or_else(|failure| fail(Code::OUT_OF_MEMORY, Fail::from(failure).text))?;
        if let Some(other) = failed {
            return fail(Code::OUT_OF_MEMORY, format!("PE {other} has no memory for a symmetric heap of {bytes} bytes"));
        }
        Region::map(&mut turn, &processes, pe as usize, device, handle, bytes, 0)
    };
    let mut heap = driver::with_context(context, map)?;
    if is_on("NVSHMEM_DISABLE_P2P") {
        for (other, peer) in heap.peers.iter_mut().enumerate().filter(|(other, _)| *other != pe as usize) {
            if let Some(given) = peer.given.take() {
                driver::unmap(given, bytes)
                    .map_err(Fail::from)
                    .or_else(|failure| fail(failure.code, format!("PE {other}: {}", failure.text)))?;
            }
        }
    }
    let settings = settings::get();
    let multicast = settings.multicast && !is_on("NVSHMEM_DISABLE_NVLS");
    let multicast = if multicast { reserve(bytes)? } else { 0 };
    let memory = Memory { live: true, regions: vec![Some(heap)], multicast, ..Memory::default() };
    Ok(World {
        pe,
        ranks,
        device,
        context,
        processes,
        control,
        teams: Teams::new(&team, &memory, max_teams),
        memory: RwLock::new(memory),
        growth,
        team,
        pending: Pending::new(settings.nbi_delay),
        sent: Pending::new(settings.network_delay),
        left: AtomicBool::new(false),
        modules: Mutex::default(),
        shares_gpu,
    })
}

/// Finalizes the job on this PE, after all PEs have called this function.
pub(super) fn end(world: &World) -> Result {
    world.quiet();
    world.teams.lock().values().for_each(|team| team.idle());
    world.team.begin_setup().meet(record(&[], &[]));
    let mut memory = world.change_memory();
    memory.live = false;
    let left = memory.allocations.len() + memory.registered.len() + memory.regions.iter().flatten().count() - 1;
    counters::LEFT_BEHIND.fetch_add(left as u64 + world.teams.made() as u64, Ordering::Relaxed);
    let regions = std::mem::take(&mut memory.regions);
    memory.allocations.clear();
    memory.registered.clear();
    let unmap = || regions.into_iter().flatten().try_for_each(|region| region.unmap(world.pe as usize));
    driver::with_context(world.context, unmap)
}
