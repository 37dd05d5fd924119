//! Checks symmetric memory: allocation and release in any order, zeroing, exhaustion, and reports
//! of leaks.

use peerweave::{Error, MisuseKind, Rank, ReduceOp, SymOffset, Symmetric};
use peerweave_tests::data::sample::hash;
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;

fn main() -> ExitCode {
    peerweave_tests::main(
        named![sequences, zeroes, disagreement, exhausted, after_release, forgotten, alignments],
        named![
            contents_survive_neighbouring_allocations,
            zeroed_memory_is_zero_after_reuse,
            allocations_that_differ_among_pes_are_an_error_on_all_pes,
            exhausted_heap_is_an_error_on_all_pes,
            released_buffer_refuses_every_use,
            unreleased_buffers_are_reported,
            allocations_are_aligned_as_requested_on_every_pe,
        ],
    )
}

/// Allocates and releases buffers at random. Arguments: the seed, and the number of steps.
fn sequences(seat: &Seat) {
    let world = seat.join();
    let team = world.team();
    let (n, me) = (team.size() as u64, team.my_rank().get() as u64);
    let (seed, steps): (u64, u64) = (seat.arg(0), seat.arg(1));
    let mut live: Vec<(u64, Symmetric<u32>)> = Vec::new();
    let value = |pe: u64, number: u64, i: usize| hash(&[pe, number, i as u64]) as u32;
    for step in 0..steps {
        let random = hash(&[seed, step]);
        if random % 5 < 2 && !live.is_empty() {
            let (number, buffer) = live.swap_remove((random >> 8) as usize % live.len());
            let found = buffer.to_vec().unwrap();
            assert!(
                found.iter().enumerate().all(|(i, &x)| x == value(me, number, i)),
                "the contents of allocation {number} have changed at step {step}"
            );
            buffer.release().unwrap();
        } else {
            let count = [0, 1, 31, 32, 33, 1000, 10_000][(random >> 8) as usize % 7] + (random >> 16) as usize % 3;
            let buffer = match random >> 32 & 3 {
                0 => world.alloc_aligned::<u32>(count, 64 << (random >> 40 & 7)),
                1 => world.alloc_zeroed::<u32>(count),
                _ => world.alloc::<u32>(count),
            }
            .unwrap();
            if random >> 32 & 3 == 1 {
                assert!(buffer.to_vec().unwrap().iter().all(|&x| x == 0), "step {step}: zeroed memory is not zero");
            }
            if count > 0 {
                // A handle made from the offset names the same memory, and cannot reach beyond it.
                let found = world.symmetric_at::<u32>(buffer.offset(), count).unwrap();
                found.store(count - 1, 77).unwrap();
                assert_eq!(buffer.load(count - 1).unwrap(), 77);
                assert_eq!(world.symmetric_of(buffer.as_ptr().unwrap(), count).unwrap().offset(), buffer.offset());
                let error = world.symmetric_at::<u32>(buffer.offset(), count + 1).unwrap_err();
                assert!(matches!(error.misuse(), Some(MisuseKind::Value { argument: "offset", .. })), "{error}");
            }
            // The offset is the same on every PE.
            let mut offsets = vec![0u64; n as usize];
            team.all_gather_blocking(&[buffer.offset().0], &mut offsets).unwrap();
            assert!(offsets.iter().all(|&at| SymOffset(at) == buffer.offset()), "the offsets differ among PEs: {offsets:?}");
            let contents: Vec<u32> = (0..buffer.len()).map(|i| value(me, step, i)).collect();
            buffer.copy_from(&contents).unwrap();
            live.push((step, buffer));
        }
        // A peer reads the expected content.
        if let Some((number, buffer)) = live.get((random >> 12) as usize % live.len().max(1))
            && random.is_multiple_of(4)
        {
            team.barrier_blocking().unwrap();
            let peer = (me + random) % n;
            let mut theirs = vec![0; buffer.len()];
            team.get_blocking(buffer, &mut theirs, Rank::new(peer as u32)).unwrap();
            assert!(
                theirs.iter().enumerate().all(|(i, &x)| x == value(peer, *number, i)),
                "the contents of allocation {number} of PE {peer} are wrong"
            );
            team.barrier_blocking().unwrap();
        }
    }
    for (number, buffer) in live {
        assert!(
            buffer.to_vec().unwrap().iter().enumerate().all(|(i, &x)| x == value(me, number, i)),
            "the contents of allocation {number} have changed"
        );
        buffer.release().unwrap();
    }
    // All of the heap is free again, in one piece: the largest possible request fits.
    let whole = world.caps().heap_bytes;
    world.alloc::<u8>(whole).unwrap().release().unwrap();
    assert!(world.finalize().unwrap().is_clean());
}

