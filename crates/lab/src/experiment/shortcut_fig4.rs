//! Figure 4 of the Shortcut-JFS paper: Shortcut-JFS against ext3 with iozone and PostMark; and stet
//! beside them.
//!
//! The paper commits every 5 seconds, and says of PostMark's filesets that they write 500 and 300
//! MB in all. Files of one size and the original's biases give just that in the transactions, 500
//! creations of 1 MB and 6 of 50 MB, so that is what is run.

use anyhow::Result;
use stetfs_media::Cause;

use super::report::{Chart, Report, Said, Series, Table, Verdict, geometric_mean};
use super::{Experiment, Setting};
use crate::system::{ADP_S, EXT3, EXT3_4K, Measured, Medium, PCM, STET_IN_MEMORY, Volume};
use crate::workload::iozone::{Iozone, Test};
use crate::workload::{Durable, Postmark, Workload};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shortcut-fig4",
    title: "Shortcut-JFS's gain over ext3: four tests of iozone, two filesets of PostMark",
    paper: "Lee, Yoo, Jang, Bahn, MSST 2012, Figure 4",
    scale: 0.125,
    has_real_time: true,
    run,
};

/// The paper's averages.
const IOZONE_GAIN: f64 = 2.1;
const POSTMARK_GAIN: f64 = 1.8;

const KIB: [u32; 4] = [1, 2, 3, 4];
/// In real time only whole blocks are written: ext3 takes its time.
const REAL_KIB: [u32; 1] = [4];

/// The paper names no size; this is iozone's largest by itself (`-a`).
const FILE: u64 = 512 << 20;
/// Room for a thousand files of 1 MB, and what mke2fs makes of it.
const VOLUME: u64 = 2 << 30;
const JOURNAL: u64 = 64 << 20;
/// So that ext3 has what it reads in its cache, half of this, as the paper's machine had.
const MEMORY: u64 = 4 << 30;
const MB: u64 = 1_000_000;

/// Runs whose gains are averaged.
struct Group {
    name: &'static str,
    durable: Durable,
    works: Vec<(String, Vec<Box<dyn Workload>>)>,
    paper: f64,
}

fn groups(setting: &Setting<'_>, kib: &[u32]) -> Result<Vec<Group>> {
    let seed = setting.seed;
    let file_bytes = setting.scaled(FILE, 1 << 20)?;
    let iozone = || {
        let row = |test: Test| {
            let one = |&kib: &u32| -> Box<dyn Workload> {
                Box::new(Iozone::packed(test, file_bytes, kib << 10, seed))
            };
            (
                format!("iozone {}", test.name()),
                kib.iter().map(one).collect(),
            )
        };
        Test::ALL.into_iter().map(row).collect()
    };
    let fileset = |name: &str, files: u32, transactions: u32, size: u64| -> Result<_> {
        let size = setting.scaled(size, 512)?;
        let one = |&kib: &u32| -> Box<dyn Workload> {
            Box::new(Postmark {
                files,
                transactions,
                size_low: size,
                size_high: size,
                read_block: kib << 10,
                write_block: kib << 10,
                buffered: false,
                seed,
                ..Postmark::default()
            })
        };
        Ok((format!("postmark {name}"), kib.iter().map(one).collect()))
    };
    let filesets = vec![
        fileset("fileset 1", 1000, 1000, MB)?,
        fileset("fileset 2", 10, 10, 50 * MB)?,
    ];
    Ok(vec![
        Group {
            name: "iozone, commit every 5 s",
            durable: Durable::EXT3,
            works: iozone(),
            paper: IOZONE_GAIN,
        },
        Group {
            name: "iozone, each write durable",
            durable: Durable::EachWrite,
            works: iozone(),
            paper: IOZONE_GAIN,
        },
        Group {
            name: "postmark, commit every 5 s",
            durable: Durable::EXT3,
            works: filesets,
            paper: POSTMARK_GAIN,
        },
    ])
}

