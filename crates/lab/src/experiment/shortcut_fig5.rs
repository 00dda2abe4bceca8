//! Figure 5 of the Shortcut-JFS paper: its four variants and ext3 by the size of writes; and stet
//! beside them.

use anyhow::Result;
use stetfs_media::Cause;

use super::report::{Chart, Report, Said, Series, Table};
use super::{Experiment, Setting};
use crate::system::{
    ADP_S, BLK, BLK_S, DIFF, EXT3, EXT3_4K, Measured, Medium, PCM, STET_IN_MEMORY, System, Volume,
};
use crate::workload::Durable;
use crate::workload::iozone::{Iozone, Test};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shortcut-fig5",
    title: "Shortcut-JFS's variants and ext3 by the size of writes: bytes and throughput",
    paper: "Lee, Yoo, Jang, Bahn, MSST 2012, Figure 5",
    scale: 0.125,
    has_real_time: true,
    run,
};

const SYSTEMS: [System; 6] = [EXT3, BLK, DIFF, BLK_S, ADP_S, STET_IN_MEMORY];
// Where each stands among them.
const EXT3_AT: usize = 0;
const BLK_AT: usize = 1;
const DIFF_AT: usize = 2;
const BLK_S_AT: usize = 3;
const ADP_S_AT: usize = 4;
const STET_AT: usize = 5;
const KIB: [u32; 4] = [1, 2, 3, 4];
const BLOCK: u32 = 4096;

/// The paper gives no size of its files; this is iozone's largest by itself (`-a`).
const FILE: u64 = 512 << 20;
/// What mke2fs makes of a ram disk of this size.
const VOLUME: u64 = 2 << 30;
const JOURNAL: u64 = 64 << 20;
const MEMORY_MIB: u64 = 256;

/// Bytes that the paper's Table I writes of data for a write of `len` bytes into one block: log and
/// checkpoint. It has no stet.
fn by_table(system: usize, len: u64) -> Option<u64> {
    let (block, is_more_than_half) = (u64::from(BLOCK), len > u64::from(BLOCK) / 2);
    match system {
        EXT3_AT | BLK_AT => Some(2 * block),
        BLK_S_AT => Some(block),
        ADP_S_AT if is_more_than_half => Some(block),
        STET_AT => None,
        _ => Some(2 * len),
    }
}

fn run(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&EXPERIMENT, setting);
    let volume = setting.volume(EXT3_4K, VOLUME, JOURNAL)?;
    let file_bytes = setting.scaled(FILE, 1 << 20)?;
    report.setup = vec![
        (
            "workload",
            "iozone random write, each write durable (O_SYNC), one record a block: each block of \
                the file changes once"
                .to_owned(),
        ),
        (
            "file",
            format!(
                "{} MiB (the paper names none; iozone's largest is 512 MiB)",
                file_bytes >> 20
            ),
        ),
        (
            "volume",
            format!(
                "ext3, {} MiB, blocks of 4 KiB, journal of {} MiB, for all systems",
                volume.mib, volume.journal_mib
            ),
        ),
    ];
    let work = |kib: u32| Iozone {
        test: Test::RandomWrite,
        file_bytes,
        record_bytes: kib << 10,
        room_bytes: BLOCK,
        seed: setting.seed,
    };
    for medium in setting.media(PCM) {
        report.measured_on(medium);
        let mut runs: Vec<Vec<Measured>> = Vec::new();
        for kib in KIB {
            let on = |system| {
                setting.median(
                    (system, medium),
                    &volume,
                    MEMORY_MIB,
                    &work(kib),
                    Durable::EachWrite,
                )
            };
            runs.push(SYSTEMS.into_iter().map(on).collect::<Result<_>>()?);
        }
        if medium == PCM {
            show_bytes(&mut report, &runs);
            check_bytes(&mut report, &runs);
            check_times(&mut report, &runs);
        }
        show_throughput(&mut report, medium, &runs);
        report.runs.extend(runs.into_iter().flatten());
    }
    packed(setting, &mut report, &volume, file_bytes)?;
    Ok(report)
}

fn writes(run: &Measured, kib: u32) -> f64 {
    run.counts.written_bytes as f64 / f64::from(kib << 10)
}

