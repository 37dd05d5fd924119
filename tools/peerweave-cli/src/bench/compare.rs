//! Combines and formats the result of a comparison, which measures several libraries (the
//! contenders) in one run.
//!
//! For each size, a line shows the median and the 99th percentile of each contender. For each other
//! library, the line also shows the time of Peerweave's kernels divided by the time of that
//! library. The result can also be written as JSON and as a plot.
//!
//! Invariant: a line is complete when every PE has sent a record of every contender for this line.

use serde_json::{Value, json};

use super::plot::{self, PlotError, Series};
use super::report::median;
use crate::launch::rendezvous::JobRendezvous;
use crate::launch::{Observer, Output, Source, Target};
use crate::machine::Machine;
use peerweave_bench::workload::config::{Case, Config};
use peerweave_bench::workload::record::{Compared, Contenders, Note, Ready, Record};
use peerweave_types::ReduceOp;

/// Version of the JSON document.
const VERSION: u32 = 1;

/// Times of one contender of the comparison for one [`Case`] (element type, reduction and size).
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Name of the contender.
    pub contender: String,
    /// Median of `batch_us`; `None` if the contender does not support the call.
    pub p50_us: Option<f64>,
    /// 99th percentile of `batch_us`; `None` if the contender does not support the call.
    pub p99_us: Option<f64>,
    /// For each batch: time per call on the slowest PE, in microseconds.
    pub batch_us: Vec<f64>,
    /// Calls per batch.
    pub iters: u64,
    /// Bus bandwidth in GB/s, computed from the median time.
    pub bus_bw: f64,
    /// Number of wrong elements on all PEs; `None` if results were not checked.
    pub wrong: Option<u64>,
}

/// One line of the result: one [`Case`], with the times of all contenders.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Index of the case in the list that `Config::cases` returns, from 0.
    pub row: usize,
    /// Element type, reduction and size that this line shows.
    pub case: Case,
    /// The times of each contender, in the order of the columns.
    pub cells: Vec<Cell>,
}

impl Line {
    /// Returns the median time per call of a contender, in microseconds. Returns `None` if this
    /// line has no time of the contender.
    pub fn p50_us(&self, contender: &str) -> Option<f64> {
        self.cells.iter().find(|cell| cell.contender == contender)?.p50_us
    }

    /// Returns a ratio: the median time of Peerweave's kernels, divided by the median time of the
    /// fastest other library. Returns `None` if Peerweave has no time, or if no other library has a
    /// time.
    pub fn ratio_to_best(&self) -> Option<f64> {
        let others = self.cells.iter().filter(|cell| !is_own(&cell.contender)).filter_map(|cell| cell.p50_us);
        let best = others.fold(f64::INFINITY, f64::min);
        self.p50_us("own").filter(|_| best.is_finite()).map(|own| own / best)
    }
}

fn is_own(contender: &str) -> bool {
    contender == "own" || contender.starts_with("own:")
}

/// A comparison in progress: its settings, and the records received so far.
#[derive(Debug)]
pub struct Comparison {
    config: Config,
    cases: Vec<Case>,
    ready: Vec<Ready>,
    contenders: Contenders,
    pending: Vec<Compared>,
    lines: Vec<Line>,
    notes: Vec<Note>,
}

/// The output to print after a record of a PE has arrived.
#[derive(Debug, PartialEq)]
pub enum News {
    /// Nothing can be printed yet, for example because the record completes no line.
    Nothing,
    /// The contenders of the comparison are known, so the header can be printed.
    Header,
    /// This line is complete and can be printed.
    Line(Line),
}

impl Comparison {
    /// Creates an empty comparison.
    pub fn new(config: &Config) -> Self {
        let contenders = Contenders { present: Vec::new(), absent: Vec::new(), arch: String::new() };
        let (pending, lines) = (Vec::new(), Vec::new());
        Self { cases: config.cases(), config: config.clone(), ready: Vec::new(), contenders, pending, lines, notes: Vec::new() }
    }

    /// Returns the complete lines of the table, in the order in which they were completed.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Adds contenders that were measured after all others, in separate processes. `records`
    /// contains their measurements.
    pub fn add(&mut self, contenders: Contenders, records: &[Compared]) {
        for (name, _) in &contenders.present {
            let of_row =
                |row| -> Vec<&Compared> { records.iter().filter(|one| one.row == row && one.contender == *name).collect() };
            let cells: Vec<Cell> = self.lines.iter().map(|line| self.cell(&line.case, name, &of_row(line.row))).collect();
            self.lines.iter_mut().zip(cells).for_each(|(line, cell)| line.cells.push(cell));
        }
        self.contenders.present.extend(contenders.present);
        self.contenders.absent.extend(contenders.absent);
    }

