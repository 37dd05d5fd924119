//! Cases of collectives around every threshold of an algorithm, and their comparison with the
//! oracle.
//!
//! All PEs derive the same cases from the same seed. Properties that differ among PEs (kinds of
//! buffers, their alignment) are derived from the seed and the rank.

use crate::check::ragged;
use crate::data::calls::{self, Form, On, Root};
use crate::data::memory::{Kind, MOST_SHIFT, Mem, arena_len, poison};
use crate::data::oracle::{self, Expected, Matrix};
use crate::data::sample::{Exact, Sample, hash, movable, reducible, scalar};
use peerweave::{
    DType, F8E4M3, F8E5M2, Rank, ReduceOp, Reduction, Stream, Symmetric, Team, TeamShape, VectorCounts, World, bf16, f16,
};

/// A call that all ranks make.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The collective.
    pub form: Form,
    /// The reduction, if the collective reduces.
    pub op: ReduceOp,
    /// The count of the collective, in elements. If parts differ in length, the count of the
    /// longest part.
    pub count: usize,
    /// The kind of all buffers; `None` for a mixture.
    pub kind: Option<Kind>,
    /// Whether the call is enqueued on a stream. Otherwise it runs on the calling thread.
    pub on_stream: bool,
    /// The seed of all other properties.
    pub seed: u64,
}

/// Memory shared by the cases of one element type.
#[derive(Debug)]
pub struct Arenas<T> {
    send: Symmetric<T>,
    recv: Symmetric<T>,
}

impl<T: Sample> Arenas<T> {
    /// Allocates room for cases of up to `longest` elements in a buffer. Collective.
    ///
    /// # Panics
    /// If the heap is too small.
    pub fn new(world: &World, longest: usize) -> Self {
        let len = arena_len(longest);
        Self {
            send: world.alloc(len).expect("the heap has enough memory"),
            recv: world.alloc(len).expect("the heap has enough memory"),
        }
    }

    /// Frees the memory. Collective.
    ///
    /// # Panics
    /// If the memory cannot be freed.
    pub fn release(self) {
        self.send.release().expect("all PEs release the memory");
        self.recv.release().expect("all PEs release the memory");
    }
}

/// Runs cases as one rank of a team.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The team.
    pub team: &'a Team,
    /// A stream of this PE.
    pub stream: &'a Stream,
}

impl Case {
    pub(crate) fn root(&self, n: usize) -> usize {
        (hash(&[self.seed, 1]) % n as u64) as usize
    }

    fn kind_of(&self, rank: usize, which: u64) -> Kind {
        let kind = self.kind.unwrap_or(Kind::ALL[(hash(&[self.seed, 2, rank as u64, which]) % 3) as usize]);
        if self.on_stream && kind == Kind::Slice { Kind::Buffer } else { kind }
    }

    fn shift(&self, rank: usize, which: u64) -> usize {
        (hash(&[self.seed, 3, rank as u64, which]) % (MOST_SHIFT as u64 + 1)) as usize
    }

    /// Returns the length of the longest buffer of any rank, in elements.
    pub fn longest(&self, n: usize) -> usize {
        (self.count + GAP) * n
    }
}

/// Maximum gap between parts of different lengths, in elements.
pub(crate) const GAP: usize = 3;

