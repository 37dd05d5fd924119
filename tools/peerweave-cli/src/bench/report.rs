//! Combines the measurements of the PEs. The time of a batch is the time of the slowest PE, and the
//! reported time is the median over the batches. The numbers of wrong elements are added.
//!
//! Invariant: a line of the table is complete when every PE has reported every placement
//! (in place and out of place).

use peerweave_bench::workload::config::{Case, Config};
use peerweave_bench::workload::geometry::Placement;
use peerweave_bench::workload::record::{Measured, Note, Ready, Record};

/// Result of one form of the operation (in place or out of place) in one line of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Time per call in microseconds: the median of `batch_us`.
    pub time_us: f64,
    /// For each batch: time per call on the slowest PE, in microseconds.
    pub batch_us: Vec<f64>,
    /// For each batch: time per call on PE 0, in microseconds, to compare with tools that measure
    /// only one PE.
    pub pe0_us: Vec<f64>,
    /// Calls per batch.
    pub iters: u64,
    /// Algorithm bandwidth (algbw of nccl-tests) in GB/s.
    pub alg_bw: f64,
    /// Bus bandwidth (busbw of nccl-tests) in GB/s: `alg_bw` times a factor that depends on the
    /// operation.
    pub bus_bw: f64,
    /// Number of wrong elements on all PEs; `None` if results were not checked.
    pub wrong: Option<u64>,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Element type, reduction, root and size that this line shows.
    pub case: Case,
    /// Result of the out-of-place form.
    pub out_of_place: Cell,
    /// Result of the in-place form, if the operation has one.
    pub in_place: Option<Cell>,
}

impl Row {
    /// Returns the result of the out-of-place form, then the result of the in-place form if there
    /// is one.
    pub fn cells(&self) -> impl Iterator<Item = &Cell> {
        std::iter::once(&self.out_of_place).chain(&self.in_place)
    }
}

/// The output to print after a record of a PE has arrived.
#[derive(Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "the caller of `take` matches on each value at once and stores no value")]
pub enum News {
    /// Nothing can be printed yet, for example because other PEs have not sent their records of the
    /// same line.
    Nothing,
    /// All PEs have passed their first barrier, so the header can be printed.
    AllReady,
    /// The record has completed this line of the table, so the line can be printed.
    Row(Row),
}

/// Collects the records of all PEs, and combines the records into lines of the table.
#[derive(Debug)]
pub struct Collector {
    config: Config,
    cases: Vec<Case>,
    ready: Vec<Ready>,
    pending: Vec<Measured>,
    rows: Vec<Row>,
    /// Notes to print before lines of the table. PE 0 may send a note before other PEs have
    /// measured earlier lines.
    notes: Vec<Note>,
    /// Index of the table line that was completed last; 0 if no line is complete.
    last: usize,
}

impl Collector {
    /// Creates an empty collector.
    pub fn new(config: Config) -> Self {
        let cases = config.cases();
        Self { config, cases, ready: Vec::new(), pending: Vec::new(), rows: Vec::new(), notes: Vec::new(), last: 0 }
    }

    /// Returns the number of lines of the complete table: one line for each case.
    pub fn rows_planned(&self) -> usize {
        self.cases.len()
    }

    /// Returns the complete lines of the table: the lines for which every PE has sent its records.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the records of the PEs that have passed their first barrier, ordered by PE.
    pub fn ready(&self) -> &[Ready] {
        &self.ready
    }

    /// Returns the number of wrong elements, summed over all lines of the table.
    pub fn wrong(&self) -> u64 {
        self.rows.iter().flat_map(Row::cells).filter_map(|cell| cell.wrong).sum()
    }

    /// Returns the mean bus bandwidth in GB/s, as nccl-tests reports it. The mean is over all
    /// lines, in place and out of place.
    pub fn average_bus_bw(&self) -> f64 {
        let cells: Vec<_> = self.rows.iter().flat_map(Row::cells).collect();
        if cells.is_empty() { 0.0 } else { cells.iter().map(|cell| cell.bus_bw).sum::<f64>() / cells.len() as f64 }
    }

