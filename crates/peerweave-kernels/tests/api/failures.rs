//! Tests of failures: the error at a deadline names the missing PE, and no wait is endless.

use crate::{PES, right};
use peerweave_device::prelude::*;
use peerweave_device::types::{FailureKind, KernelOp, SymOffset};
use peerweave_grid::{Job, JobError, Report, Shape};
use std::time::{Duration, Instant};

/// Returns a job with a short deadline, which passes in the test.
fn impatient() -> Job {
    Job::with_heap(PES, 1 << 16).deadline(Duration::from_millis(1000))
}

/// Returns a job with a deadline that does not pass in the test.
fn patient() -> Job {
    Job::with_heap(PES, 1 << 16).deadline(Duration::from_secs(20))
}

#[track_caller]
fn report(outcome: Result<(), JobError>) -> Report {
    match outcome {
        Err(JobError::Failed { report, .. }) => report,
        other => panic!("expected a report, found {other:?}"),
    }
}

#[kernel]
fn meets(ctx: &Context, form: u32) -> Result<(), Failed> {
    match form {
        0 if gpu::thread_rank() == 0 => ctx.barrier_all(),
        1 if gpu::warp() == 0 => ctx.barrier_all_warp(),
        2 => ctx.barrier_all_block(),
        _ => Ok(()),
    }
}

#[test]
fn timed_out_barrier_reports_the_missing_pe() {
    for form in 0..3 {
        for missing in 0..PES {
            let mut job = impatient();
            let from = Instant::now();
            let outcome = job.launch_each(&meets::KERNEL, Shape::new(1, 40), |pe| (pe != missing).then_some((form,)));
            let report = report(outcome);
            assert_eq!((report.kind(), report.missing_pe().map(Pe::get)), (Some(FailureKind::Deadline), Some(missing)));
            assert_eq!((report.0.operation, report.0.team), (KernelOp::Barrier as u32, 0));
            assert_eq!((report.0.expected, report.0.found), (1, 0));
            assert!(from.elapsed() < Duration::from_secs(10), "the wait took {:?}", from.elapsed());
        }
    }
}

#[kernel]
fn waits(ctx: &Context, signal: SymSlice<u64>, words: SymSlice<i32>, form: u32) -> Result<(), Failed> {
    let left = (ctx.my_pe() + ctx.n_pes() - 1) % ctx.n_pes();
    match form {
        0 => ctx.signal_wait_until_from(signal, Compare::Ge, 7, left).map(drop)?,
        1 => ctx.signal_wait_until_from_block(signal, Compare::Ge, 7, left)?,
        2 => ctx.wait_until(words, Compare::Eq, -1)?,
        3 => ctx.wait_until_any(words, EXCLUDE_NONE, Compare::Eq, -1).map(drop)?,
        4 => ctx.wait_until_all(words, EXCLUDE_NONE, Compare::Eq, -1)?,
        5 => ctx.wait_until_some(words, &mut [], EXCLUDE_NONE, Compare::Eq, -1).map(drop)?,
        _ => ctx.signal_wait_until(signal, Compare::Ge, 7).map(drop)?,
    }
    panic!("the wait has ended without a signal");
}

#[test]
fn wait_for_a_signal_that_is_not_sent_fails_at_the_deadline() {
    let operations = [
        KernelOp::SignalWaitUntil,
        KernelOp::SignalWaitUntil,
        KernelOp::WaitUntil,
        KernelOp::WaitUntilAny,
        KernelOp::WaitUntilAll,
        KernelOp::WaitUntilSome,
        KernelOp::SignalWaitUntil,
    ];
    for (form, operation) in operations.into_iter().enumerate() {
        let mut job = impatient();
        let (signal, words) = (job.alloc::<u64>(1), job.alloc::<i32>(3));
        let shape = Shape::new(1, 33);
        let outcome = job.launch_each(&waits::KERNEL, shape, |pe| (pe == 1).then_some((signal, words, form as u32)));
        let report = report(outcome);
        assert_eq!((report.kind(), report.0.operation), (Some(FailureKind::Deadline), operation as u32), "form {form}");
        assert_eq!(report.missing_pe().map(Pe::get), (form < 2).then_some(0), "form {form}");
        assert_eq!(report.0.found, 0);
    }
}

#[kernel]
fn misuses(ctx: &Context, of: SymSlice<u32>, form: u32) -> Result<(), Failed> {
    match form {
        0 => ctx.p(of, 1, ctx.n_pes()),
        1 => {
            ctx.put(of, of, 1000);
        }
        2 => assert_eq!(ctx.g(of, 77), 0),
        3 => assert_eq!(ctx.atomic_fetch_add(of, 1, 77), 0),
        4 => ctx.put_checked(of, of.slice(1..), right(ctx))?,
        5 => ctx.barrier(KernelTeam::new(4))?,
        6 => ctx.broadcast_block(KernelTeam::WORLD, of, of, PES + 3)?,
        _ => ctx.get_checked_block(of.slice(2..), of, right(ctx))?,
    }
    Ok(())
}

