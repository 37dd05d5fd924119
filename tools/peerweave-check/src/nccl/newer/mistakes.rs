//! Checks misuse: each call returns a typed error, nothing is enqueued, and the communicator works
//! afterwards. Misuse that NCCL detects, but `peerweave-nccl` does not, is checked last. Each of
//! these checks has its own communicator, because NCCL keeps the error in the communicator.

use std::sync::Arc;

use peerweave_driver::DeviceMemory;
use peerweave_nccl::{
    Communicator, Config, DeadState, MisuseKind, NcclError, NcclMem, Rank, Signal, SignalWait, Window, WindowKind,
};

use super::windows::{alloc, window};
use super::{Outcome, Part};

const LEN: usize = 4096;

fn is_misuse(error: &NcclError) -> bool {
    error.misuse_kind().is_some()
}

pub(super) fn all(part: &Part<'_>) -> Outcome {
    let (comm, other) = (part.communicator(&Config::new())?, part.communicator(&Config::new())?);
    let memory = alloc::<f32>(part, 2 * LEN)?;
    let Some(registered) = Window::register(&comm, &memory, WindowKind::SYMMETRIC)? else {
        part.note("not run: NCCL does not create windows on this machine");
        return Ok(());
    };
    part.step("registering");
    let odd = memory.slice(1..LEN)?;
    part.refused("registering a window that is not aligned", Window::register(&comm, &odd, WindowKind::SYMMETRIC), is_misuse);
    let nothing = memory.slice(0..0)?;
    part.refused("registering a window without elements", Window::register(&comm, &nothing, WindowKind::SYMMETRIC), is_misuse);
    part.refused("len_of for a rank that does not exist", registered.len_of(Rank::new(comm.n_ranks() as u32)), is_misuse);
    if part.has("misuse of puts", "ncclPutSignal") {
        puts(part, &comm, &other, &memory, &registered);
    }
    part.computes(&comm, "after mistakes")?;
    part.meet()?;
    dead(part, comm, other, &memory, registered)?;
    nccls(part)?;
    part.step("a new communicator");
    let new = part.communicator(&Config::new())?;
    part.computes(&new, "a communicator created after misuse")?;
    Ok(new.finalize(super::DEADLINE)?)
}

fn puts(part: &Part<'_>, comm: &Communicator, other: &Communicator, memory: &NcclMem<f32>, registered: &Window<f32>) {
    part.step("puts");
    let (n, stream, signal) = (comm.n_ranks(), &part.stream, Signal::default());
    let source = match memory.slice(0..LEN) {
        Ok(source) => source,
        Err(error) => return part.check(false, || error.to_string()),
    };
    for offset in [LEN + 1, 2 * LEN, usize::MAX] {
        let put = comm.put_signal(stream, &source, Rank::new(0), registered, offset, signal);
        part.refused(&format!("a put to element {offset}"), put, |error| {
            matches!(error.misuse_kind(), Some(MisuseKind::Length { .. }))
        });
    }
    let is_rank = |error: &NcclError| matches!(error.misuse_kind(), Some(MisuseKind::Rank { .. }));
    for peer in [n, usize::MAX] {
        part.refused(
            "a put to a missing rank",
            comm.put_signal(stream, &source, Rank::new(peer as u32), registered, 0, signal),
            is_rank,
        );
        part.refused("a signal to a missing rank", comm.signal(stream, Rank::new(peer as u32), signal), is_rank);
        let wait = [SignalWait { peer: Rank::new(peer as u32), signal, count: 1 }];
        part.refused("a wait for a missing rank", comm.wait_signal(stream, &wait), is_rank);
    }
    part.refused("wait_signal with an empty list", comm.wait_signal(stream, &[]), is_misuse);
    let beyond = Signal { index: u32::MAX, context: 0 };
    part.refused("a signal with an invalid index", comm.signal(stream, Rank::new(0), beyond), is_misuse);
    part.refused(
        "a put to a window of another communicator",
        other.put_signal(stream, &source, Rank::new(0), registered, 0, signal),
        |error| matches!(error.misuse_kind(), Some(MisuseKind::WrongCommunicator { .. })),
    );
}

