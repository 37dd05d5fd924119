//! The exchange of one layer: its memory, its calls and their order.

use crate::explain::Words;
use crate::layout::{Exchange, Layout};
use crate::shape::{LINE, Shape, value};
use crate::{combine, dispatch};
use peerweave_core::backend::TeamId;
use peerweave_core::{
    Element, Error, Mismatch, Misuse, MisuseKind, Result, Stream, Symmetric, Team, TeamName, Ticket, World, bf16, f16,
};
use peerweave_device::launch::Kernel;
use peerweave_types::{KernelTeam, Pe, SymSlice};
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;
use std::ops::Range;

/// The type of the kernels of a combination. Some of them send the results of experts, and the
/// others receive these results.
type CombineKernel = Kernel<(Exchange, KernelTeam, SymSlice<u128>)>;

mod sealed {
    use super::CombineKernel;

    pub trait Output {
        const SEND: &'static CombineKernel;
        const RECEIVE: &'static CombineKernel;
    }
}

/// An element type for results: `bf16`, `f16` or `f32`. Sums are computed in `f32`. This trait is
/// sealed.
pub trait Output: Element + sealed::Output {}

macro_rules! outputs {
    ($($t:ty: $send:ident, $receive:ident;)*) => {$(
        impl sealed::Output for $t {
            const SEND: &'static CombineKernel = &combine::$send::KERNEL;
            const RECEIVE: &'static CombineKernel = &combine::$receive::KERNEL;
        }
        impl Output for $t {}
    )*};
}

outputs! {
    bf16: moe_combine_send_bf16, moe_combine_receive_bf16;
    f16: moe_combine_send_f16, moe_combine_receive_f16;
    f32: moe_combine_send_f32, moe_combine_receive_f32;
}

/// The tokens that this rank sends in a dispatch. The number of tokens is the length of `experts`
/// divided by `top_k`, and may be 0.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a, T> {
    /// The tokens, with `hidden` elements for each token.
    pub rows: &'a Symmetric<T>,
    /// The scales of each token; `None` if the shape has no scales.
    pub scales: Option<&'a Symmetric<f32>>,
    /// `top_k` distinct experts for each token. -1 stands for no expert.
    pub experts: &'a Symmetric<i32>,
    /// One weight for each element of `experts`. The result of the expert for the token is
    /// multiplied by this weight.
    pub weights: &'a Symmetric<f32>,
}

/// The memory that a dispatch fills. The memory of different fields must not overlap. It may
/// overlap the memory in [`Tokens`], because the dispatch reads the tokens first.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a, T> {
    /// [`Moe::max_rows`] rows of `hidden` elements, grouped by the experts of this rank. The rows
    /// of an expert are ordered by the rank that sent the token, then by the token's index. Rows
    /// that no token fills do not change.
    pub rows: &'a Symmetric<T>,
    /// The scales of each row; `None` if the shape has no scales.
    pub scales: Option<&'a Symmetric<f32>>,
    /// One element for each expert on this rank: the index of the expert's first row. One more
    /// element at the end: the total number of rows.
    pub offsets: &'a Symmetric<u32>,
}

/// The state of an exchange: which call was enqueued last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No call was enqueued, or the last call was [`Moe::combine_receive`] or [`Moe::combine`].
    Ready,
    /// The last call was [`Moe::dispatch_send`].
    Sent,
    /// The last call was [`Moe::dispatch_receive`] or [`Moe::dispatch`].
    Received,
    /// The last call was [`Moe::combine_send`].
    Returned,
    /// Only a part of the last call was enqueued, so only [`Moe::release`] may follow.
    Failed,
}

impl State {
    /// Returns the names of the calls that may follow, for an error message.
    fn expected(self) -> &'static str {
        match self {
            Self::Ready => "dispatch_send",
            Self::Sent => "dispatch_receive",
            Self::Received => "combine_send or dispatch_send",
            Self::Returned => "combine_receive",
            Self::Failed => "release (only a part of the last call was enqueued)",
        }
    }
}

