//! Delta Journaling, figures 11 and 12: TPC-C on SQLite, on ext4 and with Delta Journaling, in both
//! modes. Both figures are of the same runs: how long they take, and what they write to the
//! journals. Beside figure 11 stet, without NVRAM and with it.
//!
//! The paper names neither SQLite's journal mode nor its pages nor the size of the database. Here
//! SQLite has its defaults, a rollback journal that is deleted and pages of 4 KiB; beside them the
//! other two journal modes, and pages of 1 KiB, its default until 2016 (version 3.12). The database
//! is that of one warehouse.

use anyhow::Result;
use stetfs_media::Cause;

use super::dj::{journal_blocks, telephone_for_stet};
use super::ground::{Ground, time};
use super::never_worse::NeverWorse;
use super::report::{Chart, Report, Said, Series, Table};
use super::{Experiment, Setting};
use crate::system::{
    Changes, DJ_JOURNAL, DJ_ORDERED, DeltaKind, EXT4_JOURNAL, EXT4_ORDERED, Measured, Medium, STET,
    STET_BESIDE, System,
};
use crate::workload::Durable;
use crate::workload::sqlite::JournalMode;
use crate::workload::tpcc::{Cardinality, Tpcc};

/// How many transactions a minute.
pub(super) const THROUGHPUT: Experiment = Experiment {
    id: "dj-fig11",
    title: "TPC-C on SQLite: New-Order transactions a minute, ext4 and Delta Journaling",
    paper: "Kim, Min, Eom, IEEE Trans. Consumer Electronics 60(2), 2014, Figure 11",
    scale: 1.0,
    has_real_time: true,
    run: throughput,
};

/// What goes to the journals.
pub(super) const JOURNAL_WRITES: Experiment = Experiment {
    id: "dj-fig12",
    title: "TPC-C on SQLite: blocks written to the journal, and the size of deltas",
    paper: "Kim, Min, Eom, IEEE Trans. Consumer Electronics 60(2), 2014, Figure 12",
    scale: 1.0,
    has_real_time: false,
    run: journal_writes,
};

const PAPERS: [System; 4] = [EXT4_ORDERED, DJ_ORDERED, EXT4_JOURNAL, DJ_JOURNAL];
const SYSTEMS: [System; 6] = [
    EXT4_ORDERED,
    DJ_ORDERED,
    EXT4_JOURNAL,
    DJ_JOURNAL,
    STET,
    STET_BESIDE,
];
/// Where stet stands among them: without NVRAM, and behind all others with it.
const STET_AT: usize = 4;
const STET_BESIDE_AT: usize = 5;

/// A mode, where ext4 and Delta Journaling stand among the systems in it, and what the paper gains.
struct Mode {
    name: &'static str,
    ext4: usize,
    dj: usize,
    gain: f64,
}

const MODES: [Mode; 2] = [
    Mode {
        name: "ordered",
        ext4: 0,
        dj: 1,
        gain: 0.255,
    },
    Mode {
        name: "journal",
        ext4: 2,
        dj: 3,
        gain: 0.292,
    },
];

/// Delta Journaling in journal mode with the compressors that the paper does not take.
const COMPRESSORS: [System; 3] = [
    System {
        name: "lz4",
        options: "scheme=dj,data=journal,compress=lz4",
        ..DJ_JOURNAL
    },
    System {
        name: "zstd",
        options: "scheme=dj,data=journal,compress=zstd",
        ..DJ_JOURNAL
    },
    System {
        name: "ranges",
        options: "scheme=dj,data=journal,compress=ranges",
        ..DJ_JOURNAL
    },
];

/// How SQLite is set.
#[derive(Clone, Copy)]
pub(super) struct Case {
    /// The name in reports.
    pub(super) name: &'static str,
    journal: JournalMode,
    page_bytes: u32,
}

/// Its defaults first.
pub(super) const CASES: [Case; 4] = [
    Case {
        name: "DELETE",
        journal: JournalMode::Delete,
        page_bytes: 4096,
    },
    Case {
        name: "TRUNCATE",
        journal: JournalMode::Truncate,
        page_bytes: 4096,
    },
    Case {
        name: "WAL",
        journal: JournalMode::Wal,
        page_bytes: 4096,
    },
    Case {
        name: "DELETE, pages of 1 KiB",
        journal: JournalMode::Delete,
        page_bytes: 1024,
    },
];

