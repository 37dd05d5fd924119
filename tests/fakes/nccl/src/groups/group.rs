//! Groups: calls between `ncclGroupStart` and the outermost `ncclGroupEnd` run together; a call
//! outside of them is a group of one.
//!
//! Module `api` exports the calls. Invariant: after a call has failed inside a group, nothing of
//! the group is launched.

use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::jobs::{Job, give_up, run_jobs};
use super::launch::{Operation, check_sends_to_self, connect, launch};
use crate::abi::{Code, Fail, Result, SimInfo, fail, misuse};
use crate::comm::Comm;
use crate::messages::mailbox;
use crate::report::{errors, undefined};
use crate::settings::{self, Noop};

#[derive(Default)]
struct Group {
    depth: u32,
    error: Option<Code>,
    jobs: Vec<Job>,
    operations: Vec<Operation>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Records that a call inside the group failed.
pub(crate) fn note(code: Code) {
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 && group.error.is_none() {
            group.error = Some(code);
        }
    });
}

/// Handles a fault that was injected before the body of a call ran: a failed end of a group still
/// ends the group.
pub(crate) fn on_injected(function: &str) {
    if matches!(function, "ncclGroupEnd" | "ncclGroupSimulateEnd") {
        let group = GROUP.take();
        group.jobs.into_iter().for_each(give_up);
    }
}

/// Adds a job to the open group. Without an open group, the job runs immediately.
pub(crate) fn submit_job(job: Job) -> Result {
    let alone = GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            group.jobs.push(job);
            None
        } else {
            Some(job)
        }
    });
    alone.map_or(Ok(()), |job| finish(vec![job], Vec::new()))
}

/// Like [`submit_job`], for functions that ignore the result of the end of their own group, as
/// NCCL's do (2.28 to 2.32): on a non-blocking communicator they return success, and a thread runs
/// the job later.
pub(crate) fn submit_job_silently(job: Job) -> Result {
    let run = job.run;
    let is_late = job.parent.is_some_and(|parent| !parent.config.blocking);
    let run = Box::new(move || {
        if is_late {
            std::thread::sleep(LATE);
        }
        run()
    });
    match submit_job(Job { run, ..job }) {
        Err(failure) if failure.code == Code::InProgress => Ok(()),
        result => result,
    }
}

/// Delay before a job of [`submit_job_silently`]. A caller that uses the result without waiting for
/// the end of the job therefore uses it too early.
const LATE: Duration = Duration::from_millis(5);

/// Adds an operation to the open group. Without an open group, the operation is launched
/// immediately.
pub(crate) fn submit(operation: Operation) -> Result {
    let alone = GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            group.operations.push(operation);
            None
        } else {
            Some(operation)
        }
    });
    alone.map_or(Ok(()), |operation| finish(Vec::new(), vec![operation]))
}

fn finish(jobs: Vec<Job>, operations: Vec<Operation>) -> Result {
    let parents = jobs.iter().filter_map(|job| job.parent);
    if operations.iter().map(|operation| operation.comm).chain(parents).any(Comm::is_released) {
        undefined("the end of a group uses a destroyed communicator");
    }
    let mut all: Vec<&'static Comm> = operations.iter().map(|operation| operation.comm).collect();
    for job in &jobs {
        all.extend(job.parent);
        all.extend(job.comm);
    }
    // As in NCCL, the parent decides whether a job blocks; without a parent, the new communicator
    // does.
    let deciding = jobs.iter().filter_map(|job| job.parent.or(job.comm)).chain(operations.iter().map(|operation| operation.comm));
    let blocking: Vec<bool> = deciding.map(|comm| comm.config.blocking).collect();
    if blocking.windows(2).any(|pair| pair[0] != pair[1]) {
        jobs.into_iter().for_each(give_up);
        return misuse("Blocking and nonblocking communicators are not allowed in the same group");
    }
    if let Err(failure) = check_sends_to_self(&operations) {
        jobs.into_iter().for_each(give_up);
        return Err(failure);
    }
    let Some(first) = blocking.first() else { return Ok(()) };
    if *first {
        run_jobs(jobs, true)?;
        connect(&operations)?;
        return launch(operations);
    }
    if settings::get().noop == Noop::Questions && jobs.is_empty() {
        all.iter().for_each(|comm| comm.questions.store(1, Ordering::Release));
        return fail(Code::InProgress, "");
    }
    for comm in &all {
        comm.pending.fetch_add(1, Ordering::AcqRel);
    }
    let work = move || {
        let result = run_jobs(jobs, false).and_then(|()| connect(&operations)).and_then(|()| launch(operations));
        for comm in all {
            if let Err(failure) = &result {
                errors::set(&failure.text);
                comm.set_async_error(failure.code);
            }
            comm.pending.fetch_sub(1, Ordering::AcqRel);
        }
        mailbox::interrupt();
    };
    match std::thread::Builder::new().name("fake-nccl-group".into()).spawn(work) {
        Ok(_) => fail(Code::InProgress, ""),
        Err(error) => fail(Code::SystemError, format!("starting a thread: {error}")),
    }
}

/// Begins a group, which may be nested in an open group.
pub(crate) fn begin() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Returns the depth of groups of the calling thread.
pub(crate) fn depth() -> u32 {
    GROUP.with_borrow(|group| group.depth)
}

/// Ends a group. The end of the outermost group launches the calls, or simulates them.
pub(crate) fn end(simulate: Option<*mut SimInfo>) -> Result {
    let group = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return misuse("ncclGroupEnd: not in a group call.");
        }
        group.depth -= 1;
        Ok(if group.depth == 0 { Some(std::mem::take(group)) } else { None })
    })?;
    let Some(group) = group else { return Ok(()) };
    if let Some(code) = group.error {
        group.jobs.into_iter().for_each(give_up);
        return Err(Fail { code, text: "a call inside the group failed".into() });
    }
    let Some(info) = simulate else { return finish(group.jobs, group.operations) };
    // NCCL ignores that a simulation was requested, and launches the operations. Operations of a
    // single rank were already executed by their calls.
    if group.operations.iter().any(|operation| !operation.comm.config.blocking || operation.comm.who().ranks() == 1) {
        return finish(group.jobs, group.operations);
    }
    if group.operations.iter().any(|operation| !operation.item.work.is_forgotten()) {
        undefined(
            "a group with a send, or with a call composed of sends, was simulated: NCCL launches this call with the next group",
        );
    }
    if !info.is_null() {
        let bytes: usize = group.operations.iter().map(|operation| operation.item.work.bytes()).sum();
        // SAFETY: the caller checked its header, and NCCL's caller promises the struct.
        unsafe { (*info).estimated_time = 1.0 + bytes as f32 / 1e4 };
    }
    Ok(())
}
