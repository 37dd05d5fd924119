//! The PEs of a test with their staging areas, and functions that run collective kernels on these
//! PEs.

use crate::numbers::Numbers;
use peerweave_collectives::{Algorithm, Call, MAX_RANKS, Results, all_reduce};
use peerweave_device::launch::Kernel;
use peerweave_grid::{Job, JobError, Options, Shape};
use peerweave_types::{Plain, ReduceOp, SymSlice};
use std::time::Duration;

/// Size in bytes of each of the two banks of a staging area.
const BANK_BYTES: usize = 64 << 10;
/// Size in bytes of a slot in the ring of a block.
const SLOT_BYTES: usize = 2 << 10;
const MAX_BLOCKS: u32 = 4;
/// The value of every byte that no call has written.
pub(crate) const MARK: u8 = 0xa5;

/// The numbers of ranks with which the tests run.
pub(crate) const RANKS: [u32; 5] = [1, 2, 3, 5, 8];
const SENTINEL: [u64; 2] = [0x5eed_0123_4567_89ab, 0xc0de_fedc_ba98_7655];

/// The arguments of one collective call in a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) algorithm: Algorithm,
    pub(crate) op: ReduceOp,
    pub(crate) count: usize,
    /// Distance of the input, and of the result, from an aligned address, in elements.
    pub(crate) shift: [usize; 2],
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) in_place: bool,
}

impl Default for Given {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::OneShot,
            op: ReduceOp::Sum,
            count: 1000,
            shift: [0, 0],
            blocks: 2,
            threads: 32,
            in_place: false,
        }
    }
}

/// A job in which some PEs are the ranks of a team.
pub(crate) struct World {
    pub(crate) job: Job,
    pub(crate) members: Vec<u32>,
    /// Memory of the two banks of each PE's staging area.
    banks: SymSlice<u64>,
    /// Memory of the rings of all blocks, with their flags.
    rings: SymSlice<u64>,
    /// The counter of launches, followed by one counter of rounds for each block.
    counters: SymSlice<u64>,
    operands: [SymSlice<u8>; 2],
}

impl World {
    pub(crate) fn new(ranks: u32, seed: u64) -> Self {
        Self::of(ranks, &(0..ranks).collect::<Vec<_>>(), seed)
    }

    /// Creates a job of `pes` PEs, in which the PEs `members` are the ranks of a team.
    pub(crate) fn of(pes: u32, members: &[u32], seed: u64) -> Self {
        Self::with_deadline(pes, members, seed, Duration::from_secs(60))
    }

    pub(crate) fn with_deadline(pes: u32, members: &[u32], seed: u64, deadline: Duration) -> Self {
        let mut job = Job::new(pes).options(Options::default().deadline(deadline).seed(seed));
        let banks = job.alloc::<u64>(2 * BANK_BYTES / 8);
        let rings = job.alloc::<u64>(all_reduce::ring_bytes(MAX_BLOCKS, SLOT_BYTES as u64) as usize / 8);
        let counters = job.alloc::<u64>(1 + MAX_BLOCKS as usize);
        let operands = [job.alloc::<u8>(1 << 16), job.alloc::<u8>(1 << 16)];
        let sentinels: Vec<u64> = SENTINEL.into_iter().cycle().take(banks.len()).collect();
        for pe in 0..pes {
            job.write(pe, banks, &sentinels);
        }
        Self { job, members: members.to_vec(), banks, rings, counters, operands }
    }

    pub(crate) fn call(&self, given: &Given, rank: usize, bytes: usize, scalar: u64) -> Call {
        let n = self.members.len();
        let behind = |k: usize| self.members[(rank + k) % n];
        let is_chunked = given.algorithm == Algorithm::Chunked;
        let area = if is_chunked { self.rings } else { self.banks };
        let me = self.members[rank];
        let send = self.job.address(me, self.operands[0]) + (given.shift[0] * bytes) as u64;
        let recv = self.job.address(me, self.operands[1]) + (given.shift[1] * bytes) as u64;
        Call {
            areas: std::array::from_fn(|k| if k < n { self.job.address(behind(k), area) } else { 0 }),
            pes: std::array::from_fn(|k| if k < n { behind(k) } else { 0 }),
            send,
            recv: if given.in_place { send } else { recv },
            count: given.count as u64,
            sentinel: SENTINEL,
            counter: self.job.address(me, self.counters) + if is_chunked { 8 } else { 0 },
            bank_bytes: if is_chunked { SLOT_BYTES } else { BANK_BYTES } as u64,
            stride: 0,
            scalar,
            ranks: n as u32,
            rank: rank as u32,
            op: given.op as u32,
            max_blocks: MAX_BLOCKS,
            results: Results::Every.code(),
            is_symmetric: 0,
            is_combined: 0,
            is_exclusive: 0,
        }
    }

    pub(crate) fn view<T: Plain>(&self, index: usize, shift: usize, count: usize) -> SymSlice<T> {
        let bytes = size_of::<T>();
        let part = self.operands[index].slice(shift * bytes..(shift + count) * bytes);
        // SAFETY: the range is inside an allocation of the job. It is aligned to the element,
        // because operands have a larger alignment and the shift is a number of elements.
        unsafe { SymSlice::from_raw(part.offset(), count) }
    }

