//! Compares one kernel for all_reduce, residual and RMSNorm with an all_reduce followed by a norm
//! kernel. Checks that the results have the same bits, and measures the time of both
//! implementations. Graphs of 20 calls of each implementation alternate in one run.

use peerweave_cuda::{Collectives, Gpu, RmsNormCall, RmsNormOutput};
use peerweave_driver::DeviceMemory;
use peerweave_types::{DType, Element, ReduceOp, bf16, f16};

use crate::bench::{Bench, CALLS, Result, median};
use crate::{Arguments, Outcome};

/// Number of elements of a row in the measurement.
const HIDDEN: usize = 6144;
/// Numbers of rows in the measurement.
const ROWS: [usize; 12] = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 138];
/// Numbers of rows and row lengths that are checked. They cover the one-shot and the two-shot
/// algorithm, and calls of several launches.
const CHECKED: [(usize, usize); 8] =
    [(1, 8), (3, 136), (1, HIDDEN), (8, 4096), (64, 8192), (138, HIDDEN), (700, HIDDEN), (2, 1 << 17)];

/// The kernels that carry out a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// One kernel, by the algorithm of the route.
    Fused,
    OneShot,
    TwoShot,
    /// The all_reduce, and then the norm kernel.
    Separate,
    /// Only the all_reduce.
    AllReduce,
    /// Only the norm kernel.
    Norm,
}

/// Operands of one element type.
struct Operands<'a, T: Element> {
    bench: &'a Bench<'a>,
    input: DeviceMemory<T>,
    residual: DeviceMemory<T>,
    output: DeviceMemory<T>,
    /// Keeps the weight alive.
    _weight: DeviceMemory<T>,
    before: Vec<T>,
    call: RmsNormCall,
}

impl<'a, T: Element> Operands<'a, T> {
    fn new(bench: &'a Bench<'a>, rows: usize, hidden: usize, number: impl Fn(f32) -> T) -> Result<Self> {
        let (len, me) = (rows * hidden, bench.collectives.rank().get() as usize);
        let stream = &bench.stream;
        let values =
            |len: usize, of: &dyn Fn(usize) -> usize| -> Vec<T> { (0..len).map(|i| number(of(i) as f32 / 16.0 - 3.0)).collect() };
        let input = DeviceMemory::from_slice(stream, &values(len, &|i| (i * 31 + me * 17) % 97))?;
        let before = values(len, &|i| (i * 13) % 89);
        let residual = DeviceMemory::from_slice(stream, &before)?;
        let output = DeviceMemory::from_slice(stream, &values(len, &|_| 0))?;
        let weight = DeviceMemory::from_slice(stream, &values(hidden, &|i| 60 + i % 11))?;
        let call = RmsNormCall {
            input: input.address(),
            residual: residual.address(),
            output: output.address(),
            weight: weight.address(),
            rows: rows as u64,
            hidden: hidden as u64,
            dtype: T::DTYPE,
            epsilon: 1e-5,
            quantization: RmsNormOutput::Same,
        };
        Ok(Self { bench, input, residual, output, _weight: weight, before, call })
    }

