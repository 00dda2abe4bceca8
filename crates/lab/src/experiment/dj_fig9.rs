//! Figure 9 of the Delta Journaling paper: overwrites whose difference is the same everywhere.
//!
//! The paper's time ends when everything is durable: with 512 MB DJ "does not trigger a checkpoint
//! operation", so that what DJ has to bring home later is not in it. Both times are shown here,
//! that and the one until everything is home.

use anyhow::Result;

use super::dj::{journal_blocks, nvram_log_bytes, telephone_for_stet};
use super::ground::{Ground, time};
use super::never_worse::NeverWorse;
use super::report::{Chart, Report, Said, Series, Table, Verdict};
use super::{Experiment, Setting};
use crate::system::{DJ_JOURNAL, EXT4_JOURNAL, Measured, Medium, STET_BESIDE};
use crate::workload::overwrite::{BLOCK, Change, Differences, Order};
use crate::workload::{Durable, Overwrite};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "dj-fig9",
    title: "Delta Journaling's gain over ext4: overwrites with differences of 10, 50 and 90 %",
    paper: "Kim, Min, Eom, IEEE Trans. Consumer Electronics 60(2), 2014, Figure 9",
    scale: 0.125,
    has_real_time: true,
    run,
};

const MIB: [u64; 2] = [512, 1024];
const PERCENT: [u32; 3] = [10, 50, 90];
/// The paper's gains at 10 and 90 %.
const PAPERS: [f64; 2] = [16.8, 2.3];
const VOLUME: u64 = 2 << 30;

fn run(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&EXPERIMENT, setting);
    report.setup.push((
        "workload",
        format!(
            "files of {} and {} MiB, read before and then overwritten once from the beginning to \
                the end, 4 KiB a call; in each block one run of \
             bytes is inverted",
            setting.scaled(MIB[0] << 20, 4096)? >> 20,
            setting.scaled(MIB[1] << 20, 4096)? >> 20
        ),
    ));
    let ground = Ground::new(setting, &telephone_for_stet(VOLUME))?;
    ground.describe(setting, &mut report);
    for medium in ground.media(setting) {
        let cells = measure(setting, &ground, medium, Change::Inverted, &PERCENT)?;
        show(&mut report, medium, "", &cells);
        check(&mut report, medium, &cells);
        if setting.real_time && !medium.is_real() {
            note_processor(&mut report, &cells);
        }
        chart(&mut report, medium, &cells);
        let mut compared = NeverWorse::on(medium);
        compare(&mut compared, "", &cells);
        keep(&mut report, cells);
        if !medium.is_real() {
            let cells = measure(setting, &ground, medium, Change::NewValues, &PERCENT[..1])?;
            show(&mut report, medium, ", bytes with new values", &cells);
            compare(&mut compared, ", new values", &cells);
            compared.report(
                "of inverted bytes, whose exclusive or is the same everywhere, DJ logs a few, and \
                    stet all, so that its log is full earlier",
                &mut report,
            );
            keep(&mut report, cells);
        }
    }
    report.notes.push(
        "the paper does not say what its blocks held. Without a checkpoint 512 MB fit into 75 % of \
            16 MB only if a difference of 10 % takes less than 96 \
         bytes, as that of inverted bytes does. New values at random do not"
            .to_owned(),
    );
    Ok(report)
}

/// The systems with one size and difference.
struct Cell {
    percent: u32,
    mib: u64,
    blocks: u64,
    ext4: Measured,
    dj: Measured,
    stet: Measured,
}

impl Cell {
    /// Until everything is durable.
    fn gain(&self) -> f64 {
        self.ext4.durable_ns() as f64 / self.dj.durable_ns() as f64
    }

    /// The same with all the time that this machine took for DJ's run, the workload and the
    /// simulation of the media included.
    fn gain_with_processor(&self) -> f64 {
        self.ext4.durable_ns() as f64 / (self.dj.durable_ns() + self.dj.real_ns) as f64
    }

    /// Until everything is home, where that is known.
    fn gain_home(&self) -> Option<f64> {
        Some(self.ext4.virtual_ns? as f64 / self.dj.virtual_ns? as f64)
    }
}

fn measure(
    setting: &Setting<'_>,
    ground: &Ground,
    medium: Medium,
    change: Change,
    percents: &[u32],
) -> Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for &percent in percents {
        for mib in MIB {
            let blocks = setting.scaled(mib << 20, BLOCK as u64)? / BLOCK as u64;
            let work = Overwrite {
                differences: Differences::Fixed(percent),
                change,
                order: Order::Sequential,
                blocks,
                overwrites: blocks,
                seed: setting.seed,
            };
            let one = |system| ground.measure(setting, (system, medium), &work, Durable::EXT3);
            cells.push(Cell {
                percent,
                mib,
                blocks,
                ext4: one(EXT4_JOURNAL)?,
                dj: one(DJ_JOURNAL)?,
                stet: one(STET_BESIDE)?,
            });
        }
    }
    Ok(cells)
}

