//! What has to end although others do not come: a stuck collective that expires or is aborted, a rank that is missing when a communicator is made.
//!
//! One process drives all ranks. Every step has a bound of its own; what the step must say is checked, and how long it took.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use peerweave_driver::{CudaContext, DeviceMemory};
use peerweave_nccl::{Communicator, Config, Nccl, NcclError, OnExpiry, ReduceOp, Switch};

use crate::matrix::{DEADLINE, Member};
use crate::{members, sum_of_ranks};

/// How long a step waits for what does not come.
const SHORT: Duration = Duration::from_secs(2);
/// How much later than its deadline a step may end: aborting takes a moment.
const LATE: Duration = Duration::from_secs(8);

/// Elements of the collective that is stuck.
const LENGTH: usize = 1 << 20;

/// Runs every step, with blocking and with non-blocking communicators.
pub(crate) fn all(nccl: Nccl, contexts: &[Arc<CudaContext>]) -> Result<usize, String> {
    let mut checks = 0;
    for blocking in [Switch::Off, Switch::On] {
        let config = Config::new().blocking(blocking);
        let mut step = |what: &str, done: Result<(), String>| {
            checks += 1;
            println!("{what} (blocking {blocking:?}): {}", if done.is_ok() { "right" } else { "WRONG" });
            done.map_err(|error| format!("{what}: {error}"))
        };
        step("several ranks of one thread, by an id", by_id(nccl, contexts, &config))?;
        // A blocking communicator waits for a missing rank inside NCCL: that is what was asked for.
        if blocking == Switch::Off {
            step("a missing rank", missing_rank(nccl, contexts, &config))?;
        }
        if contexts.len() > 1 {
            if blocking == Switch::Off {
                step("a first collective that others do not join", unconnected(nccl, contexts, &config))?;
            }
            step("a stuck collective that expires", expires(nccl, contexts, &config))?;
            step("a stuck collective, left alone and aborted by its owner", left_alone(nccl, contexts, &config))?;
            step("a stuck collective that another thread aborts", aborted_by_another(nccl, contexts, &config))?;
        }
        step("a communicator after its end", after_the_end(nccl, contexts, &config))?;
    }
    Ok(checks)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn make(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<Vec<Member>, String> {
    members(
        Communicator::builder().nccl(nccl).config(config.clone()).deadline(DEADLINE).init_all(contexts).map_err(text)?,
        contexts,
    )
}

/// The error must be what `is` wants, and come between `least` and `least + LATE`.
fn expect(
    what: &str,
    began: Instant,
    least: Duration,
    outcome: Result<(), NcclError>,
    is: impl FnOnce(&NcclError) -> bool,
) -> Result<(), String> {
    let took = began.elapsed();
    match outcome {
        Ok(()) => Err(format!("{what} succeeded")),
        Err(error) if !is(&error) => Err(format!("{what}: another error than expected: {error}")),
        Err(_) if took < least || took > least + LATE => Err(format!("{what}: the error came after {took:?}")),
        Err(error) => {
            println!("  after {took:?}: {error}");
            Ok(())
        }
    }
}

fn by_id(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let id = nccl.unique_id().map_err(text)?;
    let ranks: Vec<_> = contexts.iter().cloned().zip(0..).collect();
    let communicators = Communicator::builder()
        .nccl(nccl)
        .config(config.clone())
        .deadline(DEADLINE)
        .init_ranks(&ranks, ranks.len(), &id)
        .map_err(text)?;
    let members = members(communicators, contexts)?;
    sum_of_ranks(&members).map_err(text)?;
    Communicator::finalize_all(members.into_iter().map(|member| member.comm).collect(), DEADLINE).map_err(text)
}

/// One rank more than there are devices: it never comes.
fn missing_rank(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let id = nccl.unique_id().map_err(text)?;
    let began = Instant::now();
    let outcome = Communicator::builder()
        .nccl(nccl)
        .config(config.clone())
        .deadline(SHORT)
        .init_rank(&contexts[0], contexts.len() + 1, &id, 0)
        .map(drop);
    expect("init_rank", began, SHORT, outcome, |error| matches!(error, NcclError::Timeout(_)))
}

/// The ranks connect in their first collective: there the call itself waits for the others, as long as the communicator's deadline allows.
fn unconnected(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let members = make(nccl, contexts, config)?;
    let first = &members[0];
    first.comm.set_deadline(SHORT);
    let mut buffer = DeviceMemory::from_slice(&first.stream, &vec![1.0f32; LENGTH]).map_err(text)?;
    let began = Instant::now();
    let call = first.comm.all_reduce_in_place(&first.stream, &mut buffer, ReduceOp::Sum);
    let outcome = call.and_then(|()| first.comm.wait(&first.stream, SHORT));
    expect("a first all_reduce", began, SHORT, outcome, |error| matches!(error, NcclError::Timeout(_)))?;
    Communicator::settle(DEADLINE).then_some(()).ok_or("an abort does not end")?;
    idle(first)?;
    drop((buffer, members));
    works(nccl, contexts, config)
}

/// What will be stuck, once with all ranks: they are connected then, and only the work on the device can be stuck.
fn together(members: &[Member]) -> Result<(), String> {
    let ones = |member: &Member| DeviceMemory::from_slice(&member.stream, &vec![1.0f32; LENGTH]).map_err(text);
    let mut buffers = members.iter().map(ones).collect::<Result<Vec<_>, _>>()?;
    let all = members[0].comm.nccl().group(|group| {
        for (member, buffer) in members.iter().zip(&mut buffers) {
            group.all_reduce_in_place(&member.comm, &member.stream, buffer, ReduceOp::Sum)?;
        }
        Ok(())
    });
    all.map_err(text)?;
    members.iter().try_for_each(|member| member.comm.wait(&member.stream, DEADLINE).map_err(text))
}

/// An all-reduce that rank 0 alone calls.
fn stuck(member: &Member) -> Result<DeviceMemory<f32>, String> {
    let mut buffer = DeviceMemory::from_slice(&member.stream, &vec![1.0; LENGTH]).map_err(text)?;
    member.comm.all_reduce_in_place(&member.stream, &mut buffer, ReduceOp::Sum).map_err(text)?;
    Ok(buffer)
}

fn expires(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let members = make(nccl, contexts, config)?;
    together(&members)?;
    let first = &members[0];
    let buffer = stuck(first)?;
    let began = Instant::now();
    let outcome = first.comm.wait(&first.stream, SHORT);
    expect("wait", began, SHORT, outcome, |error| {
        matches!(error, NcclError::Timeout(_)) && error.to_string().contains("all_reduce")
    })?;
    // Every communicator of the process was aborted: the streams are free, and a new communicator works.
    Communicator::settle(DEADLINE).then_some(()).ok_or("an abort does not end")?;
    idle(first)?;
    drop(buffer);
    let dead = first.comm.all_reduce_in_place(&first.stream, &mut zeros(first)?, ReduceOp::Sum);
    expect("a call after the abort", Instant::now(), Duration::ZERO, dead, |error| matches!(error, NcclError::Dead { .. }))?;
    drop(members);
    works(nccl, contexts, config)
}

fn left_alone(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let members = make(nccl, contexts, config)?;
    together(&members)?;
    let first = &members[0];
    let buffer = stuck(first)?;
    let began = Instant::now();
    let outcome = first.comm.wait_with(&first.stream, SHORT, OnExpiry::LeaveAlone);
    expect("wait_with", began, SHORT, outcome, |error| matches!(error, NcclError::Timeout(_)))?;
    for member in &members {
        member.comm.abort(DEADLINE).map_err(|error| format!("abort: {error}"))?;
    }
    idle(first)?;
    drop((buffer, members));
    works(nccl, contexts, config)
}

fn aborted_by_another(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let members = make(nccl, contexts, config)?;
    together(&members)?;
    let first = &members[0];
    let buffer = stuck(first)?;
    let aborted = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(SHORT);
            aborted.store(members.iter().all(|member| member.comm.abort(DEADLINE).is_ok()), Ordering::Release);
        });
        let began = Instant::now();
        let outcome = first.comm.wait(&first.stream, DEADLINE);
        expect("wait", began, SHORT / 2, outcome, |error| matches!(error, NcclError::Dead { .. }))
    })?;
    aborted.load(Ordering::Acquire).then_some(()).ok_or("abort failed")?;
    idle(first)?;
    drop((buffer, members));
    works(nccl, contexts, config)
}

