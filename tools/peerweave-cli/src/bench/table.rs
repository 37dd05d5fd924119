//! Formats the table with the columns of nccl-tests, so that parsers of nccl-tests can read the
//! table.
//!
//! Invariant: every line has 13 fields; a field that an operation does not have is `N/A`.

use peerweave_types::ReduceOp;

use super::report::{Cell, Collector, Row};
use peerweave_bench::workload::args::BenchArgs;
use peerweave_bench::workload::config::Config;
use peerweave_bench::workload::record::Ready;

/// Returns the lines of the header.
pub fn header(config: &Config, args: &BenchArgs, ready: &[Ready], host: &str) -> Vec<String> {
    let (step, unit) = match args.step_bytes {
        Some(bytes) => (bytes, "bytes"),
        None => (args.step_factor as usize, "factor"),
    };
    let (first, last) = (config.sizes.first().unwrap_or(&0), config.sizes.last().unwrap_or(&0));
    let mut lines = vec![
        format!(
            "# peerweave version {} backend={}",
            env!("CARGO_PKG_VERSION"),
            ready.first().map_or("?", |ready| &ready.backend)
        ),
        format!("# Collective test starting: {}", config.op.name()),
        format!(
            "# nPEs {} ({}) minBytes {first} maxBytes {last} step: {step}({unit}) warmup iters: {} iters: {} batches: {} validation: {}",
            config.n_pes,
            if config.threads { "threads" } else { "processes" },
            config.warmup,
            config.iters.map_or("auto".to_owned(), |iters| iters.to_string()),
            config.batches,
            u8::from(config.check),
        ),
        format!(
            "# buffers: {} calls: {} {}",
            config.buffers_name(),
            config.calls_name(),
            if config.dirty { "inputs: rewritten before each call" } else { "inputs: the same in every call" },
        ),
        "#".to_owned(),
        "# Using PEs".to_owned(),
    ];
    for Ready { pe, pid, compute, .. } in ready {
        lines
            .push(format!("#  Rank {pe:>2} Group  0 Pid {pid:>6} on {host:>10} device {pe:>2} [{}] {compute}", ready[0].backend));
    }
    lines.push("#".to_owned());
    lines.push(format!(
        "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}           out-of-place                       in-place          ",
        "", "", "", "", ""
    ));
    let columns = |five: [&str; 5], four: [&str; 4]| {
        let [size, count, dtype, redop, root] = five;
        let [time, alg, bus, wrong] = four;
        let cell = format!("{time:>7}  {alg:>6}  {bus:>6}  {wrong:>6}");
        format!("# {size:>10}  {count:>12}  {dtype:>8}  {redop:>6}  {root:>6}  {cell}  {cell}")
    };
    lines.push(columns(["size", "count", "type", "redop", "root"], ["time", "algbw", "busbw", "#wrong"]));
    lines.push(columns(["(B)", "(elements)", "", "", ""], ["(us)", "(GB/s)", "(GB/s)", ""]));
    lines
}

/// Formats one line of the table.
pub fn line(row: &Row) -> String {
    let case = &row.case;
    let redop = case.redop.map_or("none", ReduceOp::name);
    let root = case.root.map_or("-1".to_owned(), |root| root.to_string());
    let head = format!("{:>12}  {:>12}  {:>8}  {redop:>6}  {root:>6}", case.size_bytes(), case.counts.param, case.dtype.name());
    head + &cell(Some(&row.out_of_place)) + &cell(row.in_place.as_ref())
}

fn cell(cell: Option<&Cell>) -> String {
    match cell {
        Some(cell) => {
            let wrong = cell.wrong.map_or("N/A".to_owned(), |wrong| six_digits(wrong as f64));
            let (time, alg, bus) = (fitted(cell.time_us, 7), fitted(cell.alg_bw, 6), fitted(cell.bus_bw, 6));
            format!("  {time:>7}  {alg:>6}  {bus:>6}  {wrong:>6}")
        }
        None => format!("  {0:>7}  {0:>6}  {0:>6}  {0:>6}", "N/A"),
    }
}

/// Returns the lines of the footer.
pub fn footer(collector: &Collector, config: &Config) -> Vec<String> {
    let wrong = collector.wrong();
    let verdict = match () {
        () if !config.check => "UNCHECKED",
        () if wrong > 0 => "FAILED",
        () => "OK",
    };
    vec![
        format!("# {:<20} : {wrong} {verdict}", "Out of bounds values"),
        format!("# {:<20} : {} ", "Avg bus bandwidth", six_digits(collector.average_bus_bw())),
        "#".to_owned(),
        format!("# Collective test concluded: {}", config.op.name()),
    ]
}

/// Formats a number with at most `width` characters: with two decimals, or with fewer decimals if
/// two do not fit. If the integer part does not fit, uses an exponent.
fn fitted(value: f64, width: usize) -> String {
    for digits in [2, 1, 0] {
        let text = format!("{value:.digits$}");
        if text.len() <= width {
            return text;
        }
    }
    exponential(value, if width >= 7 { 1 } else { 0 })
}

/// Formats a number as C's `%e` does: with at least two digits of exponent.
fn exponential(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let exponent: i32 = exponent.parse().unwrap_or(0);
            format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        None => text,
    }
}

