//! Figure 8 of the JFTL paper: IOzone's write and rewrite by the size of requests.
//!
//! The paper says that bandwidth grows with the size of requests "due to the metadata update
//! between each write": so each request is durable when it returns. Where transactions are
//! collected for 5 s, the size of requests makes no difference; that is measured too, also with a
//! file that is larger than the journal.

use anyhow::Result;

use super::jftl::{CONFIGURATIONS, Ground, KINDS, Row, check, show_bandwidth, show_pages};
use super::report::{Report, Said, Table};
use super::{Experiment, Setting};
use crate::system::{JOURNAL_EACH, ORDERED_EACH};
use crate::workload::Durable;
use crate::workload::iozone::{Iozone, Test};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "jftl-fig8",
    title: "JFTL and plain ext3 on flash: IOzone's write and rewrite by the size of requests",
    paper: "Lim, Choi, Park, HPCC 2007, Figure 8",
    scale: 1.0,
    has_real_time: false,
    run,
};

const TESTS: [Test; 2] = [Test::Write, Test::Rewrite];
const KIB: [u32; 6] = [4, 16, 64, 256, 1024, 4096];
const FILE: u64 = 4 << 20;
/// Several times the journal.
const LARGE_FILE: u64 = 32 << 20;
/// One of the graphs.
struct Graph {
    /// The name of its charts.
    file: &'static str,
    durable: Durable,
    bytes: u64,
}

const GRAPHS: [Graph; 3] = [
    Graph {
        file: "sync",
        durable: Durable::EachWrite,
        bytes: FILE,
    },
    Graph {
        file: "5s",
        durable: Durable::EXT3,
        bytes: FILE,
    },
    Graph {
        file: "large",
        durable: Durable::EXT3,
        bytes: LARGE_FILE,
    },
];

fn run(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&EXPERIMENT, setting);
    report.setup.push((
        "workload",
        "IOzone write (a new file) and rewrite (the same file again), each request durable, or \
            commit every 5 s; until everything is home"
            .to_owned(),
    ));
    let (name, what) = CONFIGURATIONS;
    report.setup.push((name, what.to_owned()));
    for kind in KINDS {
        let ground = Ground::new(setting, kind)?;
        ground.describe(&mut report);
        for graph in &GRAPHS {
            for test in TESTS {
                measure(setting, &mut report, &ground, graph, test)?;
            }
        }
    }
    Ok(report)
}

fn measure(
    setting: &Setting<'_>,
    report: &mut Report,
    ground: &Ground,
    graph: &Graph,
    test: Test,
) -> Result<()> {
    let memory_mib = ground.kind.memory_mib;
    let memory_mib = (setting.scaled(memory_mib << 20, 1 << 20)? >> 20).max(memory_mib);
    let file_bytes = setting.scaled(graph.bytes, 4096)?;
    let kib = KIB
        .into_iter()
        .filter(|kib| u64::from(*kib) << 10 <= file_bytes);
    let works: Vec<_> = kib
        .map(|kib| {
            let work = Iozone::packed(test, file_bytes, kib << 10, setting.seed);
            (format!("{kib} KiB"), work)
        })
        .collect();
    let mut rows: Vec<(String, Row)> = Vec::new();
    for (name, work) in &works {
        let row = ground.measure(setting, memory_mib, work, graph.durable)?;
        rows.push((name.clone(), row));
    }
    let how = match graph.durable {
        Durable::EachWrite => "each durable",
        Durable::Every(_) => "commit every 5 s",
    };
    let what = format!(
        "{}, {}, {} MiB, {how}",
        ground.name(),
        test.name(),
        file_bytes as f64 / f64::from(1 << 20)
    );
    let title = format!("IOzone on {what}");
    let file = format!("{}{}-{}", ground.kind.key, test.name(), graph.file);
    show_bandwidth(report, &EXPERIMENT, (&file, &title), &rows);
    let ends = rows.first().into_iter().chain(rows.last());
    let ends: Vec<_> = ends.map(|(name, row)| (name.clone(), row)).collect();
    show_pages(report, &title, &ends);
    check(report, &what, &rows);
    let mut each = Vec::new();
    if graph.durable == Durable::EachWrite {
        check_growth(report, &what, test, &rows);
        for (_, work) in &works {
            let systems = [ORDERED_EACH, JOURNAL_EACH];
            each.push(ground.measure_on(&systems, setting, memory_mib, work, graph.durable)?);
        }
        show_each(report, &title, &rows, &each);
    }
    let rows = rows.into_iter().map(|(_, row)| row).chain(each);
    report.runs.extend(rows.flat_map(|row| row.0));
    Ok(())
}

/// What the paper says of the size of requests.
fn check_growth(report: &mut Report, what: &str, test: Test, rows: &[(String, Row)]) {
    let ordered = rows.iter().map(|(_, row)| row.mib_s(0));
    let (least, most) = ordered.fold((f64::INFINITY, 0.0), |(least, most), rate| {
        (f64::min(least, rate), f64::max(most, rate))
    });
    let growth = most / least;
    let ours = format!("{growth:.2}x from the smallest to the largest");
    match test {
        Test::Rewrite => {
            let claim = format!("{what}: ordered is constant");
            let said = Said::at_most("constant", 1.0).within(0.1);
            report.compare(claim, said, growth, ours).because(
                "a durable write takes the inode with the time of the write along: descriptor, \
                    inode and commit record in the log. The paper's \
                 kernel noted that time once in a second",
            );
        }
        _ => {
            let claim = format!("{what}: ordered grows with the size of requests");
            let said = Said::at_least("grows (taken for a tenth)", 1.1);
            report
                .compare(claim, said, growth, ours)
                .because("not known");
        }
    }
}

/// What the paper's own way gives: to remap after each commit.
fn show_each(report: &mut Report, title: &str, rows: &[(String, Row)], each: &[Row]) {
    let names = [ORDERED_EACH, JOURNAL_EACH].map(|s| s.name);
    let title = format!(
        "{title}, remapped after each commit as in the paper: MiB/s, and to that of remap=batch"
    );
    let mut table = Table::new(title, std::iter::once("").chain(names));
    for ((name, row), each) in rows.iter().zip(each) {
        // With remap=batch they are the second and the fourth.
        let cell = |at: usize| {
            let rate = each.mib_s(at);
            format!("{rate:.3} ({:.2})", rate / row.mib_s(2 * at + 1))
        };
        table.row(name, [0, 1].map(cell));
    }
    report.tables.push(table);
}
