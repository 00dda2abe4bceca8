//! Figure 10 of the Delta Journaling paper: PostMark, by the number of transactions.
//!
//! Files are few and small, so device and NVRAM have the paper's sizes at every scale; only the
//! transactions are scaled. The processor's work takes no virtual time: a commit comes when the
//! transaction is full, and not every 5 s.

use anyhow::Result;
use stetfs_media::{Cause, Class, Tag};

use super::dj::{journal_blocks, telephone_for_stet};
use super::ground::{Ground, time};
use super::never_worse::NeverWorse;
use super::report::{Chart, Report, Said, Series, Table};
use super::{Experiment, Setting};
use crate::system::{
    DJ_JOURNAL, DJ_ORDERED, EXT4_JOURNAL, EXT4_ORDERED, Measured, Medium, STET_BESIDE, System,
};
use crate::workload::{Durable, Postmark};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "dj-fig10",
    title: "Delta Journaling and ext4 with PostMark: 1,000 files of 2 KB, 100 to 500 K \
        transactions",
    paper: "Kim, Min, Eom, IEEE Trans. Consumer Electronics 60(2), 2014, Figure 10",
    scale: 0.2,
    has_real_time: true,
    run,
};

const SYSTEMS: [System; 5] = [
    EXT4_ORDERED,
    DJ_ORDERED,
    EXT4_JOURNAL,
    DJ_JOURNAL,
    STET_BESIDE,
];
/// Where stet stands among them, behind the others.
const STET_AT: usize = 4;
/// The modes: where ext4 and DJ stand, and the paper's gain.
const MODES: [(&str, usize, usize, f64); 2] = [("ordered", 0, 1, 12.1), ("journal", 2, 3, 27.5)];
const TRANSACTIONS: [u64; 5] = [100_000, 200_000, 300_000, 400_000, 500_000];
const FILES: u32 = 1000;
/// Of 2 KB on average.
const SIZES: (u64, u64) = (512, 3584);
const VOLUME: u64 = 512 << 20;

/// So many transactions on each system.
struct Row {
    transactions: u64,
    runs: Vec<Measured>,
}

impl Row {
    /// Percent by which DJ is faster.
    fn gain(&self, (ext4, dj): (usize, usize), of: impl Fn(&Measured) -> u64) -> f64 {
        100.0 * (of(&self.runs[ext4]) as f64 / of(&self.runs[dj]) as f64 - 1.0)
    }
}

fn run(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&EXPERIMENT, setting);
    let full = Setting {
        scale: 1.0,
        ..*setting
    };
    let ground = Ground::new(&full, &telephone_for_stet(VOLUME))?;
    report.setup.push((
        "workload",
        format!(
            "PostMark, {FILES} files of {} to {} bytes, {} times the paper's transactions, biases \
                5 and 5, buffered; the files are made, and \
             removed at the end, in the same time",
            SIZES.0, SIZES.1, setting.scale
        ),
    ));
    ground.describe(setting, &mut report);
    for medium in ground.media(setting) {
        // One point is enough where the machine's noise is larger than what lies between them.
        let points = if medium.is_real() {
            1
        } else {
            TRANSACTIONS.len()
        };
        let rows = measure(setting, &ground, medium, points)?;
        show(&mut report, medium, &rows);
        if !medium.is_real() {
            chart(&mut report, medium, &rows);
            let mut compared = NeverWorse::on(medium);
            for row in &rows {
                let others: Vec<_> = row.runs[..STET_AT].iter().collect();
                let what = format!("{} K", row.transactions / 1000);
                compared.add(what, &row.runs[STET_AT], &others);
            }
            compared.report("not known", &mut report);
            let note = format!("journal mode: {}", why_journal(&rows));
            report.notes.push(note);
        }
        report
            .runs
            .extend(rows.into_iter().flat_map(|row| row.runs));
    }
    Ok(report)
}

fn measure(
    setting: &Setting<'_>,
    ground: &Ground,
    medium: Medium,
    points: usize,
) -> Result<Vec<Row>> {
    let row = |transactions: u64| {
        let work = Postmark {
            files: FILES,
            size_low: SIZES.0,
            size_high: SIZES.1,
            transactions: setting.scaled(transactions, 1)? as u32,
            seed: setting.seed,
            ..Postmark::default()
        };
        let one = |system| ground.measure(setting, (system, medium), &work, Durable::EXT3);
        Ok(Row {
            transactions,
            runs: SYSTEMS.into_iter().map(one).collect::<Result<_>>()?,
        })
    };
    TRANSACTIONS[..points].iter().map(|n| row(*n)).collect()
}

