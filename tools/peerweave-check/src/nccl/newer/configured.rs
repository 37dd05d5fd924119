//! Checks collectives that have a configuration: each collective, in and out of place, with each
//! option. The calls are made alone and in groups, on windows and on other memory.
//!
//! These checks cannot observe the effect of an option inside NCCL. They verify that no option
//! changes the result.

use std::sync::Arc;
use std::time::Instant;

use peerweave_driver::{DeviceBufferMut, DeviceMemory};
use peerweave_nccl::{
    CollConfig, Communicator, Config, CtaPolicy, NcclError, NcclMem, Rank, ReduceOp, Switch, VendorOption, VendorValue, Version,
    WindowKind,
};

use super::windows::{alloc, window};
use super::{Outcome, Part, moved, pattern, sums};

const NO_CTAS: &str = "CTA policy zero";
/// Number of elements that each rank contributes to a call whose buffers are registered as windows.
const WINDOWED: usize = 1 << 18;

pub(super) fn all(part: &Part<'_>) -> Outcome {
    let comm = part.communicator(&Config::new())?;
    let option = |value| VendorOption { vendor: 12345, option: 1, value };
    let options = [
        ("nothing", CollConfig::new()),
        ("one CTA", CollConfig::new().max_ctas(1)),
        ("2 to 4 CTAs", CollConfig::new().min_ctas(2).max_ctas(4)),
        ("16 CTAs", CollConfig::new().min_ctas(16).max_ctas(16)),
        ("clusters of 1 CTA", CollConfig::new().cga_cluster_size(1)),
        ("clusters of 4 CTAs", CollConfig::new().cga_cluster_size(4)),
        ("CTA policy efficiency", CollConfig::new().cta_policy(CtaPolicy::Efficiency)),
        (NO_CTAS, CollConfig::new().cta_policy(CtaPolicy::Zero)),
        ("a tag", CollConfig::new().profiler_tag(42)),
        ("a preference for the ring algorithm", CollConfig::new().algorithms("ring").force_algorithms(Switch::Off)),
        ("a vendor option whose value is a number", CollConfig::new().vendor_option(option(VendorValue::Number(7)))),
        (
            "a vendor option whose value is a string",
            CollConfig::new().vendor_option(option(VendorValue::Text("seven".to_owned()))),
        ),
    ];
    let (mut send, mut recv) = (alloc::<f32>(part, comm.n_ranks() * 40_000)?, alloc::<f32>(part, comm.n_ranks() * 40_000)?);
    for (what, config) in &options {
        for grouped in [false, true] {
            for len in [5, 40_000] {
                part.step(&format!("calls with {len} elements: {what}{}", if grouped { ", grouped" } else { "" }));
                forms(part, &comm, config, what, grouped, len, &mut send, &mut recv)?;
            }
        }
    }
    part.step("on windows");
    let len = WINDOWED;
    let (mut send, mut recv) = (alloc::<f32>(part, comm.n_ranks() * len)?, alloc::<f32>(part, comm.n_ranks() * len)?);
    let windows = (window(&comm, &send, WindowKind::SYMMETRIC), window(&comm, &recv, WindowKind::SYMMETRIC));
    if windows.0.is_ok() && windows.1.is_ok() {
        for (what, config) in &options {
            part.step(&format!("calls on windows: {what}"));
            forms(part, &comm, config, what, false, len, &mut send, &mut recv)?;
        }
    }
    several_in_a_group(part, &comm)?;
    if part.is_since("launch completion events", Version::new(2, 32, 0)) {
        events(part, &comm)?;
    }
    mistakes(part, &comm)?;
    drop(windows);
    part.step("finalize");
    comm.finalize(super::DEADLINE)?;
    tell(part)
}

