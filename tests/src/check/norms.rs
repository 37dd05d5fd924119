//! Compares all-reduces with residual and RMSNorm with an oracle: every element type, several
//! shapes of rows, buffers of every kind, in place, and quantised.

use crate::data::memory::Kind;
use crate::data::sample::hash;
use peerweave::{
    Buffer, Element, Error, F8E4M3, NormElement, QuantizedElement, ReduceOp, Result, RmsNorm, RowScales, Stream, Symmetric, Team,
    World, bf16, f16,
};
use std::cell::Cell;

/// An element type with its conversions.
pub trait Real: NormElement {
    /// The relative distance between neighbouring values.
    const STEP: f64;
    /// Returns the element nearest to `value`.
    fn near(value: f32) -> Self;
    /// Returns the value.
    fn value(self) -> f32;
}

/// A type of quantised elements with its conversions.
pub trait Quantized: QuantizedElement {
    /// The largest value.
    const LARGEST: f64;
    /// Returns the value.
    fn value(self) -> f64;
    /// Returns the distance between neighbouring values near `value`.
    fn step(value: f64) -> f64;
    /// The value that marks memory that was not written.
    const MARK: Self;
}

macro_rules! real {
    ($($t:ty: $step:expr, |$x:ident| $value:expr, |$y:ident| $near:expr;)*) => {$(
        impl Real for $t {
            const STEP: f64 = $step;

            fn near($y: f32) -> Self {
                $near
            }

            fn value(self) -> f32 {
                let $x = self;
                $value
            }
        }
    )*};
}

real! {
    f16: 1.0 / 1024.0, |x| x.to_f32(), |y| Self::from_f32(y);
    bf16: 1.0 / 128.0, |x| x.to_f32(), |y| Self::from_f32(y);
    f32: 1.0 / 8_388_608.0, |x| x, |y| y;
}

impl Quantized for F8E4M3 {
    const LARGEST: f64 = 448.0;
    const MARK: Self = Self::from_bits(0x55);

    fn value(self) -> f64 {
        self.to_f32().into()
    }

    fn step(value: f64) -> f64 {
        (value.abs() / 8.0).max(1.0 / 512.0)
    }
}

impl Quantized for i8 {
    const LARGEST: f64 = 127.0;
    const MARK: Self = 0x55;

    fn value(self) -> f64 {
        self.into()
    }

    fn step(_: f64) -> f64 {
        1.0
    }
}

const EPSILON: f32 = 1e-5;

/// Symmetric memory for the calls of one element type.
struct Arenas<T: Element> {
    input: Symmetric<T>,
    residual: Symmetric<T>,
    output: Symmetric<T>,
    weight: Symmetric<T>,
    floats: Symmetric<F8E4M3>,
    bytes: Symmetric<i8>,
    scales: Symmetric<f32>,
}

impl<T: Real> Arenas<T> {
    fn new(world: &World, len: usize, hidden: usize, rows: usize) -> Result<Self> {
        let many = || world.alloc_zeroed::<T>(len);
        Ok(Self {
            input: many()?,
            residual: many()?,
            output: many()?,
            weight: world.alloc_zeroed(hidden)?,
            floats: world.alloc_zeroed(len)?,
            bytes: world.alloc_zeroed(len)?,
            scales: world.alloc_zeroed(rows)?,
        })
    }

    fn release(self) -> Result<()> {
        self.input.release()?;
        self.residual.release()?;
        self.output.release()?;
        self.weight.release()?;
        self.floats.release()?;
        self.bytes.release()?;
        self.scales.release()
    }
}

/// The team, stream and kind of buffers of a call.
struct Place<'a> {
    team: &'a Team,
    stream: &'a Stream,
    kind: Kind,
    on_stream: bool,
    /// A digest of all results, which must be the same on all ranks.
    digest: &'a Cell<u64>,
}

