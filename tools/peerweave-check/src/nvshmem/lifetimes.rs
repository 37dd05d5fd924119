//! Checks lifetimes: drops in different orders, finalize with live objects, and restart. This part
//! runs after all other parts, because it finalizes NVSHMEM and starts it again.

use std::sync::Arc;

use peerweave_bootstrap::{Job, Rendezvous};
use peerweave_nvshmem::{Context, DeadState, MisuseKind, NvshmemError, Status, TeamConfig};
use peerweave_types::Pe;

use crate::Failure;
use crate::nvshmem::scenarios::Checks;
use crate::nvshmem::settings;

/// Runs the part `lifetimes` and returns the number of its checks.
pub(crate) fn run(job: &Job, rendezvous: &Arc<Rendezvous>) -> Result<usize, Failure> {
    let device = peerweave_driver::context(job.local_pe as usize)?;
    let start = || Context::from_rendezvous(rendezvous, &device, settings());

    let context = start()?;
    let mut checks = Checks::new(&context, rendezvous)?;
    let orphan = dropped_in_different_orders(&mut checks)?;
    counted(&mut checks, rendezvous, &start)?;
    let mut count = checks.finish()?;

    // Drops the context while a buffer lives: NVSHMEM keeps running, and no memory is lost.
    let (pe, n) = (context.pe().get(), context.n_pes());
    let old_team = context.world();
    drop(context);
    let context = Context::current().ok_or("dropping the context finalized NVSHMEM, expected it to keep running")?;
    let mut checks = Checks::new(&context, rendezvous)?;
    let stream = Arc::clone(context.stream());
    let (mine, theirs) = (orphan.slice(0..8)?, orphan.slice(8..16)?);
    mine.copy_from(&stream, &[pe; 8])?;
    context.put(&theirs, &mine, Pe::new((pe + 1) % n), &stream)?;
    drop((mine, theirs));
    context.world().barrier(&stream)?;
    let (found, previous) = (orphan.to_vec(&stream)?, checks.previous());
    checks.same("a buffer that outlives its context", &found[8..], |_| previous);
    count += checks.finish()?;
    // The last PE still has a handle of the buffer, so NVSHMEM is not finalised, and every PE gets
    // an error.
    let kept = (pe + 1 == n).then(|| orphan.clone());
    drop(orphan);
    let refused = context.finalize();
    let right = match &refused {
        Err(error @ NvshmemError::Misuse(_)) => kept.is_some() && matches!(error.misuse_kind(), Some(MisuseKind::InUse { .. })),
        Err(NvshmemError::Disagree(_)) => kept.is_none(),
        _ => false,
    };
    let context =
        Context::current().ok_or("NVSHMEM has ended although finalize was refused, expected NVSHMEM to keep running")?;
    let mut checks = Checks::new(&context, rendezvous)?;
    checks.check("finalize while one PE holds a buffer", right, || format!("{refused:?}"));
    drop(kept);
    context.world().barrier_blocking()?;
    count += checks.finish()?;

    let report = context.finalize()?;
    let bytes: Vec<usize> = report.leaked.iter().map(|leak| leak.bytes).collect();
    let in_order = report.leaked.windows(2).all(|pair| pair[0].allocation < pair[1].allocation);
    if bytes != LEFT || !in_order || report.other_handles != 0 {
        return Err(format!(
            "finalize reported {report:?}, expected leaks of {LEFT:?} bytes in the order of allocation, and no other handles"
        )
        .into());
    }

    // Handles of the first context are dead, and do not refer to the second context.
    let second = start()?;
    let mut checks = Checks::new(&second, rendezvous)?;
    let dead = old_team.barrier(second.stream());
    let right = matches!(&dead, Err(NvshmemError::Dead { state: DeadState::Finalized, .. }));
    checks.check("a team of a finalized context", right, || format!("{dead:?}"));
    let buffer = second.alloc_zeroed::<u32>(4)?;
    second.put_value(&buffer, pe + 1, Pe::new((pe + 1) % n), second.stream())?;
    second.world().barrier(second.stream())?;
    let (found, previous) = (buffer.to_vec(second.stream())?, checks.previous());
    checks.same("put after a second start of NVSHMEM", &found[..1], |_| previous + 1);
    second.free(buffer)?;
    count += checks.finish()?;
    let report = second.finalize()?;
    if !report.leaked.is_empty() {
        return Err(format!("the second finalize reported {report:?}, expected no leaked allocations").into());
    }
    Ok(count + 2)
}

