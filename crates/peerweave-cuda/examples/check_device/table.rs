//! The table of checks and their results.

use std::time::Instant;

use peerweave_cuda::Gpu;

use crate::Outcome;

/// The rows of a PE.
pub(crate) struct Table {
    title: String,
    rows: Vec<(String, Result<f64, String>)>,
    start: Instant,
}

impl Table {
    pub(crate) fn new(gpu: &Gpu, transport: String, start: Instant) -> Self {
        let title = format!("check_device: {} PEs, {}, {transport}", gpu.n_pes(), gpu.arch());
        Self { title, rows: Vec::new(), start }
    }

    /// Runs a check. Returns whether it passed.
    pub(crate) fn check(&mut self, name: &str, check: impl FnOnce() -> Outcome) -> bool {
        let start = Instant::now();
        let outcome = check().map_err(|error| error.to_string());
        let passed = outcome.is_ok();
        self.rows.push((name.to_owned(), outcome.map(|()| start.elapsed().as_secs_f64())));
        passed
    }

    /// Prints the table of PE 0 and the failures of every PE. Returns whether all checks passed on
    /// this PE.
    pub(crate) fn print(&self, gpu: &Gpu) -> bool {
        let failed = self.rows.iter().filter(|(_, outcome)| outcome.is_err()).count();
        for (name, outcome) in &self.rows {
            match outcome {
                Err(error) => println!("{}: FAILED {name}: {error}", gpu.pe()),
                Ok(seconds) if gpu.pe().get() == 0 => println!("  {name:<48} {:>9.1} ms", seconds * 1e3),
                Ok(_) => {}
            }
        }
        let (passed, seconds) = (self.rows.len() - failed, self.start.elapsed().as_secs_f64());
        println!("{}: {}: {passed} passed, {failed} failed, {seconds:.1} s", gpu.pe(), self.title);
        failed == 0
    }
}