impl Bench<'_> {
    pub(crate) fn on(&self, case: &Case) -> On<'_> {
        if case.on_stream { On::Stream(self.stream) } else { On::Caller }
    }

    pub(crate) fn me(&self) -> (usize, usize) {
        (self.team.my_rank().index(), self.team.size())
    }

    /// Returns the source of this rank (empty if the call is in place), the destination, and the
    /// initial content of the destination.
    pub(crate) fn buffers<T: Sample>(
        &self,
        case: &Case,
        arenas: &Arenas<T>,
        mine: &[T],
        recv_len: usize,
    ) -> (Mem<T>, Mem<T>, Vec<T>) {
        let rank = self.me().0;
        let in_place = case.form.is_in_place();
        let before: Vec<T> = if in_place { mine.to_vec() } else { (0..recv_len).map(poison).collect() };
        let send = Mem::new(case.kind_of(rank, 0), &arenas.send, case.shift(rank, 0), if in_place { &[] } else { mine });
        let recv = Mem::new(case.kind_of(rank, 1), &arenas.recv, case.shift(rank, 1), &before);
        (send, recv, before)
    }

    /// Runs a case that reduces.
    ///
    /// # Panics
    /// If the result differs from the oracle's, or a byte outside the result changed.
    pub fn reduction<T: Exact>(&self, case: &Case, arenas: &Arenas<T>) {
        // A scan has no average.
        let op = if case.form.is_scan() && case.op == ReduceOp::Avg { ReduceOp::Sum } else { case.op };
        let case = &Case { op, ..*case };
        let (rank, n) = self.me();
        let root = case.root(n);
        let lens = |rank: usize| case.form.lens(case.count, n, rank == root);
        let inputs: Vec<Vec<T>> =
            (0..n).map(|r| (0..lens(r).0).map(|i| reducible(case.op, case.seed, r, i, n)).collect()).collect();
        let scalars: Vec<T> = (0..n).map(|r| scalar(case.seed, r)).collect();
        let (send, mut recv, before) = self.buffers(case, arenas, &inputs[rank], lens(rank).1);
        let op = match case.op {
            ReduceOp::PreMulSum => Reduction::pre_mul_sum(scalars[rank]),
            op => op.into(),
        };
        let passed = Root { rank: Rank::new(root as u32), others_pass_none: case.seed & 1 == 0 };
        let done = calls::reduction(case.form, self.team, self.on(case), &send, &mut recv, op, passed);
        let expected = oracle::reduction(case.form, case.op, &inputs, &scalars, rank, root, &before);
        self.check(case, done, &inputs[rank], &send, &recv, &expected);
    }

    /// Runs a case that only moves elements.
    ///
    /// # Panics
    /// As for [`Bench::reduction`].
    pub fn movement<T: Sample>(&self, case: &Case, arenas: &Arenas<T>) {
        if matches!(case.form, Form::AllToAllV | Form::AllToAllVInPlace) {
            return self.vector(case, arenas);
        }
        if case.form.has_parts() {
            return ragged::run(self, case, arenas);
        }
        let (rank, n) = self.me();
        let root = case.root(n);
        let lens = |rank: usize| case.form.lens(case.count, n, rank == root);
        let inputs: Vec<Vec<T>> = (0..n).map(|r| (0..lens(r).0).map(|i| movable(case.seed, r, i)).collect()).collect();
        let (send, mut recv, before) = self.buffers(case, arenas, &inputs[rank], lens(rank).1);
        let passed = Root { rank: Rank::new(root as u32), others_pass_none: case.seed & 1 == 0 };
        let done = calls::movement(case.form, self.team, self.on(case), &send, &mut recv, passed);
        let expected = oracle::movement(case.form, &inputs, rank, root, &before);
        self.check(case, done, &inputs[rank], &send, &recv, &expected);
    }

    fn vector<T: Sample>(&self, case: &Case, arenas: &Arenas<T>) {
        let (rank, n) = self.me();
        let in_place = case.form == Form::AllToAllVInPlace;
        let pair = |from: usize, to: usize| if in_place { (from.min(to), from.max(to)) } else { (from, to) };
        let counts: Matrix = (0..n)
            .map(|from| {
                (0..n)
                    .map(|to| {
                        let (a, b) = pair(from, to);
                        match hash(&[case.seed, 4, a as u64, b as u64]) {
                            random if random % 4 == 0 => 0,
                            random if random % 4 == 1 => case.count,
                            random => ((random >> 8) % (case.count as u64 + 1)) as usize,
                        }
                    })
                    .collect()
            })
            .collect();
        // Places the parts in an order that depends on the rank, with gaps between them.
        let places = |rank: usize, side: u64, lens: &dyn Fn(usize) -> usize| -> Vec<usize> {
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by_key(|&peer| hash(&[case.seed, 5, side, rank as u64, peer as u64]));
            let mut next = 0;
            let mut offsets = vec![0; n];
            for peer in order {
                next += (hash(&[case.seed, 6, side, rank as u64, peer as u64]) % (GAP as u64 + 1)) as usize;
                offsets[peer] = next;
                next += lens(peer);
            }
            offsets
        };
        let send_offsets: Matrix = (0..n).map(|from| places(from, 0, &|to| counts[from][to])).collect();
        let recv_offsets = if in_place { send_offsets[rank].clone() } else { places(rank, 1, &|from| counts[from][rank]) };
        let end =
            |offsets: &[usize], lens: &dyn Fn(usize) -> usize| (0..n).map(|peer| offsets[peer] + lens(peer)).max().unwrap_or(0);
        let inputs: Vec<Vec<T>> = (0..n)
            .map(|from| (0..end(&send_offsets[from], &|to| counts[from][to])).map(|i| movable(case.seed, from, i)).collect())
            .collect();
        let recv_counts: Vec<usize> = (0..n).map(|from| counts[from][rank]).collect();
        let recv_len = end(&recv_offsets, &|from| recv_counts[from]);
        let (send, mut recv, before) = self.buffers(case, arenas, &inputs[rank], recv_len);
        let passed = VectorCounts {
            send_counts: counts[rank].clone(),
            send_offsets: send_offsets[rank].clone(),
            recv_counts,
            recv_offsets: recv_offsets.clone(),
        };
        let done = calls::vector(case.form, self.team, self.on(case), &send, &mut recv, passed);
        let expected = oracle::vector(&inputs, &counts, &send_offsets, &recv_offsets, rank, &before);
        self.check(case, done, &inputs[rank], &send, &recv, &expected);
    }

    pub(crate) fn check<T: Sample>(
        &self,
        case: &Case,
        done: peerweave::Result<()>,
        mine: &[T],
        send: &Mem<T>,
        recv: &Mem<T>,
        expected: &Expected<T>,
    ) {
        let (rank, n) = self.me();
        let (from, to) = (case.kind_of(rank, 0), case.kind_of(rank, 1));
        let whole = || format!("rank {rank} of {n}, {} from {from:?} to {to:?}: {case:?}", T::DTYPE);
        done.unwrap_or_else(|error| panic!("{error}\n{}", whole()));
        let found = recv.contents().unwrap_or_else(|touched| panic!("receive buffer: {touched}\n{}", whole()));
        assert_eq!(found.len(), expected.len(), "{}", whole());
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            if expected.is_some_and(|expected| expected.bits() != found.bits()) {
                panic!("element {i} of {} is {found:?}, expected {expected:?}\n{}", recv.len(), whole());
            }
        }
        let sent = send.contents().unwrap_or_else(|touched| panic!("send buffer: {touched}\n{}", whole()));
        let same = send.is_empty() || sent.iter().zip(mine).all(|(now, before)| now.bits() == before.bits());
        assert!(same, "the source has changed\n{}", whole());
    }
}

