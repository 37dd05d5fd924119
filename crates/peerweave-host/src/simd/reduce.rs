//! Reductions: the order in which elements are combined, and the operations.
//!
//! Invariant: element `i` of every output is the same value, computed once from element `i` of the
//! inputs, in the order of the inputs. A reduction runs in blocks of at most four vectors. All
//! inputs of a block are read before any output of the block is written, so a reduction can run in
//! place. The result of a lane depends only on the inputs of this lane. So the division into blocks
//! or among threads does not change a result.

use super::arch::{Arch, Isa, Kernel, Vector};
use super::copy::bytes_to_alignment;
use super::lanes::{Bf16, F16, Lanes, Storage};
use super::number::Number;
use core::marker::PhantomData;
use peerweave_types::{DType, ReduceOp};

/// Whether stores go through the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    /// Ordinary stores: the lines stay in the caches of this core. Best for data that is read soon,
    /// or that fits in the caches.
    Cached,
    /// Non-temporal stores: the processor writes cache lines to memory without reading them first.
    /// Best for data that exceeds every cache. If the outputs of a reduction have different
    /// alignments, the reduction uses ordinary stores instead. Buffers at the same heap offset on
    /// several PEs have the same alignment.
    Streaming,
}

/// One input of a reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input {
    /// Address of the first element of the input.
    pub(crate) at: *const u8,
    /// Scalar of the input: the bits of a value of the element type, zero-extended. Used only by
    /// [`ReduceOp::PreMulSum`].
    pub(crate) scalar: u64,
}

/// Reduces `count` elements of every input, in the order of the inputs, and writes the result to
/// every output.
///
/// The bits of element `i` of all outputs are the same. They do not depend on the alignment,
/// `count`, `stores` or the instruction set:
/// - Integers wrap.
/// - `Avg` divides the (wrapped) sum. The quotient of integers is rounded toward zero.
/// - `f16` and `bf16` are computed in f32 and rounded once, to nearest even.
/// - There is no fused multiply-add.
/// - For `Min` and `Max`, -0 is less than +0. If one operand is a NaN and the other is a number,
///   the result is the number.
/// - A NaN result is the canonical quiet NaN.
///
/// # Panics
/// If there is no input, or `op` does not accept `dtype`. The caller checks both.
///
/// # Safety
/// Every input is valid for reads and every output for writes of `count` elements, of any
/// alignment, as in [`super::copy()`]. An output may be the same range as an input or another
/// output. An output must not partly overlap another range.
pub(crate) unsafe fn reduce(dtype: DType, op: ReduceOp, inputs: &[Input], outputs: &[*mut u8], count: usize, stores: Stores) {
    // SAFETY: guaranteed by the caller.
    unsafe { reduce_on(Isa::best(), dtype, op, inputs, outputs, count, stores) };
}

/// A reduction whose element type and operation are known at compile time.
///
/// # Requirements of the methods
/// - **\[R1\]** The processor has the instruction set `A`, the type parameter of the method.
/// - **\[R2\]** A method accesses the same range of byte offsets in every input and every output.
///   The range lies within the inputs and outputs. The accesses are valid as [`reduce`] requires.
struct Reduce<'a, S, O> {
    op: O,
    inputs: &'a [Input],
    outputs: &'a [*mut u8],
    bytes: usize,
    stores: Stores,
    storage: PhantomData<S>,
}

impl<S: Storage, O: Op<S::Value>> Kernel for Reduce<'_, S, O> {
    #[inline(always)]
    unsafe fn run<A: Arch>(self) {
        let (vector, step) = (A::Vector::BYTES, 4 * A::Vector::BYTES);
        // Stores are aligned, because a store across two cache lines costs two stores, and
        // streaming stores must be aligned. So the first part, which is shorter than a vector, ends
        // where the first output is aligned. If that point is within an element, there is no first
        // part. The second part is the rest. One loop runs over both parts, to keep the code small.
        let head = bytes_to_alignment(self.outputs[0], vector);
        let head = if self.bytes >= step && head.is_multiple_of(size_of::<S>()) { head } else { 0 };
        let streaming = matches!(self.stores, Stores::Streaming)
            && self.outputs.iter().all(|output| (output.addr() + head).is_multiple_of(vector));
        let (mut at, mut end) = (0, if head > 0 { head } else { self.bytes });
        loop {
            // SAFETY: `at` never exceeds `end`, and `end` never exceeds `bytes`. `Kernel::run` and
            // `reduce_on` require the rest: [R1], and [R2] for all bytes.
            unsafe {
                while at + step <= end {
                    self.four::<A>(at, streaming);
                    at += step;
                }
                while at + vector <= end {
                    self.one::<A>(at);
                    at += vector;
                }
                if at < end {
                    self.part::<A>(at, end - at);
                    at = end;
                }
            }
            if end == self.bytes {
                break;
            }
            end = self.bytes;
        }
        if matches!(self.stores, Stores::Streaming) {
            A::fence_streaming();
        }
    }
}

