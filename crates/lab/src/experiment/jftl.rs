//! What the two figures of the JFTL paper have in common: its four configurations on its part, and
//! what their pages were programmed for; and stet beside them.
//!
//! Lim, Choi, Park, HPCC 2007, section 4.

use anyhow::{Result, ensure};
use stetfs_media::nand::{NandGeometry, NandPart};
use stetfs_media::{Cause, Class, Tag};

use super::report::{Chart, Report, Said, Series, Table};
use super::{Experiment, Setting};
use crate::system::{
    EXT3_4K, Flash, JFTL_NAND, JOURNAL, JOURNAL_REMAP, MODERN_NAND, Measured, Medium, ORDERED,
    ORDERED_REMAP, STET, System, Volume,
};
use crate::workload::{Durable, Workload};

/// What is compared, for a report.
pub(super) const CONFIGURATIONS: (&str, &str) = (
    "systems",
    "scheme=jftl with data=ordered or journal, remap=off (as scheme=jbd2) or batch; scheme=stet, \
        which remaps nothing",
);

pub(super) const SYSTEMS: [System; 5] = [ORDERED, ORDERED_REMAP, JOURNAL, JOURNAL_REMAP, STET];
// Where each stands among them.
const ORDERED_AT: usize = 0;
const ORDERED_REMAP_AT: usize = 1;
const JOURNAL_AT: usize = 2;
const JOURNAL_REMAP_AT: usize = 3;
const STET_AT: usize = 4;

/// A part, and what is put on it.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    flash: Flash,
    /// What the names of its charts begin with.
    pub(super) key: &'static str,
    /// What mke2fs makes of a device of this size.
    journal_mib: u64,
    /// Of caches, half of it dirty at most: in ordered mode data goes home when there is so much.
    /// That is what the part takes in 5 s or a little more, so that a commit every 5 s comes about
    /// although the processor's work takes no time.
    pub(super) memory_mib: u64,
}

/// What the paper puts on it.
const PAPERS: Kind = Kind {
    flash: JFTL_NAND,
    key: "",
    journal_mib: 4,
    memory_mib: 32,
};

/// A modern part, a sixteenth of it.
const MODERN: Kind = Kind {
    flash: MODERN_NAND,
    key: "16k-",
    journal_mib: 16,
    memory_mib: 96,
};

pub(super) const KINDS: [Kind; 2] = [PAPERS, MODERN];

/// A part with a volume that fills it.
pub(super) struct Ground {
    pub(super) kind: Kind,
    flash: Flash,
    volume: Volume,
}

impl Ground {
    /// One of the kind; larger where the paper's files are.
    ///
    /// # Errors
    /// Of the scale; of mke2fs.
    pub(super) fn new(setting: &Setting<'_>, kind: Kind) -> Result<Self> {
        let blocks = u64::from(kind.flash.part.geometry.blocks);
        let flash = Flash {
            part: NandPart {
                geometry: NandGeometry {
                    blocks: setting.scaled(blocks, 1)?.max(blocks) as u32,
                    ..kind.flash.part.geometry
                },
                ..kind.flash.part
            },
            ..kind.flash
        };
        let mib = flash.capacity()? >> 20;
        Ok(Self {
            kind,
            flash,
            volume: Volume::make(EXT3_4K, mib, kind.journal_mib)?,
        })
    }

    /// The part's name.
    pub(super) fn name(&self) -> &'static str {
        self.flash.name
    }

    /// Says in a report what is compared on what.
    pub(super) fn describe(&self, report: &mut Report) {
        report.measured_on(Medium::nand(self.flash));
        report.setup.push((
            "volume",
            format!(
                "ext3, {} MiB, blocks of 4 KiB, journal of {} MiB; a transaction has a quarter of \
                    it at most; caches of {} MiB",
                self.volume.mib, self.volume.journal_mib, self.kind.memory_mib
            ),
        ));
    }

    /// Runs a workload on all of them.
    ///
    /// # Errors
    /// Of the volume.
    pub(super) fn measure(
        &self,
        setting: &Setting<'_>,
        memory_mib: u64,
        work: &dyn Workload,
        durable: Durable,
    ) -> Result<Row> {
        self.measure_on(&SYSTEMS, setting, memory_mib, work, durable)
    }

    /// Runs a workload on these.
    ///
    /// # Errors
    /// Of the volume.
    pub(super) fn measure_on(
        &self,
        systems: &[System],
        setting: &Setting<'_>,
        memory_mib: u64,
        work: &dyn Workload,
        durable: Durable,
    ) -> Result<Row> {
        let medium = Medium::nand(self.flash);
        let one = |system| {
            let run = setting.measure((system, medium), &self.volume, memory_mib, work, durable)?;
            ensure!(run.counts.written_bytes > 0, "nothing was written");
            Ok(run)
        };
        let runs = systems.iter().copied().map(one);
        Ok(Row(runs.collect::<Result<Vec<_>>>()?))
    }
}

