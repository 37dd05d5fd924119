//! Compares dispatch and combine for mixture of experts with a plain computation of the whole
//! exchange.

use peerweave::{Element, F8E4M3, Result, Symmetric, World, bf16, f16};
use peerweave_moe::{Moe, Output, Received, Shape, Tokens};

/// A generator of numbers that look random.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns a number in [-1, 1).
    fn number(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// How tokens choose experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Any experts, sometimes none; each rank has any number of tokens.
    Random,
    /// Only experts of the last rank.
    OneRank,
    /// Only the first expert of each rank. Every rank has the maximum number of tokens.
    FirstOfEach,
    /// No experts at all.
    Nobody,
}

/// A type of tokens and results that the tests convert from and to numbers.
pub trait Value: Element + PartialEq + std::fmt::Debug {
    /// Converts a number: rounds it, or maps it to arbitrary bits.
    fn of(value: f32) -> Self;
    /// Converts to a number.
    fn value(self) -> f32;
}

impl Value for f32 {
    fn of(value: f32) -> Self {
        value
    }
    fn value(self) -> f32 {
        self
    }
}

impl Value for bf16 {
    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }
    fn value(self) -> f32 {
        self.to_f32()
    }
}

impl Value for f16 {
    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }
    fn value(self) -> f32 {
        self.to_f32()
    }
}

impl Value for F8E4M3 {
    /// Returns arbitrary bits, because tokens of this type are only moved.
    fn of(value: f32) -> Self {
        Self::from_bits((value * 50.0) as i8 as u8 & 0x77)
    }
    fn value(self) -> f32 {
        f32::from(self.to_bits()) / 16.0
    }
}

/// The tokens of one rank in one call.
#[derive(Clone)]
struct Batch<T> {
    rows: Vec<T>,
    scales: Vec<f32>,
    experts: Vec<i32>,
    weights: Vec<f32>,
}

/// The parameters of a test.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The shape of the exchange. A test may change how its kernels are launched.
    pub shape: Shape,
    experts: usize,
    top_k: usize,
    hidden: usize,
    max_tokens: usize,
    scales: usize,
    routing: Routing,
}

impl Case {
    /// Returns the parameters of a test: see [`Shape::new`] and [`Shape::scales`].
    pub fn new(experts: usize, top_k: usize, hidden: usize, max_tokens: usize, scales: usize, routing: Routing) -> Self {
        // The experts of a token are distinct, so a token has no more than `experts` of them.
        let top_k = top_k.min(experts);
        let shape = Shape::new(experts, top_k, hidden, max_tokens).scales(scales);
        Self { shape, experts, top_k, hidden, max_tokens, scales, routing }
    }

    /// Returns the tokens of a rank in a call.
    fn batch<T: Value>(&self, ranks: usize, rank: usize, call: usize) -> Batch<T> {
        let mut random = Random((call * 1000 + rank * 10 + 7) as u64);
        let tokens = if self.routing == Routing::FirstOfEach { self.max_tokens } else { random.below(self.max_tokens + 1) };
        let local = self.experts / ranks;
        let mut expert = |k: usize| match self.routing {
            Routing::Random => random.below(self.experts + 1) as i32 - 1,
            Routing::OneRank => (self.experts - local + random.below(local)) as i32,
            Routing::FirstOfEach => (k % ranks * local) as i32,
            Routing::Nobody => -1,
        };
        let mut experts: Vec<i32> = (0..tokens * self.top_k).map(|index| expert(index % self.top_k)).collect();
        // The experts of a token are distinct: -1 replaces repeated ones.
        for token in experts.chunks_mut(self.top_k) {
            for k in 1..token.len() {
                if token[..k].contains(&token[k]) {
                    token[k] = -1;
                }
            }
        }
        Batch {
            experts,
            weights: (0..tokens * self.top_k).map(|_| random.number()).collect(),
            rows: (0..tokens * self.hidden).map(|_| T::of(random.number())).collect(),
            scales: (0..tokens * self.scales).map(|_| random.number()).collect(),
        }
    }
}