fn show(report: &mut Report, medium: Medium, rows: &[Row]) {
    let on = format!("on {} in {} time", medium.name(), time(medium));
    let head = std::iter::once("transactions").chain(SYSTEMS.map(|system| system.name));
    let mut times = Table::new(
        format!(
            "seconds until everything is durable, {on}, and of ext4's in ordered mode (until \
                everything is home)"
        ),
        head.clone(),
    );
    let mut blocks = Table::new(
        format!("commits; blocks on the device: journal (of these new data), home; {on}"),
        head,
    );
    for row in rows {
        let name = format!("{} K", row.transactions / 1000);
        let base = &row.runs[0];
        let cells = row.runs.iter().map(|run| {
            let durable = run.durable_ns() as f64;
            let home = match run.virtual_ns {
                Some(home) => format!(" ({:.3})", home as f64 / base.elapsed_ns() as f64),
                None => String::new(),
            };
            format!(
                "{:.3} {:.3}{home}",
                durable / 1e9,
                durable / base.durable_ns() as f64
            )
        });
        times.row(&name, cells);
        let cells = row.runs.iter().map(|run| {
            let written = |cause| run.device.by_cause(cause).write_bytes / 4096;
            let data = run.device.of(Tag::new(Class::Data, Cause::Log));
            format!(
                "{}; {} ({}), {}",
                run.commits,
                journal_blocks(run),
                data.write_bytes / 4096,
                written(Cause::Home) + written(Cause::Checkpoint)
            )
        });
        blocks.row(&name, cells);
    }
    report.tables.extend([times, blocks]);
    for (mode, ext4, dj, papers) in MODES {
        let gains = |of: fn(&Measured) -> u64| {
            let gains = rows.iter().map(|row| row.gain((ext4, dj), of));
            gains.fold(f64::NEG_INFINITY, f64::max)
        };
        let gain = gains(Measured::durable_ns);
        let home = match medium.is_real() {
            true => String::new(),
            false => format!(" (until home {:.1} %)", gains(Measured::elapsed_ns)),
        };
        report
            .compare(
                format!("{mode} mode {on}: DJ outperforms ext4 by up to"),
                Said::figure(format!("{papers} %"), papers),
                gain,
                format!("{gain:.1} %{home}"),
            )
            .because_of(|_| match (medium.is_real(), mode) {
                (true, _) => REAL.to_owned(),
                (false, "ordered") => why_ordered(rows),
                (false, _) => why_journal(rows),
            });
    }
    let last = rows.last().expect("a row");
    let of_ordered =
        |at: usize| last.runs[at].durable_ns() as f64 / last.runs[0].durable_ns() as f64;
    let deleted = || match medium.is_real() {
        true => REAL.to_owned(),
        false => why_quick(rows),
    };
    // By as much as DJ, which comes close to ordered mode, outperforms it.
    report
        .compare(
            format!("ext4's journal mode {on}, of the time of its ordered mode"),
            Said::range("more than 1, up to 1.275", 1.0, 1.275).less_is_better(),
            of_ordered(2),
            format!("{:.2}", of_ordered(2)),
        )
        .because_of(|_| deleted());
    report
        .compare(
            format!("DJ's journal mode {on}, of the time of ext4's ordered mode"),
            Said::figure("close", 1.0).within(0.15).less_is_better(),
            of_ordered(3),
            format!("{:.2}", of_ordered(3)),
        )
        .because_of(|_| deleted());
}

const REAL: &str = "real time on this machine's disk, which is not the paper's card";

/// Why journal mode is quicker than ordered mode here.
fn why_quick(rows: &[Row]) -> String {
    let runs = &rows.last().expect("a row").runs;
    let home = |at: usize| {
        let written = |cause| runs[at].device.by_cause(cause).write_bytes / 4096;
        written(Cause::Home) + written(Cause::Checkpoint)
    };
    format!(
        "ext4's own journal mode is quicker than its ordered mode, which is not so in the paper: \
            of what PostMark writes most is deleted soon. Journal mode \
         writes it once, in one piece, {} blocks, and {} go home; ordered mode writes {} blocks to \
         their places at each commit",
        journal_blocks(&runs[2]),
        home(2),
        home(0)
    )
}

/// What there is to gain in ordered mode, where data goes home in either system.
fn why_ordered(rows: &[Row]) -> String {
    let ext4 = &rows.last().expect("a row").runs[0];
    let log_ns = ext4.device.busy_ns(Cause::Log) + ext4.device.busy_ns(Cause::CommitRecord);
    let home = ext4.device.by_cause(Cause::Home).write_bytes / 4096;
    let share = log_ns as f64 / ext4.elapsed_ns() as f64;
    format!(
        "of what ext4 writes, {} blocks are its journal's, in {:.1} % of its time, and {home} are \
            data, which DJ has to write too",
        journal_blocks(ext4),
        100.0 * share
    )
}

/// What checkpoints cost in journal mode.
fn why_journal(rows: &[Row]) -> String {
    let [ext4, dj] = [2, 3].map(|at| &rows.last().expect("a row").runs[at]);
    let home_ns = |run: &Measured| run.device.busy_ns(Cause::Checkpoint);
    let alike_ns = dj.elapsed_ns() - home_ns(dj) + home_ns(ext4);
    let blocks = |run: &Measured| run.device.by_cause(Cause::Checkpoint).write_bytes / 4096;
    format!(
        "most of what PostMark writes is deleted soon, and what is deleted before a checkpoint \
            never goes home. DJ makes one when a fourth of the \
         journal is used, as the paper has it for both systems; ext4's, scheme jbd2, when half of \
         it is. So they bring {} and {} blocks home. If that took as \
         long in both, the gain would be {:.1} % with the most transactions",
        blocks(dj),
        blocks(ext4),
        100.0 * (ext4.elapsed_ns() as f64 / alike_ns as f64 - 1.0)
    )
}

/// As the paper draws it: normalized to ext4 in ordered mode.
fn chart(report: &mut Report, medium: Medium, rows: &[Row]) {
    let series = SYSTEMS.iter().enumerate().map(|(at, system)| Series {
        name: system.name.to_owned(),
        values: rows
            .iter()
            .map(|row| Some(row.runs[at].durable_ns() as f64 / row.runs[0].durable_ns() as f64))
            .collect(),
    });
    report.charts.push(Chart {
        name: format!("dj-fig10-{}", medium.name()),
        title: format!(
            "PostMark until everything is durable, on {} in {} time",
            medium.name(),
            time(medium)
        ),
        unit: "of ext4's time in ordered mode".to_owned(),
        groups: rows
            .iter()
            .map(|row| format!("{} K", row.transactions / 1000))
            .collect(),
        series: series.collect(),
        lines: Vec::new(),
    });
}
