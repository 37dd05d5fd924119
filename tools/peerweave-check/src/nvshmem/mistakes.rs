//! Checks that misuse returns a typed error before NVSHMEM is called, and that later correct calls
//! work.

use std::sync::Arc;

use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::{DeviceMemory, DriverError};
use peerweave_nvshmem::{
    Context, MisuseKind, NvshmemError, Settings, Signal, Strides, SymmetricBuffer, TeamConfig, TeamId, UniqueId,
};
use peerweave_types::{Compare, Pe, Rank, ReduceOp, SignalOp};

use crate::Failure;
use crate::nvshmem::scenarios::Checks;

pub(crate) fn run(checks: &mut Checks<'_>) -> Result<(), Failure> {
    let buffer = checks.context.alloc_zeroed::<f32>(8)?;
    let words = checks.context.alloc_zeroed::<u64>(2)?;
    numbers_of_pes(checks, &buffer, &words);
    ranges(checks, &buffer, &words)?;
    overlaps(checks, &buffer, &words)?;
    collectives(checks, &buffer)?;
    captures(checks, &buffer, &words)?;
    devices(checks, &buffer)?;
    memory(checks)?;
    teams(checks)?;
    starts(checks)?;
    absent(checks, &words)?;
    // The refused calls have not affected the context.
    checks.barrier()?;
    checks.context.free(buffer)?;
    checks.context.free(words)?;
    Ok(())
}

