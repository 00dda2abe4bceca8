//! Figure 5 of the Spindle paper: fio, random reads and writes of 4 KiB.

use anyhow::Result;
use stetfs_media::sim::PmemTiming;

use super::ground::{Ground, Machine, time};
use super::never_worse::NeverWorse;
use super::nvm_cache::{
    DISK, a_second, fences_each, lines_each, nvm_us_each, server, written_home,
};
use super::report::{Chart, Report, Said, Series, Table, Verdict};
use super::{Experiment, Setting};
use crate::system::{
    EXT4_JOURNAL, Measured, Medium, SPINDLE, SPINDLE_2, STET_BESIDE, System, TINCA,
};
use crate::workload::{Durable, Fio};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "spindle-fig5",
    title: "Spindle against Tinca: fio, random reads and writes of 4 KiB",
    paper: "Yan, Huang, Huang, NPC 2019, Figure 5",
    scale: 1.0 / 128.0,
    has_real_time: true,
    run,
};

/// Table 1: the data set, and the cache (section 5.1).
pub(super) const MACHINE: Machine = server(40 << 30, 8 << 30, 98 << 30, PmemTiming::Nvm);
const DATA: u64 = 16 << 30;
const BLOCK: u64 = 4096;
const READS: [u8; 5] = [0, 30, 50, 70, 100];
/// The paper's gains over Tinca.
const GAINS: [f64; 2] = [1.13, 1.30];
/// The most that the paper saves in line flushes, percent.
const LINES_SAVED: f64 = 32.6;

const SYSTEMS: [System; 5] = [SPINDLE, TINCA, SPINDLE_2, EXT4_JOURNAL, STET_BESIDE];
/// Where stet stands among them, behind the others.
const STET_AT: usize = 4;

/// Why stet writes more home.
pub(super) const OLD_VERSIONS: &str = "where a block is overwritten, the version before takes room \
    in stet's log until the log's end passes it; a cache of slots has that room for other blocks";

/// Whether each write is followed by an fsync. The paper does not say; what a write costs depends
/// on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Syncs {
    Never,
    Always,
}

impl Syncs {
    fn name(self) -> &'static str {
        match self {
            Self::Never => "a commit every 5 s",
            Self::Always => "an fsync after each write",
        }
    }
}

fn run(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&EXPERIMENT, setting);
    let ground = Ground::new(setting, &MACHINE)?;
    let file_bytes = setting.scaled(DATA, BLOCK)?;
    // Twice as many as the cache has blocks, before and while it is measured.
    let operations = 2 * ground.nvm_bytes() / BLOCK;
    report.setup.push((
        "workload",
        format!(
            "a file of {} MiB; {operations} operations at random places, and as many before, so \
                that the cache is as full as it gets. The paper runs 20 \
             minutes",
            file_bytes >> 20
        ),
    ));
    ground.describe(setting, &mut report);
    for medium in ground.media(setting) {
        let mut compared = NeverWorse::on(medium);
        for syncs in [Syncs::Never, Syncs::Always] {
            let mut cells = Vec::new();
            for read_percent in READS {
                let work = Fio {
                    file_bytes,
                    block_bytes: BLOCK as u32,
                    read_percent,
                    operations,
                    fsync_every: syncs as u64,
                    seed: setting.seed,
                };
                for system in SYSTEMS {
                    let on = (system, medium);
                    cells.push(ground.measure(setting, on, &work, Durable::EXT3)?);
                }
            }
            show(&mut report, (medium, syncs), operations, &cells);
            if !medium.is_real() {
                check(&mut report, syncs, operations, &cells);
                add(&mut compared, syncs, &cells);
            }
            chart(&mut report, (medium, syncs), operations, &cells);
            report.runs.extend(cells);
        }
        if !medium.is_real() {
            compared.report(OLD_VERSIONS, &mut report);
        }
    }
    report.notes.push(
        "the paper counts flushes of lines for each write, and so does the table; a share of 100 % \
            reads has none, and there they are for each operation"
            .to_owned(),
    );
    Ok(report)
}

/// What the lines of a run are counted for.
fn writes(operations: u64, run: &Measured) -> u64 {
    match run.counts.written_bytes / BLOCK {
        0 => operations,
        writes => writes,
    }
}

