//! Tests of the kernels that carry out an all_reduce, add a residual and compute RMSNorm.

use crate::numbers::Numbers;
use crate::world::{Given, MARK, RANKS, World};
use peerweave_collectives::rms_norm::{self, Algorithm, Norm, Output, SMALLEST_SCALED};
use peerweave_collectives::{Algorithm as Route, Call};
use peerweave_grid::{JobError, Shape, explore};
use peerweave_types::{DType, F8E4M3, FailureKind, KernelOp, Pe, ReduceOp, SymSlice, bf16, f16};
use std::time::Duration;

const EPSILON: f32 = 1e-5;

/// The arguments of one call of an RMSNorm kernel in a test.
#[derive(Clone, Copy, Debug)]
struct Case {
    algorithm: Algorithm,
    rows: usize,
    hidden: usize,
    blocks: u32,
    threads: u32,
    in_place: bool,
    output: Output,
    /// The quantisation scale of all rows. `None` if the kernel computes a scale for each row.
    scale: Option<f32>,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::OneShot,
            rows: 3,
            hidden: 520,
            blocks: 2,
            threads: 32,
            in_place: false,
            output: Output::Same,
            scale: Some(1.0),
        }
    }
}

/// The PEs of a test, with the operands that only RMSNorm has: residual, weight and scales.
struct Norms {
    world: World,
    residual: SymSlice<u8>,
    weight: SymSlice<u8>,
    scales: SymSlice<f32>,
}

/// A float type that the kernels can normalise.
trait Float: Numbers {
    /// Distance between neighbouring values of the type, relative to the values.
    const STEP: f64;
    fn wide(self) -> f64;
    fn from_wide(value: f32) -> Self;
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! float {
    ($($t:ty: $step:expr, |$x:ident| $wide:expr, |$y:ident| $narrow:expr;)*) => {$(
        impl Float for $t {
            const STEP: f64 = $step;

            fn wide(self) -> f64 {
                let $x = self;
                f64::from($wide)
            }

            fn from_wide($y: f32) -> Self {
                $narrow
            }

            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("the slice has the bytes of one element"))
            }
        }
    )*};
}

float! {
    f16: 1.0 / 1024.0, |x| x.to_f32(), |y| Self::from_f32(y);
    bf16: 1.0 / 128.0, |x| x.to_f32(), |y| Self::from_f32(y);
    f32: 1.0 / 8_388_608.0, |x| x, |y| y;
}

impl Norms {
    fn new(world: World) -> Self {
        let mut world = world;
        let [residual, weight] = [1 << 15, 1 << 12].map(|len| world.job.alloc::<u8>(len));
        let scales = world.job.alloc::<f32>(64);
        Self { world, residual, weight, scales }
    }

    fn arguments(&self, case: &Case, rank: usize, bytes: usize) -> (Call, Norm) {
        let given =
            Given { algorithm: Route::OneShot, count: case.rows * case.hidden, in_place: case.in_place, ..Given::default() };
        let call = Call { op: ReduceOp::Sum as u32, ..self.world.call(&given, rank, bytes, 0) };
        let me = self.world.members[rank];
        let norm = Norm {
            residual: self.world.job.address(me, self.residual),
            weight: self.world.job.address(me, self.weight),
            scales: if case.scale.is_none() { self.world.job.address(me, self.scales) } else { 0 },
            rows: case.rows as u64,
            row_lines: (case.hidden * bytes / 16) as u64,
            epsilon: EPSILON,
            inverse_scale: 1.0 / case.scale.unwrap_or(1.0),
            output: case.output as u32,
            reserved: 0,
        };
        (call, norm)
    }

    fn launch<T: Float>(&mut self, case: &Case, is_there: impl Fn(usize) -> bool) -> Result<(), JobError> {
        let n = self.world.members.len();
        let bytes = rms_norm::bank_bytes(case.algorithm, case.rows as u64, (case.hidden * size_of::<T>() / 16) as u64, n as u32);
        assert!(bytes <= 64 << 10, "{case:?} needs banks of {bytes} bytes, expected at most 64 KiB");
        let kernel = rms_norm::kernel(case.algorithm, T::DTYPE, n as u32).expect("a kernel exists for a float type");
        let arguments: Vec<_> = (0..n).map(|rank| self.arguments(case, rank, size_of::<T>())).collect();
        let members = self.world.members.clone();
        self.world.job.launch_each(kernel, Shape::new(case.blocks, case.threads), |pe| {
            let rank = members.iter().position(|member| *member == pe)?;
            is_there(rank).then(|| arguments[rank])
        })
    }