/// The table of what pages were programmed for.
pub(super) fn show_pages(report: &mut Report, title: &str, rows: &[(String, &Row)]) {
    let mut table = Table::new(
        format!(
            "{title}: pages programmed, blocks erased; pages for each page that was written, by \
                what for"
        ),
        ["", "system", "pages", "erases"].into_iter().chain(SHARES),
    );
    for (name, row) in rows {
        for run in &row.0 {
            let mut cells = vec![
                run.system.to_owned(),
                run.device.total().writes.to_string(),
                run.device.total_erases().to_string(),
            ];
            cells.extend(amplification(run).map(|share| format!("{share:.3}")));
            table.row(name, cells);
        }
    }
    report.tables.push(table);
}

/// What pages are programmed for.
const SHARES: [&str; 6] = ["all", "journal", "home", "metadata", "map", "GC"];

/// Pages programmed, for each page that callers wrote: all of them, and then by what for. Home is
/// data at home, metadata is metadata at home.
fn amplification(run: &Measured) -> [f64; SHARES.len()] {
    let device = &run.device;
    let bytes = |class, cause| device.of(Tag::new(class, cause)).write_bytes;
    let by_cause = |cause| device.by_cause(cause).write_bytes;
    let all = device.total().write_bytes;
    let log = by_cause(Cause::Log)
        + by_cause(Cause::CommitRecord)
        + bytes(Class::Journal, Cause::Control);
    let data = bytes(Class::Data, Cause::Home) + bytes(Class::Data, Cause::Checkpoint);
    let (map, gc) = (by_cause(Cause::Map), by_cause(Cause::Gc));
    let metadata = all - log - data - map - gc;
    [all, log, data, metadata, map, gc].map(|bytes| bytes as f64 / run.counts.written_bytes as f64)
}

/// The same in words.
fn in_words(run: &Measured) -> String {
    let shares = SHARES.into_iter().zip(amplification(run));
    let shares: Vec<_> = shares.map(|(name, n)| format!("{name} {n:.3}")).collect();
    format!("{}: {}", run.system, shares.join(", "))
}

/// The same workload on all of them.
pub(super) struct Row(pub(super) Vec<Measured>);

impl Row {
    pub(super) fn mib_s(&self, at: usize) -> f64 {
        self.0[at].write_mib_s()
    }
}

/// Bandwidth as a table and as a chart.
pub(super) fn show_bandwidth(
    report: &mut Report,
    experiment: &Experiment,
    (file, title): (&str, &str),
    rows: &[(String, Row)],
) {
    let names = SYSTEMS.map(|s| s.name);
    let title = format!("{title}, MiB/s in virtual time");
    let mut table = Table::new(&title, std::iter::once("").chain(names));
    for (name, row) in rows {
        let cells = (0..SYSTEMS.len()).map(|at| format!("{:.3}", row.mib_s(at)));
        table.row(name, cells);
    }
    report.tables.push(table);
    let series = |at: usize| Series {
        name: names[at].to_owned(),
        values: rows.iter().map(|(_, row)| Some(row.mib_s(at))).collect(),
    };
    report.charts.push(Chart {
        name: format!("{}-{file}", experiment.id),
        title,
        unit: "MiB/s".to_owned(),
        groups: rows.iter().map(|(name, _)| name.clone()).collect(),
        series: (0..SYSTEMS.len()).map(series).collect(),
        lines: Vec::new(),
    });
}

/// The paper's claims, each where it holds least. Where it does not hold, it is said what the pages
/// were programmed for.
pub(super) fn check(report: &mut Report, what: &str, rows: &[(String, Row)]) {
    let mut check = |a: usize, b: usize, claim: &str, said: Said, reason: &str| {
        let ratio = |row: &Row| row.mib_s(a) / row.mib_s(b);
        let least = rows
            .iter()
            .min_by(|x, y| ratio(&x.1).total_cmp(&ratio(&y.1)));
        let (name, row) = least.expect("a row");
        report
            .compare(
                format!("{what}: {} {claim} {}", SYSTEMS[a].name, SYSTEMS[b].name),
                said,
                ratio(row),
                format!("{:.4} at least ({name})", ratio(row)),
            )
            .because_of(|_| {
                let [a, b] = [a, b].map(|at| in_words(&row.0[at]));
                format!("{reason}. Pages programmed for each that was written ({name}): {a}; {b}")
            });
    };
    let records = "with small requests descriptors, commit records and metadata are most of what \
        either programs, and the second copy of the data little";
    check(
        ORDERED_AT,
        JOURNAL_AT,
        "has at least twice the bandwidth of",
        Said::at_least("at least half is lost", 2.0),
        records,
    );
    check(
        JOURNAL_REMAP_AT,
        JOURNAL_AT,
        "outperforms",
        Said::at_least("greatly (taken for half as much again)", 1.5),
        records,
    );
    check(
        JOURNAL_REMAP_AT,
        ORDERED_AT,
        "is as fast as",
        Said::figure("similar", 1.0).within(0.15),
        "not known",
    );
    check(
        ORDERED_REMAP_AT,
        ORDERED_AT,
        "outperforms",
        // Equal is not above.
        Said::at_least("slightly (any gain)", 1.0 + f64::EPSILON),
        "what it saves of metadata is no more than the layer's map and the log's tail cost",
    );
    check(
        STET_AT,
        JOURNAL_REMAP_AT,
        "is as fast as",
        Said::at_least("our aim: at least as fast", 1.0).within(0.005),
        "metadata goes home by copies, which a layer that remaps need not make",
    );
}
