//! The loop that watches the PEs: their output, their exit, signals and deadlines.
//!
//! Invariant: after the first failure every wait here is bounded, so that the launcher exits within
//! [`LAST_MOMENT`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::time::{Duration, Instant};

use peerweave_bootstrap::process::is_stopped;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, set_child_subreaper, wait, waitpgid};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM, SIGTSTP};

use super::ending::{Ending, Failure, Status};
use super::guard::Guard;
use super::last_line::LastLine;
use super::lines::Lines;
use super::output::{Output, Target, fd_of};
use super::signals::Signals;
use super::spawn::{Streams, spawn};
use super::{Launch, LaunchError, Observer, OnFailure, Source, Stdin};

/// Time from the failure of a PE until the other PEs get SIGTERM. Within 2 s of the failure, the
/// calls of the other PEs return an error that names the failed PE.
const GRACE: Duration = Duration::from_millis(2500);
/// Time between SIGTERM and SIGKILL.
const TERM_TO_KILL: Duration = Duration::from_millis(1500);
/// Maximum time that the launcher waits for the exit of the PE that was lost first. If this PE is
/// still running afterwards, the error message names the PE whose exit the launcher saw first.
const FIRST_TO_END: Duration = Duration::from_secs(1);
/// If the same signal arrives twice within this time, it counts as one signal. For example, the
/// command `timeout` sends a signal both to its child and to the process group of its child.
const SAME_WISH: Duration = Duration::from_millis(100);
/// After all PEs have ended, the launcher reads the output of their descendant processes for this
/// time.
const DRAIN: Duration = Duration::from_millis(250);
/// If the job failed or was stopped by a signal, the launcher waits at most this time for a slow
/// reader of its output.
const FLUSH: Duration = Duration::from_millis(400);
/// Time from the end of a PE until the launcher checks whether another PE is stopped, and time
/// between such checks.
const WAITING: Duration = Duration::from_secs(5);
/// Maximum time between the first failure of a PE and the exit of the launcher.
const LAST_MOMENT: Duration = Duration::from_secs(5);
const _: () = assert!(GRACE.as_millis() + TERM_TO_KILL.as_millis() + 2 * DRAIN.as_millis() <= LAST_MOMENT.as_millis());

/// Starts the PEs and watches them until they end.
///
/// # Errors
/// [`LaunchError`] if a PE cannot be started, or if a system call of the launcher fails. All PEs
/// that were started are then killed. A PE that fails is reported in [`Ending`] instead.
pub fn supervise(launch: &Launch, observer: &mut dyn Observer) -> Result<Ending, LaunchError> {
    let signals = Signals::take_over().map_err(LaunchError::system("cannot install signal handlers"))?;
    // Orphans of a PE become children of the launcher, so that the launcher can kill the orphans.
    set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|errno| LaunchError::system("cannot become the subreaper of the PEs")(errno.into()))?;
    let mut job = Job::new(launch, signals);
    let ending = job.start(launch).and_then(|()| job.watch(launch, observer));
    if ending.is_err() {
        job.signal_all(Signal::KILL);
        job.reap_until_gone(Instant::now() + DRAIN);
    }
    job.sweep();
    job.guard.stop();
    ending
}

struct Pe {
    index: usize,
    pid: Pid,
    running: bool,
    status: Option<Status>,
    pipes: [Option<OwnedFd>; 2],
    lines: [Lines; 2],
    last_stderr: LastLine,
}

/// State of a failed job before the launcher reports which PE failed first. The launcher has two
/// candidates. `failed` is the PE whose failed exit the launcher saw first. `first` is the PE that
/// the rendezvous server saw as lost first. If `first` exits with a failure before `until`, the
/// launcher reports `first`. Otherwise it reports `failed`.
#[derive(Clone, Copy)]
struct Suspicion {
    failed: usize,
    first: usize,
    until: Instant,
}