#[test]
fn report_of_a_misuse_names_the_operation_and_the_pe() {
    let expected = [
        (FailureKind::NoSuchPeer, KernelOp::P, Some(PES)),
        (FailureKind::NoSuchPeer, KernelOp::Put, Some(1000)),
        (FailureKind::NoSuchPeer, KernelOp::G, Some(77)),
        (FailureKind::NoSuchPeer, KernelOp::Atomic, Some(77)),
        (FailureKind::LengthMismatch, KernelOp::Put, Some(1)),
        (FailureKind::NoSuchPeer, KernelOp::Barrier, None),
        (FailureKind::NoSuchPeer, KernelOp::Broadcast, Some(PES + 3)),
        (FailureKind::LengthMismatch, KernelOp::Get, Some(1)),
    ];
    for (form, (kind, operation, pe)) in expected.into_iter().enumerate() {
        let mut job = patient();
        let of = job.alloc::<u32>(4);
        let outcome = job.launch_each(&misuses::KERNEL, Shape::new(1, 1), |pe| (pe == 0).then_some((of, form as u32)));
        let report = report(outcome);
        assert_eq!((report.kind(), report.0.operation), (Some(kind), operation as u32), "form {form}");
        assert_eq!(report.missing_pe().map(Pe::get), pe, "form {form}");
        assert_eq!(job.read(0, of), [0; 4], "form {form} wrote something");
    }
}

#[kernel]
fn stores(ctx: &Context, of: SymSlice<u32>) -> Result<(), Failed> {
    ctx.p(of, 1, ctx.my_pe());
    Ok(())
}

#[test]
fn launch_refuses_a_symmetric_slice_of_unallocated_memory() {
    let mut job = patient();
    let of = job.alloc::<u32>(4);
    let before = of.offset().0 - 4;
    for offset in [0, before, of.offset().0 + 16] {
        // SAFETY: the bytes lie in the heap of every PE.
        let outside = unsafe { SymSlice::<u32>::from_raw(SymOffset(offset), 1) };
        let error =
            job.launch(&stores::KERNEL, 1, 1, (outside,)).expect_err("the launch fails, because the bytes are not allocated");
        assert!(matches!(error, JobError::Argument { start, .. } if start == offset), "{error}");
    }
    job.launch(&stores::KERNEL, 1, 1, (of,)).expect("the launch succeeds, because the elements are allocated");
    assert_eq!(job.read(0, of), [1, 0, 0, 0]);
}

/// A kernel in which one thread of PE 1 returns early, and the other threads wait for that thread.
#[kernel]
fn gives_up(ctx: &Context) -> Result<(), Failed> {
    if ctx.my_pe() == 1 && gpu::thread_rank() == 5 {
        return Err(ctx.exit(0x1234));
    }
    ctx.barrier_all_warp()
}

#[test]
fn exit_code_of_a_kernel_is_reported() {
    let mut job = patient();
    let shape = Shape::new(1, 32);
    let report = report(job.launch_each(&gives_up::KERNEL, shape, |pe| (pe == 1).then_some(())));
    assert_eq!((report.kind(), report.0.operation), (Some(FailureKind::Exit), KernelOp::Exit as u32));
    assert_eq!((report.0.found, report.0.thread), (0x1234, 5));
    assert_eq!(report.to_string(), "exit: failure reported by the kernel, code 4660 (block 0, thread 5)");
}

#[kernel]
fn too_many_blocks(ctx: &Context) -> Result<(), Failed> {
    ctx.barrier_all_block()
}

#[test]
fn barrier_of_too_many_blocks_fails() {
    let mut job = patient();
    let report = report(job.launch(&too_many_blocks::KERNEL, 5000, 1, ()));
    assert_eq!((report.kind(), report.0.operation), (Some(FailureKind::NoSlot), KernelOp::Barrier as u32));
    assert!(report.0.found >= report.0.expected);
}

#[test]
fn kernel_context_of_a_different_layout_version_is_refused() {
    let mut raw = context_of_one_pe();
    // SAFETY: the context is complete, and its version is checked first.
    assert!(unsafe { Context::enter(&raw const raw) }.is_ok());
    raw.version ^= 1;
    // SAFETY: as above.
    let refused = unsafe { Context::enter(&raw const raw) };
    assert_eq!(refused.err().map(Failed::kind), Some(FailureKind::Version));
}

/// Returns a context of one PE without a heap.
fn context_of_one_pe() -> peerweave_device::types::KernelContext {
    use peerweave_device::types::{KernelContext, PeerEntry};
    static PEERS: [PeerEntry; 1] = [PeerEntry { base: 4096, node_pe: 0, transport: PeerEntry::MAPPED }];
    KernelContext {
        version: KernelContext::VERSION,
        my_pe: 0,
        n_pes: 1,
        node_pe: 0,
        node_n_pes: 1,
        n_teams: 0,
        capabilities: 0,
        reserved: 0,
        heap_bytes: 0,
        peers: PEERS.as_ptr().expose_provenance() as u64,
        teams: 0,
        status: 0,
        abort: 0,
        deadline_ns: 0,
        multicast: 0,
        gone: 0,
    }
}