fn compare(compared: &mut NeverWorse, kind: &str, cells: &[Cell]) {
    for cell in cells {
        let what = format!("{} % of {} MB{kind}", cell.percent, cell.mib);
        compared.add(what, &cell.stet, &[&cell.ext4, &cell.dj]);
    }
}

fn keep(report: &mut Report, cells: Vec<Cell>) {
    let runs = cells
        .into_iter()
        .flat_map(|cell| [cell.ext4, cell.dj, cell.stet]);
    report.runs.extend(runs);
}

fn show(report: &mut Report, medium: Medium, what: &str, cells: &[Cell]) {
    let title = format!(
        "DJ and ext4, both in journal mode, on {} in {} time{what}",
        medium.name(),
        time(medium)
    );
    let head = [
        "differ, written",
        "ext4, s",
        "DJ, s",
        "gain until durable",
        "until home",
        "NVRAM a block",
        "journal blocks, ext4 and DJ",
        "checkpoints, ext4 and DJ",
    ];
    let mut table = Table::new(title, head);
    for cell in cells {
        let seconds = |run: &Measured| format!("{:.3}", run.durable_ns() as f64 / 1e9);
        let home = cell
            .gain_home()
            .map_or("-".to_owned(), |gain| format!("{gain:.2}x"));
        table.row(
            format!("{} %, {} MB", cell.percent, cell.mib),
            [
                seconds(&cell.ext4),
                seconds(&cell.dj),
                format!("{:.2}x", cell.gain()),
                home,
                format!(
                    "{:.1}",
                    nvram_log_bytes(&cell.dj) as f64 / cell.blocks as f64
                ),
                format!(
                    "{} {}",
                    journal_blocks(&cell.ext4),
                    journal_blocks(&cell.dj)
                ),
                format!("{} {}", cell.ext4.checkpoints, cell.dj.checkpoints),
            ],
        );
    }
    report.tables.push(table);
}

fn check(report: &mut Report, medium: Medium, cells: &[Cell]) {
    for cell in cells {
        let at = MIB.iter().position(|mib| *mib == cell.mib).expect("a size");
        let claim = format!(
            "{} % of {} MB, {} time: gain over ext4",
            cell.percent,
            cell.mib,
            time(medium)
        );
        let gain = cell.gain();
        let ours = format!("{gain:.2}x");
        let papers = PAPERS[at];
        let is_real = medium.is_real();
        let why = |verdict| match (is_real, verdict) {
            (false, Verdict::Overshot) => format!(
                "virtual time has no processor in it, of which most of DJ's time in the paper \
                    consists; DJ writes {} blocks to the card until everything \
                 is durable, ext4 {}",
                journal_blocks(&cell.dj),
                journal_blocks(&cell.ext4)
            ),
            (true, _) => "this machine's disk is not the paper's card, and is shared".to_owned(),
            _ => "not known".to_owned(),
        };
        match cell.percent {
            50 => report
                .compare(claim, Said::figure("about 1", 1.0).within(0.05), gain, ours)
                .because_of(why),
            _ => report
                .compare(
                    claim,
                    Said::figure(format!("{papers}x"), papers),
                    gain,
                    ours,
                )
                .because_of(why)
                .fitted(
                    "what differs in a block are inverted bytes, so that 512 MB fit into the \
                    NVRAM without a checkpoint, as in the paper",
                ),
        };
    }
}

/// Virtual time is that of media alone, and DJ hardly uses them where it makes no checkpoint.
fn note_processor(report: &mut Report, cells: &[Cell]) {
    let far = cells.iter().filter(|cell| cell.percent != 50);
    let gains = far.map(|cell| {
        format!(
            "{:.1}x ({} % of {} MB)",
            cell.gain_with_processor(),
            cell.percent,
            cell.mib
        )
    });
    report.notes.push(format!(
        "virtual time is that of card and NVRAM alone. If all the time that this machine took for \
            DJ's run, workload and simulation included, is added to DJ's \
         and not to ext4's, the gains are {}",
        gains.collect::<Vec<_>>().join(", ")
    ));
}

/// As the paper draws it: times, normalized to ext4.
fn chart(report: &mut Report, medium: Medium, cells: &[Cell]) {
    let normalized = |mib: u64| {
        let of = cells.iter().filter(|cell| cell.mib == mib);
        of.map(|cell| Some(1.0 / cell.gain())).collect()
    };
    report.charts.push(Chart {
        name: format!("dj-fig9-{}", medium.name()),
        title: format!(
            "Time of DJ until everything is durable, on {} in {} time",
            medium.name(),
            time(medium)
        ),
        unit: "of ext4's".to_owned(),
        groups: PERCENT
            .iter()
            .map(|percent| format!("{percent} %"))
            .collect(),
        series: MIB
            .iter()
            .map(|mib| Series {
                name: format!("{mib} MB"),
                values: normalized(*mib),
            })
            .collect(),
        lines: vec![
            ("paper: 512 MB at 10 and 90 %".to_owned(), 1.0 / PAPERS[0]),
            ("paper: 1,024 MB".to_owned(), 1.0 / PAPERS[1]),
        ],
    });
}