/// Bytes written to the medium by a write.
fn each(run: &Measured, kib: u32) -> f64 {
    run.written() as f64 / writes(run, kib)
}

fn show_bytes(report: &mut Report, runs: &[Vec<Measured>]) {
    let head = [
        "write",
        "system",
        "log",
        "commit record",
        "home",
        "checkpoint",
        "all",
        "data by Table I",
        "the rest",
    ];
    let mut table = Table::new(
        "bytes written to PCM by each write, until everything is home",
        head,
    );
    for (kib, runs) in KIB.into_iter().zip(runs) {
        for (at, run) in runs.iter().enumerate() {
            let n = writes(run, kib);
            let cause = |cause| run.device.by_cause(cause).write_bytes as f64 / n;
            let all = each(run, kib);
            let data = by_table(at, u64::from(kib) << 10).map(|data| data as f64);
            let cells = [
                Some(cause(Cause::Log)),
                Some(cause(Cause::CommitRecord)),
                Some(cause(Cause::Home)),
                Some(cause(Cause::Checkpoint)),
                Some(all),
                data,
                data.map(|data| all - data),
            ];
            let mut row = vec![run.system.to_owned()];
            row.extend(cells.map(|cell| cell.map_or("-".to_owned(), |c| format!("{c:.0}"))));
            table.row(format!("{kib} KiB"), row);
        }
    }
    report.tables.push(table);
    let series = |at: usize, system: System| Series {
        name: system.name.to_owned(),
        values: KIB
            .into_iter()
            .zip(runs)
            .map(|(kib, r)| Some(each(&r[at], kib) / 1024.0))
            .collect(),
    };
    let paper = |name: &str, at: usize| Series {
        name: name.to_owned(),
        values: KIB
            .map(|kib| by_table(at, u64::from(kib) << 10).map(|data| data as f64 / 1024.0))
            .into(),
    };
    let mut all: Vec<_> = SYSTEMS
        .into_iter()
        .enumerate()
        .map(|(at, s)| series(at, s))
        .collect();
    all.push(paper("adp-s by Table I, data only", ADP_S_AT));
    report.charts.push(Chart {
        name: "shortcut-fig5-bytes".to_owned(),
        title: "Bytes written by each write".to_owned(),
        unit: "KiB".to_owned(),
        groups: KIB.map(|kib| format!("{kib} KiB")).into(),
        series: all,
        lines: Vec::new(),
    });
}

/// How far a ratio of all bytes may be from the paper's, which counts data only.
const NEAR: f64 = 0.2;

fn check_bytes(report: &mut Report, runs: &[Vec<Measured>]) {
    let ratio = |kib: u32, a: usize, b: usize| {
        let at = (kib - 1) as usize;
        each(&runs[at][a], kib) / each(&runs[at][b], kib)
    };
    let mut check = |kib: u32, a: usize, b: usize, exact: f64, paper: &str| {
        let ours = ratio(kib, a, b);
        let (a, b) = (SYSTEMS[a].name, SYSTEMS[b].name);
        let said = Said::figure(paper, exact).within(NEAR).less_is_better();
        report
            .compare(
                format!("{kib} KiB: bytes of {a} to those of {b}"),
                said,
                ours,
                format!("{ours:.2}"),
            )
            .because("the paper counts data alone; metadata and headers come on top");
    };
    check(1, BLK_AT, DIFF_AT, 4.0, "about 4");
    check(1, BLK_AT, ADP_S_AT, 4.0, "about 4");
    check(2, BLK_S_AT, DIFF_AT, 1.0, "equal");
    check(2, ADP_S_AT, DIFF_AT, 1.0, "equal");
    check(3, BLK_S_AT, DIFF_AT, 2.0 / 3.0, "two thirds");
    check(3, ADP_S_AT, DIFF_AT, 2.0 / 3.0, "two thirds");
    check(4, BLK_S_AT, DIFF_AT, 0.5, "half");
    check(4, ADP_S_AT, DIFF_AT, 0.5, "half");
    for kib in KIB {
        best(report, (ADP_S_AT, PAPERS), runs, kib, "bytes", |run| {
            each(run, kib)
        });
    }
    for kib in KIB {
        best(report, (STET_AT, AIM), runs, kib, "bytes", |run| {
            each(run, kib)
        });
    }
}