    fn enqueue(&self, form: Form) -> Outcome {
        let Bench { collectives, stream, .. } = self.bench;
        let (call, count) = (&self.call, self.call.rows * self.call.hidden);
        // SAFETY: the memory is live until the caller has waited for the stream, and graphs that
        // use the memory are dropped before it is freed.
        unsafe {
            match form {
                Form::Fused => collectives.all_reduce_rms_norm(stream, call)?,
                Form::OneShot => collectives.all_reduce_rms_norm_by(false, stream, call)?,
                Form::TwoShot => collectives.all_reduce_rms_norm_by(true, stream, call)?,
                Form::Norm => collectives.add_rms_norm(stream, call)?,
                Form::Separate | Form::AllReduce => {
                    collectives.all_reduce(stream, call.input, call.output, count, call.dtype, ReduceOp::Sum)?;
                    if form == Form::Separate {
                        collectives.add_rms_norm(stream, &RmsNormCall { input: call.output, ..*call })?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Resets the residual, then calls `run`. Returns the new residual and the output.
    fn results(&mut self, run: impl Fn(&Self) -> Outcome) -> Result<[Vec<T>; 2]> {
        self.residual.copy_from(&self.bench.stream, &self.before)?;
        run(self)?;
        self.bench.gpu.wait(&self.bench.stream)?;
        Ok([self.residual.to_vec(&self.bench.stream)?, self.output.to_vec(&self.bench.stream)?])
    }

    /// Compares the results of a form with the results of separate kernels.
    fn compare(&mut self, what: &str, wanted: &[Vec<T>; 2], run: impl Fn(&Self) -> Outcome) -> Outcome {
        let found = self.results(run)?;
        for (name, (found, wanted)) in ["residual", "output"].into_iter().zip(found.iter().zip(wanted)) {
            // A NaN is not equal to itself, so this check also detects results that are NaN.
            if let Some(at) = found.iter().zip(wanted).position(|(found, wanted)| found != wanted) {
                return Err(format!("{what}: {name} {at} is {:?}, expected {:?}", found[at], wanted[at]).into());
            }
        }
        Ok(())
    }
}

fn check<T: Element>(bench: &Bench<'_>, number: impl Fn(f32) -> T + Copy) -> Result<u64> {
    let mut checked = 0;
    for (rows, hidden) in CHECKED {
        let mut on = Operands::new(bench, rows, hidden, number)?;
        let wanted = on.results(|on| on.enqueue(Form::Separate))?;
        for form in [Form::Fused, Form::OneShot, Form::TwoShot] {
            let what = format!("{rows} rows of {hidden} {}, {form:?}", T::DTYPE);
            let ranks = bench.collectives.members().len();
            let is_long = hidden * size_of::<T>() / 16 >= ranks * ranks;
            // With the one-shot algorithm, a bank has no room for one of the longest rows of every
            // rank.
            if form == Form::TwoShot && !is_long || form == Form::OneShot && hidden > 1 << 16 {
                continue;
            }
            on.compare(&what, &wanted, |on| on.enqueue(form))?;
            // The output replaces the input.
            let (output, copy) = (on.call.output, on.input.to_vec(&bench.stream)?);
            on.call.output = on.call.input;
            on.results(|on| on.enqueue(form))?;
            let found = on.input.to_vec(&bench.stream)?;
            if found != wanted[1] {
                return Err(format!("{what}: the result in place differs").into());
            }
            on.call.output = output;
            on.input.copy_from(&bench.stream, &copy)?;
            bench.gpu.wait(&bench.stream)?;
            checked += 2;
        }
        // Each call of a graph adds to the residual.
        let mut results = Vec::new();
        for form in [Form::Separate, Form::Fused] {
            let graph = bench.graph(|| on.enqueue(form))?;
            results.push(on.results(|_| (0..3).try_for_each(|_| Ok(graph.launch()?)))?);
        }
        if results[0] != results[1] {
            return Err(format!("{rows} rows of {hidden} {}: the results in graphs differ", T::DTYPE).into());
        }
        checked += 3 * CALLS as u64;
    }
    Ok(checked)
}

pub(crate) fn run(gpu: &Gpu, collectives: &Collectives, arguments: &Arguments) -> Outcome {
    let bench = Bench::new(gpu, collectives, 1 << 20, |len| Ok(DeviceMemory::alloc(gpu.context(), len)?))?;
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        collectives.load(dtype)?;
        collectives.load_rms_norm(dtype)?;
    }
    gpu.barrier("norms are loaded")?;
    let checked = check(&bench, bf16::from_f32)? + check(&bench, f16::from_f32)? + check(&bench, |value| value)?;
    if bench.is_first() {
        println!("all_reduce with RMSNorm: {checked} calls correct");
        println!("{} PEs, rows of {HIDDEN} bf16, graphs of {CALLS} calls, us for each call", gpu.n_pes());
        println!("rows | fused | one-shot | two-shot | all_reduce, norm | ratio | all_reduce alone | norm alone");
    }
    for rows in ROWS {
        let mut on = Operands::new(&bench, rows, HIDDEN, bf16::from_f32)?;
        let wanted = on.results(|on| on.enqueue(Form::Separate))?;
        let forms = [Form::Fused, Form::OneShot, Form::TwoShot, Form::Separate, Form::AllReduce, Form::Norm];
        let mut all = Vec::new();
        for form in forms {
            all.push((bench.graph(|| on.enqueue(form))?, Vec::new()));
        }
        for _ in 0..arguments.rounds {
            for (graph, times) in &mut all {
                times.push(bench.time(graph, 10)?);
            }
        }
        on.compare(&format!("{rows} rows, after the measurement"), &wanted, |on| on.enqueue(Form::Fused))?;
        let of: Vec<f64> = all.iter_mut().map(|(_, times)| median(times)).collect();
        if bench.is_first() {
            let [fused, one, two, separate, reduce, norm] = of[..] else { unreachable!("there are six forms") };
            println!(
                "{rows} | {fused:.2} | {one:.2} | {two:.2} | {separate:.2} | {:.2} | {reduce:.2} | {norm:.2}",
                fused / separate
            );
        }
    }
    Ok(())
}
