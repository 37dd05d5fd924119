//! Runs the checks of a PE, and prints the result of each check as soon as the check has ended. So
//! an aborted run has printed the results of all completed checks. PE 0 prints a row for each
//! passed check; every PE prints its failed checks.

use std::io::Write as _;
use std::time::Instant;

use peerweave_cuda::Gpu;

use super::Outcome;

/// Runs the checks of one PE, prints their results, and counts passed and failed checks.
pub(crate) struct Rows {
    title: String,
    pe: u32,
    passed: usize,
    failed: usize,
    start: Instant,
    only: String,
}

impl Rows {
    pub(crate) fn new(gpu: &Gpu, transport: String, start: Instant, only: &str) -> Self {
        let title = format!("check device: {} PEs, {}, {transport}", gpu.n_pes(), gpu.arch());
        Self { title, pe: gpu.pe().get(), passed: 0, failed: 0, start, only: only.to_owned() }
    }

    /// Runs a check if its name contains the text of `--only`. If the check passes, PE 0 prints a
    /// row with the duration. If the check fails, this PE prints the error.
    pub(crate) fn check(&mut self, name: &str, check: impl FnOnce() -> Outcome) {
        if !name.contains(&self.only) {
            return;
        }
        let start = Instant::now();
        let outcome = check();
        match &outcome {
            Err(error) => println!("{}: FAILED {name}: {error}", self.pe),
            Ok(()) if self.pe == 0 => println!("  {name:<48} {:>9.1} ms", start.elapsed().as_secs_f64() * 1e3),
            Ok(()) => {}
        }
        // An error while printing the row is not a failure of the check.
        let _ = std::io::stdout().flush();
        *if outcome.is_ok() { &mut self.passed } else { &mut self.failed } += 1;
    }

    /// Prints the number of passed checks and the number of failed checks. Returns both numbers.
    pub(crate) fn print(&self) -> (usize, usize) {
        let Self { title, pe, passed, failed, start, .. } = self;
        println!("{pe}: {title}: {passed} passed, {failed} failed, {:.1} s", start.elapsed().as_secs_f64());
        (*passed, *failed)
    }
}