/// Runs each collective, in and out of place, with one configuration. Compares each result with the
/// result that the host computes.
#[allow(clippy::too_many_arguments, reason = "the two callers pass different configurations, lengths and buffers")]
fn forms(
    part: &Part<'_>,
    comm: &Communicator,
    config: &CollConfig,
    what: &str,
    grouped: bool,
    len: usize,
    send: &mut NcclMem<f32>,
    recv: &mut NcclMem<f32>,
) -> Outcome {
    let (n, rank, stream, root) = (comm.n_ranks(), comm.rank().index(), &part.stream, comm.n_ranks() - 1);
    let at_root = rank == root;
    let own = rank * len..(rank + 1) * len;
    // The elements that rank `from` sends to rank `to`.
    let addressed = |from: usize, to: usize| moved::<f32>(from * 7 + to, len);
    let row = |from: usize| (0..n).flat_map(|to| addressed(from, to)).collect::<Vec<f32>>();
    let gathered = || (0..n).flat_map(|from| moved::<f32>(from, len)).collect::<Vec<f32>>();

    macro_rules! issue {
        ($name:ident($($argument:expr),*)) => {
            if grouped {
                part.nccl().group(|group| group.with(config).$name(comm, stream, $($argument),*))
            } else {
                comm.with(config).$name(stream, $($argument),*)
            }
        };
    }
    // Writes `given` to the start of `send`, and zeros to the start of `recv`. Then makes the call,
    // and compares the start of `recv` with the expected elements, if there are any.
    macro_rules! apart {
        ($name:ident, $given:expr, $of:expr, $expected:expr, |$from:ident, $to:ident| $($argument:expr),*) => {{
            let (given, expected): (Vec<f32>, Option<Vec<f32>>) = ($given, $expected);
            let mut $from = send.slice(0..given.len())?;
            $from.copy_from(stream, &given)?;
            let mut $to = recv.slice(0..$of)?;
            $to.copy_from(stream, &vec![0.0; $of])?;
            issue!($name($($argument),*))?;
            part.wait(comm)?;
            if let Some(expected) = expected {
                part.same(&$to.to_vec(stream)?, &expected, || format!("{name} of {len} elements with {what}", name = stringify!($name)));
            }
        }};
    }
    macro_rules! in_place {
        ($name:ident, $given:expr, $range:expr, $expected:expr, |$both:ident| $($argument:expr),*) => {{
            let (given, expected): (Vec<f32>, Option<Vec<f32>>) = ($given, $expected);
            let mut $both = recv.slice(0..given.len())?;
            $both.copy_from(stream, &given)?;
            issue!($name($($argument),*))?;
            part.wait(comm)?;
            if let Some(expected) = expected {
                part.same(&$both.slice($range)?.to_vec(stream)?, &expected, || format!("{name} of {len} elements with {what}", name = stringify!($name)));
            }
        }};
    }

    let zeros = || vec![0.0f32; len];
    let sum = || sums::<f32>(n, 0..len);
    apart!(all_reduce, pattern(rank, len), len, Some(sum()), |from, to| &from, &mut to, ReduceOp::Sum);
    let sent = at_root.then_some(());
    apart!(
        broadcast,
        moved(rank, len),
        len,
        Some(moved(root, len)),
        |from, to| sent.map(|()| &from as _),
        &mut to,
        Rank::new(root as u32)
    );
    apart!(
        reduce,
        pattern(rank, len),
        len,
        Some(if at_root { sum() } else { zeros() }),
        |from, to| &from,
        sent.map(|()| &mut to as &mut dyn DeviceBufferMut<f32>),
        ReduceOp::Sum,
        Rank::new(root as u32)
    );
    apart!(all_gather, moved(rank, len), n * len, Some(gathered()), |from, to| &from, &mut to);
    apart!(reduce_scatter, pattern(rank, n * len), len, Some(sums(n, own.clone())), |from, to| &from, &mut to, ReduceOp::Sum);
    let column = || (0..n).flat_map(|from| addressed(from, rank)).collect::<Vec<f32>>();
    apart!(all_to_all, row(rank), n * len, Some(column()), |from, to| &from, &mut to);
    apart!(
        gather,
        moved(rank, len),
        n * len,
        at_root.then(gathered),
        // Ranks other than the root pass a buffer only for its offset in their windows: see
        // `gather`.
        |from, to| &from,
        Some(&mut to as &mut dyn DeviceBufferMut<f32>),
        Rank::new(root as u32)
    );
    apart!(
        scatter,
        row(rank),
        len,
        Some(addressed(root, rank)),
        |from, to| sent.map(|()| &from as _),
        &mut to,
        Rank::new(root as u32)
    );

    in_place!(all_reduce_in_place, pattern(rank, len), 0..len, Some(sum()), |both| &mut both, ReduceOp::Sum);
    in_place!(broadcast_in_place, moved(rank, len), 0..len, Some(moved(root, len)), |both| &mut both, Rank::new(root as u32));
    in_place!(
        reduce_in_place,
        pattern(rank, len),
        0..len,
        at_root.then(sum),
        |both| &mut both,
        ReduceOp::Sum,
        Rank::new(root as u32)
    );
    let mut mine = vec![0.0f32; n * len];
    mine[own.clone()].copy_from_slice(&moved::<f32>(rank, len));
    in_place!(all_gather_in_place, mine.clone(), 0..n * len, Some(gathered()), |both| &mut both);
    let scattered = Some(sums(n, own.clone()));
    in_place!(reduce_scatter_in_place, pattern(rank, n * len), own.clone(), scattered, |both| &mut both, ReduceOp::Sum);
    let given = if at_root { mine } else { moved(rank, len) };
    in_place!(gather_in_place, given, 0..n * len, at_root.then(gathered), |both| &mut both, Rank::new(root as u32));
    if what == NO_CTAS && len == WINDOWED {
        part.note("not run: in-place scatter on windows with CTA policy zero, because NCCL 2.32.3 refuses the call only on the root, and the other ranks hang");
        return Ok(());
    }
    let (given, place) = if at_root { (row(root), own) } else { (zeros(), 0..len) };
    in_place!(scatter_in_place, given, place, Some(addressed(root, rank)), |both| &mut both, Rank::new(root as u32));
    Ok(())
}

