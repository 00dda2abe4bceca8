//! Samples by row and column, medians, ratios, and the table that is printed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

/// All samples of a run: `rows[row][column]`.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The machine and the setting, in words.
    pub setting: BTreeMap<String, String>,
    /// Row names in the order of the first sample.
    pub order: Vec<String>,
    /// The unit of each row; more is better, except for extents.
    pub units: BTreeMap<String, String>,
    /// Samples.
    pub rows: BTreeMap<String, BTreeMap<String, Vec<f64>>>,
    /// What could not be measured, and why.
    pub failures: Vec<String>,
}

/// Returns the middle of `samples` (the mean of the two middle ones if their number is even).
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

impl Report {
    /// Makes a report without samples about this machine, with what `setting` adds.
    ///
    /// # Errors
    /// The machine does not tell its kernel or processors.
    pub fn on(setting: impl IntoIterator<Item = (&'static str, String)>) -> std::io::Result<Self> {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let processors = std::thread::available_parallelism()?;
        let machine = [
            ("kernel", kernel.trim().to_owned()),
            ("processors", processors.to_string()),
        ];
        let setting = setting.into_iter().chain(machine);
        Ok(Self {
            setting: setting.map(|(name, is)| (name.to_owned(), is)).collect(),
            ..Self::default()
        })
    }

    /// Adds one sample.
    pub fn add(&mut self, row: &str, unit: &str, column: &str, value: f64) {
        if !self.order.iter().any(|r| r == row) {
            self.order.push(row.to_owned());
        }
        self.units.insert(row.to_owned(), unit.to_owned());
        self.rows
            .entry(row.to_owned())
            .or_default()
            .entry(column.to_owned())
            .or_default()
            .push(value);
    }

    /// Returns the median of a cell.
    pub fn median(&self, row: &str, column: &str) -> Option<f64> {
        median(self.rows.get(row)?.get(column)?)
    }

    /// Returns the table: one line for each row, the median of each of `columns`, then `ratios`
    /// (numerator, denominator).
    pub fn table(&self, columns: &[&str], ratios: &[(&str, &str)]) -> String {
        let mut out = String::new();
        let names = self.order.iter().map(|row| row.len());
        let first = names.max().unwrap_or(0).max(26) + 2;
        let _ = write!(out, "{:<first$}{:>9}", "workload", "unit");
        let ratios: Vec<(&str, &str, String)> = ratios
            .iter()
            .map(|&(above, below)| (above, below, format!("{above}/{below}")))
            .collect();
        let width = |name: &str| name.len().max(12) + 2;
        let names = columns.iter().copied();
        for name in names.chain(ratios.iter().map(|(.., name)| &**name)) {
            let _ = write!(out, "{name:>width$}", width = width(name));
        }
        out.push('\n');
        for row in &self.order {
            let unit = self.units.get(row).map_or("", String::as_str);
            let _ = write!(out, "{row:<first$}{unit:>9}");
            for column in columns {
                let shown = self
                    .median(row, column)
                    .map_or_else(|| "-".to_owned(), number);
                let _ = write!(out, "{shown:>width$}", width = width(column));
            }
            for (above, below, name) in &ratios {
                let ratio = match (self.median(row, above), self.median(row, below)) {
                    (Some(a), Some(b)) if b > 0.0 => format!("{:.2}x", a / b),
                    _ => "-".to_owned(),
                };
                let _ = write!(out, "{ratio:>width$}", width = width(name));
            }
            out.push('\n');
        }
        for failure in &self.failures {
            let _ = writeln!(out, "not measured: {failure}");
        }
        out
    }
}

/// Formats a figure with three or four significant digits.
fn number(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn table_has_ratios() {
        let mut report = Report::default();
        report.add("r", "op/s", "a", 10.0);
        report.add("r", "op/s", "b", 4.0);
        assert!(report.table(&["a", "b"], &[("a", "b")]).contains("2.50x"));
    }
}
