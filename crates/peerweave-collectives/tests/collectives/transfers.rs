//! Tests of messages between pairs of ranks. Messages are sent as 16-byte lines, sent through
//! rings, or stored directly in the result buffers.

use crate::world::{MARK, RANKS};
use peerweave_collectives::transfer::{
    self, CHANNELS_ZEROS, Form, LINES_COUNTERS, RING_COUNTERS, Transfer, Transfers, channels_bytes, transfer_ring_bytes,
};
use peerweave_collectives::{Call, LINE_BYTES, MAX_RANKS};
use peerweave_grid::{Job, JobError, Options, Shape, explore};
use peerweave_types::{FailureKind, KernelOp, Pe, SymSlice};
use std::time::Duration;

const CHANNEL_BYTES: u64 = 2 << 10;
const SLOT_BYTES: u64 = 2 << 10;
const MAX_BLOCKS: u32 = 3;
const SENTINEL: [u64; 2] = [0x5eed_0123_4567_89ab, 0xc0de_fedc_ba98_7655];
const OPERAND_BYTES: usize = 64 << 10;
/// Distance in bytes between the starts of a rank's messages to different ranks.
const APART: usize = 8 << 10;

/// Which messages the senders store directly in the result buffers of the receivers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Direct {
    Nothing,
    All,
    /// The messages of about half of the pairs.
    Some,
}

/// The properties that all messages of one launch have in common.
#[derive(Clone, Copy, Debug)]
struct Shared {
    form: Form,
    /// For [`Form::Ring`]: which messages are stored directly in the result buffers.
    direct: Direct,
    /// For [`Form::Ring`]: whether each block both pushes and copies, instead of one block of a
    /// pair.
    combined: bool,
    /// Distance in bytes of the inputs, and of the results, from an aligned address.
    shift: [usize; 2],
    threads: u32,
}

struct World {
    job: Job,
    ranks: usize,
    areas: [SymSlice<u64>; 2],
    counters: [SymSlice<u64>; 2],
    operands: [SymSlice<u8>; 2],
}

/// Returns the byte at `index` of the message from rank `from` to rank `to` in call `call`.
fn given(call: u64, from: usize, to: usize, index: usize) -> u8 {
    (index as u64 * 31 + from as u64 * 7 + to as u64 * 3 + call * 11 + (index as u64 >> 8)) as u8
}

impl World {
    fn new(ranks: u32, seed: u64, deadline: Duration) -> Self {
        let mut job = Job::new(ranks).options(Options::default().deadline(deadline).seed(seed));
        let areas = [channels_bytes(ranks, CHANNEL_BYTES), transfer_ring_bytes(MAX_BLOCKS, SLOT_BYTES)]
            .map(|bytes| job.alloc::<u64>(bytes as usize / 8));
        let counters = [LINES_COUNTERS, RING_COUNTERS * MAX_BLOCKS as usize].map(|words| job.alloc::<u64>(words));
        let operands = [OPERAND_BYTES; 2].map(|bytes| job.alloc::<u8>(bytes));
        let zeros = CHANNELS_ZEROS as usize / 8;
        let lines: Vec<u64> = SENTINEL.into_iter().cycle().take(areas[0].len() - zeros).collect();
        for pe in 0..ranks {
            job.write(pe, areas[0].slice(zeros..areas[0].len()), &lines);
        }
        Self { job, ranks: ranks as usize, areas, counters, operands }
    }

    fn address(&self, pe: usize, operand: usize, peer: usize, shift: usize) -> u64 {
        self.job.address(pe as u32, self.operands[operand]) + (peer * APART + shift) as u64
    }

    fn call(&self, rank: usize, form: Form) -> Call {
        let at = form as usize;
        let behind = |k: usize| ((rank + k) % self.ranks) as u32;
        Call {
            areas: std::array::from_fn(|k| if k < self.ranks { self.job.address(behind(k), self.areas[at]) } else { 0 }),
            pes: std::array::from_fn(|k| if k < self.ranks { behind(k) } else { 0 }),
            send: 0,
            recv: 0,
            count: 0,
            sentinel: SENTINEL,
            counter: self.job.address(rank as u32, self.counters[at]),
            bank_bytes: if form == Form::Lines { CHANNEL_BYTES } else { SLOT_BYTES },
            stride: 0,
            scalar: 0,
            ranks: self.ranks as u32,
            rank: rank as u32,
            op: KernelOp::SendRecv as u32,
            max_blocks: MAX_BLOCKS,
            results: 0,
            is_symmetric: 0,
            is_combined: 0,
            is_exclusive: 0,
        }
    }

