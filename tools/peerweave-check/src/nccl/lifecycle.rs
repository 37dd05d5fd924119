//! Checks operations that must end although other ranks do not join: a stuck collective that
//! reaches its deadline or is aborted, and the creation of a communicator that one rank never
//! joins.
//!
//! One process drives all ranks. Every wait has a deadline. If a call must fail, its step checks
//! the kind of the error, and the time after which the error was returned.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use peerweave_driver::{CudaContext, DeviceMemory};
use peerweave_nccl::{Communicator, Config, MisuseKind, Nccl, NcclError, OnExpiry, Rank, ReduceOp, Switch};

use crate::nccl::matrix::{DEADLINE, Member};
use crate::nccl::{members, sum_of_ranks};

/// Deadline of a wait that cannot succeed.
const SHORT: Duration = Duration::from_secs(2);
/// Maximum delay of an expected error after its earliest time, because an abort takes time.
const LATE: Duration = Duration::from_secs(8);

/// Number of elements of the all-reduce that connects the ranks, and of the all-reduces that cannot
/// complete.
const LENGTH: usize = 1 << 20;

/// Function that runs one step: it creates communicators with the given configuration and checks
/// them.
type Check = fn(Nccl, &[Arc<CudaContext>], &Config) -> Result<(), String>;

/// One row of the table: the result and the duration of one step. The step uses either blocking or
/// non-blocking communicators.
struct Row {
    what: &'static str,
    mode: &'static str,
    is_right: bool,
    took: Duration,
}

/// Runs every step with blocking communicators (NCCL's default), then with non-blocking
/// communicators. Omits the steps that need two devices if there is only one. Prints a table, and
/// returns its number of rows, or the first error.
pub(crate) fn all(nccl: Nccl, contexts: &[Arc<CudaContext>]) -> Result<usize, String> {
    let (mut rows, mut first_error): (Vec<Row>, Option<String>) = (Vec::new(), None);
    for blocking in [Switch::On, Switch::Off] {
        let config = Config::new().blocking(blocking);
        let mode = if blocking == Switch::On { "blocking" } else { "non-blocking" };
        let mut step = |what: &'static str, check: Check| {
            println!("{what} ({mode})");
            let (began, done) = (Instant::now(), check(nccl, contexts, &config));
            rows.push(Row { what, mode, is_right: done.is_ok(), took: began.elapsed() });
            if let Err(error) = done {
                println!("  WRONG {error}");
                first_error.get_or_insert(format!("{what} ({mode}): {error}"));
            }
        };
        step("one thread creates all ranks from an id", by_id);
        step("a communicator that one rank never joins", missing_rank);
        if contexts.len() > 1 {
            step("a first collective that only one rank calls", unconnected);
            step("an expired wait aborts only one communicator", expires);
            step("a timeout with AbortAll aborts all communicators", expires_for_all);
            step("the watchdog aborts a stuck collective", late_work);
            step("the waiting thread aborts a stuck collective", left_alone);
            step("another thread aborts a stuck collective", aborted_by_another);
        }
        step("a communicator after finalize", after_the_end);
    }
    println!("{:<48} {:<13} {:<6} {:>9}", "step", "mode", "", "seconds");
    for Row { what, mode, is_right, took } in &rows {
        println!("{what:<48} {mode:<13} {:<6} {:>9.2}", if *is_right { "right" } else { "WRONG" }, took.as_secs_f64());
    }
    first_error.map_or(Ok(rows.len()), Err)
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

/// Checks an `outcome` that must be an error. The predicate `is` must accept the error. The time
/// since `began` must be at least `least` and at most `least + LATE`.
fn expect(
    what: &str,
    began: Instant,
    least: Duration,
    outcome: Result<(), NcclError>,
    is: impl FnOnce(&NcclError) -> bool,
) -> Result<(), String> {
    let took = began.elapsed();
    match outcome {
        Ok(()) => Err(format!("{what} succeeded, expected an error")),
        Err(error) if !is(&error) => Err(format!("{what}: unexpected error: {error}")),
        Err(_) if took < least || took > least + LATE => {
            Err(format!("{what}: the error was returned after {took:?}, expected {least:?} to {:?}", least + LATE))
        }
        Err(error) => {
            println!("  failed as expected after {took:?}: {error}");
            Ok(())
        }
    }
}