/// 2,001 transactions.
const DECKS: f64 = 87.0;

/// A database of a warehouse, the volume's journal and room to grow.
const VOLUME: u64 = 512 << 20;

/// Bytes.
const BLOCK: f64 = 4096.0;

/// What is compared.
pub(super) struct Bench {
    /// With the database in pages of 4 KiB, and of 1 KiB.
    grounds: [Ground; 2],
    tpcc: Tpcc,
}

impl Bench {
    /// With the databases loaded.
    ///
    /// # Errors
    /// Of the scale and the volume.
    pub(super) fn new(setting: &Setting<'_>) -> Result<Self> {
        let tpcc = Tpcc {
            size: Cardinality::scaled(setting.scale),
            decks: ((DECKS * setting.scale) as u32).max(2),
            journal: JournalMode::Delete,
            page_bytes: 4096,
            seed: setting.seed,
        };
        let ground = Ground::new(setting, &telephone_for_stet(VOLUME))?;
        let small = Tpcc {
            page_bytes: 1024,
            ..tpcc
        };
        Ok(Self {
            grounds: [
                ground.prepared(setting, EXT4_ORDERED, &tpcc)?,
                ground.prepared(setting, EXT4_ORDERED, &small)?,
            ],
            tpcc,
        })
    }

    fn ground(&self, case: Case) -> &Ground {
        &self.grounds[usize::from(case.page_bytes == 1024)]
    }

    fn tpcc(&self, case: Case) -> Tpcc {
        Tpcc {
            journal: case.journal,
            page_bytes: case.page_bytes,
            ..self.tpcc
        }
    }

    pub(super) fn describe(&self, setting: &Setting<'_>, report: &mut Report) {
        self.describe_tpcc(report);
        self.grounds[0].describe(setting, report);
    }

    /// The database, and what is done with it.
    pub(super) fn describe_tpcc(&self, report: &mut Report) {
        let Cardinality {
            warehouses,
            items,
            customers,
            orders,
        } = self.tpcc.size;
        report.setup.push((
            "database",
            format!(
                "SQLite {} with synchronous=FULL, pages of 4 KiB where nothing else is said; \
                    {warehouses} warehouses, {items} items, {customers} \
                 customers and {orders} orders a district (the paper names none of this)",
                rusqlite::version()
            ),
        ));
        report.setup.push((
            "TPC-C",
            format!(
                "{} transactions in decks of 23, on one connection without waits; everything is in \
                    memory in the beginning; consistency conditions 1 \
                 to 4 and SQLite's integrity check hold after each run",
                self.tpcc.transactions()
            ),
        ));
    }

    /// What its transactions change, as [`Ground::changes`] says.
    ///
    /// # Errors
    /// Of the volume.
    pub(super) fn changes(
        &self,
        setting: &Setting<'_>,
        case: Case,
        kinds: &'static [DeltaKind],
    ) -> Result<Changes> {
        let (ground, tpcc) = (self.ground(case), self.tpcc(case));
        ground.changes(setting, &tpcc, kinds)
    }

    fn measure(
        &self,
        setting: &Setting<'_>,
        (medium, case): (Medium, Case),
        systems: &[System],
    ) -> Result<Vec<Measured>> {
        let (ground, tpcc) = (self.ground(case), self.tpcc(case));
        let runs = systems
            .iter()
            .map(|system| ground.measure(setting, (*system, medium), &tpcc, Durable::EXT3));
        runs.collect()
    }
}

