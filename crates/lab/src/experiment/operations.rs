//! What one durable operation costs, to the byte: no paper has that, and this project has aims for
//! it.
//!
//! Two costs of an operation are told apart. Until it is durable: what its commit writes. Until
//! everything is home: that, and its share of what checkpoints write, that of the unmount included.
//! What only a mount and an unmount write (superblock, log header) is left out, as everywhere in
//! the lab. Nobody else commits: each operation has a transaction of its own.

use anyhow::{Context, Result};
use stetfs_media::sim::PmemTiming;
use stetfs_media::{Cause, Class, MeterSnapshot};

use super::log_contents::{self, Record};
use super::report::{Chart, Report, Said, Series, Table};
use super::{Experiment, Setting};
use crate::system::{
    ADP_S, Access, Account, Bed, Cost, DJ_JOURNAL, JFTL_NAND, JOURNAL, JOURNAL_EACH, JOURNAL_REMAP,
    Medium, Nvram, PCM, SPINDLE, STET_BESIDE, STET_IN_MEMORY, System, TINCA, UBJ_RANGE, Volume,
};
use crate::workload::single::{FIRST, Operation};
use crate::workload::sqlite::JournalMode;
use crate::workload::tpcc::{Cardinality, Tpcc};
use crate::workload::{Durable, Session, Single, Updates, Workload};
use stetfs_testkit::image::EXT4_4K;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "operations",
    title: "what one durable operation costs: bytes, flushes, requests; lines, fences; programs",
    paper: "none; beside it stand this project's aims",
    scale: 1.0,
    has_real_time: false,
    run,
};

const fn on_disk(name: &'static str, options: &'static str) -> System {
    System {
        name,
        options,
        access: Access::Blocks,
    }
}

/// What runs on a disk with nothing beside it. Ordered mode promises less: no old data appears in
/// new blocks, and an overwrite can be there in part.
const PLAIN: [System; 7] = [
    on_disk("jbd2 journal", "scheme=jbd2,data=journal"),
    on_disk(
        "jbd2 async",
        "scheme=jbd2,data=journal,journal_async_commit",
    ),
    on_disk("jbd2 ordered", "scheme=jbd2,data=ordered"),
    STET,
    on_disk("stet=delta", "scheme=stet,stet=delta"),
    on_disk("stet=switch", "scheme=stet,stet=switch"),
    on_disk("stet=whole", "scheme=stet,stet=whole"),
];
const STET: System = on_disk("stet", "scheme=stet");
/// Where it stands among them.
const STET_AT: usize = 3;

const SECTORS: [u32; 2] = [512, 4096];

/// Of each kind of operation.
const TIMES: u64 = 64;
const VOLUME: u64 = 1 << 30;
/// What mke2fs makes of a volume of this size.
const JOURNAL_BYTES: u64 = 32 << 20;
/// It has to hold all of the operations.
const FLASH_JOURNAL_MIB: u64 = 16;
const MEMORY_MIB: u64 = 64;

const ROWS: u64 = 10_000;
const UPDATES: u64 = 1_000;
/// 1,012 transactions.
const DECKS: f64 = 44.0;
/// Room for a warehouse.
const TPCC_MEMORY_MIB: u64 = 1 << 10;

/// A telephone's or a server's memory beside a disk, and a cache that holds everything.
const NVRAM: Nvram = Nvram {
    bytes: 16 << 20,
    timing: PmemTiming::Dram,
};
const CACHE: Nvram = Nvram {
    bytes: 64 << 20,
    timing: PmemTiming::Nvm,
};

/// What operations of one kind have cost.
struct Found {
    cost: Cost,
    /// Those of the warming up.
    first: u64,
    times: u64,
}

impl Found {
    fn each(&self, n: u64) -> f64 {
        n as f64 / self.times as f64
    }

