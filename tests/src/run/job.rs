//! Runs a program as the PEs of a job: threads of this process, separate processes, or one PE
//! without communication.
//!
//! Programs make their assertions in each PE. If a PE fails, the scenario fails.

use crate::run::child::Running;
use crate::run::harness::program;
use peerweave::bootstrap::BootstrapError;
use peerweave::host::HostOptions;
use peerweave::{Error, Pe, World, environment, noop};
use std::cell::RefCell;
use std::time::Duration;

/// The variable with the arguments of a program.
pub(crate) const ARGS: &str = "PEERWEAVE_TEST_ARGS";
/// The variable that identifies the processes of a job.
pub(crate) const MARK: &str = "PEERWEAVE_TEST_MARK";

/// A program, and its number of PEs.
#[derive(Clone, Debug)]
pub struct Job {
    pub(crate) program: &'static str,
    pub(crate) n_pes: usize,
    pub(crate) args: String,
    pub(crate) limit: Duration,
    deadline: Duration,
    attach: bool,
    check_calls: bool,
    heap_bytes: Option<usize>,
    pub(crate) wrapper: Vec<&'static str>,
}

impl Job {
    /// Returns a job of `n_pes` PEs that run a program. Its deadline is so long that only a wait
    /// that hangs reaches it.
    pub fn new(program: &'static str, n_pes: usize) -> Self {
        Self {
            program,
            n_pes,
            args: String::new(),
            limit: Duration::from_secs(120),
            deadline: Duration::from_secs(60),
            attach: true,
            check_calls: false,
            heap_bytes: None,
            wrapper: Vec::new(),
        }
    }

    /// Sets the arguments of the program: [`Seat::args`].
    #[must_use]
    pub fn args(mut self, args: impl Into<String>) -> Self {
        self.args = args.into();
        self
    }

    /// Sets the deadline of every wait.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the time limit of each wait for a process of the job.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Disables cross-memory attach: private buffers are copied through shared memory.
    #[must_use]
    pub fn without_attach(mut self) -> Self {
        self.attach = false;
        self
    }

    /// Enables the full comparison of calls.
    #[must_use]
    pub fn check_calls(mut self) -> Self {
        self.check_calls = true;
        self
    }

    /// Sets the symmetric heap of each PE in bytes.
    #[must_use]
    pub fn heap_bytes(mut self, bytes: usize) -> Self {
        self.heap_bytes = Some(bytes);
        self
    }

    /// Makes the job start each process with this command, which gets the path of the program as
    /// the last argument.
    #[must_use]
    pub fn under(mut self, wrapper: &[&'static str]) -> Self {
        self.wrapper = wrapper.to_vec();
        self
    }

    /// Returns the settings as environment variables.
    pub(crate) fn vars(&self) -> Vec<(&'static str, String)> {
        use environment::names;
        let mut vars = vec![
            (names::DEADLINE, self.deadline.as_secs_f64().to_string()),
            (names::CROSS_MEMORY_ATTACH, if self.attach { "on" } else { "off" }.to_owned()),
            (names::CHECK_CALLS, u8::from(self.check_calls).to_string()),
        ];
        vars.extend(self.heap_bytes.map(|bytes| (names::HEAP_BYTES, bytes.to_string())));
        vars
    }

    /// Runs the job with threads of this process as PEs.
    ///
    /// # Panics
    /// If a PE panics.
    pub fn on_threads(&self) {
        let mut options = HostOptions::default();
        options.deadline = self.deadline;
        options.check_calls = self.check_calls;
        options.heap_bytes = self.heap_bytes;
        let run = program(self.program);
        let ended = peerweave::host::on_threads(self.n_pes, &options, |world| run(&Seat::of_thread(world.into(), &self.args)));
        ended.expect("the PEs can share memory");
    }

    /// Runs the job with processes as PEs, and waits until they end. Does nothing with
    /// `--cfg peerweave_portable`, because PEs cannot be processes then.
    ///
    /// # Panics
    /// If a PE fails. The message has the first lines of every PE's standard error.
    pub fn on_processes(&self) {
        // The portable form of the host backend has threads only.
        if cfg!(peerweave_portable) {
            return;
        }
        self.start().succeed(0..self.n_pes);
    }

    /// Starts the job with processes as PEs, and does not wait for them.
    pub fn start(&self) -> Running {
        Running::start(self)
    }

    /// Runs the job in every configuration: with threads; with processes, with and without
    /// cross-memory attach; and, for one PE, on the backend without communication.
    ///
    /// # Panics
    /// If a PE fails in one of these runs.
    pub fn everywhere(&self) {
        if self.n_pes == 1 {
            let world = peerweave::World::builder()
                .backend(noop::Noop::with_heap(0, 1, 256 << 20))
                .build()
                .expect("a world without communication can be created");
            program(self.program)(&Seat::of_thread(world, &self.args));
        }
        self.on_threads();
        self.on_processes();
        self.clone().without_attach().on_processes();
    }
}

/// What a program gets to run as one PE: its arguments, and the means to join the job.
#[derive(Debug)]
pub struct Seat {
    /// The arguments from the scenario.
    pub args: String,
    /// The world, if the PE is a thread. The world exists before the PE joins.
    world: RefCell<Option<World>>,
}

impl Seat {
    fn of_thread(world: World, args: &str) -> Self {
        Self { args: args.to_owned(), world: RefCell::new(Some(world)) }
    }

    /// Returns the seat of this process. Makes the system kill this process when the scenario's
    /// process ends.
    ///
    /// # Panics
    /// If the system does not support parent-death signals.
    pub fn of_process() -> Self {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
            .expect("Linux has parent-death signals");
        Self { args: std::env::var(ARGS).unwrap_or_default(), world: RefCell::new(None) }
    }

    /// Joins the job.
    ///
    /// # Errors
    /// As for [`World::from_env`].
    pub fn try_join(&self) -> Result<World, Error> {
        self.world.take().map_or_else(World::from_env, Ok)
    }

    /// Joins the job.
    ///
    /// # Panics
    /// If this PE cannot join.
    pub fn join(&self) -> World {
        self.try_join().expect("this PE can join the job")
    }

    /// Returns the argument at `index`; spaces separate arguments.
    ///
    /// # Panics
    /// If the argument is missing or has another type.
    pub fn arg<T: std::str::FromStr>(&self, index: usize) -> T {
        let text = self.args.split(' ').nth(index).unwrap_or_else(|| panic!("argument {index} is missing in {:?}", self.args));
        text.parse().unwrap_or_else(|_| panic!("argument {index} in {:?} is invalid", self.args))
    }
}

/// Writes a line to the scenario.
pub fn say(line: impl std::fmt::Display) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    // A closed output is not a failure of the PE.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Prints the outcome of this PE: "fine", or "lost" with the error and the PEs that the error
/// names.
pub fn say_outcome(outcome: peerweave::Result<()>) {
    match outcome {
        Ok(()) => say("fine"),
        Err(error) => {
            let named: Vec<String> = named_by(&error).iter().map(|pe| pe.get().to_string()).collect();
            say(format!("lost {} | {error}", named.join(",")));
        }
    }
}

/// Returns the PEs that an error names. Errors of the job's set-up name PEs too.
pub fn named_by(error: &Error) -> Vec<Pe> {
    let blamed = error.blamed();
    let Error::Setup { source, .. } = error else { return blamed };
    match source.downcast_ref::<BootstrapError>() {
        Some(BootstrapError::PeLost { pe, .. }) => vec![*pe],
        Some(BootstrapError::Timeout { missing, .. }) => missing.clone(),
        _ => blamed,
    }
}