/// What the paper says of adp-s.
const PAPERS: &str = "best or equal";
/// What this project aims at with stet.
const AIM: &str = "our aim: best or equal";

/// That a system has the least of it, or hardly more than the best of those before it.
fn best(
    report: &mut Report,
    (at, said): (usize, &str),
    runs: &[Vec<Measured>],
    kib: u32,
    of: &str,
    cost: impl Fn(&Measured) -> f64,
) {
    let runs = &runs[(kib - 1) as usize];
    let others = runs.iter().take(at);
    let (least, name) = others
        .map(|r| (cost(r), r.system))
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .expect("other systems");
    let ours = cost(&runs[at]) / least;
    let claim = format!("{kib} KiB: {} is best or equal in {of}", runs[at].system);
    let said = Said::at_most(said, 1.0).within(0.005);
    report
        .compare(claim, said, ours, format!("{ours:.3} of {name}"))
        .because("not known");
}

fn check_times(report: &mut Report, runs: &[Vec<Measured>]) {
    for system in [(ADP_S_AT, PAPERS), (STET_AT, AIM)] {
        for kib in KIB {
            best(report, system, runs, kib, "virtual time", |run| {
                run.elapsed_ns() as f64
            });
        }
    }
    let gains = runs
        .iter()
        .map(|r| r[EXT3_AT].elapsed_ns() as f64 / r[BLK_AT].elapsed_ns() as f64);
    let least = gains.fold(f64::INFINITY, f64::min);
    let said = Said::at_least("by a large margin (taken for half)", 1.5);
    report
        .compare(
            "blk is faster than ext3 at every size",
            said,
            least,
            format!("{least:.2}x at least"),
        )
        .because("nothing is charged here for the block layer, which the paper says costs it");
}

fn show_throughput(report: &mut Report, medium: Medium, runs: &[Vec<Measured>]) {
    let time = if medium == PCM { "virtual" } else { "real" };
    let title = format!(
        "throughput on {}, MiB/s in {time} time, and as a multiple of ext3's",
        medium.name()
    );
    let names = SYSTEMS.map(|s| s.name);
    let mut table = Table::new(title, std::iter::once("write").chain(names));
    for (kib, runs) in KIB.into_iter().zip(runs) {
        let base = runs[EXT3_AT].write_mib_s();
        let cell = |run: &Measured| {
            format!(
                "{:.1} ({:.2}x)",
                run.write_mib_s(),
                run.write_mib_s() / base
            )
        };
        table.row(format!("{kib} KiB"), runs.iter().map(cell));
    }
    report.tables.push(table);
    let series = |at: usize| Series {
        name: names[at].to_owned(),
        values: runs.iter().map(|r| Some(r[at].write_mib_s())).collect(),
    };
    report.charts.push(Chart {
        name: format!("shortcut-fig5-{}", medium.name()),
        title: format!("Throughput on {}, {time} time", medium.name()),
        unit: "MiB/s".to_owned(),
        groups: KIB.map(|kib| format!("{kib} KiB")).into(),
        series: (0..SYSTEMS.len()).map(series).collect(),
        lines: Vec::new(),
    });
}

/// Records of 3 KiB as iozone has them, one behind the other: half of them lie across two blocks.
fn packed(
    setting: &Setting<'_>,
    report: &mut Report,
    volume: &Volume,
    file_bytes: u64,
) -> Result<()> {
    let work = Iozone::packed(Test::RandomWrite, file_bytes, 3 << 10, setting.seed);
    let mut table = Table::new(
        "3 KiB packed as iozone does it, half of the records across two blocks: bytes by each \
            write, and MiB/s on PCM",
        ["system", "bytes", "MiB/s"],
    );
    for system in SYSTEMS {
        let run = setting.measure((system, PCM), volume, MEMORY_MIB, &work, Durable::EachWrite)?;
        table.row(
            system.name,
            [
                format!("{:.0}", each(&run, 3)),
                format!("{:.1}", run.write_mib_s()),
            ],
        );
        report.runs.push(run);
    }
    report.tables.push(table);
    report.notes.push(
        "The paper's sizes suppose one write a block. iozone packs records, and of 3 \
        KiB only every other one changes more than half of a block."
            .to_owned(),
    );
    Ok(())
}
