//! Checks communicators that are created from other communicators, by split, shrink or grow. Also
//! checks split and shrink of a revoked communicator.
//!
//! The death of a rank is checked elsewhere, by the option `--kill` of `check nccl`.

use std::time::Instant;

use peerweave_driver::DeviceMemory;
use peerweave_nccl::{Communicator, Config, DeadState, NcclError, Rank, ReduceOp, ShrinkMode, UniqueId, Version};

use super::{Outcome, Part};

/// Number of elements of the collective that cannot complete.
const LENGTH: usize = 1 << 20;

pub(super) fn shrink(part: &Part<'_>) -> Outcome {
    let (n, comm) = (part.ranks(), part.communicator(&Config::new())?);
    part.computes(&comm, "before shrink")?;
    halves(part, &comm, "split")?;
    if n > 1 {
        let staying = comm.rank().index() + 1 < n;
        // `ShrinkMode::Abort` may abort the work of the parent, so the parent is not used after the
        // loop.
        for mode in [ShrinkMode::Default, ShrinkMode::Abort] {
            part.step(&format!("shrink, {mode:?}"));
            let fewer = staying.then(|| comm.shrink(&[Rank::new((n - 1) as u32)], mode)).transpose()?;
            if let Some(fewer) = fewer {
                part.check(fewer.n_ranks() == n - 1 && fewer.rank() == comm.rank(), || format!("{fewer:?}"));
                part.computes(&fewer, "after shrink")?;
                fewer.finalize(super::DEADLINE)?;
            }
            part.meet()?;
        }
    } else {
        part.note("not run: shrink needs two GPUs");
    }
    part.step("abort");
    Ok(comm.abort(super::DEADLINE)?)
}

/// Splits the communicator into two: one of the even ranks and one of the odd ranks, each in
/// descending order of the old ranks. Checks the size, the rank and an all-reduce of the new
/// communicator that contains this rank.
fn halves(part: &Part<'_>, comm: &Communicator, what: &str) -> Outcome {
    part.step(&format!("{what}: splitting the ranks into even and odd ranks"));
    let (n, rank) = (comm.n_ranks(), comm.rank().index());
    let half = comm.split(Some((rank % 2) as u32), -(rank as i32))?;
    let Some(half) = half else {
        return Err(super::Failed("split with a color returned no communicator, expected a communicator".to_owned()));
    };
    let expected = (n - rank).div_ceil(2) - 1;
    let size = (n + 1 - rank % 2) / 2;
    part.check(half.n_ranks() == size, || format!("{what}: the new communicator is {half:?}, expected {size} ranks"));
    part.check(half.rank().index() == expected, || {
        format!("{what}: the new communicator is {half:?}, expected this rank to be rank {expected}")
    });
    part.computes(&half, what)?;
    Ok(half.finalize(super::DEADLINE)?)
}

pub(super) fn grow(part: &Part<'_>) -> Outcome {
    let n = part.ranks();
    if n < 2 {
        part.note("not run: grow needs two GPUs");
        return Ok(());
    }
    let few = part.communicator_of(n - 1, &Config::new())?;
    if let Some(few) = &few {
        part.computes(few, "before grow")?;
        part.refused("growing a communicator to its current number of ranks", few.grow(n - 1, None), |error| {
            error.misuse_kind().is_some()
        });
    }
    part.meet()?;
    part.step("the id");
    // Rank 0 of the smaller communicator creates the id, sends the id to the new rank, and passes
    // the id to `grow`.
    let id = few.as_ref().filter(|few| few.rank() == Rank::new(0)).map(Communicator::grow_id).transpose()?;
    let text = id.as_ref().map_or_else(String::new, |id| id.to_hex());
    let given: UniqueId = String::from_utf8_lossy(&part.exchange(text.as_bytes())?[0]).parse()?;
    part.step("grow and join");
    let all = match &few {
        Some(few) => few.grow(n, id.as_ref())?,
        None => Communicator::builder().nccl(part.nccl()).deadline(super::FIRST).join(
            &part.all.context,
            n,
            &given,
            Rank::new((n - 1) as u32),
        )?,
    };
    part.check(all.n_ranks() == n && all.rank() == Rank::new(part.rank() as u32), || format!("{all:?}"));
    part.computes(&all, "grown")?;
    part.step("finalize of the smaller communicator");
    few.map_or(Ok(()), |few| few.finalize(super::DEADLINE))?;
    // Observed on hardware: while a thread of the process still frees mapped memory, a kernel of
    // another thread must not wait for that thread.
    part.meet()?;
    part.computes(&all, "the grown communicator after finalize of its parent")?;
    part.meet()?;
    if part.rank() + 1 < n {
        part.step("shrink again");
        let fewer = all.shrink(&[Rank::new((n - 1) as u32)], ShrinkMode::Default)?;
        part.computes(&fewer, "after the second shrink")?;
        fewer.finalize(super::DEADLINE)?;
    }
    part.meet()?;
    halves(part, &all, "split of the grown communicator")?;
    part.step("finalize");
    Ok(all.finalize(super::DEADLINE)?)
}

