//! What has to be logged of a block that changed: stet's ranges beside what the Delta Journaling
//! paper logs, and beside two compressors that may copy from the block as it was before, which is
//! what would make a sorted block small of which everything moved.
//!
//! Measured are the blocks that transactions overwrite: TPC-C's, and those that get something
//! inserted: the pages of an index of SQLite, a directory, the extents of a file.

use std::cell::RefCell;

use anyhow::Result;
use stetfs_media::Class;
use stetfs_scheme::Ranges;
use stetfs_schemes::delta::{COMPRESSORS, difference};
use zstd::zstd_safe::{CCtx, DCtx, compress_bound};

use super::dj::telephone_for_stet;
use super::dj_tpcc::{Bench, CASES};
use super::ground::Ground;
use super::report::{Chart, Report, Said, Series, Table};
use super::{Experiment, Setting};
use crate::system::{Changes, DeltaKind, Deltas, SECTORS};
use crate::workload::Inserts;
use crate::workload::inserts::Into;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "stet-deltas",
    title: "what has to be logged of a block that changed: ranges, exclusive or, copies of the \
        block before",
    paper: "none; of what Kim, Min, Eom (IEEE Trans. Consumer Electronics 60(2), 2014) log, and of \
        what this project logs",
    scale: 1.0,
    has_real_time: true,
    run,
};

const BLOCK: u64 = 4096;
const VOLUME: u64 = 1 << 30;
const BEFORE: u64 = 20_000;
const INSERTS: u64 = 2_000;

/// stet's own first; those that need no base first.
static KINDS: [DeltaKind; 5] = [
    DeltaKind {
        name: "ranges",
        needs_base: false,
        make: ranges,
        apply: apply_ranges,
    },
    DeltaKind {
        name: "LZ4",
        needs_base: false,
        make: lz4_alone,
        apply: apply_lz4_alone,
    },
    DeltaKind {
        name: "xor, LZO",
        needs_base: true,
        make: xor,
        apply: apply_xor,
    },
    DeltaKind {
        name: "LZ4 with the base",
        needs_base: true,
        make: lz4,
        apply: apply_lz4,
    },
    DeltaKind {
        name: "Zstandard with the base",
        needs_base: true,
        make: zstandard,
        apply: apply_zstandard,
    },
];

/// The first that may copy.
const COPYING: usize = 3;

/// As stet's records have them: offset and length of each, and their bytes.
fn ranges(before: &[u8], now: &[u8], delta: &mut Vec<u8>) {
    let mut ranges = Ranges::new();
    ranges.add_changes(0, before, now);
    delta.clear();
    for range in ranges.iter() {
        delta.extend_from_slice(&(range.start as u16).to_le_bytes());
        delta.extend_from_slice(&(range.len() as u16).to_le_bytes());
        delta.extend_from_slice(&now[range]);
    }
}

fn apply_ranges(before: &[u8], mut delta: &[u8]) -> Option<Vec<u8>> {
    let mut block = before.to_vec();
    while let Some((head, rest)) = delta.split_first_chunk::<4>() {
        let at = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let len = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let (bytes, rest) = rest.split_at_checked(len)?;
        block.get_mut(at..at + len)?.copy_from_slice(bytes);
        delta = rest;
    }
    Some(block)
}

/// As scheme dj does it.
fn xor(before: &[u8], now: &[u8], delta: &mut Vec<u8>) {
    let mut xor = vec![0; now.len()];
    difference(before, now, &mut xor);
    COMPRESSORS[0].compress(&xor, delta);
}

fn apply_xor(before: &[u8], delta: &[u8]) -> Option<Vec<u8>> {
    let mut xor = Vec::new();
    let is_whole = COMPRESSORS[0].decompress(delta, before.len(), &mut xor);
    let bytes = xor.iter().zip(before).map(|(a, b)| a ^ b);
    is_whole.then(|| bytes.collect())
}

/// The block by itself.
fn lz4_alone(_: &[u8], now: &[u8], delta: &mut Vec<u8>) {
    lz4(&[], now, delta);
}

fn apply_lz4_alone(before: &[u8], delta: &[u8]) -> Option<Vec<u8>> {
    let mut block = vec![0; before.len()];
    let made = lz4_flex::block::decompress_into(delta, &mut block);
    made.is_ok_and(|made| made == block.len()).then_some(block)
}