/// Formats a number as C's `%g` does: with six significant digits and no trailing zeros.
fn six_digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    // Rounds to six digits first, since that can change the exponent.
    let rounded = exponential(value, 5);
    let exponent: i32 = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let strip = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..6).contains(&exponent) {
        strip(&format!("{value:.*}", (5 - exponent) as usize))
    } else {
        let (mantissa, exponent) = rounded.split_once('e').unwrap_or((&rounded, "+00"));
        format!("{}e{exponent}", strip(mantissa))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::News;
    use crate::bench::report::testing::*;
    use peerweave_bench::workload::geometry::Placement;
    use peerweave_bench::workload::op::BenchOp;

    fn row(op: BenchOp, bytes: usize, out_of_place: f64, in_place: f64) -> Row {
        let mut collector = Collector::new(config(op, 1, &[bytes]));
        if let News::Row(row) = collector.take(measured(0, 0, Placement::OutOfPlace, &[out_of_place], 0)) {
            return row;
        }
        match collector.take(measured(0, 0, Placement::InPlace, &[in_place], 0)) {
            News::Row(row) => row,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn table_line_has_the_columns_of_nccl_tests() {
        let line = line(&row(BenchOp::AllReduce, 1_048_576, 52.345, 1234.5));
        // Column widths and precision of nccl-tests: 12, 12, 8, 6, 6, then twice 7, 6, 6, 6, with
        // two blanks between columns.
        assert_eq!(
            line,
            "     1048576        262144     float     sum      -1    52.34   20.03    0.00       0  1234.50    0.85    0.00       0"
        );
        assert_eq!(line.split_ascii_whitespace().count(), 13);
    }

    #[test]
    fn missing_fields_are_printed_as_n_a() {
        let line = line(&row(BenchOp::SendRecv, 8, 0.254, 0.0));
        assert_eq!(
            line,
            "           8             2     float    none      -1     0.25    0.03    0.03       0      N/A     N/A     N/A     N/A"
        );
    }

    #[test]
    fn table_header_is_aligned_with_the_columns() {
        use clap::Parser;
        #[derive(Parser)]
        struct Wrapper {
            #[command(flatten)]
            bench: BenchArgs,
        }
        let args = Wrapper::parse_from(["bench", "all-reduce", "-n", "2"]).bench;
        let ready = [ready(0), ready(1)].map(|record| match record {
            peerweave_bench::workload::record::Record::Ready(ready) => ready,
            other => panic!("{other:?}"),
        });
        let lines = header(&config(BenchOp::AllReduce, 2, &[8]), &args, &ready, "machine");
        assert_eq!(lines[6], "#  Rank  0 Group  0 Pid    100 on    machine device  0 [host] CPU, avx2");
        let names = &lines[lines.len() - 2];
        let figures = line(&row(BenchOp::AllReduce, 1 << 20, 52.3, 1234.5));
        assert_eq!(names.len(), figures.len());
        for (name, figure) in [("size", "1048576"), ("count", "262144"), ("redop", "sum"), ("root", "-1"), ("algbw", "20.05")] {
            let end = |line: &str, text: &str| line.find(text).unwrap() + text.len();
            assert_eq!(end(names, name), end(&figures, figure), "{name}");
        }
        assert!(lines.iter().all(|line| line.starts_with('#')));
    }

    #[test]
    fn numbers_are_formatted_to_fit_the_table_columns() {
        assert_eq!(fitted(0.0, 7), "0.00");
        assert_eq!(fitted(1234.567, 7), "1234.57");
        assert_eq!(fitted(12345.67, 7), "12345.7");
        assert_eq!(fitted(1234567.8, 7), "1234568");
        assert_eq!(fitted(12345678.9, 7), "1.2e+07");
        assert_eq!(fitted(12345678.9, 6), "1e+07");
        assert_eq!(fitted(99999.99, 6), "100000");
    }

    #[test]
    fn six_digit_format_matches_printf_of_c() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (12.5, "12.5"),
            (36.123456789, "36.1235"),
            (123456.0, "123456"),
            (999999.5, "1e+06"),
            (1234567.0, "1.23457e+06"),
            (0.0001, "0.0001"),
            (0.00001234, "1.234e-05"),
        ] {
            assert_eq!(six_digits(value), text);
        }
    }

    #[test]
    fn footer_marks_wrong_and_unchecked_results_differently() {
        let mut config = config(BenchOp::Put, 1, &[8]);
        let mut collector = Collector::new(config.clone());
        collector.take(measured(0, 0, Placement::OutOfPlace, &[1.0], 0));
        assert_eq!(footer(&collector, &config)[0], "# Out of bounds values : 0 OK");
        assert_eq!(footer(&collector, &config)[1], "# Avg bus bandwidth    : 0.008 ");
        let mut collector = Collector::new(config.clone());
        collector.take(measured(0, 0, Placement::OutOfPlace, &[1.0], 3));
        assert_eq!(footer(&collector, &config)[0], "# Out of bounds values : 3 FAILED");
        config.check = false;
        assert!(footer(&Collector::new(config.clone()), &config)[0].ends_with("UNCHECKED"));
    }
}
