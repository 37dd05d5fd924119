//! Starts PEs that are processes, reads their output, kills them, and waits until they end.
//!
//! A PE's standard output is a protocol of lines between the PE and the test that started the PE.
//! Its standard error is kept for the report of a failure.

use crate::run::harness::PROGRAM;
use crate::run::job::{ARGS, Job, MARK};
use crate::run::leftovers;
use peerweave::Pe;
use peerweave::bootstrap::{self, Endpoint, Server, ServerOptions, Token};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A running job of processes. Dropping the value kills all processes of the job.
#[derive(Debug)]
pub struct Running {
    server: Option<Server>,
    pes: Vec<Process>,
    program: &'static str,
    limit: Duration,
    /// The value of a variable that only this job's processes have in their environment.
    pub mark: String,
    /// The name of the rendezvous socket.
    pub socket: String,
}

#[derive(Debug)]
struct Process {
    child: Child,
    lines: Receiver<(Instant, String)>,
    stderr: Arc<Mutex<String>>,
    ended: Option<ExitStatus>,
}

impl Running {
    /// Starts the processes of `job`.
    ///
    /// # Panics
    /// If a process cannot be started.
    pub fn start(job: &Job) -> Self {
        let token = Token::random().expect("the system has random numbers");
        let endpoint = Endpoint::random_unix().expect("the system has random numbers");
        let Endpoint::Unix(socket) = &endpoint else { unreachable!("random_unix returned an endpoint other than a Unix socket") };
        let (socket, mark) = (socket.clone(), format!("mark-of-{socket}"));
        let n_pes = u32::try_from(job.n_pes).expect("the number of PEs fits 32 bits");
        let directory = leftovers::directory(&socket);
        std::fs::create_dir(&directory).expect("a directory for temporary files can be created");
        let server =
            Server::bind(&endpoint, token, n_pes, ServerOptions::default()).expect("the rendezvous server can be started");
        let pes = (0..n_pes)
            .map(|pe| {
                let place = bootstrap::Job::on_one_machine(pe, n_pes, server.endpoint().clone(), token);
                let program = std::env::current_exe().expect("the path of this program is known");
                let mut command = match job.wrapper.split_first() {
                    None => Command::new(program),
                    Some((first, rest)) => {
                        let mut command = Command::new(first);
                        command.args(rest).arg(program);
                        command
                    }
                };
                command
                    .env(PROGRAM, job.program)
                    .env(ARGS, &job.args)
                    .env(MARK, &mark)
                    .env("TMPDIR", &directory)
                    .envs(place.to_vars())
                    .envs(job.vars())
                    .env("RUST_BACKTRACE", "0");
                Process::start(command)
            })
            .collect();
        Self { server: Some(server), pes, program: job.program, limit: job.limit, mark, socket }
    }

    /// Returns the next line of a PE.
    ///
    /// # Panics
    /// If the PE has ended, or wrote nothing within the job's time limit.
    pub fn line(&mut self, pe: usize) -> String {
        self.timed_line(pe).1
    }