/// Returns small and large counts for elements of `size` bytes among `n` ranks. The counts are
/// around the sizes at which the host backend chooses another algorithm.
pub fn counts(form: Form, size: usize, n: usize) -> [Vec<usize>; 2] {
    let parts = if form.lens(1, n, true).0 == n && form.lens(1, n, false).0 == n { n } else { 1 };
    let around = |bytes: usize| {
        let count = bytes / (size * parts);
        [count.saturating_sub(1), count, count + 1]
    };
    let small: Vec<usize> = [0, 1, 2, 3, 5, 6, 7]
        .into_iter()
        .chain([16, 24, 64, 2048, 4096, 8192].into_iter().flat_map(around))
        .chain([1021 / parts, 20_011 / (size * parts)])
        .collect();
    let large = around(256 << 10).into_iter().chain([(512 << 10) / (size * parts) + 1, 700_001 / (size * parts)]).collect();
    [small, large]
}

/// Runs cases for one element type in one team. Collective over the world: PEs that are not in the
/// team pass `None`.
///
/// # Panics
/// If a case fails.
pub fn all_of_a_type(world: &World, team: Option<&Team>, dtype: DType, passes: usize, seed: u64) {
    let run = match dtype {
        DType::I8 => numbers::<i8>,
        DType::U8 => numbers::<u8>,
        DType::I16 => numbers::<i16>,
        DType::U16 => numbers::<u16>,
        DType::I32 => numbers::<i32>,
        DType::U32 => numbers::<u32>,
        DType::I64 => numbers::<i64>,
        DType::U64 => numbers::<u64>,
        DType::F16 => numbers::<f16>,
        DType::BF16 => numbers::<bf16>,
        DType::F32 => numbers::<f32>,
        DType::F64 => numbers::<f64>,
        DType::F8E4M3 => elements::<F8E4M3>,
        DType::F8E5M2 => elements::<F8E5M2>,
        other => panic!("unknown element type {other}"),
    };
    run(world, team, passes, seed);
}