    /// Makes a call on all ranks, and checks that all ranks have the same bits. Compares the
    /// residual bit by bit with a reference. Compares the result with a result computed in `f64`,
    /// within the rounding error.
    fn check<T: Float>(&mut self, case: &Case) {
        let (n, count, size) = (self.world.members.len(), case.rows * case.hidden, size_of::<T>());
        let ranks = if case.algorithm == Algorithm::None { 1 } else { n };
        // Without communication, the input is already the sum, so all ranks have the same input.
        let input = |rank: usize, index: usize| T::given(if case.algorithm == Algorithm::None { 0 } else { rank as u32 }, index);
        let residual: Vec<T> = (0..count).map(|index| T::given(77, index)).collect();
        let weight: Vec<T> = (0..case.hidden).map(|index| T::from_wide(0.5 + (index % 7) as f32 / 4.0)).collect();
        let view = |of: SymSlice<u8>, len: usize| -> SymSlice<T> {
            assert!(len * size <= of.len(), "{case:?}: {} bytes do not fit in {} bytes", len * size, of.len());
            // SAFETY: the elements lie in the allocation, which is aligned.
            unsafe { SymSlice::from_raw(of.offset(), len) }
        };
        for (rank, pe) in self.world.members.clone().into_iter().enumerate() {
            let send = self.world.view::<T>(0, 0, count);
            self.world.job.write(pe, send, &(0..count).map(|index| input(rank, index)).collect::<Vec<_>>());
            let all = self.world.view::<u8>(1, 0, 1 << 16);
            self.world.job.write(pe, all, &vec![MARK; 1 << 16]);
            self.world.job.write(pe, view(self.residual, count), &residual);
            self.world.job.write(pe, view(self.weight, case.hidden), &weight);
            self.world.job.write(pe, self.scales, &[-1.0; 64]);
        }
        self.launch::<T>(case, |_| true).unwrap_or_else(|error| panic!("{case:?} of {} on {n} ranks: {error}", T::DTYPE));
        let x: Vec<T> = (0..count)
            .map(|index| {
                let inputs: Vec<T> = (0..ranks).map(|rank| input(rank, index)).collect();
                let sum = T::expected(ReduceOp::Sum, &inputs, &[]);
                T::expected(ReduceOp::Sum, &[sum, residual[index]], &[])
            })
            .collect();
        let mut first: Option<(Vec<u8>, Vec<u32>)> = None;
        for pe in self.world.members.clone() {
            let found = self.world.job.read(pe, view(self.residual, count));
            let wrong = found.iter().zip(&x).position(|(found, x)| found.bits() != x.bits());
            assert_eq!(wrong, None, "{case:?} of {} on {n} ranks, PE {pe}: the residual differs from the reference", T::DTYPE);
            let from = if case.in_place { 0 } else { 1 };
            let bytes = if case.output == Output::Same { count * size } else { count };
            let result = self.world.job.read(pe, self.world.view::<u8>(from, 0, bytes));
            let scales = self.world.job.read(pe, self.scales);
            self.compare::<T>(case, pe, &x, &weight, &result, &scales);
            if !case.in_place {
                let after = self.world.job.read(pe, self.world.view::<u8>(1, bytes, (1 << 16) - bytes));
                assert!(after.iter().all(|byte| *byte == MARK), "{case:?}: PE {pe} wrote beyond the result");
            }
            let this = (result, scales.iter().map(|scale| scale.to_bits()).collect());
            let first = first.get_or_insert_with(|| this.clone());
            assert!(
                *first == this,
                "{case:?} of {}: the result of PE {pe} has other bits than the result of the first PE",
                T::DTYPE
            );
        }
    }

    fn compare<T: Float>(&self, case: &Case, pe: u32, x: &[T], weight: &[T], result: &[u8], scales: &[f32]) {
        let size = size_of::<T>();
        for (row, row_scale) in scales.iter().copied().enumerate().take(case.rows) {
            let range = row * case.hidden..(row + 1) * case.hidden;
            let mean = x[range.clone()].iter().map(|x| x.wide().powi(2)).sum::<f64>() / case.hidden as f64;
            let factor = 1.0 / (mean + f64::from(EPSILON)).sqrt();
            let expected: Vec<f64> =
                x[range.clone()].iter().zip(weight).map(|(x, weight)| x.wide() * weight.wide() * factor).collect();
            let scale = case.scale.unwrap_or(row_scale);
            if case.scale.is_none() {
                let largest = expected.iter().fold(0.0_f64, |most, value| most.max(value.abs())) as f32;
                let wanted = largest.max(SMALLEST_SCALED) / case.output.largest();
                assert!((scale / wanted - 1.0).abs() < 1e-5, "{case:?}, row {row}: scale {scale}, expected {wanted}");
            } else {
                assert_eq!(row_scale, -1.0, "{case:?}, row {row}: the kernel wrote a scale, expected none");
            }
            for (index, expected) in range.zip(expected) {
                let scaled = expected / f64::from(scale);
                // `step` is the distance from `found` to the next value of the result's type.
                let (found, step) = match case.output {
                    Output::Same => {
                        let found = T::from_bytes(&result[index * size..][..size]).wide();
                        (found, T::STEP * expected.abs() + 1e-7)
                    }
                    Output::F8E4M3 => {
                        let found = f64::from(F8E4M3::from_bits(result[index]).to_f32());
                        (found, (scaled.abs() / 8.0).max(1.0 / 512.0))
                    }
                    Output::I8 => (f64::from(result[index] as i8), 1.0),
                };
                let limit = case.output.largest();
                let wanted =
                    if case.output == Output::Same { expected } else { scaled.clamp(-f64::from(limit) - 1.0, limit.into()) };
                // The result is rounded once, from a value that may have the rounding error of
                // `f32`.
                assert!(
                    (found - wanted).abs() <= 0.502 * step + 2e-6 * wanted.abs(),
                    "{case:?} of {} on PE {pe}, row {row}, element {index}: {found}, expected {wanted}",
                    T::DTYPE
                );
            }
        }
    }
}

