//! `stetfs journal`: the transactions of the log in words.

pub(crate) mod area;
mod home;
mod scan;

use serde::Serialize;
use stetfs_format::FeatureCompat;

use home::HomeMap;
use scan::{Fate, Logged, Record, Scan, Transaction};

use crate::args::Journal;
use crate::clock::utc;
use crate::disk::Disk;
use crate::failure::{Explain, Failure, Result};
use crate::journal::area::{JournalArea, JournalInfo};
use crate::output;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Dump {
    image: String,
    journal: JournalInfo,
    transactions: Vec<Transaction>,
}

pub(crate) fn run(args: &Journal) -> Result<()> {
    let dump = read(args)?;
    if args.json {
        output::json(&dump)
    } else {
        print(&dump, args.all)
    }
}

fn read(args: &Journal) -> Result<Dump> {
    let shown = || args.image.display().to_string();
    let disk = Disk::open(&args.image)?;
    if !disk
        .superblock
        .feature_compat
        .contains(FeatureCompat::HAS_JOURNAL)
    {
        return Err(
            Failure::new(format!("{}: the volume has no journal", shown()))
                .advise("tune2fs -j makes one"),
        );
    }
    let area = JournalArea::open(&disk)
        .during(|| format!("{}: the journal cannot be read", shown()))
        .or_advise(|| format!("let e2fsck look at it: stetfs fsck {}", shown()))?;
    let homes = HomeMap::new(&disk);
    let mut scan = Scan::new(&area, &homes);
    let live = scan.live().during(shown)?;
    let mut transactions = if args.all {
        scan.old().during(shown)?
    } else {
        Vec::new()
    };
    transactions.extend(live);
    Ok(Dump {
        image: shown(),
        journal: area.info(disk.superblock.journal_inum),
        transactions,
    })
}

fn print(dump: &Dump, all: bool) -> Result<()> {
    if let JournalInfo::Internal {
        inode,
        blocks,
        features,
        sequence,
        start,
        scheme,
        is_private,
        ..
    } = &dump.journal
    {
        let features = crate::info::feature_words(features);
        output::line(format_args!(
            "{}: journal of {blocks} blocks in inode {inode}; {features}",
            dump.image
        ))?;
        match start {
            _ if *is_private => output::line(format_args!(
                "the log is in use by scheme {scheme}, which alone can read it; below are old \
                    records of JBD2"
            ))?,
            0 => output::line(format_args!(
                "nothing to recover; the next transaction is {sequence}"
            ))?,
            _ => output::line(format_args!(
                "recovery begins at journal block {start} with transaction {sequence}"
            ))?,
        }
    }
    for transaction in &dump.transactions {
        print_transaction(transaction)?;
    }
    let replayed = dump
        .transactions
        .iter()
        .filter(|t| t.fate == Fate::Replayed)
        .count();
    if replayed > 0 {
        output::line(format_args!(
            "\nrecovery would replay {replayed} transactions"
        ))?;
    } else if dump.transactions.is_empty() && !all {
        output::line("(--all shows what is left of earlier transactions)")?;
    }
    Ok(())
}

fn print_transaction(t: &Transaction) -> Result<()> {
    let time = t.time.map_or_else(String::new, |(sec, nsec)| {
        format!(", committed {}.{:03} UTC", utc(sec), nsec / 1_000_000)
    });
    let fate = match t.fate {
        Fate::Replayed => "recovery replays it",
        Fate::Uncommitted => "no commit: recovery ends before it",
        Fate::Old => "old: recovery does not look at it",
    };
    output::line(format_args!("\ntransaction {}{time}: {fate}", t.tid))?;
    for record in &t.records {
        print_record(record)?;
    }
    match &t.damage {
        Some(why) => output::line(format_args!("  damaged: {why}")),
        None => Ok(()),
    }
}

fn print_record(record: &Record) -> Result<()> {
    match record {
        Record::Commit { at } => output::line(format_args!("  {at:>6}  commit")),
        Record::Revoke { at, blocks } => output::line(format_args!(
            "  {at:>6}  revoke of {} blocks: {}",
            blocks.len(),
            ranges(blocks)
        )),
        Record::Descriptor { at, blocks } => {
            output::line(format_args!(
                "  {at:>6}  descriptor of {} blocks",
                blocks.len()
            ))?;
            blocks
                .iter()
                .try_for_each(|block| output::line(logged(block)))
        }
    }
}

fn logged(block: &Logged) -> String {
    let mut line = format!(
        "  {:>6}    block {:<10} {}",
        block.at, block.home, block.what
    );
    if block.escaped {
        line.push_str(" (escaped)");
    }
    if !block.intact {
        line.push_str(" (its checksum is wrong)");
    }
    if let Some(by) = block.revoked_by {
        line.push_str(&format!(" (revoked by transaction {by})"));
    }
    line
}

/// Formats sorted or unsorted numbers: `3, 7-9`.
fn ranges(blocks: &[u64]) -> String {
    let mut sorted = blocks.to_vec();
    sorted.sort_unstable();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for block in sorted {
        match runs.last_mut() {
            Some((_, last)) if block == *last + 1 => *last = block,
            _ => runs.push((block, block)),
        }
    }
    let text = |(first, last): (u64, u64)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    runs.into_iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn neighbours_are_told_as_ranges() {
        assert_eq!(super::ranges(&[9, 3, 8, 7, 12]), "3, 7-9, 12");
        assert_eq!(super::ranges(&[]), "");
    }
}