/// Returns the cases of one form: some around the small thresholds, and a few around the large
/// ones.
fn cases(form: Form, op: ReduceOp, size: usize, n: usize, passes: usize, seed: u64) -> impl Iterator<Item = Case> {
    let [small, large] = counts(form, size, n);
    (0..passes).map(move |pass| {
        let seed = hash(&[seed, form as u64, op as u64, size as u64, pass as u64]);
        let pick = seed >> 8;
        let count = if pick.is_multiple_of(16) {
            large[(pick >> 8) as usize % large.len()]
        } else {
            small[(pick >> 8) as usize % small.len()]
        };
        let kind = [None, Some(Kind::Symmetric), Some(Kind::Slice), Some(Kind::Buffer)][(pick >> 20) as usize % 4];
        Case { form, op, count, kind, on_stream: pick >> 30 & 3 == 0, seed }
    })
}

/// Runs every form at every threshold, on buffers of every kind. The reduction operations alternate
/// among the cases. Collective over the world.
///
/// # Panics
/// If a case fails.
pub fn borders<T: Exact>(world: &World, seed: u64) {
    let n = world.n_pes();
    let arenas = Arenas::<T>::new(world, longest(size_of::<T>(), n));
    let stream = world.stream().expect("a stream can be created");
    let bench = Bench { team: world.team(), stream: &stream };
    let ops: Vec<ReduceOp> = ReduceOp::ALL.into_iter().filter(|op| op.accepts(T::DTYPE)).collect();
    let kinds = [None, Some(Kind::Symmetric), Some(Kind::Slice), Some(Kind::Buffer)];
    let mut number = 0;
    for form in Form::REDUCING.into_iter().chain(Form::MOVING) {
        let [small, large] = counts(form, size_of::<T>(), n);
        for (i, count) in small.iter().chain(&large).copied().enumerate() {
            for (j, kind) in kinds.into_iter().enumerate() {
                number += 1;
                // A large count runs with the mixture and with one of the kinds, which alternate.
                if i >= small.len() && j != 0 && (i + j) % 3 != 0 {
                    continue;
                }
                let op = ops[number % ops.len()];
                let case = Case { form, op, count, kind, on_stream: number % 3 == 0, seed: hash(&[seed, number as u64]) };
                if Form::REDUCING.contains(&form) { bench.reduction(&case, &arenas) } else { bench.movement(&case, &arenas) }
            }
        }
    }
    arenas.release();
}