/// The arguments of a call, and its expected results.
struct Given<T> {
    rows: usize,
    hidden: usize,
    input: Vec<T>,
    residual: Vec<T>,
    weight: Vec<T>,
    /// The expected new residual.
    x: Vec<T>,
    /// The expected result before rounding.
    y: Vec<f64>,
}

impl<T: Real> Given<T> {
    fn new(team: &Team, rows: usize, hidden: usize, seed: u64) -> Self {
        // Sums of these numbers are exact in `f32` in any order.
        let eighth = |parts: &[u64], most: u64| T::near(((hash(parts) % (2 * most + 1)) as f32 - most as f32) / 8.0);
        let len = rows * hidden;
        let value = |rank: usize, index: usize| eighth(&[seed, rank as u64, index as u64], 40);
        let residual: Vec<T> = (0..len).map(|index| eighth(&[seed, 1000, index as u64], 100)).collect();
        let weight: Vec<T> =
            (0..hidden).map(|index| T::near(0.25 + (hash(&[seed, 2000, index as u64]) % 9) as f32 / 8.0)).collect();
        let x: Vec<T> = (0..len)
            .map(|index| {
                let sum: f32 = (0..team.size()).map(|rank| value(rank, index).value()).sum();
                T::near(T::near(sum).value() + residual[index].value())
            })
            .collect();
        let mut y = Vec::new();
        for row in x.chunks(hidden) {
            let mean = row.iter().map(|x| f64::from(x.value()).powi(2)).sum::<f64>() / hidden as f64;
            let root = (mean + f64::from(EPSILON)).sqrt();
            y.extend(row.iter().zip(&weight).map(|(x, weight)| f64::from(x.value()) * f64::from(weight.value()) / root));
        }
        let input = (0..len).map(|index| value(team.my_rank().index(), index)).collect();
        Self { rows, hidden, input, residual, weight, x, y }
    }

    fn check(&self, what: &str, residual: &[T], output: &[T]) {
        let wrong = residual.iter().zip(&self.x).position(|(found, x)| found.value().to_bits() != x.value().to_bits());
        let at = |index: usize| (residual[index], self.x[index]);
        assert_eq!(wrong.map(at), None, "{what}: the residual at index {wrong:?} is wrong");
        assert_eq!(output.len(), self.y.len(), "{what}");
        for (index, (found, y)) in output.iter().zip(&self.y).enumerate() {
            let error = (f64::from(found.value()) - y).abs();
            assert!(
                error <= 0.502 * T::STEP * y.abs() + 2e-6 * y.abs() + 1e-7,
                "{what}: element {index} is {found:?}, expected {y}"
            );
        }
    }

    fn check_quantized<Q: Quantized>(&self, what: &str, residual: &[T], output: &[Q], scale: impl Fn(usize) -> f32) {
        let same = residual.iter().zip(&self.x).all(|(found, x)| found.value().to_bits() == x.value().to_bits());
        assert!(same, "{what}: the residual is wrong");
        for (index, (found, y)) in output.iter().zip(&self.y).enumerate() {
            let wanted = (y / f64::from(scale(index / self.hidden))).clamp(-Q::LARGEST, Q::LARGEST);
            let error = (found.value() - wanted).abs();
            // A number below the range may be saturated to -128.
            let extra = if wanted == -Q::LARGEST { Q::step(wanted) } else { 0.0 };
            assert!(error <= 0.502 * Q::step(wanted) + extra, "{what}: element {index} is {found:?}, expected {wanted}");
        }
    }

    /// Checks the scales of the rows.
    fn check_scales<Q: Quantized>(&self, what: &str, scales: &[f32]) {
        for (row, (found, y)) in scales.iter().zip(self.y.chunks(self.hidden)).enumerate() {
            let largest = y.iter().fold(1.0 / 512.0, |most: f64, y| most.max(y.abs()));
            let wanted = largest / Q::LARGEST;
            assert!(
                (f64::from(*found) / wanted - 1.0).abs() < 1e-5,
                "{what}: the scale of row {row} is {found}, expected {wanted}"
            );
        }
    }
}