/// The results of one rank after a dispatch and a combine, computed from the tokens of all ranks.
struct Expected<T, Y> {
    rows: Vec<T>,
    scales: Vec<f32>,
    offsets: Vec<u32>,
    outputs: Vec<Y>,
}

/// Returns the result of an expert for an element.
fn result<T: Value, Y: Value>(expert: usize, value: T) -> Y {
    Y::of(value.value() * (expert % 5 + 1) as f32)
}

fn expected<T: Value, Y: Value>(case: &Case, batches: &[Batch<T>], me: usize) -> Expected<T, Y> {
    let (ranks, hidden) = (batches.len(), case.hidden);
    let local = case.experts / ranks;
    let mut found = Expected { rows: vec![], scales: vec![], offsets: vec![0], outputs: vec![] };
    for expert in me * local..(me + 1) * local {
        for batch in batches {
            for (index, _) in batch.experts.iter().enumerate().filter(|(_, chosen)| **chosen == expert as i32) {
                let token = index / case.top_k;
                found.rows.extend(&batch.rows[token * hidden..][..hidden]);
                found.scales.extend(&batch.scales[token * case.scales..][..case.scales]);
            }
        }
        found.offsets.push((found.rows.len() / hidden) as u32);
    }
    let mine = &batches[me];
    for token in 0..mine.experts.len() / case.top_k {
        for element in 0..hidden {
            let value = mine.rows[token * hidden + element];
            let mut sum = 0.0;
            for rank in 0..ranks {
                let mut part: Option<f32> = None;
                for index in token * case.top_k..(token + 1) * case.top_k {
                    let expert = mine.experts[index];
                    if expert >= 0 && expert as usize / local == rank {
                        let result: Y = result(expert as usize, value);
                        part = Some(part.unwrap_or(0.0) + mine.weights[index] * result.value());
                    }
                }
                if let Some(part) = part {
                    sum += Y::of(part).value();
                }
            }
            found.outputs.push(Y::of(sum));
        }
    }
    found
}

/// The symmetric memory of a test, which is released as a whole.
struct Memory<'a> {
    world: &'a World,
    all: Vec<Symmetric<u8>>,
}

impl<'a> Memory<'a> {
    fn new(world: &'a World) -> Self {
        Self { world, all: Vec::new() }
    }

    fn alloc<T: Element>(&mut self, len: usize) -> Result<Symmetric<T>> {
        let memory = self.world.alloc::<T>(len.max(1))?;
        self.all.push(memory.cast()?);
        memory.slice(..len)
    }

    fn release(self) -> Result<()> {
        self.all.into_iter().try_for_each(Symmetric::release)
    }
}

/// Writes `content` to the start of `memory`, and returns that part.
fn filled<T: Element>(memory: &Symmetric<T>, content: &[T]) -> Result<Symmetric<T>> {
    let part = memory.slice(..content.len())?;
    part.copy_from(content)?;
    Ok(part)
}

