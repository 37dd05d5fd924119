//! Groups: calls between `ncclGroupStart` and the outermost `ncclGroupEnd` run together; a call
//! outside of them is a group of one.
//!
//! Jobs and operations are defined elsewhere. Invariant: after a call has failed inside a group,
//! nothing of the group is launched.

use core::ffi::c_int;
use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::abi::{Code, Fail, Header, Result, SIM_MAGIC, SimInfo, fail, invalid, misuse};
use crate::comm::{Comm, CommPtr, Out, not_null, undefined};
use crate::derive::everybody;
use crate::execute::{Item, Kind, Launch, Work, forget, run_again, run_once};
use crate::mailbox::Channel;
use crate::settings::{self, Noop};
use crate::{config, driver, errors, mailbox};

/// The creation of a communicator.
pub(crate) struct Job {
    /// The new communicator; `None` for a rank that takes part without getting one.
    pub(crate) comm: Option<&'static Comm>,
    /// The communicator from which it is derived.
    pub(crate) parent: Option<&'static Comm>,
    /// Output for the handle.
    pub(crate) handle: Out<CommPtr>,
    /// Connects to the other ranks.
    pub(crate) run: Box<dyn FnOnce() -> Result + Send>,
}

/// An operation that is launched at the end of the group.
pub(crate) struct Operation {
    pub(crate) comm: &'static Comm,
    pub(crate) stream: usize,
    pub(crate) item: Item,
    /// Event to record at the launch.
    pub(crate) event: Option<usize>,
}

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

/// Adds a job; outside of a group it runs immediately.
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

/// Delay of a job of [`submit_job_silently`], so that a caller that does not wait for its end uses
/// the result too early.
const LATE: Duration = Duration::from_millis(5);

/// Adds an operation; outside of a group it is launched immediately.
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