    /// Launches the kernels that send a message of `bytes(from, to)` bytes from each rank to each
    /// rank. Ranks without messages, and ranks for which `is_there` is false, launch no kernel.
    fn launch(
        &mut self,
        number: u64,
        shared: Shared,
        bytes: &dyn Fn(usize, usize) -> usize,
        is_there: impl Fn(usize) -> bool,
    ) -> Result<(), JobError> {
        let ranks = self.ranks;
        for rank in 0..ranks {
            let mut input = vec![0; OPERAND_BYTES];
            for to in 0..ranks {
                let at = to * APART + shared.shift[0];
                (0..bytes(rank, to)).for_each(|index| input[at + index] = given(number, rank, to, index));
            }
            self.job.write(rank as u32, self.operands[0], &input);
            self.job.write(rank as u32, self.operands[1], &vec![MARK; OPERAND_BYTES]);
        }
        let slot_lines = SLOT_BYTES / LINE_BYTES as u64 / ranks as u64;
        let chunk = |bytes: usize| (bytes.div_ceil(LINE_BYTES) as u64).div_ceil(u64::from(MAX_BLOCKS)).clamp(1, slot_lines);
        // The sender and the receiver know the length, so both compute the same value.
        let is_offered = |bytes: usize| u64::from(shared.form == Form::Ring && bytes > 0 && bytes.is_multiple_of(LINE_BYTES));
        let transfers = |rank: usize| {
            let mut peers = [Transfer::default(); MAX_RANKS];
            for (k, transfer) in peers.iter_mut().enumerate().take(ranks) {
                let peer = (rank + k) % ranks;
                let (sent, received) = (bytes(rank, peer), bytes(peer, rank));
                *transfer = Transfer {
                    send: self.address(rank, 0, peer, shared.shift[0]),
                    send_bytes: sent as u64,
                    recv: self.address(rank, 1, peer, shared.shift[1]),
                    recv_bytes: received as u64,
                    is_direct: u64::from(match shared.direct {
                        Direct::Nothing => false,
                        Direct::All => true,
                        Direct::Some => (number + rank as u64 + k as u64).is_multiple_of(2),
                    }),
                    send_chunk: chunk(sent),
                    recv_chunk: chunk(received),
                    send_is_offered: is_offered(sent),
                    recv_is_offered: is_offered(received),
                };
            }
            let [own, others @ ..] = &mut peers;
            own.is_direct = u64::from(others.iter().all(|peer| peer.recv_bytes == 0 || peer.is_direct != 0));
            Transfers { peers }
        };
        let has_any = |rank: usize| (0..ranks).any(|peer| bytes(rank, peer) + bytes(peer, rank) > 0);
        let is_whole = shared.shift.iter().all(|shift| shift.is_multiple_of(LINE_BYTES))
            && (0..ranks * ranks).all(|pair| bytes(pair / ranks, pair % ranks).is_multiple_of(LINE_BYTES));
        let is_combined = u32::from(shared.combined);
        let calls: Vec<_> =
            (0..ranks).map(|rank| (Call { is_combined, ..self.call(rank, shared.form) }, transfers(rank))).collect();
        let kernel = transfer::kernel(shared.form, ranks as u32, is_whole).expect("a kernel exists for this number of ranks");
        let blocks = if shared.form == Form::Ring && !shared.combined { 2 * MAX_BLOCKS } else { MAX_BLOCKS };
        self.job.launch_each(kernel, Shape::new(blocks, shared.threads), |pe| {
            let rank = pe as usize;
            (has_any(rank) && is_there(rank)).then(|| calls[rank])
        })
    }

    /// Sends messages like [`Self::launch`], on all ranks, and compares every byte of all results
    /// with the expected bytes.
    fn check(&mut self, number: u64, shared: Shared, bytes: &dyn Fn(usize, usize) -> usize) {
        let ranks = self.ranks;
        if let Err(error) = self.launch(number, shared, bytes, |_| true) {
            panic!("{shared:?}, call {number} of {ranks} ranks: {error}");
        }
        for rank in 0..ranks {
            let mut expected = vec![MARK; OPERAND_BYTES];
            for from in 0..ranks {
                let at = from * APART + shared.shift[1];
                (0..bytes(from, rank)).for_each(|index| expected[at + index] = given(number, from, rank, index));
            }
            let found = self.job.read(rank as u32, self.operands[1]);
            let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
            assert_eq!(wrong, None, "{shared:?}, call {number}, rank {rank} of {ranks}");
        }
    }
}