/// Checks one group of three calls: two calls with different options, and one call without options.
fn several_in_a_group(part: &Part<'_>, comm: &Communicator) -> Outcome {
    part.step("a group of calls with different configurations");
    let (n, rank, stream, len) = (comm.n_ranks(), comm.rank().index(), &part.stream, 10_000);
    let fresh = || DeviceMemory::from_slice(stream, &pattern::<f32>(rank, len));
    let (mut first, mut second, mut third) = (fresh()?, fresh()?, fresh()?);
    let (few, more) = (CollConfig::new().max_ctas(1), CollConfig::new().min_ctas(2).max_ctas(8).profiler_tag(9));
    part.nccl().group(|group| {
        group.with(&few).all_reduce_in_place(comm, stream, &mut first, ReduceOp::Sum)?;
        group.with(&more).all_reduce_in_place(comm, stream, &mut second, ReduceOp::Max)?;
        group.all_reduce_in_place(comm, stream, &mut third, ReduceOp::Sum)
    })?;
    part.wait(comm)?;
    let most: Vec<f32> = (0..len).map(|at| (0..n).map(|of| super::given(of, at)).max().unwrap_or(0) as f32).collect();
    part.same(&first.to_vec(stream)?, &sums(n, 0..len), || "the first call of a group".to_owned());
    part.same(&second.to_vec(stream)?, &most, || "the second call of a group".to_owned());
    part.same(&third.to_vec(stream)?, &sums(n, 0..len), || "the third call of a group".to_owned());
    Ok(())
}

/// Checks launch completion events, which complete when the kernels of a call have been launched.
fn events(part: &Part<'_>, comm: &Communicator) -> Outcome {
    part.step("launch completion events");
    let stream = &part.stream;
    for round in 0..3 {
        let event = Arc::new(part.all.context.new_event(None)?);
        let config = CollConfig::new().launch_completion_event(Arc::clone(&event));
        let mut values = DeviceMemory::from_slice(stream, &pattern::<f32>(comm.rank().index(), 1 << 16))?;
        comm.with(&config).all_reduce_in_place(stream, &mut values, ReduceOp::Sum)?;
        let beside = part.all.context.new_stream()?;
        beside.wait(&event)?;
        let reached = peerweave_driver::wait(&beside, Instant::now() + super::DEADLINE)?;
        part.check(reached, || format!("round {round}: the launch completion event did not complete"));
        part.wait(comm)?;
        part.same(&values.to_vec(stream)?, &sums(comm.n_ranks(), 0..1 << 16), || {
            format!("all_reduce with a completion event, round {round}")
        });
    }
    Ok(())
}

fn mistakes(part: &Part<'_>, comm: &Communicator) -> Outcome {
    part.step("mistakes");
    let mut values = DeviceMemory::from_slice(&part.stream, &pattern::<f32>(comm.rank().index(), 8))?;
    for (what, config) in [
        ("a min_ctas above max_ctas", CollConfig::new().min_ctas(5).max_ctas(4)),
        ("a max_ctas of zero", CollConfig::new().max_ctas(0)),
        ("clusters of nine CTAs", CollConfig::new().cga_cluster_size(9)),
        ("a tag reserved by NCCL", CollConfig::new().profiler_tag(1 << 63)),
    ] {
        let call = comm.with(&config).all_reduce_in_place(&part.stream, &mut values, ReduceOp::Sum);
        part.refused(what, call, |error| error.misuse_kind().is_some());
    }
    part.computes(comm, "after mistakes")
}

/// Checks options that only NCCL can validate, each on its own communicator, and prints the outcome
/// of each call. NCCL may accept or refuse an option, but all ranks must get the same answer. The
/// result of an accepted call must be right.
fn tell(part: &Part<'_>) -> Outcome {
    for (what, config) in [
        ("the default CTA policy", CollConfig::new().cta_policy(CtaPolicy::Default)),
        ("number of CTAs for NVLink switches (NVLS)", CollConfig::new().nvls_ctas(4)),
        ("more CTAs than the communicator allows", CollConfig::new().max_ctas(1000)),
        ("ring, forced", CollConfig::new().algorithms("ring")),
        ("a list of the algorithms tree and ring", CollConfig::new().algorithms("tree,ring")),
        ("the name of an unknown algorithm", CollConfig::new().algorithms("nonsense")),
    ] {
        part.step(what);
        let comm = part.communicator(&Config::new())?;
        let mut values = DeviceMemory::from_slice(&part.stream, &pattern::<f32>(comm.rank().index(), 1000))?;
        let call = comm.with(&config).all_reduce_in_place(&part.stream, &mut values, ReduceOp::Sum);
        let typed = matches!(&call, Ok(()) | Err(NcclError::Nccl(_) | NcclError::Misuse(_)));
        part.note(format!("{what}: {call:?}"));
        part.check(typed, || format!("{what}: {call:?}"));
        let all = part.exchange(&[u8::from(call.is_ok())])?;
        if all.iter().all(|is_ok| *is_ok == [1]) {
            part.wait(&comm)?;
            part.same(&values.to_vec(&part.stream)?, &sums(comm.n_ranks(), 0..1000), || what.to_owned());
        } else {
            part.check(all.iter().all(|is_ok| *is_ok == [0]), || {
                format!("{what}: the call succeeded on some ranks and failed on others")
            });
        }
        comm.abort(super::DEADLINE)?;
    }
    Ok(())
}
