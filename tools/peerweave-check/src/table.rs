//! Prints tables of results. The first column is left-aligned, and the other columns are
//! right-aligned.

/// A table of results: the cells of each row, as text.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table without rows. `columns` are the names of the columns.
    pub(crate) fn new(columns: &[&str]) -> Self {
        Self { rows: vec![columns.iter().map(|&column| column.to_owned()).collect()] }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints the table, or nothing if the table has no rows.
    pub(crate) fn print(&self) {
        if self.rows.len() > 1 {
            print!("{}", self.text());
        }
    }

    fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                text += &if column == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_are_aligned() {
        let mut table = Table::new(&["part", "checks"]);
        table.row(["operations".to_owned(), "7".to_owned()]);
        assert_eq!(table.text(), "part        checks\noperations       7\n");
    }
}