    /// Returns the next line of a PE, with the time of its arrival.
    ///
    /// # Panics
    /// As for [`Running::line`].
    pub fn timed_line(&mut self, pe: usize) -> (Instant, String) {
        match self.pes[pe].lines.recv_timeout(self.limit) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => self.report(&format!("PE {pe} wrote nothing for {:?}", self.limit)),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.pes[pe].wait(self.limit);
                self.report(&format!("PE {pe} ended ({status:?}) without the expected line"))
            }
        }
    }

    /// Waits until a PE ends. Returns its lines that were not yet read, and its exit status. Does
    /// not notify the rendezvous.
    ///
    /// # Panics
    /// If the PE does not end.
    pub fn ending(&mut self, pe: usize) -> (Vec<String>, ExitStatus) {
        let Some(status) = self.pes[pe].wait(self.limit) else {
            self.report(&format!("PE {pe} did not end within {:?}", self.limit))
        };
        // The channel closes when the reader has reached the end of the output.
        let said = std::iter::from_fn(|| self.pes[pe].lines.recv_timeout(self.limit).ok());
        (said.map(|(_, line)| line).collect(), status)
    }

    /// Waits until each of these PEs has written `line`.
    ///
    /// # Panics
    /// If a PE writes another line.
    pub fn all_say(&mut self, pes: impl IntoIterator<Item = usize>, line: &str) {
        for pe in pes {
            let said = self.line(pe);
            if said != line {
                self.report(&format!("PE {pe} wrote {said:?}, expected {line:?}"));
            }
        }
    }

    /// Kills a PE and reports it to the rendezvous, as a launcher does. Returns the time of the
    /// kill.
    pub fn kill(&mut self, pe: usize) -> Instant {
        let at = Instant::now();
        self.signal(pe, Signal::KILL);
        self.reap(pe);
        at
    }

    /// Sends a signal to a PE.
    ///
    /// # Panics
    /// If the PE was already reaped.
    pub fn signal(&self, pe: usize, signal: Signal) {
        assert!(self.pes[pe].ended.is_none(), "PE {pe} has ended, expected a running PE to signal");
        // The PE may be a zombie by now. A zombie accepts signals too.
        kill_process(Pid::from_child(&self.pes[pe].child), signal).expect("the PE is a child of this process");
    }

    /// Waits until a PE ends that was killed or kills itself. Reports the loss to the rendezvous,
    /// as a launcher does.
    ///
    /// # Panics
    /// If the PE does not end.
    pub fn reap(&mut self, pe: usize) -> ExitStatus {
        let Some(status) = self.pes[pe].wait(self.limit) else {
            self.report(&format!("PE {pe} did not end within {:?}", self.limit))
        };
        if let Some(server) = &self.server {
            server.report_lost(Pe::new(pe as u32), &status.to_string());
        }
        status
    }

    /// Returns the process ID of a PE.
    pub fn pid(&self, pe: usize) -> u32 {
        self.pes[pe].child.id()
    }

    /// Waits for these PEs and asserts that they succeeded.
    ///
    /// # Panics
    /// If a PE failed. The message has the first lines of every PE's standard error.
    pub fn succeed(&mut self, pes: impl IntoIterator<Item = usize>) {
        let end = Instant::now() + self.limit;
        // Polls all PEs, so that a failure is recorded while other PEs are still running.
        let mut left: Vec<usize> = pes.into_iter().collect();
        let mut bad = Vec::new();
        while !left.is_empty() {
            left.retain(|&pe| match self.pes[pe].try_wait() {
                Some(status) if status.success() => false,
                Some(status) => {
                    bad.push(format!("PE {pe} {status}"));
                    false
                }
                None => true,
            });
            if Instant::now() > end {
                let slow: Vec<String> = left.iter().map(|&pe| format!("PE {pe}: {}", self.pes[pe].whereabouts())).collect();
                self.report(&format!("failed: {bad:?}; still running after {:?}: {slow:?}", self.limit));
            }
            thread::sleep(Duration::from_micros(300));
        }
        if !bad.is_empty() {
            self.report(&format!("{bad:?}"));
        }
    }

    /// Kills all PEs, and panics with the first lines of their standard error.
    fn report(&mut self, what: &str) -> ! {
        for process in &mut self.pes {
            process.end();
        }
        let mut text = format!("{}: {what}", self.program);
        for (pe, process) in self.pes.iter().enumerate() {
            let stderr = process.stderr.lock().unwrap_or_else(PoisonError::into_inner);
            let shown: String = stderr.lines().take(12).map(|line| format!("\n    [{pe}] {line}")).collect();
            text += &shown;
        }
        panic!("{text}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for process in &mut self.pes {
            process.end();
        }
        drop(self.server.take());
        // A directory that is not empty remains, so that the scenario finds it.
        let _ = std::fs::remove_dir(leftovers::directory(&self.socket));
    }
}

impl Process {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the process of a PE can be started");
        let (said, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("the output is a pipe"));
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if said.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        let stderr = Arc::new(Mutex::new(String::new()));
        let (mut from, to) = (child.stderr.take().expect("the output is a pipe"), stderr.clone());
        thread::spawn(move || {
            let mut block = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut block) {
                let text = String::from_utf8_lossy(&block[..count]);
                to.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            }
        });
        Self { child, lines, stderr, ended: None }
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("the PE is a child of this process");
        }
        self.ended
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + limit;
        while self.try_wait().is_none() && Instant::now() < end {
            thread::sleep(Duration::from_micros(200));
        }
        self.ended
    }

    /// Returns the state and the number of threads of the process, for the report of a hanging PE.
    fn whereabouts(&self) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let threads = status.lines().filter(|line| line.starts_with("State") || line.starts_with("Threads"));
        threads.collect::<Vec<_>>().join(" ").replace('\t', " ")
    }

    fn end(&mut self) {
        if self.ended.is_none() {
            // The process may have ended already; then there is nothing to kill.
            let _ = self.child.kill();
            self.ended = self.child.wait().ok();
        }
    }
}
