//! Checks every element of the results of collectives on GPUs. The elements are small numbers whose
//! reductions are exact.

use std::time::Instant;

use peerweave_cuda::{Algorithm, Collectives, Gpu, Route};
use peerweave_driver::DeviceMemory;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use peerweave_types::{Element, ReduceOp, bf16, f16};

use crate::{Arguments, Outcome};

/// An element that can be created from a small number.
trait Small: Element + PartialEq + std::fmt::Debug {
    fn small(number: i64) -> Self;
}

macro_rules! small {
    ($($t:ty: |$n:ident| $value:expr;)*) => {$(
        impl Small for $t {
            fn small($n: i64) -> Self {
                $value
            }
        }
    )*};
}

small! {
    i8: |n| n as Self;
    u8: |n| n as Self;
    i32: |n| n as Self;
    u32: |n| n as Self;
    i64: |n| n;
    u64: |n| n as Self;
    f16: |n| Self::from_f32(n as f32);
    bf16: |n| Self::from_f32(n as f32);
    f32: |n| n as Self;
    f64: |n| n as Self;
}

/// Returns the element at `index` in the input of rank `rank`.
fn given(rank: u32, index: usize) -> i64 {
    ((index * 7 + rank as usize * 3) % 4) as i64
}

fn expected(op: ReduceOp, ranks: u32, index: usize) -> i64 {
    let each = (0..ranks).map(|rank| given(rank, index));
    match op {
        ReduceOp::Sum => each.sum(),
        ReduceOp::Avg => each.sum::<i64>() / i64::from(ranks),
        ReduceOp::Prod => each.product(),
        ReduceOp::Min => each.min().unwrap_or(0),
        ReduceOp::Max => each.max().unwrap_or(0),
        ReduceOp::And => each.fold(-1, |a, b| a & b),
        ReduceOp::Or => each.fold(0, |a, b| a | b),
        ReduceOp::Xor => each.fold(0, |a, b| a ^ b),
        other => panic!("{other} needs a scalar, which this check does not pass"),
    }
}

/// Random numbers, the same on all PEs.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }
}

struct Checker<'a> {
    gpu: &'a Gpu,
    collectives: &'a Collectives,
    checked: u64,
}

impl Checker<'_> {
    /// Makes one call by `route`, or by the route that the library chooses if `route` is `None`.
    /// Checks the result.
    fn call<T: Small>(&mut self, count: usize, op: ReduceOp, shift: [usize; 2], in_place: bool, route: Option<Route>) -> Outcome {
        let (rank, ranks) = (self.collectives.rank().get(), self.collectives.members().len() as u32);
        // A mean of integers is truncated. A mean of floats is exact only if the number of ranks is
        // a power of two.
        if op == ReduceOp::Avg && !T::DTYPE.is_integer() && !ranks.is_power_of_two() {
            return Ok(());
        }
        let stream = self.gpu.stream()?;
        let values: Vec<T> = (0..count + shift[0]).map(|i| T::small(given(rank, i.wrapping_sub(shift[0])))).collect();
        let send = DeviceMemory::from_slice(&stream, &values)?;
        let recv = DeviceMemory::from_slice(&stream, &vec![T::small(99); count + shift[1] + 1])?;
        let size = size_of::<T>();
        let from = send.address() + (shift[0] * size) as u64;
        let to = if in_place { from } else { recv.address() + (shift[1] * size) as u64 };
        let route = route.unwrap_or_else(|| self.collectives.all_reduce_route(count as u64, T::DTYPE));
        // SAFETY: both ranges are live memory of this device until the stream has been waited for.
        unsafe { self.collectives.all_reduce_by(route, &stream, from, to, count as u64, T::DTYPE, op)? };
        let what = || format!("{} {op} of {count} elements, {route:?}, shift {shift:?}, in place: {in_place}", T::DTYPE);
        self.gpu.wait(&stream).map_err(|error| format!("{}: {error}", what()))?;
        let found = if in_place { send.to_vec(&stream)?[shift[0]..].to_vec() } else { recv.to_vec(&stream)? };
        let found = if in_place { &found[..] } else { &found[shift[1]..] };
        for (index, value) in found.iter().take(count).enumerate() {
            let wanted = match op {
                ReduceOp::Avg if !T::DTYPE.is_integer() => {
                    // The expected mean is computed from the sum. Means that are not integers are
                    // not compared.
                    let sum = expected(ReduceOp::Sum, ranks, index);
                    if sum % i64::from(ranks) != 0 {
                        continue;
                    }
                    T::small(sum / i64::from(ranks))
                }
                _ => T::small(expected(op, ranks, index)),
            };
            if *value != wanted {
                return Err(format!("{}: element {index} is {value:?}, expected {wanted:?}", what()).into());
            }
        }
        if !in_place && found[count] != T::small(99) {
            return Err(format!("{}: the call wrote beyond the end of the result", what()).into());
        }
        self.checked += 1;
        Ok(())
    }

    /// Checks every reduction of a type by every algorithm.
    fn every<T: Small>(&mut self) -> Outcome {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.accepts(T::DTYPE) && *op != ReduceOp::PreMulSum) {
            for algorithm in Algorithm::ALL {
                self.call::<T>(100_003, op, [0, 0], false, Some(Route::new(algorithm, 16, 256)))?;
                self.call::<T>(5_001, op, [1, 3], false, Some(Route::new(algorithm, 3, 64)))?;
            }
        }
        Ok(())
    }
}