fn throughput(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&THROUGHPUT, setting);
    let bench = Bench::new(setting)?;
    bench.describe(setting, &mut report);
    for medium in bench.grounds[0].media(setting) {
        // In real time each run is done three times: only SQLite's default.
        let cases = if medium.is_real() {
            &CASES[..1]
        } else {
            &CASES[..]
        };
        let time = time(medium);
        let gains = ["gain, ordered", "gain, journal"];
        let mut table = Table::new(
            format!(
                "New-Order transactions a minute in {time} time, and what Delta Journaling gains"
            ),
            ["journal_mode"]
                .into_iter()
                .chain(SYSTEMS.map(|system| system.name))
                .chain(gains),
        );
        let mut compared = NeverWorse::on(medium);
        let mut rates_of: Vec<Series> = SYSTEMS
            .map(|system| Series {
                name: system.name.to_owned(),
                values: Vec::new(),
            })
            .into();
        for case in cases {
            let runs = bench.measure(setting, (medium, *case), &SYSTEMS)?;
            let tpcc = bench.tpcc(*case);
            let rates: Vec<f64> = runs.iter().map(|r| tpcc.tpm_c(r.elapsed_ns())).collect();
            let gain = |mode: &Mode| rates[mode.dj] / rates[mode.ext4] - 1.0;
            let cells = rates.iter().map(|rate| format!("{rate:.0}"));
            table.row(
                case.name,
                cells.chain(MODES.map(|mode| percent(gain(&mode)))),
            );
            for (series, rate) in rates_of.iter_mut().zip(&rates) {
                series.values.push(Some(*rate));
            }
            for mode in &MODES {
                let claim = format!(
                    "{time} time, journal_mode={}: Delta Journaling gains as much in {} mode",
                    case.name, mode.name
                );
                let (ours, papers) = (gain(mode), mode.gain);
                let said = Said::figure(percent(papers), papers);
                let (ext4, dj) = (&runs[mode.ext4], &runs[mode.dj]);
                report
                    .compare(claim, said, ours, percent(ours))
                    .because_of(|_| match medium.is_real() {
                        true => "real time on this machine's disk, which is not the paper's card"
                            .to_owned(),
                        false => by_meter(ext4, dj),
                    });
            }
            if !medium.is_real() {
                check_stet(&mut report, *case, &rates, &runs);
                let others: Vec<_> = runs[..STET_BESIDE_AT].iter().collect();
                compared.add(case.name, &runs[STET_BESIDE_AT], &others);
            }
            report.runs.extend(runs);
        }
        report.tables.push(table);
        if !medium.is_real() {
            compared.report(
                "the journal on the card takes more before a checkpoint than 16 MiB do, and is \
                    written in a row; what goes home is not",
                &mut report,
            );
        }
        report.charts.push(Chart {
            name: format!("dj-fig11-{time}"),
            title: format!("TPC-C on SQLite, {time} time"),
            unit: "New-Orders a minute".to_owned(),
            groups: cases.iter().map(|case| case.name.to_owned()).collect(),
            series: rates_of,
            lines: Vec::new(),
        });
    }
    if setting.real_time {
        processor(setting, &bench, &mut report)?;
    }
    Ok(report)
}

/// Whether stet is as quick as the quickest of the others that have no NVRAM, and writes as little.
fn check_stet(report: &mut Report, case: Case, rates: &[f64], runs: &[Measured]) {
    let ext4 = MODES.map(|mode| mode.ext4);
    let gain = rates[STET_AT] / ext4.map(|at| rates[at]).into_iter().fold(0.0, f64::max);
    let least = ext4.map(|at| runs[at].written()).into_iter().min();
    let bytes = runs[STET_AT].written() as f64 / least.unwrap_or(0) as f64;
    report
        .compare(
            format!(
                "journal_mode={}: throughput of stet, which has no NVRAM, to the best of ext4",
                case.name
            ),
            Said::at_least("our aim: 1.00", 1.0),
            gain,
            format!("{gain:.3}"),
        )
        .because_of(|_| by_places(&runs[STET_AT]));
    report
        .compare(
            format!(
                "journal_mode={}: bytes of stet to the least of ext4",
                case.name
            ),
            Said::at_most("our aim: 1.00", 1.0),
            bytes,
            format!("{bytes:.3}"),
        )
        .because("not known");
}