struct Job {
    pes: Vec<Pe>,
    signals: Signals,
    guard: Guard,
    output: Output,
    own_group: bool,
    relay: Option<Relay>,
    ending: Ending,
    suspicion: Option<Suspicion>,
    on_failure: OnFailure,
    /// The PE that aborted the job, and the exit code that it requested; `None` while no abort is
    /// known.
    aborted: Option<(usize, u8)>,
    /// Whether the message that a PE aborted the job has been printed.
    abort_reported: bool,
    stopped_by: Option<(i32, Instant)>,
    /// Time of the next check by [`Self::name_waiting`]; `None` if no check is planned.
    waiting_at: Option<Instant>,
    /// Whether [`Self::name_waiting`] has printed its message, which is printed only once.
    waiting_reported: bool,
    term_at: Option<Instant>,
    kill_at: Option<Instant>,
}

impl Job {
    fn new(launch: &Launch, signals: Signals) -> Self {
        // A single PE that reads the terminal must stay in the process group that owns the
        // terminal.
        let terminal = launch.stdin == Stdin::Pass && rustix::termios::isatty(rustix::stdio::stdin());
        Self {
            pes: Vec::with_capacity(launch.n_local),
            signals,
            guard: Guard::start(),
            output: Output::new(),
            own_group: !(terminal && launch.direct_output),
            relay: (terminal && !launch.direct_output).then(Relay::default),
            ending: Ending::default(),
            suspicion: None,
            on_failure: launch.on_failure,
            aborted: None,
            abort_reported: false,
            stopped_by: None,
            waiting_at: None,
            waiting_reported: false,
            term_at: None,
            kill_at: None,
        }
    }

    fn start(&mut self, launch: &Launch) -> Result<(), LaunchError> {
        for local in 0..launch.n_local {
            let stdin = match launch.stdin {
                Stdin::Pass if local == 0 && self.relay.is_some() => Stdio::piped(),
                Stdin::Pass if local == 0 => Stdio::inherit(),
                _ => Stdio::null(),
            };
            let out = || if launch.direct_output { Stdio::inherit() } else { Stdio::piped() };
            let guard = self.own_group.then_some(&self.guard);
            let mut child = spawn(launch, local, guard, Streams { stdin, stdout: out(), stderr: out() })?;
            let Some(pid) = Pid::from_raw(child.id() as i32) else { continue };
            if let (Some(relay), Some(pipe)) = (&mut self.relay, child.stdin.take()) {
                relay.to = Some(nonblocking(pipe.into())?);
            }
            let stdout = child.stdout.take().map(|pipe| nonblocking(pipe.into())).transpose()?;
            let stderr = child.stderr.take().map(|pipe| nonblocking(pipe.into())).transpose()?;
            let index = launch.first_pe + local;
            let lines = Default::default();
            // `child` is dropped without a wait: `reap` waits for all children.
            self.pes.push(Pe {
                index,
                pid,
                running: true,
                status: None,
                pipes: [stdout, stderr],
                lines,
                last_stderr: LastLine::default(),
            });
        }
        Ok(())
    }

    fn watch(&mut self, launch: &Launch, observer: &mut dyn Observer) -> Result<Ending, LaunchError> {
        let timeout_at = launch.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut drain_until = None;
        let mut swept = false;
        loop {
            let now = Instant::now();
            let running = self.pes.iter().any(|pe| pe.running);
            self.name_failure(now, observer);
            if running && timeout_at.is_some_and(|at| now >= at) && !self.ending.timed_out {
                self.time_is_up(launch, observer, now);
            }
            if running {
                self.name_waiting(now, observer);
                self.escalate(now);
            } else {
                let pipes_open = self.pes.iter().any(|pe| pe.pipes.iter().any(Option::is_some));
                let until = *drain_until.get_or_insert(now + DRAIN);
                if pipes_open && now >= until {
                    if swept {
                        self.close_pipes(observer);
                    } else {
                        // A descendant of a PE still holds a pipe open after `DRAIN`. Kills the
                        // descendant.
                        self.sweep();
                        swept = true;
                        drain_until = Some(now + DRAIN);
                    }
                    continue;
                }
                let patience = self.ending != Ending::default() || self.stopped_by.is_some();
                if !pipes_open && (self.output.is_empty() || (patience && now >= until + FLUSH)) {
                    return Ok(Ending { output_lost: self.output.is_lost(), ..self.ending.clone() });
                }
            }
            let wake_at =
                [running.then_some(timeout_at).flatten().filter(|_| !self.ending.timed_out), self.term_at, self.kill_at]
                    .into_iter()
                    .chain([self.suspicion.map(|suspicion| suspicion.until)])
                    .chain([self.waiting_at.filter(|_| running)])
                    .flatten()
                    .chain((!running).then(|| drain_until.map(|at| if now < at { at } else { at + FLUSH })).flatten())
                    .filter(|at| *at > now)
                    .min();
            self.poll_once(wake_at.map(|at| at - now), observer)?;
        }
    }

