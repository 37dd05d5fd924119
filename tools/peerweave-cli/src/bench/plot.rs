//! Plots bandwidth and time against size on logarithmic axes, in SVG.

use peerweave_types::ReduceOp;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::report::{Cell, Row};
use peerweave_bench::console::parse::format_size;
use peerweave_bench::workload::config::Config;

const SIZE: (u32, u32) = (900, 1000);

/// Colours that can be distinguished with any colour vision (after Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// Maximum number of lines in a plot. A plot with more lines would not be readable.
const MOST_SERIES: usize = 14;

/// The error if the plot cannot be drawn.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlotError {
    /// The measurement has fewer than two sizes.
    #[error("cannot draw a plot of one size, expected at least two sizes")]
    TooFewSizes,
    /// The drawing library failed.
    #[error("cannot draw the plot: {0}")]
    Drawing(String),
}

/// A line of the plot.
pub(super) struct Series {
    name: String,
    /// For each size: size in bytes, bus bandwidth in GB/s, time in microseconds.
    points: Vec<(f64, f64, f64)>,
}

/// Plots the lines of the table, and returns the plot as SVG. `subtitle` describes the conditions
/// of the measurement.
///
/// # Errors
/// [`PlotError`] if there are fewer than two sizes, or if the drawing library fails.
pub fn svg(rows: &[Row], config: &Config, subtitle: &str) -> Result<String, PlotError> {
    drawn(&series(rows), &title(config), subtitle)
}

/// Adds a point to the series `name`, and creates the series if it does not exist. A point is a
/// size in bytes, a bus bandwidth in GB/s and a time in microseconds.
pub(super) fn add(all: &mut Vec<Series>, name: &str, point: (f64, f64, f64)) {
    match all.iter_mut().find(|series| series.name == name) {
        Some(series) => series.points.push(point),
        None => all.push(Series { name: name.to_owned(), points: vec![point] }),
    }
}

/// Draws two panels: bus bandwidth against size, and time against size. Each panel has a line for
/// each series. Returns the picture as SVG.
///
/// # Errors
/// [`PlotError`] if there are fewer than two sizes, or if the drawing library fails.
pub(super) fn drawn(series: &[Series], title: &str, subtitle: &str) -> Result<String, PlotError> {
    let all = || series.iter().flat_map(|series| &series.points);
    let (first, last) = all().fold((f64::INFINITY, 0.0f64), |(first, last), point| (first.min(point.0), last.max(point.0)));
    if first >= last {
        return Err(PlotError::TooFewSizes);
    }
    let failed = |error: &dyn std::fmt::Display| PlotError::Drawing(error.to_string());
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|error| failed(&error))?;
        let (head, rest) = root.split_vertically(78);
        let middle = |size: u32, colour| {
            use plotters::style::text_anchor::{HPos, Pos, VPos};
            TextStyle::from(("sans-serif", size).into_font()).color(colour).pos(Pos::new(HPos::Center, VPos::Center))
        };
        let x = SIZE.0 as i32 / 2;
        let grey = RGBColor(80, 80, 80);
        head.draw_text(title, &middle(24, &BLACK), (x, 30)).map_err(|error| failed(&error))?;
        head.draw_text(subtitle, &middle(14, &grey), (x, 58)).map_err(|error| failed(&error))?;
        let (upper, lower) = rest.split_vertically((SIZE.1 as i32 - 78) / 2);
        let lines = |pick: fn(&(f64, f64, f64)) -> f64| -> Vec<(&str, Vec<(f64, f64)>)> {
            let points = |series: &Series| series.points.iter().map(|point| (point.0, pick(point))).collect();
            series.iter().map(|series| (series.name.as_str(), points(series))).collect()
        };
        panel(&upper, "bus bandwidth (GB/s)", (first, last), &lines(|point| point.1), true).map_err(|error| failed(&error))?;
        panel(&lower, "time per call (µs)", (first, last), &lines(|point| point.2), false).map_err(|error| failed(&error))?;
        root.present().map_err(|error| failed(&error))?;
    }
    Ok(text)
}