fn by_id(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let id = nccl.unique_id().map_err(text)?;
    let ranks: Vec<_> = contexts.iter().cloned().zip((0..).map(Rank::new)).collect();
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

/// Creates a communicator with one rank more than there are devices. The last rank never joins.
fn missing_rank(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let id = nccl.unique_id().map_err(text)?;
    let began = Instant::now();
    let outcome = Communicator::builder()
        .nccl(nccl)
        .config(config.clone())
        .deadline(SHORT)
        .init_rank(&contexts[0], contexts.len() + 1, &id, Rank::new(0))
        .map(drop);
    expect("init_rank", began, SHORT, outcome, |error| matches!(error, NcclError::Timeout(_)))
}

/// Calls the first collective on one rank only. This call must connect the ranks, so it cannot
/// succeed without the other ranks. The call must return an error, at the latest at the deadline of
/// the communicator.
fn unconnected(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let members = make(nccl, contexts, config)?;
    let first = &members[0];
    first.comm.set_deadline(SHORT);
    let mut buffer = DeviceMemory::from_slice(&first.stream, &vec![1.0f32; LENGTH]).map_err(text)?;
    let began = Instant::now();
    let call = first.comm.all_reduce_in_place(&first.stream, &mut buffer, ReduceOp::Sum);
    let outcome = call.and_then(|()| first.comm.wait(&first.stream, SHORT));
    // One thread has all ranks, so the communicator detects that the thread has omitted the other
    // ranks. The error is returned before the deadline.
    expect("all_reduce on only one of the unconnected ranks", began, Duration::ZERO, outcome, |error| {
        matches!(error, NcclError::Timeout(_)) || matches!(error.misuse_kind(), Some(MisuseKind::NotInGroup { .. }))
    })?;
    Communicator::wait_for_dropped(DEADLINE).then_some(()).ok_or("an abort did not complete before the deadline")?;
    idle(first)?;
    drop((buffer, members));
    works(nccl, contexts, config)
}

/// Connects the ranks by one all-reduce on all ranks. A later collective that only one rank calls
/// then blocks on the device, not on the host.
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

/// Enqueues an all-reduce on one rank only, so that the all-reduce cannot complete. Returns the
/// buffer that the all-reduce uses.
fn stuck(member: &Member) -> Result<DeviceMemory<f32>, String> {
    let mut buffer = DeviceMemory::from_slice(&member.stream, &vec![1.0; LENGTH]).map_err(text)?;
    member.comm.all_reduce_in_place(&member.stream, &mut buffer, ReduceOp::Sum).map_err(text)?;
    Ok(buffer)
}

/// Returns whether the error says that an all-reduce did not complete because of other ranks. The
/// error is a timeout that names the missing ranks, or misuse because a rank made no call.
fn is_late(error: &NcclError) -> bool {
    let names = match error {
        NcclError::Timeout(timeout) => !timeout.missing.is_empty(),
        error => matches!(error.misuse_kind(), Some(MisuseKind::NotInGroup { .. })),
    };
    names && error.to_string().contains("all_reduce")
}

/// Checks a wait that reaches its deadline. The wait must abort its communicator on all ranks of
/// this process. Other communicators must stay usable.
fn expires(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let (members, others) = (make(nccl, contexts, config)?, make(nccl, contexts, config)?);
    together(&members)?;
    together(&others)?;
    let first = &members[0];
    let buffer = stuck(first)?;
    let began = Instant::now();
    let outcome = first.comm.wait(&first.stream, SHORT);
    expect("wait", began, Duration::ZERO, outcome, is_late)?;
    Communicator::wait_for_dropped(DEADLINE).then_some(()).ok_or("an abort did not complete before the deadline")?;
    idle(first)?;
    drop(buffer);
    for member in &members {
        is_dead(member)?;
    }
    sum_of_ranks(&others).map_err(text)?;
    Communicator::finalize_all(others.into_iter().map(|member| member.comm).collect(), DEADLINE).map_err(text)?;
    drop(members);
    works(nccl, contexts, config)
}

/// Like [`expires`], but the wait uses [`OnExpiry::AbortAll`], so all communicators of the process
/// are aborted.
fn expires_for_all(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let (members, others) = (make(nccl, contexts, config)?, make(nccl, contexts, config)?);
    together(&members)?;
    together(&others)?;
    let first = &members[0];
    let buffer = stuck(first)?;
    let began = Instant::now();
    let outcome = first.comm.wait_with(&first.stream, SHORT, OnExpiry::AbortAll);
    expect("wait_with", began, Duration::ZERO, outcome, is_late)?;
    Communicator::wait_for_dropped(DEADLINE).then_some(()).ok_or("an abort did not complete before the deadline")?;
    idle(first)?;
    drop(buffer);
    for member in members.iter().chain(&others) {
        is_dead(member)?;
    }
    drop((members, others));
    works(nccl, contexts, config)
}

/// Checks that the watchdog aborts stuck work when the deadline of the work has passed, even if no
/// thread waits. The stream must then become idle.
fn late_work(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let members = make(nccl, contexts, config)?;
    together(&members)?;
    let first = &members[0];
    first.comm.set_work_deadline(SHORT);
    let began = Instant::now();
    let buffer = stuck(first)?;
    if !peerweave_driver::wait(&first.stream, began + SHORT + LATE).map_err(text)? {
        return Err(format!("the stream is still busy after {:?}, expected an abort by the watchdog", began.elapsed()));
    }
    let outcome = first.comm.wait(&first.stream, DEADLINE);
    expect("wait", began, SHORT / 2, outcome, is_late)?;
    Communicator::wait_for_dropped(DEADLINE).then_some(()).ok_or("an abort did not complete before the deadline")?;
    drop((buffer, members));
    works(nccl, contexts, config)
}

fn is_dead(member: &Member) -> Result<(), String> {
    let dead = member.comm.all_reduce_in_place(&member.stream, &mut zeros(member)?, ReduceOp::Sum);
    expect("a call after the abort", Instant::now(), Duration::ZERO, dead, |error| matches!(error, NcclError::Dead { .. }))
}

fn left_alone(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let members = make(nccl, contexts, config)?;
    together(&members)?;
    let first = &members[0];
    let buffer = stuck(first)?;
    let began = Instant::now();
    let outcome = first.comm.wait_with(&first.stream, SHORT, OnExpiry::LeaveAlone);
    expect("wait_with", began, Duration::ZERO, outcome, is_late)?;
    for member in &members {
        member.comm.abort(DEADLINE).map_err(|error| format!("the abort failed: {error}"))?;
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
    aborted.load(Ordering::Acquire).then_some(()).ok_or("the abort by another thread failed")?;
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

/// Checks that no work is pending on the stream after an abort.
fn idle(member: &Member) -> Result<(), String> {
    match peerweave_driver::wait(&member.stream, Instant::now() + DEADLINE).map_err(text)? {
        true => Ok(()),
        false => Err(format!("the stream is still busy {DEADLINE:?} after the abort")),
    }
}

fn zeros(member: &Member) -> Result<DeviceMemory<f32>, String> {
    DeviceMemory::from_slice(&member.stream, &[0.0; 4]).map_err(text)
}

/// Checks that a new communicator of all devices works.
fn works(nccl: Nccl, contexts: &[Arc<CudaContext>], config: &Config) -> Result<(), String> {
    let members = make(nccl, contexts, config)?;
    sum_of_ranks(&members).map_err(text)?;
    Communicator::finalize_all(members.into_iter().map(|member| member.comm).collect(), DEADLINE).map_err(text)
}
