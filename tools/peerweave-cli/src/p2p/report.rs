//! Results of measurements between GPUs, and the text that shows them.

use serde::Serialize;

/// Results of one run of `bench p2p`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) version: &'static str,
    /// CUDA version of the driver.
    pub(crate) cuda: String,
    pub(crate) gpus: Vec<Gpu>,
    /// Bytes per copy.
    pub(crate) bytes: usize,
    pub(crate) iters: u32,
    pub(crate) rounds: u32,
    pub(crate) tables: Vec<Table>,
    pub(crate) everybody: Vec<Everybody>,
    pub(crate) notes: Vec<String>,
    /// Number of wrong 8-byte words in all compared data.
    pub(crate) wrong: usize,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Gpu {
    pub(crate) name: String,
    pub(crate) pci_address: String,
}

/// A table with one value for each ordered pair of GPUs, such as a bandwidth.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    /// `rows[from][to]` is the value of the pair (GPU `from`, GPU `to`). `None` on the diagonal,
    /// and for pairs that were not measured.
    pub(crate) rows: Vec<Vec<Option<f64>>>,
}

impl Table {
    /// Returns the smallest value, the mean and the largest value. `None` if the table has no
    /// values.
    pub(crate) fn range(&self) -> Option<(f64, f64, f64)> {
        let values: Vec<f64> = self.rows.iter().flatten().flatten().copied().collect();
        let (low, high) = values.iter().fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(*value), high.max(*value)));
        (!values.is_empty()).then(|| (low, values.iter().sum::<f64>() / values.len() as f64, high))
    }
}

/// Bandwidths between each GPU and the next GPU, with all transfers at the same time.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Everybody {
    pub(crate) method: &'static str,
    /// Bandwidth of each transfer in GB/s. Entry `i` is the transfer between GPU `i` and the next
    /// GPU, which GPU `i` makes.
    pub(crate) gb_per_s: Vec<f64>,
}

impl Report {
    /// Formats the results as text.
    pub(crate) fn text(&self) -> String {
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
            out += "\ntransfers from every GPU to the next GPU, all at once (GB/s)\n";
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
pub(crate) fn example() -> Report {
    let mut table = Table { title: "stores, one direction".to_owned(), unit: "GB/s", rows: vec![vec![None; 2]; 2] };
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
    fn table_shows_units_gpus_and_missing_measurements() {
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
    fn table_without_any_value_has_no_minimum_mean_or_maximum() {
        let table = Table { title: String::new(), unit: "us", rows: vec![vec![None; 3]; 3] };
        assert_eq!(table.range(), None);
    }
}