    /// What the commits did.
    fn durable(&self) -> Account {
        let of = |snapshot: &MeterSnapshot| {
            let others = [Cause::Checkpoint, Cause::Control, Cause::Read];
            others
                .into_iter()
                .fold(snapshot.clone(), MeterSnapshot::without)
        };
        Account {
            device: of(&self.cost.run.device),
            nvm: of(&self.cost.run.nvm),
        }
    }

    fn bytes(&self) -> f64 {
        self.each(self.durable().device.total().write_bytes)
    }

    /// Flushes, and writes that are durable when they return.
    fn flushes(&self) -> f64 {
        let device = self.durable().device;
        self.each(device.total_flushes() + device.total_durable_writes())
    }

    fn requests(&self) -> f64 {
        self.each(self.durable().device.total().writes)
    }

    /// Each operation's share of what goes to the medium later: bytes, and requests.
    fn later(&self) -> [f64; 2] {
        let Cost {
            warm, run, close, ..
        } = &self.cost;
        let checkpoint = |account: &Account| account.device.by_cause(Cause::Checkpoint);
        let closing = close.device.clone().without(Cause::Control).total();
        let sum = checkpoint(warm) + checkpoint(run) + closing;
        [sum.write_bytes, sum.writes].map(|n| n as f64 / (self.first + self.times) as f64)
    }

    fn home_bytes(&self) -> f64 {
        self.bytes() + self.later()[0]
    }

    /// Bytes that commits write to where they stay, and into the log; those that go home later.
    fn parts(&self) -> [f64; 3] {
        let device = self.durable().device;
        let of = |cause| self.each(device.by_cause(cause).write_bytes);
        [of(Cause::Home), of(Cause::Log), self.later()[0]]
    }

    /// Pages programmed, those of the log's superblock and of the layer's map included.
    fn programs(&self) -> f64 {
        let run = self.cost.run.device.clone().without(Cause::Checkpoint);
        self.each(run.total().writes)
    }
}

/// A volume on which a workload was prepared.
fn prepared(setting: &Setting<'_>, volume: &Volume, workload: &dyn Workload) -> Result<Volume> {
    let [_, _, ordered, ..] = PLAIN;
    let bed = Bed::new(ordered, Medium::Plain(512), volume, TPCC_MEMORY_MIB)?;
    let tell = |done, of| (setting.progress)("preparing", done, of);
    let mut session = Session::new(bed.fs(), bed.time(), Durable::EXT3, &tell);
    workload.prepare(&mut session)?;
    bed.fs().unmount()?;
    let image = bed.image().context("it is simulated")?;
    Ok(volume.holding(image))
}

fn measure(
    setting: &Setting<'_>,
    (system, medium): (System, Medium),
    (volume, memory_mib): (&Volume, u64),
    (workload, first, times): (&dyn Workload, u64, u64),
) -> Result<Found> {
    let what = format!("{} on {}: {}", system.name, medium.name(), workload.name());
    let tell = |done, of| (setting.progress)(&what, done, of);
    tell(0, 1);
    let cost = Bed::new(system, medium, volume, memory_mib)?.cost(workload, &tell)?;
    Ok(Found { cost, first, times })
}

/// The operations on a volume that is prepared for them.
struct Operations {
    volume: Volume,
    times: u64,
    seed: u64,
}

impl Operations {
    fn new(setting: &Setting<'_>, volume: &Volume) -> Result<Self> {
        let times = setting.scaled(TIMES, FIRST)?;
        let work = Single {
            operation: Operation::Append,
            times,
            seed: setting.seed,
        };
        Ok(Self {
            volume: prepared(setting, volume, &work)?,
            times,
            seed: setting.seed,
        })
    }

    fn measure(
        &self,
        setting: &Setting<'_>,
        on: (System, Medium),
        operation: Operation,
    ) -> Result<Found> {
        let (times, seed) = (self.times, self.seed);
        let work = Single {
            operation,
            times,
            seed,
        };
        let work: (&dyn Workload, _, _) = (&work, operation.first(), times);
        measure(setting, on, (&self.volume, MEMORY_MIB), work)
    }