/// Makes `calls` dispatches and combines as one rank, and waits for each of them. Collective.
///
/// # Errors
/// As for the calls.
///
/// # Panics
/// If a result differs from the plain computation.
pub fn exchange<T: Value, Y: Value + Output>(world: &World, case: &Case, calls: usize) -> Result<()> {
    let (me, ranks) = (world.my_pe().index(), world.n_pes());
    let (stream, mut memory) = (world.stream()?, Memory::new(world));
    let mut moe = Moe::<T, Y>::new(world, world.team(), &stream, case.shape)?;
    let (most, hidden, entries) = (moe.max_rows(), case.hidden, case.max_tokens * case.top_k);
    let (rows, scales) = (memory.alloc::<T>(most * hidden)?, memory.alloc::<f32>(most * case.scales)?);
    let (offsets, results) = (memory.alloc::<u32>(moe.local_experts() + 1)?, memory.alloc::<Y>(most * hidden)?);
    let (own, own_scales) = (memory.alloc::<T>(case.max_tokens * hidden)?, memory.alloc::<f32>(case.max_tokens * case.scales)?);
    let (experts, weights) = (memory.alloc::<i32>(entries)?, memory.alloc::<f32>(entries)?);
    let outputs = memory.alloc::<Y>(case.max_tokens * hidden)?;
    for call in 0..calls {
        let batches: Vec<Batch<T>> = (0..ranks).map(|rank| case.batch(ranks, rank, call)).collect();
        let expected = expected::<T, Y>(case, &batches, me);
        let batch = &batches[me];
        let (own, own_scales) = (filled(&own, &batch.rows)?, filled(&own_scales, &batch.scales)?);
        let (experts, weights) = (filled(&experts, &batch.experts)?, filled(&weights, &batch.weights)?);
        let with = case.scales > 0;
        moe.dispatch(
            &Tokens { rows: &own, scales: with.then_some(&own_scales), experts: &experts, weights: &weights },
            &Received { rows: &rows, scales: with.then_some(&scales), offsets: &offsets },
        )?
        .wait()?;

        let context = format!("PE {me} of {ranks}, {:?}, call {call}", case.routing);
        assert_eq!(offsets.to_vec()?, expected.offsets, "offsets, {context}");
        let received = rows.to_vec()?;
        assert_eq!(received[..expected.rows.len()], expected.rows, "rows, {context}");
        assert_eq!(scales.to_vec()?[..expected.scales.len()], expected.scales, "scales, {context}");

        let mut content = vec![Y::of(f32::NAN); most * hidden];
        for (expert, range) in expected.offsets.windows(2).enumerate() {
            for index in range[0] as usize * hidden..range[1] as usize * hidden {
                content[index] = result(me * moe.local_experts() + expert, received[index]);
            }
        }
        results.copy_from(&content)?;
        let outputs = filled(&outputs, &vec![Y::of(f32::NAN); expected.outputs.len()])?;
        moe.combine(&results, &outputs)?.wait()?;
        assert_eq!(outputs.to_vec()?, expected.outputs, "outputs, {context}");
    }
    moe.release()?;
    memory.release()
}

/// Sets the numbers of blocks and threads of kernels, if `launch` gives them.
fn launched(shape: Shape, launch: Option<[u32; 2]>) -> Shape {
    launch.map_or(shape, |[blocks, threads]| shape.launch(blocks, threads))
}

/// The number of calls that are enqueued at once.
const QUEUED: usize = 20;

