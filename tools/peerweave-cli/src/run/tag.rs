//! Prefixes each line of output with the PE that printed the line, and queues the line.

use crate::launch::rendezvous::JobRendezvous;
use crate::launch::{Observer, Output, Source, Target};

/// Forwards the output of the PEs. Optionally prefixes each line with the number of its PE, such as
/// `[3] `.
#[derive(Debug)]
pub(super) struct Tagger {
    name: &'static str,
    /// Number of digits of the largest PE number; `None` if lines get no tags.
    width: Option<usize>,
    rendezvous: JobRendezvous,
}

impl Tagger {
    /// Creates a tagger. `tagged_pes` is the number of PEs in the job, which determines the width
    /// of the tags; `None` means no tags.
    pub(super) fn new(name: &'static str, tagged_pes: Option<usize>, rendezvous: JobRendezvous) -> Self {
        Self { name, width: tagged_pes.map(|n| digits(n.saturating_sub(1))), rendezvous }
    }
}

fn digits(number: usize) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

impl Observer for Tagger {
    fn line(&mut self, pe: usize, source: Source, line: &[u8], output: &mut Output) {
        let target = match source {
            Source::Stdout => Target::Stdout,
            Source::Stderr => Target::Stderr,
        };
        match self.width {
            Some(width) => output.line(target, format!("[{pe:>width$}] ").as_bytes(), line),
            None => output.line(target, b"", line),
        }
    }

    fn failed(&mut self, pe: usize, why: &str) -> Option<usize> {
        self.rendezvous.report_lost(pe, why)
    }

    fn aborted(&self) -> Option<(usize, u8)> {
        self.rendezvous.aborted()
    }

    fn name(&self) -> &'static str {
        self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_width_is_the_digit_count_of_the_largest_pe_number() {
        assert_eq!([digits(0), digits(9), digits(10), digits(99), digits(100)], [1, 1, 2, 2, 3]);
    }
}