/// By the meter.
fn by_places(stet: &Measured) -> String {
    let home = stet.device.by_cause(Cause::Home);
    let busy_ns = stet.device.busy_ns(Cause::Home) as f64;
    format!(
        "a commit of stet's writes into the log and, where new blocks stay, elsewhere: {:.2} \
            requests of {:.2} ms each in the mean, {:.1} % of its time. ext4's journal mode writes \
            all in a row, into the log, and home once for many commits",
        home.writes as f64 / stet.commits as f64,
        busy_ns / 1e6 / home.writes.max(1) as f64,
        100.0 * busy_ns / stet.elapsed_ns() as f64,
    )
}

fn percent(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

/// Time on the card for the journal, of all.
fn journal_share(run: &Measured) -> f64 {
    let busy_ns = run.device.busy_ns(Cause::Log) + run.device.busy_ns(Cause::CommitRecord);
    busy_ns as f64 / run.elapsed_ns() as f64
}

/// Blocks written home, at once or from the journal.
fn home_blocks(run: &Measured) -> u64 {
    let bytes =
        [Cause::Home, Cause::Checkpoint].map(|cause| run.device.by_cause(cause).write_bytes);
    bytes.iter().sum::<u64>() / BLOCK as u64
}

/// By the meter.
fn by_meter(ext4: &Measured, dj: &Measured) -> String {
    let share = journal_share(ext4);
    format!(
        "ext4's journal takes {:.1} % of its time on the card, so that no journal at all would \
            gain {}; Delta Journaling's takes {:.1} % of its own. \
         Home go {} blocks with ext4 and {} with Delta Journaling. The paper does not say how \
         SQLite was set",
        100.0 * share,
        percent(share / (1.0 - share)),
        100.0 * journal_share(dj),
        home_blocks(ext4),
        home_blocks(dj)
    )
}

/// What it takes the processor to capture the differences, beside the whole run. The blocks are
/// those of the run; each is compared and, if few or almost all bits differ, compressed by LZO.
fn processor(setting: &Setting<'_>, bench: &Bench, report: &mut Report) -> Result<()> {
    let changes = bench.changes(setting, CASES[0], &[])?;
    let capture_ns = changes.capture_ns as f64;
    for (at, time) in [(3, "virtual"), (SYSTEMS.len() * CASES.len() + 3, "real")] {
        let run = &report.runs[at];
        assert_eq!(
            run.system, DJ_JOURNAL.name,
            "runs are in the order of systems"
        );
        let share = 100.0 * capture_ns / run.elapsed_ns() as f64;
        report
            .compare(
                format!(
                    "{time} time, journal mode: what capturing differences takes the \
                    processor, of it"
                ),
                Said::at_most("under 1 %", 1.0 - f64::EPSILON),
                share,
                format!("{share:.2} %"),
            )
            .because("this machine is slow, or has other work");
    }
    let blocks = changes.updated(|_| true);
    report.notes.push(format!(
        "To capture the differences of the {blocks} blocks that {} transactions overwrite takes \
            {:.0} ms of one core, {:.2} us a block.",
        bench.tpcc.transactions(),
        capture_ns / 1e6,
        capture_ns / 1e3 / blocks.max(1) as f64
    ));
    Ok(())
}

fn journal_writes(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&JOURNAL_WRITES, setting);
    let bench = Bench::new(setting)?;
    bench.describe(setting, &mut report);
    let columns = [
        "",
        "journal",
        "to ext4",
        "home",
        "deltas",
        "whole",
        "mean delta",
        "of a block",
    ];
    let mut table = Table::new(
        "A transaction: blocks written to the journal on the card, and home; blocks logged as \
            deltas, and whole; bytes of a delta",
        columns,
    );
    let mut shares: Vec<Series> = MODES
        .map(|mode| Series {
            name: format!("Delta Journaling, {}", mode.name),
            values: Vec::new(),
        })
        .into();
    let medium = bench.grounds[0].media(setting)[0];
    for case in CASES {
        let runs = bench.measure(setting, (medium, case), &PAPERS)?;
        for (mode, shares) in MODES.iter().zip(&mut shares) {
            let (ext4, dj) = (&runs[mode.ext4], &runs[mode.dj]);
            for run in [ext4, dj] {
                let name = format!("{}: {}", case.name, run.system);
                table.row(name, cells(&bench, run, ext4));
            }
            let share = journal_blocks(dj) as f64 / journal_blocks(ext4) as f64;
            shares.values.push(Some(share));
            let whose = whose_deltas(&bench, &runs);
            check(&mut report, case, mode.name, dj, whose);
        }
        report.runs.extend(runs);
    }
    report.tables.push(table);
    report.charts.push(Chart {
        name: "dj-fig12".to_owned(),
        title:
            "TPC-C on SQLite: blocks written to the journal on the card, ext4 in the same mode = 1"
                .to_owned(),
        unit: "of ext4's blocks".to_owned(),
        groups: CASES.map(|case| case.name.to_owned()).into(),
        series: shares,
        lines: vec![("ext4".to_owned(), 1.0)],
    });
    let others = bench.measure(setting, (medium, CASES[0]), &COMPRESSORS)?;
    let mut table = Table::new(
        "The same for Delta Journaling in journal mode with journal_mode=DELETE by the compressor",
        columns,
    );
    let (ext4, lzo) = (&report.runs[2], &report.runs[3]);
    table.row("lzo", cells(&bench, lzo, ext4));
    for run in &others {
        table.row(run.system, cells(&bench, run, ext4));
    }
    report.tables.push(table);
    report.runs.extend(others);
    Ok(report)
}

