//! How a job ended, and which exit code says so.

use std::fmt;

use crate::exit;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Status {
    /// Whether it ended well.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }

    /// The exit code that passes it on.
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

/// The PE that failed first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which.
    pub pe: usize,
    /// How it ended.
    pub status: Status,
}

/// How a job ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// The first failure, where there was one.
    pub failure: Option<Failure>,
    /// Whether the time was up.
    pub timed_out: bool,
    /// Whether what the PEs printed could not be written.
    pub output_lost: bool,
}

impl Ending {
    /// The exit code of the whole job.
    pub fn exit_code(&self) -> u8 {
        match &self.failure {
            _ if self.timed_out => exit::TIMED_OUT,
            // A PE that failed then failed because of it.
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
    fn exit_codes_tell_how_it_ended() {
        let ended = |status| Ending { failure: Some(Failure { pe: 1, status }), ..Ending::default() }.exit_code();
        assert_eq!(Ending::default().exit_code(), 0);
        assert_eq!(ended(Status::Code(3)), 3);
        assert_eq!(ended(Status::Signal(9)), 137);
        assert_eq!(ended(Status::Signal(11)), 139);
        assert_eq!(Ending { timed_out: true, ..Ending::default() }.exit_code(), 124);
        assert_eq!(Ending { output_lost: true, ..Ending::default() }.exit_code(), 125);
    }

    #[test]
    fn a_status_reads_as_a_sentence() {
        assert_eq!(Status::Signal(9).to_string(), "was killed by signal 9 (SIGKILL)");
        assert_eq!(Status::Code(7).to_string(), "exited with status 7");
    }
}
