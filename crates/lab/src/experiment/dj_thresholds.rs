//! Figures 7 and 8 and Table I of the Delta Journaling paper: how full the NVRAM may be before a
//! checkpoint.
//!
//! The paper says of its traces that the differences have a Zipfian, a bathtub and a uniform
//! distribution, and nothing else. Table I tells more. With a uniform distribution half of the
//! blocks differ in 25 to 75 % and go to the journal: 263,414 blocks there are half of 524,288
//! overwrites of 4 KiB, 2 GiB, and about 1,250 other blocks. Of W1's blocks then next to none
//! differ so much, and of W2's 7.8 %: that is a Zipf distribution over 1 to 100 % with an exponent
//! of 3 or more, and a beta distribution with both parameters 0.08. Where the overwrites go the
//! paper does not say: here, at random in a file of 512 MiB.

use anyhow::Result;

use super::dj::{journal_blocks, nvram_log_bytes, telephone};
use super::ground::{Ground, time};
use super::report::{Chart, Report, Said, Series, Table};
use super::{Experiment, Setting};
use crate::system::{Access, EXT4_JOURNAL, Measured, Medium, System};
use crate::workload::overwrite::{BLOCK, Change, Differences, Order};
use crate::workload::{Durable, Overwrite};

pub(super) const TIMES: Experiment = Experiment {
    id: "dj-fig7",
    title: "Delta Journaling's time by the threshold of the NVRAM's checkpoint",
    paper: "Kim, Min, Eom, IEEE Trans. Consumer Electronics 60(2), 2014, Figure 7",
    scale: 0.125,
    has_real_time: true,
    run: times,
};

pub(super) const CHECKPOINTS: Experiment = Experiment {
    id: "dj-fig8",
    title: "Delta Journaling's checkpoints by the threshold of the NVRAM's checkpoint",
    paper: "Kim, Min, Eom, IEEE Trans. Consumer Electronics 60(2), 2014, Figure 8",
    scale: 0.125,
    has_real_time: false,
    run: checkpoints,
};

pub(super) const JOURNAL_WRITES: Experiment = Experiment {
    id: "dj-table1",
    title: "Delta Journaling's writes to the journal on flash by the threshold of the NVRAM's \
        checkpoint",
    paper: "Kim, Min, Eom, IEEE Trans. Consumer Electronics 60(2), 2014, Table I",
    scale: 0.125,
    has_real_time: false,
    run: journal_writes,
};

const TRACES: [(&str, Differences); 3] = [
    ("W1", Differences::Zipf(3.0)),
    ("W2", Differences::Bathtub(0.08)),
    ("W3", Differences::Uniform),
];
const OVERWRITES: u64 = 524_288;
const FILE: u64 = 512 << 20;
const VOLUME: u64 = 1 << 30;

const fn dj(name: &'static str, options: &'static str) -> System {
    System {
        name,
        options,
        access: Access::Blocks,
    }
}

const THRESHOLDS: [System; 4] = [
    dj("25 %", "scheme=dj,data=journal,nvm_checkpoint=25"),
    dj("50 %", "scheme=dj,data=journal,nvm_checkpoint=50"),
    dj("75 %", "scheme=dj,data=journal,nvm_checkpoint=75"),
    dj("100 %", "scheme=dj,data=journal,nvm_checkpoint=100"),
];
/// The paper's choice among them.
const CHOICE: usize = 2;

/// Table I.
const TABLE: [[u64; 4]; 3] = [
    [1_205, 1_198, 1_204, 24_681],
    [42_206, 42_209, 42_211, 67_009],
    [263_434, 263_427, 263_414, 263_408],
];

/// A trace on ext4 and with each threshold.
struct Row {
    name: String,
    ext4: Option<Measured>,
    dj: Vec<Measured>,
}

impl Row {
    /// Of the time that ext4 took, until everything was durable, or home.
    fn normalized(&self, of: impl Fn(&Measured) -> u64) -> Vec<f64> {
        let ext4 = self.ext4.as_ref().map_or(1, &of) as f64;
        self.dj.iter().map(|run| of(run) as f64 / ext4).collect()
    }
}

fn set_up(setting: &Setting<'_>, experiment: &Experiment) -> Result<(Report, Ground)> {
    let mut report = Report::new(experiment, setting);
    let ground = Ground::new(setting, &telephone(VOLUME))?;
    report.setup.push((
        "traces",
        format!(
            "{} overwrites of 4 KiB at random in a file of {} MiB, read before; in each block one \
                run of bytes is inverted, whose share is drawn from: W1 \
             Zipf over 1 to 100 % with exponent 3, W2 beta(0.08, 0.08), W3 uniform (the parameters \
             are those that fit the paper's Table I)",
            setting.scaled(OVERWRITES, 1)?,
            setting.scaled(FILE, 4096)? >> 20
        ),
    ));
    ground.describe(setting, &mut report);
    Ok((report, ground))
}

