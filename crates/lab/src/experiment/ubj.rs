//! The figures of UBJ's slides: IOzone, filebench, PostMark, the commit period, hits on frozen
//! blocks, each against ext4 that journals everything; and what `cow=range` saves.
//!
//! Two times: until everything is durable, which for UBJ is when it is frozen; and until everything
//! is home too, in which nobody leaves work behind. A benchmark ends when everything is durable, so
//! the claims are checked on the first; it owes much to the size of the cache, which the slides do
//! not name.

use std::time::Duration;

use anyhow::Result;
use stetfs_media::sim::PmemTiming;

use super::ground::{Ground, Machine, time};
use super::never_worse::NeverWorse;
use super::nvm_cache::{a_second, fences_each, lines_each, nvm_us_each, server};
use super::report::{Chart, Report, Said, Series, Table, Verdict, geometric_mean};
use super::spindle_fig6::bench;
use super::{Experiment, Setting};
use crate::system::{EXT4_JOURNAL, Measured, Medium, STET_BESIDE, System, UBJ, UBJ_RANGE};
use crate::workload::iozone::Test;
use crate::workload::sqlite::JournalMode;
use crate::workload::{Durable, Fio, Iozone, Personality, Postmark, Updates, Workload};

const PAPER: &str = "Lee, Bahn, Noh, FAST 2013 (its slides)";
/// The slides' sets are small enough for a scale of 1, at which virtual time takes a while.
const SCALE: f64 = 0.25;

