//! Draws the measurements between GPUs as heat maps, in SVG.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::{Report, Table};

/// Width and height of a heat map, in pixels.
const MAP: u32 = 430;
/// Height of the header above all heat maps, in pixels.
const HEAD: u32 = 70;

/// Returns an SVG picture with a heat map for each table of the report, in two columns.
pub(super) fn svg(report: &Report) -> Result<String, String> {
    let rows = report.tables.len().div_ceil(2).max(1) as u32;
    let size = (2 * MAP, HEAD + rows * MAP);
    let mut text = String::new();
    {
        let failed = |error: &dyn std::fmt::Display| format!("cannot draw the plot: {error}");
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(|error| failed(&error))?;
        let name = report.gpus.first().map_or("", |gpu| gpu.name.as_str());
        let title = format!("{} GPUs, {name}", report.gpus.len());
        let middle = |size: u32| centred(size, &BLACK);
        root.draw_text(&title, &middle(22), (MAP as i32, 24)).map_err(|error| failed(&error))?;
        root.draw_text(&super::asked(report), &middle(14), (MAP as i32, 52)).map_err(|error| failed(&error))?;
        for (at, table) in report.tables.iter().enumerate() {
            let corner = ((at as u32 % 2 * MAP) as i32, (HEAD + at as u32 / 2 * MAP) as i32);
            map(&root, table, corner).map_err(|error| failed(&error))?;
        }
        root.present().map_err(|error| failed(&error))?;
    }
    Ok(text)
}

fn centred<'a>(size: u32, colour: &'a RGBColor) -> TextStyle<'a> {
    TextStyle::from(("sans-serif", size).into_font()).color(colour).pos(Pos::new(HPos::Center, VPos::Center))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Failed<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

fn map<'a>(root: &Area<'a>, table: &Table, (left, top): (i32, i32)) -> Result<(), Failed<'a>> {
    let n = table.rows.len().max(1) as i32;
    let side = (MAP as i32 - 90) / n;
    let (x0, y0) = (left + 50, top + 54);
    root.draw_text(&format!("{} ({})", table.title, table.unit), &centred(16, &BLACK), (left + MAP as i32 / 2, top + 16))?;
    root.draw_text("GPU that owns the memory", &centred(12, &BLACK), (x0 + n * side / 2, top + 33))?;
    // The scale spans at least a factor of two, so that nearly equal values look alike.
    let (low, high) = table.range().map_or((0.0, 0.0), |(low, _, high)| (low.min(high / 2.0), high));
    for (from, row) in table.rows.iter().enumerate() {
        let y = y0 + from as i32 * side;
        root.draw_text(&format!("{from}"), &centred(13, &BLACK), (x0 - 14, y + side / 2))?;
        root.draw_text(&format!("{from}"), &centred(13, &BLACK), (x0 + from as i32 * side + side / 2, y0 - 9))?;
        for (to, cell) in row.iter().enumerate() {
            let x = x0 + to as i32 * side;
            let share = cell.map_or(0.0, |value| if high > low { (value - low) / (high - low) } else { 0.5 });
            let colour = cell.map_or(RGBColor(235, 235, 235), |_| shade(share));
            root.draw(&Rectangle::new([(x, y), (x + side - 2, y + side - 2)], colour.filled()))?;
            if let Some(value) = cell {
                let ink = if share > 0.55 { &WHITE } else { &BLACK };
                let digits = if *value >= 100.0 { 0 } else { 2 };
                let size = (side as u32 / 4).clamp(8, 18);
                root.draw_text(&format!("{value:.digits$}"), &centred(size, ink), (x + side / 2 - 1, y + side / 2 - 1))?;
            }
        }
    }
    Ok(())
}

/// Returns a shade of one colour: light for 0, dark for 1. The scale is readable with any colour
/// vision.
fn shade(share: f64) -> RGBColor {
    let mix = |light: f64, dark: f64| (light + (dark - light) * share.clamp(0.0, 1.0)).round() as u8;
    RGBColor(mix(222.0, 8.0), mix(235.0, 48.0), mix(247.0, 107.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_shows_every_value_and_its_unit() {
        let text = svg(&super::super::report::example()).expect("the plot is drawn");
        for part in ["350", "300", "stores, one direction (GB/s)", "2 GPUs, a GPU", "GPU that owns the memory"] {
            assert!(text.contains(part), "{part}");
        }
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn larger_values_have_darker_cells() {
        assert!(shade(0.9).0 < shade(0.1).0);
        assert_eq!(shade(2.0), shade(1.0));
    }
}