/// Exchanges the tokens of a layer of experts among the ranks of a team. Tokens of type `T` are
/// sent to the ranks of their experts, and results of type `Y` are sent back.
///
/// Each rank makes the same calls in the same order: a dispatch, then a combination or the next
/// dispatch. A dispatch has two halves, [`Moe::dispatch_send`] and [`Moe::dispatch_receive`]. A
/// combination also has two halves, [`Moe::combine_send`] and [`Moe::combine_receive`]. Between the
/// two halves, a program can enqueue other work. All calls are enqueued on the stream of the
/// exchange. A program with two batches in flight needs two exchanges.
///
/// A rank need not wait for one call to complete before it makes the next call. In each dispatch, a
/// rank may send any number of tokens up to the maximum. A graph that captures whole dispatches,
/// with or without combinations, can be replayed until the exchange is released.
///
/// # Failures
/// If a kernel waits for a rank that makes no call, the kernel fails at the deadline of the world.
/// The failure names the PE of that rank. If the PE has died, the kernel fails within milliseconds.
/// If the PE has left the job in an orderly manner, the kernel fails within milliseconds on the
/// host backend, and at the deadline on GPUs.
///
/// If a token names an expert that does not exist, or names an expert twice, the ticket fails with
/// [`Error::Kernel`](peerweave_core::Error::Kernel). The message names this PE, the expert and the
/// number of experts. [`Stream::synchronize`] returns the same error with the name and the exit
/// code of the kernel, but without this message. [`Moe::explain`] adds the message. After a
/// failure, the exchange can no longer be used.
#[derive(Debug)]
pub struct Moe<T, Y> {
    shape: Shape,
    team: Team,
    stream: Stream,
    exchange: Exchange,
    memory: Memory,
    state: State,
    /// Number of tokens of the last dispatch.
    tokens: usize,
    pe: Pe,
    /// The maximum number of blocks in a launch, and the number of threads in each block.
    launch: [u32; 2],
    types: PhantomData<fn(T) -> Y>,
}

/// The symmetric memory of an exchange. [`Exchange`] has views of this memory.
#[derive(Debug)]
struct Memory {
    inbox: Symmetric<u128>,
    returns: Symmetric<u128>,
    entries: Symmetric<u64>,
    places: Symmetric<u32>,
    routes: Symmetric<u32>,
    counts: Symmetric<u32>,
    counter: Symmetric<u64>,
    /// An empty buffer. Calls pass it instead of a buffer of scales if the tokens have no scales.
    nothing: Symmetric<u128>,
}

impl Memory {
    fn allocate(world: &World, layout: &Layout) -> Result<Self> {
        let entries = layout.entries_per_rank() as usize;
        let ranks = layout.ranks as usize;
        let inbox = world.alloc::<u128>(layout.inbox_lines() as usize)?;
        Ok(Self {
            nothing: inbox.slice(0..0)?,
            inbox,
            returns: world.alloc(layout.returns_lines() as usize)?,
            entries: world.alloc(ranks * entries)?,
            places: world.alloc(ranks * entries)?,
            routes: world.alloc(entries)?,
            counts: world.alloc(ranks)?,
            counter: world.alloc_zeroed(1)?,
        })
    }

    fn views(&self, layout: Layout, sentinel: u128) -> Exchange {
        Exchange {
            inbox: self.inbox.view(),
            returns: self.returns.view(),
            entries: self.entries.view(),
            places: self.places.view(),
            routes: self.routes.view(),
            counts: self.counts.view(),
            counter: self.counter.view(),
            sentinel,
            layout,
        }
    }

    fn release(self) -> Result<()> {
        drop(self.nothing);
        for lines in [self.inbox, self.returns] {
            lines.release()?;
        }
        self.entries.release()?;
        for words in [self.places, self.routes, self.counts] {
            words.release()?;
        }
        self.counter.release()
    }
}

/// Returns 128 random bits. Data equals these bits only with negligible probability.
fn random() -> u128 {
    // Each `RandomState` has keys that are based on random numbers of the operating system.
    let half = || u128::from(RandomState::new().hash_one(std::process::id()));
    half() | (half() << 64)
}

