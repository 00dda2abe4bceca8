//! Delta Journaling, figure 1: how much of a block differs when it is overwritten, with TPC-C on
//! SQLite.
//!
//! "More than 70 % of updated blocks have less than 10 % difference (i.e., the size of the
//! difference when compared to the original block is smaller than 400 bytes)": so the share is that
//! of bytes. An update is a block that was in use before the transaction that writes it.

use anyhow::Result;
use stetfs_media::Class;

use super::kind::Experiment;
use super::report::{Report, Said, Swept, Table};
use super::setting::Setting;
use crate::cell::{Load, Machine};
use crate::system::{Changes, changes_of};
use crate::text;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "dj-fig1",
    title: "TPC-C on SQLite: how much of a block differs when it is overwritten",
    paper: "Kim, Min, Eom, IEEE Trans. Consumer Electronics 60(2), 2014, Figure 1",
    scale: 0.0625,
    has_real_time: false,
    is_small: true,
    run: super::kind::Run::Own(run),
};

const BLOCK: usize = 4096;

/// SQLite's settings, its defaults first: the paper does not say which it used.
const CASES: [(&str, &str); 4] = [
    ("DELETE", "mode=DELETE"),
    ("TRUNCATE", "mode=TRUNCATE"),
    ("WAL", "mode=WAL"),
    ("DELETE, pages of 1 KiB", "mode=DELETE page=1K"),
];

/// Percent of a block's bytes.
const LEVELS: [usize; 14] = [1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 70, 80, 90];

/// Returns the least number of bytes that is not less than `percent` of a block.
fn less_than(percent: usize) -> usize {
    (BLOCK * percent).div_ceil(100)
}

/// Returns the percentage of updated blocks that differ in less than `percent` of their bytes.
fn share(changes: &Changes, wanted: impl Fn(Class) -> bool + Copy, percent: usize) -> f64 {
    let all = changes.updated(wanted).max(1);
    100.0 * changes.below(wanted, less_than(percent)) as f64 / all as f64
}

fn run(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&EXPERIMENT, setting);
    let machine: Machine = text::parse("volume=512M journal=128M")?;
    let scale = setting.scale;
    let decks = ((87.0 * scale) as u32).max(2);
    let work = |settings: &str| -> Result<_> {
        let words = format!("scale={scale} decks={decks} {settings}");
        let (load, _) = Load::find("tpcc")?;
        let workload = load.make(&words, setting.seed)?;
        let tell = |done, of| (setting.progress)(settings, done, of);
        changes_of(&*machine.volume()?, 512, &*workload, &tell)
    };
    report.setup.push((
        "TPC-C",
        format!("on SQLite, {scale} of a warehouse, {decks} decks of 23 transactions"),
    ));
    report.setup.push((
        "updates",
        "what each transaction of the file system writes over blocks that were in use, data and \
            metadata, without a journal"
            .to_owned(),
    ));
    let all = CASES.map(|(name, settings)| Ok((name, work(settings)?)));
    let all: Vec<(&str, Changes)> = all.into_iter().collect::<Result<_>>()?;
    let title = "Updated blocks of which less than so much differs, in percent";
    let names = all.iter().map(|(name, _)| (*name).to_owned());
    let mut table = Table::new(title, std::iter::once("differs".to_owned()).chain(names));
    for level in LEVELS {
        let cells = all
            .iter()
            .map(|(_, changes)| share(changes, |_| true, level));
        table.row(
            format!("{level} %"),
            cells.map(|share| format!("{share:.1}")),
        );
    }
    let said = "the paper, more than this at 10 %".to_owned();
    table.lines.push((said, 70.0));
    report.tables.push(table);
    report.tables.push(classes(&all));
    let (reached, missed) = all
        .iter()
        .partition::<Vec<_>, _>(|(_, changes)| share(changes, |_| true, 10) > 70.0);
    let names = |of: Vec<&(&str, Changes)>| of.iter().map(|(name, _)| (*name).to_owned()).collect();
    report.swept.push(Swept {
        claim: "dj-fig1-small-updates".to_owned(),
        value: 0,
        reached: names(reached),
        missed: names(missed),
    });
    for (name, changes) in &all {
        let found = share(changes, |_| true, 10);
        report
            .compare(
                format!(
                    "journal_mode={name}: of more than 70 % of updated blocks less than 10 % differ"
                ),
                Said::at_least("over 70 %", 70.0 + f64::EPSILON),
                found,
                format!("{found:.1} %"),
            )
            .because(
                "SQLite writes its log again from the beginning when the pages in it are in the \
                    database: then a block of the log is overwritten with another page, and pages \
                    are overwritten in the database only after many changes",
            );
    }
    Ok(report)
}

/// Makes the table of the blocks by class.
fn classes(all: &[(&str, Changes)]) -> Table {
    let mut table = Table::new(
        "A transaction of the file system: blocks",
        [
            "",
            "transactions",
            "new",
            "updated",
            "data",
            "inodes",
            "other metadata",
            "data under 10 %",
            "metadata under 10 %",
        ],
    );
    for (name, changes) in all {
        let transactions = changes.transactions.max(1) as f64;
        let mean = |blocks: u64| format!("{:.2}", blocks as f64 / transactions);
        let is_other = |class| !matches!(class, Class::Data | Class::InodeTable);
        table.row(
            *name,
            [
                changes.transactions.to_string(),
                mean(changes.new_blocks),
                mean(changes.updated(|_| true)),
                mean(changes.updated(|class| class == Class::Data)),
                mean(changes.updated(|class| class == Class::InodeTable)),
                mean(changes.updated(is_other)),
                format!("{:.1} %", share(changes, |class| class == Class::Data, 10)),
                format!("{:.1} %", share(changes, |class| class != Class::Data, 10)),
            ],
        );
    }
    table
}
