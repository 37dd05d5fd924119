//! Outcome of a job and its exit code.

use std::fmt;

use peerweave_bench::console::exit;

/// Exit status of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The process exited with this code.
    Code(i32),
    /// The process was killed by this signal.
    Signal(i32),
}

impl Status {
    /// Returns whether the process succeeded.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }

    /// Returns the exit code of the launcher for this status.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Code(code) => code as u8,
            Self::Signal(signal) => exit::of_signal(signal),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exited with status {code}"),
            Self::Signal(signal) => match signal_hook::low_level::signal_name(signal) {
                Some(name) => write!(f, "was killed by signal {signal} ({name})"),
                None => write!(f, "was killed by signal {signal}"),
            },
        }
    }
}

/// A PE that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Index of the PE.
    pub pe: usize,
    /// Exit status of the PE.
    pub status: Status,
}

/// Outcome of a job, from which the exit code of the launcher follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// The failed PE whose status becomes the exit code, if any. With `--on-failure continue`,
    /// `None` if at least one PE succeeds.
    pub failure: Option<Failure>,
    /// Whether `--timeout` expired.
    pub timed_out: bool,
    /// Whether output of the PEs could not be written.
    pub output_lost: bool,
}

impl Ending {
    /// Returns the exit code of the whole job.
    pub fn exit_code(&self) -> u8 {
        match &self.failure {
            _ if self.timed_out => exit::TIMED_OUT,
            // Lost output takes precedence over a failed PE, because the loss made the PE fail.
            _ if self.output_lost => exit::LAUNCHER,
            Some(failure) => failure.status.exit_code(),
            None => exit::OK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_exit_code_differs_for_failure_timeout_and_lost_output() {
        let ended = |status| Ending { failure: Some(Failure { pe: 1, status }), ..Ending::default() }.exit_code();
        assert_eq!(Ending::default().exit_code(), 0);
        assert_eq!(ended(Status::Code(3)), 3);
        assert_eq!(ended(Status::Signal(9)), 137);
        assert_eq!(ended(Status::Signal(11)), 139);
        assert_eq!(Ending { timed_out: true, ..Ending::default() }.exit_code(), 124);
        assert_eq!(Ending { output_lost: true, ..Ending::default() }.exit_code(), 125);
    }

    #[test]
    fn status_text_describes_how_the_process_ended() {
        assert_eq!(Status::Signal(9).to_string(), "was killed by signal 9 (SIGKILL)");
        assert_eq!(Status::Code(7).to_string(), "exited with status 7");
    }
}
