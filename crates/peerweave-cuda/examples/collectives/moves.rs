//! Checks the results of collectives that move bytes, with random operations, lengths, alignments
//! and roots. The calls of a round run without a wait between them. Some rounds run in graphs.

use peerweave_cuda::{Collectives, Gpu, Message, Stream};
use peerweave_driver::DeviceMemory;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use peerweave_types::Rank;

use crate::Outcome;
use crate::check::Random;

const MARK: u8 = 0xa5;

/// Returns the byte at `index` in the input of rank `rank`.
fn byte(rank: usize, index: usize) -> u8 {
    (index.wrapping_mul(31) + (index >> 9) + rank * 89) as u8
}

/// One call: the number of the operation, the length of a part in bytes, the shifts of input and
/// result in bytes, and the root.
#[derive(Clone, Copy, Debug)]
struct Given {
    operation: u64,
    part: usize,
    shift: [usize; 2],
    root: usize,
}

struct Mover<'a> {
    gpu: &'a Gpu,
    all: &'a Collectives,
    stream: Stream,
    send: DeviceMemory<u8>,
    room: usize,
}

impl Mover<'_> {
    fn enqueue(&self, given: Given, recv: u64) -> Outcome {
        let Given { operation, part, shift, root } = given;
        let (send, recv, bytes) = (self.send.address() + shift[0] as u64, recv + shift[1] as u64, part as u64);
        let (all, stream, root) = (self.all, &self.stream, Rank::new(root as u32));
        let (me, ranks) = (self.all.rank().get() as usize, self.all.members().len());
        let messages: Vec<Message> = (0..ranks)
            .flat_map(|rank| {
                let at = |operand: u64| operand + (rank * part) as u64;
                // Each pair of ranks has its own message length. The sender and the receiver
                // compute the same length.
                let len = |from: usize, to: usize| (bytes * (1 + (from + 2 * to) as u64 % 3)).div_ceil(3);
                let other = Rank::new(rank as u32);
                [
                    Message::Send { to: other, at: at(send), bytes: len(me, rank) },
                    Message::Receive { from: other, at: at(recv), bytes: len(rank, me) },
                ]
            })
            .collect();
        // SAFETY: both are live memory of this device until the stream has been waited for.
        unsafe {
            match operation {
                0 => all.broadcast(stream, send, recv, bytes, root)?,
                1 => all.gather(stream, send, recv, bytes, root)?,
                2 => all.scatter(stream, send, recv, bytes, root)?,
                3 => all.all_gather(stream, send, recv, bytes)?,
                4 => all.all_to_all(stream, send, recv, bytes)?,
                _ => all.messages(stream, &messages)?,
            }
        }
        Ok(())
    }

    /// Returns the expected bytes of a result.
    fn expected(&self, given: Given) -> Vec<u8> {
        let Given { operation, part, shift, root } = given;
        let (me, ranks) = (self.all.rank().get() as usize, self.all.members().len());
        let input = |rank: usize, at: usize, len: usize| (at..at + len).map(move |index| byte(rank, shift[0] + index));
        let mut result = vec![MARK; ranks * part + shift[1] + 32];
        let mut put = |at: usize, bytes: &mut dyn Iterator<Item = u8>| {
            result[shift[1] + at..].iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        };
        match operation {
            0 => put(0, &mut input(root, 0, part)),
            1 if me == root => (0..ranks).for_each(|rank| put(rank * part, &mut input(rank, 0, part))),
            1 => {}
            2 => put(0, &mut input(root, me * part, part)),
            3 => (0..ranks).for_each(|rank| put(rank * part, &mut input(rank, 0, part))),
            4 => (0..ranks).for_each(|rank| put(rank * part, &mut input(rank, me * part, part))),
            _ => (0..ranks).for_each(|rank| {
                let len = (part * (1 + (rank + 2 * me) % 3)).div_ceil(3);
                put(rank * part, &mut input(rank, me * part, len));
            }),
        }
        result
    }

    /// Makes several calls without a wait between them, each with a separate result, and checks the
    /// results. If `in_graph`, captures the calls in a graph and launches the graph twice.
    fn round(&self, calls: &[Given], in_graph: bool) -> Outcome {
        let results: Vec<DeviceMemory<u8>> = calls
            .iter()
            .map(|given| DeviceMemory::from_slice(&self.stream, &vec![MARK; self.expected(*given).len()]))
            .collect::<Result<_, _>>()?;
        self.gpu.barrier("given")?;
        let enqueue = || calls.iter().zip(&results).try_for_each(|(given, result)| self.enqueue(*given, result.address()));
        if in_graph {
            self.stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
            let outcome = enqueue();
            let graph = self.stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            outcome?;
            let graph = graph?.ok_or("the capture returned no graph")?;
            graph.launch()?;
            graph.launch()?;
            self.gpu.wait(&self.stream)?;
        } else {
            enqueue()?;
        }
        for (given, result) in calls.iter().zip(&results) {
            self.gpu.wait(&self.stream).map_err(|error| format!("{given:?}: {error}"))?;
            let (found, expected) = (result.to_vec(&self.stream)?, self.expected(*given));
            if let Some(at) = found.iter().zip(&expected).position(|(found, expected)| found != expected) {
                return Err(format!("{given:?}: byte {at} is {}, expected {}", found[at], expected[at]).into());
            }
        }
        Ok(())
    }
}

/// Runs rounds of random calls, at least `calls` calls. Returns the number of calls.
pub(crate) fn run(gpu: &Gpu, collectives: &Collectives, calls: u64) -> Result<u64, Box<dyn std::error::Error>> {
    const CALLS: u64 = 8;
    let ranks = collectives.members().len();
    let stream = gpu.stream()?;
    let room = 8 << 20;
    let me = collectives.rank().get() as usize;
    let values: Vec<u8> = (0..room * ranks + 64).map(|index| byte(me, index)).collect();
    let send = DeviceMemory::from_slice(&stream, &values)?;
    let mover = Mover { gpu, all: collectives, stream, send, room };
    let mut random = Random(11);
    let mut made = 0;
    for round in 0..calls.div_ceil(CALLS) {
        let calls: Vec<Given> = (0..CALLS)
            .map(|_| {
                let scale = 1 << random.below(mover.room.ilog2().into());
                let unit = [1, 2, 4, 8, 16][random.below(5) as usize];
                Given {
                    operation: random.below(6),
                    part: (1 + random.below(scale) as usize).next_multiple_of(unit),
                    shift: [random.below(3) as usize * unit, random.below(3) as usize * unit],
                    root: random.below(ranks as u64) as usize,
                }
            })
            .collect();
        mover.round(&calls, round % 4 == 3)?;
        made += CALLS;
    }
    Ok(made)
}
