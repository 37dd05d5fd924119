//! Tests of kernels on streams of the host backend: their order, refused arguments, and failures.

use peerweave_core::{Error, LaunchShape, MisuseKind, Result, Team, World};
use peerweave_device::prelude::*;
use peerweave_host::{HostOptions, on_threads};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn options(deadline: Duration) -> HostOptions {
    let mut options = HostOptions::default();
    options.deadline = deadline;
    options.heap_bytes = Some(1 << 20);
    options
}

fn alone<R: Send>(program: impl Fn(World) -> R + Sync) -> R {
    on_threads(1, &options(Duration::from_secs(60)), program).unwrap().remove(0)
}

/// Adds 1 for each thread to the word at the address `word`.
#[kernel]
fn count(word: u64) {
    // SAFETY: the tests pass the address of a word that outlives the launch.
    let word = unsafe { &*(word as *const AtomicU64) };
    word.fetch_add(1, Ordering::Relaxed);
    gpu::sync_threads();
}

#[kernel]
fn panics_in(block: u32, thread: u32) {
    assert!((gpu::block_rank(), gpu::thread_rank()) != (block, thread), "the test requested this panic");
}

#[kernel]
fn takes(_ctx: &Context, _bytes: SymSlice<u8>, _words: SymSlice<u64>, _number: f32) -> Result<(), Failed> {
    Ok(())
}

#[kernel]
fn shared_bytes(word: u64) {
    // SAFETY: as in `count`.
    let word = unsafe { &*(word as *const AtomicU64) };
    word.store(gpu::dynamic_shared().1 as u64, Ordering::Relaxed);
}

#[kernel]
fn forever() {
    loop {
        gpu::pause();
    }
}

#[kernel]
fn puts_to_pe_5(ctx: &Context, words: SymSlice<u64>) {
    ctx.p(words, 0, 5);
}

#[kernel]
fn all_blocks_meet(word: u64) {
    // SAFETY: as in `count`.
    let word = unsafe { &*(word as *const AtomicU64) };
    word.fetch_add(1, Ordering::AcqRel);
    while word.load(Ordering::Acquire) < u64::from(gpu::grid_dim().x) {
        gpu::pause();
    }
}

fn address(word: &AtomicU64) -> u64 {
    word.as_ptr().expose_provenance() as u64
}

#[test]
fn operations_of_a_stream_run_in_the_order_of_the_calls() {
    alone(|world| -> Result<()> {
        let stream = world.stream()?;
        let words = world.alloc_zeroed::<u64>(1)?;
        let counted = AtomicU64::new(0);
        let first = stream.launch(&count::KERNEL, 4, (8, 4), (address(&counted),))?;
        let signal = words.signal(0)?;
        world.team().signal(&stream, signal.set(5), Rank::new(0))?;
        let second = stream.launch(&count::KERNEL, 1, 1, (address(&counted),))?;
        second.wait()?;
        assert!(first.is_complete());
        assert_eq!((counted.load(Ordering::Relaxed), words.load(0)?), (129, 5));
        stream.synchronize()
    })
    .unwrap();
}

#[test]
fn launch_applies_cooperative_mode_and_dynamic_shared_memory() {
    alone(|world| -> Result<()> {
        let stream = world.stream()?;
        let word = AtomicU64::new(0);
        let shape = LaunchShape::new(300, 32).cooperative();
        stream.launch_shaped(&all_blocks_meet::KERNEL, shape, (address(&word),))?.wait()?;
        let shape = LaunchShape::new(1, 1).shared_bytes(1000);
        stream.launch_shaped(&shared_bytes::KERNEL, shape, (address(&word),))?.wait()?;
        assert_eq!(word.load(Ordering::Relaxed), 1000);
        Ok(())
    })
    .unwrap();
}

#[test]
fn kernel_panic_fails_the_ticket_and_the_stream() {
    alone(|world| -> Result<()> {
        let (stream, other) = (world.stream()?, world.stream()?);
        let ticket = stream.launch(&panics_in::KERNEL, 2, 64, (1, 40))?;
        let error = ticket.wait().unwrap_err();
        let expected = "panics_in: block (1, 0, 0) thread (40, 0, 0) panicked: the test requested this panic (seed 0)";
        assert_eq!(error.to_string(), expected);
        assert!(matches!(&error, Error::Kernel(failure) if failure.kernel == "panics_in" && failure.missing.is_none()));
        let counted = AtomicU64::new(0);
        let skipped = stream.launch(&count::KERNEL, 1, 1, (address(&counted),))?.wait().unwrap_err();
        assert!(matches!(skipped, Error::Skipped { call: "count", .. }), "{skipped}");
        assert_eq!(stream.synchronize().unwrap_err().to_string(), expected);
        other.launch(&count::KERNEL, 1, 1, (address(&counted),))?.wait()?;
        assert_eq!(counted.load(Ordering::Relaxed), 1);
        Ok(())
    })
    .unwrap();
}