    fn on_plain_disk(&self, setting: &Setting<'_>, sector: u32) -> Result<Vec<Row>> {
        let one = |operation: Operation| -> Result<Row> {
            let on = |system| self.measure(setting, (system, Medium::Plain(sector)), operation);
            let found = PLAIN.into_iter().map(on);
            Ok((operation.name(), found.collect::<Result<_>>()?))
        };
        Operation::ALL.into_iter().map(one).collect()
    }

    /// A table of the columns of each system, with a row an operation.
    fn show(
        &self,
        setting: &Setting<'_>,
        (title, medium): (&str, Medium),
        columns: &[(System, &[Column])],
    ) -> Result<Table> {
        let heads = columns.iter().flat_map(|(system, of)| {
            let name = system.name;
            of.iter().map(move |column| format!("{name}: {}", column.0))
        });
        let mut table = Table::new(title, std::iter::once(String::new()).chain(heads));
        for operation in Operation::ALL {
            let mut cells = Vec::new();
            for (system, of) in columns {
                let found = self.measure(setting, (*system, medium), operation)?;
                cells.extend(of.iter().map(|column| number((column.1)(&found))));
            }
            table.row(operation.name(), cells);
        }
        Ok(table)
    }
}

/// A figure and its name.
type Column = (&'static str, fn(&Found) -> f64);

const IN_MEMORY: [Column; 4] = [
    ("bytes until durable", Found::bytes),
    ("lines", |found| {
        found.each(found.durable().device.total().lines)
    }),
    ("fences", |found| {
        found.each(found.durable().device.total_fences())
    }),
    ("bytes until home", Found::home_bytes),
];
const BESIDE: [Column; 6] = [
    ("NVRAM, bytes", |found| {
        found.each(found.durable().nvm.total().write_bytes)
    }),
    LINES,
    FENCES,
    ("disk, bytes until durable", Found::bytes),
    ("flushes", Found::flushes),
    HOME,
];
const CACHED: [Column; 3] = [LINES, FENCES, HOME];
const LINES: Column = ("lines", |found| {
    found.each(found.durable().nvm.total().lines)
});
const FENCES: Column = ("fences", |found| {
    found.each(found.durable().nvm.total_fences())
});
const HOME: Column = ("disk, bytes until home", Found::home_bytes);
const PROGRAMS: [Column; 2] = [
    ("until durable", Found::programs),
    ("until home", |found| found.programs() + found.later()[1]),
];

/// With two digits behind the point, unless these are zeros or the number is large.
fn number(n: f64) -> String {
    match n {
        _ if n >= 1000.0 || (n - n.round()).abs() < 0.005 => format!("{n:.0}"),
        _ if n >= 100.0 => format!("{n:.1}"),
        _ => format!("{n:.2}"),
    }
}

fn run(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&EXPERIMENT, setting);
    // Only the number of operations is scaled.
    let full = Setting {
        scale: 1.0,
        ..*setting
    };
    let volume = full.volume(EXT4_4K, VOLUME, JOURNAL_BYTES)?;
    let operations = Operations::new(setting, &volume)?;
    report.setup.push((
        "operations",
        format!(
            "{} of each kind, each with its fsync, after {FIRST} that are not counted until \
                durable; blocks by chance of a file of 8 MiB that is home in one extent; the \
                clock goes on by 1 us at each look, so that times change",
            operations.times
        ),
    ));
    report.setup.push((
        "volume",
        format!(
            "ext4 as mke2fs makes it, {} MiB, blocks of 4 KiB, journal of {} MiB",
            volume.mib, volume.journal_mib
        ),
    ));
    let databases = Databases::new(setting, &volume)?;
    databases.describe(&mut report);
    for sector in SECTORS {
        report.measured_on(Medium::Plain(sector));
        let mut rows = operations.on_plain_disk(setting, sector)?;
        let transactions = databases.on_plain_disk(setting, sector)?;
        show(&mut report, "an operation", sector, &rows);
        show(&mut report, "a transaction", sector, &transactions);
        chart(&mut report, sector, &rows);
        rows.extend(transactions);
        report.tables.push(parts(sector, &rows));
        if sector == SECTORS[0] {
            report.tables.push(contents(&rows)?);
        }
        aims(&mut report, sector, &rows)?;
    }
    on_other_media(setting, &operations, &mut report)?;
    Ok(report)
}