fn run(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&EXPERIMENT, setting);
    let volume = setting.volume(EXT3_4K, VOLUME, JOURNAL)?;
    let memory_mib = (setting.scaled(MEMORY, 1 << 20)? >> 20).max(64);
    let file_mib = setting.scaled(FILE, 1 << 20)? >> 20;
    let [small, large] = [MB, 50 * MB].map(|bytes| setting.scaled(bytes, 512));
    report.setup = vec![
        (
            "iozone",
            format!("a file of {file_mib} MiB (the paper names no size), records packed"),
        ),
        (
            "postmark",
            format!(
                "fileset 1: 1000 transactions on 1000 files of {} bytes; fileset 2: 10 on 10 of \
                    {}; biases 5 and 5, unbuffered",
                small?, large?
            ),
        ),
        (
            "volume",
            format!(
                "ext3, {} MiB, blocks of 4 KiB, journal of {} MiB, caches of {memory_mib} MiB, for \
                    all systems",
                volume.mib, volume.journal_mib
            ),
        ),
    ];
    for medium in setting.media(PCM) {
        let kib: &[u32] = if medium == PCM { &KIB } else { &REAL_KIB };
        report.measured_on(medium);
        measure(setting, &mut report, &volume, memory_mib, medium, kib)?;
    }
    Ok(report)
}

/// The systems with one workload.
struct Cell {
    ext3: Measured,
    adp_s: Measured,
    stet: Measured,
}

/// What one run took to what another one took.
#[derive(Clone, Copy)]
struct Ratio {
    time: f64,
    bytes: f64,
}

impl Ratio {
    fn of(a: &Measured, b: &Measured) -> Self {
        Self {
            time: a.elapsed_ns() as f64 / b.elapsed_ns() as f64,
            bytes: a.written() as f64 / b.written() as f64,
        }
    }

    fn mean(all: &[Self]) -> Self {
        let mean_of = |of: fn(&Self) -> f64| {
            let values: Vec<f64> = all.iter().map(of).collect();
            geometric_mean(&values)
        };
        Self {
            time: mean_of(|ratio| ratio.time),
            bytes: mean_of(|ratio| ratio.bytes),
        }
    }
}

impl Cell {
    /// The gain of adp-s over ext3.
    fn gain(&self) -> Ratio {
        Ratio::of(&self.ext3, &self.adp_s)
    }

    /// The same in time, if reading took none.
    fn gain_without_reads(&self) -> f64 {
        let time = |run: &Measured| (run.elapsed_ns() - run.device.busy_ns(Cause::Read)) as f64;
        time(&self.ext3) / time(&self.adp_s)
    }
}