    /// Returns the contenders that are measured, and the names of the other contenders with the
    /// reasons why they are not measured.
    pub fn contenders(&self) -> &Contenders {
        &self.contenders
    }

    /// Returns the name of the GPU of the lowest-numbered PE that has passed its first barrier; `?`
    /// if there is no such PE.
    pub fn compute(&self) -> &str {
        self.ready.first().map_or("?", |ready| &ready.compute)
    }

    /// Returns the number of wrong elements, summed over all lines and contenders.
    pub fn wrong(&self) -> u64 {
        self.lines.iter().flat_map(|line| &line.cells).filter_map(|cell| cell.wrong).sum()
    }

    /// Returns the notes to print before the line with index `row`.
    pub fn notes(&self, row: usize) -> impl Iterator<Item = &str> {
        self.notes.iter().filter(move |note| note.row == row).map(|note| &*note.text)
    }

    /// Adds a record that a PE has sent. Returns what can now be printed, such as a line of the
    /// table that this record completes.
    pub fn take(&mut self, record: Record) -> News {
        match record {
            Record::Ready(ready) => {
                self.ready.push(ready);
                self.ready.sort_by_key(|ready| ready.pe);
                News::Nothing
            }
            Record::Contenders(contenders) => {
                self.contenders = contenders;
                News::Header
            }
            Record::Note(note) => {
                self.notes.push(note);
                News::Nothing
            }
            Record::Measured(_) => News::Nothing,
            Record::Compared(one) => {
                let row = one.row;
                self.pending.push(one);
                let present = self.contenders.present.len() * self.config.n_pes;
                let found = self.pending.iter().filter(|one| one.row == row).count();
                if present == 0 || found < present {
                    return News::Nothing;
                }
                let (of_row, rest) = std::mem::take(&mut self.pending).into_iter().partition(|one| one.row == row);
                self.pending = rest;
                let line = self.line(row, of_row);
                self.lines.push(line.clone());
                News::Line(line)
            }
        }
    }

    fn line(&self, row: usize, records: Vec<Compared>) -> Line {
        let case = self.cases[row];
        let cells = self.contenders.present.iter().map(|(contender, _)| {
            let of_it: Vec<&Compared> = records.iter().filter(|one| one.contender == *contender).collect();
            self.cell(&case, contender, &of_it)
        });
        Line { row, case, cells: cells.collect() }
    }

    /// Combines the records that the PEs have sent for one contender and one case: takes the time
    /// of the slowest PE for each batch, and adds the numbers of wrong elements.
    fn cell(&self, case: &Case, contender: &str, records: &[&Compared]) -> Cell {
        let batches = records.iter().map(|one| one.batch_us.len()).min().unwrap_or(0);
        let slowest = |batch: usize| records.iter().map(|one| one.batch_us[batch]).fold(0.0, f64::max);
        let batch_us: Vec<f64> = (0..batches).map(slowest).collect();
        let p50_us = median(&batch_us);
        let seconds = p50_us.unwrap_or(0.0) / 1e6;
        let (_, bus_bw) = self.config.op.bandwidth(case.counts, case.dtype.size_bytes(), seconds, self.config.n_pes);
        Cell {
            contender: contender.to_owned(),
            p50_us,
            p99_us: percentile(&batch_us, 99),
            batch_us,
            iters: records.first().map_or(0, |one| one.iters),
            bus_bw,
            wrong: records.iter().map(|one| one.wrong).sum(),
        }
    }