/// Checks calls on a window after an abort of its communicator, while the memory of the window is
/// still allocated.
fn dead(part: &Part<'_>, comm: Communicator, other: Communicator, memory: &NcclMem<f32>, registered: Window<f32>) -> Outcome {
    part.step("a window of an aborted communicator");
    comm.abort(super::DEADLINE)?;
    let is_aborted = |error: &NcclError| matches!(error, NcclError::Dead { state: DeadState::Aborted, .. });
    if part.nccl().has("ncclPutSignal") {
        let put = comm.put_signal(&part.stream, memory, Rank::new(0), &registered, 0, Signal::default());
        part.refused("put_signal after abort", put, is_aborted);
        part.refused("peer_pointer after abort", registered.peer_pointer(Rank::new(0), 0), is_aborted);
        part.refused("user_address after abort", registered.user_address(), is_aborted);
    }
    part.refused("registering a window after abort", Window::register(&comm, memory, WindowKind::SYMMETRIC), is_aborted);
    part.refused("deregister after abort", registered.deregister(&part.stream, super::DEADLINE), is_aborted);
    part.meet()?;
    part.computes(&other, "another communicator after the abort")?;
    part.step("finalize");
    Ok(other.finalize(super::DEADLINE)?)
}

/// Makes invalid calls that `peerweave-nccl` does not detect, and prints what NCCL returns for each
/// of them. NCCL may accept some of these calls.
fn nccls(part: &Part<'_>) -> Outcome {
    let stream = &part.stream;
    if part.nccl().has("ncclPutSignal") {
        type Call = fn(&Communicator, &Arc<peerweave_driver::CudaStream>) -> Result<(), NcclError>;
        let calls: [(&str, Call); 3] = [
            ("a signal index that was not requested", |comm, stream| {
                comm.signal(stream, Rank::new(0), Signal { index: 999, context: 0 })
            }),
            ("a signal context that was not requested", |comm, stream| {
                comm.signal(stream, Rank::new(0), Signal { index: 0, context: 999 })
            }),
            ("wait_signal with a SignalWait whose count is 0", |comm, stream| {
                comm.wait_signal(stream, &[SignalWait { peer: Rank::new(0), signal: Signal::default(), count: 0 }])
            }),
        ];
        for (what, call) in calls {
            part.step(what);
            let comm = part.communicator(&Config::new())?;
            let memory = alloc::<f32>(part, LEN)?;
            let registered = window(&comm, &memory, WindowKind::SYMMETRIC)?;
            part.refused(what, call(&comm, stream), |error| is_misuse(error) || matches!(error, NcclError::Nccl(_)));
            part.note(format!("state after {what}: {comm:?}, async_error {:?}", comm.async_error()));
            part.meet()?;
            drop(registered);
            comm.abort(super::DEADLINE)?;
        }
        part.step("a put with a source outside all windows");
        let comm = part.communicator(&Config::new())?;
        let memory = alloc::<f32>(part, LEN)?;
        let registered = window(&comm, &memory, WindowKind::SYMMETRIC)?;
        let outside = DeviceMemory::from_slice(stream, &[1.0f32; 16])?;
        let put = comm.put_signal(stream, &outside, comm.rank(), &registered, 0, Signal::default());
        let typed = matches!(&put, Ok(()) | Err(NcclError::Nccl(_) | NcclError::Misuse(_)));
        part.check(typed, || format!("put_signal with a source outside all windows returned {put:?}"));
        part.note(format!("put_signal with a source outside all windows returned {put:?}"));
        part.meet()?;
        drop(registered);
        comm.abort(super::DEADLINE)?;
    }
    part.step("registering a window of memory from the CUDA driver");
    let comm = part.communicator(&Config::new())?;
    let memory = DeviceMemory::from_slice(stream, &vec![1.0f32; 1 << 20])?;
    let aligned = memory.address().is_multiple_of(4096);
    let made = Window::register(&comm, &memory, WindowKind::SYMMETRIC);
    let typed = match &made {
        Ok(_) => true,
        Err(NcclError::Nccl(_)) => true,
        Err(error) => !aligned && is_misuse(error),
    };
    part.check(typed, || format!("registering a window of memory from the CUDA driver returned {made:?}"));
    part.note(format!("registering a window of memory from the CUDA driver returned {made:?}"));
    part.meet()?;
    drop(made);
    Ok(comm.abort(super::DEADLINE)?)
}