impl<S: Storage, O: Op<S::Value>> Reduce<'_, S, O> {
    /// Reduces four vectors at the byte offset `at`.
    ///
    /// # Safety
    /// The processor has the instruction set `A`, as [R1] requires. In every input and output, four
    /// vectors from the offset `at` may be accessed, as [R2] requires. If `streaming`, the address
    /// at offset `at` in every output is a multiple of the vector size.
    #[inline(always)]
    unsafe fn four<A: Arch>(&self, at: usize, streaming: bool) {
        // SAFETY: [R1], [R2]; if `streaming`, every output is aligned at `at`.
        unsafe {
            let scalar = S::value_of_word(self.inputs[0].scalar);
            let [a, b, c, d] = A::Vector::load_four(self.inputs[0].at.add(at));
            let mut a = self.first::<A>(a, scalar);
            let mut b = self.first::<A>(b, scalar);
            let mut c = self.first::<A>(c, scalar);
            let mut d = self.first::<A>(d, scalar);
            for input in &self.inputs[1..] {
                let scalar = S::value_of_word(input.scalar);
                let vectors = A::Vector::load_four(input.at.add(at));
                a = self.next::<A>(a, vectors[0], scalar);
                b = self.next::<A>(b, vectors[1], scalar);
                c = self.next::<A>(c, vectors[2], scalar);
                d = self.next::<A>(d, vectors[3], scalar);
            }
            let vectors = [self.last::<A>(a), self.last::<A>(b), self.last::<A>(c), self.last::<A>(d)];
            if streaming {
                for output in self.outputs {
                    A::Vector::store_four_streaming(vectors, output.add(at));
                }
            } else {
                for output in self.outputs {
                    A::Vector::store_four(vectors, output.add(at));
                }
            }
        }
    }

    /// Reduces one vector at the byte offset `at`.
    ///
    /// # Safety
    /// The processor has the instruction set `A`, as [R1] requires. In every input and output, one
    /// vector from the offset `at` may be accessed, as [R2] requires.
    #[inline(always)]
    unsafe fn one<A: Arch>(&self, at: usize) {
        // SAFETY: [R1], [R2].
        unsafe {
            let mut state = self.first::<A>(A::Vector::load(self.inputs[0].at.add(at)), S::value_of_word(self.inputs[0].scalar));
            for input in &self.inputs[1..] {
                state = self.next::<A>(state, A::Vector::load(input.at.add(at)), S::value_of_word(input.scalar));
            }
            let sum = self.last::<A>(state);
            for output in self.outputs {
                sum.store(output.add(at));
            }
        }
    }

    /// Reduces `bytes` bytes at the byte offset `at`. `bytes` is less than the size of a vector.
    /// The function loads these bytes into a vector, and fills the other lanes of this vector with
    /// zeros.
    ///
    /// # Safety
    /// The processor has the instruction set `A`, as [R1] requires. In every input and output,
    /// `bytes` bytes from the offset `at` may be accessed, as [R2] requires. `bytes` is less than
    /// the size of a vector.
    #[inline(always)]
    unsafe fn part<A: Arch>(&self, at: usize, bytes: usize) {
        // SAFETY: [R1], [R2].
        unsafe {
            let vector = A::load_part(self.inputs[0].at.add(at), bytes);
            let mut state = self.first::<A>(vector, S::value_of_word(self.inputs[0].scalar));
            for input in &self.inputs[1..] {
                state = self.next::<A>(state, A::load_part(input.at.add(at), bytes), S::value_of_word(input.scalar));
            }
            let sum = self.last::<A>(state);
            for output in self.outputs {
                A::store_part(sum, output.add(at), bytes);
            }
        }
    }

    // The functions below have neither closures nor loops over registers. A closure does not
    // inherit the instruction set of the function that contains it, so it is not inlined. A loop
    // over registers can make the compiler vectorise across the registers, with gathers.

    /// Returns the intermediate state of a reduction after the first input. `vector` contains
    /// elements of the first input, and `scalar` is the scalar of this input.
    ///
    /// # Safety
    /// The processor has the instruction set `A`, as [R1] requires.
    #[inline(always)]
    unsafe fn first<A: Arch>(&self, vector: A::Vector, scalar: S::Value) -> State<A, S> {
        // SAFETY: this processor has the instructions of `A`, [R1].
        let mut values = unsafe { S::decode::<A>(lanes_of::<A, S>(vector)) };
        for lane in 0..A::Values::<S>::LEN {
            values.lanes_mut()[lane] = self.op.first(values.lanes()[lane], scalar);
        }
        state_of::<A, S>(values)
    }

    /// Adds one more input to the reduction, and returns the new intermediate state. `vector`
    /// contains elements of this input, and `scalar` is the scalar of this input.
    ///
    /// # Safety
    /// The processor has the instruction set `A`, as [R1] requires.
    #[inline(always)]
    unsafe fn next<A: Arch>(&self, state: State<A, S>, vector: A::Vector, scalar: S::Value) -> State<A, S> {
        // SAFETY: this processor has the instructions of `A`, [R1].
        let values = unsafe { S::decode::<A>(lanes_of::<A, S>(vector)) };
        let mut sums = values_of::<A, S>(state);
        for lane in 0..A::Values::<S>::LEN {
            sums.lanes_mut()[lane] = self.op.next(sums.lanes()[lane], values.lanes()[lane], scalar);
        }
        state_of::<A, S>(sums)
    }

    /// Returns the result of a reduction. `state` is the intermediate state after the last input.
    ///
    /// # Safety
    /// The processor has the instruction set `A`, as [R1] requires.
    #[inline(always)]
    unsafe fn last<A: Arch>(&self, state: State<A, S>) -> A::Vector {
        let mut sums = values_of::<A, S>(state);
        for lane in 0..A::Values::<S>::LEN {
            sums.lanes_mut()[lane] = self.op.last(sums.lanes()[lane]);
        }
        // SAFETY: this processor has the instructions of `A`, [R1].
        unsafe { vector_of::<A, S>(S::encode::<A>(sums)) }
    }
}