fn lz4(before: &[u8], now: &[u8], delta: &mut Vec<u8>) {
    delta.resize(lz4_flex::block::get_maximum_output_size(now.len()), 0);
    let made = lz4_flex::block::compress_into_with_dict(now, delta, before);
    delta.truncate(made.expect("there is room for whatever comes out"));
}

fn apply_lz4(before: &[u8], delta: &[u8]) -> Option<Vec<u8>> {
    let mut block = vec![0; before.len()];
    let made = lz4_flex::block::decompress_into_with_dict(delta, &mut block, before);
    made.is_ok_and(|made| made == block.len()).then_some(block)
}

thread_local! {
    /// Its memory is used again.
    static ZSTANDARD: RefCell<CCtx<'static>> = RefCell::new(CCtx::create());
}

/// At its quickest ordinary level.
fn zstandard(before: &[u8], now: &[u8], delta: &mut Vec<u8>) {
    delta.resize(compress_bound(now.len()), 0);
    let made = ZSTANDARD
        .with_borrow_mut(|context| context.compress_using_dict(&mut delta[..], now, before, 1));
    delta.truncate(made.expect("there is room for whatever comes out"));
}

fn apply_zstandard(before: &[u8], delta: &[u8]) -> Option<Vec<u8>> {
    let mut block = vec![0; before.len()];
    let made = DCtx::create().decompress_using_dict(&mut block[..], delta, before);
    (made == Ok(block.len())).then_some(block)
}

/// Some classes, and their name.
type Group = (&'static str, fn(Class) -> bool);

/// What is told apart.
const GROUPS: [Group; 4] = [
    ("data", |class| class == Class::Data),
    ("inodes", |class| class == Class::InodeTable),
    ("directories", |class| class == Class::Directory),
    ("other metadata", |class| {
        !matches!(class, Class::Data | Class::InodeTable | Class::Directory)
    }),
];

fn run(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&EXPERIMENT, setting);
    let bench = Bench::new(setting)?;
    bench.describe_tpcc(&mut report);
    let mut all: Vec<(String, Changes)> = Vec::new();
    for case in CASES {
        let changes = bench.changes(setting, case, &KINDS)?;
        all.push((format!("TPC-C, {}", case.name), changes));
    }
    for into in Into::ALL {
        let inserts = Inserts {
            into,
            before: setting.scaled(BEFORE, 1)?,
            inserts: setting.scaled(INSERTS, 1)?,
            seed: setting.seed,
        };
        let ground = Ground::new(setting, &telephone_for_stet(VOLUME))?;
        let changes = ground.changes(setting, &inserts, &KINDS)?;
        let name = match into {
            Into::Index => "an index of SQLite",
            Into::Directory => "a directory",
            Into::Extents => "a file's extents",
        };
        all.push((name.to_owned(), changes));
    }
    report.setup.push((
        "inserts",
        format!(
            "{} rows, names or blocks are there, and {} come, by chance, each durable",
            setting.scaled(BEFORE, 1)?,
            setting.scaled(INSERTS, 1)?
        ),
    ));
    report.tables.push(sizes(&all));
    report.charts.push(chart(&all));
    report.tables.push(records(&all));
    report.tables.push(bounds(&all));
    if setting.real_time {
        report.tables.push(times(&all));
    }
    judge(&all, &mut report);
    Ok(report)
}

fn names() -> impl Iterator<Item = String> {
    KINDS.iter().map(|kind| kind.name.to_owned())
}

fn sizes(all: &[(String, Changes)]) -> Table {
    let head = ["", "blocks"].map(str::to_owned);
    let mut table = Table::new("Bytes of a delta", head.into_iter().chain(names()));
    for (name, changes) in all {
        for (group, wanted) in GROUPS {
            let blocks = changes.updated(wanted);
            if blocks == 0 {
                continue;
            }
            let sums = changes.deltas.iter().map(|deltas| {
                let classes = deltas.bytes.iter().filter(|(class, _)| wanted(**class));
                classes.map(|(_, bytes)| bytes).sum::<u64>()
            });
            let means = sums.map(|sum| format!("{:.0}", sum as f64 / blocks as f64));
            let cells = std::iter::once(blocks.to_string()).chain(means);
            table.row(format!("{name}: {group}"), cells);
        }
    }
    table
}