    /// Returns the header: the lines to print before the first result.
    pub fn header(&self) -> Vec<String> {
        let Config { op, n_pes, batches, .. } = &self.config;
        let compute = self.compute();
        let (version, plural) = (env!("CARGO_PKG_VERSION"), if *n_pes == 1 { "" } else { "s" });
        let mut lines = vec![
            format!("# peerweave version {version} compares {}, {n_pes} PE{plural}, {compute}", op.name()),
            format!(
                "# {}, out of place; {batches} alternating batches of each library or method; microseconds per call; own/it: median of Peerweave divided by median of the library or method to the left; own/best: median of Peerweave divided by the lowest median of another library; wrong: number of wrong elements",
                self.config.calls_name()
            ),
        ];
        lines.extend(self.contenders.present.iter().map(|(name, version)| format!("# {name}: {version}")));
        lines.extend(self.contenders.absent.iter().map(|(name, why)| format!("# {name} is not measured: {why}")));
        lines.push(format!(
            "#{:>12}  {:>9}  {:>6}{}",
            "size",
            "type",
            "redop",
            self.columns("p50", "p99", "own/it") + &format!("  {:>8}  {:>6}", "own/best", "wrong")
        ));
        lines
    }

    fn columns(&self, p50: &str, p99: &str, ratio: &str) -> String {
        let names = self.contenders.present.iter().map(|(name, _)| {
            let last = if name == "own" { String::new() } else { format!("  {ratio:>6}") };
            format!("  {:>width$}  {p99:>9}{last}", format!("{name} {p50}"), width = width(name))
        });
        names.collect()
    }

    /// Formats a line of the result as text.
    pub fn text(&self, line: &Line) -> String {
        let Line { case, cells, .. } = line;
        let redop = case.redop.map_or("none", ReduceOp::name);
        let mut text = format!("{:>13}  {:>9}  {redop:>6}", case.size_bytes(), case.dtype.name());
        let number = |value: Option<f64>| value.map_or("N/A".to_owned(), |value| format!("{value:.2}"));
        for cell in cells {
            text += &format!("  {:>width$}  {:>9}", number(cell.p50_us), number(cell.p99_us), width = width(&cell.contender));
            if cell.contender != "own" {
                let ratio = line.p50_us("own").zip(cell.p50_us).map(|(own, other)| own / other);
                text += &format!("  {:>6}", number(ratio));
            }
        }
        let wrong: Option<u64> = cells.iter().map(|cell| cell.wrong).sum();
        text + &format!("  {:>8}  {:>6}", number(line.ratio_to_best()), wrong.map_or("N/A".to_owned(), |wrong| wrong.to_string()))
    }

    /// Returns the footer: the lines to print after the last result.
    pub fn footer(&self) -> Vec<String> {
        let wrong = self.wrong();
        let verdict = match () {
            () if !self.config.check => "UNCHECKED",
            () if wrong > 0 => "FAILED",
            () => "OK",
        };
        vec![format!("# Wrong values : {wrong} {verdict}")]
    }