    /// Runs an all_reduce kernel on the ranks for which `is_there` is true.
    pub(crate) fn launch<T: Numbers>(&mut self, given: &Given, is_there: impl Fn(u32) -> bool) -> Result<(), JobError> {
        assert!(MAX_RANKS >= self.members.len());
        let n = self.members.len() as u32;
        let is_whole = |at: usize| (given.shift[at] * size_of::<T>()).is_multiple_of(16);
        let is_plain = given.op == ReduceOp::Sum
            && (given.count * size_of::<T>()).is_multiple_of(16)
            && is_whole(0)
            && (given.in_place || is_whole(1));
        let kernel =
            all_reduce::kernel(given.algorithm, T::DTYPE, n, is_plain).expect("a kernel exists for a type that can be reduced");
        let calls: Vec<Call> =
            (0..self.members.len()).map(|rank| self.call(given, rank, size_of::<T>(), scalar::<T>(rank as u32).bits())).collect();
        self.run(kernel, given, &calls, is_there)
    }

    /// Launches a kernel on the ranks for which `is_there` is true. Each rank gets its own call.
    pub(crate) fn run(
        &mut self,
        kernel: &Kernel<(Call,)>,
        given: &Given,
        calls: &[Call],
        is_there: impl Fn(u32) -> bool,
    ) -> Result<(), JobError> {
        let members = self.members.clone();
        self.job.launch_each(kernel, Shape::new(given.blocks, given.threads), |pe| {
            let rank = members.iter().position(|member| *member == pe)?;
            is_there(rank as u32).then(|| (calls[rank],))
        })
    }

    /// Runs an all_reduce on all ranks. Checks that every element of the result has the bits of the
    /// reference, and that no other memory is written.
    pub(crate) fn check<T: Numbers>(&mut self, given: &Given) {
        self.check_inputs(given, &self.inputs::<T>(given));
    }

    /// Returns the elements of each rank's input.
    pub(crate) fn inputs<T: Numbers>(&self, given: &Given) -> Vec<Vec<T>> {
        let input = |rank| (0..given.count).map(|i| T::given(rank, i)).collect();
        (0..self.members.len() as u32).map(input).collect()
    }

    fn check_inputs<T: Numbers>(&mut self, given: &Given, inputs: &[Vec<T>]) {
        let scalars: Vec<T> = (0..self.members.len() as u32).map(scalar::<T>).collect();
        let expected: Vec<u64> = (0..given.count)
            .map(|i| T::expected(given.op, &inputs.iter().map(|input| input[i]).collect::<Vec<_>>(), &scalars).bits())
            .collect();
        self.check_launch(given, inputs, |world| world.launch::<T>(given, |_| true), |_, _| expected.clone());
    }

    /// Writes the inputs, and runs a collective on all ranks with `launch`. Checks the bits of
    /// every element of the results, and that no other memory is written. `expected` takes a rank
    /// and the bits in its result buffer before the call, and returns the expected bits.
    pub(crate) fn check_launch<T: Numbers>(
        &mut self,
        given: &Given,
        inputs: &[Vec<T>],
        launch: impl FnOnce(&mut Self) -> Result<(), JobError>,
        expected: impl Fn(usize, Vec<u64>) -> Vec<u64>,
    ) {
        let n = self.members.len();
        let from = self.view::<T>(0, given.shift[0], given.count);
        let to = if given.in_place { from } else { self.view::<T>(1, given.shift[1], given.count) };
        for (pe, input) in self.members.clone().into_iter().zip(inputs) {
            let all = self.operands[1].len();
            self.job.write(pe, self.operands[1], &vec![MARK; all]);
            self.job.write(pe, from, input);
        }
        let bits = |world: &Self, pe: u32| -> Vec<u64> { world.job.read(pe, to).into_iter().map(T::bits).collect() };
        let before: Vec<Vec<u64>> = self.members.iter().map(|pe| bits(self, *pe)).collect();
        if let Err(error) = launch(self) {
            panic!("{given:?} of {} on {n} ranks: {error}", T::DTYPE);
        }
        for ((rank, pe), before) in self.members.clone().into_iter().enumerate().zip(before) {
            let (found, expected) = (bits(self, pe), expected(rank, before));
            let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
            assert_eq!(wrong, None, "{given:?} of {} on PE {pe}: {:?}", T::DTYPE, wrong.map(|i| (found[i], expected[i])));
            let whole = self.job.read(pe, self.operands[1]);
            let (shift, bytes) = (given.shift[1], size_of::<T>());
            let untouched = |range: &[u8]| range.iter().all(|byte| *byte == MARK);
            let written = if given.in_place { 0..0 } else { shift * bytes..(shift + given.count) * bytes };
            assert!(
                untouched(&whole[..written.start]) && untouched(&whole[written.end..]),
                "{given:?}: PE {pe} wrote outside the result"
            );
        }
    }

    /// Checks all_reduce calls whose inputs consist of words with the bits `fill`.
    pub(crate) fn check_bits(&mut self, algorithm: Algorithm, fill: u64) {
        for op in [ReduceOp::Xor, ReduceOp::And, ReduceOp::Sum] {
            let inputs = vec![vec![fill; 500]; self.members.len()];
            self.check_inputs::<u64>(&Given { algorithm, op, count: 500, ..Given::default() }, &inputs);
        }
    }
}

/// Returns the scalar by which rank `rank` multiplies its input in `PreMulSum`.
pub(crate) fn scalar<T: Numbers>(rank: u32) -> T {
    T::given(rank, 7)
}
