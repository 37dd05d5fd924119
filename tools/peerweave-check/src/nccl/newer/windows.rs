//! Checks collectives on registered windows: in and out of place, on parts of windows, with several
//! types and sizes, and in graphs.
//!
//! `one_sided.rs` checks puts into windows. Every result is compared with the result that the host
//! computes, and the element after the result (the guard element) must not change.

use std::time::{Duration, Instant};

use peerweave_nccl::{Communicator, Config, CtaPolicy, NcclError, NcclMem, Rank, ReduceOp, Version, Window, WindowKind};
use peerweave_types::{bf16, f16};

use super::{Failed, Outcome, Part, given, moved, pattern, repeated, sums};
use crate::nccl::matrix::Sample;

const MIB: usize = 1 << 20;
/// Indices at which the used part of a window begins: the start of the window, a multiple of every
/// relevant alignment, and an odd index.
const STARTS: [usize; 3] = [0, 1024, 3];

/// Time limit for the checks of one size. If they take longer, larger sizes are skipped. Only a
/// fake library is this slow; GPUs are much faster.
const SLOW: Duration = Duration::from_secs(3);

pub(super) fn all(part: &Part<'_>) -> Outcome {
    let comm = part.communicator(&Config::new())?;
    if !of_type::<f32>(part, &comm, &[8, 1024, 100_000, MIB, 8 * MIB, 64 * MIB])? {
        part.note("not run: NCCL does not create windows on this machine");
        return Ok(comm.finalize(super::DEADLINE)?);
    }
    of_type::<bf16>(part, &comm, &[8, 1000, 64 << 10, 4 * MIB])?;
    of_type::<f16>(part, &comm, &[8, 1000, 64 << 10, 4 * MIB])?;
    part.step("kinds");
    kinds(part, &comm)?;
    part.step("graphs");
    graphs(part, &comm)?;
    part.step("finalize");
    comm.finalize(super::DEADLINE)?;
    // Uses copy engines instead of kernels, where copy engines can perform the operation.
    if part.is_since("the check of windows with CTA policy zero", Version::new(2, 28, 0)) {
        let comm = part.communicator(&Config::new().cta_policy(CtaPolicy::Zero))?;
        of_type::<f32>(part, &comm, &[8, 100_000, 8 * MIB])?;
        part.step("graphs with CTA policy zero");
        graphs(part, &comm)?;
        part.step("finalize with CTA policy zero");
        comm.finalize(super::DEADLINE)?;
    }
    Ok(())
}

/// Registers all of the memory as a window.
pub(super) fn window<T: Sample>(comm: &Communicator, memory: &NcclMem<T>, kind: WindowKind) -> Result<Window<T>, Failed> {
    Window::register(comm, memory, kind)?.ok_or_else(|| Failed("NCCL did not create a window".to_owned()))
}

/// Checks windows of one element type. `sizes` are the sizes to check, in bytes. Returns `false` if
/// NCCL does not create windows.
fn of_type<T: Sample>(part: &Part<'_>, comm: &Communicator, sizes: &[usize]) -> Result<bool, Failed> {
    part.step(&format!("windows of elements of type {}", T::DTYPE));
    let most = sizes.iter().max().map_or(0, |bytes| bytes / size_of::<T>());
    let room = most + STARTS[1] + 1;
    let (mut send, mut recv) = (alloc::<T>(part, room)?, alloc::<T>(part, room)?);
    let windows = (Window::register(comm, &send, WindowKind::SYMMETRIC)?, Window::register(comm, &recv, WindowKind::SYMMETRIC)?);
    let (Some(sending), Some(receiving)) = windows else { return Ok(false) };
    part.check((0..comm.n_ranks()).all(|rank| sending.len_of(Rank::new(rank as u32)).is_ok_and(|len| len == room)), || {
        "lengths".to_owned()
    });
    if part.nccl().has("ncclWinGetUserPtr") {
        part.check(sending.user_address()? == send.address(), || {
            "the address of a window differs from the address of its memory".to_owned()
        });
    }
    // NCCL 2.28.9 returns wrong elements for starts that are no multiple of 4 bytes.
    let whole_words = |start: usize| (start * size_of::<T>()).is_multiple_of(4);
    let parts_of_words = STARTS.into_iter().all(whole_words)
        || part.is_since("windows at offsets that are not multiples of 4 bytes", Version::new(2, 30, 7));
    let mut took = Duration::ZERO;
    for bytes in sizes {
        let slow = part.exchange(&[u8::from(took > SLOW)])?.contains(&vec![1]);
        if slow {
            part.note(format!(
                "not run: {bytes} bytes of type {}, because a smaller size took too long ({took:?} on rank 0)",
                T::DTYPE
            ));
            continue;
        }
        let (elements, began) = ((bytes / size_of::<T>()).max(1), Instant::now());
        let fits = |start: &usize| *start == 0 || elements < most || most < MIB;
        for start in STARTS.into_iter().filter(|start| fits(start) && (whole_words(*start) || parts_of_words)) {
            part.step(&format!("{elements} elements of type {} from index {start}", T::DTYPE));
            sized(part, comm, &mut send, &mut recv, elements, start)?;
        }
        took = began.elapsed();
    }
    part.step("deregister");
    sending.deregister(&part.stream, super::DEADLINE)?;
    receiving.deregister(&part.stream, super::DEADLINE)?;
    part.step("without windows");
    sized(part, comm, &mut send, &mut recv, 1024, 0)?;
    Ok(true)
}