#[test]
fn kernel_error_contains_the_seed_from_the_options() {
    let mut seeded = options(Duration::from_millis(200));
    seeded.kernel_seed = 41;
    let outcomes = on_threads(1, &seeded, |world| -> Result<()> {
        let (stream, signal) = (world.stream()?, world.alloc_zeroed::<u64>(1)?);
        let error = stream.launch(&panics_in::KERNEL, 2, 64, (1, 40))?.wait_within(Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().ends_with("; to repeat this order of the threads, set PEERWEAVE_KERNEL_SEED=41"), "{error}");
        // The error of an operation in a kernel contains the seed too.
        let stream = world.stream()?;
        let ticket = stream.launch(&waits_for_pe_1::KERNEL, 1, 1, (&signal,))?;
        let error = ticket.wait_within(Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().ends_with("; to repeat this order of the threads, set PEERWEAVE_KERNEL_SEED=41"), "{error}");
        drop(stream);
        Ok(())
    });
    outcomes.unwrap().into_iter().for_each(Result::unwrap);
}

#[test]
fn error_of_a_put_to_an_invalid_pe_blames_no_pe() {
    alone(|world| -> Result<()> {
        let (stream, words) = (world.stream()?, world.alloc_zeroed::<u64>(1)?);
        let error = stream.launch(&puts_to_pe_5::KERNEL, 1, 1, (&words,))?.wait().unwrap_err();
        assert!(error.to_string().contains("PE 5, expected a PE below 1"), "{error}");
        assert!(error.blamed().is_empty(), "{:?}", error.blamed());
        Ok(())
    })
    .unwrap();
}

#[test]
fn kernel_that_never_returns_is_stopped_at_the_deadline() {
    on_threads(1, &options(Duration::from_millis(200)), |world| -> Result<()> {
        let stream = world.stream()?;
        let started = Instant::now();
        stream.launch(&forever::KERNEL, 2, 32, ())?;
        let error = stream.synchronize_within(Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().starts_with("forever: timed out after "), "{error}");
        assert!(started.elapsed() < Duration::from_secs(20));
        Ok(())
    })
    .unwrap()
    .remove(0)
    .unwrap();
}

#[test]
fn invalid_launches_are_refused_before_anything_runs() {
    alone(|world| -> Result<()> {
        let stream = world.stream()?;
        let (bytes, words) = (world.alloc_zeroed::<u8>(64)?, world.alloc_zeroed::<u64>(8)?);
        let message = |outcome: Result<peerweave_core::Ticket>| outcome.unwrap_err().to_string();
        let launch = |grid: u32, block: u32| stream.launch(&takes::KERNEL, grid, block, (&bytes, &words, 1.5));
        launch(1, 1)?.wait()?;
        assert_eq!(message(launch(0, 1)), "launch: `grid` is (0, 1, 1), expected from (1, 1, 1) to (2147483647, 65535, 65535) blocks");
        let expected = "launch: `block` is (1025, 1, 1), expected from (1, 1, 1) to (1024, 1024, 64) threads, and at most 1024 threads in total";
        assert_eq!(message(launch(1, 1025)), expected);
        let shape = LaunchShape::new(1, 1).shared_bytes(1 << 20);
        assert!(
            message(stream.launch_shaped(&takes::KERNEL, shape, (&bytes, &words, 1.5))).contains("`shared_bytes` is 1048576")
        );

        let (view, spare) = (words.view(), world.alloc_zeroed::<u64>(1)?);
        words.clone().release()?;
        let error = stream.launch(&takes::KERNEL, 1, 1, (&bytes, &words, 1.5)).unwrap_err();
        assert_eq!(error.misuse(), Some(&MisuseKind::Released { argument: "args.1" }));
        let error = message(stream.launch(&takes::KERNEL, 1, 1, (&bytes, view, 1.5)));
        assert!(error.starts_with("launch: `args.1` is a view of 64 bytes at symmetric offset "), "{error}");
        // SAFETY: the launch is refused, so the view is never passed to a kernel.
        let outside = unsafe { SymSlice::<u8>::from_raw(bytes.offset(), 65) };
        let error = message(stream.launch(&takes::KERNEL, 1, 1, (outside, &spare, 1.5)));
        assert!(error.starts_with("launch: `args.0` is a view of 65 bytes"), "{error}");
        stream.synchronize()
    })
    .unwrap();
}