fn contents_survive_neighbouring_allocations() {
    for seed in 0..4 {
        let job = |n_pes| Job::new("sequences", n_pes).args(format!("{seed} 300")).heap_bytes(16 << 20);
        job(1).on_threads();
        job(3).on_threads();
        job(2).on_processes();
    }
}

fn zeroes(seat: &Seat) {
    let world = seat.join();
    let team = world.team();
    for round in 0..40usize {
        let bytes = [1, 100, 5000, 1 << 20][round % 4] + round;
        let dirty = world.alloc::<u8>(bytes + 4096).unwrap();
        dirty.fill(0xee).unwrap();
        let at = dirty.offset();
        dirty.release().unwrap();
        // Larger or smaller than before, so that an allocation has both used and new memory.
        let clean = world.alloc_zeroed::<u8>(if round % 2 == 0 { bytes * 2 + 8192 } else { bytes }).unwrap();
        assert_eq!(clean.offset(), at, "the memory is reused");
        // The memory is zero on every PE as soon as the call has returned on any PE.
        let peer = Rank::new(((team.my_rank().index() + 1) % team.size()) as u32);
        let mut theirs = vec![1u8; clean.len()];
        team.get_blocking(&clean, &mut theirs, peer).unwrap();
        assert!(theirs.iter().all(|&x| x == 0), "round {round}: zeroed memory is not zero");
        team.barrier_blocking().unwrap();
        clean.release().unwrap();
    }
    let _ = world.finalize().unwrap();
}

fn zeroed_memory_is_zero_after_reuse() {
    Job::new("zeroes", 1).everywhere();
    Job::new("zeroes", 3).on_threads();
    Job::new("zeroes", 2).on_processes();
}

fn disagreement(seat: &Seat) {
    let world = seat.join();
    let team = world.team();
    let me = team.my_rank().index();
    let odd = me % 2 == 1;
    let told = |result: peerweave::Result<()>, what: &str| {
        let error = result.expect_err(what);
        assert!(matches!(error, Error::Mismatch(_)), "{what}: {error}");
    };
    for _ in 0..10 {
        told(world.alloc::<u32>(if odd { 100 } else { 101 }).map(drop), "PEs pass different counts");
        told(
            if odd { world.alloc::<u32>(64).map(drop) } else { world.alloc_zeroed::<u32>(64).map(drop) },
            "only some PEs request zeroed memory",
        );
        told(world.alloc_aligned::<u32>(64, if odd { 4096 } else { 64 }).map(drop), "PEs pass different alignments");
        told(if odd { world.alloc::<u32>(64).map(drop) } else { team.barrier_blocking() }, "only some PEs allocate");
        let [a, b] = [world.alloc::<u32>(64).unwrap(), world.alloc::<u32>(64).unwrap()];
        a.fill(me as u32).unwrap();
        b.fill(me as u32 + 1).unwrap();
        // The heaps still agree: the same offset is the same buffer on all PEs.
        let peer = Rank::new(((me + 1) % team.size()) as u32);
        team.barrier_blocking().unwrap();
        assert_eq!(team.g_blocking(&a, 63, peer).unwrap(), peer.get());
        assert_eq!(team.g_blocking(&b, 0, peer).unwrap(), peer.get() + 1);
        team.barrier_blocking().unwrap();
        a.release().unwrap();
        b.release().unwrap();
    }
    let [a, b] = [world.alloc::<u32>(64).unwrap(), world.alloc::<u32>(64).unwrap()];
    told(if odd { a.release() } else { b.release() }, "PEs release different buffers");
    // Nothing was released, so the next allocation is at the same offset on all PEs.
    let next = world.alloc_zeroed::<u32>(64).unwrap();
    let mut offsets = vec![0u64; team.size()];
    team.all_gather_blocking(&[next.offset().0], &mut offsets).unwrap();
    assert!(offsets.iter().all(|&at| at == offsets[0]), "the offsets differ among PEs: {offsets:?}");
    let _ = world.finalize().unwrap();
}