fn title(config: &Config) -> String {
    let kind = if config.threads { "PEs (threads)" } else { "PEs" };
    format!("{}, {} {kind}", config.op.name(), config.n_pes)
}

fn series(rows: &[Row]) -> Vec<Series> {
    let types = distinct(rows.iter().map(|row| row.case.dtype.name()));
    let mut series: Vec<Series> = Vec::new();
    let mut add = |row: &Row, cell: &Cell, placement: Option<&str>| {
        let case = &row.case;
        let mut words = Vec::new();
        if types > 1 || case.redop.is_none() {
            words.push(case.dtype.name().to_owned());
        } else {
            words.push(format!("{} {}", case.dtype.name(), case.redop.map_or("", ReduceOp::name)));
        }
        if types > 1
            && let Some(redop) = case.redop
        {
            words.push(redop.name().to_owned());
        }
        if let Some(root) = case.root {
            words.push(format!("root {root}"));
        }
        words.extend(placement.map(str::to_owned));
        let name = words.join(", ");
        self::add(&mut series, &name, (case.size_bytes() as f64, cell.bus_bw, cell.time_us));
    };
    let both = rows.iter().any(|row| row.in_place.is_some());
    for row in rows {
        add(row, &row.out_of_place, both.then_some("out of place"));
        if let Some(cell) = &row.in_place {
            add(row, cell, Some("in place"));
        }
    }
    series.truncate(MOST_SERIES);
    series
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.collect::<std::collections::BTreeSet<_>>().len()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawError<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// Draws one panel: a pair of axes, and a line for each series.
fn panel<'a>(
    area: &Area<'a>,
    label: &str,
    (first, last): (f64, f64),
    lines: &[(&str, Vec<(f64, f64)>)],
    legend_above: bool,
) -> Result<(), DrawError<'a>> {
    let values = || lines.iter().flat_map(|(_, points)| points).map(|point| point.1).filter(|value| *value > 0.0);
    let (low, high) = values().fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    let (low, high) = if low < high { (low, high) } else { (high.max(1e-3) / 2.0, high.max(1e-3) * 2.0) };
    let (low, high) = (below(low), above(high));
    let mut chart = ChartBuilder::on(area)
        .margin_left(16)
        .margin_right(28)
        .margin_top(8)
        .margin_bottom(10)
        .x_label_area_size(46)
        .y_label_area_size(72)
        .build_cartesian_2d(
            (first..last).log_scale().base(2.0).with_key_points(sizes_to_name(first, last)),
            (low..high).log_scale().with_key_points(values_to_name(low, high)),
        )?;
    let light = RGBColor(215, 215, 215);
    chart
        .configure_mesh()
        .x_desc("size of the larger buffer of a PE (bytes)")
        .y_desc(label)
        .axis_desc_style(("sans-serif", 15))
        .label_style(("sans-serif", 13))
        .bold_line_style(light)
        .light_line_style(TRANSPARENT)
        .axis_style(RGBColor(80, 80, 80))
        .x_labels(40)
        .y_labels(40)
        .x_label_formatter(&|size| format_size(size.round() as usize))
        .y_label_formatter(&|value| plain(*value))
        .draw()?;
    for (at, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let drawn: Vec<_> = points.iter().copied().filter(|point| point.1 > 0.0).collect();
        let line = chart.draw_series(LineSeries::new(drawn.clone(), colour.stroke_width(2)))?;
        line.label(*name).legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(2)));
        chart.draw_series(drawn.into_iter().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    if legend_above {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .margin(12)
            .background_style(WHITE.mix(0.9))
            .border_style(RGBColor(170, 170, 170))
            .label_font(("sans-serif", 14))
            .draw()?;
    }
    Ok(())
}