#[test]
fn launch_refuses_a_buffer_of_another_world() {
    alone(|world| {
        alone(|other| -> Result<()> {
            let (bytes, words) = (world.alloc_zeroed::<u8>(64)?, other.alloc_zeroed::<u64>(8)?);
            let error = world.stream()?.launch(&takes::KERNEL, 1, 1, (&bytes, &words, 0.0)).unwrap_err();
            assert_eq!(error.misuse(), Some(&MisuseKind::ForeignBuffer { argument: "args.1" }));
            Ok(())
        })
    })
    .unwrap();
}

/// Waits for a signal that PE 1 never sends.
#[kernel]
fn waits_for_pe_1(ctx: &Context, signal: SymSlice<u64>) -> Result<(), Failed> {
    ctx.signal_wait_until_from_block(signal, Compare::Eq, 3, 1)?;
    gpu::sync_threads();
    Ok(())
}

/// Puts this PE's number to the next PE, then synchronizes with all PEs.
#[kernel]
fn shift(ctx: &Context, dst: SymSlice<u32>) -> Result<(), Failed> {
    ctx.p(dst, ctx.my_pe(), (ctx.my_pe() + 1) % ctx.n_pes());
    ctx.barrier_all()
}

#[test]
fn kernels_of_pes_that_are_threads_can_wait_for_each_other() {
    for kernel_seed in [0, 1, 2, 3] {
        let mut options = options(Duration::from_secs(60));
        options.kernel_seed = kernel_seed;
        let received = on_threads(3, &options, |world| -> Result<u32> {
            let (stream, dst) = (world.stream()?, world.alloc_zeroed::<u32>(1)?);
            for _ in 0..5 {
                stream.launch(&shift::KERNEL, 1, 1, (&dst,))?;
            }
            stream.synchronize()?;
            dst.load(0)
        });
        let received: Vec<u32> = received.unwrap().into_iter().map(Result::unwrap).collect();
        assert_eq!(received, [2, 0, 1]);
    }
}

#[test]
fn kernel_wait_that_times_out_names_the_missing_pe() {
    let gave_up = AtomicBool::new(false);
    let outcomes = on_threads(2, &options(Duration::from_secs(4)), |world| -> Result<()> {
        let (stream, signal) = (world.stream()?, world.alloc_zeroed::<u64>(1)?);
        let outcome = match world.my_pe().get() {
            0 => stream.launch(&waits_for_pe_1::KERNEL, 2, 64, (&signal,))?.wait_within(Duration::from_secs(60)),
            _ => Ok(()),
        };
        if world.my_pe().get() == 0 {
            gave_up.store(true, Ordering::Release);
        }
        // PE 1 stays until PE 0 has given up.
        let end = Instant::now() + Duration::from_secs(90);
        while !gave_up.load(Ordering::Acquire) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        outcome
    });
    let error = outcomes.unwrap().remove(0).unwrap_err();
    assert_eq!(error.blamed(), [Pe::new(1)], "{error}");
    assert!(matches!(&error, Error::Kernel(failure) if failure.kind == Some(peerweave_core::FailureKind::Deadline)), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("waits_for_pe_1: signal_wait_until: deadline passed; PE 1; found 0, expected 3"), "{text}");
}

#[test]
fn kernel_error_names_the_pe_that_left() {
    let started = Instant::now();
    let outcomes = on_threads(2, &options(Duration::from_secs(60)), |world| -> Result<()> {
        let (stream, signal) = (world.stream()?, world.alloc_zeroed::<u64>(1)?);
        if world.my_pe().get() == 1 {
            // Drops the world, so this PE leaves the job.
            return Ok(());
        }
        stream.launch(&waits_for_pe_1::KERNEL, 1, 32, (&signal,))?.wait()
    });
    let error = outcomes.unwrap().remove(0).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(30), "the error arrived after more than 30 s");
    assert_eq!(error.blamed(), [Pe::new(1)], "{error}");
    assert!(matches!(error, Error::Peer { call: "waits_for_pe_1", .. }), "{error}");
}