/// What journal mode logs more than ordered mode is data. The paper has one figure for both.
fn whose_deltas(bench: &Bench, runs: &[Measured]) -> Option<String> {
    let [metadata, all] = MODES.map(|mode| runs[mode.dj].deltas);
    let (metadata, all) = (metadata?, all?);
    let data = all - metadata;
    let transactions = f64::from(bench.tpcc.transactions());
    let both =
        (metadata.delta_bytes + all.delta_bytes) as f64 / (metadata.deltas + all.deltas) as f64;
    Some(format!(
        "the paper's mean does not say over which mode. {:.2} deltas a transaction are of \
            metadata, {:.0} bytes in the mean, which is all that ordered mode \
         logs; {:.2} of data, {:.0} bytes; the mean of both modes together is {:.1} % of a block",
        metadata.deltas as f64 / transactions,
        metadata.mean()?,
        data.deltas as f64 / transactions,
        data.mean()?,
        100.0 * both / BLOCK
    ))
}

fn cells(bench: &Bench, run: &Measured, ext4: &Measured) -> Vec<String> {
    let transactions = f64::from(bench.tpcc.transactions());
    let a_transaction = |n: f64| format!("{:.2}", n / transactions);
    let journal = journal_blocks(run) as f64;
    let mut cells = vec![
        a_transaction(journal),
        format!("{:.3}", journal / journal_blocks(ext4) as f64),
        a_transaction(home_blocks(run) as f64),
    ];
    if let Some(deltas) = run.deltas {
        let mean = deltas.mean().unwrap_or(0.0);
        cells.extend([
            a_transaction(deltas.deltas as f64),
            a_transaction(deltas.wholes as f64),
            format!("{mean:.0}"),
            format!("{:.1} %", 100.0 * mean / BLOCK),
        ]);
    }
    cells.resize(7, String::new());
    cells
}

fn check(report: &mut Report, case: Case, mode: &str, dj: &Measured, whose: Option<String>) {
    let at = format!("journal_mode={}, {mode} mode", case.name);
    let mean = dj.deltas.and_then(|deltas| deltas.mean());
    let shown = mean.map_or("no deltas".to_owned(), |mean| {
        format!("{:.1} %", 100.0 * mean / BLOCK)
    });
    let percent = mean.map_or(f64::NAN, |mean| 100.0 * mean / BLOCK);
    report
        .compare(
            format!("{at}: a delta's share of a block in the mean"),
            Said::figure("3.7 %", 3.7).less_is_better(),
            percent,
            shown,
        )
        .because(whose.unwrap_or_else(|| "there are no deltas".to_owned()));
    if mode == MODES[0].name {
        let blocks = journal_blocks(dj);
        report
            .compare(
                format!("{at}: no journal block is written to the card"),
                Said::at_most("0", 0.0),
                blocks as f64,
                blocks.to_string(),
            )
            .because("not known");
    }
}