fn measure(
    setting: &Setting<'_>,
    report: &mut Report,
    volume: &Volume,
    memory_mib: u64,
    medium: Medium,
    kib: &[u32],
) -> Result<()> {
    let time = if medium == PCM { "virtual" } else { "real" };
    let head = kib.iter().map(|kib| format!("{kib} KiB"));
    let head: Vec<_> = std::iter::once(String::new())
        .chain(head)
        .chain(["mean".to_owned()])
        .collect();
    let on = format!("on {} in {time} time", medium.name());
    let gains = |system: &str| {
        Table::new(
            format!("gain of {system} over ext3 {on} (in bytes written)"),
            head.clone(),
        )
    };
    let (mut gains, mut gains_of_stet) = (gains("adp-s"), gains("stet"));
    let mut rates = Table::new(
        format!("MiB/s of writes {on}, ext3, adp-s and stet"),
        head[..head.len() - 1].to_vec(),
    );
    let mut bars: Vec<(Durable, Bars)> = Vec::new();
    for group in groups(setting, kib)? {
        let (mut all, mut totals) = (Vec::new(), Reads::default());
        let mut to_adp_s: Vec<(String, Ratio)> = Vec::new();
        for (name, works) in &group.works {
            let mut cells = Vec::new();
            for work in works {
                let one = |system| {
                    setting.median((system, medium), volume, memory_mib, &**work, group.durable)
                };
                cells.push(Cell {
                    ext3: one(EXT3)?,
                    adp_s: one(ADP_S)?,
                    stet: one(STET_IN_MEMORY)?,
                });
            }
            let bar = name.clone();
            let name = match group.durable {
                Durable::EachWrite => format!("{name}, each durable"),
                Durable::Every(_) => name.clone(),
            };
            let by_size: Vec<_> = cells.iter().map(Cell::gain).collect();
            gains.row(&name, shown(&by_size));
            let of_stet = cells.iter().map(|cell| Ratio::of(&cell.ext3, &cell.stet));
            gains_of_stet.row(&name, shown(&of_stet.collect::<Vec<_>>()));
            rates.row(
                &name,
                cells.iter().map(|cell| {
                    let rates = [&cell.ext3, &cell.adp_s, &cell.stet].map(Measured::write_mib_s);
                    let [ext3, adp_s, stet] = rates;
                    format!("{ext3:.1} {adp_s:.1} {stet:.1}")
                }),
            );
            for (cell, kib) in cells.iter().zip(kib) {
                totals.add(cell);
                let ratio = Ratio::of(&cell.stet, &cell.adp_s);
                to_adp_s.push((format!("{bar}, {kib} KiB"), ratio));
            }
            let times = by_size.iter().map(|gain| gain.time).collect();
            match bars
                .iter_mut()
                .find(|(durable, _)| *durable == group.durable)
            {
                Some((_, bars)) => bars.push((bar, times)),
                None => bars.push((group.durable, vec![(bar, times)])),
            }
            all.extend(by_size);
            let runs = cells.into_iter().flat_map(|c| [c.ext3, c.adp_s, c.stet]);
            report.runs.extend(runs);
        }
        let on = format!("{} on {}, {time} time", group.name, medium.name());
        check(report, medium, (&group, &on), &all, &totals);
        if medium == PCM {
            check_stet(report, &on, &to_adp_s);
        }
    }
    report.tables.extend([gains, gains_of_stet, rates]);
    for (durable, bars) in bars {
        report.charts.push(chart(medium, durable, kib, &bars));
    }
    Ok(())
}

/// A row of gains in time and in bytes, and their means.
fn shown(gains: &[Ratio]) -> Vec<String> {
    let cells = gains.iter().copied().chain([Ratio::mean(gains)]);
    cells
        .map(|Ratio { time, bytes }| format!("{time:.2}x ({bytes:.2}x)"))
        .collect()
}

/// Whether the mean gain in time is the paper's.
fn check(
    report: &mut Report,
    medium: Medium,
    (group, on): (&Group, &str),
    gains: &[Ratio],
    totals: &Reads,
) {
    let Ratio { time: mean, bytes } = Ratio::mean(gains);
    let said = Said::figure(format!("{}x", group.paper), group.paper);
    report
        .compare(
            format!("{on}: mean gain over ext3"),
            said,
            mean,
            format!("{mean:.2}x"),
        )
        .because_of(|verdict| match (medium, verdict) {
            (PCM, Verdict::Short) => why_short(bytes, totals),
            (PCM, _) => why_more(bytes, group.durable),
            _ => "real time on this machine, which is not the paper's".to_owned(),
        });
}

/// Whether stet takes no more than adp-s, where it takes the most of it.
fn check_stet(report: &mut Report, on: &str, to_adp_s: &[(String, Ratio)]) {
    let mut check = |what: &str, of: fn(&Ratio) -> f64| {
        let all = to_adp_s.iter().map(|(name, ratio)| (of(ratio), name));
        let Some((most, name)) = all.max_by(|a, b| a.0.total_cmp(&b.0)) else {
            return;
        };
        report
            .compare(
                format!("{on}: {what} of stet to that of adp-s, at most"),
                Said::at_most("our aim: 1.00", 1.0).within(0.005),
                most,
                format!("{most:.3}: {name}"),
            )
            .because("not known");
    };
    check("time", |ratio| ratio.time);
    check("bytes", |ratio| ratio.bytes);
}