    /// Returns the notes about the line that was completed last. They are printed before that line.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.notes.iter().filter(|note| note.row == self.last).map(|note| &*note.text)
    }

    /// Adds a record that a PE has sent. Returns what can now be printed, such as a line of the
    /// table that this record completes.
    pub fn take(&mut self, record: Record) -> News {
        match record {
            Record::Note(note) => {
                self.notes.push(note);
                News::Nothing
            }
            // These are records of a comparison.
            Record::Contenders(_) | Record::Compared(_) => News::Nothing,
            Record::Ready(ready) => {
                self.ready.push(ready);
                self.ready.sort_by_key(|ready| ready.pe);
                if self.ready.len() == self.config.n_pes { News::AllReady } else { News::Nothing }
            }
            Record::Measured(measured) => {
                let row = measured.row;
                self.pending.push(measured);
                let placements = if self.config.has_in_place() { 2 } else { 1 };
                if self.pending.iter().filter(|measured| measured.row == row).count() < placements * self.config.n_pes {
                    return News::Nothing;
                }
                let (complete, pending) = std::mem::take(&mut self.pending).into_iter().partition(|measured| measured.row == row);
                self.pending = pending;
                match self.row(row, &complete) {
                    Some(complete) => {
                        self.last = row;
                        self.rows.push(complete.clone());
                        News::Row(complete)
                    }
                    None => News::Nothing,
                }
            }
        }
    }

    fn row(&self, row: usize, measured: &[Measured]) -> Option<Row> {
        let case = *self.cases.get(row)?;
        let cell = |placement| self.cell(&case, measured.iter().filter(|measured| measured.placement == placement));
        Some(Row { case, out_of_place: cell(Placement::OutOfPlace)?, in_place: cell(Placement::InPlace) })
    }

    fn cell<'m>(&self, case: &Case, measured: impl Iterator<Item = &'m Measured>) -> Option<Cell> {
        let measured: Vec<_> = measured.collect();
        let iters = measured.first()?.iters;
        let batches = measured.iter().map(|measured| measured.batch_us.len()).max()?;
        let batch_us: Vec<f64> = (0..batches)
            .map(|batch| measured.iter().filter_map(|measured| measured.batch_us.get(batch)).fold(0.0, |a: f64, b| a.max(*b)))
            .collect();
        let pe0_us = measured.iter().find(|measured| measured.pe == 0).map(|pe0| pe0.batch_us.clone()).unwrap_or_default();
        let time_us = median(&batch_us)?;
        let wrong = measured.iter().map(|measured| measured.wrong).sum();
        let (alg_bw, bus_bw) = self.config.op.bandwidth(case.counts, case.dtype.size_bytes(), time_us / 1e6, self.config.n_pes);
        Some(Cell { time_us, batch_us, pe0_us, iters, alg_bw, bus_bw, wrong })
    }
}