fn after_the_end(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let members = make(nccl, contexts, config)?;
    sum_of_ranks(&members).map_err(text)?;
    let first = &members[0];
    let clones = members.iter().map(|member| member.comm.clone()).collect();
    let mut buffer = zeros(first)?;
    Communicator::finalize_all(clones, DEADLINE).map_err(text)?;
    let dead = first.comm.all_reduce_in_place(&first.stream, &mut buffer, ReduceOp::Sum);
    expect("a call after finalize", Instant::now(), Duration::ZERO, dead, |error| matches!(error, NcclError::Dead { .. }))
}

/// After an abort, nothing may be left on the stream.
fn idle(member: &Member) -> Result<(), String> {
    match peerweave_driver::wait(&member.stream, Instant::now() + DEADLINE).map_err(text)? {
        true => Ok(()),
        false => Err(format!("the stream is still busy {DEADLINE:?} after the abort")),
    }
}

fn zeros(member: &Member) -> Result<DeviceMemory<f32>, String> {
    DeviceMemory::from_slice(&member.stream, &[0.0; 4]).map_err(text)
}

/// A new communicator of all devices computes.
fn works(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let members = make(nccl, contexts, config)?;
    sum_of_ranks(&members).map_err(text)?;
    Communicator::finalize_all(members.into_iter().map(|member| member.comm).collect(), DEADLINE).map_err(text)
}