fn allocations_that_differ_among_pes_are_an_error_on_all_pes() {
    Job::new("disagreement", 2).on_threads();
    Job::new("disagreement", 3).on_processes();
    Job::new("disagreement", 3).check_calls().on_processes();
}

fn exhausted(seat: &Seat) {
    let world = seat.join();
    let team = world.team();
    let heap = world.caps().heap_bytes;
    let refused = |result: peerweave::Result<Symmetric<u8>>, bytes: usize| match result {
        Err(Error::OutOfMemory { requested_bytes, available_bytes, .. }) => {
            assert_eq!(requested_bytes, bytes);
            assert!(available_bytes < bytes);
        }
        other => panic!("{other:?}"),
    };
    refused(world.alloc(heap + 1), heap + 1);
    refused(world.alloc(1 << 50), 1 << 50);
    assert!(matches!(
        world.alloc::<u64>(usize::MAX / 2).unwrap_err().misuse(),
        Some(MisuseKind::Value { argument: "count", .. })
    ));
    assert!(matches!(
        world.alloc_aligned::<u64>(1, 3).unwrap_err().misuse(),
        Some(MisuseKind::Value { argument: "align_bytes", .. })
    ));
    let mut all = Vec::new();
    loop {
        match world.alloc::<u8>(heap / 10) {
            Ok(buffer) => all.push(buffer),
            Err(error) => {
                assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
                break;
            }
        }
    }
    assert!(all.len() >= 9, "{} tenths of the heap were allocated, expected at least 9", all.len());
    // The refused allocation does not affect later calls.
    team.all_reduce_in_place_blocking(&all[0], ReduceOp::Max).unwrap();
    while all.len() > 5 {
        all.remove(2).release().unwrap();
    }
    all.push(world.alloc::<u8>(heap / 10 * 2).unwrap());
    all.into_iter().for_each(|buffer| buffer.release().unwrap());
    world.alloc::<u8>(heap).unwrap().release().unwrap();
    assert!(world.finalize().unwrap().is_clean());
}

fn exhausted_heap_is_an_error_on_all_pes() {
    Job::new("exhausted", 1).heap_bytes(1 << 20).on_threads();
    Job::new("exhausted", 3).heap_bytes(1 << 20).on_threads();
    Job::new("exhausted", 3).heap_bytes(1 << 20).on_processes();
}