impl Place<'_> {
    /// Makes one call that is not quantised. Returns the new residual and the result.
    fn same<T: Real>(&self, given: &Given<T>, arenas: &Arenas<T>, in_place: bool) -> Result<(Vec<T>, Vec<T>)> {
        let (team, stream, len) = (self.team, self.stream, given.rows * given.hidden);
        match self.kind {
            Kind::Symmetric => {
                let part = |of: &Symmetric<T>| of.slice(..len);
                let (input, residual, output) = (part(&arenas.input)?, part(&arenas.residual)?, part(&arenas.output)?);
                let weight = arenas.weight.slice(..given.hidden)?;
                input.copy_from(&given.input)?;
                residual.copy_from(&given.residual)?;
                weight.copy_from(&given.weight)?;
                let norm = RmsNorm::new(&weight).epsilon(EPSILON);
                match (self.on_stream, in_place) {
                    (true, false) => team.all_reduce_rms_norm(stream, &input, &residual, &output, norm)?.wait()?,
                    (true, true) => team.all_reduce_rms_norm_in_place(stream, &input, &residual, norm)?.wait()?,
                    (false, false) => team.all_reduce_rms_norm_blocking(&input, &residual, &output, norm)?,
                    (false, true) => team.all_reduce_rms_norm_in_place_blocking(&input, &residual, norm)?,
                }
                Ok((residual.to_vec()?, if in_place { input.to_vec()? } else { output.to_vec()? }))
            }
            Kind::Buffer => {
                let buffer = |values: &[T]| -> Buffer<T> { values.iter().copied().collect() };
                let (input, residual, weight) = (buffer(&given.input), buffer(&given.residual), buffer(&given.weight));
                let output = Buffer::zeroed(len);
                let norm = RmsNorm::new(&weight).epsilon(EPSILON);
                match (self.on_stream, in_place) {
                    (true, false) => team.all_reduce_rms_norm(stream, &input, &residual, &output, norm)?.wait()?,
                    (true, true) => team.all_reduce_rms_norm_in_place(stream, &input, &residual, norm)?.wait()?,
                    (false, false) => team.all_reduce_rms_norm_blocking(&input, &residual, &output, norm)?,
                    (false, true) => team.all_reduce_rms_norm_in_place_blocking(&input, &residual, norm)?,
                }
                Ok((residual.to_vec(), if in_place { input.to_vec() } else { output.to_vec() }))
            }
            Kind::Slice => {
                let (mut input, mut residual, mut output) = (given.input.clone(), given.residual.clone(), vec![T::zeroed(); len]);
                let norm = RmsNorm::new(&given.weight).epsilon(EPSILON);
                if in_place {
                    team.all_reduce_rms_norm_in_place_blocking(&mut input, &mut residual, norm)?;
                    return Ok((residual, input));
                }
                team.all_reduce_rms_norm_blocking(&input, &mut residual, &mut output, norm)?;
                Ok((residual, output))
            }
        }
    }

    /// Makes one quantised call with `scale` or, if it is `None`, with a scale for each row.
    /// Returns the new residual, the result and the scales of the rows.
    fn quantized<T: Real, Q: Quantized>(
        &self,
        given: &Given<T>,
        arenas: &Arenas<T>,
        memory: &Symmetric<Q>,
        scale: Option<f32>,
    ) -> Result<(Vec<T>, Vec<Q>, Vec<f32>)> {
        let (team, stream, len) = (self.team, self.stream, given.rows * given.hidden);
        if self.kind == Kind::Symmetric {
            let (input, residual) = (arenas.input.slice(..len)?, arenas.residual.slice(..len)?);
            let (output, scales) = (memory.slice(..len)?, arenas.scales.slice(..given.rows)?);
            let weight = arenas.weight.slice(..given.hidden)?;
            input.copy_from(&given.input)?;
            residual.copy_from(&given.residual)?;
            weight.copy_from(&given.weight)?;
            output.fill(Q::MARK)?;
            scales.fill(-1.0)?;
            let norm = RmsNorm::new(&weight).epsilon(EPSILON);
            match (self.on_stream, scale) {
                (true, Some(scale)) => {
                    team.all_reduce_rms_norm_quantized(stream, &input, &residual, &output, norm, scale)?.wait()?;
                }
                (true, None) => {
                    team.all_reduce_rms_norm_quantized(stream, &input, &residual, &output, norm, RowScales(&scales))?.wait()?;
                }
                (false, Some(scale)) => {
                    team.all_reduce_rms_norm_quantized_blocking(&input, &residual, &output, norm, scale)?;
                }
                (false, None) => {
                    team.all_reduce_rms_norm_quantized_blocking(&input, &residual, &output, norm, RowScales(&scales))?;
                }
            }
            return Ok((residual.to_vec()?, output.to_vec()?, scales.to_vec()?));
        }
        let (mut residual, mut output) = (given.residual.clone(), vec![Q::MARK; len]);
        let mut scales = vec![-1.0_f32; given.rows];
        let norm = RmsNorm::new(&given.weight).epsilon(EPSILON);
        match scale {
            Some(scale) => {
                team.all_reduce_rms_norm_quantized_blocking(&given.input, &mut residual, &mut output, norm, scale)?;
            }
            None => {
                let scales = RowScales(&mut scales);
                team.all_reduce_rms_norm_quantized_blocking(&given.input, &mut residual, &mut output, norm, scales)?;
            }
        }
        Ok((residual, output, scales))
    }

    fn check_quantized<T: Real, Q: Quantized>(&self, what: &str, given: &Given<T>, arenas: &Arenas<T>, memory: &Symmetric<Q>) {
        for scale in [Some(0.03), None] {
            let what = format!("{what} to {:?}, scale {scale:?}", Q::DTYPE);
            let done = self.quantized(given, arenas, memory, scale);
            let (residual, output, scales) = done.unwrap_or_else(|error| panic!("{what}: {error}"));
            match scale {
                Some(scale) => {
                    given.check_quantized(&what, &residual, &output, |_| scale);
                    assert!(scales.iter().all(|scale| *scale == -1.0), "{what}: {scales:?}");
                }
                None => {
                    given.check_quantized(&what, &residual, &output, |row| scales[row]);
                    given.check_scales::<Q>(&what, &scales);
                }
            }
            self.digest(output.iter().map(|y| y.value().to_bits()));
            self.digest(scales.iter().map(|scale| scale.to_bits().into()));
        }
    }

    /// Adds the bits of results to the digest.
    fn digest(&self, values: impl Iterator<Item = u64>) {
        self.digest.set(values.fold(self.digest.get(), |digest, bits| hash(&[digest, bits])));
    }
}