fn measure(setting: &Setting<'_>, ground: &Ground, medium: Medium, ext4: bool) -> Result<Vec<Row>> {
    let row = |(name, differences): (&str, Differences)| {
        let work = Overwrite {
            differences,
            change: Change::Inverted,
            order: Order::Random,
            blocks: setting.scaled(FILE, BLOCK as u64)? / BLOCK as u64,
            overwrites: setting.scaled(OVERWRITES, 1)?,
            seed: setting.seed,
        };
        let one = |system| ground.measure(setting, (system, medium), &work, Durable::EXT3);
        Ok(Row {
            name: format!("{name}, {}", differences.name()),
            ext4: ext4.then(|| one(EXT4_JOURNAL)).transpose()?,
            dj: THRESHOLDS.into_iter().map(one).collect::<Result<_>>()?,
        })
    };
    TRACES.into_iter().map(row).collect()
}

/// A column for each threshold.
fn head(first: &str) -> Vec<String> {
    let names = THRESHOLDS.iter().map(|system| system.name.to_owned());
    std::iter::once(first.to_owned()).chain(names).collect()
}

fn chart(
    report: &mut Report,
    name: String,
    title: String,
    unit: &str,
    rows: &[(String, Vec<f64>)],
) {
    let groups = rows.iter().map(|(name, _)| name.clone());
    report.charts.push(Chart {
        name,
        title,
        unit: unit.to_owned(),
        groups: groups.collect(),
        series: THRESHOLDS
            .iter()
            .enumerate()
            .map(|(at, system)| Series {
                name: system.name.to_owned(),
                values: rows.iter().map(|(_, values)| Some(values[at])).collect(),
            })
            .collect(),
        lines: Vec::new(),
    });
}

fn keep(report: &mut Report, rows: Vec<Row>) {
    for row in rows {
        report.runs.extend(row.ext4.into_iter().chain(row.dj));
    }
}

/// What the paper says of times and of checkpoints: W1 and W2 have the least of it with 75 %, W3 as
/// much with each.
fn check_least(report: &mut Report, what: &str, rows: &[(String, Vec<f64>)]) {
    let shown = |values: &[f64]| {
        let each = values.iter().map(|value| format!("{value:.3}"));
        each.collect::<Vec<_>>().join(", ")
    };
    for (name, values) in &rows[..2] {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        report
            .claim(
                format!("{name}: {what} least with 75 %"),
                "least",
                shown(values),
                values[CHOICE] <= least,
            )
            .because(FULL);
    }
    let (name, values) = &rows[2];
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    report
        .claim(
            format!("{name}: {what} the same with each threshold (within 5 %)"),
            "the same",
            shown(values),
            values
                .iter()
                .all(|value| (value / mean - 1.0).abs() <= 0.05),
        )
        .because("not known");
}

fn times(setting: &Setting<'_>) -> Result<Report> {
    let (mut report, ground) = set_up(setting, &TIMES)?;
    for medium in ground.media(setting) {
        let rows = measure(setting, &ground, medium, true)?;
        let on = format!("on {} in {} time", medium.name(), time(medium));
        let durable: Vec<_> = rows
            .iter()
            .map(|row| (row.name.clone(), row.normalized(Measured::durable_ns)))
            .collect();
        let mut table = Table::new(
            format!(
                "DJ's time until everything is durable, of ext4's in journal mode, {on} (until \
                    home)"
            ),
            head("trace"),
        );
        for (row, (name, values)) in rows.iter().zip(&durable) {
            let home = row.normalized(Measured::elapsed_ns);
            let cells = values
                .iter()
                .zip(home)
                .map(|(value, home)| match medium.is_real() {
                    true => format!("{value:.3}"),
                    false => format!("{value:.3} ({home:.3})"),
                });
            table.row(name, cells);
        }
        report.tables.push(table);
        check_least(&mut report, &format!("time, {on},"), &durable);
        chart(
            &mut report,
            format!("dj-fig7-{}", medium.name()),
            format!("DJ's time until everything is durable, {on}"),
            "of ext4's",
            &durable,
        );
        keep(&mut report, rows);
    }
    Ok(report)
}