fn show(
    report: &mut Report,
    (medium, syncs): (Medium, Syncs),
    operations: u64,
    cells: &[Measured],
) {
    let title = format!(
        "{}, on {} in {} time",
        syncs.name(),
        medium.name(),
        time(medium)
    );
    let head = [
        "reads, system",
        "operations/s",
        "of Tinca's",
        "lines a write",
        "fences a write",
        "NVM, us an operation",
        "blocks written home",
    ];
    let mut table = Table::new(title, head);
    for (percent, runs) in READS.iter().zip(cells.chunks(SYSTEMS.len())) {
        let tinca = a_second(operations, &runs[1]);
        for run in runs {
            let each = writes(operations, run);
            table.row(
                format!("{percent} %, {}", run.system),
                [
                    format!("{:.0}", a_second(operations, run)),
                    format!("{:.3}x", a_second(operations, run) / tinca),
                    format!("{:.1}", lines_each(each, run)),
                    format!("{:.2}", fences_each(each, run)),
                    format!("{:.2}", nvm_us_each(operations, run)),
                    written_home(run),
                ],
            );
        }
    }
    report.tables.push(table);
}

fn check(report: &mut Report, syncs: Syncs, operations: u64, cells: &[Measured]) {
    let runs = cells.chunks(SYSTEMS.len());
    for (percent, runs) in READS.iter().zip(runs.clone()) {
        let gain = a_second(operations, &runs[0]) / a_second(operations, &runs[1]);
        report
            .compare(
                format!("{percent} % reads, {}: throughput over Tinca", syncs.name()),
                Said::range(format!("{} to {}x", GAINS[0], GAINS[1]), GAINS[0], GAINS[1]),
                gain,
                format!("{gain:.3}x"),
            )
            .because(DISK);
    }
    let saved = runs.filter_map(|runs| {
        let [ours, tinca] = [0, 1].map(|n| lines_each(writes(operations, &runs[n]), &runs[n]));
        (tinca > 0.0).then(|| 100.0 * (1.0 - ours / tinca))
    });
    let saved = saved.fold(f64::NEG_INFINITY, f64::max);
    report
        .compare(
            format!("{}: line flushes saved over Tinca, at most", syncs.name()),
            Said::figure(format!("{LINES_SAVED} %"), LINES_SAVED),
            saved,
            format!("{saved:.1} %"),
        )
        .because_of(|verdict| {
            match verdict {
                Verdict::Overshot => {
                    "where each write commits, most lines are those of metadata, of which Spindle \
                        writes an inode's part instead of two whole blocks; the \
                     paper does not say when its writes commit"
                }
                _ => {
                    "a commit every 5 s has thousands of blocks of data and hardly any metadata, \
                    where alone Spindle saves"
                }
            }
            .to_owned()
        });
}

fn add(compared: &mut NeverWorse, syncs: Syncs, cells: &[Measured]) {
    for (percent, runs) in READS.iter().zip(cells.chunks(SYSTEMS.len())) {
        let others: Vec<_> = runs[..STET_AT].iter().collect();
        let what = format!("{percent} % reads, {}", syncs.name());
        compared.add(what, &runs[STET_AT], &others);
    }
}

fn chart(
    report: &mut Report,
    (medium, syncs): (Medium, Syncs),
    operations: u64,
    cells: &[Measured],
) {
    let groups: Vec<String> = READS.iter().map(|percent| format!("{percent} %")).collect();
    let series = |of: &dyn Fn(&Measured) -> f64, count: usize| {
        let systems = SYSTEMS.iter().enumerate().take(count);
        let bars = systems.map(|(n, system)| Series {
            name: system.name.to_owned(),
            values: cells
                .chunks(SYSTEMS.len())
                .map(|runs| Some(of(&runs[n])))
                .collect(),
        });
        bars.collect()
    };
    let name = match syncs {
        Syncs::Never => medium.name().replace(' ', "-"),
        Syncs::Always => format!("{}-fsync", medium.name().replace(' ', "-")),
    };
    report.charts.push(Chart {
        name: format!("spindle-fig5a-{name}"),
        title: format!(
            "fio, {}, by the share of reads, {} time",
            syncs.name(),
            time(medium)
        ),
        unit: "operations/s".to_owned(),
        groups: groups.clone(),
        series: series(&|run| a_second(operations, run), SYSTEMS.len()),
        lines: Vec::new(),
    });
    if !medium.is_real() {
        report.charts.push(Chart {
            name: format!("spindle-fig5b-{name}"),
            title: format!(
                "Cache lines flushed a write, {}, by the share of reads",
                syncs.name()
            ),
            unit: "lines".to_owned(),
            groups,
            series: series(&|run| lines_each(writes(operations, run), run), 2),
            lines: Vec::new(),
        });
    }
}