/// The intermediate state of a reduction, after one or more inputs have been combined. The type
/// consists of vector registers. The compiler could split arrays of lanes into vectors of 16 bytes,
/// depending on other code in the codegen unit. `cargo xtask vectors` checks that no registers are
/// split.
type State<A, S> = <S as Storage>::Registers<<A as Arch>::Vector>;

#[inline(always)]
fn state_of<A: Arch, S: Storage>(values: A::Values<S>) -> State<A, S> {
    const { assert!(size_of::<A::Values<S>>() == size_of::<State<A, S>>()) };
    // SAFETY: both types have the same size. Every bit pattern is valid, [V1], and values have no
    // padding, [T1].
    unsafe { core::mem::transmute_copy(&values) }
}

#[inline(always)]
fn values_of<A: Arch, S: Storage>(state: State<A, S>) -> A::Values<S> {
    const { assert!(size_of::<A::Values<S>>() == size_of::<State<A, S>>()) };
    // SAFETY: both types have the same size, and every bit pattern is a number, [T1].
    unsafe { core::mem::transmute_copy(&state) }
}

#[inline(always)]
fn lanes_of<A: Arch, S: Storage>(vector: A::Vector) -> A::Raw<S> {
    const { assert!(size_of::<A::Vector>() == size_of::<A::Raw<S>>()) };
    // SAFETY: both types have the same size, and every bit pattern is valid, [T1].
    unsafe { core::mem::transmute_copy(&vector) }
}

#[inline(always)]
fn vector_of<A: Arch, S: Storage>(lanes: A::Raw<S>) -> A::Vector {
    const { assert!(size_of::<A::Vector>() == size_of::<A::Raw<S>>()) };
    // SAFETY: both types have the same size. Every bit pattern is valid, [V1], and elements have no
    // padding, [T1].
    unsafe { core::mem::transmute_copy(&lanes) }
}

