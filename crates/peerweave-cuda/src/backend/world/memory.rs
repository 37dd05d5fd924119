//! Allocates the symmetric memory of collectives: the staging memory of the team of all PEs, and
//! the staging memory of other teams.

use std::sync::Arc;

use peerweave_collectives::MAX_RANKS;
use peerweave_vmm::{Misuse, VmmError};

use crate::collective::{Collectives, CollectivesOptions};
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::memory::Symmetric;
use crate::route::Routes;

/// Three values: the collectives of the team of all PEs on this host, the staging memory of other
/// teams, and the options that each of the other teams uses for its collectives.
pub(super) type TeamsMemory = (Option<Collectives>, Option<Symmetric<u8>>, CollectivesOptions);

/// Creates the collectives of the team of all PEs on this host, and allocates staging memory for
/// `teams` other teams. The collectives are `None` if the heap has no room for them. They are also
/// `None` if the job has one host, and this host has more PEs than the kernels support. The staging
/// memory is `None` if the heap has no room for it, or if `teams` is 0.
pub(super) fn teams_memory(
    gpu: &Gpu,
    heap_bytes: u64,
    teams: u64,
    routes: &Arc<Routes>,
    max_blocks: Option<u32>,
) -> Result<TeamsMemory, CudaError> {
    /// Converts the error "the heap has no room" to `Ok(None)`. All PEs get the same result,
    /// because the heaps of all PEs have the same allocations.
    fn room<T>(made: Result<T, CudaError>) -> Result<Option<T>, CudaError> {
        match made {
            Err(CudaError::Vmm(VmmError::Misuse(Misuse::Exhausted { .. }))) => Ok(None),
            made => made.map(Some),
        }
    }
    let options = within(options_of_others(heap_bytes, teams), max_blocks);
    // This value is the same on all PEs.
    let is_served = gpu.0.hosts.len() > 1 || gpu.n_pes() as usize <= MAX_RANKS;
    let world = match is_served {
        true => room(Collectives::here_by(gpu, within(options_of_world(heap_bytes), max_blocks), routes))?,
        false => None,
    };
    let rooms = if teams == 0 { None } else { room(gpu.alloc((teams * options.heap_bytes()) as usize))? };
    Ok((world, rooms, options))
}

/// Returns the options for the staging memory of the team of all PEs: the default options if they
/// need at most a quarter of the heap, and otherwise options that need less memory.
pub(super) fn options_of_world(heap_bytes: u64) -> CollectivesOptions {
    let options = CollectivesOptions::default();
    if heap_bytes >= 4 * options.heap_bytes() {
        return options;
    }
    let bank_bytes = (heap_bytes / 256).clamp(4096, 256 << 10) & !4095;
    let max_blocks = (heap_bytes / (1 << 20)).clamp(1, 16) as u32;
    CollectivesOptions { bank_bytes, slot_bytes: 4096, max_blocks, ..options }
}

/// Returns the options for the staging memory of a team other than the team of all PEs. There are
/// `teams` such teams, which all use these options. Together their staging memory takes at most an
/// eighth of the heap, unless even the smallest possible staging memory takes more.
pub(super) fn options_of_others(heap_bytes: u64, teams: u64) -> CollectivesOptions {
    const KIB: u64 = 1 << 10;
    let share = heap_bytes / 8 / teams.max(1);
    let (max_blocks, slot_bytes) = match share / KIB {
        8192.. => (32, 16 * KIB),
        1024.. => (16, 4 * KIB),
        128.. => (4, KIB),
        _ => (1, KIB),
    };
    let rings = CollectivesOptions { bank_bytes: 0, slot_bytes, max_blocks, ..CollectivesOptions::default() }.heap_bytes();
    // The two banks and the channels together take 2.5 times as much memory as one bank.
    let bank_bytes = ((share.saturating_sub(rings) / 8 * 3) & !4095).clamp(4096, 2048 * KIB);
    CollectivesOptions { bank_bytes, slot_bytes, max_blocks, ..CollectivesOptions::default() }
}

/// Returns `options`, in which the number of blocks is limited to `max_blocks`. If `max_blocks` is
/// `None`, returns `options` unchanged.
pub(super) fn within(options: CollectivesOptions, max_blocks: Option<u32>) -> CollectivesOptions {
    CollectivesOptions { max_blocks: max_blocks.map_or(options.max_blocks, |most| options.max_blocks.min(most)), ..options }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_memory_of_teams_takes_at_most_an_eighth_of_the_heap() {
        for heap_bytes in [8 << 20, 64 << 20, 1 << 30, 1 << 40] {
            let options = options_of_others(heap_bytes, 15);
            assert!(15 * options.heap_bytes() <= heap_bytes / 8, "{heap_bytes}: {options:?}");
        }
        assert!(options_of_others(1 << 30, 15).bank_bytes >= 1 << 20);
        assert!(15 * options_of_others(1 << 20, 15).heap_bytes() < 1 << 19);
    }
}