const fn experiment(
    id: &'static str,
    title: &'static str,
    run: fn(&Setting<'_>) -> Result<Report>,
) -> Experiment {
    Experiment {
        id,
        title,
        paper: PAPER,
        scale: SCALE,
        has_real_time: true,
        run,
    }
}

pub(super) const IOZONE: Experiment = experiment(
    "ubj-iozone",
    "UBJ against ext4 data=journal: IOzone, random and sequential writes",
    run_iozone,
);
pub(super) const FILEBENCH: Experiment = experiment(
    "ubj-filebench",
    "UBJ against ext4 data=journal: filebench's fileserver, webproxy and varmail",
    run_filebench,
);
pub(super) const POSTMARK: Experiment = experiment(
    "ubj-postmark",
    "UBJ against ext4 data=journal: PostMark",
    run_postmark,
);
pub(super) const PERIOD: Experiment = experiment(
    "ubj-period",
    "UBJ against ext4 data=journal: by the commit period",
    run_period,
);
pub(super) const HITS: Experiment = experiment(
    "ubj-hits",
    "UBJ: the share of reads that hit frozen blocks",
    run_hits,
);

pub(super) const COW: Experiment = experiment(
    "ubj-cow",
    "UBJ: frozen blocks copied, or their changed bytes logged",
    run_cow,
);

/// An i3 with 4 GB, of which a part plays NVM with the speed of DRAM; the slides do not say how
/// much. ext4 has as much memory.
const MACHINE: Machine = server(4 << 30, 1 << 30, 1 << 30, PmemTiming::Dram);
/// Megabytes of the sets of the slide on IOzone.
const MIB: [u64; 5] = [100, 150, 200, 250, 300];
/// The slides' gains: IOzone on average and at most, and all benchmarks.
const IOZONE_GAIN: f64 = 2.1;
const IOZONE_MOST: f64 = 3.4;
const ALL_GAIN: f64 = 1.76;
/// Bytes of filebench's set: filebench's own fileserver has about as much.
const SERVED: u64 = 1 << 30;
const SERVED_FILE: u64 = 32 << 10;
const SECONDS: [u64; 5] = [1, 5, 10, 30, 60];

const SYSTEMS: [System; 3] = [UBJ, EXT4_JOURNAL, STET_BESIDE];

/// The paper's two systems with one workload, and stet.
struct Pair {
    what: String,
    ubj: Measured,
    ext4: Measured,
    stet: Measured,
}

impl Pair {
    fn of(
        setting: &Setting<'_>,
        ground: &Ground,
        medium: Medium,
        (what, work): (String, &dyn Workload),
        durable: Durable,
    ) -> Result<Self> {
        let one = |system| ground.measure(setting, (system, medium), work, durable);
        let [ubj, ext4, stet] = SYSTEMS;
        Ok(Self {
            what,
            ubj: one(ubj)?,
            ext4: one(ext4)?,
            stet: one(stet)?,
        })
    }

    /// Until everything is durable.
    fn gain(&self) -> f64 {
        self.ext4.durable_ns() as f64 / self.ubj.durable_ns() as f64
    }

    /// Until everything is home, where that is known.
    fn gain_home(&self) -> Option<f64> {
        Some(self.ext4.virtual_ns? as f64 / self.ubj.virtual_ns? as f64)
    }
}

fn begin(
    setting: &Setting<'_>,
    experiment: &Experiment,
    workload: String,
) -> Result<(Report, Ground)> {
    let mut report = Report::new(experiment, setting);
    let ground = Ground::new(setting, &MACHINE)?;
    report.setup.push(("workload", workload));
    ground.describe(setting, &mut report);
    Ok((report, ground))
}

fn show(report: &mut Report, medium: Medium, pairs: &[Pair]) {
    let title = format!("on {} in {} time", medium.name(), time(medium));
    let head = [
        "",
        "UBJ, s",
        "ext4, s",
        "gain until durable",
        "until home",
        "lines a call",
        "fences a commit",
        "frozen blocks copied",
        "bytes home, UBJ and ext4's journal and home",
    ];
    let mut table = Table::new(title, head);
    for pair in pairs {
        let seconds = |run: &Measured| format!("{:.3}", run.durable_ns() as f64 / 1e9);
        let home = pair.gain_home().map(|gain| format!("{gain:.2}x"));
        let copies = pair.ubj.cache.map(|cache| cache.cow_copies.to_string());
        let mib = |run: &Measured| run.written() as f64 / f64::from(1 << 20);
        table.row(
            pair.what.clone(),
            [
                seconds(&pair.ubj),
                seconds(&pair.ext4),
                format!("{:.2}x", pair.gain()),
                home.unwrap_or("-".to_owned()),
                format!("{:.1}", lines_each(pair.ubj.counts.operations, &pair.ubj)),
                format!("{:.2}", fences_each(pair.ubj.commits, &pair.ubj)),
                copies.unwrap_or("-".to_owned()),
                format!("{:.1} {:.1} MiB", mib(&pair.ubj), mib(&pair.ext4)),
            ],
        );
    }
    report.tables.push(table);
    if !medium.is_real() {
        let mut compared = NeverWorse::on(medium);
        for pair in pairs {
            compared.add(pair.what.clone(), &pair.stet, &[&pair.ubj, &pair.ext4]);
        }
        compared.report(
            "UBJ's cache has what was read too, and the memory for that is twice ext4's and \
                stet's; stet's log has only what was written",
            report,
        );
    }
}

/// Whether the mean gain until everything is home is the slides'.
fn check(report: &mut Report, medium: Medium, claim: &str, aim: f64, pairs: &[Pair]) {
    let home: Option<Vec<f64>> = pairs.iter().map(Pair::gain_home).collect();
    let durable: Vec<f64> = pairs.iter().map(Pair::gain).collect();
    let Some(home) = home else {
        return;
    };
    let (home, durable) = (geometric_mean(&home), geometric_mean(&durable));
    report
        .compare(
            format!("{claim}, {} time: gain over ext4 on average", time(medium)),
            Said::figure(format!("{aim}x"), aim),
            durable,
            format!("{durable:.2}x until durable, {home:.2}x until home"),
        )
        .because_of(why);
}

/// Why a gain is not the slides'.
fn why(verdict: Verdict) -> String {
    match verdict {
        Verdict::Overshot => {
            "everything fits into the cache, so that nothing goes home in the run and the gain is \
                that of memory over a disk; the slides do not say how large \
             the cache was, and virtual time has no processor in it"
        }
        _ => "not known: the slides give no parameters",
    }
    .to_owned()
}

fn chart(report: &mut Report, medium: Medium, name: &str, pairs: &[Pair]) {
    let rate = |run: &Measured| Some(a_second(run.counts.operations, run));
    report.charts.push(Chart {
        name: format!("{name}-{}", medium.name().replace(' ', "-")),
        title: format!("Calls until everything is durable, {} time", time(medium)),
        unit: "calls/s".to_owned(),
        groups: pairs.iter().map(|pair| pair.what.clone()).collect(),
        series: vec![
            Series {
                name: "ext4".to_owned(),
                values: pairs.iter().map(|pair| rate(&pair.ext4)).collect(),
            },
            Series {
                name: "UBJ".to_owned(),
                values: pairs.iter().map(|pair| rate(&pair.ubj)).collect(),
            },
        ],
        lines: Vec::new(),
    });
}

fn keep(report: &mut Report, pairs: Vec<Pair>) {
    let runs = pairs
        .into_iter()
        .flat_map(|pair| [pair.ubj, pair.ext4, pair.stet]);
    report.runs.extend(runs);
}

fn run_iozone(setting: &Setting<'_>) -> Result<Report> {
    let workload =
        "a file of 100 to 300 MB (scaled), records of 4 KiB, a commit every 5 s".to_owned();
    let (mut report, ground) = begin(setting, &IOZONE, workload)?;
    for medium in ground.media(setting) {
        let mut all = Vec::new();
        for (test, name) in [(Test::RandomWrite, "random"), (Test::Write, "sequential")] {
            let mut pairs = Vec::new();
            for mib in MIB {
                let bytes = setting.scaled(mib << 20, 4096)?;
                let work = Iozone::packed(test, bytes, 4096, setting.seed);
                let what = (format!("{name}, {mib} MB"), &work as &dyn Workload);
                pairs.push(Pair::of(setting, &ground, medium, what, Durable::EXT3)?);
            }
            chart(&mut report, medium, &format!("ubj-iozone-{name}"), &pairs);
            all.extend(pairs);
        }
        show(&mut report, medium, &all);
        check(&mut report, medium, "IOzone", IOZONE_GAIN, &all);
        if !medium.is_real() {
            let most = all.iter().map(Pair::gain).fold(f64::MIN, f64::max);
            let said = Said::figure(format!("{IOZONE_MOST}x"), IOZONE_MOST);
            report
                .compare(
                    "IOzone: gain over ext4 at most",
                    said,
                    most,
                    format!("{most:.2}x"),
                )
                .because_of(why);
        }
        keep(&mut report, all);
    }
    Ok(report)
}

fn served(setting: &Setting<'_>, personality: Personality) -> Result<crate::workload::Filebench> {
    let data = setting.scaled(SERVED, 1 << 20)?;
    Ok(bench(personality, data, SERVED_FILE, setting.seed))
}

fn run_filebench(setting: &Setting<'_>) -> Result<Report> {
    let workload = "sets of 1 GiB (scaled) in files of 32 KiB on average, filebench's own threads \
        and lists; each thread goes through its list as often as \
                    it takes to make as many files as the set has"
        .to_owned();
    let (mut report, ground) = begin(setting, &FILEBENCH, workload)?;
    for medium in ground.media(setting) {
        let mut pairs = Vec::new();
        for personality in Personality::ALL {
            let work = served(setting, personality)?;
            let what = (personality.name().to_owned(), &work as &dyn Workload);
            pairs.push(Pair::of(setting, &ground, medium, what, Durable::EXT3)?);
        }
        show(&mut report, medium, &pairs);
        check(
            &mut report,
            medium,
            "filebench (the slides: all benchmarks)",
            ALL_GAIN,
            &pairs,
        );
        chart(&mut report, medium, "ubj-filebench", &pairs);
        keep(&mut report, pairs);
    }
    Ok(report)
}

fn postmark(setting: &Setting<'_>) -> Result<Postmark> {
    // The slides give no parameters: files of a mail server, a set that is larger than transactions
    // of 5 s.
    let count = |n: u64| setting.scaled(n, 1).map(|n| n as u32);
    Ok(Postmark {
        files: count(20_000)?,
        size_low: 512,
        size_high: 16 << 10,
        transactions: count(100_000)?,
        subdirectories: 100,
        seed: setting.seed,
        ..Postmark::default()
    })
}

fn run_postmark(setting: &Setting<'_>) -> Result<Report> {
    let workload = "20,000 files of 0.5 to 16 KiB and 100,000 transactions (scaled; the slides \
        give no parameters), 100 directories"
        .to_owned();
    let (mut report, ground) = begin(setting, &POSTMARK, workload)?;
    let work = postmark(setting)?;
    for medium in ground.media(setting) {
        let what = ("PostMark".to_owned(), &work as &dyn Workload);
        let pairs = vec![Pair::of(setting, &ground, medium, what, Durable::EXT3)?];
        show(&mut report, medium, &pairs);
        check(
            &mut report,
            medium,
            "PostMark (the slides: all benchmarks)",
            ALL_GAIN,
            &pairs,
        );
        chart(&mut report, medium, "ubj-postmark", &pairs);
        keep(&mut report, pairs);
    }
    Ok(report)
}

fn run_period(setting: &Setting<'_>) -> Result<Report> {
    let workload = "fileserver as in ubj-filebench, with a commit every 1 to 60 s".to_owned();
    let (mut report, ground) = begin(setting, &PERIOD, workload)?;
    let work = served(setting, Personality::Fileserver)?;
    // In real time the volume commits, every 5 s.
    let medium = ground.media(setting)[0];
    let mut pairs = Vec::new();
    for seconds in SECONDS {
        let what = (format!("{seconds} s"), &work as &dyn Workload);
        let durable = Durable::Every(Duration::from_secs(seconds));
        pairs.push(Pair::of(setting, &ground, medium, what, durable)?);
    }
    show(&mut report, medium, &pairs);
    let gains: Vec<f64> = pairs.iter().map(Pair::gain).collect();
    let least = gains.iter().copied().fold(f64::MAX, f64::min);
    let said = Said::at_least(
        "more than 1x (a figure without a legible scale)",
        1.0 + f64::EPSILON,
    );
    report
        .compare(
            "whatever the period, UBJ is quicker",
            said,
            least,
            format!("{least:.2}x at least"),
        )
        .because("not known");
    chart(&mut report, medium, "ubj-period", &pairs);
    keep(&mut report, pairs);
    Ok(report)
}

fn run_cow(setting: &Setting<'_>) -> Result<Report> {
    let workload =
        "5,000 (scaled) updates of 100 bytes in SQLite, each a transaction; filebench's \
        varmail and PostMark as in ubj-filebench and ubj-postmark, each write durable \
                    in PostMark"
            .to_owned();
    let (mut report, ground) = begin(setting, &COW, workload)?;
    let medium = ground.media(setting)[0];
    let mut works: Vec<(String, Durable, Box<dyn Workload>)> = Vec::new();
    for mode in [JournalMode::Delete, JournalMode::Wal] {
        let work = Updates {
            mode,
            rows: 10_000,
            updates: setting.scaled(5_000, 1)?,
            seed: setting.seed,
        };
        let what = format!("SQLite, {}", mode.name());
        works.push((what, Durable::EXT3, Box::new(work)));
    }
    let varmail = served(setting, Personality::Varmail)?;
    works.push(("varmail".to_owned(), Durable::EXT3, Box::new(varmail)));
    let postmark = postmark(setting)?;
    works.push((
        "PostMark".to_owned(),
        Durable::EachWrite,
        Box::new(postmark),
    ));
    let title = format!("a commit, cow=block and cow=range, on {}", medium.name());
    let head = [
        "",
        "lines",
        "",
        "of it",
        "frozen blocks copied",
        "",
        "NVM, us",
        "",
    ];
    let mut table = Table::new(title, head);
    let mut shares = Vec::new();
    for (what, durable, work) in &works {
        let one = |system| ground.measure(setting, (system, medium), &**work, *durable);
        let (block, range) = (one(UBJ)?, one(UBJ_RANGE)?);
        let lines = |run: &Measured| lines_each(run.commits, run);
        let copies = |run: &Measured| {
            let copies = run.cache.unwrap_or_default().cow_copies;
            format!("{:.2}", copies as f64 / run.commits as f64)
        };
        let us = |run: &Measured| format!("{:.1}", nvm_us_each(run.commits, run));
        let share = lines(&range) / lines(&block);
        table.row(
            what.clone(),
            [
                format!("{:.1}", lines(&block)),
                format!("{:.1}", lines(&range)),
                format!("{:.1} %", share * 100.0),
                copies(&block),
                copies(&range),
                us(&block),
                us(&range),
            ],
        );
        shares.push(share * 100.0);
        report.runs.extend([block, range]);
    }
    report.tables.push(table);
    report.charts.push(Chart {
        name: "ubj-cow".to_owned(),
        title: "Lines that a commit writes with cow=range".to_owned(),
        unit: "% of those with cow=block".to_owned(),
        groups: works.iter().map(|(what, ..)| what.clone()).collect(),
        series: vec![Series {
            name: "UBJ".to_owned(),
            values: shares.into_iter().map(Some).collect(),
        }],
        lines: Vec::new(),
    });
    Ok(report)
}

fn run_hits(setting: &Setting<'_>) -> Result<Report> {
    let workload =
        "filebench's servers and PostMark as in ubj-filebench and ubj-postmark, and fio \
        with half of its operations reads on a file of 256 MB"
            .to_owned();
    let (mut report, ground) = begin(setting, &HITS, workload)?;
    let medium = ground.media(setting)[0];
    let mut works: Vec<(String, Box<dyn Workload>)> = Vec::new();
    for personality in Personality::ALL {
        let work = served(setting, personality)?;
        works.push((personality.name().to_owned(), Box::new(work)));
    }
    works.push(("PostMark".to_owned(), Box::new(postmark(setting)?)));
    let fio = Fio {
        file_bytes: setting.scaled(256 << 20, 4096)?,
        block_bytes: 4096,
        read_percent: 50,
        operations: setting.scaled(100_000, 1)?,
        fsync_every: 0,
        seed: setting.seed,
    };
    works.push(("fio".to_owned(), Box::new(fio)));
    let title = format!("reads of blocks on {}", medium.name());
    let head = [
        "",
        "reads",
        "hit the cache",
        "hits on frozen blocks",
        "of all hits",
    ];
    let mut table = Table::new(title, head);
    let mut shares = Vec::new();
    for (what, work) in &works {
        let run = ground.measure(setting, (UBJ, medium), &**work, Durable::EXT3)?;
        let cache = run.cache.unwrap_or_default();
        let reads = cache.hits + cache.misses;
        let share = |part: u64, all: u64| part as f64 * 100.0 / all.max(1) as f64;
        table.row(
            what.clone(),
            [
                reads.to_string(),
                format!("{:.1} %", share(cache.hits, reads)),
                cache.dirty_hits.to_string(),
                format!("{:.1} %", share(cache.dirty_hits, cache.hits)),
            ],
        );
        shares.push(share(cache.dirty_hits, cache.hits));
        report.runs.push(run);
    }
    report.tables.push(table);
    report.charts.push(Chart {
        name: "ubj-hits".to_owned(),
        title: "Hits on frozen blocks".to_owned(),
        unit: "% of hits".to_owned(),
        groups: works.iter().map(|(what, _)| what.clone()).collect(),
        series: vec![Series {
            name: "UBJ".to_owned(),
            values: shares.into_iter().map(Some).collect(),
        }],
        lines: Vec::new(),
    });
    report.notes.push(
        "the slides' figure has no legible scale, so that there is nothing to compare with; blocks \
            that the running transaction has changed are read from \
         memory and are not counted"
            .to_owned(),
    );
    Ok(report)
}
