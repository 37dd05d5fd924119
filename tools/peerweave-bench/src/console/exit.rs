//! Exit codes of the command. Scripts rely on them, so they are part of the command's interface.

/// Success.
pub const OK: u8 = 0;
/// `bench` found elements with wrong values.
pub const WRONG_VALUES: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// An operation of `bench` failed.
pub const OPERATION_FAILED: u8 = 3;
/// `--timeout` expired.
pub const TIMED_OUT: u8 = 124;
/// The launcher itself failed, for example because it could not start the rendezvous or write a
/// file.
pub const LAUNCHER: u8 = 125;
/// The program was found but cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub const NOT_FOUND: u8 = 127;

/// Returns the exit code for a signal, as in shells: 128 plus the number of the signal.
pub const fn of_signal(signal: i32) -> u8 {
    128u8.wrapping_add(signal as u8)
}

/// Section of `--help` about exit codes.
pub const HELP: &str = "\
Exit codes:
  0      success
  1      bench: an element had a wrong value
  2      the command line is wrong
  3      bench: an operation failed
  124    --timeout expired
  125    the launcher itself failed
  126    the program cannot be executed
  127    the program was not found
  128+N  signal N ended a PE
  other  the exit status of the PE that failed first; with run --on-failure=continue, if every PE failed: \
the exit status of the PE that ended last";