    /// Returns the result as a JSON document. `times` are the start time and the end time, as text.
    pub fn document(&self, machine: &Machine, times: [&str; 2]) -> Value {
        let named = |list: &[(String, String)], what: &str| -> Vec<Value> {
            list.iter().map(|(name, text)| json!({ "name": name, what: text })).collect()
        };
        let command: Vec<String> = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
        json!({
            "version": VERSION,
            "args": command,
            "start_time": times[0],
            "end_time": times[1],
            "peerweave_version": env!("CARGO_PKG_VERSION"),
            "debug_assertions": cfg!(debug_assertions),
            "operation": self.config.op.name(),
            "n_pes": self.config.n_pes,
            "calls": self.config.calls_name(),
            "batches": self.config.batches,
            "compute": self.compute(),
            "arch": self.contenders.arch,
            "machine": machine,
            "contenders": named(&self.contenders.present, "version"),
            "not_measured": named(&self.contenders.absent, "why"),
            "wrong": self.wrong(),
            "checked": self.config.check,
            "results": self.lines.iter().map(|line| json!({
                "size": line.case.size_bytes(),
                "count": line.case.counts.param,
                "type": line.case.dtype.name(),
                "redop": line.case.redop.map_or("none", ReduceOp::name),
                "root": line.case.root,
                "own_to_best": line.ratio_to_best(),
                "cells": line.cells.iter().map(|cell| json!({
                    "contender": cell.contender,
                    "p50_us": cell.p50_us,
                    "p99_us": cell.p99_us,
                    "bus_bw": cell.bus_bw,
                    "times_us": cell.batch_us,
                    "iterations": cell.iters,
                    "wrong": cell.wrong,
                })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
        })
    }

    /// Returns the plot as SVG: time and bus bandwidth against size. Each contender (measured
    /// library) has a line, or a line for each element type and reduction. If `limit` is given, a
    /// further line marks this bus bandwidth, the limit of the hardware in GB/s.
    ///
    /// # Errors
    /// [`PlotError`] if there are fewer than two sizes, or if the drawing library fails.
    pub fn svg(&self, subtitle: &str, limit: Option<f64>) -> Result<String, PlotError> {
        let types = self.config.dtypes.len() * self.config.redops.len().max(1) * self.config.roots.len().max(1);
        let mut all: Vec<Series> = Vec::new();
        for line in &self.lines {
            let size = line.case.size_bytes() as f64;
            for cell in &line.cells {
                let Some(p50_us) = cell.p50_us else { continue };
                let name = match types {
                    1 => cell.contender.clone(),
                    _ => format!("{}, {} {}", cell.contender, line.case.dtype.name(), line.case.redop.map_or("", ReduceOp::name)),
                };
                plot::add(&mut all, &name, (size, cell.bus_bw, p50_us));
            }
            if let Some(limit) = limit {
                let Case { counts, dtype, .. } = line.case;
                let (_, in_a_second) = self.config.op.bandwidth(counts, dtype.size_bytes(), 1.0, self.config.n_pes);
                plot::add(&mut all, &format!("limit, {limit} GB/s"), (size, limit, in_a_second / limit * 1e6));
            }
        }
        let (n_pes, plural) = (self.config.n_pes, if self.config.n_pes == 1 { "" } else { "s" });
        plot::drawn(&all, &format!("{}, {n_pes} PE{plural}, {}", self.config.op.name(), self.config.calls_name()), subtitle)
    }
}

/// Returns the width, in characters, of the table column that contains the median times of
/// `contender`.
fn width(contender: &str) -> usize {
    (contender.len() + 4).max(10)
}

/// Returns a percentile of the values, by the nearest-rank method; `None` without values.
pub fn percentile(values: &[f64], percent: usize) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Reads the records of the PEs. Prints each line of the result table as soon as the line is
/// complete.
pub(super) struct Reporter {
    pub(super) rendezvous: JobRendezvous,
    pub(super) comparison: Comparison,
    /// Whether to print each line of the table as soon as the PEs have measured it. `false` if
    /// PyTorch is a contender: PyTorch runs after the PEs have ended, and only then are the lines
    /// complete.
    pub(super) is_printed: bool,
}

impl Observer for Reporter {
    fn line(&mut self, pe: usize, source: Source, line: &[u8], output: &mut Output) {
        let record = match source {
            Source::Stdout => serde_json::from_slice::<Record>(line).ok(),
            Source::Stderr => None,
        };
        let Some(record) = record else {
            output.line(Target::Stderr, format!("[{pe}] ").as_bytes(), line);
            return;
        };
        let news = self.comparison.take(record);
        let lines = match news {
            News::Nothing => Vec::new(),
            News::Header => self.comparison.header(),
            News::Line(line) => {
                let notes = self.comparison.notes(line.row).map(|note| format!("# {note}"));
                notes.chain([self.comparison.text(&line)]).collect()
            }
        };
        for line in lines.iter().filter(|_| self.is_printed) {
            output.line(Target::Stdout, b"", line.as_bytes());
        }
    }

    fn failed(&mut self, pe: usize, why: &str) -> Option<usize> {
        self.rendezvous.report_lost(pe, why)
    }

    fn name(&self) -> &'static str {
        "peerweave bench"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::testing::{config, ready};
    use peerweave_bench::workload::args::Contender;
    use peerweave_bench::workload::op::BenchOp;

    fn comparison() -> Comparison {
        let mut config = config(BenchOp::AllReduce, 2, &[1024, 1 << 20]);
        config.compare = vec![Contender::Own(None), Contender::Nccl, Contender::Nvshmem];
        let mut comparison = Comparison::new(&config);
        assert_eq!(comparison.take(ready(0)), News::Nothing);
        let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let present = vec![pair("own", "peerweave 0"), pair("nccl", "NCCL 2.28.9")];
        let absent = vec![pair("nvshmem", "libnvshmem_host.so.3 was not found")];
        assert_eq!(comparison.take(Record::Contenders(Contenders { present, absent, arch: "sm_90".to_owned() })), News::Header);
        comparison
    }

    fn compared(pe: usize, row: usize, contender: &str, batch_us: &[f64], wrong: u64) -> Record {
        let (contender, batch_us) = (contender.to_owned(), batch_us.to_vec());
        Record::Compared(Compared { pe, row, contender, iters: 20, batch_us, wrong: Some(wrong) })
    }

    fn filled() -> (Comparison, Line) {
        let mut comparison = comparison();
        for row in 0..2 {
            comparison.take(compared(0, row, "own", &[2.0, 2.0, 8.0], 0));
            comparison.take(compared(1, row, "own", &[1.0, 3.0, 1.0], 1));
            comparison.take(compared(0, row, "nccl", &[6.0, 6.0, 6.0], 0));
            let News::Line(_) = comparison.take(compared(1, row, "nccl", &[5.0, 7.0, 5.0], 0)) else { panic!() };
        }
        let line = comparison.lines()[0].clone();
        (comparison, line)
    }

    #[test]
    fn line_shows_the_times_of_the_slowest_pe() {
        let (comparison, line) = filled();
        assert_eq!(line.cells[0].batch_us, [2.0, 3.0, 8.0]);
        assert_eq!((line.cells[0].p50_us, line.cells[0].p99_us, line.cells[0].wrong), (Some(3.0), Some(8.0), Some(1)));
        assert_eq!((line.cells[1].p50_us, line.ratio_to_best()), (Some(6.0), Some(0.5)));
        assert_eq!(
            comparison.text(&line),
            "         1024      float     sum        3.00       8.00        6.00       7.00    0.50      0.50       1"
        );
        assert_eq!(comparison.footer(), ["# Wrong values : 2 FAILED"]);
        let header = comparison.header();
        assert!(header.contains(&"# nvshmem is not measured: libnvshmem_host.so.3 was not found".to_owned()), "{header:?}");
        assert_eq!(header.last().unwrap().len(), comparison.text(&line).len(), "columns are aligned: {header:?}");
    }

    #[test]
    fn unsupported_call_has_no_time_or_ratio_in_the_comparison() {
        let mut comparison = comparison();
        for pe in 0..2 {
            comparison.take(compared(pe, 0, "own", &[2.0], 0));
        }
        comparison.take(compared(0, 0, "nccl", &[], 0));
        let News::Line(line) = comparison.take(compared(1, 0, "nccl", &[], 0)) else { panic!() };
        assert_eq!((line.cells[1].p50_us, line.ratio_to_best()), (None, None));
        assert!(comparison.text(&line).contains("N/A"), "{}", comparison.text(&line));
    }

    #[test]
    fn torch_times_fill_one_column_of_the_comparison_table() {
        let (mut comparison, _) = filled();
        let one =
            |pe, row, us: f64| Compared { pe, row, contender: "torch".into(), iters: 1, batch_us: vec![us], wrong: Some(0) };
        let contenders =
            Contenders { present: vec![("torch".into(), "PyTorch 2".into())], absent: Vec::new(), arch: String::new() };
        comparison.add(contenders, &[one(0, 1, 1.0), one(1, 1, 2.0)]);
        let [first, second] = comparison.lines() else { panic!() };
        assert_eq!((first.cells[2].p50_us, second.cells[2].p50_us), (None, Some(2.0)));
        assert_eq!((first.ratio_to_best(), second.ratio_to_best()), (Some(0.5), Some(1.5)));
        assert_eq!(comparison.header().last().unwrap().len(), comparison.text(second).len());
    }

    #[test]
    fn comparison_json_and_plot_contain_every_compared_library() {
        let (comparison, _) = filled();
        let document = comparison.document(&Machine::look(), ["a", "b"]);
        assert_eq!(document["results"][1]["cells"][1]["p50_us"], 6.0);
        assert_eq!(document["results"][1]["own_to_best"], 0.5);
        assert_eq!(document["not_measured"][0]["name"], "nvshmem");
        assert_eq!((&document["wrong"], &document["contenders"][1]["version"]), (&json!(2), &json!("NCCL 2.28.9")));
        let text = comparison.svg("a machine", Some(450.0)).unwrap();
        for word in ["own", "nccl", "limit, 450 GB/s", "a machine", "bus bandwidth (GB/s)", "time per call"] {
            assert!(text.contains(word), "{word}");
        }
    }

    #[test]
    fn percentile_uses_the_nearest_rank_method() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!((percentile(&values, 99), percentile(&values, 50)), (Some(198.0), Some(100.0)));
        assert_eq!((percentile(&[4.0, 2.0], 99), percentile(&[], 99)), (Some(4.0), None));
    }
}