/// Gains by rows of tests and by size.
type Bars = Vec<(String, Vec<f64>)>;

fn chart(medium: Medium, durable: Durable, kib: &[u32], bars: &Bars) -> Chart {
    let time = if medium == PCM { "virtual" } else { "real" };
    let (suffix, how) = match durable {
        Durable::EachWrite => ("-sync", "each write durable"),
        Durable::Every(_) => ("", "commit every 5 s"),
    };
    let series = |(at, kib): (usize, &u32)| Series {
        name: format!("{kib} KiB"),
        values: bars.iter().map(|(_, gains)| Some(gains[at])).collect(),
    };
    let mut lines = vec![("paper: iozone, mean".to_owned(), IOZONE_GAIN)];
    if durable != Durable::EachWrite {
        lines.push(("paper: postmark, mean".to_owned(), POSTMARK_GAIN));
    }
    Chart {
        name: format!("shortcut-fig4-{}{suffix}", medium.name()),
        title: format!(
            "Gain of Shortcut-JFS over ext3 on {}, {time} time, {how}",
            medium.name()
        ),
        unit: "times ext3".to_owned(),
        groups: bars.iter().map(|(name, _)| name.clone()).collect(),
        series: kib.iter().enumerate().map(series).collect(),
        lines,
    }
}

/// What reading cost, over several pairs of runs.
#[derive(Default)]
struct Reads {
    gains_without: Vec<f64>,
    /// Time of reads and of everything, ext3 and adp-s.
    read_ns: [u64; 2],
    all_ns: [u64; 2],
    /// What callers of adp-s read and wrote, and what it read from the medium.
    asked_bytes: u64,
    written_bytes: u64,
    read_bytes: u64,
}

impl Reads {
    fn add(&mut self, cell: &Cell) {
        self.gains_without.push(cell.gain_without_reads());
        for (at, run) in [&cell.ext3, &cell.adp_s].into_iter().enumerate() {
            self.read_ns[at] += run.device.busy_ns(Cause::Read);
            self.all_ns[at] += run.elapsed_ns();
        }
        self.asked_bytes += cell.adp_s.counts.read_bytes;
        self.written_bytes += cell.adp_s.counts.written_bytes;
        self.read_bytes += cell.adp_s.device.by_cause(Cause::Read).read_bytes;
    }

    fn percent(&self, at: usize) -> f64 {
        100.0 * self.read_ns[at] as f64 / self.all_ns[at] as f64
    }
}

/// Why a gain is more than the paper's.
fn why_more(bytes: f64, durable: Durable) -> String {
    let what = match durable {
        Durable::EachWrite => {
            "the paper commits every 5 s; where each write is durable, ext3 writes whole blocks of \
                metadata, a descriptor and a commit record for each"
        }
        Durable::Every(_) => "not known",
    };
    format!("{what}. adp-s writes {bytes:.2} times less")
}

/// Why a gain is less than the paper's, by the meter.
fn why_short(bytes: f64, reads: &Reads) -> String {
    let without = geometric_mean(&reads.gains_without);
    let what = match reads.asked_bytes {
        0 => format!(
            "the old content of what is overwritten, to compare it with the new: {:.2} bytes for \
                each byte written",
            reads.read_bytes as f64 / reads.written_bytes as f64
        ),
        asked => format!(
            "files, from PCM and not from a cache: {:.2} bytes for each byte asked for",
            reads.read_bytes as f64 / asked as f64
        ),
    };
    format!(
        "adp-s writes {bytes:.2} times less. It spends {:.0} % of its time reading {what}; ext3, \
            with its page \
         cache, {:.0} %. If reading took no time, the gain would be {without:.2}x. The paper's \
         ext3 pays for its block layer besides, for \
         which the paper gives no figure and for which nothing is charged here",
        reads.percent(1),
        reads.percent(0),
    )
}