/// Checks that all PEs of the world have passed the same shape, element sizes and number of ranks.
/// `is_wrong` states whether this PE has found a wrong value in its own arguments. If `is_wrong` is
/// true on only some PEs, the check fails on all PEs. If `is_wrong` is true on all PEs, the check
/// does not fail because of it, and each PE then returns its own error.
fn agree(world: &World, shape: &Shape, [ranks, token_bytes, result_bytes]: [usize; 3], is_wrong: bool) -> Result<()> {
    let Shape { experts, top_k, hidden, max_tokens, scales, .. } = *shape;
    let mine = [experts, top_k, hidden, max_tokens, scales, token_bytes, result_bytes, ranks, usize::from(is_wrong)];
    let mine = mine.map(|number| number as u64);
    let mut all = vec![[0; 9]; world.n_pes()];
    world.team().all_gather_blocking(&[mine], &mut all)?;
    let describe = |of: [u64; 9]| {
        let [experts, top_k, hidden, max_tokens, scales, token_bytes, result_bytes, ranks, is_wrong] = of;
        let refused = if is_wrong == 1 { "; this shape is invalid" } else { "" };
        format!(
            "an exchange of {experts} experts among {ranks} ranks, {top_k} experts for each token, {hidden} elements \
             for each token ({token_bytes} bytes each), {scales} scales, results with elements of {result_bytes} bytes, \
             at most {max_tokens} tokens for each rank{refused}"
        )
    };
    // A PE with the same values as PE 0 names the first PE that differs. Every other PE names PE 0.
    // So the call fails on all PEs.
    match all.iter().position(|theirs| *theirs != mine) {
        None => Ok(()),
        Some(pe) => Err(Error::Mismatch(Box::new(Mismatch {
            team: TeamName { id: TeamId::WORLD, size: world.n_pes() },
            pe: Pe::new(pe as u32),
            mine: describe(mine),
            theirs: describe(all[pe]),
        }))),
    }
}

/// Writes `sentinel` to all lines of a buffer. A line with this value counts as not arrived.
fn clear(lines: &Symmetric<u128>, sentinel: u128) -> Result<()> {
    const PIECE: usize = 1 << 16;
    let piece = vec![sentinel; PIECE.min(lines.len())];
    for start in (0..lines.len()).step_by(PIECE) {
        let end = lines.len().min(start + PIECE);
        lines.slice(start..end)?.copy_from(&piece[..end - start])?;
    }
    Ok(())
}

impl<T: Element, Y: Output> Moe<T, Y> {
    /// Creates an exchange among the ranks of `team`. All calls of the exchange are enqueued on
    /// `stream`.
    ///
    /// # Collective
    /// All PEs of the world must call this function, because the function allocates symmetric
    /// memory. Each PE passes the team to which it belongs. All PEs must pass the same shape, and
    /// teams of the same size.
    ///
    /// # Errors
    /// - [`Misuse`] if all PEs pass the same shape, but the shape does not fit the team or the
    ///   types.
    /// - [`Error::Mismatch`](peerweave_core::Error::Mismatch) on all PEs if the shapes, the sizes
    ///   of the types or the sizes of the teams differ between PEs, or if only some PEs pass a
    ///   wrong value.
    /// - The errors of allocating symmetric memory and of a barrier, which follow these checks.
    pub fn new(world: &World, team: &Team, stream: &Stream, shape: Shape) -> Result<Self> {
        let ranks = team.size();
        // The PEs agree even if this PE has found a wrong value, so that no other PE waits for it.
        let checked = shape.check(ranks, size_of::<T>(), size_of::<Y>()).and_then(|()| team.kernel_team().map(drop));
        agree(world, &shape, [ranks, size_of::<T>(), size_of::<Y>()], checked.is_err())?;
        checked?;
        let lines = |elements: usize, bytes: usize| (elements * bytes / LINE) as u32;
        let layout = Layout {
            ranks: ranks as u32,
            rank: team.my_rank().get(),
            local_experts: (shape.experts / ranks) as u32,
            top_k: shape.top_k as u32,
            max_tokens: shape.max_tokens as u32,
            token_lines: lines(shape.hidden, size_of::<T>()),
            scale_lines: lines(shape.scales, size_of::<f32>()),
            result_lines: lines(shape.hidden, size_of::<Y>()),
        };
        let memory = Memory::allocate(world, &layout)?;
        let sentinel = random();
        clear(&memory.inbox, sentinel)?;
        clear(&memory.returns, sentinel)?;
        team.barrier_blocking()?; // no rank sends before all have written the sentinel
        Ok(Self {
            shape,
            team: team.clone(),
            stream: stream.clone(),
            exchange: memory.views(layout, sentinel),
            memory,
            state: State::Ready,
            tokens: 0,
            pe: world.my_pe(),
            launch: shape.launch.unwrap_or(if world.backend_name() == "host" { [1, 1] } else { [256, dispatch::THREADS] }),
            types: PhantomData,
        })
    }

