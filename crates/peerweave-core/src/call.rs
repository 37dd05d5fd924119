//! Passes operations to the backend. All other files of this crate do so through this file. The
//! only check here is that the stream and the team of an operation belong to the same world.
//!
//! Invariant: `check/` has prepared every operation that passes through this file, except launches
//! of kernels. The safety arguments of this file use \[C1\], which check/mod.rs defines.
#![allow(unsafe_code)]

use crate::backend::{Keep, Op, Outcome, Submitted};
use crate::check::{self, Prepared};
use crate::shared::Shared;
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::Ticket;
use crate::{Error, Result};

/// Runs an operation on this thread, and returns when the operation has completed or failed.
#[inline(always)]
pub(crate) fn run(shared: &Shared, prepared: Prepared<'_>) -> Result<Outcome> {
    // SAFETY: [C1]: the memory belongs to the borrows and owners that `prepared` names. The borrows
    // and owners outlive this call, which returns when the operation is complete. If the operation
    // fails before its work has ended, `keep` returns clones of the owners. Slices that are written
    // are borrowed exclusively. Accesses to symmetric memory ([B4]) and to buffers ([P2]) are
    // defined even if other threads or PEs access the same bytes.
    unsafe { shared.backend.run(prepared.op(), &|| prepared.keep()) }
}

/// Like [`run`], but discards the outcome, and takes the closure `keep` from the caller. `keep`
/// returns clones of the owners of the operation's memory. The backend calls `keep` if its work may
/// outlast this call.
pub(crate) fn run_kept(shared: &Shared, prepared: &Prepared<'_>, keep: &dyn Fn() -> Keep) -> Result<()> {
    // SAFETY: [C1]: as in `run`; `keep` returns clones of the owners that the caller has.
    unsafe { shared.backend.run(prepared.op(), keep) }.map(drop)
}

/// Like [`run`], but discards the outcome, for operations that have no result.
#[inline(always)]
pub(crate) fn run_unit(shared: &Shared, prepared: Prepared<'_>) -> Result<()> {
    match run(shared, prepared) {
        Ok(_) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// Returns the error unchanged. This cold function keeps error handling out of the hot path.
#[cold]
#[inline(never)]
fn failed(error: Error) -> Error {
    error
}

/// Enqueues an operation of a team, and returns the ticket of the operation. `decode` converts the
/// outcome to the result of the ticket. The stream holds the owners that `prepared` names. These
/// owners keep all memory of the operation alive, because the arguments of stream-ordered calls
/// (`StreamSource`, `StreamDest`) own their memory.
#[inline(always)]
pub(crate) fn submit<R>(
    call: &'static str,
    team: &Team,
    stream: &Stream,
    prepared: Prepared<'_>,
    decode: fn(Outcome) -> R,
) -> Result<Ticket<R>> {
    submit_checked(call, team, stream, &prepared, decode)
}

/// Like [`submit`]. Not inlined, so that this code is compiled once for each type of result instead
/// of once for each call in a program.
#[inline(never)]
fn submit_checked<R>(
    call: &'static str,
    team: &Team,
    stream: &Stream,
    prepared: &Prepared<'_>,
    decode: fn(Outcome) -> R,
) -> Result<Ticket<R>> {
    check::stream(call, team, stream)?;
    submit_on(stream, prepared, decode)
}

/// Enqueues an operation on a stream, and returns the ticket of the operation. The stream and the
/// operation must belong to the same world.
#[inline(always)]
pub(crate) fn submit_on<R>(stream: &Stream, prepared: &Prepared<'_>, decode: fn(Outcome) -> R) -> Result<Ticket<R>> {
    let submitted = enqueue(stream, prepared, &|| prepared.keep())?;
    Ok(Ticket::new(submitted, &stream.shared, decode))
}

/// Like [`submit_on`], but returns no ticket. To keep the memory alive, the stream holds the owners
/// that `keep` returns, not the owners in `prepared`.
#[inline(always)]
pub(crate) fn enqueue(stream: &Stream, prepared: &Prepared<'_>, keep: &dyn Fn() -> Keep) -> Result<Submitted> {
    // SAFETY: [C1]: the memory belongs to owners that the caller has. `keep` returns clones of
    // these owners, which the queue holds until the operation has completed or failed ([B6]). If
    // the operation is complete on return, the owners themselves have lived until then.
    unsafe { stream.inner.submit(prepared.op(), keep) }
}

/// Enqueues the kernel launch `op`, and returns the ticket of the launch. Unlike [`submit_on`],
/// takes an operation that `check/` has not prepared. `keep` returns the owners of the operation's
/// memory.
///
/// # Safety
/// The memory to which the kernel's arguments refer is valid until this call returns. The memory
/// also stays valid while a [`Keep`] that `keep` has returned exists.
pub(crate) unsafe fn launch<R>(stream: &Stream, op: &Op, keep: &dyn Fn() -> Keep, decode: fn(Outcome) -> R) -> Result<Ticket<R>> {
    // SAFETY: guaranteed by the caller.
    let submitted = unsafe { stream.inner.submit(op, keep) }?;
    Ok(Ticket::new(submitted, &stream.shared, decode))
}
