//! PEs that are processes: copies of the test program, controlled by an environment variable.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use peerweave_bootstrap::BootstrapError;

use super::eventually;

/// Name of the variable that selects the role of a copy of the test program. The variable is not
/// set in the test itself.
pub const ROLE: &str = "TEST_ROLE";

/// A PE in its own process, which is killed when this value is dropped.
pub struct Process {
    pub child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(role: &str, vars: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        Self::of(command.env(ROLE, role).envs(vars).stdin(Stdio::piped()).stdout(Stdio::piped()))
    }

    pub fn of(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Writes a line to the process, which waits for the line.
    pub fn tell(&mut self) {
        writeln!(self.child.stdin.as_ref().unwrap()).unwrap();
    }

    /// Stops the process with SIGSTOP. Waits until all of its threads have stopped, because a
    /// thread stops only when it next runs.
    pub fn stop(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        eventually("the stop of every thread", || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
            let status = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status")).unwrap();
            tasks.map(|task| status(task.unwrap())).all(|status| status.contains("State:\tT"))
        });
    }

    /// Continues the process after [`Self::stop`].
    pub fn resume(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    }

    /// Waits until the process, whose main thread joins a job, has searched for the processes of
    /// other PEs. The thread sleeps for at most 50 ms after each search, and rarely sleeps before
    /// the first search.
    pub fn search(&self) {
        let sleeps = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
            let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            count.unwrap().trim().parse::<u64>().unwrap()
        };
        let before = sleeps();
        eventually("the searches of a joining PE", || sleeps() >= before + 60);
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns torchrun's variables for one PE of a job on this machine. The port distinguishes jobs.
pub fn torchrun(pe: u32, n_pes: u32, port: u32) -> Vec<(&'static str, String)> {
    vec![
        ("RANK", pe.to_string()),
        ("LOCAL_RANK", pe.to_string()),
        ("WORLD_SIZE", n_pes.to_string()),
        ("LOCAL_WORLD_SIZE", n_pes.to_string()),
        ("MASTER_ADDR", "127.0.0.1".to_owned()),
        ("MASTER_PORT", port.to_string()),
        ("TORCHELASTIC_RUN_ID", std::process::id().to_string()),
    ]
}

pub fn say(result: Result<(), BootstrapError>) {
    match result {
        Ok(()) => println!("ok"),
        Err(BootstrapError::PeLost { pe, .. }) => println!("lost {}", pe.get()),
        Err(BootstrapError::Timeout { missing, .. }) => println!("missing {missing:?}"),
        Err(BootstrapError::PeFailed { pe, message, .. }) => println!("{pe} failed: {message}"),
        Err(error) => println!("{error}"),
    }
}

/// Creates an array of scenarios, each with its name.
#[macro_export]
macro_rules! scenarios {
    ($($scenario:ident),* $(,)?) => {
        [$((stringify!($scenario), $scenario as fn())),*]
    };
}

/// Runs the scenarios whose names contain one of the arguments, or all scenarios if there are no
/// arguments. With `--list`, prints the names in the format of a test program.
pub fn run_scenarios(all: &[(&str, fn())]) {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if std::env::args().any(|argument| argument == "--list") {
        return all.iter().for_each(|(name, _)| println!("{name}: test"));
    }
    for (name, scenario) in all {
        if arguments.is_empty() || arguments.iter().any(|part| name.contains(part.as_str())) {
            let start = Instant::now();
            scenario();
            println!("scenario {name} ... ok ({:.0?})", start.elapsed());
        }
    }
}