pub(super) fn alloc<T: Sample>(part: &Part<'_>, len: usize) -> Result<NcclMem<T>, Failed> {
    Ok(NcclMem::alloc(part.nccl(), &part.all.context, len)?)
}

/// Fills `len` elements of `memory` from `start`, and one guard element after them. Returns handles
/// to the elements and to the guard element.
fn filled<T: Sample>(
    part: &Part<'_>,
    memory: &NcclMem<T>,
    start: usize,
    mut values: Vec<T>,
) -> Result<(NcclMem<T>, NcclMem<T>), Failed> {
    let len = values.len();
    values.push(T::number(3));
    let mut with_guard = memory.slice(start..start + len + 1)?;
    with_guard.copy_from(&part.stream, &values)?;
    Ok((memory.slice(start..start + len)?, with_guard))
}

/// Checks all-reduce, all-gather and reduce-scatter, in and out of place. An all-reduce has
/// `elements` elements. The other collectives divide this number by the number of ranks: each part
/// has the quotient, rounded down, but at least one element.
fn sized<T: Sample>(
    part: &Part<'_>,
    comm: &Communicator,
    send: &mut NcclMem<T>,
    recv: &mut NcclMem<T>,
    elements: usize,
    start: usize,
) -> Outcome {
    let (n, rank, stream) = (comm.n_ranks(), comm.rank().index(), &part.stream);
    let share = (elements / n).max(1);
    let what = |name: &str| format!("{name} of {elements} {} from index {start}", T::DTYPE);
    let finish = |name: &str, issued: Result<(), NcclError>, found: &NcclMem<T>, mut expected: Vec<T>| -> Outcome {
        issued?;
        part.wait(comm)?;
        expected.push(T::number(3));
        part.same(&found.to_vec(stream)?, &expected, || what(name));
        Ok(())
    };
    let zeros = |len: usize| vec![T::default(); len];

    let (from, _) = filled(part, send, start, pattern(rank, elements))?;
    let (mut to, found) = filled(part, recv, start, zeros(elements))?;
    finish("all_reduce", comm.all_reduce(stream, &from, &mut to, ReduceOp::Sum), &found, sums(n, 0..elements))?;
    let (mut both, found) = filled(part, recv, start, pattern(rank, elements))?;
    finish("all_reduce_in_place", comm.all_reduce_in_place(stream, &mut both, ReduceOp::Sum), &found, sums(n, 0..elements))?;

    let gathered: Vec<T> = (0..n).flat_map(|rank| moved::<T>(rank, share)).collect();
    let (from, _) = filled(part, send, start, moved(rank, share))?;
    let (mut to, found) = filled(part, recv, start, zeros(n * share))?;
    finish("all_gather", comm.all_gather(stream, &from, &mut to), &found, gathered.clone())?;
    let mut mine = zeros(n * share);
    mine[rank * share..][..share].copy_from_slice(&moved::<T>(rank, share));
    let (mut both, found) = filled(part, recv, start, mine)?;
    finish("all_gather_in_place", comm.all_gather_in_place(stream, &mut both), &found, gathered)?;

    let (from, _) = filled(part, send, start, pattern(rank, n * share))?;
    let (mut to, found) = filled(part, recv, start, zeros(share))?;
    let expected = sums(n, rank * share..(rank + 1) * share);
    finish("reduce_scatter", comm.reduce_scatter(stream, &from, &mut to, ReduceOp::Sum), &found, expected)?;
    let (mut both, _) = filled(part, recv, start, pattern(rank, n * share))?;
    comm.reduce_scatter_in_place(stream, &mut both, ReduceOp::Sum)?;
    part.wait(comm)?;
    let own = both.slice(rank * share..(rank + 1) * share)?.to_vec(stream)?;
    part.same(&own, &sums(n, rank * share..(rank + 1) * share), || what("reduce_scatter_in_place"));
    Ok(())
}