/// Enqueues many calls without waits, and compares their results. Collective.
///
/// # Errors
/// As for the calls.
///
/// # Panics
/// If a result is wrong.
pub fn calls_without_waits(world: &World, launch: Option<[u32; 2]>) -> Result<()> {
    let (me, ranks) = (world.my_pe().index(), world.n_pes());
    let mut case = Case::new(2 * ranks, 2, 32, 10, 0, Routing::Random);
    case.shape = launched(case.shape, launch);
    let (stream, mut memory) = (world.stream()?, Memory::new(world));
    let mut moe = Moe::<f32, f32>::new(world, world.team(), &stream, case.shape)?;
    let rows = memory.alloc::<f32>(moe.max_rows() * case.hidden)?;
    let offsets = memory.alloc::<u32>(moe.local_experts() + 1)?;
    let (tokens, entries) = (case.max_tokens * case.hidden, case.max_tokens * case.top_k);
    let mut calls = Vec::new();
    for call in 0..QUEUED {
        let batch = case.batch::<f32>(ranks, me, call);
        let own = filled(&memory.alloc(tokens)?, &batch.rows)?;
        let experts = filled(&memory.alloc(entries)?, &batch.experts)?;
        let weights = filled(&memory.alloc(entries)?, &batch.weights)?;
        let outputs = filled(&memory.alloc(tokens)?, &vec![f32::NAN; batch.rows.len()])?;
        calls.push((batch, own, experts, weights, outputs));
    }
    for (call, (_, own, experts, weights, outputs)) in calls.iter().enumerate() {
        moe.dispatch_send(&Tokens { rows: own, scales: None, experts, weights })?;
        moe.dispatch_receive(&Received { rows: &rows, scales: None, offsets: &offsets })?;
        // Some dispatches have no combine. Experts return their input.
        if call % 3 != 2 {
            moe.combine_send(&rows)?;
            moe.combine_receive(outputs)?;
        }
    }
    stream.synchronize()?;
    for (call, (batch, .., outputs)) in calls.iter().enumerate().filter(|(call, _)| call % 3 != 2) {
        for (index, found) in outputs.to_vec()?.into_iter().enumerate() {
            let (token, value) = (index / case.hidden, batch.rows[index]);
            let mut parts = vec![0.0f32; ranks];
            for entry in token * case.top_k..(token + 1) * case.top_k {
                if batch.experts[entry] >= 0 {
                    parts[batch.experts[entry] as usize / 2] += batch.weights[entry] * value;
                }
            }
            let expected = parts.into_iter().fold(0.0, |sum, part| sum + part);
            assert_eq!(found, expected, "PE {me} of {ranks}, call {call}, element {index}");
        }
    }
    moe.release()?;
    memory.release()
}

/// Runs two exchanges at the same time: one among all PEs, and one in each of the teams of even and
/// of odd PEs. Requires 4 PEs. Collective.
///
/// # Errors
/// As for the calls.
///
/// # Panics
/// If a row is wrong.
pub fn two_exchanges(world: &World, launch: Option<[u32; 2]>) -> Result<()> {
    let me = world.my_pe().get();
    let team = world.team().split(Some(u64::from(me % 2)), 0)?.expect("a rank that passes a color gets a team");
    let (stream, mut memory) = (world.stream()?, Memory::new(world));
    let shape = launched(Shape::new(4, 2, 8, 3), launch);
    let mut first = Moe::<f32, f32>::new(world, &team, &stream, shape)?;
    let mut second = Moe::<f32, f32>::new(world, world.team(), &stream, shape)?;
    let rows = filled(&memory.alloc(8)?, &[me as f32; 8])?;
    let experts = filled(&memory.alloc(2)?, &[0, 3])?;
    let weights = filled(&memory.alloc(2)?, &[1.0; 2])?;
    let tokens = Tokens { rows: &rows, scales: None, experts: &experts, weights: &weights };
    let (one, one_offsets) = (memory.alloc::<f32>(first.max_rows() * 8)?, memory.alloc::<u32>(first.local_experts() + 1)?);
    let (two, two_offsets) = (memory.alloc::<f32>(second.max_rows() * 8)?, memory.alloc::<u32>(second.local_experts() + 1)?);
    first.dispatch_send(&tokens)?;
    second.dispatch_send(&tokens)?;
    second.dispatch_receive(&Received { rows: &two, scales: None, offsets: &two_offsets })?;
    first.dispatch_receive(&Received { rows: &one, scales: None, offsets: &one_offsets })?;
    stream.synchronize()?;
    assert_eq!(one_offsets.to_vec()?, if me < 2 { [0, 2, 2] } else { [0, 0, 2] });
    assert_eq!((one.load(0)?, one.load(8)?), ((me % 2) as f32, (me % 2 + 2) as f32), "rows come from the PEs of the team");
    let all = if me == 0 || me == 3 { 4 } else { 0 };
    assert_eq!(two_offsets.to_vec()?, [0, all]);
    for pe in 0..all as usize {
        assert_eq!(two.load(8 * pe)?, pe as f32);
    }
    first.release()?;
    second.release()?;
    memory.release()?;
    team.destroy()
}