/// Returns a random message length for each pair of ranks: a multiple of `unit`, at most `below`.
/// About half of the lengths are 0.
fn some_lengths(seed: u64, ranks: usize, below: usize, unit: usize) -> Vec<usize> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |limit: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % limit
    };
    (0..ranks * ranks).map(|_| if next(2) == 0 { 0 } else { next(below / unit + 1) * unit }).collect()
}

#[test]
fn messages_of_any_length_arrive_when_sent_as_16_byte_lines() {
    for ranks in RANKS {
        explore(2, |seed| {
            let mut world = World::new(ranks, seed, Duration::from_secs(60));
            let n = ranks as usize;
            for call in 0..6 {
                let unit = if call % 3 == 2 { LINE_BYTES } else { 1 };
                let lengths = some_lengths(call + 100 * seed, n, CHANNEL_BYTES as usize, unit);
                let shift = if call % 3 == 2 { [16, 32] } else { [[0, 3], [4, 8]][call as usize % 2] };
                let shared = Shared { form: Form::Lines, direct: Direct::Nothing, combined: false, shift, threads: 32 };
                world.check(call, shared, &|from, to| lengths[from * n + to]);
            }
            Ok::<(), String>(())
        });
    }
}

#[test]
fn messages_of_any_length_arrive_when_sent_through_rings() {
    for ranks in RANKS {
        explore(2, |seed| {
            let mut world = World::new(ranks, seed, Duration::from_secs(60));
            let n = ranks as usize;
            for call in 0..8 {
                let direct = [Direct::Nothing, Direct::Nothing, Direct::All, Direct::Some][call as usize % 4];
                let unit = if direct == Direct::Nothing { 1 } else { LINE_BYTES };
                let lengths = some_lengths(call + 100 * seed, n, APART - 64, unit);
                let shift = if direct == Direct::Nothing { [[0, 0], [5, 16]][call as usize % 2] } else { [16, 32] };
                let combined = call % 2 == 1;
                let shared = Shared { form: Form::Ring, direct, combined, shift, threads: 64 };
                world.check(call, shared, &|from, to| lengths[from * n + to]);
            }
            Ok::<(), String>(())
        });
    }
}

#[test]
fn messages_of_each_pair_of_ranks_are_counted_separately() {
    explore(3, |seed| {
        let mut world = World::new(4, seed, Duration::from_secs(60));
        for call in 0..10 {
            let (from, to) = [(0, 1), (0, 1), (0, 1), (2, 1), (1, 0)][call as usize % 5];
            for form in [Form::Lines, Form::Ring] {
                let shared = Shared { form, direct: Direct::Nothing, combined: seed % 2 == 0, shift: [0, 0], threads: 32 };
                world.check(call, shared, &|a, b| if (a, b) == (from, to) { 1000 } else { 0 });
            }
        }
        Ok::<(), String>(())
    });
}

#[test]
fn error_of_a_transfer_names_the_missing_sender_or_receiver() {
    let ring = Shared { form: Form::Ring, direct: Direct::Nothing, combined: false, shift: [0, 0], threads: 32 };
    let cases = [
        (Shared { form: Form::Lines, ..ring }, 0, 1, 1000),
        (ring, 0, 1, 1000),
        // The receiver is missing and the ring is full.
        (ring, 1, 0, 5 * APART),
        (Shared { direct: Direct::All, ..ring }, 1, 0, 1024),
        (Shared { direct: Direct::All, ..ring }, 0, 1, 1024),
    ];
    for (shared, missing, waits, bytes) in cases {
        let mut world = World::new(2, 1, Duration::from_secs(2));
        let outcome = world.launch(0, shared, &|from, to| if (from, to) == (0, 1) { bytes } else { 0 }, |rank| rank != missing);
        let JobError::Failed { report, .. } = outcome.expect_err("the call fails, because one rank is missing") else {
            panic!("{shared:?}: expected a failure with a report")
        };
        let expected = (Some(FailureKind::Deadline), Some(Pe::new(missing as u32)));
        assert_eq!((report.kind(), report.missing_pe()), expected, "{shared:?}: rank {waits} waits");
        assert_eq!(report.0.operation, KernelOp::SendRecv as u32);
    }
}
