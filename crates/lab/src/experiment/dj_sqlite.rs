//! What one small update of SQLite costs a telephone's flash: the reason for Delta Journaling, and
//! no figure of its paper. Beside it stet, with its log on the card and in the NVRAM.

use anyhow::Result;
use stetfs_media::Cause;

use super::dj::{nvram_log_bytes, telephone_for_stet};
use super::ground::Ground;
use super::never_worse::NeverWorse;
use super::report::{Chart, Report, Said, Series, Table};
use super::{Experiment, Setting};
use crate::system::{
    DJ_JOURNAL, DJ_ORDERED, EXT4_JOURNAL, EXT4_ORDERED, Measured, STET, STET_BESIDE, System,
};
use crate::workload::sqlite::JournalMode;
use crate::workload::{Durable, Updates};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "dj-sqlite",
    title: "bytes written to the card for one update of 100 bytes in SQLite: Delta Journaling and \
        ext4",
    paper: "Kim, Min, Eom, IEEE Trans. Consumer Electronics 60(2), 2014, no figure of it",
    scale: 1.0,
    has_real_time: false,
    run,
};

const SYSTEMS: [System; 6] = [
    EXT4_JOURNAL,
    DJ_JOURNAL,
    EXT4_ORDERED,
    DJ_ORDERED,
    STET,
    STET_BESIDE,
];
/// SQLite's ways with a rollback journal, and its other one.
const MODES: [JournalMode; 3] = [JournalMode::Delete, JournalMode::Truncate, JournalMode::Wal];
const ROWS: u64 = 10_000;
const UPDATES: u64 = 5_000;
const VOLUME: u64 = 1 << 30;
/// Of what ext4 writes in journal mode, what is aimed at.
const AIM: f64 = 0.2;

fn run(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&EXPERIMENT, setting);
    // The device and the table have one size; only the updates are scaled.
    let full = Setting {
        scale: 1.0,
        ..*setting
    };
    let updates = setting.scaled(UPDATES, 1)?;
    report.setup.push((
        "workload",
        format!(
            "a table of {ROWS} rows with 100 bytes each; {updates} times a row by chance gets new \
                ones, each a transaction, synchronous=FULL; until \
             everything is home, checkpoints included"
        ),
    ));
    let ground = Ground::new(&full, &telephone_for_stet(VOLUME))?;
    ground.describe(setting, &mut report);
    let medium = ground.media(setting)[0];
    let mut table = Table::new(
        "bytes for an update: to the card (journal, home), to the NVRAM",
        std::iter::once("journal mode").chain(SYSTEMS.map(|system| system.name)),
    );
    let mut bars = Vec::new();
    let mut compared = NeverWorse::on(medium);
    for mode in MODES {
        let work = Updates {
            mode,
            rows: ROWS,
            updates,
            seed: setting.seed,
        };
        let one = |system| ground.measure(setting, (system, medium), &work, Durable::EXT3);
        let runs: Vec<Measured> = SYSTEMS.into_iter().map(one).collect::<Result<_>>()?;
        let each = |bytes: u64| bytes as f64 / updates as f64;
        table.row(
            mode.name(),
            runs.iter().map(|run| {
                let of = |causes: [Cause; 2]| -> u64 {
                    let bytes = causes.map(|cause| run.device.by_cause(cause).write_bytes);
                    bytes.iter().sum()
                };
                format!(
                    "{:.0} ({:.0}, {:.0}), {:.0}",
                    each(run.written()),
                    each(of([Cause::Log, Cause::CommitRecord])),
                    each(of([Cause::Checkpoint, Cause::Home])),
                    each(nvram_log_bytes(run))
                )
            }),
        );
        let of_ext4 = runs[1].written() as f64 / runs[0].written() as f64;
        if mode != JournalMode::Wal {
            report
                .compare(
                    format!(
                        "SQLite in {} mode: what DJ writes, of ext4's, both in journal mode",
                        mode.name()
                    ),
                    Said::at_most("no figure; this project's aim: a fifth", AIM),
                    of_ext4,
                    format!("{of_ext4:.3}"),
                )
                .because("not known");
        }
        let [ext4, ordered, stet] = [0, 2, 4].map(|at| runs[at].written() as f64);
        let of_best = stet / ext4.min(ordered);
        report
            .compare(
                format!(
                    "SQLite in {} mode: what stet writes, of the least that ext4 does",
                    mode.name()
                ),
                Said::at_most("our aim: 1.00", 1.0),
                of_best,
                format!("{of_best:.3}"),
            )
            .because("not known");
        let (beside, others) = runs.split_last().expect("systems");
        compared.add(mode.name(), beside, &others.iter().collect::<Vec<_>>());
        bars.push(
            runs.iter()
                .map(|run| each(run.written()))
                .collect::<Vec<_>>(),
        );
        report.runs.extend(runs);
    }
    report.tables.push(table);
    compared.report("not known", &mut report);
    report.charts.push(Chart {
        name: EXPERIMENT.id.to_owned(),
        title: "Written to the card for one update in SQLite".to_owned(),
        unit: "bytes".to_owned(),
        groups: MODES.map(|mode| mode.name().to_owned()).into(),
        series: SYSTEMS
            .iter()
            .enumerate()
            .map(|(at, system)| Series {
                name: system.name.to_owned(),
                values: bars.iter().map(|of| Some(of[at])).collect(),
            })
            .collect(),
        lines: Vec::new(),
    });
    Ok(report)
}