/// What is found of each operation, by systems.
type Row = (String, Vec<Found>);

fn chart(report: &mut Report, sector: u32, rows: &[Row]) {
    report.charts.push(Chart {
        name: format!("{}-{sector}", EXPERIMENT.id),
        title: format!(
            "Written until an operation is durable: {}",
            Medium::Plain(sector).name()
        ),
        unit: "bytes".to_owned(),
        groups: rows.iter().map(|(name, _)| name.clone()).collect(),
        series: series(rows),
        lines: Vec::new(),
    });
}

fn series(rows: &[Row]) -> Vec<Series> {
    let of = |(at, system): (usize, &System)| Series {
        name: system.name.to_owned(),
        values: rows.iter().map(|row| Some(row.1[at].bytes())).collect(),
    };
    PLAIN.iter().enumerate().map(of).collect()
}

/// What a table shows of what was found.
type Cell = fn(&Found) -> String;

/// The tables of what was found on a plain disk.
fn show(report: &mut Report, what: &str, sector: u32, rows: &[Row]) {
    let on = Medium::Plain(sector).name();
    let cells: [(&str, Cell); 3] = [
        ("until durable, bytes and flushes", |found| {
            format!("{:.0}, {}", found.bytes(), number(found.flushes()))
        }),
        ("until home, bytes", |found| {
            format!("{:.0}", found.home_bytes())
        }),
        ("until durable, write requests", |found| {
            number(found.requests())
        }),
    ];
    for (title, cell) in cells {
        let head = std::iter::once("").chain(PLAIN.map(|system| system.name));
        let mut table = Table::new(format!("{what} on a {on}: {title}"), head);
        for (name, found) in rows {
            table.row(name, found.iter().map(cell));
        }
        report.tables.push(table);
    }
}

/// Where stet's bytes go.
fn parts(sector: u32, rows: &[Row]) -> Table {
    let mut table = Table::new(
        format!(
            "where the bytes of stet go on a {}",
            Medium::Plain(sector).name()
        ),
        ["", "to where they stay", "log", "home later"],
    );
    for (name, found) in rows {
        let cells = found[STET_AT].parts().map(|bytes| format!("{bytes:.0}"));
        table.row(name, cells);
    }
    table
}

/// The last records of the run, as many as there were operations.
fn records(found: &Found) -> Result<Vec<Record>> {
    let image = found.cost.left.as_ref().context("a simulated disk")?;
    let mut records = log_contents::records(image)?;
    let first = records.len().saturating_sub(found.times as usize);
    Ok(records.split_off(first))
}

/// Bytes of a record in the mean.
fn mean(records: &[Record], of: impl Fn(&Record) -> u64) -> f64 {
    records.iter().map(of).sum::<u64>() as f64 / records.len() as f64
}

/// What records of stet consist of.
fn contents(rows: &[Row]) -> Result<Table> {
    let seen = |class: &Class| !matches!(class, Class::Superblock | Class::Xattr | Class::Journal);
    let classes: Vec<Class> = Class::ALL.into_iter().filter(seen).collect();
    let head = ["", "all", "most", "heads, checksums", "places"].into_iter();
    let mut table = Table::new(
        "what a record of stet consists of, bytes in the mean, without the zeros at its end",
        head.chain(classes.iter().map(|class| class.name())),
    );
    for (name, found) in rows {
        let records = records(&found[STET_AT])?;
        let of = |of: &dyn Fn(&Record) -> u64| format!("{:.0}", mean(&records, of));
        let most = records.iter().map(Record::used).max().unwrap_or(0);
        let mut cells = vec![
            of(&Record::used),
            most.to_string(),
            of(&|record| record.used() - record.ranges - record.contents()),
            of(&|record| record.ranges),
        ];
        cells.extend(classes.iter().map(|class| of(&|r| r.content_of(*class))));
        table.row(name.clone(), cells);
    }
    Ok(table)
}