/// Cancels a job: its communicator is never created.
fn give_up(job: Job) {
    if let Some(comm) = job.comm {
        job.handle.set(CommPtr::NULL);
        comm.abort();
        comm.release();
    }
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

/// Runs every job in its own thread, because one thread may create several ranks of a communicator.
fn run_jobs(jobs: Vec<Job>, blocking: bool) -> Result {
    let mut running = Vec::new();
    for job in jobs {
        let (comm, handle) = (job.comm, job.handle);
        running.push((comm, handle, std::thread::spawn(job.run)));
    }
    let mut result = Ok(());
    for (comm, handle, thread) in running {
        let done = thread.join().unwrap_or_else(|_| {
            eprintln!("fake nccl: a job panicked");
            std::process::abort()
        });
        if done.is_err()
            && blocking
            && let Some(comm) = comm
        {
            handle.set(CommPtr::NULL);
            comm.abort();
            comm.release();
        }
        result = result.and(done);
    }
    result
}

/// Returns an error for a send to the calling rank without a receive in the same group, which would
/// wait for itself.
fn check_sends_to_self(operations: &[Operation]) -> Result {
    for operation in operations {
        let me = operation.comm.who().rank;
        let count = |wanted: fn(&Work) -> Option<i32>| {
            let same = operations.iter().filter(|other| std::ptr::eq(other.comm, operation.comm));
            same.filter(|other| wanted(&other.item.work) == Some(me)).count()
        };
        let sends = count(|work| if let Work::Send { peer, .. } = work { Some(*peer) } else { None });
        let receives = count(|work| if let Work::Receive { peer, .. } = work { Some(*peer) } else { None });
        if sends > receives {
            return misuse("Trying to send to self without a matching recv");
        }
        if receives > sends {
            return misuse("Trying to recv to self without a matching send");
        }
    }
    Ok(())
}

/// Waits for the other ranks of communicators whose first collective this is, if the setting
/// requires that.
fn connect(operations: &[Operation]) -> Result {
    if !settings::get().connect {
        return Ok(());
    }
    let collectives = operations.iter().filter(|operation| matches!(operation.item.work, Work::Collective(_)));
    let first = |comm: &&'static Comm| !std::mem::replace(&mut comm.state().connected, true);
    let comms: Vec<&'static Comm> = collectives.map(|operation| operation.comm).filter(first).collect();
    // All communicators of this thread send before any of them waits.
    for comm in &comms {
        everybody(comm).into_iter().for_each(|rank| comm.send(rank, Channel::Connect, 0, [].into()));
    }
    for comm in &comms {
        for rank in everybody(comm) {
            if comm.receive_until(rank, Channel::Connect, 0, &|| comm.stopped()).is_none() {
                return fail(Code::InternalError, "connecting the ranks was aborted");
            }
        }
    }
    Ok(())
}

/// Enqueues each communicator's operations on its stream; several streams are ordered as in NCCL.
fn launch(operations: Vec<Operation>) -> Result {
    let mut parts: Vec<(&'static Comm, Vec<Operation>)> = Vec::new();
    for operation in operations.into_iter().filter(|operation| !matches!(operation.item.work, Work::Nothing)) {
        match parts.iter_mut().find(|(comm, _)| std::ptr::eq(*comm, operation.comm)) {
            Some((_, part)) => part.push(operation),
            None => parts.push((operation.comm, vec![operation])),
        }
    }
    for (comm, part) in parts {
        driver::with_context(comm.context, || launch_part(comm, part))?;
    }
    Ok(())
}

fn launch_part(comm: &'static Comm, part: Vec<Operation>) -> Result {
    let stream = part[0].stream;
    let mut others: Vec<usize> = part.iter().map(|operation| operation.stream).filter(|other| *other != stream).collect();
    others.sort_unstable();
    others.dedup();
    for other in &others {
        driver::join(*other, stream)?;
    }
    let events: Vec<usize> = part.iter().filter_map(|operation| operation.event).collect();
    let items = part.into_iter().map(|operation| operation.item).collect();
    if driver::is_capturing(stream)? {
        let launch = Box::into_raw(Box::new(Launch { comm, items, turn: None })).cast();
        comm.persistent.fetch_add(1, Ordering::AcqRel);
        if let Err(failure) = driver::keep_in_graph(stream, launch, forget) {
            forget(launch);
            return Err(failure.into());
        }
        driver::launch(stream, run_again, launch)?;
    } else {
        // The lock is held over the launch, so that turns are given in the order of the streams.
        let mut state = comm.state();
        let turn = state.launched;
        let launch = Box::into_raw(Box::new(Launch { comm, items, turn: Some(turn) })).cast();
        if let Err(failure) = driver::launch(stream, run_once, launch) {
            // SAFETY: the driver refused it, so that nobody else has it.
            drop(unsafe { Box::from_raw(launch.cast::<Launch>()) });
            return Err(failure.into());
        }
        state.launched = turn + 1;
    }
    for event in events {
        driver::record(event, stream)?;
    }
    for other in others {
        driver::join(stream, other)?;
    }
    Ok(())
}

fn end(simulate: Option<*mut SimInfo>) -> Result {
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
        undefined("simulation of a send, or of a call composed of sends: NCCL keeps it and launches it with the next group");
    }
    if !info.is_null() {
        let bytes: usize = group.operations.iter().map(|operation| operation.item.work.bytes()).sum();
        // SAFETY: the caller checked its header, and NCCL's caller promises the struct.
        unsafe { (*info).estimated_time = 1.0 + bytes as f32 / 1e4 };
    }
    Ok(())
}

impl Work {
    /// Returns whether NCCL discards the operation if it is recorded and never launched.
    fn is_forgotten(&self) -> bool {
        let Self::Collective(collective) = self else { return matches!(self, Self::Nothing) };
        match collective.kind {
            Kind::AllReduce | Kind::Reduce | Kind::AllGather | Kind::ReduceScatter => true,
            Kind::Broadcast => settings::get().version < 22902,
            Kind::AllToAll | Kind::Gather | Kind::Scatter => false,
        }
    }

    /// Returns the number of bytes that this rank sends or receives.
    fn bytes(&self) -> usize {
        match self {
            Self::Collective(collective) => collective.count * collective.dtype.size(),
            Self::Send { bytes, .. } | Self::Receive { bytes, .. } => *bytes,
            Self::OneSided(_) | Self::Nothing => 0,
        }
    }
}

exports! {
    /// Begins a group, or a nested one.
    fn ncclGroupStart() {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(())
    }

    /// Ends a group; the end of the outermost one launches its calls.
    fn ncclGroupEnd() {
        end(None)
    }

    /// Ends a group without launching it; the end of the outermost one returns an estimate of its
    /// time in microseconds.
    fn ncclGroupSimulateEnd(sim_info: *mut SimInfo) {
        not_null(sim_info, "simInfo").and_then(|()| {
            // SAFETY: the pointer is not null, and every version's struct begins with this header.
            let header = unsafe { sim_info.cast::<Header>().read() };
            if header.size < size_of::<SimInfo>() {
                return invalid(format!("ncclSimInfo_t has an unsupported size of {} bytes", header.size));
            }
            config::check_header(&header, SIM_MAGIC, "ncclSimInfo_t")
        })?;
        end(Some(sim_info))
    }
}

/// Returns the depth of groups of the calling thread.
#[unsafe(no_mangle)]
extern "C" fn peerweave_fake_nccl_group_depth() -> c_int {
    GROUP.with_borrow(|group| group.depth as c_int)
}
