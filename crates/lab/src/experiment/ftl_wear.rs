//! A flash translation layer that is overwritten for a long time: what garbage collection costs,
//! and how the erases are spread.
//!
//! The cost of greedy collection under random overwrites is known in closed form for blocks of very
//! many pages. With `a` pages for each page that holds something, `a / (a + W(-a exp(-a)))` pages
//! are programmed for each page written, where W is Lambert's function (Desnoyers, SYSTOR 2012;
//! Xiang, Kurkoski, ICNC 2012). The layer keeps blocks free and has a map; the pages of the formula
//! are those of blocks that hold data.

use anyhow::{Result, ensure};
use stetfs_ftl::{Ftl, FtlStats, Wear};
use stetfs_media::nand::{NandGeometry, NandPart, parts};
use stetfs_media::{BlockDev, Cause, Class, Tag};

use super::kind::Experiment;
use super::report::{Report, Said, Table};
use super::setting::Setting;
use crate::system::{Flash, Measured, Medium};
use crate::workload::Counts;
use stetfs_testkit::rng::Rng;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "ftl-wear",
    title: "the flash translation layer overwritten ten times over: write amplification and wear",
    paper: "Desnoyers, SYSTOR 2012; Xiang, Kurkoski, ICNC 2012",
    scale: 0.25,
    has_real_time: false,
    is_small: true,
    run: super::kind::Run::Own(run),
};

const FILL_PERCENT: [u64; 2] = [80, 95];
/// How often the capacity is written. The first half reaches the steady state; the second half is
/// measured.
const TIMES: u64 = 10;
const PART: NandPart = parts::JFTL.flawless();
/// With fewer blocks, most of the part would be kept free.
const LEAST_BLOCKS: u64 = 256;
/// What this project demands of its layer: the deviation of the erases, relative to their mean.
const SPREAD: f64 = 0.1;
const TAG: Tag = Tag::new(Class::Data, Cause::Home);

/// Which page is overwritten next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    /// Any page, with the same chance.
    Uniform,
    /// One of the first fifth of the pages in four of five cases, else another.
    HotCold,
}

impl Pattern {
    const ALL: [Self; 2] = [Self::Uniform, Self::HotCold];

    fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::HotCold => "hot/cold",
        }
    }

    fn page(self, rng: &mut Rng, pages: u64) -> u64 {
        let hot = pages / 5;
        match self {
            Self::Uniform => rng.below(pages),
            Self::HotCold if rng.chance(80) => rng.below(hot),
            Self::HotCold => hot + rng.below(pages - hot),
        }
    }
}

/// A finished run.
struct Worn {
    fill_percent: u64,
    pattern: Pattern,
    /// Pages that hold something.
    used: u64,
    /// Counts in the steady state.
    steady: FtlStats,
    wear: Wear,
    run: Measured,
}

impl Worn {
    fn name(&self) -> String {
        format!("{} % {}", self.fill_percent, self.pattern.name())
    }

    /// Pages programmed by the host and by garbage collection for each that the host wrote.
    fn collected(&self) -> f64 {
        1.0 + self.steady.gc_pages as f64 / self.steady.host_pages as f64
    }

    fn all(&self) -> f64 {
        self.collected() + self.steady.map_pages as f64 / self.steady.host_pages as f64
    }

    /// Pages in `blocks` blocks, for each page that holds something.
    fn pages_each(&self, blocks: u64) -> f64 {
        (blocks * u64::from(PART.geometry.pages_per_block)) as f64 / self.used as f64
    }

    fn textbook(&self) -> f64 {
        greedy(self.pages_each(self.wear.data_blocks.into()))
    }

    /// The formula's result if no block were kept free and there were no map.
    fn textbook_of_all(&self) -> f64 {
        greedy(self.pages_each(self.wear.erases.len() as u64))
    }

    /// The deviation of the erases, relative to their mean.
    fn spread(&self) -> f64 {
        self.wear.deviation() / self.wear.mean()
    }
}

/// Pages programmed for each page written, by greedy garbage collection under uniform overwrites,
/// with `a` > 1 pages for each page that holds something.
fn greedy(a: f64) -> f64 {
    a / (a + lambert(-a * (-a).exp()))
}