fn every_case<T: Float>() {
    for ranks in RANKS {
        let mut norms = Norms::new(World::new(ranks, u64::from(ranks)));
        for algorithm in Algorithm::ALL {
            // A row has at least 65 lines, so that each rank has a part and the last part is
            // shorter.
            let hidden = 65 * 16 / size_of::<T>();
            let case = Case { algorithm, rows: 2, hidden, blocks: 1, ..Case::default() };
            norms.check::<T>(&case);
            norms.check::<T>(&Case { in_place: true, threads: 64, blocks: 2, ..case });
        }
    }
}

#[test]
fn rms_norm_of_bf16_matches_the_reference_for_all_algorithms() {
    every_case::<bf16>();
}

#[test]
fn rms_norm_of_f16_matches_the_reference_for_all_algorithms() {
    every_case::<f16>();
}

#[test]
fn rms_norm_of_f32_matches_the_reference_for_all_algorithms() {
    every_case::<f32>();
}

#[test]
fn rms_norm_is_correct_for_any_number_of_rows_or_blocks() {
    for ranks in [1, 3, 4] {
        let mut norms = Norms::new(World::new(ranks, 9));
        for (rows, hidden) in [(1, 8), (5, 8), (1, 128), (7, 136), (3, 1000), (1, 2048)] {
            for algorithm in Algorithm::ALL {
                let lines = hidden as u64 / 8;
                if algorithm == Algorithm::TwoShot && lines < rms_norm::two_shot_min_lines(ranks) {
                    continue;
                }
                for (blocks, threads) in [(1, 32), (3, 64), (4, 96)] {
                    norms.check::<bf16>(&Case { algorithm, rows, hidden, blocks, threads, ..Case::default() });
                }
            }
        }
    }
}

#[test]
fn rms_norm_result_does_not_depend_on_thread_schedule() {
    for ranks in [2, 4] {
        explore(3, |seed| {
            let mut norms = Norms::new(World::new(ranks, seed));
            for round in 0..6 {
                let algorithm = Algorithm::ALL[1 + round % 2];
                let case =
                    Case { algorithm, rows: 1 + round, hidden: 264, blocks: 2, in_place: round % 3 == 1, ..Case::default() };
                norms.check::<bf16>(&case);
                // Other collectives use the same banks.
                norms.world.check::<f32>(&Given { count: 300, ..Given::default() });
            }
            Ok::<(), String>(())
        });
    }
}

#[test]
fn quantized_rms_norm_is_correct_for_common_and_per_row_scales() {
    for ranks in [1, 2, 5] {
        let mut norms = Norms::new(World::new(ranks, 4));
        for algorithm in Algorithm::ALL {
            for output in [Output::F8E4M3, Output::I8] {
                for scale in [Some(0.02), Some(0.001), Some(3.0), None] {
                    let case = Case { algorithm, output, scale, rows: 3, hidden: 256, ..Case::default() };
                    norms.check::<bf16>(&case);
                    norms.check::<f32>(&Case { hidden: 128, ..case });
                }
            }
        }
    }
}

#[test]
fn one_shot_and_two_shot_rms_norm_report_a_missing_rank() {
    for algorithm in [Algorithm::OneShot, Algorithm::TwoShot] {
        // Rank 1 is PE 2.
        let world = World::with_deadline(4, &[3, 2, 0], 1, Duration::from_secs(2));
        let mut norms = Norms::new(world);
        let case = Case { algorithm, rows: 4, hidden: 520, threads: 64, ..Case::default() };
        let error = norms.launch::<bf16>(&case, |rank| rank != 1).expect_err("the call fails, because rank 1 is missing");
        let JobError::Failed { report, .. } = &error else { panic!("{algorithm:?}: {error}, expected a failure with a report") };
        assert_eq!((report.kind(), report.missing_pe()), (Some(FailureKind::Deadline), Some(Pe::new(2))), "{error}");
        assert_eq!(report.0.operation, KernelOp::AllReduce as u32, "{error}");
    }
}

#[test]
fn rms_norm_kernels_exist_only_for_f16_bf16_and_f32() {
    for algorithm in Algorithm::ALL {
        for dtype in DType::ALL {
            for ranks in 0..=9 {
                let wanted = matches!(dtype, DType::F16 | DType::BF16 | DType::F32) && (1..=8).contains(&ranks);
                assert_eq!(rms_norm::kernel(algorithm, dtype, ranks).is_some(), wanted, "{dtype} {ranks}");
            }
        }
    }
}