/// Runs [`reduce`] with a given instruction set.
///
/// # Safety
/// As for [`reduce`].
pub(super) unsafe fn reduce_on(
    isa: Isa,
    dtype: DType,
    op: ReduceOp,
    inputs: &[Input],
    outputs: &[*mut u8],
    count: usize,
    stores: Stores,
) {
    assert!(
        !inputs.is_empty() && op.accepts(dtype),
        "peerweave-core bug: {op} of {dtype} with {} inputs, expected a supported reduction and at least one input",
        inputs.len()
    );
    if outputs.is_empty() || count == 0 {
        return;
    }
    let erased = Erased { isa, inputs, outputs, bytes: count * dtype.size_bytes(), stores };
    // SAFETY: the storage type is that of `dtype`, or another type of the same size on which the
    // operation has the same result bits. The caller guarantees the rest.
    unsafe {
        match (op, dtype) {
            (ReduceOp::And, _) => erased.run::<u8, _>(And),
            (ReduceOp::Or, _) => erased.run::<u8, _>(Or),
            (ReduceOp::Xor, _) => erased.run::<u8, _>(Xor),
            (_, DType::F16) => erased.ordered::<F16>(op),
            (_, DType::BF16) => erased.ordered::<Bf16>(op),
            (_, DType::F32) => erased.ordered::<f32>(op),
            (_, DType::F64) => erased.ordered::<f64>(op),
            // Wrapping sums and products do not depend on the sign.
            (ReduceOp::Sum | ReduceOp::Prod | ReduceOp::PreMulSum, DType::I8) => erased.ordered::<u8>(op),
            (ReduceOp::Sum | ReduceOp::Prod | ReduceOp::PreMulSum, DType::I16) => erased.ordered::<u16>(op),
            (ReduceOp::Sum | ReduceOp::Prod | ReduceOp::PreMulSum, DType::I32) => erased.ordered::<u32>(op),
            (ReduceOp::Sum | ReduceOp::Prod | ReduceOp::PreMulSum, DType::I64) => erased.ordered::<u64>(op),
            (_, DType::U8) => erased.ordered::<u8>(op),
            (_, DType::U16) => erased.ordered::<u16>(op),
            (_, DType::U32) => erased.ordered::<u32>(op),
            (_, DType::U64) => erased.ordered::<u64>(op),
            (_, DType::I8) => erased.comparing::<i8>(op),
            (_, DType::I16) => erased.comparing::<i16>(op),
            (_, DType::I32) => erased.comparing::<i32>(op),
            (_, DType::I64) => erased.comparing::<i64>(op),
            _ => unreachable!("peerweave-core bug: {op} of {dtype} is not supported"),
        }
    }
}

/// A reduction whose type and operation are known only at run time.
struct Erased<'a> {
    isa: Isa,
    inputs: &'a [Input],
    outputs: &'a [*mut u8],
    bytes: usize,
    stores: Stores,
}

impl Erased<'_> {
    /// Reduces the inputs by the operation `op`. `S` is the type of the elements in memory.
    ///
    /// # Safety
    /// As for [`reduce`], for elements that have the size of `S`.
    #[inline(always)]
    unsafe fn run<S: Storage, O: Op<S::Value>>(&self, op: O) {
        let &Self { isa, inputs, outputs, bytes, stores } = self;
        // SAFETY: guaranteed by the caller. A single element has the size of `S`.
        unsafe {
            if bytes == size_of::<S>() {
                single::<S, O>(op, inputs, outputs);
            } else {
                isa.enter(Reduce::<S, O> { op, inputs, outputs, bytes, stores, storage: PhantomData });
            }
        }
    }

    /// Runs `Sum`, `Prod`, `PreMulSum`, `Min`, `Max` or `Avg`.
    ///
    /// # Safety
    /// As for [`reduce`], for elements that have the size of `S`.
    #[inline(always)]
    unsafe fn ordered<S: Storage>(&self, op: ReduceOp) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match op {
                ReduceOp::Sum => self.run::<S, _>(Sum),
                ReduceOp::Prod => self.run::<S, _>(Prod),
                ReduceOp::PreMulSum => self.run::<S, _>(PreMulSum),
                _ => self.comparing::<S>(op),
            }
        }
    }

    /// Runs `Min`, `Max` or `Avg`. If the elements are integers, `S` must be signed or unsigned
    /// like the elements, because the results of these operations differ.
    ///
    /// # Safety
    /// As for [`reduce`], for elements that have the size of `S`.
    #[inline(always)]
    unsafe fn comparing<S: Storage>(&self, op: ReduceOp) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match op {
                ReduceOp::Min => self.run::<S, _>(Min),
                ReduceOp::Max => self.run::<S, _>(Max),
                ReduceOp::Avg => self.run::<S, _>(Avg(S::Value::divisor(self.inputs.len()))),
                _ => unreachable!("the operation is {op}, expected Min, Max or Avg"),
            }
        }
    }
}