/// Returns the length of the longest buffer of [`cases`], in elements, among `n` ranks.
fn longest(size: usize, n: usize) -> usize {
    // In the forms with one operand, a rank has up to 700 001 bytes; in gathers, each rank
    // contributes that many.
    (700_001usize.div_ceil(size) + GAP + 1) * n
}

fn elements<T: Sample>(world: &World, team: Option<&Team>, passes: usize, seed: u64) {
    let arenas = Arenas::<T>::new(world, longest(size_of::<T>(), world.n_pes()));
    if let Some(team) = team {
        let stream = world.stream().expect("a stream can be created");
        let bench = Bench { team, stream: &stream };
        moving(&bench, &arenas, passes, seed);
    }
    arenas.release();
}

fn moving<T: Sample>(bench: &Bench<'_>, arenas: &Arenas<T>, passes: usize, seed: u64) {
    for form in Form::MOVING {
        for case in cases(form, ReduceOp::Sum, size_of::<T>(), bench.team.size(), passes, seed ^ T::DTYPE as u64) {
            bench.movement(&case, arenas);
        }
    }
}

fn numbers<T: Exact>(world: &World, team: Option<&Team>, passes: usize, seed: u64) {
    let arenas = Arenas::<T>::new(world, longest(size_of::<T>(), world.n_pes()));
    if let Some(team) = team {
        let stream = world.stream().expect("a stream can be created");
        let bench = Bench { team, stream: &stream };
        moving(&bench, &arenas, passes, seed);
        for form in Form::REDUCING {
            for op in ReduceOp::ALL.into_iter().filter(|op| op.accepts(T::DTYPE)) {
                for case in cases(form, op, size_of::<T>(), team.size(), passes, seed ^ T::DTYPE as u64) {
                    bench.reduction(&case, &arenas);
                }
            }
        }
    }
    arenas.release();
}

/// Creates the team with the given shape. Returns `None` on PEs outside the team. Collective over
/// the world.
///
/// # Panics
/// If the team cannot be created.
pub fn team_of(world: &World, shape: &str) -> Option<Team> {
    let all = world.team();
    let (n, me) = (all.size() as u32, all.my_rank().get());
    let made = match shape {
        "world" => return Some(all.clone()),
        "every_second" => all.split_strided(TeamShape { start: 0, stride: 2, size: n.div_ceil(2) }),
        "reversed" => all.split_strided(TeamShape { start: n - 1, stride: -1, size: n }),
        "colors" => all.split(Some((me % 3).into()), -i64::from(me)),
        "all_but_one" => all.split((me != 1 || n == 1).then_some(7), 0),
        "rows" => all.split_2d(2).map(|(row, _)| Some(row)),
        "columns" => all.split_2d(2).map(|(_, column)| Some(column)),
        other => panic!("unknown shape of a team: {other}"),
    };
    made.unwrap_or_else(|error| panic!("team of shape {shape}: {error}"))
}

/// Runs a check in teams of these shapes, one after another. Each shape must contain every PE, and
/// all teams of a shape must have the same size. Collective over the world.
///
/// # Panics
/// If a team cannot be created, or if the check panics.
pub fn in_teams(world: &World, shapes: &[&str], check: impl Fn(&Team)) {
    for shape in shapes {
        let team = team_of(world, shape).unwrap_or_else(|| panic!("the shape {shape} does not contain every PE"));
        check(&team);
        if *shape != "world" {
            team.destroy().unwrap_or_else(|error| panic!("team of shape {shape}: {error}"));
        }
    }
}

/// Returns the shapes of teams that [`in_teams`] accepts with this number of PEs.
pub fn shapes_for(n_pes: usize) -> &'static [&'static str] {
    match n_pes {
        1 => &["world"],
        n if n.is_multiple_of(2) => &["world", "reversed", "rows", "columns"],
        _ => &["world", "reversed"],
    }
}
