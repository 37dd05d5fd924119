//! Collectives with known results.

use peerweave_core::{Parts, Rank, ReduceFn, ReduceOp, Result, Stream, Strides, Symmetric, Team, World, bf16};

/// Memory of a PE for the operands and results of its calls.
pub(crate) struct Operands {
    pub(crate) x: Symmetric<f32>,
    pub(crate) y: Symmetric<f32>,
    pub(crate) halves: Symmetric<bf16>,
    pub(crate) words: Symmetric<u64>,
    n: usize,
    me: usize,
}

/// Number of elements of a part in the longest call.
pub(crate) const MOST: usize = 1 << 16;

/// Number of kinds of calls that graphs can contain. [`Operands::enqueue`] has one more kind: a
/// reduction by a function that runs on the host.
pub(crate) const KINDS: u64 = 14;

impl Operands {
    pub(crate) fn new(world: &World) -> Result<Self> {
        let (n, me) = (world.n_pes(), world.my_pe().index());
        let len = MOST * n;
        let made = Self {
            x: world.alloc_zeroed(len)?,
            y: world.alloc_zeroed(len)?,
            halves: world.alloc_zeroed(len)?,
            words: world.alloc_zeroed(1)?,
            n,
            me,
        };
        let part = |rank: usize, i: usize| (rank + 1) as f32 + (i % 7) as f32;
        made.x.copy_from(&(0..len).map(|i| part(me, i)).collect::<Vec<f32>>())?;
        made.halves.copy_from(&(0..len).map(|i| bf16::from_f32(part(me, i))).collect::<Vec<bf16>>())?;
        Ok(made)
    }

    /// Returns the element at `index` in the input of rank `rank`.
    fn given(rank: usize, index: usize) -> f32 {
        (rank + 1) as f32 + (index % 7) as f32
    }

    /// Enqueues a call of kind `kind`, with parts of `len` elements.
    pub(crate) fn enqueue(&self, team: &Team, stream: &Stream, kind: u64, len: usize) -> Result<()> {
        let (n, root) = (self.n, Rank::new((len % self.n) as u32));
        let part = |buffer: &Symmetric<f32>| buffer.slice(..len);
        let all = |buffer: &Symmetric<f32>| buffer.slice(..n * len);
        match kind {
            0 => team.all_reduce(stream, &part(&self.x)?, &part(&self.y)?, ReduceOp::Sum),
            1 => team.all_gather(stream, &part(&self.x)?, &all(&self.y)?),
            2 => team.all_to_all(stream, &all(&self.x)?, &all(&self.y)?),
            3 => team.reduce_scatter(stream, &all(&self.x)?, &part(&self.y)?, ReduceOp::Sum),
            4 => team.broadcast(stream, &part(&self.x)?, &part(&self.y)?, root),
            5 => team.gather(stream, &part(&self.x)?, &all(&self.y)?, root),
            6 => team.scatter(stream, &all(&self.x)?, &part(&self.y)?, root),
            7 => team.reduce(stream, &part(&self.x)?, &part(&self.y)?, ReduceOp::Max, root),
            8 => team.all_reduce_in_place(stream, &self.halves.slice(..len)?, ReduceOp::Max),
            9 => team.scan(stream, &part(&self.x)?, &part(&self.y)?, ReduceOp::Sum),
            10 => team.exclusive_scan(stream, &part(&self.x)?, &part(&self.y)?, ReduceOp::Max),
            11 => {
                let strides = Strides { count: len / 2, source: 2, dest: 1 };
                team.all_to_all_strided(stream, &all(&self.x)?, &all(&self.y)?, strides)
            }
            12 => team.all_gather_v(stream, &part(&self.x)?, &all(&self.y)?, Parts::equal(n, len)),
            13 => team.barrier(stream),
            _ => team.all_reduce_with(stream, &part(&self.x)?, &part(&self.y)?, &ReduceFn::new(f32::max)),
        }
        .map(drop)
    }

    /// Compares the result of the last call with the expected result. The error describes the
    /// difference.
    pub(crate) fn check(&self, kind: u64, len: usize) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let (n, me, root) = (self.n, self.me, len % self.n);
        let sum = |index: usize| (0..n).map(|rank| Self::given(rank, index)).sum::<f32>();
        let expected: Vec<f32> = match kind {
            0 => (0..len).map(sum).collect(),
            1 | 12 => (0..n).flat_map(|rank| (0..len).map(move |i| Self::given(rank, i))).collect(),
            2 => (0..n).flat_map(|rank| (0..len).map(move |i| Self::given(rank, me * len + i))).collect(),
            3 => (me * len..(me + 1) * len).map(sum).collect(),
            4 => (0..len).map(|i| Self::given(root, i)).collect(),
            5 if me == root => (0..n).flat_map(|rank| (0..len).map(move |i| Self::given(rank, i))).collect(),
            6 => (0..len).map(|i| Self::given(root, me * len + i)).collect(),
            7 if me == root => (0..len).map(|i| Self::given(n - 1, i)).collect(),
            9 => (0..len).map(|i| (0..=me).map(|rank| Self::given(rank, i)).sum()).collect(),
            10 if me > 0 => (0..len).map(|i| Self::given(me - 1, i)).collect(),
            11 => {
                let count = len / 2;
                (0..n).flat_map(|rank| (0..count).map(move |i| Self::given(rank, 2 * (me * count + i)))).collect()
            }
            14 => (0..len).map(|i| Self::given(n - 1, i)).collect(),
            _ => return Ok(()),
        };
        self.compare(&format!("call of kind {kind} with parts of {len} elements"), &expected)
    }

    /// Compares the elements that the previous PE has put with the input of that PE.
    pub(crate) fn check_put(&self, len: usize) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let left = (self.me + self.n - 1) % self.n;
        let expected: Vec<f32> = (0..len).map(|i| Self::given(left, i)).collect();
        self.compare(&format!("put of {len} elements"), &expected)
    }

    fn compare(&self, what: &str, expected: &[f32]) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let found = self.y.slice(..expected.len())?.to_vec()?;
        match found.iter().zip(expected).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(at) => {
                let (found, expected) = (found[at], expected[at]);
                Err(format!("{what}: element {at} is {found}, expected {expected}").into())
            }
        }
    }
}

/// Returns a pseudorandom number that depends on all numbers in `of`.
pub(crate) fn random(of: &[u64]) -> u64 {
    of.iter().fold(0x9e37_79b9_7f4a_7c15, |state: u64, word| {
        let mixed = (state ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 29)
    })
}