/// Reduces one element with scalar code. The result has the same bits as a result of [`Reduce`],
/// because both apply the same operation to the same values.
///
/// # Safety
/// As for [`reduce`], for one element that has the size of `S`.
#[inline(always)]
unsafe fn single<S: Storage, O: Op<S::Value>>(op: O, inputs: &[Input], outputs: &[*mut u8]) {
    // SAFETY: guaranteed by the caller.
    let value = |input: &Input| unsafe { load_element::<S>(input.at) }.value();
    let mut state = op.first(value(&inputs[0]), S::value_of_word(inputs[0].scalar));
    for input in &inputs[1..] {
        state = op.next(state, value(input), S::value_of_word(input.scalar));
    }
    let result = S::of_value(op.last(state));
    for &output in outputs {
        // SAFETY: guaranteed by the caller. Elements have no padding, [T1].
        unsafe { super::copy::copy_inline(output, (&raw const result).cast(), size_of::<S>()) };
    }
}

/// Reads one element.
///
/// # Safety
/// As for [`super::copy()`], for the size of `S`.
#[inline(always)]
unsafe fn load_element<S: Storage>(from: *const u8) -> S {
    let mut element = core::mem::MaybeUninit::<S>::uninit();
    // SAFETY: the caller guarantees that `from` is valid. Every bit pattern is an element, [T1],
    // and the copy writes all bytes of the element.
    unsafe {
        super::copy::copy_inline(element.as_mut_ptr().cast(), from, size_of::<S>());
        element.assume_init()
    }
}

/// The operation of a reduction over values of type `V`.
trait Op<V: Copy>: Copy {
    /// Returns the intermediate state of a reduction after the first input. `value` is an element
    /// of the first input, and `scalar` is the scalar of this input.
    #[inline(always)]
    fn first(self, value: V, scalar: V) -> V {
        let _ = scalar;
        value
    }

    /// Combines the state with one more input, and returns the new state. `value` is an element of
    /// this input, and `scalar` is the scalar of this input.
    fn next(self, state: V, value: V, scalar: V) -> V;

    /// Returns the result of the reduction. `state` is the intermediate state after the last input.
    fn last(self, state: V) -> V;
}

macro_rules! op {
    ($($(#[$doc:meta])* $name:ident, $step:ident);* $(;)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $name;

        impl<V: Number> Op<V> for $name {
            #[inline(always)]
            fn next(self, state: V, value: V, _scalar: V) -> V {
                state.$step(value)
            }

            #[inline(always)]
            fn last(self, state: V) -> V {
                state.canonical()
            }
        }
    )*};
}

op!(
    /// Sum of the inputs.
    Sum, plus;
    /// Product of the inputs.
    Prod, times;
    /// Smallest input.
    Min, least;
    /// Largest input.
    Max, greatest;
);

/// Sum of the inputs, divided by their number.
#[derive(Clone, Copy)]
struct Avg<D>(D);

impl<V: Number> Op<V> for Avg<V::Divisor> {
    #[inline(always)]
    fn next(self, state: V, value: V, _scalar: V) -> V {
        state.plus(value)
    }

    #[inline(always)]
    fn last(self, state: V) -> V {
        state.over(self.0).canonical()
    }
}

/// Sum of the inputs, each multiplied by its scalar.
#[derive(Clone, Copy)]
struct PreMulSum;

impl<V: Number> Op<V> for PreMulSum {
    #[inline(always)]
    fn first(self, value: V, scalar: V) -> V {
        value.times(scalar)
    }

    #[inline(always)]
    fn next(self, state: V, value: V, scalar: V) -> V {
        state.plus(value.times(scalar))
    }

    #[inline(always)]
    fn last(self, state: V) -> V {
        state.canonical()
    }
}

macro_rules! bitwise {
    ($($(#[$doc:meta])* $name:ident, $operator:tt);* $(;)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $name;

        impl Op<u8> for $name {
            #[inline(always)]
            fn next(self, state: u8, value: u8, _scalar: u8) -> u8 {
                state $operator value
            }

            #[inline(always)]
            fn last(self, state: u8) -> u8 {
                state
            }
        }
    )*};
}

bitwise!(
    /// Bitwise AND, implemented only for bytes. Elements of larger integer types are reduced byte
    /// by byte.
    And, &;
    /// Bitwise OR, implemented only for bytes. Elements of larger integer types are reduced byte by
    /// byte.
    Or, |;
    /// Bitwise XOR, implemented only for bytes. Elements of larger integer types are reduced byte
    /// by byte.
    Xor, ^;
);