    /// Returns the largest number of rows that this rank can receive in one dispatch.
    pub fn max_rows(&self) -> usize {
        self.shape.max_rows(self.exchange.ranks as usize)
    }

    /// Returns the number of experts on each rank. If each rank has `n` experts, rank `r` has the
    /// experts from `r * n` to `r * n + n - 1`.
    pub fn local_experts(&self) -> usize {
        self.exchange.local_experts as usize
    }

    /// Sends this rank's tokens to their experts, and receives tokens for the experts of this rank:
    /// [`Moe::dispatch_send`], then [`Moe::dispatch_receive`]. The ticket completes when the second
    /// half has completed.
    ///
    /// # Collective
    /// Every rank of the team must make this call. The numbers of tokens may differ.
    ///
    /// # Errors
    /// As for [`Moe::dispatch_send`] and [`Moe::dispatch_receive`]. All checks run before anything
    /// is enqueued, with one exception: memory in `received` that belongs to a different world is
    /// detected only after the first half has been enqueued. If a half fails, the ticket fails with
    /// the first failure, and the error names the call `moe_dispatch`.
    pub fn dispatch(&mut self, tokens: &Tokens<'_, T>, received: &Received<'_, T>) -> Result<Ticket> {
        self.may_send("moe_dispatch")?;
        self.check_received("moe_dispatch", received)?;
        self.send("moe_dispatch", tokens)?;
        self.receive("moe_dispatch", received)
    }

    /// Enqueues the first half of a dispatch: sends this rank's tokens. The kernel does not wait
    /// for any other rank. The tokens may be overwritten once the ticket is complete.
    ///
    /// # Errors
    /// [`Misuse`] if the lengths of the arguments do not fit the shape or each other, or if the
    /// call is out of order. [`Misuse`] also if the memory of an argument is not aligned to 16
    /// bytes, has been released, or belongs to another world. The ticket fails if a token names an
    /// expert that does not exist, or names an expert twice.
    pub fn dispatch_send(&mut self, tokens: &Tokens<'_, T>) -> Result<Ticket> {
        self.send("moe_dispatch_send", tokens)
    }

    fn send(&mut self, call: &'static str, tokens: &Tokens<'_, T>) -> Result<Ticket> {
        self.may_send(call)?;
        let Tokens { rows, scales, experts, weights } = *tokens;
        if !experts.len().is_multiple_of(self.shape.top_k) {
            return Err(value(call, "experts", format!("{} elements", experts.len()), "a multiple of top_k elements"));
        }
        let count = experts.len() / self.shape.top_k;
        if count > self.shape.max_tokens {
            let limit = "max_tokens of the shape";
            let kind = MisuseKind::Limit { argument: "experts", found: count, max: self.shape.max_tokens, limit };
            return Err(Misuse { call, kind }.into());
        }
        length(call, "weights", weights.len(), experts.len())?;
        length(call, "rows", rows.len(), count * self.shape.hidden)?;
        let (rows, scales) = (lines(call, "rows", rows)?, self.scales(call, scales, count)?);
        let blocks = self.blocks(count);
        let args = (self.exchange, &self.team, &rows, &scales, experts, weights, count as u32);
        let ticket = self.stream.launch(&dispatch::moe_dispatch_send::KERNEL, blocks, self.launch[1], args)?;
        (self.state, self.tokens) = (State::Sent, count);
        Ok(self.explained(call, ticket))
    }

    /// Enqueues the second half of a dispatch: waits for the tokens of all ranks.
    ///
    /// # Errors
    /// As for [`Moe::dispatch_send`]. If a rank's tokens do not arrive before the deadline, the
    /// ticket fails, and the error names the rank's PE.
    pub fn dispatch_receive(&mut self, received: &Received<'_, T>) -> Result<Ticket> {
        self.receive("moe_dispatch_receive", received)
    }

