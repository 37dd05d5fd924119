//! Checks calls that return only when they are complete: puts and gets of single values, strided
//! transfers, and waits for several words with different expected values.

use std::sync::Arc;

use peerweave_driver::DeviceMemory;
use peerweave_nvshmem::{Context, NvshmemError, Strides};
use peerweave_types::{AtomicInteger, Compare, F8E4M3};

use crate::Failure;
use crate::nvshmem::oracle::{Reduce, Sample};
use crate::nvshmem::scenarios::Checks;

/// Number of elements in most transfers. The number is odd, so that a transfer in vectors of
/// several elements leaves a remainder.
const COUNT: usize = 301;

pub(crate) fn run(checks: &mut Checks<'_>) -> Result<(), Failure> {
    moved::<u8>(checks)?;
    moved::<F8E4M3>(checks)?;
    moved::<half::bf16>(checks)?;
    moved::<f32>(checks)?;
    moved::<i64>(checks)?;
    moved::<f64>(checks)?;
    each::<u32>(checks)?;
    each::<i64>(checks)
}

fn moved<T: Sample>(checks: &mut Checks<'_>) -> Result<(), Failure> {
    let (context, stream) = (checks.context, Arc::clone(&checks.stream));
    let (pe, next, previous) = (checks.pe(), checks.next(), checks.previous());
    let source = context.alloc::<T>(COUNT)?;
    let target = context.alloc::<T>(COUNT)?;
    source.copy_from(&stream, &(0..COUNT).map(|index| T::sample(pe, index)).collect::<Vec<_>>())?;
    let blank = vec![T::default(); COUNT];
    // Copies every third source element to every second target element.
    let count = COUNT / 3;
    let strides = Strides { count, source: 3, dest: 2 };
    let strided = |from: u32| {
        move |index: usize| {
            if index.is_multiple_of(2) && index / 2 < count { T::sample(from, index / 2 * 3) } else { T::default() }
        }
    };
    target.copy_from(&stream, &blank)?;
    checks.world.barrier_blocking()?;
    context.put_strided_blocking(&target, &source, strides, next)?;
    checks.world.barrier_blocking()?;
    let found = target.to_vec(&stream)?;
    checks.same("put_strided_blocking", &found, strided(previous));
    checks.world.barrier_blocking()?;
    target.copy_from(&stream, &blank)?;
    context.get_strided_blocking(&target, &source, strides, next)?;
    let found = target.to_vec(&stream)?;
    checks.same("get_strided_blocking", &found, strided(next.get()));
    checks.world.barrier_blocking()?;
    target.copy_from(&stream, &blank)?;
    checks.world.barrier_blocking()?;
    context.put_value_blocking(&target.slice(7..8)?, T::sample(pe, 11), next)?;
    checks.world.barrier_blocking()?;
    let found = target.to_vec(&stream)?;
    checks.same("put_value_blocking", &found, |index| if index == 7 { T::sample(previous, 11) } else { T::default() });
    let value = context.get_value(&source.slice(13..14)?, next, &stream)?;
    checks.same("get_value", &[value], |_| T::sample(next.get(), 13));
    // After a barrier that blocks the host, puts of the host and of streams are complete.
    type Barrier = fn(&Context) -> Result<(), NvshmemError>;
    let barriers: [(&'static str, Barrier); 2] = [
        ("barrier_blocking after put_blocking", |context| context.world().barrier_blocking()),
        ("barrier_all_blocking after put_blocking", Context::barrier_all_blocking),
    ];
    for (name, barrier) in barriers {
        target.copy_from(&stream, &blank)?;
        checks.world.barrier_blocking()?;
        context.put_blocking(&target, &source, next)?;
        barrier(context)?;
        checks.same(name, &target.to_vec(&stream)?, |index| T::sample(previous, index));
        checks.world.barrier_blocking()?;
    }
    target.copy_from(&stream, &blank)?;
    checks.world.barrier_blocking()?;
    context.put_nbi(&target, &source, next, &stream)?;
    // The barrier completes only transfers that the stream has already started, so this check waits
    // for the stream before the barrier.
    stream.synchronize()?;
    context.barrier_all_blocking()?;
    checks.same("barrier_all_blocking after put_nbi", &target.to_vec(&stream)?, |index| T::sample(previous, index));
    checks.world.barrier_blocking()?;
    context.free(source)?;
    context.free(target)?;
    Ok(())
}

/// Checks `wait_until_each`, which waits until each of several words has its own expected value.
fn each<T: AtomicInteger + Reduce>(checks: &mut Checks<'_>) -> Result<(), Failure> {
    let (context, stream, next) = (checks.context, Arc::clone(&checks.stream), checks.next());
    let words = context.alloc_zeroed::<T>(4)?;
    let values: Vec<T> = (0..4).map(|index| T::small(20 + 3 * index)).collect();
    let expected = DeviceMemory::from_slice(&stream, &values)?;
    checks.barrier()?;
    for (index, value) in values.iter().enumerate() {
        context.put_value(&words.slice(index..index + 1)?, *value, next, &stream)?;
    }
    context.wait_until_each(&words, Compare::Eq, &expected, &stream)?;
    let found = words.to_vec(&stream)?;
    checks.same("wait_until_each", &found, |index| values[index]);
    let short = context.wait_until_each(&words.slice(0..3)?, Compare::Eq, &expected, &stream);
    checks.refused("a wait with more values than words", short, |kind| {
        matches!(kind, peerweave_nvshmem::MisuseKind::Length { .. })
    });
    checks.world.barrier_blocking()?;
    context.free(words)?;
    Ok(())
}