/// Returns the median of the values; for an even number of values, the mean of the middle two.
/// `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Configurations and records that the unit tests of `bench` share.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use peerweave_bench::workload::op::BenchOp;
    use peerweave_types::{DType, ReduceOp};

    pub(crate) fn config(op: BenchOp, n_pes: usize, sizes: &[usize]) -> Config {
        Config {
            sizes: sizes.to_vec(),
            dtypes: vec![DType::F32 as u8],
            redops: if op.reduces() { vec![ReduceOp::Sum as u8] } else { vec![] },
            roots: if op.has_root() { vec![0] } else { vec![] },
            iters: None,
            batches: 3,
            warmup: 5,
            check: true,
            ..Config::of_one_call(op, n_pes)
        }
    }

    pub(crate) fn ready(pe: usize) -> Record {
        Record::Ready(Ready {
            pe,
            pid: 100 + pe as u32,
            backend: "host".into(),
            compute: "CPU, avx2".into(),
            private_buffers: "Staged".into(),
            passed_at_ns: 5_000_000 + pe as u64,
        })
    }

    pub(crate) fn measured(pe: usize, row: usize, placement: Placement, batch_us: &[f64], wrong: u64) -> Record {
        Record::Measured(Measured { pe, row, placement, iters: 20, batch_us: batch_us.to_vec(), wrong: Some(wrong) })
    }
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use super::*;
    use peerweave_bench::workload::op::BenchOp;

    #[test]
    fn median_time_uses_the_slowest_pe_of_each_batch() {
        let mut collector = Collector::new(config(BenchOp::AllReduce, 2, &[1 << 20]));
        assert_eq!(collector.take(ready(1)), News::Nothing);
        assert_eq!(collector.take(ready(0)), News::AllReady);
        assert_eq!(collector.take(measured(0, 0, Placement::OutOfPlace, &[10.0, 50.0, 20.0], 1)), News::Nothing);
        assert_eq!(collector.take(measured(0, 0, Placement::InPlace, &[1.0, 1.0, 1.0], 0)), News::Nothing);
        assert_eq!(collector.take(measured(1, 0, Placement::OutOfPlace, &[30.0, 5.0, 20.0], 2)), News::Nothing);
        let News::Row(row) = collector.take(measured(1, 0, Placement::InPlace, &[1.0, 2.0, 3.0], 0)) else { panic!() };
        assert_eq!(row.out_of_place.batch_us, [30.0, 50.0, 20.0]);
        assert_eq!(row.out_of_place.time_us, 30.0);
        assert_eq!(row.out_of_place.wrong, Some(3));
        assert!((row.out_of_place.alg_bw - 34.952_533).abs() < 1e-3, "{}", row.out_of_place.alg_bw);
        assert_eq!(row.out_of_place.bus_bw, row.out_of_place.alg_bw, "2(n-1)/n is 1 for 2 PEs");
        assert_eq!(collector.wrong(), 3);
    }

    #[test]
    fn note_about_a_table_line_is_printed_before_that_line() {
        let mut collector = Collector::new(config(BenchOp::Put, 2, &[8, 16]));
        let note = |row: usize| Record::Note(Note { row, text: format!("line {row}") });
        // PE 0 is ahead: it explains the second size before PE 1 has measured the first.
        assert_eq!(collector.take(note(0)), News::Nothing);
        collector.take(measured(0, 0, Placement::OutOfPlace, &[1.0], 0));
        assert_eq!(collector.take(note(1)), News::Nothing);
        collector.take(measured(0, 1, Placement::OutOfPlace, &[1.0], 0));
        assert!(matches!(collector.take(measured(1, 0, Placement::OutOfPlace, &[], 0)), News::Row(_)));
        assert_eq!(collector.notes().collect::<Vec<_>>(), ["line 0"]);
        assert!(matches!(collector.take(measured(1, 1, Placement::OutOfPlace, &[], 0)), News::Row(_)));
        assert_eq!(collector.notes().collect::<Vec<_>>(), ["line 1"]);
    }

    #[test]
    fn reported_time_ignores_pes_that_make_no_calls() {
        let mut collector = Collector::new(config(BenchOp::Put, 2, &[8]));
        collector.take(measured(1, 0, Placement::OutOfPlace, &[], 0));
        let News::Row(row) = collector.take(measured(0, 0, Placement::OutOfPlace, &[3.0, 1.0, 2.0], 0)) else { panic!() };
        assert_eq!((row.out_of_place.time_us, row.in_place), (2.0, None));
    }

    #[test]
    fn unchecked_result_has_no_count_of_wrong_elements() {
        let mut collector = Collector::new(config(BenchOp::Put, 2, &[8]));
        for pe in 0..2 {
            let Record::Measured(mut one) = measured(pe, 0, Placement::OutOfPlace, &[1.0], 0) else { panic!() };
            one.wrong = None;
            collector.take(Record::Measured(one));
        }
        assert_eq!(collector.rows()[0].out_of_place.wrong, None);
    }

    #[test]
    fn median_of_an_even_count_is_the_mean_of_the_middle_two() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }
}