fn checkpoints(setting: &Setting<'_>) -> Result<Report> {
    let (mut report, ground) = set_up(setting, &CHECKPOINTS)?;
    let rows = measure(setting, &ground, ground.media(setting)[0], false)?;
    let counts: Vec<_> = rows
        .iter()
        .map(|row| {
            let counts = row.dj.iter().map(|run| run.checkpoints as f64);
            (row.name.clone(), counts.collect::<Vec<_>>())
        })
        .collect();
    let mut table = Table::new(
        "checkpoints until everything is durable (bytes of NVRAM for an overwrite)",
        head("trace"),
    );
    for (row, (name, values)) in rows.iter().zip(&counts) {
        let cells = values.iter().zip(&row.dj).map(|(count, run)| {
            let overwrites = run.counts.written_bytes / BLOCK as u64;
            format!(
                "{count:.0} ({:.1})",
                nvram_log_bytes(run) as f64 / overwrites as f64
            )
        });
        table.row(name, cells);
    }
    report.tables.push(table);
    check_least(&mut report, "checkpoints", &counts);
    chart(
        &mut report,
        "dj-fig8".to_owned(),
        "Checkpoints".to_owned(),
        "checkpoints",
        &counts,
    );
    keep(&mut report, rows);
    Ok(report)
}

fn journal_writes(setting: &Setting<'_>) -> Result<Report> {
    let (mut report, ground) = set_up(setting, &JOURNAL_WRITES)?;
    let rows = measure(setting, &ground, ground.media(setting)[0], false)?;
    let counts: Vec<_> = rows
        .iter()
        .map(|row| {
            let counts = row.dj.iter().map(|run| journal_blocks(run) as f64);
            (row.name.clone(), counts.collect::<Vec<_>>())
        })
        .collect();
    let mut table = Table::new(
        "blocks written to the journal on the card (of W3's; the paper's)",
        head("trace"),
    );
    for (n, (name, values)) in counts.iter().enumerate() {
        let cells = values.iter().enumerate().map(|(at, count)| {
            let of_uniform = count / counts[2].1[at];
            let papers = TABLE[n][at] as f64 / TABLE[2][at] as f64;
            format!("{count:.0} ({of_uniform:.4}; {papers:.4})")
        });
        table.row(name, cells);
    }
    report.tables.push(table);
    check_table(&mut report, &counts);
    chart(
        &mut report,
        "dj-table1".to_owned(),
        "Blocks written to the journal".to_owned(),
        "blocks",
        &counts,
    );
    keep(&mut report, rows);
    Ok(report)
}

/// Why 100 % is not worse here.
const FULL: &str = "a full NVRAM has no room for the next descriptor either, so that the next \
    commit makes the checkpoint; the paper's \
                    writes whole blocks to the journal until one is over";

/// Ratios of Table I, within a quarter.
fn check_table(report: &mut Report, counts: &[(String, Vec<f64>)]) {
    let said = |papers: f64| {
        let said = Said::figure(format!("{papers:.4}"), papers).within(0.25);
        said.less_is_better()
    };
    let fitted = "the parameter of the distribution is the one that fits Table I";
    for n in [0, 1] {
        let of_uniform = counts[n].1[CHOICE] / counts[2].1[CHOICE];
        let papers = TABLE[n][CHOICE] as f64 / TABLE[2][CHOICE] as f64;
        report
            .compare(
                format!("{}: journal writes with 75 %, of W3's", counts[n].0),
                said(papers),
                of_uniform,
                format!("{of_uniform:.4}"),
            )
            .because(
                "what the paper counts there are blocks of which it says nothing; the trace \
                has next to none",
            )
            .fitted(fitted);
    }
    for (n, (name, values)) in counts.iter().enumerate() {
        let growth = values[3] / values[CHOICE];
        let papers = TABLE[n][3] as f64 / TABLE[n][CHOICE] as f64;
        // W1's begins at those other blocks; what the full NVRAM adds is compared with W3's.
        let (ours, papers, what) = match n {
            0 | 1 => {
                let more = |values: [f64; 2], uniform: f64| (values[1] - values[0]) / uniform;
                let of_paper = [TABLE[n][CHOICE], TABLE[n][3]].map(|count| count as f64);
                (
                    more([values[CHOICE], values[3]], counts[2].1[3]),
                    more(of_paper, TABLE[2][3] as f64),
                    "more journal writes with 100 % than with 75 %, of W3's",
                )
            }
            _ => (
                growth,
                papers,
                "journal writes with 100 %, of those with 75 %",
            ),
        };
        let check = report
            .compare(
                format!("{name}: {what}"),
                said(papers),
                ours,
                format!("{ours:.4}"),
            )
            .because(FULL);
        if n < 2 {
            check.fitted(fitted);
        }
    }
    for (name, values) in counts {
        let lower = &values[..=CHOICE];
        let most = lower.iter().copied().fold(0.0, f64::max);
        let least = lower.iter().copied().fold(f64::INFINITY, f64::min);
        report
            .claim(
                format!("{name}: the same with 25, 50 and 75 % (within 1 %)"),
                "the same",
                format!("{least:.0} to {most:.0}"),
                most - least <= 0.01 * most,
            )
            .because("not known");
    }
}