/// Checks windows whose kind is not symmetric, windows of a part of an allocation, and windows
/// whose lengths differ among ranks.
fn kinds(part: &Part<'_>, comm: &Communicator) -> Outcome {
    let mut kinds = vec![WindowKind::DEFAULT, WindowKind::SYMMETRIC];
    if part.is_since("strict ordering", Version::new(2, 29, 7)) {
        kinds.push(WindowKind::SYMMETRIC.and(WindowKind::STRICT_ORDERING));
    }
    let len = 3 * MIB / 4;
    for kind in kinds {
        let memory = alloc::<f32>(part, len + 1024)?;
        // The range starts at the second page.
        let mut inside = memory.slice(1024..len + 1024)?;
        let registered = window(comm, &inside, kind)?;
        inside.copy_from(&part.stream, &pattern(comm.rank().index(), len))?;
        comm.all_reduce_in_place(&part.stream, &mut inside, ReduceOp::Sum)?;
        part.wait(comm)?;
        part.same(&inside.to_vec(&part.stream)?, &sums(comm.n_ranks(), 0..len), || {
            format!("all_reduce on a window of kind {kind:?}")
        });
        registered.deregister(&part.stream, super::DEADLINE)?;
    }
    // Earlier versions require the same length on every rank.
    if part.is_since("windows of different lengths", Version::new(2, 31, 0)) {
        let lens = |rank: usize| 1024 + rank * MIB;
        let memory = alloc::<f32>(part, lens(comm.rank().index()))?;
        let registered = window(comm, &memory, WindowKind::SYMMETRIC)?;
        let right = (0..comm.n_ranks()).all(|rank| registered.len_of(Rank::new(rank as u32)).is_ok_and(|len| len == lens(rank)));
        part.check(right, || "len_of differs from the registered length for at least one rank".to_owned());
        let mut first = memory.slice(0..1024)?;
        first.copy_from(&part.stream, &pattern(comm.rank().index(), 1024))?;
        comm.all_reduce_in_place(&part.stream, &mut first, ReduceOp::Sum)?;
        part.wait(comm)?;
        part.same(&first.to_vec(&part.stream)?, &sums(comm.n_ranks(), 0..1024), || "windows of different lengths".to_owned());
        registered.deregister(&part.stream, super::DEADLINE)?;
    }
    Ok(())
}

/// Checks a graph with an all-reduce, an all-gather and a reduce-scatter. Launches the graph
/// repeatedly with different values.
fn graphs(part: &Part<'_>, comm: &Communicator) -> Outcome {
    let (n, rank, stream) = (comm.n_ranks(), comm.rank().index(), &part.stream);
    for share in [33, 1 << 16] {
        let len = n * share;
        let (mut send, recv) = (alloc::<f32>(part, len)?, alloc::<f32>(part, 3 * len)?);
        let windows = (window(comm, &send, WindowKind::SYMMETRIC)?, window(comm, &recv, WindowKind::SYMMETRIC)?);
        let own = send.slice(rank * share..(rank + 1) * share)?;
        let (mut sum, mut all, mut part_of) =
            (recv.slice(0..len)?, recv.slice(len..2 * len)?, recv.slice(2 * len..2 * len + share)?);
        let graph = part.capture(|| {
            comm.all_reduce(stream, &send, &mut sum, ReduceOp::Sum)?;
            comm.all_gather(stream, &own, &mut all)?;
            comm.reduce_scatter(stream, &send, &mut part_of, ReduceOp::Sum)
        })?;
        for round in 0..3 {
            let given_now = |of: usize| repeated::<f32>(0..len, |index| f32::number(given(of + round, index)));
            send.copy_from(stream, &given_now(rank))?;
            part.meet()?;
            graph.launch()?;
            part.wait(comm)?;
            let mut expected = vec![0.0; len];
            for of in 0..n {
                expected.iter_mut().zip(given_now(of)).for_each(|(sum, given)| *sum += given);
            }
            let gathered: Vec<f32> = (0..n).flat_map(|of| given_now(of)[of * share..(of + 1) * share].to_vec()).collect();
            part.same(&sum.to_vec(stream)?, &expected, || format!("captured all_reduce of {len} elements, round {round}"));
            part.same(&all.to_vec(stream)?, &gathered, || format!("captured all_gather of {share} elements, round {round}"));
            let mine = &expected[rank * share..(rank + 1) * share];
            part.same(&part_of.to_vec(stream)?, mine, || format!("captured reduce_scatter of {share} elements, round {round}"));
        }
        drop(graph);
        // The driver releases the windows of a destroyed graph asynchronously, so windows that are
        // still registered are not an error.
        drop(windows);
    }
    Ok(())
}