fn chart(all: &[(String, Changes)]) -> Chart {
    let mean = |changes: &Changes, n: usize| {
        let bytes: u64 = changes.deltas[n].bytes.values().sum();
        bytes as f64 / changes.updated(|_| true).max(1) as f64
    };
    let series = KINDS.iter().enumerate().map(|(n, kind)| Series {
        name: kind.name.to_owned(),
        values: all
            .iter()
            .map(|(_, changes)| Some(mean(changes, n)))
            .collect(),
    });
    Chart {
        name: EXPERIMENT.id.to_owned(),
        title: "what has to be logged of a block that changed".to_owned(),
        unit: "bytes of a delta".to_owned(),
        groups: all.iter().map(|(name, _)| name.clone()).collect(),
        series: series.collect(),
        lines: Vec::new(),
    }
}

fn records(all: &[(String, Changes)]) -> Table {
    let head = std::iter::once(String::new()).chain(names());
    let title = "Bytes of a transaction's record, without what is new";
    let mut table = Table::new(title, head);
    for (name, changes) in all {
        for (n, sector) in SECTORS.into_iter().enumerate() {
            let sums = changes.deltas.iter().map(|deltas| deltas.records[n]);
            let mean = |sum: u64| format!("{:.0}", sum as f64 / changes.transactions as f64);
            let name = format!("{name}, sectors of {sector} B");
            table.row(name, sums.map(mean));
        }
    }
    table
}

/// What may need no base is complete after the kinds that need none.
fn bounds(all: &[(String, Changes)]) -> Table {
    let head = ["", "ranges", "ranges or LZ4"].map(str::to_owned);
    let based = KINDS.iter().filter(|kind| kind.needs_base);
    let based = based.map(|kind| format!("or {}", kind.name));
    let title = "Bytes of deltas a transaction, where the block before has to be in the log";
    let mut table = Table::new(title, head.into_iter().chain(based));
    for (name, changes) in all {
        let mean = |sum: u64| format!("{:.0}", sum as f64 / changes.transactions as f64);
        let ranges = changes.deltas[0].bytes.values().sum::<u64>();
        let without = changes.deltas[COPYING].without_bases();
        let based = KINDS.iter().zip(&changes.deltas);
        let based = based.filter(|(kind, _)| kind.needs_base);
        let based = based.map(|(_, deltas)| deltas.with_bases());
        let all = [ranges, without].into_iter().chain(based);
        table.row(name.as_str(), all.map(mean));
    }
    table
}

fn times(all: &[(String, Changes)]) -> Table {
    let head = std::iter::once(String::new()).chain(names());
    let mut table = Table::new("Nanoseconds of this machine for a delta", head);
    for (name, changes) in all {
        let blocks = changes.updated(|_| true).max(1) as f64;
        let means = changes
            .deltas
            .iter()
            .map(|deltas| deltas.ns as f64 / blocks);
        table.row(name.as_str(), means.map(|ns| format!("{ns:.0}")));
    }
    table
}

/// What the log has of deltas with copies must not depend on home, which a checkpoint may have
/// torn: somewhere behind the log's end there must be all of the block.
fn judge(all: &[(String, Changes)], report: &mut Report) {
    for (name, changes) in all {
        let without = changes.deltas[COPYING].without_bases();
        let copying = changes.deltas[COPYING..].iter().map(Deltas::with_bases);
        let copying = copying.min().unwrap_or(without);
        let new = changes.new_blocks * BLOCK;
        let saved = (without - copying.min(without)) as f64 / (without + new) as f64;
        report
            .compare(
                format!("{name}: of what a transaction writes, copies would save no more than 5 %"),
                Said::at_most("at most 0.05", 0.05),
                saved,
                format!("{saved:.3}"),
            )
            .because_of(|_| {
                match name.as_str() {
                    "TPC-C, WAL" => {
                        "SQLite's log begins anew over frames of other pages: there is little to \
                        copy, and it is the compressors' own work that makes them small"
                    }
                    "a file's extents" => {
                        "each insert moves half of a leaf by the 12 bytes of an extent; whoever \
                        fills holes by chance pays for that with each write"
                    }
                    _ => {
                        "this is a bound, which knows beforehand how often each block will change \
                        before it goes home; a rule that has to guess saves less"
                    }
                }
                .to_owned()
            });
    }
}