fn after_release(seat: &Seat) {
    let world = seat.join();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let words = world.alloc_zeroed::<u64>(8).unwrap();
    let other = world.alloc_zeroed::<u64>(8).unwrap();
    let (clone, part) = (words.clone(), words.slice(2..4).unwrap());
    let signal = clone.signal(1).unwrap();
    let is_part = part.clone().release().unwrap_err();
    assert!(matches!(is_part.misuse(), Some(MisuseKind::PartOfAllocation { .. })), "{is_part}");
    words.release().unwrap();
    let gone = |result: peerweave::Result<()>| {
        let error = result.expect_err("a call with a released buffer fails");
        assert!(matches!(error.misuse(), Some(MisuseKind::Released { .. })), "{error}");
    };
    assert!(clone.is_released() && part.is_released());
    let me = team.my_rank();
    gone(clone.load(0).map(drop));
    gone(clone.store(0, 1));
    gone(clone.to_vec().map(drop));
    gone(clone.fill(1));
    gone(clone.copy_from(&[0; 8]));
    gone(clone.copy_to(&mut [0; 8]));
    gone(team.all_reduce_blocking(&clone, &other, ReduceOp::Sum));
    gone(team.all_reduce_blocking(&other, &clone, ReduceOp::Sum));
    gone(team.all_reduce(&stream, &other, &clone, ReduceOp::Sum).map(drop));
    gone(team.put_blocking(&[1u64; 2], &part, me));
    gone(team.get_blocking(&part, &mut [1u64; 2], me));
    gone(team.p_blocking(&clone, 0, 1, me));
    gone(team.signal_blocking(signal.set(1), me));
    gone(team.put_signal_blocking(&[1u64; 8], &other, signal.set(1), me));
    gone(team.wait_until_blocking(&signal, peerweave::Compare::Eq, 0).map(drop));
    gone(team.atomic_inc_blocking(&clone, 0, me));
    gone(team.group_blocking(|group| group.send(&part, me)));
    gone(clone.release());
    team.barrier_blocking().unwrap();
    other.release().unwrap();
    assert!(world.finalize().unwrap().is_clean());
}

fn released_buffer_refuses_every_use() {
    Job::new("after_release", 1).everywhere();
    Job::new("after_release", 2).everywhere();
}

fn forgotten(seat: &Seat) {
    let world = seat.join();
    let kept = world.alloc::<f32>(10).unwrap();
    let line = line!() - 1;
    drop(world.alloc_zeroed::<u8>(3).unwrap());
    world.alloc::<u64>(5).unwrap().release().unwrap();
    let team = world.team().clone();
    let report = world.finalize().unwrap();
    let [first, second] = &report.leaked[..] else { panic!("{report}") };
    assert_eq!((first.elements, first.bytes, first.dropped, first.allocated_at.line()), (10, 40, false, line));
    assert_eq!((second.elements, second.dropped, second.allocated_at.file()), (3, true, file!()));
    assert!(report.to_string().contains("symmetric buffers not released: 2"));
    // Handles of the finalized world refuse every call.
    let over = |result: peerweave::Result<()>| assert!(matches!(result.unwrap_err().misuse(), Some(MisuseKind::Finalized)));
    over(kept.fill(1.0));
    over(kept.release());
    over(team.barrier_blocking());
}

fn unreleased_buffers_are_reported() {
    Job::new("forgotten", 1).everywhere();
    Job::new("forgotten", 3).everywhere();
}

fn alignments(seat: &Seat) {
    let world = seat.join();
    let mut buffers = Vec::new();
    let max = world.caps().max_align_bytes;
    assert!(max >= 1 << 21, "the maximum alignment is {max}, expected at least 2 MiB");
    for shift in 0..=max.trailing_zeros() {
        let align = 1usize << shift;
        let buffer = world.alloc_aligned::<u8>(align.min(1 << 21) / 2 + 3, align).unwrap();
        assert!(buffer.offset().0.is_multiple_of(align as u64), "offset {:?}, expected a multiple of {align}", buffer.offset());
        let address = buffer.as_ptr().expect("the host can access the memory");
        assert!(address.addr().is_multiple_of(align), "address {address:?}, expected a multiple of {align}");
        buffers.push(buffer);
        let empty = world.alloc::<u8>(0).unwrap();
        assert!(empty.is_empty() && empty.to_vec().unwrap().is_empty());
        buffers.push(empty);
    }
    let error = world.alloc_aligned::<u8>(1, 2 * max).unwrap_err();
    assert!(
        matches!(error.misuse(), Some(MisuseKind::Limit { argument: "align_bytes", max: limit, .. }) if *limit == max),
        "{error}"
    );
    world.team().barrier_blocking().unwrap();
    buffers.into_iter().for_each(|buffer| buffer.release().unwrap());
    assert!(world.finalize().unwrap().is_clean());
}

fn allocations_are_aligned_as_requested_on_every_pe() {
    Job::new("alignments", 1).everywhere();
    Job::new("alignments", 2).everywhere();
}