    fn receive(&mut self, call: &'static str, received: &Received<'_, T>) -> Result<Ticket> {
        self.follows(call, self.state == State::Sent)?;
        let (rows, scales) = self.check_received(call, received)?;
        let args = (self.exchange, &self.team, &rows, &scales, received.offsets);
        self.stream.launch(&dispatch::moe_dispatch_plan::KERNEL, 1, self.launch[1], args)?;
        // The previous launch has checked the same memory. If the next launch fails, only a part of
        // this call has been enqueued.
        self.state = State::Failed;
        let blocks = self.blocks(self.exchange.ranks as usize * self.shape.max_tokens);
        let args = (self.exchange, &self.team, &rows, &scales);
        let ticket = self.stream.launch(&dispatch::moe_dispatch_receive::KERNEL, blocks, self.launch[1], args)?;
        self.state = State::Received;
        Ok(self.explained(call, ticket))
    }

    /// Computes the weighted sum of the results for each token of the last dispatch:
    /// [`Moe::combine_send`], then [`Moe::combine_receive`]. The ticket completes when the second
    /// half has completed. `outputs` may overlap `results`, because the results are read first.
    ///
    /// # Collective
    /// Every rank of the team must make this call.
    ///
    /// # Errors
    /// As for [`Moe::dispatch`].
    pub fn combine(&mut self, results: &Symmetric<Y>, outputs: &Symmetric<Y>) -> Result<Ticket> {
        self.follows("moe_combine", self.state == State::Received)?;
        self.check_outputs("moe_combine", outputs)?;
        self.give_back("moe_combine", results)?;
        self.get_back("moe_combine", outputs)
    }

    /// Enqueues the first half of a combination: sends the results of this rank's experts.
    /// `results` has `hidden` elements for each row of the dispatch, and [`Moe::max_rows`] rows.
    /// The kernel does not wait for any other rank. The results may be overwritten once the ticket
    /// is complete.
    ///
    /// # Errors
    /// As for [`Moe::dispatch_send`].
    pub fn combine_send(&mut self, results: &Symmetric<Y>) -> Result<Ticket> {
        self.give_back("moe_combine_send", results)
    }

    fn give_back(&mut self, call: &'static str, results: &Symmetric<Y>) -> Result<Ticket> {
        self.follows(call, self.state == State::Received)?;
        length(call, "results", results.len(), self.max_rows() * self.shape.hidden)?;
        let results = lines(call, "results", results)?;
        let blocks = self.blocks(self.exchange.ranks as usize * self.shape.max_tokens);
        let ticket = self.stream.launch(Y::SEND, blocks, self.launch[1], (self.exchange, &self.team, &results))?;
        self.state = State::Returned;
        Ok(self.explained(call, ticket))
    }

    /// Enqueues the second half of a combination: waits for the results of all ranks, and writes
    /// `hidden` elements for each token of the last dispatch. A token without experts gets zeros.
    ///
    /// # Errors
    /// As for [`Moe::dispatch_receive`].
    pub fn combine_receive(&mut self, outputs: &Symmetric<Y>) -> Result<Ticket> {
        self.get_back("moe_combine_receive", outputs)
    }

    fn get_back(&mut self, call: &'static str, outputs: &Symmetric<Y>) -> Result<Ticket> {
        self.follows(call, self.state == State::Returned)?;
        let outputs = self.check_outputs(call, outputs)?;
        let blocks = self.blocks(self.tokens);
        let ticket = self.stream.launch(Y::RECEIVE, blocks, self.launch[1], (self.exchange, &self.team, &outputs))?;
        self.state = State::Ready;
        Ok(self.explained(call, ticket))
    }

    /// Explains an error of [`Stream::synchronize`]. If a kernel of an exchange has failed, returns
    /// the error with a message that explains the failure. The errors of this exchange's tickets
    /// already have this message. Returns other errors unchanged.
    pub fn explain(&self, error: Error) -> Error {
        Words { experts: self.shape.experts, pe: self.pe }.explain(None, error)
    }

    /// Returns a ticket that fails if `ticket` fails. The error of the returned ticket names
    /// `call`, and has a message that explains the failure.
    fn explained(&self, call: &'static str, ticket: Ticket) -> Ticket {
        let words = Words { experts: self.shape.experts, pe: self.pe };
        ticket.map_err(move |error| words.explain(Some(call), error))
    }