/// Adds this PE's number plus 1 to the word `word` of every member of the team. Then performs a
/// barrier and a sum reduction over the team.
#[kernel]
fn work_of_a_team(
    ctx: &Context,
    team: KernelTeam,
    word: SymSlice<u64>,
    sum: SymSlice<u32>,
    mine: SymSlice<u32>,
) -> Result<(), Failed> {
    if gpu::thread_rank() == 0 {
        for rank in 0..ctx.team_n_pes(team) {
            let pe = ctx.team_pe(team, rank).unwrap_or(u32::MAX);
            ctx.atomic_add(word, u64::from(ctx.my_pe()) + 1, pe);
        }
    }
    gpu::sync_threads();
    ctx.barrier_block(team)?;
    ctx.reduce_block(team, sum, mine, Sum)
}

#[test]
fn kernel_communicates_only_with_members_of_the_team() {
    for n in [1, 2, 3, 8] {
        let outcomes = on_threads(n, &options(Duration::from_secs(60)), |world| -> Result<()> {
            let me = u64::from(world.my_pe().get());
            let team = world.team().split(Some(me % 2), -(me as i64))?.expect("the rank passed a color");
            let members: Vec<u64> = (0..n as u64).rev().filter(|pe| pe % 2 == me % 2).collect();
            let (stream, word) = (world.stream()?, world.alloc_zeroed::<u64>(1)?);
            let (sum, mine) = (world.alloc_zeroed::<u32>(37)?, world.alloc::<u32>(37)?);
            mine.fill(me as u32 + 1)?;
            stream.launch(&work_of_a_team::KERNEL, 1, 33, (&team, &word, &sum, &mine))?.wait()?;
            let expected: u64 = members.iter().map(|pe| pe + 1).sum();
            assert_eq!(word.load(0)?, expected);
            assert_eq!(sum.to_vec()?, [expected as u32; 37]);
            team.barrier_blocking()?;
            // A team can also be passed as a number, for use in structs and arrays.
            let number = team.kernel_team()?;
            assert_ne!(number, KernelTeam::WORLD);
            stream.launch(&work_of_a_team::KERNEL, 1, 33, (number, &word, &sum, &mine))?.wait()?;
            assert_eq!(word.load(0)?, 2 * expected);
            team.destroy()
        });
        outcomes.unwrap().into_iter().for_each(Result::unwrap);
    }
}

#[test]
fn kernels_of_a_new_team_are_unaffected_by_destroyed_teams() {
    let outcomes = on_threads(3, &options(Duration::from_secs(60)), |world| -> Result<()> {
        let (stream, word) = (world.stream()?, world.alloc_zeroed::<u64>(1)?);
        let (sum, mine) = (world.alloc_zeroed::<u32>(5)?, world.alloc::<u32>(5)?);
        mine.fill(1)?;
        for round in 0..6u64 {
            // The teams have one or two PEs, and different members in each round. So a team uses
            // lines that other teams used before.
            let color = u64::from((u64::from(world.my_pe().get()) + round).is_multiple_of(3));
            let team = world.team().split(Some(color), 0)?.expect("the rank passed a color");
            for _ in 0..=round {
                stream.launch(&work_of_a_team::KERNEL, 1, 32, (&team, &word, &sum, &mine))?.wait()?;
            }
            assert_eq!(sum.to_vec()?, [team.size() as u32; 5]);
            team.destroy()?;
        }
        Ok(())
    });
    outcomes.unwrap().into_iter().for_each(Result::unwrap);
}

#[test]
fn launch_refuses_destroyed_teams_and_teams_of_other_worlds() {
    alone(|world| {
        alone(|other| -> Result<()> {
            let (stream, word) = (world.stream()?, world.alloc_zeroed::<u64>(1)?);
            let numbers = world.alloc_zeroed::<u32>(1)?;
            let team = world.team().split(Some(0), 0)?.expect("the rank passed a color");
            let kept = team.clone();
            team.destroy()?;
            let launch = |team: &Team| stream.launch(&work_of_a_team::KERNEL, 1, 1, (team, &word, &numbers, &numbers)).map(drop);
            assert_eq!(launch(&kept).unwrap_err().misuse(), Some(&MisuseKind::TeamDestroyed));
            assert_eq!(kept.kernel_team().unwrap_err().misuse(), Some(&MisuseKind::TeamDestroyed));
            let error = launch(other.team()).unwrap_err();
            assert_eq!(error.misuse(), Some(&MisuseKind::ForeignQueue { what: "args.0" }), "{error}");
            launch(world.team())?;
            stream.synchronize()
        })
    })
    .unwrap();
}