fn is_revoked(error: &NcclError) -> bool {
    matches!(error, NcclError::Dead { state: DeadState::Revoked, .. })
}

pub(super) fn revoke(part: &Part<'_>) -> Outcome {
    let comm = part.communicator(&Config::new())?;
    part.computes(&comm, "before revoke")?;
    part.meet()?;
    part.step("revoke");
    comm.revoke()?;
    part.meet()?;
    after(part, &comm)
}

/// Checks which calls a revoked communicator accepts and which calls it refuses.
fn after(part: &Part<'_>, comm: &Communicator) -> Outcome {
    let n = comm.n_ranks();
    let mut values = DeviceMemory::from_slice(&part.stream, &[1.0f32; 4])?;
    let call = comm.all_reduce_in_place(&part.stream, &mut values, ReduceOp::Sum);
    part.refused("all_reduce after revoke", call, is_revoked);
    part.refused("finalize after revoke", comm.clone().finalize(super::DEADLINE), is_revoked);
    part.refused("revoke after revoke", comm.revoke(), |_| true);
    halves(part, comm, "split after revoke")?;
    part.meet()?;
    if n > 1 && comm.rank().index() + 1 < n {
        part.step("shrink after revoke");
        let fewer = comm.shrink(&[Rank::new((n - 1) as u32)], ShrinkMode::Default)?;
        part.computes(&fewer, "after shrink of a revoked communicator")?;
        fewer.finalize(super::DEADLINE)?;
    }
    part.meet()?;
    part.step("abort after revoke");
    Ok(comm.abort(super::DEADLINE)?)
}

/// Makes a collective call on rank 0 only, so that the call cannot complete. Then ends the call by
/// revoking the communicator.
pub(super) fn revoke_stuck(part: &Part<'_>) -> Outcome {
    if part.ranks() < 2 {
        part.note("not run: a call that waits for another rank needs two GPUs");
        return Ok(());
    }
    let comm = part.communicator(&Config::new())?;
    part.computes(&comm, "before the stuck call")?;
    part.meet()?;
    let mut values = DeviceMemory::from_slice(&part.stream, &vec![1.0f32; LENGTH])?;
    if comm.rank() == Rank::new(0) {
        part.step("a call that no other rank joins");
        comm.all_reduce_in_place(&part.stream, &mut values, ReduceOp::Sum)?;
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    part.meet()?;
    part.step("revoke");
    comm.revoke()?;
    let idle = peerweave_driver::wait(&part.stream, Instant::now() + super::DEADLINE)?;
    part.check(idle, || "after revoke, the stream was still busy at the deadline, expected an idle stream".to_owned());
    part.meet()?;
    after(part, &comm)?;
    if part.is_since("a new communicator after a stuck call", Version::new(2, 28, 7)) {
        let new = part.communicator(&Config::new())?;
        part.computes(&new, "the new communicator after a stuck call")?;
        new.finalize(super::DEADLINE)?;
    }
    Ok(())
}
