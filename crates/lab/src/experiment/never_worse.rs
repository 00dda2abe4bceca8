//! stet beside the systems of a paper's experiment: whether it takes more than the best of them,
//! which is this project's aim for it (docs/STET.md).

use super::ground::time;
use super::report::{Report, Said, Table};
use crate::system::{Measured, Medium};

/// The cells of an experiment.
pub(super) struct NeverWorse {
    /// What stet has there, for titles.
    on: String,
    cells: Vec<Cell>,
}

/// One workload.
struct Cell {
    what: String,
    durable_ns: Share,
    home_ns: Share,
    /// Where the workload writes anything: what a mount itself writes is not compared.
    bytes: Option<Share>,
}

/// A figure of stet's, and the best of the others.
struct Share {
    stet: f64,
    best: f64,
    /// Whose it is.
    whose: &'static str,
}

impl Share {
    fn of(stet: &Measured, others: &[&Measured], figure: impl Fn(&Measured) -> f64) -> Self {
        let best = others.iter().min_by(|a, b| figure(a).total_cmp(&figure(b)));
        let best = best.expect("another system");
        Self {
            stet: figure(stet),
            best: figure(best),
            whose: best.system,
        }
    }

    /// What stet takes of the best. Nothing is all of nothing.
    fn share(&self) -> f64 {
        match self.stet == self.best {
            true => 1.0,
            false => self.stet / self.best,
        }
    }

    fn shown(&self, each: f64, digits: usize) -> String {
        format!(
            "{:.digits$} ({:.3} of {}'s)",
            self.stet / each,
            self.share(),
            self.whose
        )
    }
}

impl NeverWorse {
    /// stet on a medium.
    pub(super) fn on(medium: Medium) -> Self {
        Self {
            on: format!("on {} in {} time", medium.name(), time(medium)),
            cells: Vec::new(),
        }
    }

    /// What it took for a workload, and what the others did.
    pub(super) fn add(&mut self, what: impl Into<String>, stet: &Measured, others: &[&Measured]) {
        self.cells.push(Cell {
            what: what.into(),
            durable_ns: Share::of(stet, others, |run| run.durable_ns() as f64),
            home_ns: Share::of(stet, others, |run| run.elapsed_ns() as f64),
            bytes: (stet.counts.written_bytes > 0)
                .then(|| Share::of(stet, others, |run| run.written() as f64)),
        });
    }

    /// A table of all cells, and for time and bytes the cell in which stet takes the most; `why`,
    /// where that is more than the best.
    pub(super) fn report(self, why: &str, report: &mut Report) {
        let head = [
            "",
            "s until durable",
            "s until home",
            "MiB to the device until home",
        ];
        let mut table = Table::new(
            format!(
                "stet with memory beside the device, {}, and the best",
                self.on
            ),
            head,
        );
        for cell in &self.cells {
            table.row(
                cell.what.clone(),
                [
                    cell.durable_ns.shown(1e9, 3),
                    cell.home_ns.shown(1e9, 3),
                    cell.bytes
                        .as_ref()
                        .map_or("-".to_owned(), |bytes| bytes.shown(f64::from(1 << 20), 2)),
                ],
            );
        }
        report.tables.push(table);
        type Of = fn(&Cell) -> Option<&Share>;
        let all: [(&str, Of); 3] = [
            ("time until durable", |cell| Some(&cell.durable_ns)),
            ("time until home", |cell| Some(&cell.home_ns)),
            ("bytes to the device", |cell| cell.bytes.as_ref()),
        ];
        for (what, of) in all {
            let shares = self
                .cells
                .iter()
                .filter_map(|cell| Some((cell, of(cell)?.share())));
            let Some((worst, share)) = shares.max_by(|a, b| a.1.total_cmp(&b.1)) else {
                continue;
            };
            report
                .compare(
                    format!("{}: {what} of stet, of the best's, at most", self.on),
                    Said::at_most("our aim: 1.00", 1.0).within(0.005),
                    share,
                    format!("{share:.3}: {}", worst.what),
                )
                .because(why);
        }
    }
}