/// Sizes, in bytes, of the allocations that the part `lifetimes` never frees, in the order of
/// allocation.
const LEFT: [usize; 6] = [100, 200, 300, 400, 64, 64];

/// Drops buffers and teams in a different order on each PE, while work that uses them is pending.
/// Returns a buffer. [`run`] drops the context while this buffer still exists.
fn dropped_in_different_orders(checks: &mut Checks<'_>) -> Result<peerweave_nvshmem::SymmetricBuffer<u32>, Failure> {
    let (context, stream, next) = (checks.context, Arc::clone(&checks.stream), checks.next());
    let mut parked = Vec::new();
    for bytes in &LEFT[..4] {
        parked.push(context.alloc::<u8>(*bytes)?);
    }
    let orphan = context.alloc::<u32>(16)?;
    let apart = context.alloc::<u8>(64)?;
    let mut teams = Vec::new();
    for _ in 0..2 {
        teams.push(
            context
                .world()
                .split_strided(0, 1, checks.n(), TeamConfig::default())?
                .ok_or("split_strided returned no team to a member")?,
        );
    }
    checks.barrier()?;
    for buffer in &parked {
        let half = buffer.len() / 2;
        context.put(&buffer.slice(0..half)?, &buffer.slice(half..2 * half)?, next, &stream)?;
    }
    for team in &teams {
        team.barrier(&stream)?;
    }
    let turn = checks.pe() as usize % parked.len();
    parked.rotate_left(turn);
    while let Some(buffer) = parked.pop() {
        drop(buffer);
    }
    let last = if checks.pe().is_multiple_of(2) { teams.remove(0) } else { teams.remove(1) };
    drop(last);
    drop(teams);
    // All PEs must free the same memory. Here the PEs pass different memory, so no PE frees any,
    // and both allocations are leaked until finalize.
    let error = if checks.pe() == 0 { context.free(apart).err() } else { context.free(orphan.clone()).err() };
    if checks.n() > 1 {
        let told = matches!(&error, Some(NvshmemError::Disagree(_) | NvshmemError::Misuse(_)));
        checks.check("PEs that free different allocations", told, || {
            format!("free returned the error {error:?}, expected Disagree or Misuse")
        });
    } else {
        checks.check("freeing", error.is_none(), || format!("{error:?}"));
        drop(context.alloc::<u8>(64)?);
    }
    // The dropped objects do not affect later allocations.
    let fresh = context.alloc_zeroed::<u64>(1000)?;
    let found = fresh.to_vec(&stream)?;
    checks.same("memory allocated after drops is zero", &found, |_| 0);
    context.free(fresh)?;
    checks.check("allocations kept until finalize", context.info().allocations == LEFT.len(), || format!("{:?}", context.info()));
    Ok(orphan)
}

/// Checks `finalize` of a second handle of the context: `finalize` must report that one other
/// handle exists, and must keep NVSHMEM running. Also checks that a second start with other
/// settings is refused.
fn counted(
    checks: &mut Checks<'_>,
    rendezvous: &Arc<Rendezvous>,
    start: &dyn Fn() -> Result<Context, NvshmemError>,
) -> Result<(), Failure> {
    let context = checks.context;
    let again = start()?;
    checks.check("a second handle of a context", again.pe() == context.pe(), || {
        format!("the second handle is {again:?}, expected a handle of {}", context.pe())
    });
    let report = again.finalize()?;
    checks.check("a second handle of a context", report.other_handles == 1, || {
        format!("finalize of the second handle reported {report:?}, expected one other handle")
    });
    checks.check("a second handle of a context", context.status()? == Status::Initialized, || {
        format!("after its second handle was finalized, the context has status {:?}, expected Initialized", context.status())
    });
    let other = Context::from_rendezvous(rendezvous, context.device(), settings().max_teams(9));
    checks.refused("a second start with other settings", other, |kind| {
        matches!(kind, MisuseKind::AlreadyInitialized { what: "the settings", .. })
    });
    Ok(())
}