pub(crate) fn run(gpu: &Gpu, collectives: &Collectives, arguments: &Arguments) -> Outcome {
    let mut checker = Checker { gpu, collectives, checked: 0 };
    let start = Instant::now();
    checker.every::<i8>()?;
    checker.every::<u8>()?;
    checker.every::<i32>()?;
    checker.every::<u32>()?;
    checker.every::<i64>()?;
    checker.every::<u64>()?;
    checker.every::<f16>()?;
    checker.every::<bf16>()?;
    checker.every::<f32>()?;
    checker.every::<f64>()?;
    let says = |what: &str, n: u64| {
        if gpu.pe().get() == 0 {
            println!("{what}: {n} correct, {:.1} s", start.elapsed().as_secs_f64());
        }
    };
    says("every type, reduction and algorithm", checker.checked);
    let mut random = Random(7);
    checker.checked = 0;
    for call in 0..arguments.calls {
        let scale = 1 << random.below(22);
        let count = (1 + random.below(scale)) as usize;
        let shift = [random.below(9) as usize, random.below(9) as usize];
        let in_place = random.below(4) == 0;
        match call % 3 {
            0 => checker.call::<bf16>(count, ReduceOp::Sum, shift, in_place, None)?,
            1 => checker.call::<i8>(count, ReduceOp::Max, shift, in_place, None)?,
            _ => checker.call::<f32>(count, ReduceOp::Prod, shift, in_place, None)?,
        }
    }
    says("random lengths and alignments", checker.checked);
    says("collectives that move bytes, random calls", crate::moves::run(gpu, collectives, arguments.calls)?);
    says("repeats, graphs and streams", repeats(gpu, collectives, arguments.repeats)?);
    Ok(())
}

/// Makes many small calls in place without a wait between them, on two streams and in a graph. The
/// calls multiply and divide the elements, so a lost or mixed-up call changes all later results.
fn repeats(gpu: &Gpu, collectives: &Collectives, rounds: u64) -> Result<u64, Box<dyn std::error::Error>> {
    const COUNT: usize = 3000;
    let ranks = collectives.members().len() as f32;
    let streams = [gpu.stream()?, gpu.stream()?];
    let values = DeviceMemory::from_slice(&streams[0], &vec![1.0_f32; COUNT])?;
    gpu.wait(&streams[0])?;
    let at = values.address();
    let dtype = f32::DTYPE;
    let call = |stream: &peerweave_cuda::Stream, count: usize, op| {
        // SAFETY: the memory is live until the streams have been waited for; calls of one team run
        // one after the other.
        unsafe { collectives.all_reduce(stream, at, at, count as u64, dtype, op) }
    };
    for round in 0..rounds {
        let stream = &streams[(round / 7 % 2) as usize];
        // The sum multiplies the elements by the number of ranks, and the mean keeps them. The
        // scaled sum below restores the original elements.
        let count = [4, COUNT, 700][(round % 3) as usize];
        call(stream, count, ReduceOp::Sum)?;
        call(stream, count, ReduceOp::Avg)?;
        let scalar = f32::to_bits(1.0 / (ranks * ranks));
        // SAFETY: the memory is live until the streams have been waited for.
        unsafe { collectives.all_reduce_scaled(stream, at, at, count as u64, dtype, u64::from(scalar))? };
        if round % 500 == 499 {
            streams.iter().try_for_each(|stream| gpu.wait(stream))?;
        }
    }
    streams.iter().try_for_each(|stream| gpu.wait(stream))?;
    let check = |what: &str| -> Outcome {
        let found = values.to_vec(&streams[0])?;
        match found.iter().position(|value| *value != 1.0) {
            None => Ok(()),
            Some(index) => Err(format!("{what}: element {index} is {}, expected 1", found[index]).into()),
        }
    };
    check("repeats")?;
    let stream = &streams[0];
    stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    for count in [16, COUNT, 900] {
        call(stream, count, ReduceOp::Sum)?;
        let scalar = f32::to_bits(1.0 / (ranks * ranks));
        // SAFETY: the memory is live until the streams have been waited for.
        unsafe { collectives.all_reduce_scaled(stream, at, at, count as u64, dtype, u64::from(scalar))? };
    }
    let graph =
        stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?.ok_or("the capture returned no graph")?;
    let replays = rounds.div_ceil(40);
    for _ in 0..replays {
        graph.launch()?;
        call(stream, 40, ReduceOp::Max)?;
    }
    gpu.wait(stream)?;
    check("graph")?;
    Ok(3 * rounds + replays * 7)
}
