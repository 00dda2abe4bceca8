//! Figure 6 of the Spindle paper: filebench's servers, by the size of their files.

use anyhow::Result;

use super::ground::{Ground, time};
use super::never_worse::NeverWorse;
use super::nvm_cache::{DISK, a_second, fences_each, lines_each, nvm_us_each, written_home};
use super::report::{Chart, Report, Said, Series, Table};
use super::spindle_fig5::{MACHINE, OLD_VERSIONS};
use super::{Experiment, Setting};
use crate::system::{
    EXT4_JOURNAL, Measured, Medium, SPINDLE, SPINDLE_2, STET_BESIDE, System, TINCA,
};
use crate::workload::{Durable, Filebench, Personality};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "spindle-fig6",
    title: "Spindle against Tinca: filebench's fileserver, webproxy and varmail, by the size of \
        files",
    paper: "Yan, Huang, Huang, NPC 2019, Figure 6",
    scale: 1.0 / 128.0,
    has_real_time: true,
    run,
};

/// Table 1.
const DATA: u64 = 20 << 30;
/// The text does not name the sizes: these are around filebench's own.
const KIB: [u64; 4] = [16, 32, 64, 128];
/// filebench writes a data set's size in its files; a run handles so much of it.
const TURNS: u64 = 1;

const SYSTEMS: [System; 5] = [SPINDLE, TINCA, SPINDLE_2, EXT4_JOURNAL, STET_BESIDE];
/// Where stet stands among them, behind the others.
const STET_AT: usize = 4;

/// What the paper says of a personality: the gain over Tinca where it is most.
fn paper(personality: Personality) -> Said {
    match personality {
        Personality::Fileserver => Said::figure("up to 1.407x", 1.407),
        Personality::Webproxy => Said::figure("up to 1.47x", 1.47),
        // Tinca's throughput is 20.9 to 33.5 % lower than Spindle's.
        Personality::Varmail => Said::figure("1.26 to 1.50x", 1.0 / (1.0 - 0.335)),
    }
}

fn run(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&EXPERIMENT, setting);
    let ground = Ground::new(setting, &MACHINE)?;
    let data = setting.scaled(DATA, 1 << 20)?;
    let bench = |personality, data, mean_bytes, seed| Filebench {
        // Table 1.
        piece_bytes: 16 << 10,
        ..bench(personality, data, mean_bytes, seed)
    };
    report.setup.push((
        "workload",
        format!(
            "sets of {} MiB, in files of 16 to 128 KiB on average (the paper's text names no \
                sizes), with filebench's own threads and lists; each thread goes \
             through its list as often as it takes to make as many files as the set has. The paper \
             runs 30 minutes",
            data >> 20
        ),
    ));
    ground.describe(setting, &mut report);
    for medium in ground.media(setting) {
        let mut compared = NeverWorse::on(medium);
        for personality in Personality::ALL {
            let mut cells = Vec::new();
            for kib in KIB {
                let bench = bench(personality, data, kib << 10, setting.seed);
                for system in SYSTEMS {
                    let run = ground.measure(setting, (system, medium), &bench, Durable::EXT3)?;
                    cells.push((bench.operations(), run));
                }
            }
            show(&mut report, medium, personality, &cells);
            if !medium.is_real() {
                check(&mut report, personality, &cells);
                for (kib, runs) in KIB.iter().zip(cells.chunks(SYSTEMS.len())) {
                    let others: Vec<_> = runs[..STET_AT].iter().map(|(_, run)| run).collect();
                    let what = format!("{}, {kib} KiB", personality.name());
                    compared.add(what, &runs[STET_AT].1, &others);
                }
            }
            chart(&mut report, medium, personality, &cells);
            report.runs.extend(cells.into_iter().map(|(_, run)| run));
        }
        if !medium.is_real() {
            compared.report(OLD_VERSIONS, &mut report);
        }
    }
    Ok(report)
}

/// A personality on a set of so many bytes.
pub(super) fn bench(personality: Personality, data: u64, mean_bytes: u64, seed: u64) -> Filebench {
    let own = Filebench::new(personality, 1, seed);
    // Each thread has a file open, of those that do not exist in the beginning.
    let files = ((data / mean_bytes) as u32).max(6 * own.threads);
    let loops = (u64::from(files) * TURNS).div_ceil(own.threads.into());
    Filebench {
        files,
        mean_file_bytes: mean_bytes,
        loops: loops as u32,
        ..own
    }
}

type Cell = (u64, Measured);

fn gain(runs: &[Cell]) -> f64 {
    let rate = |n: usize| a_second(runs[n].0, &runs[n].1);
    rate(0) / rate(1)
}

fn show(report: &mut Report, medium: Medium, personality: Personality, cells: &[Cell]) {
    let title = format!(
        "{} on {} in {} time",
        personality.name(),
        medium.name(),
        time(medium)
    );
    let head = [
        "files of, system",
        "operations/s",
        "of Tinca's",
        "lines an operation",
        "fences an operation",
        "NVM, us an operation",
        "blocks written home",
    ];
    let mut table = Table::new(title, head);
    for (kib, runs) in KIB.iter().zip(cells.chunks(SYSTEMS.len())) {
        let tinca = a_second(runs[1].0, &runs[1].1);
        for (operations, run) in runs {
            table.row(
                format!("{kib} KiB, {}", run.system),
                [
                    format!("{:.0}", a_second(*operations, run)),
                    format!("{:.3}x", a_second(*operations, run) / tinca),
                    format!("{:.1}", lines_each(*operations, run)),
                    format!("{:.2}", fences_each(*operations, run)),
                    format!("{:.2}", nvm_us_each(*operations, run)),
                    written_home(run),
                ],
            );
        }
    }
    report.tables.push(table);
}

fn check(report: &mut Report, personality: Personality, cells: &[Cell]) {
    let gains = cells.chunks(SYSTEMS.len()).map(gain);
    let (least, most) = gains.fold((f64::MAX, f64::MIN), |(least, most), gain| {
        (least.min(gain), most.max(gain))
    });
    report
        .compare(
            format!(
                "{}: throughput over Tinca, where it is most",
                personality.name()
            ),
            paper(personality),
            most,
            format!("{least:.3} to {most:.3}x"),
        )
        .because(DISK);
    let in_nvm = cells.chunks(SYSTEMS.len()).map(|runs| {
        let [ours, tinca] = [0, 1].map(|n| nvm_us_each(runs[n].0, &runs[n].1));
        tinca / ours
    });
    let (least, most) = in_nvm.fold((f64::MAX, f64::MIN), |(least, most), gain| {
        (least.min(gain), most.max(gain))
    });
    report.notes.push(format!(
        "{}: in the time of the NVM alone the gain is {least:.2} to {most:.2}x",
        personality.name()
    ));
}

fn chart(report: &mut Report, medium: Medium, personality: Personality, cells: &[Cell]) {
    let series = SYSTEMS.iter().enumerate().map(|(n, system)| Series {
        name: system.name.to_owned(),
        values: cells
            .chunks(SYSTEMS.len())
            .map(|runs| Some(a_second(runs[n].0, &runs[n].1)))
            .collect(),
    });
    let name = medium.name().replace(' ', "-");
    report.charts.push(Chart {
        name: format!("spindle-fig6-{}-{name}", personality.name()),
        title: format!(
            "{}, by the size of files, {} time",
            personality.name(),
            time(medium)
        ),
        unit: "operations/s".to_owned(),
        groups: KIB.iter().map(|kib| format!("{kib} KiB")).collect(),
        series: series.collect(),
        lines: Vec::new(),
    });
}