/// What is aimed at: bytes until durable, flushes, bytes until home.
struct Aim {
    of: String,
    durable: (&'static str, f64),
    flushes: f64,
    home: Option<(&'static str, f64)>,
}

impl Aim {
    fn one(of: Operation, durable: (&'static str, f64), home: Option<(&'static str, f64)>) -> Self {
        Self {
            of: of.name(),
            durable,
            flushes: 1.0,
            home,
        }
    }

    fn all(sector: u32) -> Vec<Self> {
        let block = |of, aim| Self::one(of, aim, Some(aim));
        let blocks = [Operation::Overwrite(4096), Operation::Scattered];
        if sector != SECTORS[0] {
            return blocks.map(|of| block(of, ("aim: 8,192", 8192.0))).into();
        }
        let change = |of| {
            let durable = ("aim: 512 to 1,024", 1024.0);
            Self::one(of, durable, Some(("aim: at most 1,600", 1600.0)))
        };
        let [fresh, scattered] = blocks.map(|of| block(of, ("aim: 4,608", 4608.0)));
        vec![
            fresh,
            scattered,
            change(Operation::Change),
            change(Operation::ChangePage),
            Self::one(Operation::Create, ("aim: at most 5,700", 5700.0), None),
            Self {
                of: "TPC-C, DELETE".to_owned(),
                durable: ("aim: at most 90 KB", 90e3),
                flushes: 4.0,
                home: None,
            },
        ]
    }
}

/// Whether stet costs what it should.
fn aims(report: &mut Report, sector: u32, rows: &[Row]) -> Result<()> {
    for aim in Aim::all(sector) {
        let row = rows.iter().find(|row| row.0 == aim.of);
        let found = &row.with_context(|| aim.of.clone())?.1[STET_AT];
        let claim = |what| format!("sectors of {sector} B: {}: {what}", aim.of);
        let why = why(found)?;
        let mut bytes = |what, (text, most), ours| {
            let check = report.compare(
                claim(what),
                Said::at_most(text, most),
                ours,
                format!("{ours:.0}"),
            );
            check.because(why.clone());
        };
        bytes("bytes until durable", aim.durable, found.bytes());
        if let Some(home) = aim.home {
            bytes("bytes until home", home, found.home_bytes());
        }
        let flushes = found.flushes();
        let said = Said::at_most(format!("aim: {}", aim.flushes), aim.flushes);
        report
            .compare(claim("flushes"), said, flushes, number(flushes))
            .because("not known");
    }
    Ok(())
}

/// Where the bytes are.
fn why(found: &Found) -> Result<String> {
    let [stays, log, later] = found.parts();
    let records = records(found)?;
    let mapping = mean(&records, |record| record.content_of(Class::Mapping));
    Ok(format!(
        "{stays:.0} bytes go to where they stay, {log:.0} into the log and {later:.0} home later; \
            of a record's {:.0} bytes without the zeros at its end {mapping:.0} are of extent \
            nodes, in which all entries behind a new one move",
        mean(&records, Record::used),
    ))
}

/// SQLite on the same volume.
struct Databases {
    updates: (Volume, Updates),
    tpcc: (Volume, Tpcc),
}

const MODES: [JournalMode; 2] = [JournalMode::Delete, JournalMode::Wal];

impl Databases {
    fn new(setting: &Setting<'_>, volume: &Volume) -> Result<Self> {
        let updates = Updates {
            mode: JournalMode::Delete,
            rows: ROWS,
            updates: setting.scaled(UPDATES, 1)?,
            seed: setting.seed,
        };
        let tpcc = Tpcc {
            size: Cardinality::scaled(setting.scale),
            decks: ((DECKS * setting.scale) as u32).max(1),
            journal: JournalMode::Delete,
            page_bytes: 4096,
            seed: setting.seed,
        };
        Ok(Self {
            updates: (prepared(setting, volume, &updates)?, updates),
            tpcc: (prepared(setting, volume, &tpcc)?, tpcc),
        })
    }

    fn describe(&self, report: &mut Report) {
        report.setup.push((
            "databases",
            format!(
                "SQLite {} with its defaults and synchronous=FULL: a row of {ROWS} gets 100 new \
                    bytes, {} times; TPC-C on one warehouse, {} transactions",
                rusqlite::version(),
                self.updates.1.updates,
                self.tpcc.1.transactions()
            ),
        ));
    }

    fn on_plain_disk(&self, setting: &Setting<'_>, sector: u32) -> Result<Vec<Row>> {
        let medium = Medium::Plain(sector);
        let mut rows = Vec::new();
        for mode in MODES {
            let work = Updates {
                mode,
                ..self.updates.1
            };
            let of = |system| {
                let work: (&dyn Workload, _, _) = (&work, 0, work.updates);
                let volume = (&self.updates.0, MEMORY_MIB);
                measure(setting, (system, medium), volume, work)
            };
            let found = PLAIN.into_iter().map(of).collect::<Result<_>>()?;
            rows.push((format!("SQLite, 100 B, {}", mode.name()), found));
        }
        for journal in MODES {
            let work = Tpcc {
                journal,
                ..self.tpcc.1
            };
            let of = |system| {
                let work: (&dyn Workload, _, _) = (&work, 0, work.transactions().into());
                let volume = (&self.tpcc.0, TPCC_MEMORY_MIB);
                measure(setting, (system, medium), volume, work)
            };
            let found = PLAIN.into_iter().map(of).collect::<Result<_>>()?;
            rows.push((format!("TPC-C, {}", journal.name()), found));
        }
        Ok(rows)
    }
}

/// The schemes of the papers on what they were made for, and stet there.
fn on_other_media(
    setting: &Setting<'_>,
    operations: &Operations,
    report: &mut Report,
) -> Result<()> {
    let (nvram, cache) = (Medium::hard_disk(NVRAM), Medium::hard_disk(CACHE));
    let mib = JFTL_NAND.capacity()? >> 20;
    let on_flash = Volume::make(EXT4_4K, mib, FLASH_JOURNAL_MIB)?;
    let on_flash = Operations::new(setting, &on_flash)?;
    let programs: [(System, &[Column]); 4] =
        [JOURNAL, JOURNAL_REMAP, JOURNAL_EACH, STET].map(|system| (system, &PROGRAMS[..]));
    let cached: [(System, &[Column]); 4] =
        [SPINDLE, TINCA, UBJ_RANGE, STET_BESIDE].map(|system| (system, &CACHED[..]));
    let in_memory: [(System, &[Column]); 2] =
        [ADP_S, STET_IN_MEMORY].map(|system| (system, &IN_MEMORY[..]));
    let beside: [(System, &[Column]); 2] =
        [DJ_JOURNAL, STET_BESIDE].map(|system| (system, &BESIDE[..]));
    let all: [(&str, &Operations, Medium, &[_]); 4] = [
        ("an operation on PCM", operations, PCM, &in_memory),
        (
            "an operation on a disk with NVRAM beside it",
            operations,
            nvram,
            &beside,
        ),
        (
            "an operation on a disk with a cache in NVM: lines and fences until durable",
            operations,
            cache,
            &cached,
        ),
        (
            "an operation on NAND with pages of 512 bytes: pages programmed",
            &on_flash,
            Medium::nand(JFTL_NAND),
            &programs,
        ),
    ];
    for (title, operations, medium, columns) in all {
        let table = operations.show(setting, (title, medium), columns)?;
        report.tables.push(table);
    }
    report.setup.extend([
        (PCM.name(), PCM.about()),
        (nvram.name(), nvram.about()),
        ("cache", cache.about()),
        (JFTL_NAND.name, JFTL_NAND.about()),
    ]);
    Ok(())
}