/// Checks that calls with a PE that does not exist are refused.
fn numbers_of_pes(checks: &mut Checks<'_>, buffer: &SymmetricBuffer<f32>, words: &SymmetricBuffer<u64>) {
    let (context, stream, beyond) = (checks.context, Arc::clone(&checks.stream), Pe::new(checks.n()));
    let strides = Strides { count: 2, source: 1, dest: 1 };
    let signal = Signal { word: words, value: 1, op: SignalOp::Add };
    let last = Pe::new(u32::MAX);
    let calls: [(&'static str, Result<(), NvshmemError>); 18] = [
        ("put", context.put(buffer, buffer, beyond, &stream)),
        ("put to PE u32::MAX", context.put(buffer, buffer, last, &stream)),
        ("put_nbi", context.put_nbi(buffer, buffer, beyond, &stream)),
        ("put_blocking", context.put_blocking(buffer, buffer, beyond)),
        ("get", context.get(&mut buffer.clone(), buffer, beyond, &stream)),
        ("get_nbi", context.get_nbi(buffer, buffer, beyond, &stream)),
        ("get_blocking", context.get_blocking(buffer, buffer, beyond)),
        ("put_strided", context.put_strided(buffer, buffer, strides, beyond, &stream)),
        ("get_strided", context.get_strided(buffer, buffer, strides, beyond, &stream)),
        ("put_value", context.put_value(buffer, 1.0, beyond, &stream)),
        ("get_value", context.get_value_blocking(buffer, beyond).map(drop)),
        ("put_signal", context.put_signal(buffer, buffer, &signal, beyond, &stream)),
        ("put_signal_nbi", context.put_signal_nbi(buffer, buffer, &signal, beyond, &stream)),
        ("signal", context.signal(&signal, beyond, &stream)),
        ("atomic_add", context.atomic_add(words, 1, beyond, &stream)),
        ("atomic_inc", context.atomic_inc(words, beyond, &stream)),
        ("atomic_set", context.atomic_set(words, 1, beyond, &stream)),
        ("peer_address", buffer.peer_address(beyond).map(drop)),
    ];
    for (call, result) in calls {
        checks.refused(call, result, |kind| matches!(kind, MisuseKind::Pe { .. }));
    }
}

/// Checks that calls with wrong lengths and ranges are refused.
fn ranges(checks: &mut Checks<'_>, buffer: &SymmetricBuffer<f32>, words: &SymmetricBuffer<u64>) -> Result<(), Failure> {
    let (context, stream, next) = (checks.context, Arc::clone(&checks.stream), checks.next());
    let (half, none) = (buffer.slice(0..4)?, buffer.slice(3..3)?);
    let outside = DeviceMemory::<f32>::from_slice(&stream, &[0.0; 7])?;
    let no_word = words.slice(1..1)?;
    let signal = Signal { word: &no_word, value: 1, op: SignalOp::Set };
    let lengths: [(&'static str, Result<(), NvshmemError>); 12] = [
        ("put", context.put(buffer, &half, next, &stream)),
        ("put with a source that is shorter than the target", context.put(buffer, &outside, next, &stream)),
        ("put_nbi", context.put_nbi(buffer, &half, next, &stream)),
        ("put_blocking", context.put_blocking(&half, buffer, next)),
        ("get", context.get(&mut half.clone(), buffer, next, &stream)),
        ("put_signal", context.put_signal(&half, buffer, &signal, next, &stream)),
        ("a signal without a signal word", context.signal(&signal, next, &stream)),
        ("a wait for zero words", context.signal_wait(&no_word, Compare::Eq, 1, &stream)),
        ("get of a single value from an empty slice", context.get_value_blocking(&none, next).map(drop)),
        ("put of a single value to an empty slice", context.put_value(&none, 1.0, next, &stream)),
        ("copy_from", buffer.copy_from(&stream, &[0.0; 9])),
        ("a unique id of 127 bytes", UniqueId::try_from([0; 127].as_slice()).map(drop)),
    ];
    for (call, result) in lengths {
        checks.refused(call, result, |kind| matches!(kind, MisuseKind::Length { .. }));
    }
    let strided = |dest, source, count| context.put_strided(buffer, buffer, Strides { count, source, dest }, next, &stream);
    let outside: [(&'static str, Result<(), NvshmemError>); 5] = [
        ("a slice beyond the end of a buffer", buffer.slice(4..9).map(drop)),
        ("a slice beyond the end of another slice", half.slice(0..5).map(drop)),
        ("a strided put whose last target element is out of range", strided(4, 1, 3)),
        ("a strided put whose last source element is out of range", strided(1, 4, 3)),
        ("a stride that overflows", strided(usize::MAX, 1, 3)),
    ];
    for (call, result) in outside {
        checks.refused(call, result, |kind| matches!(kind, MisuseKind::OutOfRange { .. }));
    }
    #[allow(clippy::reversed_empty_ranges, reason = "the slice with a reversed range must be refused")]
    checks
        .refused("a slice that ends before it begins", buffer.slice(3..2), |kind| matches!(kind, MisuseKind::OutOfRange { .. }));
    checks.refused("a stride of zero", strided(0, 1, 2), |kind| matches!(kind, MisuseKind::Value { .. }));
    let odd = buffer.slice(1..8)?;
    checks.refused("elements that are not aligned", odd.cast::<f64>(), |kind| matches!(kind, MisuseKind::Value { .. }));
    // A length of 0 is allowed.
    checks.check(
        "put of 0 elements",
        context.put(&none, &none, next, &stream).is_ok() && none.to_vec(&stream)?.is_empty(),
        || {
            "the put failed or to_vec returned elements, expected that the put succeeds and that to_vec returns no elements"
                .to_owned()
        },
    );
    Ok(())
}

/// Checks that calls are refused if source and target overlap in the memory of this PE.
fn overlaps(checks: &mut Checks<'_>, buffer: &SymmetricBuffer<f32>, words: &SymmetricBuffer<u64>) -> Result<(), Failure> {
    let (context, stream, own) = (checks.context, Arc::clone(&checks.stream), checks.context.pe());
    let (low, high) = (buffer.slice(0..5)?, buffer.slice(3..8)?);
    let strides = Strides { count: 3, source: 1, dest: 2 };
    let (first, both) = (words.slice(0..1)?, words.clone());
    let inside = Signal { word: &first, value: 1, op: SignalOp::Add };
    let calls: [(&'static str, Result<(), NvshmemError>); 9] = [
        ("put", context.put(&low, &high, own, &stream)),
        ("put of a slice onto the same slice", context.put(&low, &low, own, &stream)),
        ("put_nbi", context.put_nbi(&high, &low, own, &stream)),
        ("put_blocking", context.put_blocking(&high, &low, own)),
        ("get", context.get(&mut low.clone(), &high, own, &stream)),
        ("get_nbi", context.get_nbi(&high, &low, own, &stream)),
        ("get_blocking", context.get_blocking(&high, &low, own)),
        ("put_strided", context.put_strided(buffer, &high, strides, own, &stream)),
        ("a signal word inside the source of a put", context.put_signal(&both, &both, &inside, checks.next(), &stream)),
    ];
    for (call, result) in calls {
        checks.refused(call, result, |kind| matches!(kind, MisuseKind::Overlap { .. }));
    }
    Ok(())
}

fn collectives(checks: &mut Checks<'_>, buffer: &SymmetricBuffer<f32>) -> Result<(), Failure> {
    let (context, stream, n) = (checks.context, Arc::clone(&checks.stream), checks.n());
    let world = context.world();
    let (low, high, half) = (buffer.slice(0..5)?, buffer.slice(3..8)?, buffer.slice(0..4)?);
    let integers = buffer.cast::<u32>()?;
    checks.refused("a sum whose target overlaps its source", world.reduce(&low, &high, ReduceOp::Sum, &stream), |kind| {
        matches!(kind, MisuseKind::Overlap { .. })
    });
    checks.refused("a broadcast whose target overlaps its source", world.broadcast(&low, &low, Rank::new(0), &stream), |kind| {
        matches!(kind, MisuseKind::Overlap { .. })
    });
    for (op, result) in [
        ("a bitwise reduction of floats", world.reduce(&low, &low, ReduceOp::Xor, &stream)),
        ("a mean of floats", world.reduce(&low, &low, ReduceOp::Avg, &stream)),
        ("a mean of integers", world.reduce(&integers, &integers, ReduceOp::Avg, &stream)),
    ] {
        checks.refused(op, result, |kind| matches!(kind, MisuseKind::Reduction { .. }));
    }
    checks.refused("a root that does not exist", world.broadcast(&half, &buffer.slice(4..8)?, Rank::new(n), &stream), |kind| {
        matches!(kind, MisuseKind::Rank { .. })
    });
    let wrong = context.alloc::<f32>(4 * n as usize + 1)?;
    let lengths = [
        ("broadcast", world.broadcast(&low, &half, Rank::new(0), &stream)),
        ("fcollect", world.fcollect(&wrong, &half, &stream)),
        ("alltoall", world.alltoall(&wrong, buffer, &stream)),
        ("reduce", world.reduce(&half, &low, ReduceOp::Sum, &stream)),
        ("reduce_scatter", world.reduce_scatter(&half, &wrong, ReduceOp::Sum, &stream)),
    ];
    for (call, result) in lengths {
        checks.refused(call, result, |kind| matches!(kind, MisuseKind::Length { .. }));
    }
    context.free(wrong)?;
    Ok(())
}

/// Checks calls that a graph cannot contain. During a capture these calls must be refused, and the
/// capture must stay valid. One of these calls borrows memory, which a graph could not keep alive.
fn captures(checks: &mut Checks<'_>, buffer: &SymmetricBuffer<f32>, words: &SymmetricBuffer<u64>) -> Result<(), Failure> {
    let (context, stream, next) = (checks.context, Arc::clone(&checks.stream), checks.next());
    let borrowed = stream.alloc_zeros::<f32>(8)?;
    let set = Signal { word: words, value: 1, op: SignalOp::Set };
    stream.synchronize()?;
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let refused: [(&'static str, Result<(), NvshmemError>); 7] = [
        ("put_nbi", context.put_nbi(buffer, buffer, next, &stream)),
        ("get_nbi", context.get_nbi(buffer, buffer, next, &stream)),
        ("put_value", context.put_value(buffer, 1.0, next, &stream)),
        ("signal with SignalOp::Set", context.signal(&set, next, &stream)),
        ("put_signal with SignalOp::Set", context.put_signal(buffer, buffer, &set, next, &stream)),
        ("put_signal_nbi", context.put_signal_nbi(buffer, buffer, &set, next, &stream)),
        ("put of borrowed memory", context.put(buffer, &borrowed, next, &stream)),
    ];
    let copies = [buffer.to_vec(&stream).map(drop), buffer.copy_from(&stream, &[0.0; 8])];
    let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    for (call, result) in refused {
        checks.refused(call, result, |kind| matches!(kind, MisuseKind::Context { .. }));
    }
    for result in copies {
        let right = matches!(result, Err(NvshmemError::Cuda(DriverError::Capturing { .. })));
        checks
            .check("refused", right, || format!("a copy during a stream capture returned {result:?}, expected a capture error"));
    }
    checks.check("refused", graph.is_ok(), || format!("the capture was invalidated: {:?}", graph.as_ref().err()));
    drop(graph);
    Ok(())
}

/// Checks that streams and memory of another device are refused, if the machine has a second
/// device.
fn devices(checks: &mut Checks<'_>, buffer: &SymmetricBuffer<f32>) -> Result<(), Failure> {
    let (context, next) = (checks.context, checks.next());
    let own = context.device().ordinal();
    if peerweave_driver::Driver::get()?.device_count()? < 2 {
        return Ok(());
    }
    let other = peerweave_driver::context(if own == 0 { 1 } else { 0 })?;
    let stream = other.new_stream()?;
    let mut memory = DeviceMemory::<f32>::from_slice(&stream, &[0.0; 8])?;
    context.device().bind_to_thread()?;
    let calls: [(&'static str, Result<(), NvshmemError>); 7] = [
        ("a put on a stream of another device", context.put(buffer, buffer, next, &stream)),
        ("a barrier on a stream of another device", context.world().barrier(&stream)),
        ("a copy on a stream of another device", buffer.copy_from(&stream, &[0.0; 8])),
        ("a put from memory of another device", context.put(buffer, &memory, next, &checks.stream)),
        ("a get to memory of another device", context.get(&mut memory, buffer, next, &checks.stream)),
        ("registering memory of another device", context.register_local(&memory).map(drop)),
        ("quiet", context.quiet(&stream)),
    ];
    for (call, result) in calls {
        checks.refused(call, result, |kind| matches!(kind, MisuseKind::Device { .. }));
    }
    let result = context.world().barrier(&context.device().per_thread_stream());
    checks.check("refused", result.is_err(), || {
        "a barrier on the per-thread default stream succeeded, expected an error".to_owned()
    });
    Ok(())
}

/// Checks allocation: alignment, zeroed memory, and sizes that differ among PEs. Also checks an
/// attempt to free memory that is in use.
fn memory(checks: &mut Checks<'_>) -> Result<(), Failure> {
    let (context, stream) = (checks.context, Arc::clone(&checks.stream));
    let zeros = context.alloc_zeroed::<u32>(1003)?;
    let found = zeros.to_vec(&stream)?;
    checks.same("zeroed", &found, |_| 0);
    let aligned = context.alloc_aligned::<u8>(4096, 10)?;
    checks.check("aligned", aligned.address().is_multiple_of(4096), || format!("{aligned:?}"));
    for pe in 0..checks.n() {
        let address = zeros.peer_address(Pe::new(pe))?;
        checks.check("peer_address", address.is_some(), || format!("the memory of PE {pe} is not mapped, expected an address"));
    }
    let empty = context.alloc::<f64>(0)?;
    checks.check("empty", empty.is_empty() && empty.to_vec(&stream)?.is_empty(), || format!("{empty:?}"));
    for alignment in [0, 3, 4] {
        checks
            .refused("an alignment", context.alloc_aligned::<u8>(alignment, 1), |kind| matches!(kind, MisuseKind::Value { .. }));
    }
    let large = context.alloc::<u64>(usize::MAX / 4);
    checks.check(
        "an allocation that is too large",
        matches!(large, Err(NvshmemError::Cuda(DriverError::TooLarge { .. }))),
        || format!("{large:?}"),
    );
    if checks.n() > 1 {
        // If the sizes differ, NVSHMEM is not called, so the heaps of all PEs stay equal.
        let differ = context.alloc::<u8>(100 + checks.pe() as usize);
        checks.check("disagree", matches!(differ, Err(NvshmemError::Disagree(_))), || format!("{differ:?}"));
    }
    // One PE has another handle of the memory, so no PE frees it, and every PE gets an error. The
    // memory is leaked: the last `finalize` of the run reports and frees it.
    let shared = context.alloc::<u8>(64)?;
    let second = (checks.pe() == 0).then(|| shared.clone());
    let refused = context.free(shared);
    match second {
        Some(second) => {
            checks.refused("freeing memory that has another handle", refused, |kind| matches!(kind, MisuseKind::InUse { .. }));
            drop(second);
        }
        None => checks.check("disagree", matches!(refused, Err(NvshmemError::Disagree(_))), || format!("{refused:?}")),
    }
    let parts = zeros.slice(0..10)?;
    let report = context.clone().finalize()?;
    checks.check("finalize reports one handle that still exists", report.other_handles == 1 && report.leaked.is_empty(), || {
        format!("{report:?}")
    });
    drop(parts);
    context.free(zeros)?;
    context.free(aligned)?;
    context.free(empty)?;
    Ok(())
}

fn teams(checks: &mut Checks<'_>) -> Result<(), Failure> {
    let (context, n, own) = (checks.context, checks.n(), checks.context.pe());
    let world = context.world();
    let split = |start, stride, count| world.split_strided(start, stride, count, TeamConfig::default()).map(drop);
    let id = TeamId::from_u64(77);
    let of = |id, members: &[Pe]| context.team_of(id, members, TeamConfig::default()).map(drop);
    let everybody: Vec<Pe> = (0..n).map(Pe::new).collect();
    let nobody_else: Vec<Pe> = everybody.iter().copied().filter(|pe| *pe != own).collect();
    let values = [
        ("a team without members", split(0, 1, 0)),
        ("a stride of zero", split(0, 0, 1)),
        ("a two-dimensional split with rows of 0 members", world.split_2d(0, TeamConfig::default()).map(drop)),
        ("a team without the calling PE", of(id, &nobody_else)),
        ("a team with the same PE twice", of(id, &[own, own])),
    ];
    for (call, result) in values {
        checks.refused(call, result, |kind| matches!(kind, MisuseKind::Value { .. }));
    }
    for (call, result) in [
        ("a team whose first member does not exist", split(n, 1, 1)),
        ("a team whose last member does not exist", split(0, n as i32, 2)),
    ] {
        checks.refused(call, result, |kind| matches!(kind, MisuseKind::Rank { .. }));
    }
    checks.refused("a team with a PE that does not exist", of(id, &[own, Pe::new(n)]), |kind| {
        matches!(kind, MisuseKind::Pe { .. })
    });
    checks.refused("a team id with a reserved value", of(TeamId::from_u64(u64::MAX), &everybody), |kind| {
        matches!(kind, MisuseKind::Text { .. })
    });
    checks.refused("pe_of for a rank that does not exist", world.pe_of(Rank::new(n)), |kind| {
        matches!(kind, MisuseKind::Rank { .. })
    });
    checks.refused("translate for a rank that does not exist", world.translate(Rank::new(n), &world), |kind| {
        matches!(kind, MisuseKind::Rank { .. })
    });
    checks.refused("destroying the world team", context.world().destroy(), |kind| matches!(kind, MisuseKind::Context { .. }));
    Ok(())
}

/// Checks that a second start of NVSHMEM with other settings is refused.
fn starts(checks: &mut Checks<'_>) -> Result<(), Failure> {
    let context = checks.context;
    let id = UniqueId::from_bytes([7; 128]);
    let other = Context::from_unique_id(id, context.pe(), context.n_pes(), context.device(), Settings::default());
    checks.refused("a second start with another bootstrap", other, |kind| {
        matches!(kind, MisuseKind::AlreadyInitialized { what: "the bootstrap", .. })
    });
    let other = Context::from_launcher(context.device(), Settings::default().variable("PATH", "x"));
    checks.refused("a setting of a variable whose name does not begin with NVSHMEM_", other, |kind| {
        matches!(kind, MisuseKind::Text { .. })
    });
    checks.check("current", Context::current().is_some_and(|current| current.pe() == context.pe()), || {
        "Context::current does not return the context of this PE".to_owned()
    });
    Ok(())
}

/// Checks calls of functions that the library lacks. These calls must return an error.
fn absent(checks: &mut Checks<'_>, words: &SymmetricBuffer<u64>) -> Result<(), Failure> {
    let context = checks.context;
    let flushed = [context.flush(&checks.stream), context.flush_blocking()];
    let has = context.library().has("nvshmemx_flush");
    for result in flushed {
        let right = if has { result.is_ok() } else { matches!(result, Err(NvshmemError::Unsupported(_))) };
        checks.check("flush", right, || format!("{result:?}"));
    }
    let multicast = words.multicast_address(&context.world());
    let off = peerweave_driver::multicast_switch().is_err();
    let right = if off { matches!(multicast, Err(NvshmemError::MulticastDisabled(_))) } else { multicast.is_ok() };
    checks.check("multicast", right, || format!("{multicast:?}"));
    Ok(())
}
