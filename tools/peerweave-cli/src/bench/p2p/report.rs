//! Results of measurements between GPUs, and their text form.

use serde::Serialize;

/// All results.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) version: &'static str,
    /// CUDA version of the driver.
    pub(super) cuda: String,
    pub(super) gpus: Vec<Gpu>,
    /// Bytes per copy.
    pub(super) bytes: usize,
    pub(super) iters: u32,
    pub(super) rounds: u32,
    pub(super) tables: Vec<Table>,
    pub(super) everybody: Vec<Everybody>,
    pub(super) notes: Vec<String>,
    /// Number of wrong words.
    pub(super) wrong: usize,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Gpu {
    pub(super) name: String,
    pub(super) pci_address: String,
}

/// One value for each ordered pair.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Table {
    pub(super) title: String,
    pub(super) unit: &'static str,
    /// `rows[from][to]`; `None` on the diagonal.
    pub(super) rows: Vec<Vec<Option<f64>>>,
}

impl Table {
    pub(super) fn new(title: String, unit: &'static str, n: usize) -> Self {
        Self { title, unit, rows: vec![vec![None; n]; n] }
    }

    /// Returns smallest, mean and largest value.
    pub(super) fn range(&self) -> Option<(f64, f64, f64)> {
        let values: Vec<f64> = self.rows.iter().flatten().flatten().copied().collect();
        let (low, high) = values.iter().fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(*value), high.max(*value)));
        (!values.is_empty()).then(|| (low, values.iter().sum::<f64>() / values.len() as f64, high))
    }
}

/// Bandwidth of every GPU to the next one, all at once.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Everybody {
    pub(super) method: &'static str,
    /// One value for each GPU.
    pub(super) gb_per_s: Vec<f64>,
}

impl Report {
    /// Formats the results as text.
    pub(super) fn text(&self) -> String {
        let mut out = format!("# {}\n", super::asked(self));
        for (ordinal, gpu) in self.gpus.iter().enumerate() {
            out += &format!("#   GPU {ordinal}: {} at {}\n", gpu.name, gpu.pci_address);
        }
        for note in &self.notes {
            out += &format!("# {note}\n");
        }
        for table in &self.tables {
            out += &format!("\n{} ({})\n       ", table.title, table.unit);
            out.extend((0..table.rows.len()).map(|to| format!("{to:>9}")));
            out.push('\n');
            for (from, row) in table.rows.iter().enumerate() {
                out += &format!("{from:>7}");
                out.extend(row.iter().map(|cell| cell.map_or(format!("{:>9}", "-"), |value| format!("{value:>9.2}"))));
                out.push('\n');
            }
            if let Some((low, mean, high)) = table.range() {
                out += &format!("  least {low:.2}, mean {mean:.2}, most {high:.2}\n");
            }
        }
        if !self.everybody.is_empty() {
            out += "\nevery GPU to the next, all at once (GB/s)\n";
        }
        for everybody in &self.everybody {
            let least = everybody.gb_per_s.iter().copied().fold(f64::INFINITY, f64::min);
            out += &format!("{:>12}", everybody.method);
            out.extend(everybody.gb_per_s.iter().map(|value| format!("{value:>9.2}")));
            out += &format!("   least {least:.2}\n");
        }
        out += &format!("\n# wrong words: {}\n", self.wrong);
        out
    }
}

#[cfg(test)]
pub(super) fn example() -> Report {
    let mut table = Table::new("stores, one direction".to_owned(), "GB/s", 2);
    table.rows[0][1] = Some(350.0);
    table.rows[1][0] = Some(300.0);
    let gpu = || Gpu { name: "a GPU".to_owned(), pci_address: "0000:10:00.0".to_owned() };
    Report {
        version: "0",
        cuda: "13.0".to_owned(),
        gpus: vec![gpu(), gpu()],
        bytes: 64 << 20,
        iters: 20,
        rounds: 10,
        tables: vec![table],
        everybody: vec![Everybody { method: "stores", gb_per_s: vec![340.0, 330.0] }],
        notes: vec!["loads were not measured: a reason".to_owned()],
        wrong: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_names_units_gpus_and_missing_measurements() {
        let text = example().text();
        for part in [
            "GPU 1: a GPU at 0000:10:00.0",
            "(GB/s)",
            "loads were not measured: a reason",
            "350.00",
            "least 300.00, mean 325.00",
            "least 330.00",
            "wrong words: 0",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn empty_table_has_no_range() {
        assert_eq!(Table::new(String::new(), "us", 3).range(), None);
    }
}