    /// Waits until the stream of the exchange has completed its work, then releases the memory.
    ///
    /// # Collective
    /// All PEs of the world must make this call.
    ///
    /// # Errors
    /// Errors of work on the stream, and errors of releasing symmetric memory.
    pub fn release(self) -> Result<()> {
        self.stream.synchronize()?;
        self.memory.release()
    }

    /// Checks that a dispatch may follow the last call.
    fn may_send(&self, call: &'static str) -> Result<()> {
        self.follows(call, matches!(self.state, State::Ready | State::Received))
    }

    /// Returns an error if `is_next` is `false`, which means that `call` is out of order.
    fn follows(&self, call: &'static str, is_next: bool) -> Result<()> {
        if is_next {
            return Ok(());
        }
        let order = "calls in the order dispatch_send, dispatch_receive, combine_send, combine_receive";
        Err(value(call, "self", format!("an exchange whose next call must be {}", self.state.expected()), order))
    }

    fn check_received(&self, call: &'static str, received: &Received<'_, T>) -> Result<(Symmetric<u128>, Symmetric<u128>)> {
        length(call, "rows", received.rows.len(), self.max_rows() * self.shape.hidden)?;
        length(call, "offsets", received.offsets.len(), self.local_experts() + 1)?;
        if received.offsets.is_released() {
            return Err(Misuse { call, kind: MisuseKind::Released { argument: "offsets" } }.into());
        }
        let all = (lines(call, "rows", received.rows)?, self.scales(call, received.scales, self.max_rows())?);
        let parts = [("rows", bytes_of(received.rows)), ("offsets", bytes_of(received.offsets)), ("scales", bytes_of(&all.1))];
        for (at, (first, one)) in parts.iter().enumerate() {
            for (second, other) in &parts[at + 1..] {
                if one.start.max(other.start) < one.end.min(other.end) {
                    return Err(
                        Misuse { call, kind: MisuseKind::Overlap { first, second, advice: "pass separate buffers" } }.into()
                    );
                }
            }
        }
        Ok(all)
    }

    fn check_outputs(&self, call: &'static str, outputs: &Symmetric<Y>) -> Result<Symmetric<u128>> {
        length(call, "outputs", outputs.len(), self.tokens * self.shape.hidden)?;
        lines(call, "outputs", outputs)
    }

    /// Checks the scales that a call passes for `count` tokens or rows, and returns them as 16-byte
    /// lines.
    fn scales(&self, call: &'static str, scales: Option<&Symmetric<f32>>, count: usize) -> Result<Symmetric<u128>> {
        match scales {
            Some(scales) => {
                length(call, "scales", scales.len(), count * self.shape.scales)?;
                lines(call, "scales", scales)
            }
            None if self.shape.scales == 0 => Ok(self.memory.nothing.clone()),
            None => Err(Misuse {
                call,
                kind: MisuseKind::Missing { argument: "scales", why: "the shape specifies scales for each token" },
            }
            .into()),
        }
    }

    /// Returns the number of blocks for a kernel whose blocks divide `units` units of work among
    /// themselves.
    fn blocks(&self, units: usize) -> u32 {
        self.launch[0].min(u32::try_from(units).unwrap_or(u32::MAX)).max(1)
    }
}

/// Returns the range of bytes of the heap that a buffer occupies.
fn bytes_of<E: Element>(of: &Symmetric<E>) -> Range<u64> {
    of.offset().0..of.offset().0 + (of.len() * size_of::<E>()) as u64
}

fn length(call: &'static str, argument: &'static str, found: usize, expected: usize) -> Result<()> {
    if found == expected { Ok(()) } else { Err(Misuse { call, kind: MisuseKind::Length { argument, found, expected } }.into()) }
}

/// Returns the symmetric memory `of` as 16-byte elements. Fails if the memory has been released, or
/// is not aligned to 16 bytes.
fn lines<E: Element>(call: &'static str, argument: &'static str, of: &Symmetric<E>) -> Result<Symmetric<u128>> {
    if of.is_released() {
        return Err(Misuse { call, kind: MisuseKind::Released { argument } }.into());
    }
    if !of.offset().0.is_multiple_of(LINE as u64) {
        return Err(value(
            call,
            argument,
            format!("memory at offset {} of the heap", of.offset().0),
            "an offset that is a multiple of 16",
        ));
    }
    of.cast::<u128>()
}