fn of_a_type<T: Real>(world: &World, team: Option<&Team>, shapes: &[(usize, usize)], seed: u64) {
    let most = |of: &dyn Fn(&(usize, usize)) -> usize| shapes.iter().map(of).max().unwrap_or(1).max(1);
    let arenas = Arenas::<T>::new(world, most(&|shape| shape.0 * shape.1), most(&|shape| shape.1), most(&|shape| shape.0));
    let arenas = arenas.expect("the heap has enough memory");
    if let Some(team) = team {
        let stream = world.stream().expect("a stream can be created");
        for (number, &(rows, hidden)) in shapes.iter().enumerate() {
            let given = Given::<T>::new(team, rows, hidden, seed + number as u64);
            let digest = Cell::new(0);
            for (index, kind) in Kind::ALL.into_iter().enumerate() {
                let on_stream = kind != Kind::Slice && (number + index) % 2 == 0;
                let place = Place { team, stream: &stream, kind, on_stream, digest: &digest };
                for in_place in [false, true] {
                    let what = format!("{rows} rows of {hidden} {} from {kind:?}, in place: {in_place}", T::DTYPE);
                    let (residual, output) =
                        place.same(&given, &arenas, in_place).unwrap_or_else(|error| panic!("{what}: {error}"));
                    given.check(&what, &residual, &output);
                    place.digest(residual.iter().map(|x| x.value().to_bits().into()));
                    place.digest(output.iter().map(|y| y.value().to_bits().into()));
                }
                let what = format!("{rows} rows of {hidden} {} from {kind:?}", T::DTYPE);
                place.check_quantized(&what, &given, &arenas, &arenas.floats);
                place.check_quantized(&what, &given, &arenas, &arenas.bytes);
            }
            let (mut least, mut most) = (digest.get(), digest.get());
            team.all_reduce_in_place_blocking(&mut least, ReduceOp::Min).expect("all ranks compare their digests");
            team.all_reduce_in_place_blocking(&mut most, ReduceOp::Max).expect("all ranks compare their digests");
            assert_eq!(least, most, "{rows} rows of {hidden} {}: ranks have different bits", T::DTYPE);
        }
    }
    arenas.release().expect("all PEs release the memory");
}