/// Returns the sizes to label on the axis. The sizes are powers of two between `first` and `last`.
/// There are at most about twelve.
fn sizes_to_name(first: f64, last: f64) -> Vec<f64> {
    let step = ((last / first).log2() / 12.0).ceil().max(1.0) as usize;
    let (from, to) = (first.log2().ceil() as i32, last.log2().floor() as i32);
    (from..=to).step_by(step).map(|exponent| 2f64.powi(exponent)).collect()
}

/// Returns the values between `low` and `high` to label on the axis: powers of ten, and 2 and 5
/// times these powers. If the axis spans more than three powers of ten, returns only the powers of
/// ten.
fn values_to_name(low: f64, high: f64) -> Vec<f64> {
    let (from, to) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let steps: &[f64] = if to - from > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let within = |value: &f64| *value >= low * 0.999 && *value <= high * 1.001;
    (from..=to).flat_map(|exponent| steps.iter().map(move |step| step * 10f64.powi(exponent))).filter(within).collect()
}

/// Returns the largest number that is at most `value` and is 1, 2 or 5 times a power of ten.
fn below(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [5.0, 2.0, 1.0].into_iter().map(|step| step * power).find(|step| *step <= value).unwrap_or(power)
}

/// Returns the smallest number that is at least `value` and is 1, 2 or 5 times a power of ten.
fn above(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|step| *step >= value).unwrap_or(10.0 * power)
}

fn plain(value: f64) -> String {
    match value {
        v if v >= 1.0 => format!("{v:.0}"),
        v => format!("{v}").chars().take(8).collect::<String>().trim_end_matches('0').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::Collector;
    use crate::bench::report::testing::*;
    use peerweave_bench::workload::geometry::Placement;
    use peerweave_bench::workload::op::BenchOp;

    fn rows(sizes: &[usize]) -> (Vec<Row>, Config) {
        let config = config(BenchOp::AllReduce, 2, sizes);
        let mut collector = Collector::new(config.clone());
        for row in 0..sizes.len() {
            for pe in 0..2 {
                collector.take(measured(pe, row, Placement::OutOfPlace, &[1.0 + row as f64], 0));
                collector.take(measured(pe, row, Placement::InPlace, &[0.5 + row as f64], 0));
            }
        }
        (collector.rows().to_vec(), config)
    }

    #[test]
    fn plot_contains_axis_names_units_and_line_names() {
        let (rows, config) = rows(&[8, 64, 1024, 65536, 1 << 20]);
        let text = svg(&rows, &config, "a machine").unwrap();
        for word in [
            "all-reduce, 2 PEs",
            "a machine",
            "bus bandwidth (GB/s)",
            "time per call (µs)",
            "(bytes)",
            "32K",
            "out of place",
            "in place",
        ] {
            assert!(text.contains(word), "{word}");
        }
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn single_size_cannot_be_plotted() {
        let (rows, config) = rows(&[8]);
        assert_eq!(svg(&rows, &config, "").unwrap_err(), PlotError::TooFewSizes);
    }

    #[test]
    fn axis_limits_are_1_2_or_5_times_a_power_of_ten() {
        assert_eq!((below(0.34), above(0.34)), (0.2, 0.5));
        assert_eq!((below(1.0), above(1.0)), (1.0, 1.0));
        assert_eq!((below(730.0), above(730.0)), (500.0, 1000.0));
        assert_eq!(values_to_name(0.2, 10.0), [0.2, 0.5, 1.0, 2.0, 5.0, 10.0]);
        assert_eq!(sizes_to_name(8.0, 64.0), [8.0, 16.0, 32.0, 64.0]);
        assert_eq!(sizes_to_name(8.0, 8.0 * 65536.0)[..3], [8.0, 32.0, 128.0]);
        assert_eq!([plain(0.05), plain(0.2), plain(1000.0)], ["0.05", "0.2", "1000"]);
    }
}