/// The larger of the two numbers w with w exp(w) = x, for -1/e < x < 0: by bisection, where w
/// exp(w) grows.
fn lambert(x: f64) -> f64 {
    let (mut low, mut high) = (-1.0, 0.0);
    for _ in 0..60 {
        let middle: f64 = f64::midpoint(low, high);
        if middle * middle.exp() < x {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

fn run(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&EXPERIMENT, setting);
    let blocks = setting.scaled(PART.geometry.blocks.into(), 1)?;
    let flash = Flash {
        name: "JFTL's NAND",
        part: NandPart {
            geometry: NandGeometry {
                blocks: blocks.max(LEAST_BLOCKS) as u32,
                ..PART.geometry
            },
            ..PART
        },
        units: 1,
    };
    report.setup.push((
        "workload",
        format!(
            "pages of the layer, of which 80 or 95 % are filled once, overwritten at random, \
                {TIMES} times its capacity in all; write \
             amplification is that of the second half. hot/cold: 80 % of the writes to 20 % of the \
             pages"
        ),
    ));
    report.measured_on(Medium::nand(flash));
    let mut all = Vec::new();
    for fill_percent in FILL_PERCENT {
        for pattern in Pattern::ALL {
            all.push(wear_out(setting, flash, fill_percent, pattern)?);
        }
    }
    show(&mut report, &all);
    check(&mut report, &all);
    report.runs.extend(all.into_iter().map(|worn| worn.run));
    Ok(report)
}

fn wear_out(
    setting: &Setting<'_>,
    flash: Flash,
    fill_percent: u64,
    pattern: Pattern,
) -> Result<Worn> {
    let (chip, ftl) = flash.format()?;
    let page_bytes = u64::from(ftl.sector_size());
    let pages = ftl.size() / page_bytes;
    let used = pages * fill_percent / 100;
    ensure!(used >= 5, "a part of {pages} pages");
    let data = vec![0x5a; page_bytes as usize];
    for page in 0..used {
        ftl.write_at(page * page_bytes, &data, TAG)?;
    }
    let what = format!("{fill_percent} % filled, {}", pattern.name());
    let writes = TIMES * pages;
    let mut rng = Rng::new(setting.seed);
    let (before, begin_ns) = (ftl.meter().snapshot(), chip.clock().now_ns());
    let mut overwrite = |ftl: &Ftl, from: u64, to: u64| -> Result<()> {
        for n in from..to {
            if n.is_multiple_of(1 << 16) {
                (setting.progress)(&what, n, writes);
            }
            let page = pattern.page(&mut rng, used);
            ftl.write_at(page * page_bytes, &data, TAG)?;
        }
        Ok(())
    };
    overwrite(&ftl, 0, writes / 2)?;
    let half = ftl.stats();
    overwrite(&ftl, writes / 2, writes)?;
    let end = ftl.stats();
    Ok(Worn {
        fill_percent,
        pattern,
        used,
        steady: FtlStats {
            host_pages: end.host_pages - half.host_pages,
            gc_pages: end.gc_pages - half.gc_pages,
            map_pages: end.map_pages - half.map_pages,
            ..end
        },
        wear: ftl.wear(),
        run: Measured {
            system: "ftl",
            medium: flash.name,
            workload: what,
            counts: Counts {
                operations: writes,
                written_bytes: writes * page_bytes,
                writes,
                ..Counts::default()
            },
            commits: 0,
            checkpoints: 0,
            virtual_ns: chip.clock().now_ns() - begin_ns,
            device: ftl.meter().snapshot() - &before,
        },
    })
}

fn show(report: &mut Report, all: &[Worn]) {
    let mut table = Table::new(
        "pages programmed for each that is written, in the steady state",
        [
            "fill, pattern",
            "host and GC",
            "greedy by the book",
            "map",
            "all",
            "by the book with every block",
            "MiB/s",
        ],
    );
    let mut wear = Table::new(
        "erases of a block",
        [
            "fill, pattern",
            "mean",
            "deviation",
            "% of mean",
            "least",
            "most",
        ],
    );
    for worn in all {
        let numbers = [
            worn.collected(),
            worn.textbook(),
            worn.all() - worn.collected(),
            worn.all(),
            worn.textbook_of_all(),
            worn.run.write_mib_s(),
        ];
        table.row(worn.name(), numbers.map(|n| format!("{n:.3}")));
        let (least, most) = worn.wear.range();
        let mut cells: Vec<_> = [
            worn.wear.mean(),
            worn.wear.deviation(),
            100.0 * worn.spread(),
        ]
        .map(|n| format!("{n:.1}"))
        .into();
        cells.extend([least, most].map(|n| n.to_string()));
        wear.row(worn.name(), cells);
    }
    report.tables.extend([table, wear]);
}

fn check(report: &mut Report, all: &[Worn]) {
    for worn in all {
        let (ours, book) = (worn.collected(), worn.textbook());
        report
            .compare(
                format!(
                    "{}: garbage collection costs no more than greedy collection of uniform \
                        overwrites",
                    worn.name()
                ),
                Said::at_most(format!("{book:.3}"), book),
                ours,
                format!("{ours:.3}"),
            )
            .because("on a small part the blocks that are being filled count for much");
    }
    for worn in all {
        let spread = worn.spread();
        report
            .compare(
                format!("{}: deviation of the erases, of their mean", worn.name()),
                Said::at_most("no figure; this project's aim: 10 % at most", SPREAD),
                spread,
                format!("{:.1} %", 100.0 * spread),
            )
            .because("it is not so here");
    }
}

#[cfg(test)]
mod tests {
    /// The example of Xiang, Kurkoski, ICNC 2012: 30 % more pages give 2.36.
    #[test]
    fn by_the_book() {
        assert!((super::greedy(1.3) - 2.36).abs() < 0.005);
        let w = super::lambert(-0.3);
        assert!((w * w.exp() + 0.3).abs() < 1e-12);
    }
}