/// Makes calls of every element type with these shapes (rows, elements of a row), in place or not,
/// quantised or not, on buffers of every kind. Collective over the world: PEs that are not in the
/// team pass `None`.
///
/// # Panics
/// If a result is wrong, or ranks have different bits.
pub fn of_every_type(world: &World, team: Option<&Team>, shapes: &[(usize, usize)], seed: u64) {
    of_a_type::<bf16>(world, team, shapes, seed);
    of_a_type::<f16>(world, team, shapes, seed + 100);
    of_a_type::<f32>(world, team, shapes, seed + 200);
}

/// Checks that calls whose parameters differ among ranks are a mismatch on every rank. The backend
/// must compare calls before they run, so that the team stays usable.
///
/// # Panics
/// If a call does not return a mismatch, or changes the residual.
pub fn mismatches_are_errors(world: &World) {
    let team = world.team();
    let odd = team.my_rank().index() == 0;
    let is_mismatch = |what: &str, done: Result<()>| {
        assert!(matches!(done, Err(Error::Mismatch(_))), "{what}: {done:?}");
    };
    for len in [64, 4096, 60_000] {
        let (input, mut residual, mut output) = (vec![1.0_f32; len], vec![0.0; len], vec![0.0; len]);
        let (long, short) = (vec![1.0_f32; 16], vec![1.0; 8]);
        let norm = RmsNorm::new(if odd { &short } else { &long });
        is_mismatch("hidden", team.all_reduce_rms_norm_blocking(&input, &mut residual, &mut output, norm));
        let norm = RmsNorm::new(&long).epsilon(if odd { 1e-5 } else { 1e-6 });
        is_mismatch("epsilon", team.all_reduce_rms_norm_blocking(&input, &mut residual, &mut output, norm));
        let (norm, mut small) = (RmsNorm::new(&long), vec![0_i8; len]);
        let done = if odd {
            team.all_reduce_rms_norm_blocking(&input, &mut residual, &mut output, norm)
        } else {
            team.all_reduce_rms_norm_quantized_blocking(&input, &mut residual, &mut small, norm, 1.0)
        };
        is_mismatch("quantised", done);
        let done = if odd {
            team.all_reduce_blocking(&input, &mut output, ReduceOp::Sum)
        } else {
            team.all_reduce_rms_norm_blocking(&input, &mut residual, &mut output, norm)
        };
        is_mismatch("a call without a norm", done);
        assert!(residual.iter().all(|x| *x == 0.0), "a call that failed changed the residual");
        team.all_reduce_rms_norm_blocking(&input, &mut residual, &mut output, norm)
            .expect("the team stays usable after a mismatch");
    }
}
