//! Starts the process of one PE; [`super::supervise`] watches it.
//! Invariant: a PE leads its own process group, and the guard process ([`super::guard`]) knows this
//! group before the program of the PE runs. Exception: a single PE that reads the terminal directly
//! stays in the process group of the launcher. The operating system kills the PE when the launcher
//! dies. Of the launcher's files, the PE inherits only its three standard streams.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Resource, Signal, getpid, getppid, getrlimit, set_parent_process_death_signal};

use super::guard::Guard;
use super::{Launch, LaunchError};

/// The three standard streams of a PE.
pub(super) struct Streams {
    pub(super) stdin: Stdio,
    pub(super) stdout: Stdio,
    pub(super) stderr: Stdio,
}

/// Starts the PE with the index `local` on this machine. `guard` watches the process group of the
/// PE. Without a guard, the PE stays in the process group of the launcher.
pub(super) fn spawn(launch: &Launch, local: usize, guard: Option<&Guard>, streams: Streams) -> Result<Child, LaunchError> {
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).envs(launch.env.iter().map(|(name, value)| (name, value)));
    command
        .env("PEERWEAVE_PE", (launch.first_pe + local).to_string())
        .env("PEERWEAVE_N_PES", launch.n_pes.to_string())
        .env("PEERWEAVE_LOCAL_PE", local.to_string())
        .env("PEERWEAVE_LOCAL_N_PES", launch.n_local.to_string())
        .env("PEERWEAVE_MACHINE", launch.machine.to_string())
        .env("PEERWEAVE_N_MACHINES", launch.n_machines.to_string())
        // Sets the variables of torchrun, for programs that read only these.
        .env("RANK", (launch.first_pe + local).to_string())
        .env("WORLD_SIZE", launch.n_pes.to_string())
        .env("LOCAL_RANK", local.to_string())
        .env("LOCAL_WORLD_SIZE", launch.n_local.to_string())
        .env("GROUP_RANK", launch.machine.to_string())
        .env("GROUP_WORLD_SIZE", launch.n_machines.to_string())
        .stdin(streams.stdin)
        .stdout(streams.stdout)
        .stderr(streams.stderr);
    if guard.is_some() {
        command.process_group(0);
    }
    let entry = guard.and_then(Guard::entry);
    let launcher = getpid();
    let die_with_launcher = move || {
        if let Some(entry) = entry {
            // SAFETY: `guard` is borrowed until after the fork, so the guard was not stopped before
            // the fork.
            unsafe { entry.watch_this_process() };
        }
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The launcher may have died before the death signal was set.
        if getppid() == Some(launcher) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: the closure runs between fork and exec of a process that may have had other threads.
    // It makes system calls (rustix, no libc state), takes no lock and allocates nothing:
    // `io::Error` from an errno or an `ErrorKind` is a plain value.
    unsafe { command.pre_exec(die_with_launcher) };
    command.spawn().map_err(|source| LaunchError::Spawn {
        pe: launch.first_pe + local,
        program: launch.program.display().to_string(),
        source: explained(source, launch.n_local),
    })
}

/// Adds two numbers to an error about too many open files: the limit, and the number of files that
/// a job with `n_local` PEs on this machine needs. Returns other errors unchanged.
fn explained(error: io::Error, n_local: usize) -> io::Error {
    if Errno::from_io_error(&error) != Some(Errno::MFILE) {
        return error;
    }
    let limit = getrlimit(Resource::Nofile).current.map_or("unknown".to_owned(), |limit| limit.to_string());
    // The launcher needs 24 files for itself, and two pipes and a connection for each PE.
    let needed = 24 + 3 * n_local;
    let pes = if n_local == 1 { "1 PE".to_owned() } else { format!("{n_local} PEs") };
    io::Error::other(format!(
        "{error}: the limit of open files is {limit}, but about {needed} files are needed for {pes}; raise the limit with `ulimit -n`"
    ))
}
