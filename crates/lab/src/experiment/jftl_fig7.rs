//! Figure 7 of the JFTL paper: Bonnie's character and block write, and its rewrite, with files that
//! grow.
//!
//! The figure's axis is not in the text; its files must fit a part of 128 MB. Rewrite is not
//! plotted in the paper.

use anyhow::Result;

use super::jftl::{CONFIGURATIONS, Ground, KINDS, Row, check, show_bandwidth, show_pages};
use super::report::Report;
use super::{Experiment, Setting};
use crate::workload::Durable;
use crate::workload::bonnie::{Bonnie, Test};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "jftl-fig7",
    title: "JFTL and plain ext3 on flash: Bonnie's writes by the size of the file",
    paper: "Lim, Choi, Park, HPCC 2007, Figure 7",
    scale: 1.0,
    has_real_time: false,
    run,
};

const FILES: [u64; 4] = [8 << 20, 16 << 20, 32 << 20, 64 << 20];
const BLOCK: u32 = 4096;
/// Where the file was written just before, all of it is in the cache.
const REWRITE_MEMORY_MIB: u64 = 256;

/// The name of each test's chart.
fn file_of(test: Test) -> &'static str {
    match test {
        Test::CharacterWrite => "character",
        Test::Rewrite => "rewrite",
        Test::BlockWrite => "block",
    }
}

fn run(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&EXPERIMENT, setting);
    report.setup.push((
        "workload",
        "Bonnie: putc() through a buffer of 4 KiB, write() of 4 KiB, and read, change, write of 4 \
            KiB; commit every 5 s; until everything is \
         home"
            .to_owned(),
    ));
    let (name, what) = CONFIGURATIONS;
    report.setup.push((name, what.to_owned()));
    for kind in KINDS {
        let ground = Ground::new(setting, kind)?;
        ground.describe(&mut report);
        for test in Test::ALL {
            measure(setting, &mut report, &ground, test)?;
        }
    }
    Ok(report)
}

fn measure(setting: &Setting<'_>, report: &mut Report, ground: &Ground, test: Test) -> Result<()> {
    let memory_mib = match test {
        Test::Rewrite => REWRITE_MEMORY_MIB,
        _ => ground.kind.memory_mib,
    };
    let mut rows: Vec<(String, Row)> = Vec::new();
    for bytes in FILES {
        let work = Bonnie {
            test,
            file_bytes: setting.scaled(bytes, BLOCK.into())?,
            block_bytes: BLOCK,
        };
        let memory_mib = (setting.scaled(memory_mib << 20, 1 << 20)? >> 20).max(memory_mib);
        let row = ground.measure(setting, memory_mib, &work, Durable::EXT3)?;
        let name = format!("{} MiB", work.file_bytes as f64 / f64::from(1 << 20));
        rows.push((name, row));
    }
    let what = format!("{}, {}", ground.name(), test.name());
    let title = format!("Bonnie on {what}");
    let file = format!("{}{}", ground.kind.key, file_of(test));
    show_bandwidth(report, &EXPERIMENT, (&file, &title), &rows);
    let ends = rows.first().into_iter().chain(rows.last());
    let ends: Vec<_> = ends.map(|(name, row)| (name.clone(), row)).collect();
    show_pages(report, &title, &ends);
    check(report, &what, &rows);
    report
        .runs
        .extend(rows.into_iter().flat_map(|(_, row)| row.0));
    Ok(())
}