    /// Waits until a PE writes, a stream of the launcher becomes writable, a signal arrives, or
    /// `within` has passed.
    fn poll_once(&mut self, within: Option<Duration>, observer: &mut dyn Observer) -> Result<(), LaunchError> {
        #[derive(Clone, Copy)]
        enum What {
            Signals,
            Ours(Target),
            Pipe(usize, usize),
            RelayFrom,
            RelayTo,
        }
        let mut watched = vec![(self.signals.fd(), PollFlags::IN, What::Signals)];
        watched.extend(self.output.waits_for().map(|target| (fd_of(target), PollFlags::OUT, What::Ours(target))));
        if !self.output.is_full() {
            for (at, pe) in self.pes.iter().enumerate() {
                for (stream, pipe) in pe.pipes.iter().enumerate() {
                    if let Some(pipe) = pipe {
                        watched.push((pipe.as_fd(), PollFlags::IN, What::Pipe(at, stream)));
                    }
                }
            }
        }
        if let Some(Relay { to: Some(to), waiting, .. }) = &self.relay {
            if waiting.is_empty() {
                watched.push((rustix::stdio::stdin(), PollFlags::IN, What::RelayFrom));
            } else {
                watched.push((to.as_fd(), PollFlags::OUT, What::RelayTo));
            }
        }
        let timespec = within
            .map(|within| Timespec { tv_sec: within.as_secs().min(1 << 30) as i64, tv_nsec: i64::from(within.subsec_nanos()) });
        let mut fds: Vec<_> = watched.iter().map(|(fd, flags, _)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        match poll(&mut fds, timespec.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(LaunchError::system("cannot poll the pipes of the PEs")(errno.into())),
        }
        let ready: Vec<What> =
            fds.iter().zip(&watched).filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, (_, _, what))| *what).collect();
        for what in ready {
            match what {
                What::Signals => self.answer_signals(observer),
                What::Ours(target) => self.output.write_some(target),
                What::Pipe(at, stream) => self.read_pipe(at, stream, observer),
                What::RelayFrom | What::RelayTo => self.relay.iter_mut().for_each(Relay::step),
            }
        }
        for (stream, target) in [Target::Stdout, Target::Stderr].into_iter().enumerate() {
            if self.output.is_closed(target) {
                // The reader of the launcher's stream has closed it. Closes the PEs' pipes, so that
                // the PEs get SIGPIPE as without a launcher.
                self.pes.iter_mut().for_each(|pe| pe.pipes[stream] = None);
            }
        }
        Ok(())
    }

    /// Reads a pipe. The number of bytes is limited, so that other pipes are read too.
    fn read_pipe(&mut self, at: usize, stream: usize, observer: &mut dyn Observer) {
        let pe = &mut self.pes[at];
        let Some(pipe) = &pe.pipes[stream] else { return };
        let source = [Source::Stdout, Source::Stderr][stream];
        let mut buffer = [0; 16384];
        for _ in 0..16 {
            let (index, output, last_stderr) = (pe.index, &mut self.output, &mut pe.last_stderr);
            let mut line = |line: &[u8]| {
                if source == Source::Stderr {
                    last_stderr.push(line);
                }
                observer.line(index, source, line, output);
            };
            match rustix::io::read(pipe, &mut buffer) {
                Ok(0) => {
                    pe.lines[stream].finish(line);
                    pe.pipes[stream] = None;
                    return;
                }
                Ok(count) => pe.lines[stream].push(&buffer[..count], &mut line),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    pe.pipes[stream] = None;
                    return;
                }
            }
        }
    }

    fn close_pipes(&mut self, observer: &mut dyn Observer) {
        for pe in &mut self.pes {
            for (stream, source) in [Source::Stdout, Source::Stderr].into_iter().enumerate() {
                pe.pipes[stream] = None;
                pe.lines[stream].finish(|line| observer.line(pe.index, source, line, &mut self.output));
            }
        }
    }

    fn answer_signals(&mut self, observer: &mut dyn Observer) {
        for signal in self.signals.drain() {
            match signal {
                SIGCHLD => self.reap(observer),
                SIGTSTP => {
                    self.pass_on(SIGTSTP);
                    self.waiting_at = None;
                    // Stops this process; returns after SIGCONT, which is then forwarded like other
                    // signals.
                    let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
                }
                SIGINT | SIGTERM if self.stopped_by.is_some_and(|(_, at)| at.elapsed() < SAME_WISH) => {}
                SIGINT | SIGTERM if self.stopped_by.is_some() => self.signal_all(Signal::KILL),
                // The terminal has already sent SIGINT to the program.
                SIGINT if !self.own_group => self.stopped_by = Some((signal, Instant::now())),
                signal => {
                    if !matches!(
                        signal,
                        signal_hook::consts::SIGUSR1 | signal_hook::consts::SIGUSR2 | signal_hook::consts::SIGCONT
                    ) {
                        self.stopped_by = Some((signal, Instant::now()));
                    }
                    self.pass_on(signal);
                }
            }
        }
    }

    /// Records the status of every child process that has ended.
    fn reap(&mut self, observer: &mut dyn Observer) {
        let mut ended = Vec::new();
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            // A child that is not a PE is an orphan of a PE, or the guard.
            let Some(at) = self.pes.iter().position(|pe| pe.running && pe.pid == pid) else { continue };
            self.pes[at].running = false;
            let status = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Status::Code(code),
                (None, Some(signal)) => Status::Signal(signal),
                (None, None) => continue,
            };
            self.pes[at].status = Some(status);
            self.waiting_at = (!self.waiting_reported).then(|| Instant::now() + WAITING);
            ended.push((at, status));
        }
        // If several PEs have ended since the last call, a PE that was killed is assumed to have
        // failed first: the other PEs exited as a result.
        ended.sort_by_key(|(_, status)| !matches!(status, Status::Signal(_)));
        for (at, status) in ended {
            if !status.is_success() {
                self.failed(at, status, observer);
            } else if self.on_failure == OnFailure::Continue {
                self.ending.failure = None;
            }
        }
    }

    fn failed(&mut self, at: usize, status: Status, observer: &mut dyn Observer) {
        for stream in 0..2 {
            self.read_pipe(at, stream, observer);
        }
        let pe = &self.pes[at];
        tracing::info!(pe = pe.index, %status, "a PE failed");
        let first = observer.failed(pe.index, &status.to_string());
        if self.on_failure == OnFailure::Continue {
            self.report(at, status, observer);
            // A PE that succeeds, earlier or later, takes precedence over this failure.
            let succeeds = |pe: &Pe| pe.status.is_some_and(Status::is_success);
            if !self.pes.iter().any(succeeds) {
                self.ending.failure = Some(Failure { pe: self.pes[at].index, status });
            }
            return;
        }
        if self.ending.failure.is_some() || self.suspicion.is_some() {
            return;
        }
        let now = Instant::now();
        if !self.ending.timed_out {
            self.term_at.get_or_insert(now + GRACE);
            self.kill_at.get_or_insert(now + GRACE + TERM_TO_KILL);
        }
        // A PE that panics drops its world before it exits. Other PEs may detect the drop and exit
        // before the PE that panics.
        let first = first.and_then(|first| self.pes.iter().position(|pe| pe.index == first)).unwrap_or(at);
        self.suspicion = Some(Suspicion { failed: at, first, until: now + FIRST_TO_END });
    }

    /// Prints which PE failed first, as soon as that PE is known.
    fn name_failure(&mut self, now: Instant, observer: &mut dyn Observer) {
        let Some(Suspicion { failed, first, until }) = self.suspicion else { return };
        let at = match self.pes[first].status {
            Some(status) if !status.is_success() => first,
            None if now < until => return,
            // The PE `first` succeeded or is still running, so it did not fail.
            _ => failed,
        };
        self.suspicion = None;
        let Some(status) = self.pes[at].status else { return };
        self.ending.failure = Some(Failure { pe: self.pes[at].index, status });
        self.report(at, status, observer);
    }

    /// Prints that a PE has failed, or that a PE has aborted the job. Prints nothing after
    /// `--timeout` has expired. An abort ends every PE, so an abort is reported only once.
    fn report(&mut self, at: usize, status: Status, observer: &dyn Observer) {
        if self.ending.timed_out {
            return;
        }
        // The observer may have to wait for the answer, so this code does not ask again after an
        // abort.
        self.aborted = self.aborted.or_else(|| observer.aborted());
        if let Some((by, code)) = self.aborted.filter(|&(_, code)| status == Status::Code(code.into())) {
            if !std::mem::replace(&mut self.abort_reported, true) {
                self.say(observer, &format!("PE {by} aborted the job with status {code}"));
            }
            return;
        }
        let pe = &self.pes[at];
        let mut message = format!("PE {} (process {}) {status}", pe.index, pe.pid.as_raw_nonzero());
        let last = pe.last_stderr.text();
        if !last.is_empty() {
            message += &format!("; its last line on stderr: {last}");
        }
        self.say(observer, &message);
    }

    /// Prints which PEs still run, if one of them is stopped, for example by SIGSTOP. The first
    /// check is [`WAITING`] after the last end of a PE, and the checks repeat at this interval.
    /// Prints at most one message.
    ///
    /// While no PE is stopped, prints nothing, because running PEs detect each other's failures.
    /// Exception: with `--on-failure continue`, names the last running PE even if it is not
    /// stopped.
    fn name_waiting(&mut self, now: Instant, observer: &dyn Observer) {
        if self.waiting_at.is_none_or(|at| now < at) || self.kill_at.is_some() || self.ending.timed_out {
            return;
        }
        let running: Vec<_> = self.pes.iter().filter(|pe| pe.running).map(|pe| (pe.index, pe.pid, is_stopped(pe.pid))).collect();
        let is_last = running.len() == 1 && self.on_failure == OnFailure::Continue;
        if !is_last && running.iter().all(|(_, _, stopped)| !stopped) {
            self.waiting_at = Some(now + WAITING);
            return;
        }
        self.waiting_at = None;
        self.waiting_reported = true;
        let named: Vec<_> = running
            .iter()
            .map(|(pe, pid, stopped)| {
                let state = if *stopped { ", stopped" } else { "" };
                format!("PE {pe} (process {}{state})", pid.as_raw_nonzero())
            })
            .collect();
        let message = format!("the other PEs have ended; still running: {}; use --timeout to limit the wait", named.join(", "));
        self.say(observer, &message);
    }

    fn time_is_up(&mut self, launch: &Launch, observer: &mut dyn Observer, now: Instant) {
        self.ending.timed_out = true;
        let limit = launch.timeout.unwrap_or_default();
        let message = format!("--timeout of {limit:?} expired; still running: {}", self.still_running());
        self.say(observer, &message);
        self.term_at = Some(now);
        self.kill_at = Some(now + TERM_TO_KILL);
    }

    /// Sends SIGTERM to running PEs at `term_at` and SIGKILL at `kill_at`.
    fn escalate(&mut self, now: Instant) {
        if self.term_at.is_some_and(|at| now >= at) {
            self.term_at = None;
            tracing::info!(pes = self.still_running(), "sending SIGTERM to running PEs");
            self.signal_all(Signal::TERM);
        }
        if self.kill_at.is_some_and(|at| now >= at) {
            self.kill_at = None;
            tracing::info!(pes = self.still_running(), "sending SIGKILL to running PEs");
            self.signal_all(Signal::KILL);
        }
    }

    fn still_running(&self) -> String {
        let running: Vec<_> = self.pes.iter().filter(|pe| pe.running).map(|pe| format!("PE {}", pe.index)).collect();
        running.join(", ")
    }

    fn say(&mut self, observer: &dyn Observer, message: &str) {
        self.output.line(Target::Stderr, format!("{}: ", observer.name()).as_bytes(), message.as_bytes());
    }

    fn pass_on(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.signal_all(signal);
        }
    }

    fn signal_all(&self, signal: Signal) {
        for pe in self.pes.iter().filter(|pe| pe.running) {
            // The process ID of a PE that is running or not yet reaped cannot have been reused.
            let _ = if self.own_group { kill_process_group(pe.pid, signal) } else { kill_process(pe.pid, signal) };
        }
    }

    /// Waits until all killed PEs have ended. Stops waiting at the time `until`.
    fn reap_until_gone(&mut self, until: Instant) {
        while self.pes.iter().any(|pe| pe.running) && Instant::now() < until {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, _))) => self.pes.iter_mut().filter(|pe| pe.pid == pid).for_each(|pe| pe.running = false),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => return,
            }
        }
    }

    /// Kills the processes that PEs have started and that still run, inside and outside of the PEs'
    /// process groups.
    fn sweep(&mut self) {
        for pe in self.pes.iter().filter(|pe| !pe.running && self.own_group) {
            // If the group has no child of the launcher, the group is empty and its ID may have
            // been reused.
            if !matches!(waitpgid(pe.pid, WaitOptions::NOHANG), Err(Errno::CHILD)) {
                let _ = kill_process_group(pe.pid, Signal::KILL);
            }
            self.guard.forget(pe.pid);
        }
        for _ in 0..100 {
            let left = orphans(self.guard.pid);
            if left.is_empty() {
                return;
            }
            for pid in left {
                let _ = kill_process(pid, Signal::KILL);
                let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the child processes of the launcher except the guard. If all PEs have ended, these are
/// orphans: processes that a PE started, and whose parents have ended.
fn orphans(guard: Option<Pid>) -> Vec<Pid> {
    let me = rustix::process::getpid().as_raw_nonzero();
    let mut pids = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{me}/task")).into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        pids.extend(children.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)));
    }
    pids.retain(|pid| Some(*pid) != guard);
    pids
}

fn nonblocking(fd: OwnedFd) -> Result<OwnedFd, LaunchError> {
    rustix::io::ioctl_fionbio(&fd, true)
        .map_err(|errno| LaunchError::system("cannot make a pipe non-blocking")(io::Error::from(errno)))?;
    Ok(fd)
}

/// Copies terminal input to PE 0. PE 0 cannot read the terminal, because PE 0 is not in the process
/// group that owns the terminal.
#[derive(Default)]
struct Relay {
    to: Option<OwnedFd>,
    waiting: VecDeque<u8>,
}

impl Relay {
    fn step(&mut self) {
        let Some(to) = &self.to else { return };
        if self.waiting.is_empty() {
            let mut buffer = [0; 4096];
            match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
                Ok(0) => self.to = None,
                Ok(count) => self.waiting.extend(&buffer[..count]),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(_) => self.to = None,
            }
            return;
        }
        match rustix::io::write(to, self.waiting.make_contiguous()) {
            Ok(count) => drop(self.waiting.drain(..count)),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.to = None,
        }
    }
}
