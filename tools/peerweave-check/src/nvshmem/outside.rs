//! Checks memory that NVSHMEM did not allocate: memory registered as symmetric memory, and memory
//! registered as the local side of puts and gets.

use std::sync::Arc;

use peerweave_driver::DeviceMemory;
use peerweave_nvshmem::{MisuseKind, NvshmemError};
use peerweave_types::ReduceOp;
use peerweave_vmm::{Exportable, Granularity, MappedMemory, PhysicalMemory, Reservation, Rights};

use crate::Failure;
use crate::nvshmem::scenarios::Checks;

/// Number of elements in each range of memory that the checks use.
const COUNT: usize = 1003;

pub(crate) fn run(checks: &mut Checks<'_>) -> Result<(), Failure> {
    symmetric(checks)?;
    local(checks)
}

/// Allocates and maps physical memory that has a shareable handle. The size is a multiple of the
/// granularity of NVSHMEM's heap, as NVSHMEM requires.
fn shareable(checks: &Checks<'_>) -> Result<MappedMemory<u32>, Failure> {
    let context = checks.context.device();
    let granularity = Granularity::of_device(context.ordinal(), Exportable::FILE_DESCRIPTOR)?;
    let step = std::env::var("NVSHMEM_CUMEM_GRANULARITY").ok().and_then(|text| text.parse().ok()).unwrap_or(512 << 20);
    let bytes =
        granularity.round_up(step).ok_or_else(|| format!("{step} bytes overflow when rounded up to the device's granularity"))?;
    let physical = PhysicalMemory::create(context, bytes, Exportable::FILE_DESCRIPTOR)?;
    let mapping = Reservation::new(context, bytes, bytes)?.map(0, &physical, bytes)?;
    mapping.allow(&[context.ordinal()], Rights::ReadWrite)?;
    Ok(mapping.memory(context.ordinal())?)
}

fn symmetric(checks: &mut Checks<'_>) -> Result<(), Failure> {
    let (context, stream, next, previous) = (checks.context, Arc::clone(&checks.stream), checks.next(), checks.previous());
    let n = checks.n();
    let whole = match context.register_symmetric(&shareable(checks)?) {
        Ok(whole) => whole,
        Err(error) => {
            checks.check("register_symmetric", false, || error.to_string());
            return Ok(());
        }
    };
    // The buffer keeps the memory alive: no other handle exists.
    let (low, high) = (whole.slice(0..COUNT)?, whole.slice(COUNT..2 * COUNT)?);
    let number = |pe: u32, index: usize| pe * 10_000 + index as u32;
    low.copy_from(&stream, &(0..COUNT).map(|index| number(checks.pe(), index)).collect::<Vec<_>>())?;
    checks.barrier()?;
    context.put(&high, &low, next, &stream)?;
    checks.barrier()?;
    let found = high.to_vec(&stream)?;
    checks.same("register_symmetric", &found, |index| number(previous, index));
    context.world().reduce(&high, &low, ReduceOp::Sum, &stream)?;
    let found = high.to_vec(&stream)?;
    checks.same("register_symmetric", &found, |index| (0..n).map(|pe| number(pe, index)).sum());
    let refused = context.free(whole);
    checks.refused("unregistering memory that has slices", refused, |kind| matches!(kind, MisuseKind::InUse { .. }));
    drop(high);
    // The memory is still listed, because a slice is a handle too.
    context.free(low)?;
    // Registers at a preferred address, if the library supports it.
    let near = context.register_symmetric_near(&shareable(checks)?, 0);
    let can = context.library().has("nvshmemx_buffer_register_symmetric_at_preferred_address");
    match near {
        Ok(near) => {
            checks.check("register_symmetric_near", can, || format!("{near:?}"));
            context.free(near)?;
        }
        Err(error) => {
            checks.check("register_symmetric_near", !can && matches!(error, NvshmemError::Unsupported(_)), || error.to_string())
        }
    }
    // PE 0 passes memory that can be made symmetric, and the other PEs pass other memory. So no PE
    // registers memory, and NVSHMEM is not called, because it would lose its heap.
    let small = DeviceMemory::<u32>::from_slice(&stream, &[0; 256])?;
    if n > 1 && checks.pe() == 0 {
        let differ = context.register_symmetric(&shareable(checks)?).map(drop);
        checks.check("disagree", matches!(differ, Err(NvshmemError::Disagree(_))), || format!("{differ:?}"));
    } else {
        let refused = context.register_symmetric(&small).map(drop);
        checks.refused("registering memory that cannot be shared", refused, |kind| matches!(kind, MisuseKind::Context { .. }));
    }
    let all = shareable(checks)?;
    let refused = context.register_symmetric(&all.slice(all.len() / 2..all.len())?).map(drop);
    checks.refused("registering a part of an allocation", refused, |kind| matches!(kind, MisuseKind::Context { .. }));
    let borrowed = stream.alloc_zeros::<u32>(256)?;
    let refused = context.register_symmetric(&borrowed).map(drop);
    checks.refused("registering borrowed memory", refused, |kind| matches!(kind, MisuseKind::Context { .. }));
    let refused = context.register_symmetric(&small.slice(0..0)?).map(drop);
    checks.refused("registering an empty slice", refused, |kind| matches!(kind, MisuseKind::Length { .. }));
    Ok(())
}

fn local(checks: &mut Checks<'_>) -> Result<(), Failure> {
    let (context, stream, next, previous) = (checks.context, Arc::clone(&checks.stream), checks.next(), checks.previous());
    let target = context.alloc::<u32>(COUNT)?;
    let source = DeviceMemory::<u32>::from_slice(&stream, &vec![checks.pe() + 5; COUNT])?;
    let registered = context.register_local(&source)?;
    checks.check("register_local", registered.len_bytes() == COUNT * 4, || format!("{registered:?}"));
    let again = context.register_local(&source).map(drop);
    checks.check("register_local", matches!(again, Err(NvshmemError::Nvshmem(_))), || {
        format!("registering the same memory a second time returned {again:?}, expected an error from NVSHMEM")
    });
    let borrowed = stream.alloc_zeros::<u32>(8)?;
    let refused = context.register_local(&borrowed).map(drop);
    checks.refused("registering borrowed memory", refused, |kind| matches!(kind, MisuseKind::Context { .. }));
    context.put(&target, &source, next, &stream)?;
    // The owner can be dropped, because the registration and the stream keep the memory alive.
    drop(source);
    checks.barrier()?;
    let found = target.to_vec(&stream)?;
    checks.same("register_local", &found, |_| previous + 5);
    drop(registered);
    context.free(target)?;
    Ok(())
}
